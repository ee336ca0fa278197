/* SPDX-License-Identifier: MIT */
/* test_process_peers.h: starts processes on one device, and sends them commands, for the suite test_process_peers. */
#ifndef WEIR_TEST_PROCESS_PEERS_H
#define WEIR_TEST_PROCESS_PEERS_H

#include <poll.h>
#include <semaphore.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <weir/tensors.h>

#include "api/drop_in.h"
#include "ipc/registry.h"
#include "ipc/process_peers.h"
#include "ipc/process_lock.h"
#include "driver/model/model_shared.h"
#include "tests/fixtures/folder.h"
#include "tests/fixtures/model_device.h"
#include "tests/fixtures/ways.h"
#include "api/allocator_internal.h"

enum { MOST_BLOCKS = 4096, MOST_CHILDREN = 16 };

#define CAPACITY (1024 * MIB)

static inline uint64_t now_ms(void) {
    return weir__registry_now() / 1000000;
}

struct child {
    pid_t pid;
    FILE *to, *from;
    char reply[4096];
};

static struct {
    pid_t pid; /* 0 if the entry is unused */
    int to;
} living[MOST_CHILDREN];

static inline void hear(struct child *c) {
    ck_assert_msg(fgets(c->reply, sizeof c->reply, c->from) != NULL, "process %d ended",
                  (int)c->pid);
    c->reply[strcspn(c->reply, "\n")] = '\0';
}

