/* SPDX-License-Identifier: MIT */
/* trial.c: see trial.h.
 *
 * The small process has a pattern in device memory and asks about a stream all the time, as programs do: a thread that
 * asked while it is parked would make that fail.  If the trial takes too long, the process is killed, so no call about it waits
 * for ever.
 */
#include "cli/parking/trial.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/runfile.h"
#include "base/who.h"

enum { BYTES = 1 << 20, LIMIT_S = 60, LOCK_MS = 10000, NAME = 64, PATH = 512 };

/* ---- What has passed ---- */

/* Of the kernel's part, which changes with each release. */
static int path_of(const struct trial *trial, char path[PATH]) {
    char version[NAME] = "";
    FILE *file = fopen("/sys/module/nvidia/version", "re");

    if (file && !fgets(version, sizeof version, file))
        version[0] = '\0';
    if (file)
        fclose(file);
    for (char *at = version; *at; at++)
        if (!isalnum((unsigned char)*at) && *at != '.')
            *at = '\0';
    return weir__runfile_path(path, PATH, "parks-%s-%s", trial->driver,
                              version[0] ? version : "unknown");
}

static int has_passed(const struct trial *trial) {
    struct stat is;
    char path[PATH];
    int file = path_of(trial, path) == 0 ? weir__runfile_open(path, O_RDONLY) : -1, own;

    if (file < 0)
        return 0;
    own = weir__runfile_is_own(file, &is);
    close(file);
    return own;
}

/* If it cannot be noted, the next command tries again. */
static void note_passed(const struct trial *trial) {
    char path[PATH];
    int file = path_of(trial, path) == 0 ? weir__runfile_open(path, O_WRONLY | O_CREAT) : -1;

    if (file >= 0)
        close(file);
}

/* ---- The small process ---- */

struct small {
    const struct weir_driver *driver;
    CUcontext context;
    CUstream stream;
    CUdeviceptr block;
    unsigned char bytes[BYTES];
    CUresult result; /* of the last call */
};

static int good(struct small *small, CUresult result) {
    small->result = result;
    return result == CUDA_SUCCESS;
}

static unsigned char pattern(size_t i) {
    return (unsigned char)(i * 2654435761u >> 11);
}

static int make(struct small *small, const char *name) {
    struct weir_driver_failure failure;
    const struct weir_driver *d = weir__driver_open(name, &failure);

    small->driver = d;
    for (size_t i = 0; i < BYTES; i++)
        small->bytes[i] = pattern(i);
    return d && good(small, d->cuDevicePrimaryCtxRetain(&small->context, 0)) &&
           good(small, d->cuCtxPushCurrent(small->context)) &&
           good(small, d->cuStreamCreate(&small->stream, CU_STREAM_NON_BLOCKING)) &&
           good(small, d->cuMemAlloc(&small->block, BYTES)) &&
           good(small, d->cuMemcpyHtoDAsync(small->block, small->bytes, BYTES, small->stream)) &&
           good(small, d->cuStreamSynchronize(small->stream));
}

static int is_intact(struct small *small) {
    const struct weir_driver *d = small->driver;

    memset(small->bytes, 0, BYTES);
    if (d->cuMemcpyDtoHAsync(small->bytes, small->block, BYTES, small->stream) != CUDA_SUCCESS ||
        d->cuStreamSynchronize(small->stream) != CUDA_SUCCESS)
        return 0;
    for (size_t i = 0; i < BYTES; i++)
        if (small->bytes[i] != pattern(i))
            return 0;
    return 1;
}

/* Says 'r' once it is there, 'm' if the device has no memory for it, 'n' if something else fails; then 'y' or 'n' when
 * it is asked. */
static void be_tried(const char *driver, int from, int to) {
    static struct small small;
    struct pollfd asked = {.fd = from, .events = POLLIN};
    char answer;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    answer = make(&small, driver) ? 'r' : small.result == CUDA_ERROR_OUT_OF_MEMORY ? 'm' : 'n';
    if (write(to, &answer, 1) != 1 || answer != 'r')
        _exit(1);
    while (poll(&asked, 1, 0) == 0)
        (void)small.driver->cuStreamQuery(small.stream);
    answer = is_intact(&small) ? 'y' : 'n';
    _exit(write(to, &answer, 1) != 1);
}

