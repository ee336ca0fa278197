/* SPDX-License-Identifier: MIT */
/* option_names.c: options whose value is a text that the library keeps: a device, a file, a list of peers. */
#include "config/option_kinds.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

#define LARGEST_ORDINAL 1023
#define MOST_PEER 63

/* ---- a device ---- */

int weir__option_device_scan(const char *text, const char **driver, int *ordinal,
                             struct weir_problem *problem) {
    static const char *const drivers[] = {"cuda", "model"};
    uint64_t number = 0;

    for (size_t i = 0; i < sizeof drivers / sizeof drivers[0]; i++) {
        size_t length = strlen(drivers[i]);

        if (strncmp(text, drivers[i], length) != 0 || (text[length] != '\0' && text[length] != ':'))
            continue;
        if (text[length] == ':' &&
            !weir__count_read(text + length + 1, LARGEST_ORDINAL, &number, problem))
            return weir__problem(problem, "what follows the colon is no device number");
        *driver = drivers[i];
        *ordinal = (int)number;
        return 1;
    }
    return weir__problem(problem, *text ? "there is no such device" : "it is empty");
}

/* Keeps one spelling of each device, whatever zeros precede its number. */
static int device_read(const struct weir_option_row *row, const char *text, weir_options *options,
                       struct weir_problem *problem) {
    char spelled[24];
    const char *driver, *kept;
    int ordinal;

    if (!weir__option_device_scan(text, &driver, &ordinal, problem))
        return 0;
    if (strchr(text, ':'))
        snprintf(spelled, sizeof spelled, "%s:%d", driver, ordinal);
    else
        snprintf(spelled, sizeof spelled, "%s", driver);
    kept = weir__text_keep(spelled, NULL);
    if (!kept)
        return weir__problem(problem, "out of host memory");
    *(const char **)mutable_field(row, options) = kept;
    return 1;
}

static void name_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                       size_t bytes) {
    snprintf(text, bytes, "%s", *(const char *const *)field(row, options));
}

static int name_is_set(const struct weir_option_row *row, const weir_options *options) {
    return *(const char *const *)field(row, options) != NULL;
}

static int device_check(const struct weir_option_row *row, const weir_options *options,
                        struct weir_problem *problem) {
    const char *text = *(const char *const *)field(row, options), *driver;
    int ordinal;

    return !text || weir__option_device_scan(text, &driver, &ordinal, problem);
}

const struct weir_option_kind weir__option_device = {
    FUNCTIONS(device_read, name_spell, name_is_set, device_check)};

/* ---- a file ---- */

const char weir__option_no_file[] = "off";

static int file_valid(const char *text, struct weir_problem *problem) {
    if (!*text)
        return weir__problem(problem, "it is empty");
    if (strlen(text) >= WEIR_SHOW_BYTES)
        return weir__problem(problem, "it is longer than %d bytes", WEIR_SHOW_BYTES - 1);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            return weir__problem(problem, "there is a control character in it");
    return 1;
}

/* The words of other settings, which are mistakes rather than names. */
static int is_switch_word(const char *text) {
    static const char *const words[] = {"0", "1", "on", "yes", "no", "true", "false"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(text, words[i]) == 0)
            return 1;
    return 0;
}

static int file_read(const struct weir_option_row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    const char *kept;

    if (!file_valid(text, problem))
        return 0;
    if (is_switch_word(text))
        return weir__problem(problem, "it is a switch; a file of that name is ./%s", text);
    kept = strcasecmp(text, weir__option_no_file) == 0 ? weir__option_no_file
                                                       : weir__text_keep(text, NULL);
    if (!kept)
        return weir__problem(problem, "out of host memory");
    *(const char **)mutable_field(row, options) = kept;
    return 1;
}

static int file_check(const struct weir_option_row *row, const weir_options *options,
                      struct weir_problem *problem) {
    const char *text = *(const char *const *)field(row, options);

    return !text || file_valid(text, problem);
}

const struct weir_option_kind weir__option_file = {
    FUNCTIONS(file_read, name_spell, name_is_set, file_check)};

static const char to_stderr[] = "stderr";

/* A name like that word is the word misspelt, or the other stream. */
static int oom_report_read(const struct weir_option_row *row, const char *text,
                           weir_options *options, struct weir_problem *problem) {
    if (strcasecmp(text, to_stderr) == 0)
        text = to_stderr;
    else if (strcasecmp(text, "stdout") == 0 ||
             (!strchr(text, '/') && weir__text_distance(text, strlen(text), to_stderr) <= 2))
        return weir__problem(problem, "it is nearly %s; a file of that name is ./%s", to_stderr,
                             text);
    return file_read(row, text, options, problem);
}

const struct weir_option_kind weir__option_oom_report = {
    FUNCTIONS(oom_report_read, name_spell, name_is_set, file_check)};

/* ---- peers ---- */

const char weir__option_no_peers[] = "none";

static const char all_peers[] = "all";

int weir__option_peers_scan(const char *text, uint64_t *devices, struct weir_problem *problem) {
    *devices = 0;
    if (strcasecmp(text, weir__option_no_peers) == 0)
        return 1;
    *devices = UINT64_MAX;
    if (strcasecmp(text, all_peers) == 0)
        return 1;
    *devices = 0;
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        char digits[24];
        uint64_t number;

        snprintf(digits, sizeof digits, "%.*s", (int)(length < sizeof digits ? length : 23), at);
        if (!weir__count_read(digits, MOST_PEER, &number, problem))
            return 0;
        *devices |= UINT64_C(1) << number;
        at += length;
        if (*at == '\0')
            return *devices != UINT64_MAX || weir__problem(problem, "write all for all");
    }
}

/* One spelling of each list: in order, and each device once. */
static int peers_read(const struct weir_option_row *row, const char *text, weir_options *options,
                      struct weir_problem *problem) {
    char spelled[256] = "";
    size_t length = 0;
    uint64_t devices;
    const char *kept;

    if (!weir__option_peers_scan(text, &devices, problem))
        return 0;
    for (int i = 0; i <= MOST_PEER && devices != UINT64_MAX; i++)
        if (devices >> i & 1)
            length += (size_t)snprintf(spelled + length, sizeof spelled - length, "%s%d",
                                       length ? "," : "", i);
    kept = devices == 0            ? weir__option_no_peers
           : devices == UINT64_MAX ? all_peers
                                   : weir__text_keep(spelled, NULL);
    if (!kept)
        return weir__problem(problem, "out of host memory");
    *(const char **)mutable_field(row, options) = kept;
    return 1;
}

static int peers_check(const struct weir_option_row *row, const weir_options *options,
                       struct weir_problem *problem) {
    const char *text = *(const char *const *)field(row, options);
    uint64_t devices;

    return !text || weir__option_peers_scan(text, &devices, problem);
}

const struct weir_option_kind weir__option_peers = {
    FUNCTIONS(peers_read, name_spell, name_is_set, peers_check)};
