/* SPDX-License-Identifier: MIT */
/* segment.c: writes and reads segments: files in which a process publishes data for other processes.
 *
 * The sequence number in the file is odd while the writer writes the body, and even afterwards.
 *
 *     writer                                      reader
 *     sequence := odd                             first := sequence
 *     fence                  release      (a)     fence                  acquire   (c)
 *     words of the body                           words of the body
 *     fence                  release      (b)     fence                  acquire   (d)
 *     sequence := even                            last := sequence
 *                                                 The body is whole if first is even and last = first.
 *
 * If a reader gets a word of a later publication, (a) and (d) guarantee that `last` is at least the odd number of this
 * publication, which is larger than `first`.  If `first` is even, (b) and (c) guarantee that the reader gets all words
 * of this publication.
 *
 * weir uses read(2) and write(2), since another process may truncate the file, and an access to truncated mapped memory
 * raises a signal.  The kernel makes the loads and stores in the order of the thread's calls, and the fences order
 * them.  It may copy the sequence number byte by byte, so a reader may get a mixture of two numbers while the lowest
 * byte overflows.  Such a mixture is odd, or older, or 2^15 publications ahead, so it equals no valid number.
 *
 * A reader writes one word, the time of its read, and the writer sleeps on the lower half of this word.  Both processes
 * access the mapped page only by the futex system call, which returns an error if the page is gone. */
#include "ipc/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/futex.h"
#include "base/runfile.h"
#include "base/text.h"
#include "base/who.h"

#define MAGIC "weirseg1"

enum { TRIES = 64, PREFIX_BYTES = 64 };

struct weir_segment_head {
    char magic[8];
    char kind[WEIR_SEGMENT_KIND_BYTES];
    uint32_t version;
    uint32_t head_bytes;
    uint64_t body_bytes;
};

struct weir_segment_file {
    struct weir_segment_head head;
    _Alignas(64) uint64_t sequence;
    /* The time of the last read of the file (CLOCK_MONOTONIC), or 0. */
    _Alignas(64) uint64_t watched;
    _Alignas(64) uint64_t body[];
};

const char *weir__segment_fault_text(enum weir_segment_fault fault) {
    static const char *const texts[] = {
#define FAULT_TEXT(name, text) text,
        WEIR_SEGMENT_FAULTS(FAULT_TEXT)
#undef FAULT_TEXT
    };

    return texts[fault];
}

/* Writes the first part of a segment's file name, "KIND-NAMESPACE-". */
static void write_prefix(char prefix[PREFIX_BYTES], const struct weir_segment_kind *kind) {
    snprintf(prefix, PREFIX_BYTES, "%s-%" PRIu64 "-", kind->name, weir__process_namespace());
}

/* Parses the last part of a segment's file name, "PID-START", into *out.  Returns 1 on success, else 0. */
static int read_name(const char *name, struct weir_segment_name *out) {
    uint64_t pid;

    if (weir__digits_read(&name, INT32_MAX, &pid) <= 0 || pid == 0 || *name++ != '-')
        return 0;
    out->pid = (pid_t)pid;
    return weir__digits_read(&name, UINT64_MAX, &out->start) > 0 && *name == '\0';
}

struct visit {
    /* NULL if the caller only wants to remove the files of ended processes */
    weir_segment_visitor *living;
    void *context;
};

static void visit_segment(const char *path, const char *rest, void *context) {
    const struct visit *visit = context;
    struct weir_segment_name name;

    if (!read_name(rest, &name))
        return;
    snprintf(name.path, sizeof name.path, "%s", path);
    if (!weir__process_lives(name.pid, name.start))
        (void)unlink(path); /* fails for a file of another user in /dev/shm or /tmp */
    else if (visit->living)
        visit->living(&name, visit->context);
}

void weir__segment_each(const struct weir_segment_kind *kind, weir_segment_visitor *visit,
                        void *context) {
    char prefix[PREFIX_BYTES];

    write_prefix(prefix, kind);
    weir__runfile_each(prefix, visit_segment, &(struct visit){visit, context});
}

/* ---- the writer ---------------------------------------------------------------------------------- */