/* Starts this program as a child.  `words` is a KIND and options of serve_as_child(), separated by blanks. */
static inline void start_peer(struct child *c, const char *words) {
    char copy[256],
        *argv[32] = {(char *)(uintptr_t) "test_process_peers", (char *)(uintptr_t) "child"}, *at;
    int in[2], out[2], count = 2;

    snprintf(copy, sizeof copy, "%s", words);
    for (at = strtok(copy, " "); at; at = strtok(NULL, " "))
        argv[count++] = at;
    ck_assert_int_eq(pipe2(in, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    c->pid = fork();
    if (c->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        exec_itself(argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    c->to = fdopen(in[1], "w");
    c->from = fdopen(out[0], "r");
    for (int i = 0; i < MOST_CHILDREN; i++)
        if (living[i].pid == 0) {
            living[i].pid = c->pid;
            living[i].to = in[1];
            break;
        }
}

__attribute__((format(printf, 2, 3))) static inline void start(struct child *c, const char *format,
                                                               ...) {
    char words[256];
    va_list values;

    va_start(values, format);
    vsnprintf(words, sizeof words, format, values);
    va_end(values);
    start_peer(c, words);
    hear(c);
    ck_assert_str_eq(c->reply, "ready");
}

static inline void send_line(struct child *c, const char *line) {
    fprintf(c->to, "%s\n", line);
    fflush(c->to);
}

static inline void expect(struct child *c, const char *line, const char *reply) {
    send_line(c, line);
    hear(c);
    if (strcmp(c->reply, reply) != 0)
        ck_abort_msg("process %d: %s: %s, not %s", (int)c->pid, line, c->reply, reply);
}

static inline void ask_peer(struct child *c, const char *line) {
    send_line(c, line);
    hear(c);
}

static inline void hears(struct child *c, const char *reply) {
    hear(c);
    ck_assert_str_eq(c->reply, reply);
}

/* Lets the child allocate `blocks` blocks of `mib` MiB each. */
static inline void peer_allocates(struct child *c, int blocks, unsigned mib) {
    char line[32];

    snprintf(line, sizeof line, "take %u", mib);
    for (int i = 0; i < blocks; i++)
        expect(c, line, "WEIR_OK");
}

/* Starts each of the listed children with these words. */
#define start_each(words, ...)                                                                     \
    for (struct child * each[] = {__VA_ARGS__, NULL}, **at = each; *at; at++)                      \
    start(*at, words)

struct figures {
    unsigned long long reserved, in_use, reclaims, received_mib, releases, released_mib,
        failed_requests, growths;
};

static inline struct figures figures_of(struct child *c) {
    struct figures f = {0};

    ask_peer(c, "figures");
    ck_assert_int_eq(sscanf(c->reply, "%llu %llu %llu %llu %llu %llu %llu %llu", &f.reserved,
                            &f.in_use, &f.reclaims, &f.received_mib, &f.releases, &f.released_mib,
                            &f.failed_requests, &f.growths),
                     8);
    return f;
}

static inline int exit_status_of_peer(struct child *c) {
    int status;

    ck_assert_int_eq(waitpid(c->pid, &status, 0), c->pid);
    fclose(c->to);
    fclose(c->from);
    for (int i = 0; i < MOST_CHILDREN; i++)
        if (living[i].pid == c->pid)
            living[i].pid = 0;
    c->pid = 0;
    return status;
}

static inline void end_by(struct child *c, int how) {
    int status;

    ck_assert_int_eq(kill(c->pid, how), 0);
    status = exit_status_of_peer(c);
    if (!WIFSIGNALED(status)) /* the process had exited before the signal */
        ck_abort_msg("a process failed: %d", WEXITSTATUS(status));
}

/* Returns the state letter of the process's first thread, from /proc. */
static inline char state_of(const struct child *c) {
    char path[64], text[256], *at;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)c->pid);
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    at = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    fclose(file);
    return at ? at[2] : '?';
}

/* Stops the process, and waits until it has stopped. */
static inline void stop(const struct child *c) {
    int status;

    ck_assert_int_eq(kill(c->pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(c->pid, &status, WUNTRACED), c->pid);
    ck_assert(WIFSTOPPED(status));
}

static inline void end_peer_child(struct child *c) {
    send_line(c, "end");
    ck_assert_int_eq(exit_status_of_peer(c), 0);
}

/* Makes the process reserve `mib` MiB of idle memory. */
static inline void fill_peer(struct child *c, unsigned mib) {
    peer_allocates(c, (int)mib / 64, 64);
    expect(c, "give", "WEIR_OK");
    ck_assert_uint_ge(figures_of(c).reserved, mib);
}

/* Starts a process with `mib` MiB of idle memory, and one that will need memory. */
static inline void start_beside(struct child *idle, unsigned mib, struct child *needy,
                                const char *words) {
    start(idle, "0");
    start(needy, "%s", words);
    fill_peer(idle, mib);
}

static inline void set_up_peers(void) {
    char path[128];
    FILE *file;

    make_folder("/tmp");
    snprintf(path, sizeof path, "%s/device", folder);
    ck_assert_int_eq(setenv("WEIR_MODEL_SHARED", path, 1), 0);
    snprintf(path, sizeof path, "%s/turns", folder);
    file = fopen(path, "w");
    fclose(file);
    signal(SIGPIPE, SIG_IGN);
}

/* Closes the input of the remaining children, which makes them exit. */
static inline void tear_down_peers(void) {
    int status;

    for (int i = 0; i < MOST_CHILDREN; i++)
        if (living[i].pid > 0) {
            kill(living[i].pid, SIGCONT);
            close(living[i].to);
            ck_assert_int_eq(waitpid(living[i].pid, &status, 0), living[i].pid);
            ck_assert(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
            living[i].pid = 0;
        }
    remove_folder();
}

static inline int registries(void) {
    char command[160];
    int status;

    snprintf(command, sizeof command, "ls %s | grep -q registry", folder);
    status = system(command);
    return status == 0;
}

/* Open the device's registry with a slot, or for reading only.  Both functions need an open driver. */
static inline void open_device_registry(struct weir_slot_file *registry) {
    char name[WEIR_UUID_BYTES];

    ck_assert(weir__process_peers_device(driver, 0, name));
    ck_assert_int_eq(weir__registry_open(registry, name), 0);
}

static inline void look_at_registry(struct weir_slot_file *registry) {
    char name[WEIR_UUID_BYTES];

    ck_assert(weir__process_peers_device(driver, 0, name));
    ck_assert_int_eq(weir__registry_view(registry, name), 0);
}

static const int kinds[] = {KIND_POOL, KIND_REGIONS, KIND_MAPPED};

#endif
