/* SPDX-License-Identifier: MIT */
/* conformance_shared.c: checks physical memory that other processes map, the driver's and weir's, on the device model and
 * on a GPU.
 *
 * As in conformance_peers.c each point is either asserted on both, or its answer is printed and asserted on the model
 * alone.  The other process is this program again, with a text in WEIR_TEST_TEXT.
 *
 * Must not know: how weir places blocks. */
#include "conformance.h"

#include <sys/resource.h>

#define UNIT (2 * MIB)
#define BYTES (100 * MIB + 4096)
#define KIND CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static int can_share;
static CUcontext context;
static CUstream s;

static void open_with_stream(void) {
    open_tested_driver((struct weir_model_setup){0});
    context = enter_device(0);
    s = make_stream();
}

static void open_sharing_device(void) {
    open_with_stream();
    can_share = 0;
    if (driver->capabilities & WEIR_CAP_IPC)
        CU(driver->cuDeviceGetAttribute(
            &can_share, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
    if (!can_share)
        printf("# driver: no memory for other processes: nothing is asked of it\n");
}

static void close_sharing_device(void) {
    drop_stream(s);
    leave_device(0);
}

static size_t free_bytes(void) {
    size_t bytes = 0, total = 0;

    CU(driver->cuMemGetInfo(&bytes, &total));
    return bytes;
}

static int write_all(CUdeviceptr at, size_t bytes, unsigned char value) {
    return driver->cuMemsetD8Async(at, value, bytes, s) == CUDA_SUCCESS &&
           driver->cuStreamSynchronize(s) == CUDA_SUCCESS;
}

static int are_all(CUdeviceptr at, size_t bytes, unsigned char value) {
    unsigned char *host = malloc(bytes);
    int are = host && driver->cuMemcpyDtoHAsync(host, at, bytes, s) == CUDA_SUCCESS &&
              driver->cuStreamSynchronize(s) == CUDA_SUCCESS &&
              first_other(host, value, bytes) == bytes;

    free(host);
    return are;
}

/* ---- the driver ------------------------------------------------------------------------------ */

static struct {
    CUmemGenericAllocationHandle memory;
    CUdeviceptr at;
    CUmemAccessDesc access;
} made;

/* Makes a physical allocation, and maps it in the first half of an address range of twice its size. */
static void make_shared_handle(size_t bytes) {
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemAllocationProp kind = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = KIND, .location = here};

    made.access = (CUmemAccessDesc){.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(driver->cuMemCreate(&made.memory, bytes, &kind, 0));
    CU(driver->cuMemAddressReserve(&made.at, 2 * bytes, 0, 0, 0));
    CU(driver->cuMemMap(made.at, bytes, 0, made.memory, 0));
    CU(driver->cuMemSetAccess(made.at, bytes, &made.access, 1));
    MUST(write_all(made.at, bytes, 7));
}

static CUresult import(CUmemGenericAllocationHandle *handle, int file) {
    return driver->cuMemImportFromShareableHandle(handle, (void *)(intptr_t)file, KIND);
}

CASE("shared memory", 120, open_sharing_device, close_sharing_device);

TEST(exported_memory_is_one) {
    const size_t bytes = 64 * UNIT;
    CUmemGenericAllocationHandle again = 0, none = 0;
    CUcontext popped;
    CUresult result;
    size_t before;
    int file = -1, other = -1;

    if (!can_share)
        return;
    before = free_bytes();
    make_shared_handle(bytes);
    CU(driver->cuMemExportToShareableHandle(&file, made.memory, KIND, 0));
    answer("an exported file closes on exec", (fcntl(file, F_GETFD) & FD_CLOEXEC) != 0, 1);
    CU(driver->cuCtxPopCurrent(&popped));
    result = import(&again, file);
    answer("an import without a current context", result, CUDA_SUCCESS);
    CU(driver->cuCtxPushCurrent(popped));
    if (result != CUDA_SUCCESS)
        CU(import(&again, file));
    result = driver->cuMemExportToShareableHandle(&other, again, KIND, 0);
    answer("an export of what was imported here", result, CUDA_SUCCESS);
    if (result == CUDA_SUCCESS)
        close(other);
    answer("a file that is none of the driver's, imported", import(&none, STDIN_FILENO),
           CUDA_ERROR_INVALID_VALUE);
    CU(driver->cuMemRelease(made.memory));
    CU(driver->cuMemUnmap(made.at, bytes));
    answer("what was imported keeps the memory", before - free_bytes() >= bytes, 1);
    result = driver->cuMemMap(made.at, 2 * bytes, 0, again, 0);
    answer("more mapped than was imported", result, CUDA_ERROR_INVALID_VALUE);
    CU(driver->cuMemMap(made.at + bytes, bytes, 0, again, 0));
    CU(driver->cuMemSetAccess(made.at + bytes, bytes, &made.access, 1));
    CU(driver->cuMemRelease(again)); /* the mapping keeps the memory */
    MUST(are_all(made.at + bytes, bytes, 7));
    CU(driver->cuMemUnmap(made.at + bytes, bytes));
    answer("an open file alone keeps the memory", before - free_bytes() >= bytes, 0);
    MUST(close(file) == 0);
    answer("all closed, the memory is gone", before - free_bytes() < bytes, 1);
    CU(driver->cuMemAddressFree(made.at, 2 * bytes));
}

/* An export fails if the process has no file descriptor left. */
TEST(an_export_fails_without_a_file_descriptor) {
    struct rlimit limit, least;
    CUresult result;
    int file = -1, highest;

    if (!can_share)
        return;
    make_shared_handle(UNIT);
    CU(driver->cuMemExportToShareableHandle(&file, made.memory, KIND, 0));
    MUST(close(file) == 0);
    MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    least = limit;
    highest = fcntl(0, F_DUPFD_CLOEXEC, 0);
    MUST(highest >= 0 && close(highest) == 0);
    least.rlim_cur = (rlim_t)highest; /* the lowest number that is free */
    MUST(setrlimit(RLIMIT_NOFILE, &least) == 0);
    result = driver->cuMemExportToShareableHandle(&file, made.memory, KIND, 0);
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    answer("an export without a number for its file", result, CUDA_ERROR_OPERATING_SYSTEM);
    if (result == CUDA_SUCCESS)
        close(file);
    CU(driver->cuMemUnmap(made.at, UNIT));
    CU(driver->cuMemRelease(made.memory));
    CU(driver->cuMemAddressFree(made.at, 2 * UNIT));
}

/* ---- weir ------------------------------------------------------------------------------------ */

static weir_allocator *make_mapped_allocator(void) {
    weir_options options = options_of(KIND_MAPPED, device_name, 0);
    weir_allocator *a = NULL;

    OK(weir_allocator_create(&options, &a));
    return a;
}

int open_text(const char *told) {
    char text[4096] = "", message[512];
    size_t offset = 0;
    void *base = NULL;

    alarm(60);
    open_with_stream();
    if (sscanf(told, "%zu %4095s", &offset, text) != 2)
        return 2;
    if (weir_ipc_open(text, NULL, &base, message, sizeof message) != WEIR_OK) {
        printf("%s\n", message);
        return strstr(message, "ptrace_scope") ? 77 : 3;
    }
    if (!are_all((uintptr_t)base + offset, BYTES, 7) ||
        !write_all((uintptr_t)base + offset, BYTES, 9))
        return 4;
    printf("opened\n");
    return weir_ipc_close(base) == WEIR_OK ? 0 : 5;
}

/* Runs this program with the text as the receiver.  Returns its exit status, -1 if the kernel denies descriptors. */
static int run_receiver(const char *text, size_t offset) {
    char path[512], told[4200], line[600] = "";
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    FILE *receiver;
    int code;

    MUST(length > 0);
    path[length] = '\0';
    snprintf(told, sizeof told, "%zu %s", offset, text);
    MUST(setenv("WEIR_TEST_TEXT", told, 1) == 0);
    fflush(stdout);
    receiver = popen(path, "r");
    MUST(receiver != NULL);
    if (fgets(line, sizeof line, receiver))
        printf("# another process: %s", line);
    code = pclose(receiver);
    unsetenv("WEIR_TEST_TEXT");
    return code == 77 << 8 ? -1 : code;
}

TEST(another_process_has_a_block) {
    weir_allocator *a;
    char text[4096];
    size_t offset = 0, released = 0, before;
    void *block = NULL, *base = NULL;
    int code;

    if (!can_share)
        return;
    a = make_mapped_allocator();
    OK(weir_alloc(a, BYTES, s, &block));
    MUST(write_all((uintptr_t)block, BYTES, 7));
    OK(weir_ipc_make(a, block, text, sizeof text, NULL, &offset));
    code = run_receiver(text, offset);
    MUST(code <= 0);
    MUST(are_all((uintptr_t)block, BYTES,
                 code == 0 ? 9 : 7)); /* the code is 0 if the kernel lets the receiver open it */
    before = free_bytes();
    OK(weir_ipc_open(text, NULL, &base, NULL, 0));
    OK(weir_free(a, block, s));
    OK(weir_trim(a, 0, &released));
    answer("memory that a receiver has stays", free_bytes() < before + BYTES, 1);
    MUST(are_all((uintptr_t)base + offset, BYTES, code == 0 ? 9 : 7));
    OK(weir_ipc_close(base));
    answer("and goes with the receiver's close", free_bytes() >= before + BYTES, 1);
    OK(weir_allocator_destroy(a));
}
