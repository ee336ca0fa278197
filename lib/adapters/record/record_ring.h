/* SPDX-License-Identifier: MIT */
/* record_ring.h: memory that a recorded program shares with `weir record`, which writes the trace.
 *
 * The recorder makes folders and, in one of them, the file `board`, which gives each process a number.  The library
 * maps the board when a program is loaded, before the program can change its root directory or its user, or use up its
 * descriptors.  At its first event a process makes a file NUMBER, with a head and a ring that threads share.  Each
 * thread has a ring in a file NUMBER.RING, or uses the shared one.  A process that can make no file uses a spare one in
 * the board, or else adds itself to the table of unrecorded processes.  Only the ring's thread writes to it, and only
 * the recorder reads it, so events survive however the program ends.
 *
 * Locks of the kernel on bytes of the board say which process lives, in any pid namespace: byte 0 for the recorder,
 * byte WEIR_RECORD_LOCK_FIRST + NUMBER for a process.  They are locks of open file descriptions (F_OFD_SETLK), which a
 * mapping of the board keeps open until the process ends or executes another program.
 *
 * A file lies in the first folder that has room.  All its memory is allocated before it is mapped: a store into a
 * sparse file would end the program by SIGBUS if the file system is full.  The file NUMBER appears when its head is
 * complete; a file of a ring is complete before the head counts it.  The folders have names that cannot be guessed or
 * listed, and any user may write to them: a process of the command may have changed its user.
 *
 * `entered` brings the events of all rings into order.  A thread sets it to WEIR_RECORD_ENTERING, then to the time of
 * its event, and clears it when the event is in the ring.  So the recorder knows up to which time no further event can
 * come.
 *
 * This file must not know the use of an event.
 */
#ifndef WEIR_RECORD_RING_H
#define WEIR_RECORD_RING_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#define WEIR_RECORD_FOLDER "WEIR_RECORD_FOLDER" /* the folders of the files, with colons between */
#define WEIR_RECORD_SYNCS "WEIR_RECORD_SYNCS"   /* if set, synchronisations are events, too */
#define WEIR_RECORD_RANGES "WEIR_RECORD_RANGES" /* patterns of NVTX ranges that end iterations */

#define WEIR_RECORD_CALLERS "WEIR_RECORD_CALLERS" /* if set, requests have callers' names */

#define WEIR_RECORD_BOARD "board" /* the name of the board's file */

#define WEIR_RECORD_MAGIC 0x3464726365726577u
#define WEIR_RECORD_ENTERING 1u

enum {
    WEIR_RECORD_RINGS = 255, /* the most rings of a process, besides the shared one */
    WEIR_RECORD_EVENTS = 4096,
    WEIR_RECORD_LABEL_BYTES = 48,
    WEIR_RECORD_NAME_BYTES = 40,
    WEIR_RECORD_COMMAND_BYTES = 256,
    WEIR_RECORD_SPARES = 8,      /* the most spare files in the board */
    WEIR_RECORD_UNRECORDED = 64, /* entries of the table `unrecorded` */
    WEIR_RECORD_WAIT_MS = 5000,  /* the longest wait of a thread whose ring nobody reads */
    WEIR_RECORD_HOST = UINT8_MAX /* in place of a device: memory of the host */
};

/* Offsets of locked bytes in the file `board`: the recorder's, and the first one of the recorded processes. */
enum { WEIR_RECORD_LOCK_RECORDER, WEIR_RECORD_LOCK_FIRST };

enum weir_record_operation {
    WEIR_RECORD_ALLOC,
    WEIR_RECORD_FREE,
    WEIR_RECORD_FAILED,
    WEIR_RECORD_CREATE,  /* memory with a handle, which is in `address` */
    WEIR_RECORD_RELEASE, /* frees the handle in `address` */
    WEIR_RECORD_MAP,     /* maps the handle in `stream` */
    WEIR_RECORD_UNMAP,
    WEIR_RECORD_RESERVE,   /* addresses without memory */
    WEIR_RECORD_UNRESERVE, /* `bytes` of these addresses */
    WEIR_RECORD_DEVICE,    /* memory and name of a device, before its first request */
    WEIR_RECORD_MARK,
    WEIR_RECORD_SYNC,
    WEIR_RECORD_STREAM_ENDS,
    WEIR_RECORD_CONTEXT_ENDS,
    WEIR_RECORD_CALLER /* a name, whose number is in `total' */
};

