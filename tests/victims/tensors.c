/* SPDX-License-Identifier: MIT */
/* tensors.c: a program that allocates tensors of 200 MiB and 100 MiB, as PyTorch's shim does, by weir's functions. */
#include "opened.h"

#include <weir/tensors.h>

static void find_function(void *pointer, const char *name) {
    void *address = dlsym(RTLD_DEFAULT, name);

    HOLDS(address);
    memcpy(pointer, &address, sizeof address);
}

int main(int argc, char **argv) {
    weir_status (*open)(int, const weir_tensors_hooks *, weir_tensors **);
    weir_status (*alloc)(weir_tensors *, size_t, size_t, weir_stream, int, void *, void **);
    void *block, *other;
    weir_tensors *t;

    start_driver();
    find_function(&open, "weir_tensors_open");
    find_function(&alloc, "weir_tensors_alloc");
    HOLDS(open(0, NULL, &t) == WEIR_OK);
    HOLDS(alloc(t, 200 * MIB, 200 * MIB, NULL, 1, NULL, &block) == WEIR_OK);
    printf("too much: %d\n", alloc(t, 100 * MIB, 100 * MIB, NULL, 1, NULL, &other));
    return victim_status(argc, argv);
}
