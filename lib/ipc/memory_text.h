/* SPDX-License-Identifier: MIT */
/* memory_text.h: a text that names physical memory of another process, and that process's descriptors.
 *
 * The text says who the sender is (pid, when it began, its namespace of pids), which device the memory is of, and which
 * descriptor of the sender each piece has.  The receiver takes these descriptors by pidfd_getfd.
 *
 * Must not know: what the descriptors are opened with; allocators.
 */
#ifndef WEIR_MEMORY_TEXT_H
#define WEIR_MEMORY_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <weir/status.h>

#include "driver/driver.h"

enum { WEIR_DRIVER_WORD_BYTES = 8 };

struct weir_memory_piece {
    int file;
    uint64_t name; /* of the sender's, which never comes again */
    uint64_t bytes;
};

struct weir_memory_text {
    char driver[WEIR_DRIVER_WORD_BYTES]; /* "cuda" or "model" */
    pid_t pid;
    uint64_t start, space; /* when the process began, and its namespace of pids; as of base/who.h */
    char device[WEIR_UUID_BYTES];
    struct weir_memory_piece *pieces;
    size_t count, capacity;
};

/* What a text of this process begins with. */
void weir__memory_text_begin(struct weir_memory_text *t, const char *driver);
/* 1, or 0: no host memory. */
int weir__memory_text_add(struct weir_memory_text *t, const struct weir_memory_piece *piece);
/* Writes the whole text if it fits; its length without the NUL. */
size_t weir__memory_text_write(const struct weir_memory_text *t, char *text, size_t text_bytes);
/* The whole text must be one.  OK, E_PARSE or E_HOST_MEMORY: nothing is to be cleared. */
weir_status weir__memory_text_read(const char *text, struct weir_memory_text *t);
void weir__memory_text_clear(struct weir_memory_text *t);

/* Lets processes of this user take descriptors of this one where Yama restricts ptrace to parents. */
void weir__memory_sender_allow(void);

/* Finds the sender: *sender, to be closed, or -1 if it is this process.  `message` says why not.
 * E_NOT_OWNED: it has ended; E_NOT_SUPPORTED: the kernel, or its namespace, is in the way; E_HOST_MEMORY. */
weir_status weir__memory_sender_open(const struct weir_memory_text *t, int *sender, char *message,
                                     size_t message_bytes);
/* A descriptor of the sender as one of this process, which the caller closes.  Likewise; E_NOT_OWNED also: the sender
 * has closed it. */
weir_status weir__memory_sender_take(const struct weir_memory_text *t, int sender, int theirs,
                                     int *file, char *message, size_t message_bytes);

#endif
