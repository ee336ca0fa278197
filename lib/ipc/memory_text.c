/* SPDX-License-Identifier: MIT */
/* memory_text.c: writes and reads the text by which a process names its physical memory to another process, and copies
 * the descriptors of the sender.
 *
 * The text is "weir-ipc-1:cuda:PID:START:NAMESPACE:DEVICE:FILE.NAME.BYTES,FILE.NAME.BYTES,...", with decimal numbers.
 * The kernel may reuse a pid, so the receiver opens the process (pidfd_open) and then compares its start time with the
 * text.  If the sender ends later, the copy of a descriptor fails. */
#include "ipc/memory_text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hostmem.h"
#include "base/output.h"
#include "base/result.h"
#include "base/text.h"
#include "base/who.h"

/* Older system headers lack these numbers of system calls, which are equal on all architectures. */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

#define HEAD "weir-ipc-1"

void weir__memory_text_begin(struct weir_memory_text *t, const char *driver) {
    memset(t, 0, sizeof *t);
    snprintf(t->driver, sizeof t->driver, "%s", driver);
    t->pid = getpid();
    t->start = weir__process_start(t->pid);
    t->space = weir__process_namespace();
}

int weir__memory_text_add(struct weir_memory_text *t, const struct weir_memory_piece *piece) {
    struct weir_memory_piece *pieces =
        weir__hostmem_room(t->pieces, t->count, &t->capacity, sizeof *pieces);

    if (!pieces)
        return 0;
    t->pieces = pieces;
    pieces[t->count++] = *piece;
    return 1;
}

void weir__memory_text_clear(struct weir_memory_text *t) {
    free(t->pieces);
    memset(t, 0, sizeof *t);
}

size_t weir__memory_text_write(const struct weir_memory_text *t, char *text, size_t text_bytes) {
    struct weir_output out = {.text = text, .bytes = text_bytes};

    weir__put(&out, HEAD ":%s:%ld:%" PRIu64 ":%" PRIu64 ":%s", t->driver, (long)t->pid, t->start,
              t->space, t->device);
    for (size_t i = 0; i < t->count; i++) {
        const struct weir_memory_piece *p = &t->pieces[i];

        weir__put(&out, "%c%d.%" PRIu64 ".%" PRIu64, i == 0 ? ':' : ',', p->file, p->name,
                  p->bytes);
    }
    return out.length;
}

/* Reads a number of at most `most`, and the character `end` behind it.  Moves *at.  Returns 1, or 0 on failure. */
static int parse_u64(const char **at, char end, uint64_t most, uint64_t *number) {
    if (weir__digits_read(at, most, number) <= 0 || **at != end)
        return 0;
    *at += end != '\0';
    return 1;
}

/* Reads a word and the colon behind it, and moves *at.  Returns 1, or 0 on failure. */
static int read_word(const char **at, char *word, size_t bytes) {
    size_t length = strcspn(*at, ":");

    if (length == 0 || length >= bytes || (*at)[length] != ':')
        return 0;
    memcpy(word, *at, length);
    word[length] = '\0';
    *at += length + 1;
    return 1;
}

static int read_head(const char **at, struct weir_memory_text *t) {
    char head[sizeof HEAD];
    uint64_t pid = 0;

    if (!read_word(at, head, sizeof head) || strcmp(head, HEAD) != 0 ||
        !read_word(at, t->driver, sizeof t->driver) || !parse_u64(at, ':', INT32_MAX, &pid) ||
        !parse_u64(at, ':', UINT64_MAX, &t->start) || !parse_u64(at, ':', UINT64_MAX, &t->space) ||
        !read_word(at, t->device, sizeof t->device))
        return 0;
    t->pid = (pid_t)pid;
    return pid > 0 && (strcmp(t->driver, "cuda") == 0 || strcmp(t->driver, "model") == 0);
}

static int read_piece(const char **at, struct weir_memory_piece *p) {
    const char end = strchr(*at, ',') ? ',' : '\0';
    uint64_t file = 0;

    if (!parse_u64(at, '.', INT32_MAX, &file) || !parse_u64(at, '.', UINT64_MAX, &p->name) ||
        !parse_u64(at, end, SIZE_MAX, &p->bytes))
        return 0;
    p->file = (int)file;
    return p->bytes > 0 && (end == '\0') == (**at == '\0');
}

