/* SPDX-License-Identifier: MIT */
/* memory_text.h: a text by which one process names its physical memory to another process.
 *
 * The text contains the sender (pid, start time, namespace of pids), the device, and the sender's file descriptor of
 * each piece of memory.  The receiver copies these descriptors by pidfd_getfd.
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
    /* The number that the sender gives the memory; the sender never uses a number again. */
    uint64_t name;
    uint64_t bytes;
};

struct weir_memory_text {
    char driver[WEIR_DRIVER_WORD_BYTES]; /* the name of the driver table: "cuda" or "model" */
    pid_t pid;
    /* The start time and the namespace of pids of the sender, as in base/who.h. */
    uint64_t start, space;
    char device[WEIR_UUID_BYTES];
    struct weir_memory_piece *pieces;
    size_t count, capacity;
};

/* Begins a text about memory of this process. */
void weir__memory_text_begin(struct weir_memory_text *t, const char *driver);
/* Adds a piece of memory to the text.  Returns 1 on success, 0 if there is no host memory. */
int weir__memory_text_add(struct weir_memory_text *t, const struct weir_memory_piece *piece);
/* Writes the text into `text`, if it fits into `text_bytes` bytes.  Returns the length of the whole text without the
 * NUL. */
size_t weir__memory_text_write(const struct weir_memory_text *t, char *text, size_t text_bytes);
/* Reads a complete text into *t.  Returns OK, E_PARSE or E_HOST_MEMORY.  After an error the caller has nothing to
 * free. */
weir_status weir__memory_text_read(const char *text, struct weir_memory_text *t);
void weir__memory_text_clear(struct weir_memory_text *t);

/* Allows other processes of this user to copy descriptors of this process.  Otherwise the kernel forbids the copy on
 * systems where the Yama module lets only parents trace a process. */
void weir__memory_sender_allow(void);

/* Opens the sender, which is the process that made the text.  Sets *sender to a pidfd, which the caller must close,
 * or to -1 if the sender is this process.  Returns OK on success.  On failure writes a message.  Returns E_NOT_OWNED
 * if the sender has ended, and E_NOT_SUPPORTED if the kernel or the sender's namespace of pids prevents the open.
 * May also return E_HOST_MEMORY. */
weir_status weir__memory_sender_open(const struct weir_memory_text *t, int *sender,
                                     const struct weir_message *message);
/* Copies the descriptor `theirs` of the sender into this process.  The caller must close the copy.  Returns the
 * statuses of weir__memory_sender_open, and writes a message on failure.  E_NOT_OWNED may also mean that the sender
 * has closed the descriptor. */
weir_status weir__memory_sender_take(const struct weir_memory_text *t, int sender, int theirs,
                                     int *file, const struct weir_message *message);

#endif
