/* SPDX-License-Identifier: MIT */
/* fuzz_profile.c: what becomes of any bytes as a profile (lib/reserve/profile.c).
 *
 * The first byte chooses: the rest is a whole file; or what stands between the key and the checksum, which
 * are put around it.  What is refused has a reason and changes nothing.  What is read is, byte for byte,
 * what would be written; and with one more run it can be written and read again.
 */
#include "fuzz.h"

#include <stdio.h>
#include <string.h>

#include "reserve/profile.h"

static const struct weir_profile_key key = {"model a device", "engine=pool"};

/* Puts the input between a key and a checksum; the length. */
static size_t dress(const struct fuzz_bytes *in, char *text, size_t room) {
    size_t body, kept;

    body = (size_t)snprintf(text, room, "weir profile 1\nkey %016llx\ndevice %s\nsettings %s\n",
                            (unsigned long long)weir__profile_key_hash(&key), key.device,
                            key.settings);
    kept = in->left < room - body - 64 ? in->left : room - body - 64;
    if (kept > 0)
        memcpy(text + body, in->at, kept);
    body += kept;
    return body + (size_t)snprintf(text + body, room - body, "checksum %016llx\n",
                                   (unsigned long long)weir__profile_hash(text, body));
}

/* One more run, and what it comes to. */
static void go_on(struct weir_profile *profile, uint64_t reserve, uint64_t in_use, int grew) {
    struct weir_profile_run run = {~UINT64_C(0), 0, reserve, in_use, grew, 0};
    struct weir_profile_step step = {reserve, 0};
    struct weir_profile again;
    struct weir_problem problem;
    char text[WEIR_PROFILE_MOST_BYTES];
    size_t bytes;

    weir__profile_add(profile, &run, &step, 1);
    AT_MOST(profile->runs, WEIR_PROFILE_RUNS);
    AT_MOST(profile->run[profile->runs - 1].need, weir__profile_target(profile));
    AT_MOST(profile->run[profile->runs - 1].need, reserve);
    bytes = weir__profile_spell(profile, &key, text);
    AT_MOST(bytes, sizeof text - 1);
    if (!weir__profile_parse(text, bytes, &key, &again, &problem))
        FAULT("%s: %s", problem.text, text);
    SAME(weir__profile_target(&again), weir__profile_target(profile));
}

static void read_profile(const char *text, size_t bytes) {
    struct weir_profile profile, before;
    struct weir_problem problem = {.text = ""};
    char again[WEIR_PROFILE_MOST_BYTES];

    memset(&profile, 77, sizeof profile);
    before = profile;
    if (!weir__profile_parse(text, bytes, &key, &profile, &problem)) {
        HOLDS(problem.text[0] && memchr(problem.text, '\0', sizeof problem.text));
        HOLDS(memcmp(&profile, &before, sizeof profile) == 0);
        return;
    }
    SAME(weir__profile_spell(&profile, &key, again), bytes);
    HOLDS(memcmp(text, again, bytes) == 0);
    HOLDS(profile.runs > 0 && profile.runs <= WEIR_PROFILE_RUNS);
    AT_MOST(profile.steps, WEIR_PROFILE_STEPS);
    go_on(&profile, UINT64_C(1) << 33, UINT64_C(1) << 32, 0);
    go_on(&profile, UINT64_MAX, 1, 1);
    go_on(&profile, UINT64_C(1) << 33, UINT64_C(1) << 33, 0);
    weir__profile_drop(&profile);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_bytes in = {data, size};
    unsigned whole = fuzz_choice(&in, 2);
    size_t room = 2 * WEIR_PROFILE_MOST_BYTES, bytes = in.left;
    char *text = malloc(whole ? bytes + !bytes : room), *exact;

    HOLDS(text);
    if (whole && bytes > 0)
        memcpy(text, in.at, bytes);
    if (!whole)
        bytes = dress(&in, text, room);
    exact = realloc(text, bytes + !bytes); /* so that reading past its end is seen */
    HOLDS(exact);
    read_profile(exact, bytes);
    free(exact);
    return 0;
}
