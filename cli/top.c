/* SPDX-License-Identifier: MIT */
/* top.c: `weir top': shows the programs that run under `weir run', while they run.
 *
 * A program writes its figures into a segment of shared memory (lib/ipc/segment.h, lib/api/show.h), and stops a few
 * seconds after the last read.  weir top reads the segments every READ_INTERVAL_NS.  On a terminal, it draws on the
 * alternate screen, with escape sequences that all terminals support.
 *
 * This file must not depend on the meaning of the figures.
 */
#include <argp.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/progress.h"
#include "cli/groups.h"
#include "cli/top_view.h"
#include "ipc/group.h"

/* The time between two reads of the programs' figures.  It must be short: a program stops writing its figures a few
 * seconds after the last read. */
#define READ_INTERVAL_NS UINT64_C(500000000)
/* The pause after the first read, in which programs begin to write their figures. */
#define ANSWER_NS UINT64_C(50000000)
/* The longest time for which weir top waits for a program's first figures. */
#define LATE_NS UINT64_C(2000000000)

enum { MAX_CHOSEN = 64 };

static struct command {
    struct top top;
    pid_t chosen[MAX_CHOSEN];
    size_t chosen_count;
    uint64_t interval_ns;
    int once, json, has_interval;
    int has_screen;
    int first; /* the first line of the table in the window, from 0 on, without the title lines */
    int page;          /* the number of lines by which a page key scrolls */
    const char *group; /* the process group to show, or NULL to show all programs */
    /* A buffer for the figures of one program; static, because it is large. */
    struct weir_show read;
} command;

static volatile sig_atomic_t has_to_end;

static int fail_top(const char *what, const char *why) {
    fprintf(stderr, "weir top: %s: %s\n", what, why);
    return 1;
}

/* ---- programs that run --------------------------------------------------------------------------- */

static int is_chosen(pid_t pid) {
    for (size_t i = 0; i < command.chosen_count; i++)
        if (command.chosen[i] == pid)
            return 1;
    return command.chosen_count == 0;
}

static struct top_program *find_program(const struct weir_segment_name *name) {
    struct top *top = &command.top;
    struct top_program **more, *p;

    for (size_t i = 0; i < top->count; i++) {
        p = top->programs[i];
        if (p->name.pid == name->pid && p->name.start == name->start)
            return p;
    }
    p = calloc(1, sizeof *p);
    more = p ? realloc(top->programs, (top->count + 1) * sizeof(struct top_program *)) : NULL;
    if (!more) {
        free(p);
        return NULL;
    }
    top->programs = more;
    top->programs[top->count++] = p;
    p->name = *name;
    return p;
}

/* Shows a message under the table on the terminal.  Without such a table, prints the message to standard error. */
static void print_top_message(const char *what, const char *why) {
    snprintf(command.top.message, sizeof command.top.message, "%s %s", what, why);
    if (!command.has_screen)
        fprintf(stderr, "weir top: %s\n", command.top.message);
}

static void read_segment(const struct weir_segment_name *name, void *unused) {
    struct top_program *p = is_chosen(name->pid) ? find_program(name) : NULL;

    (void)unused;
    if (!p || p->is_running)
        return;
    p->fault = weir__segment_read(name->path, &weir__show_kind, &command.read);
    p->is_running = p->fault != WEIR_SEGMENT_GONE;
    if (p->fault == WEIR_SEGMENT_NONE) {
        weir__show_check(&command.read, weir__clock_ns());
        p->now = command.read;
        p->has_now = 1;
    } else if (p->is_running && p->fault != WEIR_SEGMENT_NOT_YET && !p->is_fault_reported) {
        print_top_message(name->path, weir__segment_fault_text(p->fault));
        p->is_fault_reported = 1;
    }
}

/* Removes programs that have ended from the list, and shows a message for each of them. */
static void remove_ended_programs(void) {
    struct top *top = &command.top;
    char name[160];
    size_t kept = 0;

    for (size_t i = 0; i < top->count; i++) {
        struct top_program *p = top->programs[i];

        if (p->is_running) {
            top->programs[kept++] = p;
            continue;
        }
        top_name(p, name, sizeof name);
        print_top_message(name, "has ended");
        free(p);
    }
    top->count = kept;
}

