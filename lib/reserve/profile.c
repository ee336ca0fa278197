/* SPDX-License-Identifier: MIT */
/* profile.c: see profile.h. */
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
#define FORMAT "3\n"

uint64_t weir__profile_hash(const void *bytes, size_t count) {
    const unsigned char *at = bytes;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < count; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* ---- the rule -------------------------------------------------------------------------------- */

uint64_t weir__profile_target(const struct weir_profile *profile) {
    uint64_t target = 0;

    for (size_t age = 0; age < profile->runs; age++) {
        uint64_t need = profile->need[profile->runs - 1 - age].bytes;

        if (age >= WEIR_PROFILE_FULL_RUNS)
            need >>= age - WEIR_PROFILE_FULL_RUNS + 1;
        if (need > target)
            target = need;
    }
    return target;
}

static uint64_t need_of(const struct weir_profile *profile, const struct weir_profile_run *run) {
    uint64_t before = weir__profile_target(profile), need = run->reserved;
    double each = profile->basis_in_use > 0
                      ? (double)profile->basis_reserve / (double)profile->basis_in_use
                      : 1.125;

    if (run->grew)
        return need;
    if ((double)run->in_use * each < (double)need)
        need = (uint64_t)((double)run->in_use * each);
    if (need < before && before - need <= before / 8)
        need = before < run->reserved ? before : run->reserved;
    return need;
}

void weir__profile_add(struct weir_profile *profile, const struct weir_profile_run *run) {
    size_t at = 0;

    while (at < profile->runs && profile->need[at].id != run->id)
        at++;
    profile->merged += at == profile->runs;
    if (at == WEIR_PROFILE_RUNS)
        at = 0;
    if (at < profile->runs) {
        profile->runs--;
        memmove(&profile->need[at], &profile->need[at + 1],
                (profile->runs - at) * sizeof profile->need[0]);
    }
    profile->need[profile->runs] = (struct weir_profile_need){run->id, need_of(profile, run)};
    profile->runs++;
    if (run->grew) {
        profile->basis_reserve = run->reserved;
        profile->basis_in_use = run->in_use;
    }
}

/* ---- text ------------------------------------------------------------------------------------ */

size_t weir__profile_spell(const struct weir_profile *profile, const struct weir_profile_key *key,
                           char text[WEIR_PROFILE_MOST_BYTES]) {
    const size_t room = WEIR_PROFILE_MOST_BYTES;
    char target[WEIR_SPELL_BYTES];
    size_t length;

    weir__bytes_spell(weir__profile_target(profile), target, sizeof target);
    length = (size_t)snprintf(text, room,
                              TITLE FORMAT "device %s\nsettings %s\ntarget %s\nruns %" PRIu64
                                           "\nbasis %" PRIu64 " %" PRIu64 "\n",
                              key->device, key->settings, target, profile->merged,
                              profile->basis_reserve, profile->basis_in_use);
    for (size_t i = 0; i < profile->runs; i++)
        length +=
            (size_t)snprintf(text + length, room - length, "need %016" PRIx64 " %" PRIu64 "\n",
                             profile->need[i].id, profile->need[i].bytes);
    return length + (size_t)snprintf(text + length, room - length, "checksum %016" PRIx64 "\n",
                                     weir__profile_hash(text, length));
}

/* Moves *at behind a word.  Returns 1 on success, 0 if another text stands there. */
static int skip(const char **at, const char *word) {
    size_t length = strlen(word);

    if (strncmp(*at, word, length) != 0)
        return 0;
    *at += length;
    return 1;
}

/* Reads a number behind a word, as leniently as strtoull does.  Returns 1 on success, 0 if another text stands there. */
static int number(const char **at, const char *word, int base, uint64_t *value) {
    char *end;

    if (!skip(at, word))
        return 0;
    *value = strtoull(*at, &end, base);
    *at = end;
    return 1;
}

/* Reads the lines behind the settings.  The caller compares the whole text with the text that it would write for the
 * result. */
static void read_lines(const char *at, struct weir_profile *profile) {
    at += strcspn(at, "\n"); /* the target follows from the other lines */
    if (!number(&at, "\nruns ", 10, &profile->merged) ||
        !number(&at, "\nbasis ", 10, &profile->basis_reserve) ||
        !number(&at, " ", 10, &profile->basis_in_use))
        return;
    while (profile->runs < WEIR_PROFILE_RUNS &&
           number(&at, "\nneed ", 16, &profile->need[profile->runs].id) &&
           number(&at, " ", 10, &profile->need[profile->runs].bytes))
        profile->runs++;
}

enum weir_profile_found weir__profile_parse(const char *text, size_t bytes,
                                            const struct weir_profile_key *key,
                                            struct weir_profile *profile,
                                            struct weir_problem *problem) {
    struct weir_profile read = {0};
    char again[WEIR_PROFILE_MOST_BYTES];
    const char *at = text;

    if (bytes > 0 && !skip(&at, TITLE)) {
        weir__problem(problem, "it is no profile");
        return WEIR_PROFILE_FOREIGN;
    }
    if (bytes == 0)
        weir__problem(problem, "it is empty");
    else if (!skip(&at, FORMAT))
        weir__problem(problem,
                      "another version of weir wrote it (this one reads \"weir profile 3\")");
    else if (!skip(&at, "device ") || !skip(&at, key->device) || !skip(&at, "\nsettings "))
        weir__problem(problem, "it was learned on another device (in a folder each has its own)");
    else if (!skip(&at, key->settings) || !skip(&at, "\n"))
        weir__problem(problem,
                      "it was learned with other settings (in a folder each have their own)");
    else {
        read_lines(at, &read);
        if (bytes == weir__profile_spell(&read, key, again) && memcmp(again, text, bytes) == 0) {
            *profile = read;
            return WEIR_PROFILE_READ;
        }
        weir__problem(problem, "it is damaged");
    }
    return WEIR_PROFILE_USELESS;
}

/* ---- files ----------------------------------------------------------------------------------- */

enum weir_profile_found weir__profile_load(const char *path, const struct weir_profile_key *key,
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

int weir__profile_store(const char *path, const struct weir_profile_key *key,
                        const struct weir_profile *profile, struct weir_problem *problem) {
    char text[WEIR_PROFILE_MOST_BYTES];
    size_t bytes = weir__profile_spell(profile, key, text);
    int why = weir__replace_file(path, 0600, 1, text, bytes);

    return why == 0 || weir__problem(problem, "cannot write it: %s", strerror(why));
}
