/* SPDX-License-Identifier: MIT */
/* segment.h: data that a process publishes to other processes of its user, in a file that it alone writes.
 *
 * A segment has a kind: a name, a version and the size of its body.  Its file is
 *     FOLDER/weir-UID-KIND-NAMESPACE-PID-START
 * with mode 0600.  runfile.h defines FOLDER; NAMESPACE is the inode of the process's namespace of pids, and START the
 * process's start time in the kernel's ticks.  So the name alone tells whether its process lives: a reused pid has
 * another start time.  weir ignores files of another namespace.  Readers search all folders.  weir__segment_each
 * removes files of ended processes.
 *
 * Glossary
 *   body      the published data: a struct of 64-bit words, published as a whole
 *   watched   said of a segment that a process has read within the last seconds; the writer of an unwatched segment
 *             sleeps
 *
 * Any process of the user may write anything into the file.  So a reader checks size, magic and version before anything
 * else, and the caller must not trust the body.
 *
 * This file must not know the meaning of a body.
 */
#ifndef WEIR_SEGMENT_H
#define WEIR_SEGMENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/kept.h"

enum { WEIR_SEGMENT_PATH_BYTES = 512, WEIR_SEGMENT_KIND_BYTES = 16 };

/* The time after a read for which a segment counts as watched. */
#define WEIR_SEGMENT_WATCHED_NS UINT64_C(3000000000)

struct weir_segment_kind {
    const char *name; /* lower-case letters, at most 15 */
    uint32_t version; /* the version of the body's layout */
    size_t bytes;     /* the size of the body; a multiple of 8 */
};

/* The reasons why a segment is not read: X(name, text). */
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

/* A segment that this process writes.  All fields are zero if there is no segment.  Only one thread uses the struct,
 * but any thread may call weir__segment_remove. */
struct weir_segment {
    /* The mapped file, on which the writer sleeps; NULL if there is no segment. */
    struct weir_segment_file *page;
    struct weir_kept file;
    uint64_t sequence; /* the last sequence in the file */
    size_t body_bytes;
    pid_t owner;
    char path[WEIR_SEGMENT_PATH_BYTES];
};

/* Makes this process's segment of that kind.  Replaces a segment that the process may have left when it became another
 * program.  The segment's file stays open; a child of fork has the descriptor, too, but does not use the descriptor.
 * Returns 0 on success, -1 with errno on failure. */
int weir__segment_create(struct weir_segment *s, const struct weir_segment_kind *kind);
/* Publishes a body of the kind's size.  If the file is gone or was truncated, no reader sees the body. */
void weir__segment_publish(struct weir_segment *s, const void *body);
/* Returns 1 if a reader has read within WEIR_SEGMENT_WATCHED_NS, else 0. */
int weir__segment_is_watched(struct weir_segment *s);
/* Sleeps for that number of milliseconds if the segment is watched, else until the next read. */
void weir__segment_wait(struct weir_segment *s, unsigned milliseconds);
/* Removes the file, unless this process is a child of fork of its owner.  The file stays open and mapped, since a
 * thread may sleep on the mapped page. */
void weir__segment_remove(struct weir_segment *s);

/* ---- readers ------------------------------------------------------------------------------------- */

/* The process of a segment, from the segment's name. */
struct weir_segment_name {
    pid_t pid;
    uint64_t start;
    char path[WEIR_SEGMENT_PATH_BYTES];
};

typedef void weir_segment_visitor(const struct weir_segment_name *name, void *context);

/* Visits the segments of that kind whose processes live, and removes the segments of ended processes. */
void weir__segment_each(const struct weir_segment_kind *kind, weir_segment_visitor *visit,
                        void *context);

/* Marks the segment as watched, and copies the body that was published last as a whole.  After NOT_YET and TORN the
 * caller may try again.  The function may also write to `body` if it fails. */
enum weir_segment_fault weir__segment_read(const char *path, const struct weir_segment_kind *kind,
                                           void *body);

#endif
