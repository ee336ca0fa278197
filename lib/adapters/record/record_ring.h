/* SPDX-License-Identifier: MIT */
/* record_ring.h: the memory that a recorded program shares with the recorder (`weir record`), which writes the trace.
 *
 * The recorder creates folders, and in one of them the file `board`, which gives each recorded process a number.
 * libweir-record.so maps the board when a program is loaded: later the program may change its root directory or its
 * user, or use up its file descriptors.  At its first event a process creates a file NUMBER, with a head and a ring
 * that its threads can share.  Each thread has a ring in a separate file NUMBER.RING, or uses the shared ring.  A
 * process that can create no file uses a spare file in the board.  If no spare file is left, the process adds itself to
 * the board's table of unrecorded processes.  The program only writes events and the recorder only reads them, so
 * recorded events survive however the program ends.
 *
 * Kernel locks on bytes of the board show which processes live, in any pid namespace.  The recorder locks byte 0, and
 * process NUMBER locks byte WEIR_RECORD_LOCK_FIRST + NUMBER.  The locks belong to open file descriptions (F_OFD_SETLK).
 * A mapping of the board keeps such a description open until the process ends or executes another program.
 *
 * Each file lies in the first folder that has room.  All memory of a file is allocated before the file is mapped: a
 * store into a sparse file would end the program by SIGBUS if the file system is full.  The file NUMBER appears when
 * its head is complete, and the file of a ring is complete before the head counts the ring.  The folders have names
 * that cannot be guessed or listed.  Any user may write to the folders, because a recorded process may have changed its
 * user.
 *
 * The field `entered` of a ring lets the recorder sort the events of all rings by time.  A thread sets `entered` to
 * WEIR_RECORD_ENTERING, then to the time of its event, and clears `entered` when the event is in the ring.  So the
 * recorder knows up to which time no further event can come.
 *
 * This file must not know what the recorder does with an event.
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
#define WEIR_RECORD_SYNCS "WEIR_RECORD_SYNCS"   /* if set, synchronisations are recorded, too */
#define WEIR_RECORD_RANGES "WEIR_RECORD_RANGES" /* patterns of NVTX ranges that end iterations */

/* If set, requests are recorded with their callers' names. */
#define WEIR_RECORD_CALLERS "WEIR_RECORD_CALLERS"

#define WEIR_RECORD_BOARD "board" /* the name of the board's file */

#define WEIR_RECORD_MAGIC 0x3464726365726577u
#define WEIR_RECORD_ENTERING 1u

enum {
    WEIR_RECORD_RINGS = 255, /* the most rings of a process, without the shared ring */
    WEIR_RECORD_EVENTS = 4096,
    WEIR_RECORD_LABEL_BYTES = 48,
    WEIR_RECORD_NAME_BYTES = 40,
    WEIR_RECORD_COMMAND_BYTES = 256,
    WEIR_RECORD_SPARES = 8,      /* the most spare files in the board */
    WEIR_RECORD_UNRECORDED = 64, /* entries of the table `unrecorded` */
    WEIR_RECORD_WAIT_MS = 5000,  /* the longest wait of a thread whose ring nobody reads */
    WEIR_RECORD_HOST = UINT8_MAX /* the device number that stands for host memory */
};

/* The offsets of the locked bytes in the file `board`: the recorder's byte, and the first byte of the recorded
 * processes. */
enum { WEIR_RECORD_LOCK_RECORDER, WEIR_RECORD_LOCK_FIRST };

enum weir_record_operation {
    WEIR_RECORD_ALLOC,
    WEIR_RECORD_FREE,
    WEIR_RECORD_FAILED,
    WEIR_RECORD_CREATE,  /* creates physical memory, whose handle is in `address` */
    WEIR_RECORD_RELEASE, /* releases the handle that is in `address` */
    WEIR_RECORD_MAP,     /* maps the handle that is in `stream` */
    WEIR_RECORD_UNMAP,
    WEIR_RECORD_RESERVE,   /* reserves addresses without memory */
    WEIR_RECORD_UNRESERVE, /* frees `bytes` of reserved addresses */
    WEIR_RECORD_DEVICE,    /* the memory size and name of a device, before its first request */
    WEIR_RECORD_MARK,
    WEIR_RECORD_SYNC,
    WEIR_RECORD_STREAM_ENDS,
    WEIR_RECORD_CONTEXT_ENDS,
    WEIR_RECORD_CALLER /* a caller's name, whose number is in `total' */
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
    _Alignas(64) _Atomic uint64_t written; /* the number of events written so far */
    _Atomic uint64_t entered;
    _Atomic uint32_t is_taken; /* set while a living thread has the ring */
    _Alignas(64) _Atomic uint64_t read;
    struct weir_record_event events[WEIR_RECORD_EVENTS];
};

struct weir_record_head {
    _Atomic uint64_t magic; /* set once the head is complete */
    uint64_t number;
    uint64_t start;     /* the time of the process's first request */
    uint64_t namespace; /* the inode of the pid namespace of `process`, or 0 */
    int32_t process;
    int32_t is_locked;          /* set if the process holds the lock of its number */
    _Atomic uint32_t is_taken;  /* set once a process has claimed this spare file */
    _Atomic uint32_t is_closed; /* set once the recorder reads nothing more */
    _Atomic uint32_t rings;     /* the number of files of rings */
    _Atomic uint64_t lost;      /* the number of events that were lost for lack of room */
    char command[WEIR_RECORD_COMMAND_BYTES];
};

struct weir_record_file {
    struct weir_record_head head;
    struct weir_record_ring shared;
};

/* A process that runs unrecorded, because it found no file for its events. */
struct weir_record_unrecorded {
    _Atomic uint32_t is_complete;
    int32_t process, error; /* an errno */
    _Atomic uint64_t lost;  /* the number of lost events */
};

struct weir_record_board {
    uint64_t magic;
    _Atomic uint32_t is_closed; /* set once the recorder is about to end */
    _Atomic uint64_t numbers;   /* the last number given to a process */
    _Atomic uint64_t files;     /* the number of files created or claimed so far */
    /* Counts unrecorded processes, even those without an entry. */
    _Atomic uint32_t unrecorded_count;
    struct weir_record_unrecorded unrecorded[WEIR_RECORD_UNRECORDED];
    struct weir_record_file spare[];
};

/* Returns the size of a board with `spares` spare files, in bytes. */
static inline size_t weir__record_board_bytes(uint32_t spares) {
    return sizeof(struct weir_record_board) + spares * sizeof(struct weir_record_file);
}

static inline uint64_t weir__record_clock(void) {
    return weir__clock_ns();
}

/* Returns 1 if the processor's time-stamp counter runs at a constant rate, else 0.  If it returns 1, the times of
 * events are counts of this counter, which the recorder converts. */
static inline int weir__record_has_counter(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d;

    return __get_cpuid(0x80000007u, &a, &b, &c, &d) && (d & (1u << 8)) != 0;
#else
    return 0;
#endif
}

/* Returns the present time.  The counter is read after all earlier loads of the thread. */
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
