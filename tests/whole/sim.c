/* SPDX-License-Identifier: MIT */
/* sim.c: deterministic simulation of an allocator, world after world, for a number of seconds or operations.
 *
 *     tests/whole/sim [--seconds N|--total N] [--seed N] [--operations N] [--jobs N] [--brief]
 *                                      plays worlds for N seconds, or until they had N operations
 *     tests/whole/sim --seed N --story       plays one world and prints every operation
 *     tests/whole/sim --script FILE          plays a script, as a failure leaves one
 *     tests/whole/sim --digest N [--seed N] [--operations N] [--jobs N]
 *                                      plays N worlds and prints a digest of their driver calls
 *     tests/whole/sim --calls --seed N       plays one world and prints its driver calls
 *
 * A seed decides everything: the world (sim_world.c) and its words.  A seed that fails a build fails it again,
 * since addresses are not randomised and time is the model's.  The program then shortens the script (not with --brief):
 * it leaves out words as long as the rest still fails, and writes the rest to sim-SEED.script.
 *
 * Child processes play the worlds, so that a crash or a hang counts as a failure.  The parent never opens the model,
 * which would not outlive a fork.
 *
 * Must not know: what a word does. */
#include "sim.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver/model/model.h"

enum { WORLDS_A_CHILD = 64, MOST_JOBS = 64, PATIENCE_S = 60, SHORT_PATIENCE_S = 10 };

struct settings {
    uint64_t seconds, total, seed, operations, jobs, digest;
    int story, brief, calls;
    const char *script;
};

/* Replaces the clock by which the library decides which thread keeps a lock, since the script must decide this. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    static _Atomic uint64_t reads;
    uint64_t ns = weir__model_now_ns() + atomic_fetch_add(&reads, 1);

    (void)clock;
    now->tv_sec = (time_t)(ns / 1000000000);
    now->tv_nsec = (long)(ns % 1000000000);
    return 0;
}

static void *need(void *memory) {
    if (!memory) {
        fputs("sim: out of memory\n", stderr);
        exit(2);
    }
    return memory;
}

static struct sim_report *make_report(void) {
    void *memory = mmap(NULL, sizeof(struct sim_report), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return need(memory == MAP_FAILED ? NULL : memory);
}

/* Makes the script of a seed, whose words the caller frees.  One script in eight is long, since an allocator works
 * otherwise after a steady while. */
static struct sim_script make_script(const struct settings *s, uint64_t seed) {
    size_t count = s->operations * (sim_mix(seed) % 8 ? 1 : 8);
    uint64_t *words = need(calloc(count, sizeof *words));

    for (size_t i = 0; i < count; i++)
        words[i] = sim_mix(sim_mix(seed) + i * UINT64_C(0x9e3779b97f4a7c15));
    return (struct sim_script){.seed = seed,
                               .words = words,
                               .count = count,
                               .is_followed = s->digest || s->calls,
                               .calls = s->calls ? stdout : NULL};
}

/* ---- Children ---- */

struct child {
    pid_t pid;
    struct sim_report *report;
    uint64_t seen, seen_s; /* its operation at the last look, and when it last changed */
};

/* Plays a child's worlds, and ends with 0 if all pass. */
static void play_worlds(const struct settings *s, struct sim_report *report, uint64_t first,
                        uint64_t step) {
    for (uint64_t i = 0; i < WORLDS_A_CHILD; i++) {
        struct sim_script script = make_script(s, first + i * step);

        atomic_store(&report->seed, script.seed);
        sim_play(&script, report, NULL);
        free(script.words);
    }
    _exit(0);
}

/* Writes the reason for a child's end to its report.  Returns 1 if the child failed, else 0. */
static int child_has_failed(struct sim_report *report, int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (!report->failure[0] && WIFSIGNALED(status))
        snprintf(report->failure, sizeof report->failure, "%s at word %llu of seed %llu",
                 WTERMSIG(status) == SIGKILL ? "hangs" : strsignal(WTERMSIG(status)),
                 (unsigned long long)atomic_load(&report->at),
                 (unsigned long long)atomic_load(&report->seed));
    if (!report->failure[0])
        snprintf(report->failure, sizeof report->failure, "ends with %d", WEXITSTATUS(status));
    return 1;
}

