/* SPDX-License-Identifier: MIT */
/* record_ring.h: the memory by which a recorded program passes its events to the recorder, the process `weir record`.
 *
 * The recorder creates folders, and in one of them the file `board`, which gives each recorded process a number.
 * libweir-record.so maps the board when a program is loaded, because the program may later change its root directory
 * or its user, or use up its file descriptors.  At its first event a process creates a file NUMBER, with a head and a
 * ring of events.  Each thread has a ring in a separate file NUMBER.RING.  A thread that cannot create this file
 * shares the ring in the file NUMBER.  A process that can create no file uses a spare file in the board.  If no spare
 * file is left, the process adds itself to the board's table of unrecorded processes.  The program only writes events
 * and the recorder only reads events, so recorded events survive a crash of the program.
 *
 * Kernel locks on bytes of the board show which processes live, in any pid namespace.  The recorder locks byte 0, and
 * process NUMBER locks byte WEIR_RECORD_LOCK_FIRST + NUMBER.  The locks belong to open file descriptions (F_OFD_SETLK).
 * A mapping of the board keeps such a description open until the process ends or calls execve(2).
 *
 * Each file lies in the first folder that has room.  A process allocates all memory of a file before it maps the
 * file: a store into a sparse file would end the program by SIGBUS if the file system is full.  The file NUMBER
 * appears in the folder when its head is complete, and the file of a ring is complete before the head's field `rings`
 * is increased.  The folders have names that cannot be guessed or listed.  Any user may write to the folders, because
 * a recorded process may have changed its user.
 *
 * The field `entered` of a ring lets the recorder sort the events of all rings by time.  A thread sets `entered` to
 * WEIR_RECORD_ENTERING before it reads the clock, then to the time of its event, and to 0 when the event is in the
 * ring.  So the recorder can compute up to which time it has read all events.
 *
 * This file must not depend on what the recorder does with an event. */
#ifndef WEIR_RECORD_RING_H
#define WEIR_RECORD_RING_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#define WEIR_RECORD_FOLDER "WEIR_RECORD_FOLDER"   /* shared folders, separated by colons */
#define WEIR_RECORD_SYNCS "WEIR_RECORD_SYNCS"     /* if set, weir also records synchronisations */
#define WEIR_RECORD_RANGES "WEIR_RECORD_RANGES"   /* a pattern of NVTX ranges that end iterations */
#define WEIR_RECORD_CALLERS "WEIR_RECORD_CALLERS" /* if set, weir also records requesting code */
#define WEIR_RECORD_BOARD "board" /* the file that gives each recorded process a number */

#define WEIR_RECORD_MAGIC 0x3464726365726577u
#define WEIR_RECORD_ENTERING 1u

enum {
    WEIR_RECORD_RINGS = 255, /* rings of a process, without the ring that threads share */
    WEIR_RECORD_EVENTS = 4096,
    WEIR_RECORD_LABEL_BYTES = 48,
    WEIR_RECORD_NAME_BYTES = 40,
    WEIR_RECORD_COMMAND_BYTES = 256,
    WEIR_RECORD_SPARES = 8,      /* spare files, for processes that can create no file */
    WEIR_RECORD_UNRECORDED = 64, /* unrecorded processes that `weir record` can report */
    WEIR_RECORD_WAIT_MS = 5000,  /* the longest wait of a thread whose ring is full */
    WEIR_RECORD_HOST = UINT8_MAX /* the device number of requests for host memory */
};

/* In the file `board`, the recorder locks byte 0, and process N (from 1 on) locks byte WEIR_RECORD_LOCK_FIRST + N. */
enum { WEIR_RECORD_LOCK_RECORDER, WEIR_RECORD_LOCK_FIRST };