static void read_programs(void) {
    static int queries;

    holders_query(&command.top.holders, queries++ == 0 ? ANSWER_NS / 4 : 0);
    for (size_t i = 0; i < command.top.count; i++)
        command.top.programs[i]->is_running = 0;
    weir__segment_each(&weir__show_kind, read_segment, NULL);
    remove_ended_programs();
    command.top.now_ns = weir__clock_ns();
}

/* Copies the figures of all programs, so that the next rates can be computed from the changes since this call. */
static void store_earlier_figures(void) {
    for (size_t i = 0; i < command.top.count; i++) {
        struct top_program *p = command.top.programs[i];

        if (p->has_now && (!p->has_before || p->now.time_ns > p->before.time_ns)) {
            p->before = p->now;
            p->has_before = 1;
        }
    }
}

/* Returns 1 if each program has reported its figures twice, so that rates can be computed; else 0. */
static int has_rates(void) {
    int all = 1;

    for (size_t i = 0; i < command.top.count; i++) {
        struct top_program *p = command.top.programs[i];

        if (p->has_now && !p->has_before) {
            p->before = p->now;
            p->has_before = 1;
        }
        all &= p->has_now ? p->now.time_ns > p->before.time_ns : p->fault != WEIR_SEGMENT_NOT_YET;
    }
    return all;
}

/* ---- the terminal -------------------------------------------------------------------------------- */

static struct termios as_it_was;
static int has_keys; /* set if standard input is a terminal, from which keys are read */

static void end_screen(void) {
    command.has_screen = 0;
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    if (has_keys)
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &as_it_was);
}

/* Switches the terminal to the alternate screen, turns echo off, and makes each key arrive at once.  Turns ^Z off,
 * because a stopped weir top would leave the terminal in this state. */
static void begin_screen(void) {
    struct termios raw;

    has_keys = tcgetattr(STDIN_FILENO, &as_it_was) == 0;
    if (has_keys) {
        raw = as_it_was;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 0;
        raw.c_cc[VTIME] = 0;
        raw.c_cc[VSUSP] = _POSIX_VDISABLE;
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
    }
    fputs("\033[?1049h\033[?25l", stdout);
    command.has_screen = 1;
}

/* The lines at the top of the table that do not scroll: the title, and the names of the columns. */
enum { HEAD = 2 };

/* Draws the first line of the text, cut to the width of the window.  Returns the text after this line. */
static const char *draw_line(const char *text, int columns) {
    size_t length = strcspn(text, "\n");

    printf("%.*s\033[K\n", length < (size_t)columns ? (int)length : columns - 1, text);
    return text + length + (text[length] != '\0');
}

/* Draws as much of the table as fits into the window, from line command.first on, then the message and the list of
 * keys. */
static void draw_lines(const char *text) {
    int columns, lines, foot = command.top.message[0] ? 2 : 1, total = -HEAD, last;
    char keys[128];

    terminal_size(STDOUT_FILENO, &columns, &lines);
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        total++;
    command.page = lines - HEAD - foot > 1 ? lines - HEAD - foot : 1;
    last = total > command.page ? total - command.page : 0;
    command.first = command.first < 0 ? 0 : command.first > last ? last : command.first;
    fputs("\033[H", stdout);
    for (int line = 0; line < lines - foot; line++) {
        for (int i = 0; line == HEAD && i < command.first; i++)
            text = strchr(text, '\n') + 1;
        text = draw_line(text, columns);
    }
    if (foot > 1)
        (void)draw_line(command.top.message, columns);
    snprintf(keys, sizeof keys, "q ends, s sorts (by %s), arrows and page keys scroll (%d of %d)",
             top_order_name(command.top.order), command.first + 1, last + 1);
    printf("%.*s\033[K", columns - 1, keys);
    fflush(stdout);
}

static int draw_screen(void) {
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    if (!file)
        return fail_top("the table", strerror(errno));
    top_print(file, &command.top);
    if (fclose(file) != 0) {
        free(text);
        return fail_top("the table", strerror(errno));
    }
    draw_lines(text);
    free(text);
    return 0;
}

/* ---- turns --------------------------------------------------------------------------------------- */

static void on_signal(int number) {
    if (number != SIGWINCH) /* after a change of the window's size, weir top only draws again */
        has_to_end = 1;
}

static void watch_signals(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        /* With SA_RESTART, a write(2) does not fail when the size of the window changes. */
        action.sa_flags = numbers[i] == SIGWINCH ? SA_RESTART : 0;
        (void)sigaction(numbers[i], &action, NULL);
    }
}

