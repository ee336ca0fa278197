/* SPDX-License-Identifier: MIT */
/* profile.c: the functions of profile.h. */
#include "config.h"

#include "reserve/profile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/replace.h"

#define TITLE "weir profile "
#define HEAD TITLE "4\n"

uint64_t weir__profile_hash(const void *bytes, size_t count) {
    const unsigned char *at = bytes;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < count; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Returns the run that needed most reserved memory.  If there is no run, all fields of the result are 0. */
static const struct weir_profile_run *largest_run(const struct weir_profile *profile) {
    const struct weir_profile_run *largest = profile->last;

    for (size_t i = 1; i < WEIR_PROFILE_RUNS; i++)
        if (profile->last[i].reserved > largest->reserved)
            largest = &profile->last[i];
    return largest;
}

uint64_t weir__profile_target(const struct weir_profile *profile) {
    return largest_run(profile)->reserved;
}

static int is_within_a_16th(uint64_t a, uint64_t b) {
    return (a > b ? a - b : b - a) <= b / 16;
}

/* Estimates how much reserved memory the run needed, from the ratio of reserved to used memory in `target`. */
static void set_expected(struct weir_profile_run *run, const struct weir_profile_run *target) {
    double each = target->in_use > 0 ? (double)target->reserved / (double)target->in_use : 1.125;

    if ((double)run->in_use * each < (double)run->reserved)
        run->reserved = (uint64_t)((double)run->in_use * each + 0.5);
    if (run->reserved < target->reserved &&
        target->reserved - run->reserved <= target->reserved / 8) {
        run->reserved = target->reserved;
        run->in_use = target->in_use;
    }
}

void weir__profile_add(struct weir_profile *profile, struct weir_profile_run run, int grew) {
    struct weir_profile_run *at = profile->last;
    const struct weir_profile_run *target;

    while (at < profile->last + WEIR_PROFILE_RUNS && at->id != run.id)
        at++;
    if (at == profile->last + WEIR_PROFILE_RUNS)
        at = &profile->last[profile->runs++ % WEIR_PROFILE_RUNS];
    *at = (struct weir_profile_run){0};
    target = largest_run(profile);
    if (!grew || (is_within_a_16th(run.in_use, target->in_use) &&
                  is_within_a_16th(run.reserved, target->reserved)))
        set_expected(&run, target);
    *at = run;
}

size_t weir__profile_spell(const struct weir_profile *profile, const char *key,
                           char text[WEIR_PROFILE_MOST_BYTES]) {
    const size_t room = WEIR_PROFILE_MOST_BYTES;
    char target[WEIR_SPELL_BYTES];
    size_t length;

    weir__bytes_spell(weir__profile_target(profile), target, sizeof target);
    length = (size_t)snprintf(text, room, HEAD "%starget %s\nruns %" PRIu64 "\n", key, target,
                              profile->runs);
    for (size_t i = 0; i < WEIR_PROFILE_RUNS && i < profile->runs; i++)
        length += (size_t)snprintf(text + length, room - length,
                                   "run %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", profile->last[i].id,
                                   profile->last[i].reserved, profile->last[i].in_use);
    return length + (size_t)snprintf(text + length, room - length, "checksum %016" PRIx64 "\n",
                                     weir__profile_hash(text, length));
}

/* Returns the next number in a text, and moves *at behind the number. */
static uint64_t next_number(const char **at) {
    char *end;
    uint64_t number = strtoull(*at + strcspn(*at, "0123456789"), &end, 10);

    *at = end;
    return number;
}

/* Reads the runs without checks.  The caller writes the result as text, and compares the text with the file's. */
static struct weir_profile read_lines(const char *at) {
    struct weir_profile profile = {0};

    /* skips the line `target', which weir computes from the other lines */
    at += strcspn(at, "\n");
    profile.runs = next_number(&at);
    for (size_t i = 0; i < WEIR_PROFILE_RUNS && i < profile.runs; i++) {
        profile.last[i].id = next_number(&at);
        profile.last[i].reserved = next_number(&at);
        profile.last[i].in_use = next_number(&at);
    }
    return profile;
}

static int begins_with(const char *text, const char *beginning) {
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

enum weir_profile_found weir__profile_parse(const char *text, size_t bytes, const char *key,
                                            struct weir_profile *profile,
                                            struct weir_problem *problem) {
    const size_t head = strlen(HEAD);
    char again[WEIR_PROFILE_MOST_BYTES];
    struct weir_profile read;

    if (bytes > 0 && !begins_with(text, TITLE)) {
        weir__problem(problem, "it is no profile");
        return WEIR_PROFILE_FOREIGN;
    }
    if (bytes == 0)
        weir__problem(problem, "it is empty");
    else if (!begins_with(text, HEAD))
        weir__problem(problem,
                      "another version of weir wrote it (this one reads \"weir profile 4\")");
    else if (!begins_with(text + head, key))
        weir__problem(problem, "it was learned on another device or with other settings "
                               "(in a folder each has its own)");
    else {
        read = read_lines(text + head + strlen(key));
        if (bytes == weir__profile_spell(&read, key, again) && memcmp(again, text, bytes) == 0) {
            *profile = read;
            return WEIR_PROFILE_READ;
        }
        weir__problem(problem, "it is damaged");
    }
    return WEIR_PROFILE_USELESS;
}

enum weir_profile_found weir__profile_load(const char *path, const char *key,
                                           struct weir_profile *profile,
                                           struct weir_problem *problem) {
    char text[WEIR_PROFILE_MOST_BYTES];
    int file = weir__file_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    ssize_t bytes = -1;
    struct stat about;

    if (file < 0 && errno == ENOENT)
        return WEIR_PROFILE_NONE;
    if (file >= 0 && fstat(file, &about) == 0 && !S_ISREG(about.st_mode))
        weir__problem(problem, "it is no regular file");
    else if (file < 0 || (bytes = weir__file_read_up_to(file, text, sizeof text - 1)) < 0)
        weir__problem(problem, "cannot read it: %s", strerror(errno));
    if (file >= 0)
        close(file);
    if (bytes < 0)
        return WEIR_PROFILE_FOREIGN;
    text[bytes] = '\0';
    return weir__profile_parse(text, (size_t)bytes, key, profile, problem);
}

int weir__profile_store(const char *path, const char *key, const struct weir_profile *profile,
                        struct weir_problem *problem) {
    char text[WEIR_PROFILE_MOST_BYTES];
    int why = weir__replace_file(path, 0600, 1, text, weir__profile_spell(profile, key, text));

    return why == 0 || weir__problem(problem, "cannot write it: %s", strerror(why));
}
