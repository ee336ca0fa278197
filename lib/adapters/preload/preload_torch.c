/* SPDX-License-Identifier: MIT */
/* preload_torch.c: makes weir the allocator of PyTorch in this process, before PyTorch initialises its own allocator.
 *
 * PyTorch counts the devices before it initialises its allocator.  For this, libtorch_cuda.so calls one of two
 * functions of libc10_cuda.so by its symbol.  This library exports both symbols, installs a shim at the first call, and
 * then calls PyTorch's function.  A shim is a library between weir and one build of PyTorch.
 *
 * This library loads only the shim that was compiled for the build id in the loaded libc10_cuda.so.  If the shim is
 * missing and `weir run` compiles it at the moment, the first call waits.
 *
 * The shim calls weir's functions in this library (libweir-preload.map), so the process has only one copy of weir.
 *
 * The code in this file must not depend on how the shim works or is compiled. */
#include "adapters/preload/preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "adapters/torch/shim.h"
#include "base/log.h"

#define EXPORT __attribute__((visibility("default")))
#define COUNT "_ZN3c104cuda12device_countEv"
#define COUNT_SOME "_ZN3c104cuda28device_count_ensure_non_zeroEv"

EXPORT signed char weir__torch_count(void) __asm__(COUNT);
EXPORT signed char weir__torch_count_some(void) __asm__(COUNT_SOME);

typedef signed char count_function(void);

static count_function *count, *count_some; /* PyTorch's own functions */
static int is_installed;
static char reason_unused[4200];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local int is_installing __attribute__((tls_model("initial-exec")));

int weir__torch_has_weir(void) {
    return is_installed;
}

const char *weir__torch_reason_unused(void) {
    return reason_unused;
}

struct library {
    const char *path; /* NULL if libc10_cuda.so is not loaded */
    char id[WEIR_BUILD_ID_BYTES];
};

static int match_c10_library(struct dl_phdr_info *loaded, size_t bytes, void *to) {
    const char *name = strrchr(loaded->dlpi_name, '/');
    struct library *library = to;

    (void)bytes;
    if (!name || strcmp(name + 1, WEIR_SHIM_LIBRARY) != 0)
        return 0;
    library->path = loaded->dlpi_name;
    for (int i = 0; i < loaded->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &loaded->dlpi_phdr[i];

        if (segment->p_type == PT_NOTE &&
            weir__shim_id_in((const void *)(loaded->dlpi_addr + segment->p_vaddr), segment->p_memsz,
                             library->id))
            break;
    }
    return 1;
}

static __attribute__((format(printf, 2, 3))) void keep_torch_allocator(int is_warning,
                                                                       const char *format, ...) {
    static const char text[] = "PyTorch's own allocator stays: %s";
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reason_unused, sizeof reason_unused, format, arguments);
    va_end(arguments);
    if (is_warning)
        weir__log(WEIR_LOG_WARNING, WEIR_LOG_WARNING, text, reason_unused);
    else
        weir__run_log(text, reason_unused);
}

/* Returns Python's path as the user typed it, as virtual environments need.  Returns "PYTHON" in other programs. */
static const char *find_interpreter(void) {
    return strncmp(program_invocation_short_name, "python", 6) == 0 ? program_invocation_name
                                                                    : "PYTHON";
}

/* Returns the allocator of cuMemAllocAsync on the device, or NULL.  Tensors use this allocator, too. */
static weir_allocator *find_tensor_allocator(int device) {
    struct weir_served *served = NULL;
    struct weir_pool *pool;
    int before = weir__is_serving;

    weir__is_serving = 1;
    pool = weir__pool_current(device);
    if (pool)
        served = weir__served_of(pool);
    weir__is_serving = before;
    return served ? served->allocator : NULL;
}

/* Reports a failed request for a tensor like a failed cuMemAllocAsync. */
static void report_failed_tensor(weir_allocator *allocator, size_t bytes) {
    int before = weir__is_serving;

    weir__is_serving = 1;
    for (unsigned i = 0; i < weir__served_known(); i++) {
        struct weir_served *s = weir__served_at(i);

        if (s->allocator != allocator)
            continue;
        weir__report_oom(s);
        weir__trace_record_failure(s, bytes);
        weir__report_failure();
    }
    weir__is_serving = before;
}

