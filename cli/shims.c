/* SPDX-License-Identifier: MIT */
/* shims.c: see shims.h.
 *
 * An interpreter is asked in a process of its own, which has nothing preloaded.  What compiles writes the shim as a whole,
 * so two that compile at once do no harm.
 */
#include "cli/shims.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/replace.h"
#include "cli/common/shipped.h"

#ifndef WEIR_SHIM_DIR
#define WEIR_SHIM_DIR "/usr/local/share/weir/torch"
#endif

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* ---- the interpreter ----------------------------------------------------------------------------- */

/* As execvp finds it.  1: it is there. */
static int find_program(const char *name, char *path, size_t bytes) {
    const char *list = getenv("PATH");
    size_t length;

    if (strchr(name, '/'))
        return snprintf(path, bytes, "%s", name) < (int)bytes && access(path, X_OK) == 0;
    for (; list && *list; list += length + (list[length] != '\0')) {
        length = strcspn(list, ":");
        if (length > 0 && snprintf(path, bytes, "%.*s/%s", (int)length, list, name) < (int)bytes &&
            access(path, X_OK) == 0)
            return 1;
    }
    return 0;
}

/* "python", "python3", "python3.13t". */
static int is_python(const char *path) {
    const char *name = name_of(path);

    return strncmp(name, "python", 6) == 0 && name[6 + strspn(name + 6, "0123456789.t")] == '\0';
}

/* The word behind env that is a command: not one of its options, nor a variable. */
static char *const *behind_env(char *const *words) {
    while (*words && ((*words)[0] == '-' || strchr(*words, '=')))
        words++;
    return words;
}

/* The words of a script's first line behind "#!", at most three of them.  1: it has such a line. */
static int first_line(const char *path, char line[512], char *words[4]) {
    FILE *file = fopen(path, "re");
    int is_script = file && fgets(line, 512, file) && line[0] == '#' && line[1] == '!';
    char *rest = line + 2;

    if (file)
        fclose(file);
    for (int i = 0; i < 4; i++)
        words[i] = is_script && i < 3 ? strtok_r(rest, " \t\n", &rest) : NULL;
    return words[0] != NULL;
}

int shim_python(char *const *command, char *python, size_t bytes) {
    char line[512], *words[4];

    for (int depth = 0; depth < 2 && command[0]; depth++) {
        if (strcmp(name_of(command[0]), "env") == 0)
            command = behind_env(command + 1);
        if (!command[0] || !find_program(command[0], python, bytes))
            return 0;
        if (is_python(python))
            return 1;
        if (!first_line(python, line, words))
            return 0;
        command = words;
    }
    return 0;
}

/* ---- processes ----------------------------------------------------------------------------------- */

extern char **environ;

/* This environment without what is preloaded; to be freed.  NULL: no memory. */
static char **plain_environment(void) {
    size_t count = 0, at = 0;
    char **plain;

    while (environ[count])
        count++;
    plain = calloc(count + 1, sizeof *plain);
    for (size_t i = 0; plain && i < count; i++)
        if (strncmp(environ[i], "LD_PRELOAD=", 11) != 0)
            plain[at++] = environ[i];
    return plain;
}

