/* SPDX-License-Identifier: MIT */
/* gate_page.h: what a process and the one that parks it while it is idle say to each other: a page in a file that both
 * map.
 *
 * The file is FOLDER/weir-UID-gate-NAMESPACE-PID-START, where FOLDER is as runfile.h says.  The process makes it at its
 * first call of the driver; the process that parks or wakes it holds the kernel's lock on the file meanwhile.
 *
 * Glossary
 *   gate      a word: while it is closed no thread of the process begins a call of the driver
 *   inside    a thread has passed the gate and has not come back
 *   keeper    who parks and wakes the process: the `weir run' that started it
 *   aside     the process waits in a request for memory, and may be parked there
 *
 * Numbers: all words are 32 or 64 bits and lock-free.
 *
 * Must not know: why a gate is closed.
 */
#ifndef WEIR_GATE_PAGE_H
#define WEIR_GATE_PAGE_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    WEIR_GATE_VERSION = 1,
    WEIR_GATE_SLOTS = 1024, /* threads; those beyond share two words */
    WEIR_GATE_NAME = 64,
    WEIR_GATE_PATH = 512
};

enum weir_gate_word {
    WEIR_GATE_OPEN,
    WEIR_GATE_CLOSED,
    WEIR_GATE_AWAY /* closed, and the process has no device memory */
};

/* Why the process cannot be parked. */
enum weir_gate_reason {
    WEIR_GATE_MAY_PARK,
    WEIR_GATE_SHARES, /* it called a function that shares memory with other processes, or that uses managed memory */
    WEIR_GATE_BYPASSED, /* it is linked to a function of the driver that the gate does not know */
    WEIR_GATE_CROWDED,  /* it looked up more functions than the gate has room for */
};

/* Of one thread. */
struct weir_gate_slot {
    _Atomic uint32_t thread; /* its number; 0: free */
    _Atomic uint32_t inside;
    _Atomic uint64_t uses; /* calls that ended; only the thread writes it */
    uint64_t reserved[6];
};

struct weir_gate_page {
    char magic[8];
    uint32_t version, slots;
    uint64_t pid, start;               /* of the process */
    uint64_t keeper_pid, keeper_start; /* as its environment says */
    _Atomic uint32_t gate;             /* the keeper writes it */
    _Atomic uint32_t bell;             /* the process adds one and wakes the keeper */
    _Atomic uint32_t waiting;          /* threads that wait at the closed gate */
    _Atomic uint32_t reason;           /* enum weir_gate_reason, of the first reason */
    _Atomic uint32_t other_inside;     /* of threads without a slot */
    _Atomic uint32_t used_slots;       /* none beyond is taken */
    _Atomic uint64_t other_uses;
    _Atomic uint64_t aside;          /* bytes that it lacks; 0: it does not wait for memory */
    char refused_by[WEIR_GATE_NAME]; /* a function's name; written before `reason' */
    struct weir_gate_slot slot[WEIR_GATE_SLOTS];
};

/* One that is mapped. */
struct weir_gate {
    struct weir_gate_page *page; /* NULL: none */
    int file;                    /* -1: closed */
    char path[WEIR_GATE_PATH];
};

/* Makes this process's, in place of what it may have left before it became another program.  The file does not stay
 * open.  0; -1 and errno. */
int weir__gate_make(struct weir_gate *gate, uint64_t keeper_pid, uint64_t keeper_start);
/* Maps that of a process, and keeps the file open.  0; -1: there is none, or it is none of this version. */
int weir__gate_find(struct weir_gate *gate, pid_t pid, uint64_t start);
/* 1: the process lives, and has made no other page since. */
int weir__gate_is_current(const struct weir_gate *gate);
void weir__gate_unmap(struct weir_gate *gate);
/* Visits the gates of processes that live, and removes the files of the others. */
void weir__gate_each(void (*visit)(pid_t pid, uint64_t start, void *context), void *context);

/* The kernel's lock on the file: 1; 0: another has it.  It ends with the process. */
int weir__gate_lock(struct weir_gate *gate);
void weir__gate_unlock(struct weir_gate *gate);

/* Closes the gate: 1, and no thread is inside; 0: one still was after so many milliseconds, and it is open again. */
int weir__gate_close(struct weir_gate *gate, unsigned wait_ms);
/* The memory of the process whose gate is closed has gone, or is about to come back. */
void weir__gate_set_away(struct weir_gate *gate, int is_away);
/* Opens it, and wakes who waits there. */
void weir__gate_open(struct weir_gate *gate);
/* Calls so far, and whether a thread is inside. */
uint64_t weir__gate_uses(const struct weir_gate *gate, int *inside);
/* Sleeps until the bell has another value, or that time is over. */
void weir__gate_wait(const struct weir_gate *gate, uint32_t bell, unsigned ms);

#endif
