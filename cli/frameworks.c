/* SPDX-License-Identifier: MIT */
/* frameworks.c: see frameworks.h.
 *
 * JAX reads XLA_PYTHON_CLIENT_ALLOCATOR (jaxlib 0.11 ignores TF_GPU_ALLOCATOR), TensorFlow reads
 * TF_GPU_ALLOCATOR, and each preallocates unless told not to.  PyTorch reads PYTORCH_ALLOC_CONF from
 * 2.9 on, and PYTORCH_CUDA_ALLOC_CONF before; newer ones read the old name where the new one is not
 * set, so a value under one of them is the base of both.  What is on a program's mind stays: a named
 * allocator or backend is never replaced, though weir then serves less; only that is said.  Nor is JAX kept from
 * preallocating then, or where weir does not preallocate by its variables: what it takes itself is its own.
 *
 * A list of PyTorch's options is NAME:VALUE,... where a value may be a list in brackets.
 * expandable_segments is a way of the native backend, which the other one lacks: it is left out.
 */
#include "cli/frameworks.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *set_value(const char *name) {
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

/* ---- Allocators by name ---- */

typedef int put_function(void *to, const char *name, const char *value);

static const char jax_allocator[] = "XLA_PYTHON_CLIENT_ALLOCATOR", jax_pools[] = "cuda_async";
static const char jax_preallocates[] = "XLA_PYTHON_CLIENT_PREALLOCATE";
static const char tf_allocator[] = "TF_GPU_ALLOCATOR", tf_pools[] = "cuda_malloc_async";

static int put_if_unset(put_function *put, void *to, const char *name, const char *value) {
    return !put || set_value(name) ? 0 : put(to, name, value);
}

static const char *served(int serves_plain) {
    return serves_plain ? "what it asks of cuMemAlloc" : "none of it";
}

static void note_elsewhere(const char *name, const char *who, int serves_plain, FILE *lacks) {
    fprintf(lacks, "; %s=%s stays, so %s takes memory elsewhere: weir serves %s", name,
            set_value(name), who, served(serves_plain));
}

/* JAX, which takes memory elsewhere because nobody tells it otherwise, is the one to read these. */
static void note_untold(FILE *notes) {
    static const char *const names[] = {jax_preallocates, "XLA_CLIENT_MEM_FRACTION",
                                        "XLA_PYTHON_CLIENT_MEM_FRACTION"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (set_value(names[i]))
            fprintf(notes, "; %s=%s stays, and is JAX's own", names[i], set_value(names[i]));
}

/* JAX takes the word in any case, and preallocates from all but its platform allocator. */
static int tell_jax(put_function *put, void *to, int serves_plain, int preallocates, FILE *lacks,
                    FILE *notes) {
    const char *is = set_value(jax_allocator);

    if (is && strcasecmp(is, jax_pools) != 0) {
        note_elsewhere(jax_allocator, "JAX", serves_plain, lacks);
        if (strcasecmp(is, "platform") != 0)
            fputs(", and what it preallocates is its own", lacks);
        return 0;
    }
    if (!put && !is)
        note_untold(notes);
    if (put_if_unset(put, to, jax_allocator, jax_pools) != 0)
        return 1;
    if (preallocates)
        return put_if_unset(put, to, jax_preallocates, "false");
    if (put && !set_value(jax_preallocates))
        fprintf(notes, "; WEIR_COMPAT=0: JAX preallocates, by its own variables");
    return 0;
}

static int tell_tensorflow(put_function *put, void *to, int serves_plain, FILE *lacks) {
    const char *is = set_value(tf_allocator);

    if (is && strcmp(is, tf_pools) != 0)
        note_elsewhere(tf_allocator, "TensorFlow", serves_plain, lacks);
    return put_if_unset(put, to, tf_allocator, tf_pools);
}

void frameworks_note_prealloc(const char *name, const char *amount, int are_told, FILE *notes) {
    const char *jax = set_value(jax_allocator), *tf = set_value(tf_allocator);
    int of_jax = jax ? strcasecmp(jax, jax_pools) == 0 : are_told;
    int of_tf = strncmp(name, "TF_", 3) == 0 && (tf ? strcmp(tf, tf_pools) == 0 : are_told);

    fprintf(notes, "; weir preallocates %s for %s, as %s says", amount,
            !of_tf   ? "JAX"
            : of_jax ? "JAX and TensorFlow"
                     : "TensorFlow",
            name);
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

static int tell_torch(put_function *put, void *to, int serves_plain, FILE *lacks) {
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
                noted = fprintf(lacks, "; PyTorch stays on %.*s: weir serves %s", (int)length,
                                option, served(serves_plain));
            continue;
        }
        if (!put)
            continue;
        option = find_option(list, "expandable_segments", &length);
        if (option && is_on(option, length) && !noted)
            noted = fprintf(lacks, "; expandable_segments is left out, which PyTorch's backend "
                                   "cudaMallocAsync does not have");
        made = with_backend(list);
        failed = !made || put(to, names[i], made);
        free(made);
    }
    return failed;
}

int frameworks_tell(int (*put)(void *to, const char *name, const char *value), void *to,
                    int serves_plain, int preallocates, FILE *lacks, FILE *notes) {
    return tell_jax(put, to, serves_plain, preallocates, lacks, notes) ||
           tell_tensorflow(put, to, serves_plain, lacks) ||
           tell_torch(put, to, serves_plain, lacks);
}
