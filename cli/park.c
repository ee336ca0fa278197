/* SPDX-License-Identifier: MIT */
/* park.c: `weir park' and `weir wake': a process's device memory goes to host memory, and back.
 *
 * Everything that may be wrong is looked for first, since a restore that fails cannot be undone.
 *
 * Must not know: how a process is parked (cli/parking).
 */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/parking/asking.h"
#include "cli/parking/moves.h"
#include "cli/parking/record.h"
#include "cli/parking/room.h"
#include "cli/parking/target.h"
#include "cli/parking/trial.h"

#define DRIVER "cuda"
/* How long a process that is to wake waits for room on the device. */
#define ROOM_NS UINT64_C(15000000000)

enum { LIST_KEY = 0x5001, TEST_KEY, UNSHARED_KEY, MEMORY_KEY, SIZE_TEXT = 32, COMMAND_TEXT = 60 };

static struct command {
    const char *by; /* "weir park" */
    const char *process;
    unsigned timeout_ms;
    uint64_t memory; /* that the process has of devices at most; 0: not said */
    int list, test, unshared;
} command;

static int fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s: %s\n", command.by, what, why);
    return 1;
}

/* "12345 (python train.py)" */
static const char *name_of(const struct target *target) {
    static char name[COMMAND_TEXT + 32];

    snprintf(name, sizeof name, "%ld (%.*s)", (long)target->pid, COMMAND_TEXT, target->command);
    return name;
}

static const char *size_text(uint64_t bytes, char text[SIZE_TEXT]) {
    weir__bytes_show(bytes, text, SIZE_TEXT);
    return text;
}

static int written(void) {
    return weir_cli_written() ? 0 : 1;
}

/* ---- The driver ---- */

/* NULL, with a message: none that can. */
static const struct weir_driver *open_driver(void) {
    struct weir_driver_failure failure;
    const struct weir_driver *driver = weir__driver_open(DRIVER, &failure);
    char why[160];

    if (!driver) {
        (void)fail("no driver", failure.text);
        return NULL;
    }
    if (driver->capabilities & WEIR_CAP_CHECKPOINT)
        return driver;
    snprintf(why, sizeof why,
             "it is for CUDA %d.%d; CUDA 12.8 (driver 570) is the first that can park a process",
             driver->version / 1000, driver->version % 1000 / 10);
    (void)fail("the driver", why);
    return NULL;
}

/* Opened, and tried unless it has passed before. */
static const struct weir_driver *open_tried(int again) {
    char why[MOVES_WHY];
    const struct weir_driver *driver;
    struct trial trial;

    if (trial_begin(&trial, DRIVER, again) != 0) {
        (void)fail("the trial", strerror(errno));
        return NULL;
    }
    driver = open_driver();
    if (!driver)
        trial_give_up(&trial);
    else if (!trial_end(&trial, driver, why)) {
        if (again || !trial.is_full) {
            (void)fail("nothing is parked", why);
            return NULL;
        }
        fprintf(stderr, "%s: this driver was not tried before: device 0 has no memory for it\n",
                command.by);
    }
    return driver;
}

/* ---- The commands ---- */

static int end_of(enum moved moved, const struct target *target, const struct move *move,
                  const char *done) {
    char bytes[SIZE_TEXT];

    if (moved == NOT_MOVED)
        return fail(name_of(target), move->why);
    if (moved == INTERRUPTED)
        return fail(name_of(target), "interrupted; nothing has changed");
    if (move->bytes)
        printf("%s: %s, %s, %.1f s\n", name_of(target), done, size_text(move->bytes, bytes),
               (double)move->ns / 1e9);
    else
        printf("%s: %s, %.1f s\n", name_of(target), done, (double)move->ns / 1e9);
    return written();
}

static int park(void) {
    const struct weir_driver *driver;
    char why[TARGET_WHY], lacks[ROOM_WHY];
    struct target target;
    struct move move;

    if (!target_find(command.process, 0, &target, why))
        return fail(command.process, why);
    if (!target_may_park(&target, command.unshared, why))
        return fail(name_of(&target), why);
    driver = open_tried(0);
    if (!driver)
        return 1;
    if (!room_for(driver, target.pid, command.memory, lacks))
        return fail(name_of(&target), lacks);
    move = (struct move){.driver = driver,
                         .pid = target.pid,
                         .start = target.start,
                         .timeout_ms = command.timeout_ms};
    return end_of(move_out(&move), &target, &move, "parked");
}

/* If the device is full others are asked for memory, and those that are idle are parked if they may be. */
static enum moved move_back_with_room(struct move *move) {
    uint64_t until = weir__clock_ns() + ROOM_NS;
    enum moved moved = move_back(move);
    struct asking asking = {0};

    while (moved == NOT_MOVED && move->is_full && weir__clock_ns() < until && !interrupt_came()) {
        asking_ask(&asking, move->driver, move->bytes + MOVES_BESIDE, 1);
        nanosleep(&(struct timespec){0, 200000000}, NULL);
        moved = move_back(move);
    }
    asking_end(&asking);
    return moved;
}

static int wake(void) {
    const struct weir_driver *driver;
    char why[TARGET_WHY];
    struct target target;
    struct move move;

    if (!target_find(command.process, 1, &target, why))
        return fail(command.process, why);
    if (!target_has_cuda(&target))
        return fail(name_of(&target), "it is not parked: it has not loaded CUDA's driver");
    driver = open_driver();
    if (!driver)
        return 1;
    move = (struct move){.driver = driver, .pid = target.pid, .start = target.start};
    return end_of(move_back_with_room(&move), &target, &move, "awake");
}