/* Handles pressed keys.  An arrow key sends ESC [ A or ESC O A, for example; a page key sends ESC [ 5 ~.  Returns 1 if
 * a key ends weir top, 0 if not. */
static int handle_keys(const char *key, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (key[i] == 'q' || key[i] == 'Q')
            return 1;
        if (key[i] == 's')
            command.top.order = (command.top.order + 1) % TOP_ORDERS;
        if (key[i] != '\033' || i + 2 >= count)
            continue;
        i += 2;
        command.first += key[i] == 'A'   ? -1
                         : key[i] == 'B' ? 1
                         : key[i] == '5' ? -command.page
                         : key[i] == '6' ? command.page
                                         : 0;
    }
    return 0;
}

/* Waits for `ns' nanoseconds, or until a key is pressed or the size of the window changes.  Returns 1 if a key ends
 * weir top, 0 if not. */
static int wait_for_key(uint64_t ns) {
    struct pollfd keys = {.fd = STDIN_FILENO, .events = POLLIN};
    char key[64];
    ssize_t got;

    if (has_to_end)
        return 1;
    if (poll(&keys, command.has_screen && has_keys ? 1 : 0, (int)((ns + 999999) / 1000000)) < 1)
        return has_to_end;
    got = read(STDIN_FILENO, key, sizeof key);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN))
        has_keys = 0; /* the terminal has been closed */
    return has_to_end || (got > 0 && handle_keys(key, (size_t)got));
}

/* Prints a JSON object on one line, and releases the reference.  Returns 0 on success, 1 on failure. */
static int print_json(json_t *object) {
    int failed = !object || json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12)) != 0;

    json_decref(object);
    return failed || putchar('\n') == EOF;
}

static int show_once(void) {
    static int hinted;
    int failed = 0;

    top_sort(&command.top);
    if (command.json)
        failed = print_json(top_json(&command.top));
    else if (command.has_screen)
        return draw_screen();
    else
        top_print(stdout, &command.top);
    if (!command.json && command.top.count > 0 && !hinted++)
        puts("which functions hold memory: weir record --callers");
    if (failed || fflush(stdout) != 0 || ferror(stdout))
        return fail_top("standard output", strerror(errno));
    return 0;
}

/* Reads the programs' figures until the time `when'.  Returns 0, or 1 after a key or signal, or 2 if all programs of
 * --pid have ended. */
static int watch_until(uint64_t when) {
    for (uint64_t now = weir__clock_ns(); now < when; now = weir__clock_ns()) {
        if (wait_for_key(when - now < READ_INTERVAL_NS ? when - now : READ_INTERVAL_NS))
            return 1;
        read_programs();
        if (command.chosen_count > 0 && command.top.count == 0)
            return 2;
        if (command.has_screen && weir__clock_ns() < when &&
            /* Draws the table again after a key, or after a change of the window's size. */
            show_once() != 0)
            return 1;
    }
    return 0;
}

/* Checks that all programs of --pid run under weir run.  Returns 0 if so.  Otherwise prints a message and returns 1. */
static int check_chosen(void) {
    int failed = 0;
    char pid[16];

    for (size_t i = 0; i < command.chosen_count; i++) {
        int found = 0;

        for (size_t p = 0; p < command.top.count; p++)
            found |= command.top.programs[p]->name.pid == command.chosen[i] &&
                     !command.top.programs[p]->is_fault_reported;
        snprintf(pid, sizeof pid, "%ld", (long)command.chosen[i]);
        if (!found)
            failed =
                fail_top(pid, "no program under `weir run', or it has not requested memory yet");
    }
    return failed;
}

static int watch_programs(void) {
    uint64_t next = weir__clock_ns();
    int over;

    do {
        if (command.has_screen && show_once() != 0)
            return 1;
        store_earlier_figures();
        next += command.interval_ns;
        over = watch_until(next);
        for (uint64_t late = next + LATE_NS;
             command.once && !over && !has_rates() && weir__clock_ns() < late;)
            over = watch_until(weir__clock_ns() + ANSWER_NS);
        if (over == 1 || (over == 2 && !command.once))
            return 0;
        if (!command.has_screen && show_once() != 0)
            return 1;
    } while (!command.once && !over);
    return 0;
}

static int watch_on_screen(void) {
    int failed;

    begin_screen();
    failed = watch_programs();
    end_screen();
    if (command.chosen_count > 0 && command.top.count == 0)
        fprintf(stderr, "weir top: %s\n", command.top.message);
    return failed;
}

