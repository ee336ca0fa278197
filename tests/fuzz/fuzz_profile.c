/* SPDX-License-Identifier: MIT */
/* fuzz_profile.c: reads any bytes as a profile (lib/reserve/profile.c).
 *
 * The first byte chooses whether the rest is a whole file, or the lines between the settings and the checksum.  A
 * refused text has a reason and changes nothing.  An accepted text is, byte for byte, the one that weir would write;
 * with one more run weir writes and reads the profile again. */
#include "fuzz.h"

#include <stdio.h>
#include <string.h>

#include "reserve/profile.h"

static const char key[] = "device model a device\nsettings engine=pool\n";

/* Puts the input between the settings and the checksum.  Returns the length of the text. */
static size_t dress(const struct fuzz_bytes *in, char *text, size_t room) {
    size_t body, kept;

    body = (size_t)snprintf(text, room, "weir profile 4\n%s", key);
    kept = in->left < room - body - 64 ? in->left : room - body - 64;
    if (kept > 0)
        memcpy(text + body, in->at, kept);
    body += kept;
    return body + (size_t)snprintf(text + body, room - body, "checksum %016llx\n",
                                   (unsigned long long)weir__profile_hash(text, body));
}

/* Adds one run, and writes and reads the profile. */
static void go_on(struct weir_profile *profile, uint64_t reserve, uint64_t in_use, int grew) {
    uint64_t before = weir__profile_target(profile);
    struct weir_profile_run run = {~UINT64_C(0), reserve, in_use};
    struct weir_profile again;
    struct weir_problem problem;
    char text[WEIR_PROFILE_MOST_BYTES];
    size_t bytes;

    weir__profile_add(profile, run, grew);
    AT_MOST(weir__profile_target(profile), before > reserve ? before : reserve);
    bytes = weir__profile_spell(profile, key, text);
    AT_MOST(bytes, sizeof text - 1);
    if (weir__profile_parse(text, bytes, key, &again, &problem) != WEIR_PROFILE_READ)
        FAULT("%s: %s", problem.text, text);
    HOLDS(memcmp(&again, profile, sizeof again) == 0);
}

static void read_profile(const char *text, size_t bytes) {
    struct weir_profile profile, before;
    struct weir_problem problem = {.text = ""};
    char again[WEIR_PROFILE_MOST_BYTES];

    memset(&profile, 77, sizeof profile);
    before = profile;
    if (weir__profile_parse(text, bytes, key, &profile, &problem) != WEIR_PROFILE_READ) {
        HOLDS(problem.text[0] && memchr(problem.text, '\0', sizeof problem.text));
        HOLDS(memcmp(&profile, &before, sizeof profile) == 0);
        return;
    }
    SAME(weir__profile_spell(&profile, key, again), bytes);
    HOLDS(memcmp(text, again, bytes) == 0);
    go_on(&profile, UINT64_C(1) << 33, UINT64_C(1) << 32, 0);
    go_on(&profile, UINT64_MAX, 1, 1);
    go_on(&profile, UINT64_C(1) << 33, UINT64_C(1) << 33, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_bytes in = {data, size};
    unsigned whole = fuzz_choice(&in, 2);
    size_t room = 2 * WEIR_PROFILE_MOST_BYTES, bytes = in.left;
    char *text = malloc(whole ? bytes + 1 : room), *exact;

    HOLDS(text);
    if (whole && bytes > 0)
        memcpy(text, in.at, bytes);
    if (!whole)
        bytes = dress(&in, text, room);
    exact = realloc(text, bytes + 1); /* so that a read past the end is detected */
    HOLDS(exact);
    exact[bytes] = '\0';
    read_profile(exact, bytes);
    free(exact);
    return 0;
}
