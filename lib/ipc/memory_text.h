/* SPDX-License-Identifier: MIT */
/* memory_text.h: a text by which one process names its physical memory to another process: the sender (pid, start time,
 * namespace of pids), the device, and the sender's file descriptor of each piece of memory.  The receiver copies these
 * descriptors by pidfd_getfd.
 *
 * This file must not depend on allocators, or on how a file descriptor is made or used.
 */
#ifndef WEIR_MEMORY_TEXT_H
#define WEIR_MEMORY_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <weir/status.h>

#include "base/log.h"
#include "driver/driver.h"

enum { WEIR_DRIVER_WORD_BYTES = 8 };

struct weir_memory_piece {
    int file;
    uint64_t name; /* never used for other memory */
    uint64_t bytes;
};

struct weir_memory_text {
    char driver[WEIR_DRIVER_WORD_BYTES]; /* "cuda" or "model" */
    pid_t pid;
    /* The start time and the pid namespace of the sender, by which the receiver detects a reused pid. */
    uint64_t start, space;
    char device[WEIR_UUID_BYTES];
    struct weir_memory_piece *pieces;
    size_t count, capacity;
};

/* Clears *t, and sets the sender to this process. */
void weir__memory_text_begin(struct weir_memory_text *t, const char *driver);
/* Adds a physical allocation.  Returns 1 on success, 0 if there is no host memory. */
int weir__memory_text_add(struct weir_memory_text *t, const struct weir_memory_piece *piece);
/* Writes the text as a string, if it fits into `text_bytes` bytes.  Returns the length of the string without the
 * NUL. */
size_t weir__memory_text_write(const struct weir_memory_text *t, char *text, size_t text_bytes);
/* Parses a string that weir__memory_text_write has made.  Returns OK, E_PARSE or E_HOST_MEMORY.  After an error the
 * caller has nothing to free. */
weir_status weir__memory_text_read(const char *text, struct weir_memory_text *t);
void weir__memory_text_clear(struct weir_memory_text *t);

/* Allows other processes of this user to copy file descriptors of this process, which the kernel's Yama module may
 * forbid to all but parents. */
void weir__memory_sender_allow(void);

/* Sets *sender to a pidfd of the process that made the text, which the caller must close, or to -1 if it is this
 * process.  On failure writes a message, and returns E_NOT_OWNED if the sender has ended, E_NOT_SUPPORTED if the kernel
 * or another pid namespace prevents it, or E_HOST_MEMORY. */
weir_status weir__memory_sender_open(const struct weir_memory_text *t, int *sender,
                                     const struct weir_message *message);
/* Copies the sender's file descriptor `theirs`, and sets *file to the copy, which the caller must close.  `sender` is
 * from weir__memory_sender_open().  On failure writes a message and returns a status as that function does; E_NOT_OWNED
 * also means that the sender has closed the descriptor. */
weir_status weir__memory_sender_copy_file(const struct weir_memory_text *t, int sender, int theirs,
                                          int *file, const struct weir_message *message);

#endif
