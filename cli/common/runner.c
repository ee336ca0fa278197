/* SPDX-License-Identifier: MIT */
/* runner.c: see runner.h. */
#include "cli/common/runner.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/common/progress.h"

static const char magic[8] = "weirjob1";

/* The options that are pointers to text.  The job contains a copy of each text. */
#define TEXTS(X) X(device) X(profile) X(oom_report) X(peers)

void job_make(struct job *job, const char *configuration, double busy_factor,
              const weir_options *options, const char *device_source) {
    memset(job, 0, sizeof *job);
    memcpy(job->magic, magic, sizeof magic);
    job->bytes = sizeof *job;
    if (configuration)
        snprintf(job->configuration, sizeof job->configuration, "%s", configuration);
    job->busy_factor = busy_factor;
    job->options = *options;
#define KEEP(name)                                                                                 \
    job->options.name = NULL;                                                                      \
    if (options->name)                                                                             \
        snprintf(job->name, sizeof job->name, "%s", options->name);
    TEXTS(KEEP)
#undef KEEP
    if (device_source)
        snprintf(job->device_source, sizeof job->device_source, "%s", device_source);
}

/* ---------------------------------------------------------------- parent ---- */

/* Makes a pipe with descriptors of 10 or higher, because the child uses the descriptors 0 to 4.  Returns 1 on success,
 * 0 with errno on failure. */
static int high_pipe(int ends[2]) {
    int low[2];

    if (pipe2(low, O_CLOEXEC) != 0)
        return 0;
    ends[0] = fcntl(low[0], F_DUPFD_CLOEXEC, 10);
    ends[1] = fcntl(low[1], F_DUPFD_CLOEXEC, 10);
    close(low[0]);
    close(low[1]);
    if (ends[0] >= 0 && ends[1] >= 0)
        return 1;
    if (ends[0] >= 0)
        close(ends[0]);
    if (ends[1] >= 0)
        close(ends[1]);
    return 0;
}

/* Starts the child process.  The child's standard output goes to the parent's standard error, because the parent's
 * standard output is for the table of results.  Returns 0 on success, an errno on failure. */
static int start_runner_child(int job_fd, int trace_fd, int result_fd, pid_t *child) {
    static char name[] = "weir", subcommand[] = RUNNER_SUBCOMMAND;
    char *arguments[] = {name, subcommand, NULL};
    posix_spawn_file_actions_t actions;
    extern char **environ;
    int error = posix_spawn_file_actions_init(&actions);

    if (error)
        return error;
    error = posix_spawn_file_actions_adddup2(&actions, job_fd, CHILD_JOB_FD);
    if (!error)
        error = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    if (!error && trace_fd >= 0)
        error = posix_spawn_file_actions_adddup2(&actions, trace_fd, CHILD_TRACE_FD);
    if (!error)
        error = posix_spawn_file_actions_adddup2(&actions, result_fd, CHILD_RESULT_FD);
    if (!error)
        error = posix_spawn(child, "/proc/self/exe", &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Describes in `message' how a child process ended that has written no result. */
static void describe_child_end(int status, char *message, size_t message_bytes) {
    if (WIFSIGNALED(status))
        snprintf(message, message_bytes, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(message, message_bytes, "the child ended with code %d and no result",
                 WEXITSTATUS(status));
}

/* Reads the child's result from result_fd, closes result_fd, and waits for the end of the child.  Returns the
 * result.  On failure, writes the reason to `message' and returns NULL. */
static json_t *read_child_result(int result_fd, pid_t child, char *message, size_t message_bytes) {
    FILE *file = fdopen(result_fd, "r");
    json_t *result = file ? json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    const char *reason;
    int status = 0;

    if (file)
        fclose(file); /* if the child is still writing, it gets SIGPIPE and ends */
    else
        close(result_fd);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    reason = json_string_value(json_object_get(result, "error"));
    if (result && !reason && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return result;
    if (reason)
        snprintf(message, message_bytes, "%s", reason);
    else
        describe_child_end(status, message, message_bytes);
    json_decref(result);
    return NULL;
}

json_t *runner_run(const struct job *job, int trace_fd, char *message, size_t message_bytes) {
    int jobs[2], results[2], error;
    pid_t child;

    message[0] = '\0';
    if (interrupt_has_arrived())
        return NULL;
    if (!high_pipe(jobs))
        goto failed;
    if (!high_pipe(results))
        goto close_jobs;
    /* The whole job fits into the pipe, so write(2) returns before the child reads the job. */
    _Static_assert(sizeof *job <= 4096, "a job fits into the pipe");
    error = write(jobs[1], job, sizeof *job) == (ssize_t)sizeof *job ? 0 : errno;
    close(jobs[1]);
    if (!error)
        error = start_runner_child(jobs[0], trace_fd, results[1], &child);
    close(jobs[0]);
    close(results[1]);
    if (!error)
        return read_child_result(results[0], child, message, message_bytes);
    close(results[0]);
    snprintf(message, message_bytes, "cannot start a process: %s", strerror(error));
    return NULL;

close_jobs:
    close(jobs[0]);
    close(jobs[1]);
failed:
    snprintf(message, message_bytes, "cannot make a pipe: %s", strerror(errno));
    return NULL;
}

/* ----------------------------------------------------------------- child ---- */

int job_read(struct job *job) {
    size_t got = 0;

    while (got < sizeof *job) {
        ssize_t n = read(CHILD_JOB_FD, (char *)job + got, sizeof *job - got);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        got += (size_t)n;
    }
    if (memcmp(job->magic, magic, sizeof magic) != 0 || job->bytes != sizeof *job)
        return 0;
#define GIVE(name) job->options.name = job->name[0] ? job->name : NULL;
    TEXTS(GIVE)
#undef GIVE
    return 1;
}

int result_send(json_t *result) {
    FILE *file = fdopen(CHILD_RESULT_FD, "w");
    int sent = file && result && json_dumpf(result, file, JSON_COMPACT) == 0;

    if (file && fclose(file) != 0)
        sent = 0;
    json_decref(result);
    return sent;
}