/* Creates the file of the segment, and maps its first page.  Returns 0 on success, -1 with errno on failure. */
static int create_file(struct weir_segment *s, const struct weir_segment_head *head) {
    void *page = MAP_FAILED;
    int file, error;

    (void)unlink(s->path); /* removes the file of the program that this process ran before exec */
    if (weir__runfile_make(s->path, sizeof *s->page + s->body_bytes, head, sizeof *head) != 0)
        return -1;
    file = weir__runfile_open(s->path, O_RDWR);
    if (file >= 0) {
        errno = EPERM; /* the error to report if another user has created a file of this name */
        if (weir__runfile_is_sound(file, sizeof *s->page + s->body_bytes, head, sizeof *head))
            page = mmap(NULL, sizeof *s->page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (page != MAP_FAILED && weir__kept_set(&s->file, file) == 0) {
        s->page = page;
        return 0;
    }
    error = errno;
    if (page != MAP_FAILED)
        munmap(page, sizeof *s->page);
    if (file >= 0)
        close(file);
    (void)unlink(s->path);
    errno = error;
    return -1;
}

int weir__segment_create(struct weir_segment *s, const struct weir_segment_kind *kind) {
    struct weir_segment_head head = {.magic = MAGIC,
                                     .version = kind->version,
                                     .head_bytes = sizeof *s->page,
                                     .body_bytes = kind->bytes};
    uint64_t start = weir__process_start(getpid());
    char prefix[PREFIX_BYTES];

    memset(s, 0, sizeof *s);
    if (start == 0 || start == UINT64_MAX || weir__process_namespace() == 0) {
        errno = ENOSYS; /* without both numbers, no process could identify the owner of the file */
        return -1;
    }
    s->owner = getpid();
    s->body_bytes = kind->bytes;
    snprintf(head.kind, sizeof head.kind, "%s", kind->name);
    write_prefix(prefix, kind);
    return weir__runfile_path(s->path, sizeof s->path, "%s%ld-%" PRIu64, prefix, (long)s->owner,
                              start) != 0
               ? -1
               : create_file(s, &head);
}

/* Returns the descriptor of the segment's file, or -1.  Opens the file again if the program has closed it. */
static int segment_descriptor(struct weir_segment *s) {
    struct weir_kept again;
    int file;

    if (weir__kept_is(&s->file))
        return s->file.number;
    file = weir__runfile_open(s->path, O_RDWR);
    if (file >= 0 && weir__kept_set(&again, file) == 0 && weir__kept_are_same(&again, &s->file)) {
        s->file = again;
        return file;
    }
    if (file >= 0)
        close(file);
    return -1;
}

/* Writes bytes at the offset `at`.  Checks the descriptor, because the program may close it between two writes. */
static void write_at(struct weir_segment *s, size_t at, const void *from, size_t bytes) {
    int file = segment_descriptor(s);

    if (file >= 0)
        (void)!weir__file_write_at(file, from, bytes, (off_t)at);
}

void weir__segment_publish(struct weir_segment *s, const void *body) {
    s->sequence |= 1;
    write_at(s, offsetof(struct weir_segment_file, sequence), &s->sequence, sizeof s->sequence);
    /* Fence (a) of the table at the top of this file: the sequence number becomes odd before the body is written. */
    atomic_thread_fence(memory_order_release);
    write_at(s, offsetof(struct weir_segment_file, body), body, s->body_bytes);
    /* Fence (b) of the table at the top of this file: the body is written before the sequence number becomes even. */
    atomic_thread_fence(memory_order_release);
    s->sequence++;
    write_at(s, offsetof(struct weir_segment_file, sequence), &s->sequence, sizeof s->sequence);
}

static int pread_all(int file, size_t at, void *to, size_t bytes) {
    ssize_t got;

    do
        got = pread(file, to, bytes, (off_t)at);
    while (got < 0 && errno == EINTR);
    return got >= 0 && (size_t)got == bytes;
}

static uint64_t watched_of(struct weir_segment *s) {
    uint64_t watched;

    return pread_all(segment_descriptor(s), offsetof(struct weir_segment_file, watched), &watched,
                     sizeof watched)
               ? watched
               : 0;
}

static int is_recent(uint64_t watched) {
    return watched != 0 && weir__clock_ns() - watched < WEIR_SEGMENT_WATCHED_NS;
}

int weir__segment_is_watched(struct weir_segment *s) {
    return is_recent(watched_of(s));
}

/* Returns the address of the futex word on which the writer sleeps: the lower half of `watched`. */
static uint32_t *segment_bell(const struct weir_segment_file *file) {
    uint32_t *halves = (uint32_t *)(uintptr_t)&file->watched;

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return halves + 1;
#else
    return halves;
#endif
}

void weir__segment_wait(struct weir_segment *s, unsigned milliseconds) {
    uint64_t watched = watched_of(s);
    struct timespec longest = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};

    /* If no process has read the segment recently, sleeps until a process reads it.  Otherwise, or if the futex call
     * fails because the segment's file was truncated, sleeps for the given time. */
    if (is_recent(watched) || syscall(SYS_futex, segment_bell(s->page), WEIR_FUTEX_WAIT,
                                      (uint32_t)watched, NULL, NULL, 0) != 0)
        nanosleep(&longest, NULL);
}

void weir__segment_remove(struct weir_segment *s) {
    if (s->page && s->owner == getpid())
        (void)unlink(s->path);
}

/* ---- readers ------------------------------------------------------------------------------------- */

/* Checks the owner, the mode, the head and the size of another process's file, before its contents are used. */
static enum weir_segment_fault check_header(int file, const struct weir_segment_kind *kind) {
    struct weir_segment_head head;
    struct stat is;

    if (!weir__runfile_is_own(file, &is) || (is.st_mode & 077) != 0 ||
        !pread_all(file, 0, &head, sizeof head) ||
        memcmp(head.magic, MAGIC, sizeof head.magic) != 0 ||
        strncmp(head.kind, kind->name, sizeof head.kind) != 0)
        return WEIR_SEGMENT_FOREIGN;
    if (head.version != kind->version || head.body_bytes != kind->bytes ||
        head.head_bytes != sizeof(struct weir_segment_file))
        return WEIR_SEGMENT_OTHER_VERSION;
    return (uint64_t)is.st_size < sizeof(struct weir_segment_file) + kind->bytes
               ? WEIR_SEGMENT_FOREIGN
               : WEIR_SEGMENT_NONE;
}

static void mark_watched(int file) {
    uint64_t now = weir__clock_ns();
    void *map;

    if (weir__file_write_at(file, &now, sizeof now, offsetof(struct weir_segment_file, watched)) !=
        sizeof now)
        return;
    map = mmap(NULL, sizeof(struct weir_segment_file), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        return;
    (void)syscall(SYS_futex, segment_bell(map), WEIR_FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    munmap(map, sizeof(struct weir_segment_file));
}

static enum weir_segment_fault read_body(int file, const struct weir_segment_kind *kind,
                                         void *body) {
    uint64_t first, last;

    for (int i = 0; i < TRIES; i++) {
        if (!pread_all(file, offsetof(struct weir_segment_file, sequence), &first, sizeof first))
            return WEIR_SEGMENT_FOREIGN;
        /* Fence (c) of the table at the top of this file: the sequence number is read before the body. */
        atomic_thread_fence(memory_order_acquire);
        if (!pread_all(file, offsetof(struct weir_segment_file, body), body, kind->bytes))
            return WEIR_SEGMENT_FOREIGN;
        /* Fence (d) of the table at the top of this file: the body is read before the sequence number is read again. */
        atomic_thread_fence(memory_order_acquire);
        if (!pread_all(file, offsetof(struct weir_segment_file, sequence), &last, sizeof last))
            return WEIR_SEGMENT_FOREIGN;
        if (first == last && (first & 1) == 0)
            return first == 0 ? WEIR_SEGMENT_NOT_YET : WEIR_SEGMENT_NONE;
        if (i >= TRIES / 2) /* the writer may be waiting for a processor */
            nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return WEIR_SEGMENT_TORN;
}

enum weir_segment_fault weir__segment_read(const char *path, const struct weir_segment_kind *kind,
                                           void *body) {
    enum weir_segment_fault fault;
    int file = weir__runfile_open(path, O_RDWR);

    if (file < 0)
        return errno == ENOENT ? WEIR_SEGMENT_GONE : WEIR_SEGMENT_UNREADABLE;
    fault = check_header(file, kind);
    if (fault == WEIR_SEGMENT_NONE) {
        mark_watched(file);
        fault = read_body(file, kind, body);
    }
    close(file);
    return fault;
}
