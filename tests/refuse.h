/* SPDX-License-Identifier: MIT */
/* refuse.h: malloc and its kin, of which the k-th call fails, or all from it on; and how many pieces of
 * memory are held.
 *
 * For one file of a suite: it defines them for the whole program.  Under a sanitizer they are the
 * sanitizer's, and elsewhere than with glibc there is no other to fall back on: then
 * CAN_REFUSE_HOST_MEMORY is not defined.  Valgrind leaves them alone if it is told so (tests/kinds).
 */
#ifndef WEIR_TEST_REFUSE_H
#define WEIR_TEST_REFUSE_H

#include <stdint.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif
#if defined(__GLIBC__) && !defined(SANITIZED)
#define CAN_REFUSE_HOST_MEMORY 1
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

static _Thread_local uint64_t refuse_in;  /* 0: never; 1: the next one */
static _Thread_local int refuse_for_good; /* that one and all later ones */
static _Thread_local int was_refused;
static _Thread_local int64_t pieces_held; /* taken less freed, by this thread */

static int refused(void) {
    if (refuse_in == 0 || --refuse_in > 0)
        return 0;
    refuse_in = refuse_for_good != 0;
    was_refused = 1;
    return 1;
}

static void *held(void *memory) {
    pieces_held += memory != NULL;
    return memory;
}

/* Seen by libc too, which frees what others took and the other way round. */
#pragma GCC visibility push(default)
void *malloc(size_t bytes) {
    return refused() ? NULL : held(__libc_malloc(bytes));
}
void *calloc(size_t count, size_t bytes) {
    return refused() ? NULL : held(__libc_calloc(count, bytes));
}
void *realloc(void *memory, size_t bytes) {
    if (refused())
        return NULL;
    return memory ? __libc_realloc(memory, bytes) : held(__libc_malloc(bytes));
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    return refused() ? NULL : held(__libc_memalign(alignment, bytes));
}
void free(void *memory) {
    pieces_held -= memory != NULL;
    __libc_free(memory);
}
#pragma GCC visibility pop
#endif

#endif
