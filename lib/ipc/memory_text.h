/* SPDX-License-Identifier: MIT */
/* memory_text.h: a text that names physical memory of another process, and that process's descriptors.
 *
 * The text identifies the sender (pid, start time, namespace of pids), the device, and the sender's descriptor of each
 * piece of memory.  The receiver copies these descriptors by pidfd_getfd.
 *
 * This file must not know allocators, or how a descriptor is made or used.
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
    uint64_t name; /* the sender's number for the memory; the sender never uses a number twice */
    uint64_t bytes;
};

struct weir_memory_text {
    char driver[WEIR_DRIVER_WORD_BYTES]; /* "cuda" or "model" */
    pid_t pid;
    uint64_t start, space; /* the start time and the namespace of pids, as in base/who.h */
    char device[WEIR_UUID_BYTES];
    struct weir_memory_piece *pieces;
    size_t count, capacity;
};

/* Begins a text that names memory of this process. */
void weir__memory_text_begin(struct weir_memory_text *t, const char *driver);
/* Adds a piece of memory to the text.  Returns 1 on success, 0 if there is no host memory. */
int weir__memory_text_add(struct weir_memory_text *t, const struct weir_memory_piece *piece);
/* Writes the text, if it fits.  Returns the length of the text without the NUL. */
size_t weir__memory_text_write(const struct weir_memory_text *t, char *text, size_t text_bytes);
/* Reads a complete text.  Returns OK, E_PARSE or E_HOST_MEMORY.  After an error there is nothing to free. */
weir_status weir__memory_text_read(const char *text, struct weir_memory_text *t);
void weir__memory_text_clear(struct weir_memory_text *t);

/* Allows processes of this user to copy descriptors of this process on systems where Yama restricts ptrace to
 * parents. */
void weir__memory_sender_allow(void);

/* Opens the process that made the text.  Sets *sender to a pidfd, which the caller closes, or to -1 if the sender is
 * this process.  Returns OK, or sets `message` and returns E_NOT_OWNED if the sender has ended, E_NOT_SUPPORTED if the
 * kernel or the sender's namespace of pids does not let weir open the sender, or E_HOST_MEMORY. */
weir_status weir__memory_sender_open(const struct weir_memory_text *t, int *sender,
                                     const struct weir_message *message);
/* Copies the sender's descriptor `theirs` into this process; the caller closes the copy.  Returns a status and sets
 * `message` as weir__memory_sender_open does, and E_NOT_OWNED also if the sender has closed the descriptor. */
weir_status weir__memory_sender_take(const struct weir_memory_text *t, int sender, int theirs,
                                     int *file, const struct weir_message *message);

#endif
