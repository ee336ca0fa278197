/* SPDX-License-Identifier: MIT */
/* profile.c: see profile.h.
 *
 * Nothing that a file says is trusted before its checksum, its key and its form were right, and then it
 * is numbers alone; the code that takes memory by them holds them against the device.
 *
 * Must not know: drivers, engines, settings, allocators.
 */
#include "config.h"

#include "base/file.h"
#include "reserve/profile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weir/stats.h>

#include "base/replace.h"

#define TITLE "weir profile "
/* Without a plan, and with one. */
#define FIRST_LINE TITLE "1\n"
#define FIRST_LINE_PLANNED TITLE "2\n"
/* What each line of places begins with. */
#define PLACES "places"
/* "checksum 0123456789abcdef\n" */
enum { CHECKSUM_BYTES = 26, LINE_BYTES = 400, MOST_WORDS = 12 };
/* More than any device has: products of two such numbers are finite. */
#define MOST_MEMORY (UINT64_C(1) << 56)
#define MOST_RUNS UINT64_C(1000000000)

/* ---- hashes ---------------------------------------------------------------------------------- */

static uint64_t hash_on(uint64_t hash, const void *bytes, size_t count) {
    const unsigned char *at = bytes;

    for (size_t i = 0; i < count; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t weir__profile_hash(const void *bytes, size_t count) {
    return hash_on(UINT64_C(0xcbf29ce484222325), bytes, count);
}

uint64_t weir__profile_key_hash(const struct weir_profile_key *key) {
    uint64_t hash = weir__profile_hash(key->device, strlen(key->device));

    return hash_on(hash_on(hash, "\n", 1), key->settings, strlen(key->settings));
}

/* ---- the rule -------------------------------------------------------------------------------- */

uint64_t weir__profile_target(const struct weir_profile *profile) {
    uint64_t target = 0;

    for (size_t age = 0; age < profile->runs; age++) {
        uint64_t need = profile->run[profile->runs - 1 - age].need;

        if (age >= WEIR_PROFILE_FULL_RUNS)
            need >>= age - WEIR_PROFILE_FULL_RUNS + 1;
        if (need > target)
            target = need;
    }
    return target;
}

static uint64_t need_of(const struct weir_profile *profile, const struct weir_profile_run *run) {
    uint64_t before = weir__profile_target(profile), need = run->reserve;
    double each = profile->basis_in_use > 0
                      ? (double)profile->basis_reserve / (double)profile->basis_in_use
                      : 1.125;

    if (run->planned > 0)
        return run->planned < need ? run->planned : need;
    if (run->grew)
        return need;
    if ((double)run->in_use * each < (double)need)
        need = (uint64_t)((double)run->in_use * each);
    if (need < before && before - need <= before / 8)
        need = before < run->reserve ? before : run->reserve;
    return need;
}

/* Takes the run at `at` out. */
static void remove_run(struct weir_profile *profile, size_t at) {
    profile->runs--;
    memmove(&profile->run[at], &profile->run[at + 1],
            (profile->runs - at) * sizeof profile->run[0]);
}

static uint64_t at_most(uint64_t value, uint64_t most) {
    return value < most ? value : most;
}

void weir__profile_add(struct weir_profile *profile, const struct weir_profile_run *run,
                       const struct weir_profile_step *step, size_t steps) {
    struct weir_profile_run added = *run;
    size_t at;

    added.reserve = at_most(run->reserve, MOST_MEMORY);
    added.in_use = at_most(run->in_use, added.reserve);
    for (at = 0; at < profile->runs && profile->run[at].id != run->id; at++)
        ;
    if (at < profile->runs)
        remove_run(profile, at);
    else if (profile->merged < MOST_RUNS)
        profile->merged++;
    added.need = need_of(profile, &added);
    if (profile->runs == WEIR_PROFILE_RUNS)
        remove_run(profile, 0);
    added.planned = 0;
    profile->run[profile->runs++] = added;
    if (added.grew) {
        profile->basis_reserve = added.reserve;
        profile->basis_in_use = added.in_use;
    }
    profile->steps = at_most(steps, WEIR_PROFILE_STEPS);
    for (size_t i = 0; i < profile->steps; i++) {
        profile->step[i] = step[steps - profile->steps + i]; /* the newest */
        profile->step[i].bytes = at_most(profile->step[i].bytes, MOST_MEMORY);
    }
}

void weir__profile_drop(struct weir_profile *profile) {
    free(profile->planned.plan.place);
    profile->planned = (struct weir_profile_plan){0};
}

/* ---- writing --------------------------------------------------------------------------------- */

struct writer {
    char *text;
    size_t length;
};

/* All lines but those of places together are far below WEIR_PROFILE_HEAD_BYTES. */
__attribute__((format(printf, 2, 3))) static void put(struct writer *to, const char *format, ...) {
    size_t room = WEIR_PROFILE_HEAD_BYTES - to->length;
    va_list arguments;
    int written;

    va_start(arguments, format);
    written = vsnprintf(to->text + to->length, room, format, arguments);
    va_end(arguments);
    if (written > 0) /* unreached: no character, since each line has some, */
        /* unreached: and no room, as said above */
        to->length += (size_t)written < room ? (size_t)written : room - 1;
}

static void put_size(struct writer *to, const char *word, uint64_t bytes) {
    char size[WEIR_SPELL_BYTES];

    weir__bytes_spell(bytes, size, sizeof size);
    put(to, "%s %s", word, size);
}

static void put_run(struct writer *to, const struct weir_profile_run *run) {
    put(to, "run %016" PRIx64, run->id);
    put_size(to, " need", run->need);
    put_size(to, " reserve", run->reserve);
    put_size(to, " in-use", run->in_use);
    put(to, " %s\n", run->grew ? "grew" : "enough");
}

static int is_planned(const struct weir_profile *profile) {
    return profile->planned.plan.bytes > 0;
}

static void put_plan(struct writer *to, const struct weir_profile_plan *planned) {
    put_size(to, "plan pivot", planned->plan.pivot);
    put_size(to, " bytes", planned->plan.bytes);
    put_size(to, " small", planned->small);
    put_size(to, " exact", planned->plan.exact);
    put(to, " round %zu %s\n", planned->plan.round, planned->is_kept ? "kept" : "new");
}

/* All but the places and the checksum. */
static void put_head(struct writer *to, const struct weir_profile *profile,
                     const struct weir_profile_key *key) {
    put(to, "%skey %016" PRIx64 "\ndevice %s\nsettings %s\n",
        is_planned(profile) ? FIRST_LINE_PLANNED : FIRST_LINE, weir__profile_key_hash(key),
        key->device, key->settings);
    put_size(to, "target", weir__profile_target(profile));
    put_size(to, "\nbasis", profile->basis_reserve);
    put_size(to, "", profile->basis_in_use);
    put(to, "\nruns %" PRIu64 "\n", profile->merged);
    for (size_t i = 0; i < profile->runs; i++)
        put_run(to, &profile->run[i]);
    for (size_t i = 0; i < profile->steps; i++) {
        put_size(to, "step", profile->step[i].bytes);
        put(to, " %s\n", weir_event_cause_word(profile->step[i].cause));
    }
    if (is_planned(profile))
        put_plan(to, &profile->planned);
}

static char *put_hex(char *at, uint32_t value) {
    int digits = value ? (35 - __builtin_clz(value)) / 4 : 1;

    for (int i = digits; i-- > 0; value >>= 4)
        at[i] = "0123456789abcdef"[value & 15];
    return at + digits;
}

/* There is room: a place takes 20 bytes at most, with its part of the word that its line begins with. */
static void put_places(struct writer *to, const struct weir_plan *plan) {
    char *at = to->text + to->length;

    for (size_t i = 0; i < plan->places; i++) {
        if (i % WEIR_PROFILE_LINE_PLACES == 0)
            at = (char *)memcpy(at, PLACES, sizeof PLACES - 1) + sizeof PLACES - 1;
        *at++ = ' ';
        at = put_hex(at, plan->place[i].size);
        *at++ = ':';
        if (plan->place[i].offset != WEIR_PLAN_NOWHERE)
            at = put_hex(at, plan->place[i].offset);
        if (i % WEIR_PROFILE_LINE_PLACES == WEIR_PROFILE_LINE_PLACES - 1 || i + 1 == plan->places)
            *at++ = '\n';
    }
    to->length = (size_t)(at - to->text);
}

size_t weir__profile_spell(const struct weir_profile *profile, const struct weir_profile_key *key,
                           char text[WEIR_PROFILE_MOST_BYTES]) {
    struct writer to = {text, 0};

    put_head(&to, profile, key);
    put_places(&to, &profile->planned.plan);
    snprintf(text + to.length, CHECKSUM_BYTES + 1, "checksum %016" PRIx64 "\n",
             weir__profile_hash(text, to.length));
    return to.length + CHECKSUM_BYTES;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct reader {
    const char *at, *end;
    char line[LINE_BYTES]; /* the last one taken, without its end, cut into words */
    char *word[MOST_WORDS];
    size_t words;
};

static int begins(const char *text, size_t bytes, const char *with) {
    return bytes >= strlen(with) && memcmp(text, with, strlen(with)) == 0;
}

/* The next line, or 0: there is none, or it is too long. */
static int take_line(struct reader *from) {
    const char *end = memchr(from->at, '\n', (size_t)(from->end - from->at));
    size_t bytes = end ? (size_t)(end - from->at) : LINE_BYTES;

    if (bytes >= LINE_BYTES)
        return 0;
    memcpy(from->line, from->at, bytes);
    from->line[bytes] = '\0';
    from->at = end + 1;
    return 1;
}

/* The next line as words, of which the first is `name`; 0 and nothing taken: it is another. */
static int take_words(struct reader *from, const char *name, size_t words) {
    const char *before = from->at;
    char *rest = NULL;

    from->words = 0;
    if (take_line(from))
        for (char *word = strtok_r(from->line, " ", &rest); word && from->words < MOST_WORDS;
             word = strtok_r(NULL, " ", &rest))
            from->word[from->words++] = word;
    if (from->words == words && strcmp(from->word[0], name) == 0)
        return 1;
    from->at = before;
    return 0;
}

static int read_size(const char *text, uint64_t *bytes) {
    struct weir_problem ignored;

    return weir__bytes_read(text, bytes, &ignored) && *bytes <= MOST_MEMORY;
}

static int read_hash(const char *text, uint64_t *hash) {
    char *end;

    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return 0;
    *hash = strtoull(text, &end, 16);
    return 1;
}

static int read_run(const struct reader *from, struct weir_profile_run *run) {
    run->grew = strcmp(from->word[8], "grew") == 0;
    return read_hash(from->word[1], &run->id) && read_size(from->word[3], &run->need) &&
           read_size(from->word[5], &run->reserve) && read_size(from->word[7], &run->in_use) &&
           run->need <= run->reserve && run->in_use <= run->reserve;
}

static int read_step(const struct reader *from, struct weir_profile_step *step) {
    for (step->cause = 0; step->cause < WEIR_EVENT_CAUSE_COUNT; step->cause++)
        if (strcmp(from->word[2], weir_event_cause_word(step->cause)) == 0)
            return read_size(from->word[1], &step->bytes);
    return 0;
}

/* A plan has memory, and either places or none. */
static int read_plan(struct reader *from, struct weir_profile_plan *planned) {
    uint64_t pivot, bytes, exact, round;
    struct weir_problem ignored;

    if (!take_words(from, "plan", 12) || !read_size(from->word[2], &pivot) ||
        !read_size(from->word[4], &bytes) || !read_size(from->word[6], &planned->small) ||
        !read_size(from->word[8], &exact) ||
        !weir__count_read(from->word[10], WEIR_PLAN_MOST_PLACES, &round, &ignored))
        return 0;
    planned->plan = (struct weir_plan){.pivot = (size_t)pivot,
                                       .bytes = (size_t)bytes,
                                       .exact = (size_t)exact,
                                       .round = (size_t)round};
    planned->is_kept = strcmp(from->word[11], "kept") == 0;
    return bytes > 0;
}

/* A number of up to 32 bits, above 0 or a single 0, that ends with `end`: 1, or 0: it is not as it is written. */
static int read_hex(const char **at, char end, uint32_t *value) {
    const char *first = *at;

    *value = 0;
    for (; *at - first < 8; (*at)++) {
        char c = **at;

        if (c >= '0' && c <= '9')
            *value = *value << 4 | (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            *value = *value << 4 | (uint32_t)(c - 'a' + 10);
        else
            break;
    }
    if (*at == first || (*first == '0' && *at - first > 1) || **at != end)
        return 0;
    (*at)++;
    return 1;
}

/* Which character ends a number: what is there, if it may. */
static char end_of(const char *at) {
    while (*at != ' ' && *at != '\n')
        at++;
    return *at;
}

/* A place, of which `at` is behind the blank: it ends with a blank or its line. */
static int read_place(const char **at, size_t exact, struct weir_plan_place *place) {
    if (!read_hex(at, ':', &place->size) || place->size == 0)
        return 0;
    if (**at == ' ' || **at == '\n') {
        place->offset = WEIR_PLAN_NOWHERE;
        (*at)++;
        return 1;
    }
    return read_hex(at, end_of(*at), &place->offset) && place->offset != WEIR_PLAN_NOWHERE &&
           (uint64_t)place->offset + place->size <= exact / WEIR_PLAN_GRANULE;
}

/* All lines of places, up to the end, which a line end comes before, exactly as they are written.  There is room for all
 * that there may be. */
static int read_places(const char *at, const char *end, struct weir_plan *plan) {
    size_t n = 0;

    while (at < end) {
        int is_first = n % WEIR_PROFILE_LINE_PLACES == 0;

        if (n == WEIR_PLAN_MOST_PLACES || (is_first && !begins(at, (size_t)(end - at), PLACES " ")))
            return 0;
        at += is_first ? sizeof PLACES : 0;
        if (!read_place(&at, plan->exact, &plan->place[n++]))
            return 0;
        /* A line ends where it is full, or with the last place. */
        if ((at[-1] == '\n') != (n % WEIR_PROFILE_LINE_PLACES == 0 || at == end))
            return 0;
    }
    plan->places = n;
    return (n > 0) == (plan->exact > 0) && plan->round <= n;
}

/* The same into memory of their own. */
static int take_places(const struct reader *from, struct weir_plan *plan) {
    struct weir_plan_place *fitted;

    if (from->at == from->end)
        return plan->exact == 0 && plan->round == 0;
    plan->place = malloc(WEIR_PLAN_MOST_PLACES * sizeof *plan->place);
    if (!plan->place || !read_places(from->at, from->end, plan)) {
        free(plan->place);
        return 0;
    }
    fitted = realloc(plan->place, plan->places * sizeof *fitted);
    plan->place = fitted ? fitted : plan->place;
    return 1;
}

/* Everything below the key up to the places.  Words that say nothing are looked at when all is written again. */
static int read_body(struct reader *from, int is_planned, struct weir_profile *profile) {
    struct weir_problem ignored;

    if (!take_words(from, "target", 2) || !take_words(from, "basis", 3) ||
        !read_size(from->word[1], &profile->basis_reserve) ||
        !read_size(from->word[2], &profile->basis_in_use) || !take_words(from, "runs", 2) ||
        !weir__count_read(from->word[1], MOST_RUNS, &profile->merged, &ignored))
        return 0;
    while (profile->runs < WEIR_PROFILE_RUNS && take_words(from, "run", 9))
        if (!read_run(from, &profile->run[profile->runs++]))
            return 0;
    while (profile->steps < WEIR_PROFILE_STEPS && take_words(from, "step", 3))
        if (!read_step(from, &profile->step[profile->steps++]))
            return 0;
    if (is_planned && !read_plan(from, &profile->planned))
        return 0;
    return profile->runs > 0 && profile->merged >= profile->runs &&
           profile->basis_in_use <= profile->basis_reserve;
}

/* What is before the checksum, if that is right. */
static int check_sum(const char *text, size_t bytes, struct weir_problem *problem) {
    char line[CHECKSUM_BYTES + 1];
    size_t body = bytes > CHECKSUM_BYTES ? bytes - CHECKSUM_BYTES : 0;

    if (body == 0 || text[body - 1] != '\n' || memcmp(text + body, "checksum ", 9) != 0)
        return weir__problem(problem, "it is cut off, or something follows its end");
    snprintf(line, sizeof line, "checksum %016" PRIx64 "\n", weir__profile_hash(text, body));
    return memcmp(text + body, line, CHECKSUM_BYTES) == 0
               ? 1
               : weir__problem(problem, "its checksum is wrong");
}

static int check_key(struct reader *from, const struct weir_profile_key *key,
                     struct weir_problem *problem) {
    char wanted[LINE_BYTES];

    if (!take_words(from, "key", 2))
        return weir__problem(problem, "it has no key");
    snprintf(wanted, sizeof wanted, "device %s", key->device);
    if (!take_line(from) || strcmp(from->line, wanted) != 0)
        return weir__problem(problem,
                             "it was learned on another device (in a folder each has its own)");
    snprintf(wanted, sizeof wanted, "settings %s", key->settings);
    return take_line(from) && strcmp(from->line, wanted) == 0
               ? 1
               : weir__problem(
                     problem,
                     "it was learned with other settings (in a folder each have their own)");
}

int weir__profile_parse(const char *text, size_t bytes, const struct weir_profile_key *key,
                        struct weir_profile *profile, struct weir_problem *problem) {
    struct weir_profile read = {0};
    char again[WEIR_PROFILE_HEAD_BYTES];
    struct writer head = {again, 0};
    struct reader from;
    int is_planned;

    if (bytes >= WEIR_PROFILE_MOST_BYTES)
        return weir__problem(problem, "it is larger than any profile");
    if (!begins(text, bytes, TITLE))
        return weir__problem(problem, bytes ? "it is no profile" : "it is empty");
    is_planned = begins(text, bytes, FIRST_LINE_PLANNED);
    if (!is_planned && !begins(text, bytes, FIRST_LINE))
        return weir__problem(problem, "it is of another version");
    if (!check_sum(text, bytes, problem))
        return 0;
    from.at = text + strlen(FIRST_LINE);
    from.end = text + bytes - CHECKSUM_BYTES;
    if (!check_key(&from, key, problem))
        return 0;
    if (read_body(&from, is_planned, &read))
        put_head(&head, &read, key);
    if (head.length == 0 || head.length != (size_t)(from.at - text) ||
        memcmp(again, text, head.length) != 0 || !take_places(&from, &read.planned.plan))
        return weir__problem(problem, "it is not as a profile is written");
    *profile = read;
    return 1;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int cannot(struct weir_problem *problem, const char *what) {
    return weir__problem(problem, "cannot %s: %s", what, strerror(errno));
}

/* Up to `room` bytes of a regular file; -1 with the reason, which is empty where there is no file. */
static ssize_t read_file(const char *path, char *text, size_t room, struct weir_problem *problem) {
    int file = weir__file_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    ssize_t bytes = 0, more = 1;
    struct stat about;

    problem->text[0] = '\0';
    if (file < 0) {
        if (errno != ENOENT)
            cannot(problem, "read it");
        return -1;
    }
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
        weir__problem(problem, "it is no regular file");
        bytes = -1;
    }
    while (bytes >= 0 && (size_t)bytes < room && more > 0) {
        more = read(file, text + bytes, room - (size_t)bytes);
        if (more < 0 && errno == EINTR)
            more = 1;
        else if (more < 0)
            bytes = (cannot(problem, "read it"), -1);
        else
            bytes += more;
    }
    close(file);
    return bytes;
}

static int lack_memory(struct weir_problem *problem) {
    problem->lacks_memory = 1;
    return weir__problem(problem, "there is no host memory");
}

int weir__profile_load(const char *path, const struct weir_profile_key *key,
                       struct weir_profile *profile, struct weir_problem *problem) {
    char *text = malloc(WEIR_PROFILE_MOST_BYTES);
    ssize_t bytes;
    int result;

    if (!text)
        return lack_memory(problem);
    bytes = read_file(path, text, WEIR_PROFILE_MOST_BYTES, problem);
    result = bytes >= 0 && weir__profile_parse(text, (size_t)bytes, key, profile, problem);
    free(text);
    return result;
}

int weir__profile_may_replace(const char *path, struct weir_problem *problem) {
    char title[sizeof TITLE];
    ssize_t bytes = read_file(path, title, sizeof TITLE - 1, problem);

    if (bytes < 0)
        return !problem->text[0];
    return bytes == 0 || begins(title, (size_t)bytes, TITLE)
               ? 1
               : weir__problem(problem, "there is a file that is no profile, which is left alone");
}

int weir__profile_store(const char *path, const struct weir_profile_key *key,
                        const struct weir_profile *profile, struct weir_problem *problem) {
    char *text;
    size_t bytes;

    if (!weir__profile_may_replace(path, problem))
        return 0;
    text = malloc(WEIR_PROFILE_MOST_BYTES);
    if (!text)
        return lack_memory(problem);
    bytes = weir__profile_spell(profile, key, text);
    errno = weir__replace_file(path, 0600, 1, text, bytes);
    free(text);
    return errno == 0 ? 1 : cannot(problem, "write it");
}