/* Plays one script in a child.  Returns 1 if it fails, else 0. */
static int fails(const struct sim_script *script, struct sim_report *report, FILE *story) {
    time_t from = time(NULL);
    int status;
    pid_t pid;

    report->failure[0] = '\0';
    atomic_store(&report->seed, script->seed);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        sim_play(script, report, story);
        fflush(NULL);
        _exit(0);
    }
    while (waitpid(pid, &status, WNOHANG) == 0) {
        usleep(200);
        if (time(NULL) - from > SHORT_PATIENCE_S)
            kill(pid, SIGKILL);
    }
    return child_has_failed(report, status);
}

/* ---- A failure ---- */

/* Leaves out words as long as the script still fails.  Returns the number of words left. */
static size_t shorten(uint64_t seed, uint64_t *words, size_t count, struct sim_report *report) {
    uint64_t *fewer = need(calloc(count, sizeof *fewer));

    for (size_t part = count / 2; part > 0; part /= 2)
        for (size_t at = 0; at < count;) {
            size_t gone = part < count - at ? part : count - at;
            struct sim_script script = {.seed = seed, .words = fewer, .count = count - gone};

            memcpy(fewer, words, at * sizeof *words);
            memcpy(fewer + at, words + at + gone, (count - at - gone) * sizeof *words);
            if (fails(&script, report, NULL)) {
                count -= gone;
                memcpy(words, fewer, count * sizeof *words);
            } else {
                at += gone;
            }
        }
    free(fewer);
    return count;
}

/* Plays a failing seed again, shortens its script, and writes the rest to a file. */
static void explain(const struct settings *s, uint64_t seed, const char *why) {
    struct sim_report *report = make_report();
    struct sim_script script;
    uint64_t *words;
    size_t before;
    char name[64];
    FILE *file;

    fprintf(stderr, "# seed %llu fails: %s\n", (unsigned long long)seed, why);
    if (s->brief)
        return;
    script = make_script(s, seed);
    words = script.words;
    before = script.count;
    if (!fails(&script, report, NULL)) {
        fputs("# but not a second time\n", stderr);
        return;
    }
    script.count = shorten(seed, words, before, report);
    snprintf(name, sizeof name, "sim-%llu.script", (unsigned long long)seed);
    file = fopen(name, "we");
    if (!file)
        file = stderr;
    fprintf(file, "# seed %llu\n# ", (unsigned long long)seed);
    sim_describe(seed, file);
    (void)fails(&script, report, file);
    if (file != stderr)
        fclose(file);
    fprintf(stderr, "# %zu words of %zu will do: tests/whole/sim --script %s\n# %s\n", script.count,
            before, name, report->failure);
    free(words);
}

/* ---- Whole runs ---- */

static void start_sim_child(const struct settings *s, struct child *child, uint64_t first) {
    fflush(NULL);
    child->report->failure[0] = '\0';
    child->seen = UINT64_MAX;
    child->pid = fork();
    if (child->pid == 0)
        play_worlds(s, child->report, first, s->jobs);
    if (child->pid < 0) {
        perror("sim: fork");
        exit(2);
    }
}

/* Kills a child that makes no progress. */
static void look_after(struct child *child) {
    uint64_t now = (uint64_t)time(NULL);
    uint64_t at = atomic_load(&child->report->at) + (atomic_load(&child->report->worlds) << 32);

    if (at != child->seen) {
        child->seen = at;
        child->seen_s = now;
    } else if (now - child->seen_s > PATIENCE_S) {
        kill(child->pid, SIGKILL);
    }
}

static uint64_t operations_of(const struct settings *s, const struct child *children) {
    uint64_t operations = 0;

    for (uint64_t j = 0; j < s->jobs; j++)
        operations += atomic_load(&children[j].report->operations);
    return operations;
}

