/* SPDX-License-Identifier: MIT */
/* settings_file.c: see settings_file.h. */
#include "cli/common/settings_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"

enum { FAILED = 1, BAD_VALUE };

struct reading {
    struct weir_cli_settings *settings;
    const char *flag, *path;
    unsigned line;
    struct weir_sources flags; /* the settings that flags have set */
};

static int refuse(const struct reading *reading, const char *why) {
    fprintf(stderr, "weir: %s %s:%u: %s\n", reading->flag, reading->path, reading->line, why);
    return BAD_VALUE;
}

static int find(const char *name) {
    int i = 0;

    while (i < WEIR_SETTING_COUNT &&
           strcmp(weir__setting_row((enum weir_setting)i)->name, name) != 0)
        i++;
    return i;
}

static int take_line(struct reading *reading, char *line) {
    static char source[WEIR_SETTING_COUNT][64];
    weir_options *options = &reading->settings->options, unused = *options;
    char *value = strchr(line, '='), why[512], name[80];
    int setting;

    if (!*line || *line == '#')
        return 0;
    weir__quote(line, name, sizeof name);
    if (!value) {
        snprintf(why, sizeof why, "%s: expected NAME=VALUE, as engine=pool", name);
        return refuse(reading, why);
    }
    *value++ = '\0';
    setting = find(line);
    if (setting == WEIR_SETTING_COUNT) {
        weir__quote(line, name, sizeof name);
        snprintf(why, sizeof why, "there is no setting %s; weir help --all lists them", name);
        return refuse(reading, why);
    }
    if (reading->flags.of[setting])
        options = &unused;
    if (weir__option_set(options, (enum weir_setting)setting, NULL, value, why, sizeof why) !=
        WEIR_OK)
        return refuse(reading, why);
    if (options == &unused)
        return 0;
    snprintf(source[setting], sizeof source[setting], "flag %s", reading->flag);
    reading->settings->sources.of[setting] = source[setting];
    return 0;
}

int settings_file_read(struct weir_cli_settings *settings, const char *flag, const char *path) {
    struct reading reading = {
        .settings = settings, .flag = flag, .path = path, .flags = settings->sources};
    char why[128], *text = weir__file_text(path, why, sizeof why), *rest = text, *line;
    int code = 0;

    if (!text) {
        fprintf(stderr, "weir: %s %s: %s\n", flag, path, why);
        return FAILED;
    }
    while (code == 0 && (reading.line++, line = strsep(&rest, "\n"))) {
        line[strcspn(line, "\r")] = '\0';
        code = take_line(&reading, line);
    }
    free(text);
    return code;
}