int trial_begin(struct trial *trial, const char *driver, int again) {
    int down[2], up[2];

    *trial = (struct trial){.driver = driver, .to = -1, .from = -1};
    if (!again && has_passed(trial))
        return 0;
    if (pipe2(down, O_CLOEXEC) != 0)
        return -1;
    if (pipe2(up, O_CLOEXEC) != 0) {
        close(down[0]);
        close(down[1]);
        return -1;
    }
    fflush(NULL);
    trial->pid = fork();
    if (trial->pid == 0)
        be_tried(driver, down[0], up[1]);
    close(down[0]);
    close(up[1]);
    trial->to = down[1];
    trial->from = up[0];
    return trial->pid < 0 ? -1 : 0;
}

/* ---- The trial ---- */

void trial_give_up(struct trial *trial) {
    if (trial->pid <= 0)
        return;
    kill(trial->pid, SIGKILL);
    while (waitpid(trial->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    close(trial->to);
    close(trial->from);
    trial->pid = 0;
}

/* 0: nothing in time. */
static char hear(const struct trial *trial) {
    struct pollfd answer = {.fd = trial->from, .events = POLLIN};
    char word = 0;

    return poll(&answer, 1, LIMIT_S * 1000) == 1 && read(trial->from, &word, 1) == 1 ? word : 0;
}

static int try(const struct trial *trial, struct move *move) {
    static const char *const could[] = {"could not be parked: ", "could not be woken: "};
    char why[MOVES_WHY];

    for (int i = 0; i < 2; i++) {
        enum moved moved = i == 0 ? move_out(move) : move_back(move);

        if (moved == MOVED)
            continue;
        snprintf(why, sizeof why, "%s", moved == INTERRUPTED ? "interrupted" : move->why);
        snprintf(move->why, sizeof move->why, "%s%.400s", could[i], why);
        return 0;
    }
    snprintf(move->why, sizeof move->why, "has lost its memory, or died");
    return write(trial->to, "?", 1) == 1 && hear(trial) == 'y';
}

struct watch {
    pid_t pid;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int over;
};

static void *watch(void *argument) {
    struct watch *watch = argument;
    struct timespec end;
    int error = 0;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += LIMIT_S;
    pthread_mutex_lock(&watch->lock);
    while (!watch->over && !error)
        error = pthread_cond_timedwait(&watch->changed, &watch->lock, &end);
    if (!watch->over)
        kill(watch->pid, SIGKILL);
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

static int try_in_time(const struct trial *trial, struct move *move) {
    struct watch over = {trial->pid, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    pthread_t thread;
    int works;

    if (pthread_create(&thread, NULL, watch, &over) != 0) {
        snprintf(move->why, sizeof move->why, "has no thread that watches it");
        return 0;
    }
    works = try(trial, move);
    pthread_mutex_lock(&over.lock);
    over.over = 1;
    pthread_cond_signal(&over.changed);
    pthread_mutex_unlock(&over.lock);
    pthread_join(thread, NULL);
    return works;
}

int trial_end(struct trial *trial, const struct weir_driver *driver, char why[MOVES_WHY]) {
    struct move move = {.driver = driver, .pid = trial->pid, .timeout_ms = LOCK_MS};
    int works = 0;
    char word;

    if (trial->pid == 0)
        return 1;
    word = hear(trial);
    trial->is_full = word == 'm';
    if (word != 'r') {
        snprintf(move.why, sizeof move.why, "could not be made%s",
                 trial->is_full ? ": device 0 has no memory for it" : "");
    } else {
        move.start = weir__process_start(trial->pid);
        works = try_in_time(trial, &move);
    }
    trial_give_up(trial);
    if (works)
        note_passed(trial);
    else
        snprintf(why, MOVES_WHY, "the trial, a small process of weir's, %.450s", move.why);
    return works;
}