static void summarise(const struct settings *s, const struct child *children, int good) {
    static const char *const names[] = {
#define SIM_COUNT(name, words) words,
        SIM_COUNTS(SIM_COUNT)
#undef SIM_COUNT
    };
    uint64_t operations = operations_of(s, children), worlds = 0, counts[SIM_COUNT_COUNT] = {0};

    for (uint64_t j = 0; j < s->jobs; j++) {
        worlds += atomic_load(&children[j].report->worlds);
        for (int i = 0; i < SIM_COUNT_COUNT; i++)
            counts[i] += atomic_load(&children[j].report->counts[i]);
    }
    printf("%s 1 - %llu operations in %llu worlds from seed %llu on\n", good ? "ok" : "not ok",
           (unsigned long long)operations, (unsigned long long)worlds, (unsigned long long)s->seed);
    for (int i = 0; i < SIM_COUNT_COUNT; i++)
        printf("# %llu %s\n", (unsigned long long)counts[i], names[i]);
}

static int run_children(const struct settings *s) {
    struct child children[MOST_JOBS] = {0};
    time_t end = time(NULL) + (time_t)s->seconds;
    uint64_t rounds[MOST_JOBS] = {0}, running = 0;
    int good = 1, status;

    for (uint64_t j = 0; j < s->jobs; j++) {
        children[j].report = make_report();
        start_sim_child(s, &children[j], s->seed + j);
        running++;
    }
    while (running > 0) {
        pid_t pid = waitpid(-1, &status, WNOHANG);

        if (pid == 0)
            usleep(20000);
        for (uint64_t j = 0; j < s->jobs; j++) {
            struct child *child = &children[j];

            if (pid == 0 && child->pid > 0)
                look_after(child);
            if (pid != child->pid || pid <= 0)
                continue;
            child->pid = 0;
            running--;
            if (child_has_failed(child->report, status)) {
                if (good)
                    explain(s, atomic_load(&child->report->seed), child->report->failure);
                good = 0;
            } else if (good &&
                       (s->total ? operations_of(s, children) < s->total : time(NULL) < end)) {
                rounds[j]++;
                start_sim_child(s, child, s->seed + j + rounds[j] * WORLDS_A_CHILD * s->jobs);
                running++;
            }
        }
    }
    puts("1..1");
    summarise(s, children, good);
    return !good;
}

static int tell_story(const struct settings *s) {
    struct sim_script script = make_script(s, s->seed);
    struct sim_report *report = make_report();
    int bad;

    if (s->story)
        sim_describe(s->seed, stdout);
    bad = fails(&script, report, s->story ? stdout : NULL);
    if (bad)
        printf("# %s\n", report->failure);
    free(script.words);
    return bad;
}

/* Plays each world in a fresh process, so that traces of earlier worlds in a process do not count. */
static void digest_worlds(const struct settings *s, struct sim_report *report, uint64_t job) {
    int bad = 0;

    for (uint64_t i = job; i < s->digest; i += s->jobs) {
        struct sim_script script = make_script(s, s->seed + i);

        if (fails(&script, report, NULL)) {
            fprintf(stderr, "# %s\n", report->failure);
            bad = 1;
        }
        free(script.words);
    }
    _exit(bad);
}

static int tell_digest(const struct settings *s) {
    struct sim_report *reports[MOST_JOBS];
    uint64_t digest = 0;
    int bad = 0, status;

    fflush(NULL);
    for (uint64_t j = 0; j < s->jobs; j++) {
        pid_t pid;

        reports[j] = make_report();
        pid = fork();
        if (pid == 0)
            digest_worlds(s, reports[j], j);
        if (pid < 0) {
            perror("sim: fork");
            exit(2);
        }
    }
    while (wait(&status) > 0)
        bad |= status != 0;
    for (uint64_t j = 0; j < s->jobs; j++)
        digest += atomic_load(&reports[j]->digest);
    printf("%016llx\n", (unsigned long long)digest);
    return bad;
}

