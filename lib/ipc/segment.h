/* SPDX-License-Identifier: MIT */
/* segment.h: what a process shows to other processes of its user, in a file that it alone writes.
 *
 * A segment has a kind: a name, a version and the size of its body.  Its file is
 *     FOLDER/weir-UID-KIND-NAMESPACE-PID-START
 * with mode 0600, where FOLDER is as runfile.h says, NAMESPACE is the inode of the process's namespace of pids, and
 * START when it began, in the kernel's ticks.  So a name tells by itself whether its process lives: a pid that was
 * given away again has another start, and what is of another namespace is nobody's here to judge.  Readers look in
 * all folders.  weir__segment_each removes what the dead have left.
 *
 * Glossary
 *   body      what is shown: a struct of 64-bit words, published as a whole
 *   watched   a reader has said within the last seconds that it is there; a writer that is not watched sleeps
 *
 * What a reader finds in a file is whatever a process of the user put there: its size, its magic and its version
 * are looked at before anything else, and the body is the caller's to doubt.
 *
 * Must not know: what a body means.
 */
#ifndef WEIR_SEGMENT_H
#define WEIR_SEGMENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/kept.h"

enum { WEIR_SEGMENT_PATH_BYTES = 512, WEIR_SEGMENT_KIND_BYTES = 16 };

/* How long a reader's word holds. */
#define WEIR_SEGMENT_WATCHED_NS UINT64_C(3000000000)

struct weir_segment_kind {
    const char *name; /* small letters, at most 15 */
    uint32_t version; /* of the body: another one has another number */
    size_t bytes;     /* of the body; a multiple of 8 */
};

/* Why a segment is not read: X(name, what is wrong). */
#define WEIR_SEGMENT_FAULTS(X)                                                                     \
    X(NONE, "nothing is wrong")                                                                    \
    X(GONE, "it is gone")                                                                          \
    X(NOT_PLAIN, "it is no plain file")                                                            \
    X(NOT_OWN, "it belongs to another user")                                                       \
    X(NOT_PRIVATE, "other users may open it")                                                      \
    X(SHORT, "it is cut short")                                                                    \
    X(FOREIGN, "it was not written by weir")                                                       \
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

/* Of one thread's alone, but for weir__segment_remove.  Zeroed: there is none. */
struct weir_segment {
    struct weir_segment_file *page; /* to sleep on alone; NULL: there is none */
    struct weir_kept file;
    uint64_t sequence; /* in the file */
    size_t body_bytes;
    pid_t owner;
    char path[WEIR_SEGMENT_PATH_BYTES];
};

/* Makes this process's segment of that kind, in place of one that it may have left as it became another program.  Its
 * file stays open; a child of fork has it too, and leaves it alone.  0, or -1 and errno: there can be none. */
int weir__segment_create(struct weir_segment *s, const struct weir_segment_kind *kind);
/* Shows a body, of the kind's size.  Where the file is gone, or was cut short, nobody sees it. */
void weir__segment_publish(struct weir_segment *s, const void *body);
/* 1 if a reader was there within WEIR_SEGMENT_WATCHED_NS. */
int weir__segment_is_watched(struct weir_segment *s);
/* Sleeps until a reader says that it is there; while it is watched for no longer than so many milliseconds. */
void weir__segment_wait(struct weir_segment *s, unsigned milliseconds);
/* Removes the file, unless this process is a child of fork of its owner.  It stays open and mapped: a thread
 * may sleep on it. */
void weir__segment_remove(struct weir_segment *s);

/* ---- readers ------------------------------------------------------------------------------------- */

/* Whose one is, from its name. */
struct weir_segment_name {
    pid_t pid;
    uint64_t start;
    char path[WEIR_SEGMENT_PATH_BYTES];
};

typedef void weir_segment_visitor(const struct weir_segment_name *name, void *context);

/* Visits the segments of that kind whose processes live, and removes those whose processes do not. */
void weir__segment_each(const struct weir_segment_kind *kind, weir_segment_visitor *visit,
                        void *context);

/* 1 if the process of that name lives: not if it has ended and waits for its parent. */
int weir__segment_lives(const struct weir_segment_name *name);

/* Says to its writer that it is watched, and copies the body that was published last, which was whole at one
 * time.  On NOT_YET and TORN another try may do better.  `body` is written to in any case. */
enum weir_segment_fault weir__segment_read(const char *path, const struct weir_segment_kind *kind,
                                           void *body);

#endif
