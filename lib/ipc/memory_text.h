/* SPDX-License-Identifier: MIT */
/* memory_text.h: a text by which one process names its physical memory to another process.
 *
 * The text identifies the sender (pid, start time, namespace of pids), the device, and the sender's file descriptor of
 * each piece of memory.  The receiver copies these descriptors by pidfd_getfd.
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
    /* A number that identifies the memory; the sender never uses the number for other memory. */
    uint64_t name;
    uint64_t bytes;
};

struct weir_memory_text {
    char driver[WEIR_DRIVER_WORD_BYTES]; /* the name of the driver table: "cuda" or "model" */
    pid_t pid;
    /* The start time and the pid namespace of the sending process.  With them the receiver detects that the kernel
     * has reused the pid. */
    uint64_t start, space;
    char device[WEIR_UUID_BYTES];
    struct weir_memory_piece *pieces;
    size_t count, capacity;
};

/* Begins a text that names memory of this process: clears *t, and sets the sender to this process. */
void weir__memory_text_begin(struct weir_memory_text *t, const char *driver);
/* Adds a physical allocation to the text.  Returns 1 on success, 0 if there is no host memory. */
int weir__memory_text_add(struct weir_memory_text *t, const struct weir_memory_piece *piece);
/* Writes the text as a string into `text`, if it fits into `text_bytes` bytes.  Returns the length of the whole
 * string without the NUL. */
size_t weir__memory_text_write(const struct weir_memory_text *t, char *text, size_t text_bytes);
/* Parses a complete string, made by weir__memory_text_write, into *t.  Returns OK, E_PARSE or E_HOST_MEMORY.  After
 * an error the caller has nothing to free. */
weir_status weir__memory_text_read(const char *text, struct weir_memory_text *t);
void weir__memory_text_clear(struct weir_memory_text *t);

/* Allows other processes of this user to copy file descriptors of this process.  Without this call, the Yama module
 * of the kernel may forbid such a copy to all processes except parents. */
void weir__memory_sender_allow(void);

/* Opens a pidfd of the sender, the process that made the text.  Sets *sender to the pidfd, which the caller must
 * close, or to -1 if the sender is this process.  Returns OK on success.  On failure writes a message, and returns
 * E_NOT_OWNED if the sender has ended, E_NOT_SUPPORTED if the kernel or another pid namespace prevents the open, or
 * E_HOST_MEMORY. */
weir_status weir__memory_sender_open(const struct weir_memory_text *t, int *sender,
                                     const struct weir_message *message);
/* Copies the sender's file descriptor number `theirs` into this process, and sets *file to the copy, which the caller
 * must close.  `sender` is the pidfd from weir__memory_sender_open().  On failure writes a message and returns a
 * status, as that function does.  E_NOT_OWNED may also mean that the sender has closed the descriptor. */
weir_status weir__memory_sender_copy_file(const struct weir_memory_text *t, int sender, int theirs,
                                          int *file, const struct weir_message *message);

#endif