static void print_record(const struct record *record, void *count) {
    char bytes[SIZE_TEXT], words[WEIR_COMMAND_BYTES];

    if (++*(int *)count == 1)
        printf("%9s %10s  %s\n", "PID", "MEMORY", "COMMAND");
    weir__process_command_of(record->pid, words, sizeof words);
    for (char *at = words; *at; at++)
        if ((unsigned char)*at < ' ' || (unsigned char)*at > '~')
            *at = '?';
    printf("%9ld %10s  %s\n", (long)record->pid,
           record->bytes ? size_text(record->bytes, bytes) : "-", words);
}

static int list(void) {
    int count = 0;

    record_each(print_record, &count);
    if (count == 0)
        puts("no process is parked");
    return written();
}

static int test(void) {
    if (!open_tried(1))
        return 1;
    puts("this driver parks and wakes processes");
    return written();
}

/* ---- The command line ---- */

static unsigned read_timeout(const char *text, struct argp_state *state) {
    struct weir_problem problem;
    const char *end;
    double seconds;

    if (!weir__factor_read(text, &end, &seconds, &problem) || *end || seconds < 0.001 ||
        seconds > 86400)
        argp_error(state, "--timeout '%s': expected seconds, from 0.001 to 86400", text);
    return (unsigned)(seconds * 1000);
}

static uint64_t read_memory(const char *text, struct argp_state *state) {
    struct weir_problem problem;
    uint64_t bytes;

    if (!weir__size_read(text, &bytes, &problem) || bytes == 0)
        argp_error(state, "--memory '%s': expected a size, such as 12GiB", text);
    return bytes;
}

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    switch (key) {
    case LIST_KEY:
        command.list = 1;
        return 0;
    case TEST_KEY:
        command.test = 1;
        return 0;
    case UNSHARED_KEY:
        command.unshared = 1;
        return 0;
    case MEMORY_KEY:
        command.memory = read_memory(argument, state);
        return 0;
    case 't':
        command.timeout_ms = read_timeout(argument, state);
        return 0;
    case ARGP_KEY_ARG:
        if (command.process)
            argp_error(state, "unexpected argument '%s': one process at a time", argument);
        if (!target_is_name(argument))
            argp_error(state, "process '%s': expected the number of a process, or a name",
                       argument);
        command.process = argument;
        return 0;
    case ARGP_KEY_END:
        if (!command.process && !command.list && !command.test)
            argp_error(state, "which process?  Give its number or its name");
        if (command.list + command.test + (command.process != NULL) > 1)
            argp_error(state, "give a process, --list or --test, and only one of them");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const char park_doc[] =
    "Moves all device memory of a process to host memory and stops the process, so that others "
    "have the device.  `weir wake' brings it back, at the same addresses.\vThe program needs no "
    "change, and need not run under weir.  PROCESS is a number, or a name: a word of the command "
    "of a process that has loaded CUDA.  weir park waits until the work that the process has "
    "submitted is done.  The first time, it tries a small process of its own.\n\n"
    "Refused are processes of other users, stopped ones, those that have loaded NCCL, and those "
    "that a process with CUDA started, or that started one: the driver cannot restore memory that "
    "processes share.  weir park does not see other sharing by CUDA IPC.  It does not move managed "
    "memory.\n\nExit code: 0 it is parked; 1 it is not, "
    "and goes on as before; 2 usage.";

static const char wake_doc[] =
    "Brings the device memory of a parked process back, at the same addresses, and has the process "
    "go on.\vPROCESS is a number, or a name: a word of the command of a parked process.  If the "
    "device has too little free memory, weir asks other processes for idle memory.  If that "
    "does not suffice, the process stays parked.  weir wake also mends what a "
    "killed `weir park' or `weir wake' has left.\n\nExit code: 0 it goes on; 1 it does not; 2 "
    "usage.";

int weir_cmd_park(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"timeout", 't', "S", 0, "Wait S seconds for work that the process has submitted (30).", 0},
        {"memory", MEMORY_KEY, "SIZE", 0,
         "Assume that the process has SIZE of device memory, as nvidia-smi shows it.  Else host "
         "memory must have room for all that is used of the devices, but for what other processes "
         "under weir have.",
         0},
        {"unshared", UNSHARED_KEY, NULL, 0,
         "Park the process although it has loaded NCCL, as PyTorch always does, or a process with "
         "CUDA started it, or it started one.  It must share no device memory with others.",
         0},
        {"list", LIST_KEY, NULL, 0, "List the parked processes.", 0},
        {"test", TEST_KEY, NULL, 0,
         "Only try whether the driver parks and wakes a small process of weir's.", 0},
        {0}};
    struct argp argp = {options, parse_argument, "PROCESS\n--list\n--test", park_doc, NULL, NULL,
                        NULL};

    command = (struct command){.by = "weir park", .timeout_ms = 30000};
    if (weir_cli_parse(&argp, argc, argv, 0, NULL) != 0)
        return 2;
    if (command.list)
        return list();
    interrupt_watch();
    return command.test ? test() : park();
}

int weir_cmd_wake(int argc, char **argv) {
    static const struct argp_option options[] = {{0}};
    struct argp argp = {options, parse_argument, "PROCESS", wake_doc, NULL, NULL, NULL};

    command = (struct command){.by = "weir wake"};
    if (weir_cli_parse(&argp, argc, argv, 0, NULL) != 0)
        return 2;
    interrupt_watch();
    return wake();
}
