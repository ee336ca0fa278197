/* SPDX-License-Identifier: MIT */
/* gate_page.c: see gate_page.h.
 *
 * The closing thread stores the word and then looks at the slots; a thread stores its slot and then looks at the word.  Both
 * pairs are in one order for all (seq_cst), so one of the two sees the other.
 */
#include "ipc/gate_page.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/futex.h"
#include "base/runfile.h"
#include "base/who.h"

#define MAGIC "weirgate"
#define KIND "gate-"
#define NAP_NS 200000L

_Static_assert(sizeof(struct weir_gate_slot) == 64,
               "a thread's words have a cache line of their own");

static int name_file(char path[WEIR_GATE_PATH], pid_t pid, uint64_t start) {
    return weir__runfile_path(path, WEIR_GATE_PATH, KIND "%" PRIu64 "-%ld-%" PRIu64,
                              weir__process_namespace(), (long)pid, start);
}

static int map(struct weir_gate *gate, int file) {
    void *page = mmap(NULL, sizeof *gate->page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

    if (page == MAP_FAILED)
        return -1;
    gate->page = page;
    return 0;
}

int weir__gate_make(struct weir_gate *gate, uint64_t keeper_pid, uint64_t keeper_start) {
    struct weir_gate_page head = {.magic = MAGIC,
                                  .version = WEIR_GATE_VERSION,
                                  .slots = WEIR_GATE_SLOTS,
                                  .pid = (uint64_t)getpid(),
                                  .start = weir__process_start(getpid()),
                                  .keeper_pid = keeper_pid,
                                  .keeper_start = keeper_start};
    int file, error;

    *gate = (struct weir_gate){.file = -1};
    if (name_file(gate->path, getpid(), head.start) != 0)
        return -1;
    (void)unlink(gate->path);
    file = weir__runfile_open(gate->path, O_RDWR | O_CREAT | O_EXCL);
    if (file < 0)
        return -1;
    if (weir__runfile_fill(file, sizeof head, &head, offsetof(struct weir_gate_page, slot)) == 0 &&
        map(gate, file) == 0) {
        close(file);
        return 0;
    }
    error = errno;
    (void)unlink(gate->path);
    close(file);
    errno = error;
    return -1;
}

static int is_sound(const struct weir_gate *gate, pid_t pid, uint64_t start) {
    const struct weir_gate_page *page = gate->page;

    return memcmp(page->magic, MAGIC, sizeof page->magic) == 0 &&
           page->version == WEIR_GATE_VERSION && page->slots == WEIR_GATE_SLOTS &&
           page->pid == (uint64_t)pid && page->start == start;
}

int weir__gate_find(struct weir_gate *gate, pid_t pid, uint64_t start) {
    struct stat is;

    *gate = (struct weir_gate){.file = -1};
    if (name_file(gate->path, pid, start) != 0)
        return -1;
    gate->file = weir__runfile_open(gate->path, O_RDWR);
    if (gate->file < 0)
        return -1;
    if (weir__runfile_is_own(gate->file, &is) && is.st_size >= (off_t)sizeof *gate->page &&
        map(gate, gate->file) == 0 && is_sound(gate, pid, start))
        return 0;
    weir__gate_unmap(gate);
    return -1;
}

int weir__gate_is_current(const struct weir_gate *gate) {
    struct stat named, mapped;

    if (!weir__process_lives((pid_t)gate->page->pid, gate->page->start))
        return 0;
    if (stat(gate->path, &named) != 0) /* somebody has removed it */
        return 1;
    return fstat(gate->file, &mapped) == 0 && named.st_ino == mapped.st_ino &&
           named.st_dev == mapped.st_dev;
}

void weir__gate_unmap(struct weir_gate *gate) {
    if (gate->page)
        munmap(gate->page, sizeof *gate->page);
    if (gate->file >= 0)
        close(gate->file);
    gate->page = NULL;
    gate->file = -1;
}

struct visit {
    void (*visit)(pid_t pid, uint64_t start, void *context);
    void *context;
};

static void visit_one(const char *path, const char *rest, void *context) {
    const struct visit *v = context;
    uint64_t namespace, start;
    long pid;

    if (sscanf(rest, "%" SCNu64 "-%ld-%" SCNu64, &namespace, &pid, &start) != 3 ||
        namespace != weir__process_namespace())
        return;
    if (!weir__process_lives((pid_t)pid, start))
        unlink(path);
    else
        v->visit((pid_t)pid, start, v->context);
}

void weir__gate_each(void (*visit)(pid_t pid, uint64_t start, void *context), void *context) {
    struct visit v = {visit, context};

    weir__runfile_each(KIND, visit_one, &v);
}

int weir__gate_lock(struct weir_gate *gate) {
    return flock(gate->file, LOCK_EX | LOCK_NB) == 0;
}

void weir__gate_unlock(struct weir_gate *gate) {
    (void)flock(gate->file, LOCK_UN);
}

uint64_t weir__gate_uses(const struct weir_gate *gate, int *inside) {
    const struct weir_gate_page *page = gate->page;
    uint32_t used = atomic_load(&page->used_slots);
    uint64_t uses = atomic_load(&page->other_uses);

    *inside = atomic_load(&page->other_inside) != 0;
    for (uint32_t i = 0; i < used && i < WEIR_GATE_SLOTS; i++) {
        *inside |= atomic_load(&page->slot[i].inside) != 0;
        uses += atomic_load_explicit(&page->slot[i].uses, memory_order_relaxed);
    }
    return uses;
}

void weir__gate_set_away(struct weir_gate *gate, int is_away) {
    atomic_store(&gate->page->gate, is_away ? WEIR_GATE_AWAY : WEIR_GATE_CLOSED);
}

void weir__gate_open(struct weir_gate *gate) {
    atomic_store(&gate->page->gate, WEIR_GATE_OPEN);
    (void)syscall(SYS_futex, &gate->page->gate, WEIR_FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int weir__gate_close(struct weir_gate *gate, unsigned wait_ms) {
    uint64_t until = weir__clock_ns() + wait_ms * UINT64_C(1000000);
    int inside;

    atomic_store(&gate->page->gate, WEIR_GATE_CLOSED);
    for (;;) {
        (void)weir__gate_uses(gate, &inside);
        if (!inside)
            return 1;
        if (weir__clock_ns() >= until)
            break;
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
    weir__gate_open(gate);
    return 0;
}

void weir__gate_wait(const struct weir_gate *gate, uint32_t bell, unsigned ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};

    (void)syscall(SYS_futex, &gate->page->bell, WEIR_FUTEX_WAIT, bell, &time, NULL, 0);
}
