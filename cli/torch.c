/* SPDX-License-Identifier: MIT */
/* torch.c: `weir torch': reports whether the shim for a PyTorch exists (shims.h), and compiles it in advance. */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/shims.h"

struct torch {
    int build;
    char **command; /* the Python interpreter, or NULL if the user named none */
};

static const struct weir_cli_flag flags[] = {
    {"build", 'b', NULL, weir_cli_read_switch, offsetof(struct torch, build),
     "Compile the shim if there is none, even if an earlier compilation has failed."},
    {0}};

static error_t parse_torch_argument(int key, char *argument, struct argp_state *state) {
    struct torch *torch = state->input;

    if (key != ARGP_KEY_ARG)
        return weir_cli_read_flag(flags, key, argument, state);
    if (state->arg_num > 0)
        argp_error(state, "more than one interpreter");
    torch->command = &state->argv[state->next - 1];
    return 0;
}

static const char doc[] =
    "Reports whether weir can be PyTorch's allocator under `weir run'.  weir needs a shim for "
    "this: "
    "a "
    "small library, compiled for one build of PyTorch.\v`weir run' compiles the shim in parallel "
    "with the program when it is first needed, which takes about half a minute and a C++ compiler, "
    "but no CUDA "
    "toolkit.  PYTHON is the "
    "interpreter that has PyTorch.  Default: python3.\n\nExit code: 0 there is a shim, 1 there is "
    "none, 2 usage.";

static int report_shim(const struct shim *shim, int is_named) {
    switch (shim->state) {
    case SHIM_READY:
        printf("PyTorch %s (%s): ready, weir run uses it: %s\n", shim->version, shim->torch,
               shim->path);
        return !weir_cli_flush_output();
    case SHIM_MISSING:
        printf("PyTorch %s (%s): no shim yet.  To compile it: weir torch --build %s\n",
               shim->version, shim->torch, shim->python);
        break;
    case SHIM_FAILED:
        printf("PyTorch %s (%s): no shim: %s\n", shim->version, shim->torch, shim->why);
        break;
    case SHIM_NONE:
    case SHIM_UNSUPPORTED:
        printf("%s%s\n", shim->why, is_named ? "" : ".  Name another: weir torch PYTHON");
    }
    (void)weir_cli_flush_output();
    return 1;
}

static int fail_torch(const char *name, const char *python, int error) {
    int is_other = error && strcmp(name, python) != 0;

    fprintf(stderr, "weir torch: %s: %s%s%s%s\n", name, is_other ? "its interpreter " : "",
            is_other ? python : "", is_other ? ": " : "",
            error ? strerror(error) : "neither a Python interpreter nor a Python script");
    return 1;
}

/* Compiles the shim.  First prints a message, because the user has to wait. */
static void build_shim(struct shim *shim) {
    uint64_t began = weir__clock_ns();

    fprintf(stderr,
            "weir torch: compiling weir's shim for PyTorch %s (once, about half a minute): ",
            shim->version);
    shim_build(shim);
    fprintf(stderr, "%s %.0f s\n", shim->state == SHIM_READY ? "done in" : "failed after",
            (double)(weir__clock_ns() - began) / 1e9);
}

int weir_cmd_torch(int argc, char **argv) {
    struct argp argp = {.options = weir_cli_options(flags),
                        .parser = parse_torch_argument,
                        .args_doc = "[--] [PYTHON]",
                        .doc = doc};
    char *standard[] = {(char *)"python3", NULL}, python[PATH_MAX];
    struct torch torch = {0};
    static struct shim shim;
    char **command;

    if (weir_cli_parse(&argp, argc, argv, 0, &torch) != 0)
        return 2;
    command = torch.command ? torch.command : standard;
    if (!shim_python(command, python, sizeof python))
        return fail_torch(command[0], python, errno);
    shim_find(&shim, python);
    if (torch.build && (shim.state == SHIM_MISSING || shim.state == SHIM_FAILED) && shim.path[0])
        build_shim(&shim);
    return report_shim(&shim, torch.command != NULL);
}
