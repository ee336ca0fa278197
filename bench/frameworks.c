/* SPDX-License-Identifier: MIT */
/* frameworks.c: see frameworks.h.
 *
 * JAX reads XLA_PYTHON_CLIENT_ALLOCATOR (jaxlib 0.11 ignores TF_GPU_ALLOCATOR), TensorFlow reads
 * TF_GPU_ALLOCATOR, and each preallocates unless told not to.  PyTorch reads PYTORCH_ALLOC_CONF from
 * 2.9 on, and PYTORCH_CUDA_ALLOC_CONF before; newer ones read the old name where the new one is not
 * set, so a value under one of them is the base of both.  What is on a program's mind stays: a named
 * allocator or backend is never replaced, though weir then serves less; only that is said.
 *
 * A list of PyTorch's options is NAME:VALUE,... where a value may be a list in brackets.
 * expandable_segments is a way of the native backend, which the other one lacks: it is left out.
 */
#include "frameworks.h"

#include <stdlib.h>
#include <string.h>

static const char *set_value(const char *name) {
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

/* ---- Allocators by name ---- */

static int tell(int (*put)(void *to, const char *name, const char *value), void *to,
                const char *name, const char *value, const char *who, FILE *notes) {
    const char *is = set_value(name);

    if (!is)
        return put(to, name, value);
    if (who && strcmp(is, value) != 0)
        fprintf(notes, "; %s=%s stays, so %s takes memory elsewhere", name, is, who);
    return 0;
}

/* ---- PyTorch ---- */

/* The length of the option at the start, up to its comma. */
static size_t option_length(const char *list) {
    size_t length = 0;
    int depth = 0;

    for (; list[length] && (depth > 0 || list[length] != ','); length++)
        depth += (list[length] == '[') - (list[length] == ']');
    return length;
}

static int option_is(const char *option, size_t length, const char *name) {
    while (length > 0 && *option == ' ') {
        option++;
        length--;
    }
    return length > strlen(name) && strncmp(option, name, strlen(name)) == 0 &&
           (option[strlen(name)] == ':' || option[strlen(name)] == ' ');
}

/* The option of that name in the list, with its length, or NULL. */
static const char *find_option(const char *list, const char *name, size_t *length) {
    while (*list) {
        *length = option_length(list);
        if (option_is(list, *length, name))
            return list;
        list += *length + (list[*length] == ',');
    }
    return NULL;
}

/* The list without expandable_segments and with the backend behind; malloc'ed. */
static char *with_backend(const char *list) {
    static const char backend[] = "backend:cudaMallocAsync";
    char *made = malloc(strlen(list) + sizeof backend + 1), *end = made;

    while (made && *list) {
        size_t length = option_length(list);

        if (length > 0 && !option_is(list, length, "expandable_segments")) {
            memcpy(end, list, length);
            end += length;
            *end++ = ',';
        }
        list += length + (list[length] == ',');
    }
    if (made)
        memcpy(end, backend, sizeof backend);
    return made;
}

static int is_on(const char *option, size_t length) {
    const char *value = memchr(option, ':', length);

    return value && strncasecmp(value + 1, "true", 4) == 0;
}

static int tell_torch(int (*put)(void *to, const char *name, const char *value), void *to,
                      FILE *notes) {
    static const char *const names[2] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    const char *values[2] = {set_value(names[0]), set_value(names[1])};
    int noted = 0, failed = 0;

    for (int i = 0; i < 2 && !failed; i++) {
        const char *list = values[i] ? values[i] : values[!i] ? values[!i] : "", *option;
        size_t length = 0;
        char *made;

        option = find_option(list, "backend", &length);
        if (option) {
            if (!noted && !memmem(option, length, "cudaMallocAsync", strlen("cudaMallocAsync")))
                noted = fprintf(notes, "; PyTorch stays on %.*s", (int)length, option);
            continue;
        }
        option = find_option(list, "expandable_segments", &length);
        if (option && is_on(option, length) && !noted)
            noted = fprintf(notes, "; expandable_segments is left out, which PyTorch's backend "
                                   "cudaMallocAsync does not have");
        made = with_backend(list);
        failed = !made || put(to, names[i], made);
        free(made);
    }
    return failed;
}

int frameworks_tell(int (*put)(void *to, const char *name, const char *value), void *to,
                    FILE *notes) {
    return tell(put, to, "XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async", "JAX", notes) ||
           tell(put, to, "XLA_PYTHON_CLIENT_PREALLOCATE", "false", NULL, notes) ||
           tell(put, to, "TF_GPU_ALLOCATOR", "cuda_malloc_async", "TensorFlow", notes) ||
           tell_torch(put, to, notes);
}
