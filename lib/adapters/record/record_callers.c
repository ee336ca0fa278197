/* SPDX-License-Identifier: MIT */
/* record_callers.c: finds the names of the code that makes requests, for `weir record --callers`.
 *
 * weir records a request with the numbers of two names: the place in the program that made the request, and the
 * innermost open NVTX range of the thread.  `weir record` gets each name once, before the first request with this name.
 *
 * If the thread runs Python, the place is a line of Python.  This file reads the line from CPython's crash report
 * (_Py_DumpTraceback).  The function that writes this report takes no lock and allocates nothing, so it works in a
 * thread that has released the interpreter's lock (GIL), as most threads do before they call the driver.  CPython
 * 3.11 and 3.12 export the function.  Otherwise the place is the innermost function outside the CUDA libraries.
 *
 * Locks: `lock` guards the two maps.  While a thread holds `lock`, it calls only malloc, and not dladdr, which takes
 * the dynamic linker's lock: another thread may hold the linker's lock and request device memory.
 *
 * The code in this file must not depend on how weir replaces the driver's functions, or on how an event is recorded. */
#include "adapters/record/record.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "adapters/record/record_ring.h"
#include "base/map.h"
#include "base/variable.h"

enum { FRAMES = 24, REPORT_BYTES = 8192 };

int weir__record_callers;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct weir_map sent; /* names that `weir record` has, by number */
/* Maps a code address to the hash of its symbol name, or of its file and offset, or to 1 for code of weir or CUDA. */
static struct weir_map places;

static int find_in_map(struct weir_map *map, uint64_t key, uintptr_t *value) {
    int found;

    pthread_mutex_lock(&lock);
    found = weir__map_get(map, key, value);
    pthread_mutex_unlock(&lock);
    return found;
}

/* If there is no host memory, does nothing, and the next request tries again. */
static void add_to_map(struct weir_map *map, uint64_t key, uintptr_t value) {
    pthread_mutex_lock(&lock);
    (void)weir__map_put(map, key, value);
    pthread_mutex_unlock(&lock);
}

/* Returns the number of the name, which is a hash and never 0.  Sends each name once to `weir record`. */
static uint64_t intern_name(const char *name) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (const char *at = name; *at; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    hash |= 1;
    if (!find_in_map(&sent, hash, NULL)) {
        weir__record_name(hash, name);
        add_to_map(&sent, hash, 1);
    }
    return hash;
}

/* ---- Python ------------------------------------------------------------------------------------ */

typedef void *get_state(void);
typedef void dump_traceback(int file, void *state);

static get_state *python_state;
static dump_traceback *python_dump;

static void find_python(void) {
    void *state = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    void *dump = dlsym(RTLD_DEFAULT, "_Py_DumpTraceback");

    memcpy(&python_state, &state, sizeof state);
    memcpy(&python_dump, &dump, sizeof dump);
}

/* Makes CPython write the thread's stack to a new file, and reads the file.  Uses no old file, since the program may
 * close its descriptor.  Returns 1 on success, else 0. */
