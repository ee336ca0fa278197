/* SPDX-License-Identifier: MIT */
/* segment.h: a segment: a file in which one process publishes data for other processes of its user.
 *
 * The file of a segment is
 *     FOLDER/weir-UID-KIND-NAMESPACE-PID-START
 * with mode 0600.  runfile.h defines FOLDER; readers search all folders.  KIND is a name with a version and a size of
 * the data.  NAMESPACE is the inode of the process's pid namespace; weir ignores files of other namespaces.  START is
 * the start time of the process in ticks of the kernel, which distinguishes it from a process that reuses the pid.
 *
 * Glossary
 *   body      the published data, a struct of 64-bit words; readers get only a whole body
 *   watched   read by a process within the last seconds; the writer of a segment that is not watched sleeps
 *
 * Any process of the user may write anything into the file.  So a reader first checks the size, the magic and the
 * version of the file, and the caller must not trust the body. */
#ifndef WEIR_SEGMENT_H
#define WEIR_SEGMENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/kept.h"

enum { WEIR_SEGMENT_PATH_BYTES = 512, WEIR_SEGMENT_KIND_BYTES = 16 };

/* After each read of a segment, the writer publishes for this time, and then sleeps until the next read. */
#define WEIR_SEGMENT_WATCHED_NS UINT64_C(3000000000)

struct weir_segment_kind {
    const char *name; /* at most 15 lower-case letters */
    uint32_t version; /* of the data layout */
    size_t bytes;     /* the size of the data, a multiple of 8 */
};

/* The reasons why a segment cannot be read: X(name, text for messages). */
#define WEIR_SEGMENT_FAULTS(X)                                                                     \
    X(NONE, "nothing is wrong")                                                                    \
    X(GONE, "it is gone")                                                                          \
    X(FOREIGN, "it is no whole file that weir has written for this user alone")                    \
    X(OTHER_VERSION, "it is of another version of weir")                                           \
    X(NOT_YET, "nothing was published yet")                                                        \
    X(TORN, "it was written to all the while")                                                     \
    X(UNREADABLE, "it cannot be read")

enum weir_segment_fault {
#define WEIR_SEGMENT_FAULT_ENUM(name, text) WEIR_SEGMENT_##name,
    WEIR_SEGMENT_FAULTS(WEIR_SEGMENT_FAULT_ENUM)
#undef WEIR_SEGMENT_FAULT_ENUM
};

const char *weir__segment_fault_text(enum weir_segment_fault fault);

/* ---- the writer ---------------------------------------------------------------------------------- */

struct weir_segment_file;

/* The segment of this process.  All fields are zero if it has none.  Only one thread may use the struct, but any thread
 * may call weir__segment_remove. */
struct weir_segment {
    /* the mapped page with the futex word on which the writer sleeps; NULL if there is no segment */
    struct weir_segment_file *page;
    struct weir_kept file;
    uint64_t sequence; /* the number of the last publication, by which readers detect a change */
    size_t body_bytes;
    pid_t owner;
    char path[WEIR_SEGMENT_PATH_BYTES];
};

/* Creates the segment of this process, in place of one that it made before exec.  Returns 0, or -1 with errno.  A child
 * of fork() inherits the open file, but does not use the file. */
int weir__segment_create(struct weir_segment *s, const struct weir_segment_kind *kind);
/* Publishes kind->bytes bytes of `body`.  If the file was removed or truncated, no reader sees the data. */
void weir__segment_publish(struct weir_segment *s, const void *body);
/* Returns 1 if any process has read this segment within the last WEIR_SEGMENT_WATCHED_NS, else 0. */
int weir__segment_is_watched(struct weir_segment *s);
/* Waits for the given milliseconds or, if no process has read the segment recently, until a process reads it. */
void weir__segment_wait(struct weir_segment *s, unsigned milliseconds);
/* Removes the file, but keeps it mapped for weir__segment_wait().  Does nothing in a child of fork(). */
void weir__segment_remove(struct weir_segment *s);

/* ---- readers ------------------------------------------------------------------------------------- */

/* The process that has made a segment. */
struct weir_segment_name {
    pid_t pid;
    uint64_t start;
    char path[WEIR_SEGMENT_PATH_BYTES];
};

typedef void weir_segment_visitor(const struct weir_segment_name *name, void *context);

/* Calls `visit` for each segment of the kind whose process still runs.  Removes the files of ended processes. */
void weir__segment_each(const struct weir_segment_kind *kind, weir_segment_visitor *visit,
                        void *context);

/* Copies the newest complete data of a segment to *body, and wakes the segment's writer.  If the result is NOT_YET or
 * TORN, the caller may try again.  On failure *body is undefined. */
enum weir_segment_fault weir__segment_read(const char *path, const struct weir_segment_kind *kind,
                                           void *body);

#endif
