/* SPDX-License-Identifier: MIT */
/* shims.c: see shims.h. */
#include "cli/shims.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/replace.h"
#include "cli/command.h"
#include "cli/common/shipped.h"

#ifndef WEIR_SHIM_DIR
#define WEIR_SHIM_DIR "/usr/local/share/weir/torch"
#endif

static const char *file_name_of(const char *path) {
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* ---- the interpreter ----------------------------------------------------------------------------- */

/* Returns 1 if the file has the name of a Python interpreter ("python", "python3", "python3.13t", ...), else 0. */
static int is_python(const char *path) {
    const char *name = file_name_of(path);

    return strncmp(name, "python", 6) == 0 && name[6 + strspn(name + 6, "0123456789.t")] == '\0';
}

enum { MAX_WORDS = 8 };

/* A line of text that is split into words.  A NULL follows the last word. */
struct line {
    char text[512];
    char *words[MAX_WORDS + 1];
};

static void split_line(struct line *line, char *text) {
    for (int i = 0; i < MAX_WORDS; i++)
        line->words[i] = strtok_r(text, " \t\n", &text);
}

/* Returns the argument of env(1)'s option -S (--split-string), which env splits into words.  Returns NULL if the word
 * is another option. */
static const char *text_split_by_env(char *const *word) {
    static const char spelt[] = "--split-string";
    const char *option = *word + 1 + strspn(*word + 1, "0iv");

    if (strncmp(*word, spelt, sizeof spelt - 1) == 0)
        option = *word + sizeof spelt - 2;
    else if (*option != 'S')
        return NULL;
    option += 1 + (option[1] == '=');
    return *option ? option : word[1];
}

/* Returns 1 if the word is an option of env(1) and the next word is its value, else 0. */
static int has_value_in_next_word(const char *word) {
    const char *letter = word + 1 + strspn(word + 1, "0iv");

    return strcmp(letter, "u") == 0 || strcmp(letter, "C") == 0 || strcmp(word, "--unset") == 0 ||
           strcmp(word, "--chdir") == 0;
}

/* Returns the command in the arguments of env(1): skips options, their values, and NAME=VALUE.  Splits the argument of
 * the option -S into `line', unless `line' is NULL. */
static char *const *command_after_env(char *const *words, struct line *line) {
    for (; *words && ((*words)[0] == '-' || strchr(*words, '=')); words++) {
        const char *text = line && (*words)[0] == '-' ? text_split_by_env(words) : NULL;
        char *const *found = NULL;

        if (text) {
            snprintf(line->text, sizeof line->text, "%s", text);
            split_line(line, line->text);
            found = command_after_env(line->words, NULL);
        }
        if (found && *found)
            return found;
        if (has_value_in_next_word(*words) && words[1])
            words++;
    }
    return words;
}

/* Reads the words after "#!" in the first line of a script.  Returns 1 on success, 0 if there are none. */
static int read_interpreter_line(const char *path, struct line *line) {
    FILE *file = fopen(path, "re");
    int is_script = file && fgets(line->text, sizeof line->text, file) && line->text[0] == '#' &&
                    line->text[1] == '!';

    if (file)
        fclose(file);
    if (is_script)
        split_line(line, line->text + 2);
    return is_script && line->words[0];
}

int shim_python(char *const *command, char *python, size_t bytes) {
    struct line line = {0}, behind = {0};

    for (int depth = 0; depth < 2 && command[0]; depth++) {
        if (strcmp(file_name_of(command[0]), "env") == 0)
            command = command_after_env(command + 1, &behind);
        if (command[0] && !command_find(command[0], python, bytes))
            return 0;
        if (command[0] && is_python(python))
            return 1;
        if (!command[0] || !read_interpreter_line(python, &line))
            break;
        command = line.words;
    }
    errno = 0;
    return 0;
}

/* ---- processes ----------------------------------------------------------------------------------- */

extern char **environ;

/* Returns an array of all environment variables except LD_PRELOAD.  The caller frees the array.  Returns NULL if there
 * is no host memory. */
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

/* Runs a command, and stores the beginning of its output in `text'.  Returns its status as waitpid(2) does, or -1 with
 * errno. */
static int run_and_read(char *const *command, int from, char *text, size_t bytes) {
    posix_spawn_file_actions_t actions;
    char **plain = plain_environment();
    void (*before)(int);
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
    posix_spawn_file_actions_adddup2(&actions, ends[1], from);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO + STDERR_FILENO - from, "/dev/null",
                                     O_WRONLY, 0);
    /* waitpid(2) returns no status in a process that ignores SIGCHLD */
    before = signal(SIGCHLD, SIG_DFL);
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
    (void)signal(SIGCHLD, before);
    errno = error;
    return status;
}

/* ---- what exists --------------------------------------------------------------------------------- */

/* Reads the version of PyTorch from torch/version.py, which has a line such as "__version__ = '2.11.0+cu130'". */
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