enum weir_record_kind {
    WEIR_RECORD_ASYNC,
    WEIR_RECORD_POOL,
    WEIR_RECORD_PLAIN,
    WEIR_RECORD_PITCH,
    WEIR_RECORD_MANAGED,
    WEIR_RECORD_VMM
};

/* An event fills one cache line. */
struct weir_record_event {
    _Alignas(64) uint64_t time;
    uint8_t operation, kind;
    uint8_t is_captured;
    uint8_t device;
    uint32_t thread; /* the thread's number, from 1 on in the order of first events */
    union {
        struct {
            uint64_t address, bytes, stream;
            uint64_t caller;       /* the address of the code that made the request */
            uint64_t place, range; /* numbers of names, or 0 */
        };
        struct {
            uint64_t total;
            char name[WEIR_RECORD_NAME_BYTES];
        };
        char label[WEIR_RECORD_LABEL_BYTES];
    };
};

struct weir_record_ring {
    _Alignas(64) _Atomic uint64_t written; /* the number of all events so far */
    _Atomic uint64_t entered;
    _Atomic uint32_t is_taken; /* set while a living thread has the ring */
    _Alignas(64) _Atomic uint64_t read;
    struct weir_record_event events[WEIR_RECORD_EVENTS];
};

struct weir_record_head {
    _Atomic uint64_t magic; /* set once the head is complete */
    uint64_t number;
    uint64_t start;     /* the time of the process's first request */
    uint64_t namespace; /* the inode of `process`'s namespace, or 0 */
    int32_t process;
    int32_t is_locked;          /* set if the process holds the lock of its number */
    _Atomic uint32_t is_taken;  /* set once a process has this spare file */
    _Atomic uint32_t is_closed; /* set once the recorder reads nothing more */
    _Atomic uint32_t rings;     /* the number of files of rings */
    _Atomic uint64_t lost;      /* events that found no room */
    char command[WEIR_RECORD_COMMAND_BYTES];
};

struct weir_record_file {
    struct weir_record_head head;
    struct weir_record_ring shared;
};

/* A process whose events have no place. */
struct weir_record_unrecorded {
    _Atomic uint32_t is_complete;
    int32_t process, error; /* errno */
    _Atomic uint64_t lost;  /* events */
};

struct weir_record_board {
    uint64_t magic;
    _Atomic uint32_t is_closed;        /* set once the recorder is about to end */
    _Atomic uint64_t numbers;          /* the last number given to a process */
    _Atomic uint64_t files;            /* files made or taken so far */
    _Atomic uint32_t unrecorded_count; /* counts all, also those without an entry */
    struct weir_record_unrecorded unrecorded[WEIR_RECORD_UNRECORDED];
    struct weir_record_file spare[];
};

/* Returns the bytes of a board with that number of spare files. */
static inline size_t weir__record_board_bytes(uint32_t spares) {
    return sizeof(struct weir_record_board) + spares * sizeof(struct weir_record_file);
}

static inline uint64_t weir__record_clock(void) {
    return weir__clock_ns();
}

/* Returns 1 if the processor's counter runs evenly, else 0.  Then times are counts, which the recorder converts. */
static inline int weir__record_has_counter(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d;

    return __get_cpuid(0x80000007u, &a, &b, &c, &d) && (d & (1u << 8)) != 0;
#else
    return 0;
#endif
}

/* Returns the time, which is read after all earlier loads. */
static inline uint64_t weir__record_time(int has_counter) {
#if defined(__x86_64__)
    if (has_counter) {
        _mm_lfence();
        return __rdtsc();
    }
#endif
    (void)has_counter;
    return weir__record_clock();
}

#endif