weir_status weir__memory_text_read(const char *text, struct weir_memory_text *t) {
    const char *at = text;
    weir_status status = WEIR_OK;

    memset(t, 0, sizeof *t);
    if (!read_head(&at, t))
        return weir__without_driver(WEIR_E_PARSE);
    do {
        struct weir_memory_piece piece = {0};

        if (!read_piece(&at, &piece))
            status = WEIR_E_PARSE;
        else if (!weir__memory_text_add(t, &piece))
            status = WEIR_E_HOST_MEMORY;
    } while (status == WEIR_OK && *at);
    if (status != WEIR_OK)
        weir__memory_text_clear(t);
    return status == WEIR_OK ? status : weir__without_driver(status);
}

/* ---- the sender ------------------------------------------------------------------------------ */

void weir__memory_sender_allow(void) {
#ifdef PR_SET_PTRACER
    static atomic_int is_done;

    if (!atomic_exchange(&is_done, 1))
        /* fails without harm on a kernel without the security module Yama */
        (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
}

static weir_status sender_ended(const struct weir_memory_text *t,
                                const struct weir_message *message) {
    return weir__refuse(WEIR_E_NOT_OWNED, message, "process %ld, which shared the block, has ended",
                        (long)t->pid);
}

/* Writes a message about a failed pidfd_open, pidfd_getfd or fcntl.  Returns the status that corresponds to `error`. */
static weir_status sender_failed(const struct weir_memory_text *t, const char *call, int error,
                                 const struct weir_message *message) {
    switch (error) {
    case ESRCH:
        return sender_ended(t, message);
    case EBADF:
        return weir__refuse(
            WEIR_E_NOT_OWNED, message,
            "process %ld has freed the block, or has closed weir's file descriptors", (long)t->pid);
    case EMFILE:
    case ENFILE:
        return weir__refuse(WEIR_E_HOST_MEMORY, message,
                            "no file descriptor is left: raise the limit (ulimit -n)");
    case ENOMEM:
        return weir__refuse(WEIR_E_HOST_MEMORY, message, "%s: %s", call, strerror(error));
    case ENOSYS:
        return weir__refuse(WEIR_E_NOT_SUPPORTED, message,
                            "%s: the kernel does not have this call: use Linux 5.6 or later", call);
    default:
        return weir__refuse(
            WEIR_E_NOT_SUPPORTED, message,
            "%s: the kernel refuses file descriptors of process %ld (%s): run both processes "
            "as one user, set kernel.yama.ptrace_scope to 0 or 1, and give containers "
            "CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)",
            call, (long)t->pid, strerror(error));
    }
}

weir_status weir__memory_sender_open(const struct weir_memory_text *t, int *sender,
                                     const struct weir_message *message) {
    uint64_t space = weir__process_namespace(), start;

    *sender = -1;
    if (space != 0 && t->space != 0 && space != t->space)
        return weir__refuse(
            WEIR_E_NOT_SUPPORTED, message,
            "process %ld has other process ids than this one: run both in one container, or "
            "let the containers share them (docker run --pid)",
            (long)t->pid);
    if (t->pid != getpid()) {
        *sender = weir__file_above((int)syscall(SYS_pidfd_open, t->pid, 0));
        if (*sender < 0)
            return sender_failed(t, "pidfd_open", errno, message);
    }
    start = weir__process_start(t->pid);
    if (start == t->start || start == UINT64_MAX || t->start == UINT64_MAX)
        return WEIR_OK;
    if (*sender >= 0)
        close(*sender);
    *sender = -1;
    return start == 0
               ? sender_ended(t, message)
               : weir__refuse(
                     WEIR_E_NOT_OWNED, message,
                     "the process that shared the block has ended: another one has its number "
                     "%ld now",
                     (long)t->pid);
}

weir_status weir__memory_sender_copy_file(const struct weir_memory_text *t, int sender, int theirs,
                                          int *file, const struct weir_message *message) {
    *file = sender < 0 ? weir__file_copy(theirs)
                       : weir__file_above((int)syscall(SYS_pidfd_getfd, sender, theirs, 0));
    return *file >= 0 ? WEIR_OK
                      : sender_failed(t, sender < 0 ? "fcntl" : "pidfd_getfd", errno, message);
}