static __attribute__((format(printf, 3, 4))) void
set_shim_state(struct shim *shim, enum shim_state state, const char *format, ...) {
    va_list arguments;

    shim->state = state;
    va_start(arguments, format);
    vsnprintf(shim->why, sizeof shim->why, format, arguments);
    va_end(arguments);
    shim->why[strcspn(shim->why, "\n")] = '\0';
}

/* Stores why the interpreter failed in shim->why: the last line of a Python exception, or else the first line of the
 * output. */
static void report_interpreter_failure(struct shim *shim, char *const *command) {
    char text[4096], *line = text, *next;

    if (run_and_read(command, STDERR_FILENO, text, sizeof text) < 0)
        snprintf(text, sizeof text, "%s", strerror(errno));
    while (strncmp(text, "Traceback", 9) == 0 && (next = strchr(line, '\n')) && next[1])
        line = next + 1;
    set_shim_state(shim, SHIM_NONE, "%s fails: %s", shim->python, *line ? line : "it says nothing");
}

static int is_supported(const struct shim *shim) {
    int major = 0, minor = 0;

    return sscanf(shim->version, "%d.%d", &major, &minor) == 2 &&
           100 * major + minor >= WEIR_TORCH_FIRST;
}

void shim_find(struct shim *shim, const char *python) {
    static const char question[] = "import importlib.util as u, sys\n"
                                   "s = u.find_spec('torch')\n"
                                   "print(*list(s and s.submodule_search_locations or ())[:1])\n"
                                   "print(*sys.path, sep='\\n')";
    char *command[] = {(char *)python, (char *)"-c", (char *)question, NULL};
    char library[PATH_MAX + 32], id[WEIR_BUILD_ID_BYTES];
    size_t length;

    *shim = (struct shim){.python = python};
    if (run_and_read(command, STDOUT_FILENO, shim->folders, sizeof shim->folders) != 0) {
        shim->folders[0] = '\0';
        report_interpreter_failure(shim, command);
        return;
    }
    /* The first line of the output is the folder of PyTorch. */
    length = strcspn(shim->folders, "\n");
    snprintf(shim->torch, sizeof shim->torch, "%.*s", (int)length, shim->folders);
    memmove(shim->folders, shim->folders + length, strlen(shim->folders + length) + 1);
    snprintf(library, sizeof library, "%s/lib/" WEIR_SHIM_LIBRARY, shim->torch);
    read_version(shim);
    if (shim->torch[0] != '/') {
        set_shim_state(shim, SHIM_NONE, "torch is not installed for %s", python);
    } else if (access(library, R_OK) != 0) {
        set_shim_state(shim, SHIM_NONE, "torch %s at %s is not for CUDA", shim->version,
                       shim->torch);
    } else if (!weir__shim_id_of(library, id)) {
        set_shim_state(shim, SHIM_FAILED, "no build id in %s", library);
    } else if (!weir__shim_path(shim->path, sizeof shim->path, id, ".so") ||
               !weir__shim_path(shim->failed, sizeof shim->failed, id, ".failed")) {
        set_shim_state(shim, SHIM_FAILED, "neither XDG_CACHE_HOME nor HOME is a folder's path");
    } else if (!is_supported(shim)) {
        set_shim_state(shim, SHIM_UNSUPPORTED, "PyTorch %s: not supported (%d.%d and later are)",
                       shim->version, WEIR_TORCH_FIRST / 100, WEIR_TORCH_FIRST % 100);
    } else if (access(shim->path, R_OK) == 0) {
        shim->state = SHIM_READY;
        if (!weir__shim_is_safe(shim->path))
            set_shim_state(shim, SHIM_FAILED,
                           "others may write to %s.  To compile it again: weir torch --build %s",
                           shim->path, python);
    } else {
        shim->state =
            weir__shim_failure(id, shim->why, sizeof shim->why) ? SHIM_FAILED : SHIM_MISSING;
    }
}

/* ---- building ------------------------------------------------------------------------------------ */

/* Creates the missing folders of a file's path, and writes the folder of the file to `folder'.  Returns 1 if a file can
 * be created there, 0 with errno if not. */
static int make_folders(const char *path, char folder[PATH_MAX]) {
    snprintf(folder, PATH_MAX, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(folder, 0700); /* access(2) below reports a failure */
        *slash = '/';
    }
    *strrchr(folder, '/') = '\0';
    return access(folder, W_OK | X_OK) == 0;
}

/* Stores why a compilation failed: the first line of `text' in shim->why, all of it in the file shim->failed. */
static void store_shim_failure(struct shim *shim, const char *text) {
    int needs_compiler = strncmp(text, "no C++ compiler", 15) == 0,
        has_details = !!strchr(text, '\n');
    char *file = NULL;

    set_shim_state(shim, SHIM_FAILED, "%.*s%s%s.  %s: weir torch --build %s",
                   (int)(strcspn(text, "\n") < 1024 ? strcspn(text, "\n") : 1024), text,
                   has_details && !needs_compiler ? ".  Details: " : "",
                   has_details && !needs_compiler ? shim->failed : "",
                   needs_compiler ? "Install g++, or set CXX, then" : "To try again", shim->python);
    if (asprintf(&file, "%s\n%s", shim->why, text) >= 0)
        (void)weir__replace_file(shim->failed, 0644, 0, file, strlen(file));
    free(file);
}

