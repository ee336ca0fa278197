/* SPDX-License-Identifier: MIT */
/* variables.c: the help of variables that are no settings.  tests/tree/check-variables compares the table with the
 * lists of the library (lib/config/environment.c).
 *
 * Must not know: who reads a variable, and how.
 */
#include <ctype.h>
#include <string.h>

#include "cli/common/commands.h"

#define SETTINGS "weir-settings(7)"
#define RUN "weir-run(1)"
#define RECORD "weir-record(1)"
#define TO_RECORD "Passed from `weir record' to its library; of no use elsewhere."

static const struct variable {
    const char *name, *value, *help, *page;
} variables[] = {
    {"WEIR_COMPAT", "SWITCH", "0: weir ignores variables of TensorFlow, XLA and JAX. Default: 1.",
     SETTINGS},
    {"WEIR_GROUP", "NAME",
     "The process group: all processes of the user with this name share WEIR_GROUP_LIMIT on each "
     "device.",
     SETTINGS},
    {"WEIR_GROUP_LIMIT", "AMOUNT",
     "The limit of the process group: bytes, or a percentage of the device. Default: that of the "
     "members it has.",
     SETTINGS},
    {"WEIR_GROUP_SHARE", "N", "The weight of this process's share of the limit. Default: 1.",
     SETTINGS},
    {"WEIR_GROUP_DIR", "FOLDER",
     "The folder in which processes find each other, in place of /dev/shm and /tmp: for containers "
     "that have it mounted.",
     SETTINGS},
    {"WEIR_MODEL_PROFILE", "FILE",
     "Read the properties of the modelled device and the cost of its calls here, in place of the "
     "built-in profile.",
     SETTINGS},
    {"WEIR_MODEL_DEVICES", "N", "Number of modelled devices, 1 to 16. Default: 1.", SETTINGS},
    {"WEIR_MODEL_SHARED", "FILE",
     "Share the memory of the modelled devices between all processes that name this file. weir "
     "makes the file if it is missing.",
     SETTINGS},
    {"WEIR_RUN_STATS", "SWITCH",
     "weir run --stats, for a program that is started with LD_PRELOAD by other means.", RUN},
    {"WEIR_RUN_JSON", "FILE", "weir run --json, likewise.", RUN},
    {"WEIR_RUN_TRACE", "FILE", "weir run --trace-events, likewise.", RUN},
    {"WEIR_RUN_SAMPLES", "SWITCH",
     "Add pool growth, and memory over time, to the line of JSON, for `weir report'.", RUN},
    {"WEIR_RUN_FIRST", "PID", "The process that reports if it has nothing to write.", RUN},
    {"WEIR_RUN_PREALLOC_OF", "NAME",
     "The variable of another program that gave WEIR_PREALLOC its value; a lower limit cuts that "
     "value.",
     RUN},
    {"WEIR_RUN_TOLD", "LIST", "Unknown variables of which weir has warned, with commas between.",
     RUN},
    {"WEIR_RUN_TORCH", "SWITCH", "0: weir run --no-torch, likewise.", RUN},
    {"WEIR_RUN_SERVE_MALLOC", "SWITCH", "weir run --serve-malloc, likewise.", RUN},
    {"WEIR_RUN_VERBOSE", "SWITCH", "weir run --verbose, likewise.", RUN},
    {"WEIR_RUN_FOLDER", "FOLDER",
     "The folder in which processes find each other, and `weir top' finds programs, in place of "
     "/dev/shm and /tmp.",
     "weir-top(1)"},
    {"WEIR_RECORD_FOLDER", "FOLDER", TO_RECORD, RECORD},
    {"WEIR_RECORD_RANGES", "PATTERN", TO_RECORD, RECORD},
    {"WEIR_RECORD_CALLERS", "1", TO_RECORD, RECORD},
    {"WEIR_RECORD_SYNCS", "1", TO_RECORD, RECORD},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "N",
     "TensorFlow's: preallocate N bytes; -1: the fraction of XLA_CLIENT_MEM_FRACTION; 0: nothing.",
     SETTINGS},
    {"XLA_PYTHON_CLIENT_PREALLOCATE", "false|true",
     "JAX's: false: preallocate nothing; anything else: the fraction of XLA_CLIENT_MEM_FRACTION.",
     SETTINGS},
    {"XLA_CLIENT_MEM_FRACTION", "FRACTION",
     "XLA's: preallocate that part of the device's memory, above 0 and at most 1. Default: .75, "
     "where another variable asks "
     "for it.",
     SETTINGS},
    {"XLA_PYTHON_CLIENT_MEM_FRACTION", "FRACTION", "The former name of XLA_CLIENT_MEM_FRACTION.",
     SETTINGS},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", "NAME",
     "JAX's: platform: engine direct; default, bfc: engine bfc; cuda_async: engine pool.",
     SETTINGS},
    {"TF_GPU_ALLOCATOR", "NAME", "TensorFlow's: cuda_malloc_async: engine pool.", SETTINGS},
    {"PYTORCH_ALLOC_CONF", "LIST",
     "PyTorch's: weir run leaves the backend that it names alone, and serves the tensors of "
     "backend:cudaMallocAsync.  Without one, weir is PyTorch's allocator.",
     RUN},
    {"PYTORCH_CUDA_ALLOC_CONF", "LIST", "The name of PYTORCH_ALLOC_CONF before PyTorch 2.9.", RUN},
    {"TF_FORCE_GPU_ALLOW_GROWTH", "true|false", "TensorFlow's: true: engine bfc, which grows.",
     SETTINGS},
};

/* Returns 1 if the name is the variable's, which may be written like a flag: --group-limit, group-limit; else 0. */
static int is_name(const struct variable *v, const char *name) {
    static const char prefix[] = "WEIR_";
    const char *rest = v->name + sizeof prefix - 1;
    size_t i;

    if (strcmp(v->name, name) == 0)
        return 1;
    if (strncmp(v->name, prefix, sizeof prefix - 1) != 0)
        return 0;
    name += strncmp(name, "--", 2) == 0 ? 2 : 0;
    for (i = 0; name[i] && rest[i]; i++)
        if ((name[i] == '-' ? '_' : toupper((unsigned char)name[i])) != rest[i])
            return 0;
    return name[i] == rest[i];
}

int variables_tell(const char *name, FILE *file) {
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const struct variable *v = &variables[i];

        if (!is_name(v, name))
            continue;
        fprintf(file, "%s=%s\n    %s\n    The manual: %s.\n", v->name, v->value, v->help, v->page);
        return 1;
    }
    return 0;
}

const char *variables_name(int number) {
    return (size_t)number < sizeof variables / sizeof variables[0] ? variables[number].name : NULL;
}
