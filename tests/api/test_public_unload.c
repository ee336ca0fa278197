/* SPDX-License-Identifier: MIT */
/* test_public_unload.c: a program opens the shared library by its name, and closes it while it is in use.
 *
 * The library's threads, and its work at the end of the process, have their code in the library. */
#include <weir/weir.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "config.h"

static void *library;

/* Finds a symbol with dlsym, because the program is not linked to the library. */
static void *symbol(const char *name) {
    void *found = dlsym(library, name);

    if (found)
        return found;
    printf("Bail out! %s\n", dlerror());
    exit(1);
}

int main(void) {
    weir_stream stream = (weir_stream)0x2;
    const char *built = getenv("top_builddir");
    weir_status (*init)(weir_options *, size_t);
    weir_status (*create)(const weir_options *, weir_allocator **);
    weir_status (*alloc)(weir_allocator *, size_t, weir_stream, void **);
    weir_status (*give)(weir_allocator *, void *, weir_stream);
    weir_status (*destroy)(weir_allocator *);
    weir_allocator *allocator;
    weir_options options;
    char path[1024];
    void *block;
    int served;

    snprintf(path, sizeof path, "%s/lib/.libs/libweir.so", built ? built : ".");
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("Bail out! %s\n", dlerror());
        return 1;
    }
    *(void **)&init = symbol("weir_options_init_sized");
    *(void **)&create = symbol("weir_allocator_create");
    *(void **)&alloc = symbol("weir_alloc");
    *(void **)&give = symbol("weir_free");
    *(void **)&destroy = symbol("weir_allocator_destroy");
    served = init(&options, sizeof options) == WEIR_OK;
    options.device = "model";
    served = served && create(&options, &allocator) == WEIR_OK && dlclose(library) == 0 &&
             alloc(allocator, 1 << 20, stream, &block) == WEIR_OK &&
             give(allocator, block, stream) == WEIR_OK && destroy(allocator) == WEIR_OK;
    printf("%sok 1 - who was closed goes on serving\n1..1\n", served ? "" : "not ");
    return !served;
}