/* What a process prints, up to `bytes' of it, and ended by a zero; its status as of waitpid, or -1 and errno. */
static int ask(char *const *command, char *text, size_t bytes) {
    posix_spawn_file_actions_t actions;
    char **plain = plain_environment();
    int ends[2], error = plain ? 0 : ENOMEM, status = -1;
    size_t length = 0;
    char more[512];
    ssize_t got;
    pid_t process;

    text[0] = '\0';
    if (!error && pipe2(ends, O_CLOEXEC) != 0)
        error = errno;
    if (error) {
        free(plain);
        errno = error;
        return -1;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    error = posix_spawn(&process, command[0], &actions, NULL, command, plain);
    posix_spawn_file_actions_destroy(&actions);
    free(plain);
    close(ends[1]);
    while (!error && ((got = read(ends[0], more, sizeof more)) > 0 || (got < 0 && errno == EINTR)))
        for (ssize_t i = 0; i < got && length + 1 < bytes; i++)
            text[length++] = more[i];
    text[length] = '\0';
    close(ends[0]);
    while (!error && waitpid(process, &status, 0) < 0 && errno == EINTR)
        ;
    errno = error;
    return status;
}

/* ---- what there is ------------------------------------------------------------------------------- */

/* "__version__ = '2.11.0+cu130'" of torch/version.py. */
static void read_version(struct shim *shim) {
    char path[PATH_MAX + 16], line[256];
    FILE *file;

    snprintf(path, sizeof path, "%s/version.py", shim->torch);
    file = fopen(path, "re");
    while (file && !shim->version[0] && fgets(line, sizeof line, file))
        (void)sscanf(line, "__version__ = %*['\"]%63[^'\"]", shim->version);
    if (file)
        fclose(file);
}

static __attribute__((format(printf, 2, 3))) void fail(struct shim *shim, const char *format, ...) {
    va_list arguments;

    shim->state = SHIM_FAILED;
    va_start(arguments, format);
    vsnprintf(shim->why, sizeof shim->why, format, arguments);
    va_end(arguments);
    shim->why[strcspn(shim->why, "\n")] = '\0';
}

static int beside(const struct shim *shim, char *path, size_t bytes, const char *ending) {
    return snprintf(path, bytes, "%.*s%s", (int)(strlen(shim->path) - strlen(".so")), shim->path,
                    ending) < (int)bytes;
}

/* Why it could not be built, the last time. */
static void read_failure(struct shim *shim) {
    char path[PATH_MAX], line[sizeof shim->why];
    FILE *file = beside(shim, path, sizeof path, ".failed") ? fopen(path, "re") : NULL;

    if (!file)
        return;
    fail(shim, "%s", fgets(line, sizeof line, file) ? line : "unknown");
    fclose(file);
}

void shim_find(struct shim *shim, const char *python) {
    static const char question[] = "import importlib.util as u\n"
                                   "s = u.find_spec('torch')\n"
                                   "print(*list(s and s.submodule_search_locations or ())[:1])";
    char *command[] = {(char *)python, (char *)"-c", (char *)question, NULL};
    char library[PATH_MAX + 32], id[WEIR_BUILD_ID_BYTES];

    *shim = (struct shim){.state = SHIM_NONE, .python = python};
    if (ask(command, shim->torch, sizeof shim->torch) != 0 || shim->torch[0] != '/')
        return;
    shim->torch[strcspn(shim->torch, "\n")] = '\0';
    snprintf(library, sizeof library, "%s/lib/" WEIR_SHIM_LIBRARY, shim->torch);
    if (access(library, R_OK) != 0)
        return;
    read_version(shim);
    if (!weir__shim_id_of(library, id)) {
        fail(shim, "no build id in %s", library);
    } else if (!weir__shim_path(shim->path, sizeof shim->path, id, ".so")) {
        fail(shim, "neither XDG_CACHE_HOME nor HOME is a folder's path");
    } else if (access(shim->path, R_OK) == 0) {
        shim->state = SHIM_READY;
        if (!weir__shim_is_safe(shim->path))
            fail(shim, "others may write to %s", shim->path);
    } else {
        shim->state = SHIM_MISSING;
        read_failure(shim);
    }
}

/* ---- building ------------------------------------------------------------------------------------ */

/* Each folder on the way to a file.  1: the file can be made there; 0 and errno. */
static int make_folders(const char *path) {
    char folder[PATH_MAX];

    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(folder, 0700); /* what cannot be made is not there below */
        *slash = '/';
    }
    *strrchr(folder, '/') = '\0';
    return access(folder, W_OK | X_OK) == 0;
}

static void note_failure(struct shim *shim, const char *text) {
    char path[PATH_MAX];

    fail(shim, "%s", text);
    if (beside(shim, path, sizeof path, ".failed"))
        (void)weir__replace_file(path, 0644, 0, text, strlen(text));
}

double shim_build(struct shim *shim) {
    uint64_t began = weir__clock_ns();
    char helper[PATH_MAX], path[PATH_MAX], *text = calloc(1, 16384);
    char *command[] = {(char *)shim->python, helper, shim->path, NULL};
    int status;

    if (!shipped_find(helper, sizeof helper, "lib/adapters/torch/weir_torch_build.py",
                      "share/weir/torch/weir_torch_build.py",
                      WEIR_SHIM_DIR "/weir_torch_build.py")) {
        fail(shim, "not installed: %s", helper);
    } else if (!make_folders(shim->path)) {
        fail(shim, "%s: %s", shim->path, strerror(errno));
    } else if (text) {
        status = ask(command, text, 16384);
        if (status == 0 && access(shim->path, R_OK) == 0) {
            shim->state = SHIM_READY;
            if (beside(shim, path, sizeof path, ".failed"))
                (void)unlink(path);
        } else {
            note_failure(shim, status < 0 ? strerror(errno)
                               : *text    ? text
                                          : "the process that compiles it was ended");
        }
    } else {
        fail(shim, "%s", strerror(ENOMEM));
    }
    free(text);
    return (double)(weir__clock_ns() - began) / 1e9;
}
