/* SPDX-License-Identifier: MIT */
/* jsonfile.c: see jsonfile.h. */
#include "cli/common/jsonfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <weir/weir.h>

#include "base/replace.h"

int jsonfile_can_make(const char *path) {
    char *place = realpath(path, NULL), *beside = NULL;
    int file = -1, error;

    if (asprintf(&beside, "%s.XXXXXX", place ? place : path) >= 0)
        file = mkostemp(beside, O_CLOEXEC);
    error = errno;
    if (file >= 0) {
        close(file);
        unlink(beside);
    }
    free(beside);
    free(place);
    errno = error;
    return file >= 0;
}

static int check(const char *flag, const char *path, int is_replaced) {
    struct stat status;
    int error = 0, is_there;

    if (!path || strcmp(path, "-") == 0)
        return 1;
    is_there = stat(path, &status) == 0;
    if (is_there && S_ISDIR(status.st_mode))
        error = EISDIR;
    else if (is_there ? access(path, W_OK) != 0 : errno != ENOENT)
        error = errno;
    else if ((!is_there || (is_replaced && S_ISREG(status.st_mode))) && !jsonfile_can_make(path))
        error = errno;
    if (error)
        fprintf(stderr, "weir: %s %s: %s\n", flag, path, strerror(error));
    return !error;
}

int jsonfile_check(const char *flag, const char *path) {
    return check(flag, path, 1);
}

int jsonfile_check_to_add(const char *flag, const char *path) {
    return check(flag, path, 0);
}

/* Writes an array, one value a line. */
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

/* Writes an object, one key a line; an array in it, one value a line. */
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

static int write_value(FILE *file, const json_t *value) {
    int good = json_is_array(value) ? write_array(file, value) : write_object(file, value);

    fputc('\n', file);
    return good && fflush(file) == 0 && !ferror(file);
}

/* Makes the whole text first, so that the file is replaced as a whole. */
static int write_file(const char *path, const json_t *value) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    int good = file && write_value(file, value);

    if (file && fclose(file) != 0)
        good = 0;
    errno = good ? weir__replace_file(path, 0666, 0, text, bytes) : ENOMEM;
    free(text);
    return errno == 0;
}

int jsonfile_write(const char *path, const json_t *value) {
    int to_stdout = strcmp(path, "-") == 0;
    int good = value && fflush(stdout) == 0 &&
               (to_stdout ? write_value(stdout, value) : write_file(path, value));

    if (!good)
        fprintf(stderr, "weir: cannot write %s: %s\n", to_stdout ? "standard output" : path,
                strerror(errno));
    return good;
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

json_t *jsonfile_text(const char *text) {
    json_t *string = json_string(text);
    char *plain = string ? NULL : strdup(text);

    for (char *at = plain; at && *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f || (unsigned char)*at > 0x7f)
            *at = '?';
    if (plain)
        string = json_string(plain);
    free(plain);
    return string;
}
