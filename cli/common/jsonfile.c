/* SPDX-License-Identifier: MIT */
/* jsonfile.c: see jsonfile.h. */
#include "cli/common/jsonfile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include <weir/weir.h>

#include "cli/common/files.h"

/* Writes a JSON array, with one value on each line. */
static int write_array(FILE *file, const json_t *array) {
    const json_t *value;
    size_t i;

    fputs("[", file);
    json_array_foreach(array, i, value) {
        fputs(i ? ",\n " : "\n ", file);
        if (json_dumpf(value, file, JSON_REAL_PRECISION(12)) != 0)
            return 0;
    }
    fputs("\n]", file);
    return 1;
}

/* Writes a JSON object with one key on each line.  If a value is an array of objects, writes each object on a line. */
static int write_object(FILE *file, const json_t *object) {
    const char *key, *before = "{\n";
    json_t *value;
    int good = 1;

    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        fprintf(file, "%s\"%s\": ", before, key);
        good =
            good && (json_is_object(json_array_get(value, 0))
                         ? write_array(file, value)
                         : json_dumpf(value, file, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12)) == 0);
        before = ",\n";
    }
    fputs("\n}", file);
    return good;
}

static int write_value(FILE *file, const void *value) {
    int good = json_is_array((const json_t *)value) ? write_array(file, value)
                                                    : value && write_object(file, value);

    fputc('\n', file);
    return good && fflush(file) == 0 && !ferror(file);
}

int jsonfile_write(const char *path, const json_t *value) {
    int good = fflush(stdout) == 0;

    if (good && strcmp(path, "-") != 0)
        return output_replace(path, write_value, value);
    if (good && write_value(stdout, value))
        return 1;
    fprintf(stderr, "weir: cannot write standard output: %s\n", strerror(errno));
    return 0;
}

json_t *jsonfile_common(int argc, char **argv) {
    json_t *command = json_array();
    struct utsname host;
    time_t now = time(NULL);
    struct tm broken;
    char date[32] = "";

    if (gmtime_r(&now, &broken))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &broken);
    json_array_append_new(command, json_string("weir"));
    json_array_append_new(command, json_string(argv[0] + strlen("weir ")));
    for (int i = 1; i < argc; i++)
        json_array_append_new(command, json_string(argv[i]));
    return json_pack("{s:i,s:s,s:s,s:s,s:o}", "schema", 2, "weir", weir_version(), "date", date,
                     "host", uname(&host) == 0 ? host.nodename : "", "command", command);
}

json_t *jsonfile_integer(uint64_t value) {
    return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

json_t *jsonfile_rounded(double value, double per) {
    return json_real((double)(int64_t)(value * per + 0.5) / per);
}

char *jsonfile_plain(char *text) {
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < ' ' || (unsigned char)*at > '~')
            *at = '?';
    return text;
}

json_t *jsonfile_text(const char *text) {
    json_t *string = json_string(text);
    char *plain = string ? NULL : strdup(text);

    if (plain)
        string = json_string(jsonfile_plain(plain));
    free(plain);
    return string;
}