static int read_report(void *state, char *text, size_t bytes) {
    int file = memfd_create("weir-callers", MFD_CLOEXEC);
    ssize_t length;

    if (file < 0)
        return 0;
    python_dump(file, state);
    length = pread(file, text, bytes - 1, 0);
    close(file);
    text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

/* Converts 'File "/a/train.py", line 12 in step' to "train.py:12(step)".  Returns 0 if the line has another form. */
static int format_python_line(const char *line, char *name, size_t bytes) {
    const char *path = strstr(line, "File \""), *end = path ? strstr(path, "\", line ") : NULL;
    const char *file;
    char function[64];
    unsigned number;

    if (!end || sscanf(end, "\", line %u in %63[^\n]", &number, function) != 2)
        return 0;
    for (file = end; file > path + 6 && file[-1] != '/'; file--)
        ;
    snprintf(name, bytes, "%.*s:%u(%s)", (int)(end - file), file, number, function);
    return 1;
}

/* Writes the innermost Python line, if possible outside installed packages.  Returns 0 if the thread runs no Python. */
static int find_line(char *name, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char text[REPORT_BYTES], *rest = text, *line;
    void *state;
    int found = 0;

    pthread_once(&once, find_python);
    state = python_state && python_dump ? python_state() : NULL;
    if (!state || !read_report(state, text, sizeof text))
        return 0;
    while ((line = strsep(&rest, "\n"))) {
        int is_package = strstr(line, "-packages/") != NULL;

        if ((!is_package || !found) && format_python_line(line, name, bytes)) {
            found = 1;
            if (!is_package)
                break;
        }
    }
    return found;
}

/* ---- functions --------------------------------------------------------------------------------- */

static int is_own_or_cuda_code(const Dl_info *info) {
    static const char *const files[] = {"libcuda.so", "libcudart", "libcuda_"};
    const char *file = info->dli_fname ? strrchr(info->dli_fname, '/') : NULL;
    Dl_info own;

    if (dladdr((const void *)&weir__record_callers, &own) && own.dli_fbase == info->dli_fbase)
        return 1;
    file = file ? file + 1 : info->dli_fname;
    for (size_t i = 0; file && i < sizeof files / sizeof files[0]; i++)
        if (strncmp(file, files[i], strlen(files[i])) == 0)
            return 1;
    return 0;
}

/* Writes the name of a symbol.  Demangles a C++ name if the program contains the demangler. */
static void write_symbol_name(const char *symbol, char *name, size_t bytes) {
    void *address =
        symbol[0] == '_' && symbol[1] == 'Z' ? dlsym(RTLD_DEFAULT, "__cxa_demangle") : NULL;
    char *(*demangle)(const char *, char *, size_t *, int *);
    char *plain = NULL, *end;
    size_t length;

    memcpy(&demangle, &address, sizeof address);
    if (demangle)
        plain = demangle(symbol, NULL, NULL, NULL);
    if (plain) {
        for (end = plain; (end = strchr(end, '(')); end++)
            if (strncmp(end, "(anonymous", 10) != 0 &&
                (end - plain < 8 || strncmp(end - 8, "operator", 8) != 0)) {
                *end = '\0';
                break;
            }
        symbol = plain;
    }
    length = strlen(symbol);
    snprintf(name, bytes, "%s", length < bytes ? symbol : symbol + length - (bytes - 1));
    free(plain);
}

/* Returns the hash of the symbol name, or of the file and offset, at `frame`.  Returns 1 for code of weir or CUDA. */
static uintptr_t find_code_place(const void *frame) {
    uint64_t address = (uint64_t)(uintptr_t)frame - 1; /* the last byte of the call instruction */
    char name[WEIR_RECORD_NAME_BYTES];
    uintptr_t place = 1;
    Dl_info info;

    if (find_in_map(&places, address, &place))
        return place;
    if (dladdr((const void *)(uintptr_t)address, &info) && !is_own_or_cuda_code(&info)) {
        const char *file = strrchr(info.dli_fname, '/');

        if (info.dli_sname)
            write_symbol_name(info.dli_sname, name, sizeof name);
        else
            snprintf(name, sizeof name, "%.24s+0x%" PRIx64, file ? file + 1 : info.dli_fname,
                     address - (uint64_t)(uintptr_t)info.dli_fbase);
        place = (uintptr_t)intern_name(name);
    }
    add_to_map(&places, address, place);
    return place;
}

static uint64_t find_native_place(void) {
    void *frames[FRAMES];
    int depth = backtrace(frames, FRAMES);

    for (int i = 0; i < depth; i++) {
        uintptr_t place = find_code_place(frames[i]);

        if (place != 1)
            return place;
    }
    return 0;
}

/* ---- names of requests ---- */

void weir__record_caller_names(uint64_t *place, uint64_t *range) {
    char name[256]; /* weir__record_name() cuts a longer name */
    const char *open = weir__record_range();

    *place = find_line(name, sizeof name) ? intern_name(name) : find_native_place();
    *range = open ? intern_name(open) : 0;
}

/* The first call of backtrace() loads a library, which no request may do. */
static __attribute__((constructor)) void preload_unwinder(void) {
    void *frame[1];

    weir__record_callers = weir__variable(WEIR_RECORD_CALLERS) != NULL;
    if (weir__record_callers)
        (void)backtrace(frame, 1);
}