static __attribute__((constructor)) void watch_torch(void) {
    weir__drop_in_serves = find_tensor_allocator;
    weir__drop_in_refused = report_failed_tensor;
}

/* Finds the shim (library between weir and PyTorch), or waits for its compilation.  Returns 1 on success, else 0. */
static int find_shim(const struct library *library, char *path, size_t bytes) {
    enum { TIMEOUT_SECONDS = 300 };

    char failure[768]; /* the log would cut off a longer line */
    int was_failed, is_in_time = 1;

    if (!weir__shim_path(path, bytes, library->id, ".so")) {
        keep_torch_allocator(1, "neither XDG_CACHE_HOME nor HOME is a folder's path");
        return 0;
    }
    was_failed = weir__shim_failure(library->id, failure, sizeof failure);
    if (!was_failed && access(path, R_OK) != 0 && !weir__shim_await(path, 0)) {
        weir__log(WEIR_LOG_INFO, WEIR_LOG_INFO,
                  "PyTorch waits until weir's shim for it is compiled (once, about half a minute)");
        is_in_time = weir__shim_await(path, TIMEOUT_SECONDS * UINT64_C(1000000000));
    }
    if (access(path, R_OK) == 0)
        return 1;
    if (weir__shim_failure(library->id, failure, sizeof failure))
        keep_torch_allocator(1, "%s", failure);
    else if (!is_in_time)
        keep_torch_allocator(1, "its shim is not compiled after %d s.  A later start uses the shim",
                             TIMEOUT_SECONDS);
    else
        keep_torch_allocator(1, "there is no file %s.  To compile it: weir torch --build %s", path,
                             find_interpreter());
    return 0;
}

static void install(const struct library *library) {
    const char *disabled_by = weir__shim_disabled_by(), *declined;
    char path[4096];
    void *shim, *found;
    const char *(*shim_install)(void) = NULL;

    if (!weir__run_switch("WEIR_RUN_TORCH", 1)) {
        keep_torch_allocator(0, "WEIR_RUN_TORCH is off");
        /* The user has turned weir off for PyTorch, so no report tells why PyTorch does not use weir. */
        reason_unused[0] = '\0';
    } else if (disabled_by) {
        keep_torch_allocator(0, "%s %s", disabled_by,
                             strstr(disabled_by, "CONF") ? "names a backend" : "is set");
    } else if (!library->id[0]) {
        keep_torch_allocator(1, "no build id in %s", library->path);
    } else if (!find_shim(library, path, sizeof path)) {
        return;
    } else if (!weir__shim_is_safe(path)) {
        keep_torch_allocator(1,
                             "others may write to %s.  To compile it again: weir torch --build %s",
                             path, find_interpreter());
    } else {
        shim = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        found = shim ? dlsym(shim, "weir_torch_install") : NULL;
        memcpy(&shim_install, &found, sizeof found);
        declined = shim_install ? shim_install() : dlerror();
        is_installed = !declined;
        if (is_installed)
            weir__run_log("weir is PyTorch's allocator: %s", path);
        else
            keep_torch_allocator(1, "%s", declined);
    }
}

/* Finds a function of libc10_cuda.so, which Python loads outside the global scope of the dynamic linker. */
static count_function *find_c10_function(const struct library *library, const char *name) {
    void *handle = library->path ? dlopen(library->path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = dlsym(handle ? handle : RTLD_NEXT, name);
    count_function *function;

    memcpy(&function, &found, sizeof function);
    return function;
}

static void find_torch(void) {
    struct library library = {0};

    (void)dl_iterate_phdr(match_c10_library, &library);
    count = find_c10_function(&library, COUNT);
    count_some = find_c10_function(&library, COUNT_SOME);
    if (library.path)
        install(&library);
    (void)dlerror(); /* clears an error of dlsym, which the program must not see */
}

/* Sets `is_installing` during the installation, because the shim may call functions that call install_once(). */
static void install_once(void) {
    if (is_installing)
        return;
    is_installing = 1;
    (void)pthread_once(&once, find_torch);
    is_installing = 0;
}

/* PyTorch's functions may throw exceptions.  So the functions below must not need any cleanup after the calls. */
signed char weir__torch_count(void) {
    install_once();
    return count ? count() : 0;
}

signed char weir__torch_count_some(void) {
    install_once();
    return count_some ? count_some() : 0;
}