enum weir_record_operation {
    WEIR_RECORD_ALLOC,
    WEIR_RECORD_FREE,
    WEIR_RECORD_FAILED,
    WEIR_RECORD_CREATE,  /* cuMemCreate; `address` contains the handle */
    WEIR_RECORD_RELEASE, /* cuMemRelease; `address` contains the handle */
    WEIR_RECORD_MAP,     /* cuMemMap; `stream` contains the handle */
    WEIR_RECORD_UNMAP,
    WEIR_RECORD_RESERVE,   /* cuMemAddressReserve */
    WEIR_RECORD_UNRESERVE, /* cuMemAddressFree of `bytes` bytes */
    WEIR_RECORD_DEVICE,    /* the device's memory size and name, before its first request */
    WEIR_RECORD_MARK,
    WEIR_RECORD_SYNC,
    WEIR_RECORD_STREAM_ENDS,
    WEIR_RECORD_CONTEXT_ENDS,
    WEIR_RECORD_CALLER /* the name with the number `total`, of code or of an NVTX range */
};

enum weir_record_kind {
    WEIR_RECORD_ASYNC,
    WEIR_RECORD_POOL,
    WEIR_RECORD_PLAIN,
    WEIR_RECORD_PITCH,
    WEIR_RECORD_MANAGED,
    WEIR_RECORD_VMM
};

/* An event, which fills one cache line. */
struct weir_record_event {
    _Alignas(64) uint64_t time;
    uint8_t operation, kind;
    uint8_t is_captured;
    uint8_t device;
    uint32_t thread; /* threads are numbered from 1 */
    union {
        struct {
            uint64_t address, bytes, stream;
            uint64_t caller; /* the address of the code that made the request */
            /* The numbers of the names of the requesting code and of the innermost NVTX range.  0 means no name. */
            uint64_t place, range;
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
    _Atomic uint32_t is_in_use; /* set while a running thread uses this ring */
    _Alignas(64) _Atomic uint64_t read;
    struct weir_record_event events[WEIR_RECORD_EVENTS];
};

struct weir_record_head {
    _Atomic uint64_t magic; /* WEIR_RECORD_MAGIC once the rest of this struct is complete */
    uint64_t number;
    uint64_t start;     /* the time of the process's first request */
    uint64_t namespace; /* the inode of the pid namespace, or 0 */
    int32_t process;
    int32_t is_locked;          /* set if the process has locked its byte in `board` */
    _Atomic uint32_t is_in_use; /* set once a process uses this struct; only in a spare file */
    _Atomic uint32_t is_closed; /* set once `weir record` reads no more events */
    _Atomic uint32_t rings;     /* the number of files NUMBER.RING */
    _Atomic uint64_t lost;      /* the number of events that the process could not record */
    char command[WEIR_RECORD_COMMAND_BYTES];
};

struct weir_record_file {
    struct weir_record_head head;
    struct weir_record_ring shared;
};

/* A process that is not recorded, because there was no file for the process's events. */
struct weir_record_unrecorded {
    _Atomic uint32_t is_complete;
    int32_t process, error; /* `error` is the errno of the failed creation of the file */
    _Atomic uint64_t lost;  /* the number of events that the process could not record */
};

struct weir_record_board {
    uint64_t magic;
    _Atomic uint32_t is_closed;   /* set once `weir record` accepts no more processes */
    _Atomic uint64_t last_number; /* the last number that was given to a process */
    _Atomic uint64_t files;       /* the number of files with events, spare files included */
    _Atomic uint32_t unrecorded_count; /* unrecorded processes; may exceed the table */
    struct weir_record_unrecorded unrecorded[WEIR_RECORD_UNRECORDED];
    struct weir_record_file spare[];
};

/* Returns the bytes of a struct weir_record_board whose array `spare` has `spares` elements. */
static inline size_t weir__record_board_bytes(uint32_t spares) {
    return sizeof(struct weir_record_board) + spares * sizeof(struct weir_record_file);
}

static inline uint64_t weir__record_clock(void) {
    return weir__clock_ns();
}

/* Returns 1 if the time-stamp counter has a constant rate, so that events contain values of this counter, else 0. */
static inline int weir__record_has_counter(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d;

    return __get_cpuid(0x80000007u, &a, &b, &c, &d) && (d & (1u << 8)) != 0;
#else
    return 0;
#endif
}

/* Returns the present time.  The processor reads the time after all earlier loads of the thread. */
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