/* Plays a script.  A line is a word in hexadecimal and a comment; other lines are comments, except "# seed N". */
static int play_file(const char *name) {
    struct sim_report *report = make_report();
    struct sim_script script = {0};
    uint64_t *words = NULL;
    size_t room = 0;
    char line[512];
    FILE *file = fopen(name, "re");
    int bad;

    if (!file) {
        perror(name);
        return 2;
    }
    while (fgets(line, sizeof line, file)) {
        unsigned long long value;

        if (sscanf(line, "# seed %llu", &value) == 1)
            script.seed = value;
        if (strspn(line, "0123456789abcdef") != 16)
            continue;
        if (script.count == room)
            words = need(realloc(words, (room = room ? 2 * room : 256) * sizeof *words));
        words[script.count++] = strtoull(line, NULL, 16);
    }
    fclose(file);
    script.words = words;
    bad = fails(&script, report, stdout);
    printf("# %s\n", bad ? report->failure : "nothing is wrong");
    free(words);
    return bad;
}

static void usage(void) {
    fputs("usage: tests/whole/sim [--seconds N|--total N] [--seed N] [--operations N] [--jobs N] "
          "[--brief|--story]\n"
          "       tests/whole/sim --script FILE\n"
          "       tests/whole/sim --digest N [--seed N] [--operations N] [--jobs N]\n"
          "       tests/whole/sim --calls --seed N\n",
          stderr);
    exit(2);
}

static uint64_t parse_sim_number(const char *text) {
    char *end;
    unsigned long long value = text ? strtoull(text, &end, 10) : 0;

    if (!text || *text < '0' || *text > '9' || *end)
        usage();
    return value;
}

static void read_sim_arguments(struct settings *s, char **argv) {
    for (char **at = argv + 1; *at; at++) {
        if (strcmp(*at, "--story") == 0) {
            s->story = 1;
            continue;
        }
        if (strcmp(*at, "--brief") == 0) {
            s->brief = 1;
            continue;
        }
        if (strcmp(*at, "--calls") == 0) {
            s->calls = 1;
            continue;
        }
        if (!at[1])
            usage();
        if (strcmp(*at, "--seconds") == 0)
            s->seconds = parse_sim_number(*++at);
        else if (strcmp(*at, "--total") == 0)
            s->total = parse_sim_number(*++at);
        else if (strcmp(*at, "--seed") == 0)
            s->seed = parse_sim_number(*++at);
        else if (strcmp(*at, "--operations") == 0)
            s->operations = parse_sim_number(*++at);
        else if (strcmp(*at, "--jobs") == 0)
            s->jobs = parse_sim_number(*++at);
        else if (strcmp(*at, "--digest") == 0)
            s->digest = parse_sim_number(*++at);
        else if (strcmp(*at, "--script") == 0)
            s->script = *++at;
        else
            usage();
    }
    if (s->jobs < 1 || s->jobs > MOST_JOBS || s->operations < 1)
        usage();
}

int main(int argc, char **argv) {
    struct settings s = {.seconds = 60, .seed = 1, .operations = 1500, .jobs = 1};
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int now = personality(0xffffffff);

    (void)argc;
    /* Turns address randomisation off where the system allows it, so that a seed repeats its addresses. */
    if (!(now & ADDR_NO_RANDOMIZE) && personality((unsigned long)now | ADDR_NO_RANDOMIZE) >= 0 &&
        personality(0xffffffff) & ADDR_NO_RANDOMIZE)
        execv("/proc/self/exe", argv);
    if (cpus > 1)
        s.jobs = cpus < MOST_JOBS ? (uint64_t)cpus : MOST_JOBS;
    read_sim_arguments(&s, argv);
    if (s.script)
        return play_file(s.script);
    if (s.digest)
        return tell_digest(&s);
    return s.story || s.calls ? tell_story(&s) : run_children(&s);
}