static int run_top(void) {
    int can_draw = !command.json && !command.once && terminal_can_draw(STDOUT_FILENO);

    if (!can_draw && !command.has_interval)
        command.once = 1;
    watch_signals();
    read_programs();
    if (check_chosen() != 0)
        return 1;
    if (command.once && command.top.count == 0)
        return show_once(); /* with --once, weir top does not wait for a program to start */
    if (watch_until(weir__clock_ns() + ANSWER_NS) != 0)
        return 0;
    return can_draw ? watch_on_screen() : watch_programs();
}

/* ---- the command line ---------------------------------------------------------------------------- */

static void read_interval_flag(struct argp_state *state, const char *flag, const char *text,
                               void *field) {
    struct weir_problem problem;
    const char *end;
    double seconds;

    if (!weir__factor_read(text, &end, &seconds, &problem) || *end || seconds < 0.1 ||
        seconds > 86400)
        argp_error(state, "%s '%s': expected seconds, from 0.1 to 86400", flag, text);
    *(uint64_t *)field = (uint64_t)(seconds * 1e9);
    command.has_interval = 1;
}

static void read_pid_flag(struct argp_state *state, const char *flag, const char *text,
                          void *chosen) {
    struct weir_problem problem;
    uint64_t pid;

    if (!weir__count_read(text, INT32_MAX, &pid, &problem) || pid == 0)
        argp_error(state, "%s '%s': expected the number of a process", flag, text);
    if (command.chosen_count == MAX_CHOSEN)
        argp_error(state, "%s: no more than %d", flag, MAX_CHOSEN);
    ((pid_t *)chosen)[command.chosen_count++] = (pid_t)pid;
}

static int show_group(void) {
    int failed = command.json && print_json(group_json(command.group));

    if (!command.json)
        group_print(stdout, command.group);
    return !weir_cli_flush_output() || failed;
}

/* Shows the process group once, or, with --interval, repeatedly until it has no members.  Returns the exit code. */
static int watch_group(void) {
    uint64_t next = weir__clock_ns();

    if (!weir__group_is_name(command.group)) {
        fprintf(stderr,
                "weir top: --group '%s': not a name; expected up to 32 letters, digits, '.', '_' "
                "or '-'\n",
                command.group);
        return 2;
    }
    if (!group_exists(command.group))
        return fail_top(command.group, "no process of this user is in that group; weir run --group "
                                       "NAME --group-limit AMOUNT starts one");
    watch_signals();
    do {
        if (show_group() != 0)
            return 1;
        next += command.interval_ns;
    } while (command.has_interval && !command.once && !watch_until(next) &&
             group_exists(command.group));
    return 0;
}

static const struct weir_cli_flag flags[] = {
    {"once", 0, NULL, weir_cli_read_switch, offsetof(struct command, once),
     "Print one table, with the rates of one interval."},
    {"interval", 'i', "S", read_interval_flag, offsetof(struct command, interval_ns),
     "Wait S seconds between two tables (1)."},
    {"pid", 'p', "P", read_pid_flag, offsetof(struct command, chosen),
     "Show only this process, until it ends; may be given several times."},
    {"group", 0, "NAME", weir_cli_read_text, offsetof(struct command, group),
     "Show the process group NAME: its limit, and the memory of each member."},
    {"json", 0, NULL, weir_cli_read_switch, offsetof(struct command, json),
     "Print each table as a JSON object on one line."},
    {0}};

static error_t parse_top_argument(int key, char *argument, struct argp_state *state) {
    if (key != ARGP_KEY_ARG)
        return weir_cli_read_flag(flags, key, argument, state);
    argp_error(state, "unexpected argument '%s'", argument);
    return EINVAL;
}

static const char doc[] =
    "Shows this user's programs that run under `weir run': memory that they have reserved and use "
    "on each device, requests, and pool growth.\vOn a terminal weir top redraws the table until "
    "you press q; s sorts it by another column, and arrows and page keys scroll.  Elsewhere it "
    "prints the table once, or once in each interval with --interval.  Rates are those of the last "
    "interval.";

int weir_cmd_top(int argc, char **argv) {
    struct argp argp = {
        .options = weir_cli_options(flags), .parser = parse_top_argument, .doc = doc};

    command.interval_ns = 1000000000;
    if (weir_cli_parse(&argp, argc, argv, 0, &command) != 0)
        return 2;
    return command.group ? watch_group() : run_top();
}
