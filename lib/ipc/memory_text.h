/* SPDX-License-Identifier: MIT */
/* memory_text.h: a text in which a process, the sender, names its physical memory for another process, the receiver.
 * The text contains the sender's pid, start time and pid namespace, the device, and a file descriptor for each piece of
 * memory.  The receiver copies the descriptors by pidfd_getfd. */
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
    uint64_t name; /* identifies the memory; no other memory ever gets this number */
    uint64_t bytes;
};

struct weir_memory_text {
    char driver[WEIR_DRIVER_WORD_BYTES]; /* "cuda" or "model" */
    pid_t pid;
    uint64_t start, space; /* the sender's start time and pid namespace, to detect a reused pid */
    char device[WEIR_UUID_BYTES];
    struct weir_memory_piece *pieces;
    size_t count, capacity;
};

/* Clears *t, and sets the sender to this process. */
void weir__memory_text_begin(struct weir_memory_text *t, const char *driver);
/* Adds a physical allocation.  Returns 1 on success, 0 if there is no host memory. */
int weir__memory_text_add(struct weir_memory_text *t, const struct weir_memory_piece *piece);
/* Writes the text as a string, cut at `text_bytes` bytes.  Returns the length of the whole string without the NUL. */
size_t weir__memory_text_write(const struct weir_memory_text *t, char *text, size_t text_bytes);
/* Parses a string of weir__memory_text_write.  Returns OK, E_PARSE or E_HOST_MEMORY.  On failure, *t owns nothing. */
weir_status weir__memory_text_read(const char *text, struct weir_memory_text *t);
void weir__memory_text_clear(struct weir_memory_text *t);

/* Allows other processes of this user to copy file descriptors of this process.  Otherwise the kernel's Yama module may
 * allow this only to parent processes. */
void weir__memory_sender_allow(void);

/* Sets *sender to a pidfd that the caller must close, or to -1 if this process is the sender.  On failure writes a
 * message.  E_NOT_OWNED means that the sender has ended.  E_NOT_SUPPORTED means that the kernel or another pid
 * namespace does not allow the call. */
weir_status weir__memory_sender_open(const struct weir_memory_text *t, int *sender,
                                     const struct weir_message *message);
/* Copies the sender's file descriptor `theirs` to *file, which the caller must close.  On failure writes a message.
 * E_NOT_OWNED means that the sender has ended or has closed the descriptor. */
weir_status weir__memory_sender_copy_file(const struct weir_memory_text *t, int sender, int theirs,
                                          int *file, const struct weir_message *message);

#endif