void shim_build(struct shim *shim) {
    char helper[PATH_MAX], folder[PATH_MAX], library[PATH_MAX] = "", *text = calloc(1, 16384);
    char *command[] = {(char *)shim->python, helper, shim->path, library, NULL};
    const char *why;
    int status;

    if (!shipped_find(helper, sizeof helper, "lib/adapters/torch/weir_torch_build.py",
                      "share/weir/torch/weir_torch_build.py",
                      WEIR_SHIM_DIR "/weir_torch_build.py")) {
        set_shim_state(shim, SHIM_FAILED, "not installed: %s", helper);
    } else if (!make_folders(shim->path, folder)) {
        set_shim_state(shim, SHIM_FAILED,
                       "cannot write to the cache folder %s: %s.  Set XDG_CACHE_HOME to another",
                       folder, strerror(errno));
    } else if (text) {
        (void)preloading_find("libweir-preload.so", library, sizeof library, &why);
        status = run_and_read(command, STDOUT_FILENO, text, 16384);
        if (status == 0 && access(shim->path, R_OK) == 0) {
            shim->state = SHIM_READY;
            (void)unlink(shim->failed);
        } else {
            store_shim_failure(shim, status < 0 ? strerror(errno)
                                     : *text    ? text
                                                : "the process that compiles it was ended");
        }
    } else {
        set_shim_state(shim, SHIM_FAILED, "%s", strerror(ENOMEM));
    }
    free(text);
}

/* ---- compiling beside a program ------------------------------------------------------------------ */

/* Redirects standard input, output and error to /dev/null, and closes all other descriptors except `but'.  Otherwise a
 * pipe of the program would stay open in this process, and the reader of the pipe would wait. */
static void close_all_files_except(int but) {
    int null = open("/dev/null", O_RDWR);
    DIR *files = opendir("/proc/self/fd");
    struct dirent *entry;

    for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++)
        (void)dup2(null, i);
    while (files && (entry = readdir(files))) {
        int file = atoi(entry->d_name);

        if (file > STDERR_FILENO && file != but && file != dirfd(files))
            close(file);
    }
    if (files)
        closedir(files);
}

/* Finds the shim.  Compiles a missing shim, unless another process is compiling it.  `lock' is from
 * weir__shim_lock(). */
static void find_and_build(struct shim *shim, const char *python, int lock) {
    shim_find(shim, python);
    if (shim->state == SHIM_MISSING &&
        !weir__shim_locked_by_other(lock, file_name_of(shim->path)) &&
        access(shim->path, R_OK) != 0)
        shim_build(shim);
    else if (shim->state == SHIM_UNSUPPORTED)
        (void)weir__replace_file(shim->failed, 0644, 0, shim->why, strlen(shim->why));
}

/* Finds and compiles the shim in a child process.  Kills the child after MAX_SECONDS, before programs stop waiting. */
static void build_in_time(const char *python, int lock) {
    enum { MAX_SECONDS = 240 };
    static const struct timespec pause = {0, 50000000};
    static const char too_long[] =
        "the process that compiles it was ended, since it took more than 240 s";
    uint64_t end = weir__clock_ns() + MAX_SECONDS * UINT64_C(1000000000);
    struct shim *shim =
        mmap(NULL, sizeof *shim, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t builder = shim != MAP_FAILED ? fork() : -1;

    if (builder == 0) {
        (void)setsid();
        find_and_build(shim, python, lock);
        _exit(0);
    }
    while (builder > 0 && waitpid(builder, NULL, WNOHANG) == 0) {
        (void)nanosleep(&pause, NULL);
        if (weir__clock_ns() < end)
            continue;
        if (kill(-builder, SIGKILL) != 0)
            (void)kill(builder, SIGKILL);
        (void)waitpid(builder, NULL, 0);
        if (shim->state == SHIM_MISSING)
            store_shim_failure(shim, too_long);
        return;
    }
}

/* Builds the shim in a grandchild process, because the user's program must not have a child that it did not create.
 * Locks before the forks, so that the program sees the lock and waits for the shim. */
void shim_build_beside(const char *python) {
    char path[PATH_MAX], folder[PATH_MAX];
    pid_t child;
    int lock;

    if (!weir__shim_path(path, sizeof path, "", "") || !make_folders(path, folder))
        return;
    lock = weir__shim_lock();
    child = fork();
    if (child == 0) {
        if (fork() != 0)
            _exit(0);
        (void)setsid();
        (void)!nice(10);
        close_all_files_except(lock);
        build_in_time(python, lock);
        _exit(0);
    }
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    if (lock >= 0)
        close(lock);
}
