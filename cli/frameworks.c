/* SPDX-License-Identifier: MIT */
/* frameworks.c: see frameworks.h.
 *
 * JAX 0.9 to 0.12 reads its allocator from JAX_PJRT_CLIENT_CREATE_OPTIONS, or else from XLA_PYTHON_CLIENT_ALLOCATOR.
 * TensorFlow reads TF_GPU_ALLOCATOR, which JAX ignores.  Both frameworks preallocate memory by default.  PyTorch
 * reads PYTORCH_ALLOC_CONF from version 2.9 on, and PYTORCH_CUDA_ALLOC_CONF before (lib/adapters/torch/shim.c).
 *
 * If the user has chosen an allocator, weir run does not change the choice and reports it; JAX then preallocates
 * itself.  JAX also preallocates itself if weir ignores JAX's variables (WEIR_COMPAT=0).
 *
 * A Python package has a folder NAME-VERSION.dist-info beside its modules.  Only the name of this folder shows
 * whether the package is built for CUDA.
 */
#include "cli/frameworks.h"

#include <dirent.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "adapters/torch/shim.h"
#include "config/settings.h"

static const char *set_value(const char *name) {
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

/* ---- Allocators by name ---- */

static const char jax_allocator[] = "XLA_PYTHON_CLIENT_ALLOCATOR", jax_pools[] = "cuda_async";
static const char jax_preallocates[] = "XLA_PYTHON_CLIENT_PREALLOCATE";
static const char tf_allocator[] = "TF_GPU_ALLOCATOR", tf_pools[] = "cuda_malloc_async";

static int set_if_unset(command_put_function *put, void *context, const char *name,
                        const char *value) {
    return !put || set_value(name) ? 0 : put(context, name, value);
}

static const char *served_without_pools(int serves_plain) {
    return serves_plain ? "its requests to cuMemAlloc" : "none of its requests";
}

static void note_other_allocator(const char *variable, const char *is, const char *who,
                                 int serves_plain, FILE *lacks) {
    fprintf(lacks, "; %s is %s, so %s does not use CUDA's memory pools: weir serves %s", variable,
            is, who, served_without_pools(serves_plain));
}

/* Writes a note for each variable of JAX's preallocation that the user has set; weir run does not change its value. */
static void note_unchanged_variables(FILE *notes) {
    static const char *const names[] = {jax_preallocates, "XLA_CLIENT_MEM_FRACTION",
                                        "XLA_PYTHON_CLIENT_MEM_FRACTION"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (set_value(names[i]))
            fprintf(notes, "; %s=%s stays, and is JAX's own", names[i], set_value(names[i]));
}

/* Returns the allocator that the user chose for JAX, and stores the variable that names it in *variable.  Returns NULL
 * if the user chose none. */
static const char *chosen_jax_allocator(const char **variable) {
    static char name[64];

    *variable = weir__jax_options_allocator(name, sizeof name) ? WEIR_JAX_OPTIONS : jax_allocator;
    return *variable == jax_allocator ? set_value(jax_allocator) : name;
}

/* Returns 1 if JAX's allocator "platform" makes a driver call for each array, else 0.  In JAX 0.10.1 and 0.10.2, this
 * name means JAX's BFC allocator (jax-ml/jax#39145). */
static int has_direct_allocator(const struct version *jax) {
    return !(jax->major == 0 && jax->minor == 10 && (jax->patch == 1 || jax->patch == 2));
}

int frameworks_need_version(void) {
    const char *variable, *is = chosen_jax_allocator(&variable);

    return is && strcasecmp(is, "platform") == 0;
}

/* Sets the variables of JAX; frameworks_set_variables() describes the arguments.  JAX preallocates with every allocator
 * except "platform", and ignores upper and lower case in this name. */
static int set_jax_variables(command_put_function *put, void *context, int serves_plain,
                             int preallocates, const struct version *jax, FILE *lacks,
                             FILE *notes) {
    const char *variable, *is = chosen_jax_allocator(&variable);
    const char *range = version_unknown(FRAMEWORK_JAX, jax);

    if (is && strcasecmp(is, jax_pools) != 0) {
        note_other_allocator(variable, is, "JAX", serves_plain, lacks);
        if (strcasecmp(is, "platform") != 0)
            fputs(", and does not preallocate for it", lacks);
        else if (!has_direct_allocator(jax))
            fprintf(lacks, "; in JAX %s this name means bfc, and weir does not preallocate for it",
                    jax->text);
        return 0;
    }
    if (!put && !is)
        note_unchanged_variables(notes);
    if (put && range)
        fprintf(lacks, "; weir does not support JAX %s: it sets the variable for JAX %s, %s=%s",
                jax->text, range, jax_allocator, jax_pools);
    if (set_if_unset(put, context, jax_allocator, jax_pools) != 0)
        return 1;
    if (preallocates)
        return set_if_unset(put, context, jax_preallocates, "false");
    if (put && !set_value(jax_preallocates))
        fprintf(notes, "; WEIR_COMPAT=0: JAX itself preallocates, according to its own variables");
    return 0;
}

static int set_tensorflow_variables(command_put_function *put, void *context, int serves_plain,
                                    FILE *lacks) {
    const char *is = set_value(tf_allocator);

    if (is && strcmp(is, tf_pools) != 0)
        note_other_allocator(tf_allocator, is, "TensorFlow", serves_plain, lacks);
    return set_if_unset(put, context, tf_allocator, tf_pools);
}

void frameworks_note_prealloc(const char *name, const char *amount, int chooses_allocators,
                              FILE *notes) {
    const char *variable, *jax = chosen_jax_allocator(&variable), *tf = set_value(tf_allocator);
    int of_jax = jax ? strcasecmp(jax, jax_pools) == 0 : chooses_allocators;
    int of_tf =
        strncmp(name, "TF_", 3) == 0 && (tf ? strcmp(tf, tf_pools) == 0 : chooses_allocators);

    fprintf(notes, "; weir preallocates %s for %s, because of %s", amount,
            !of_tf   ? "JAX"
            : of_jax ? "JAX and TensorFlow"
                     : "TensorFlow",
            name);
}

/* ---- PyTorch ---- */

/* Writes a note if a variable chooses the allocator of PyTorch.  weir then does not become PyTorch's allocator. */
static void note_torch(int serves_plain, FILE *notes) {
    const char *name = weir__shim_disabled_by();
    size_t length = 0;
    const char *option = name ? weir__torch_option(getenv(name), "backend", &length) : NULL;

    if (option && memmem(option, length, "cudaMallocAsync", strlen("cudaMallocAsync")))
        fprintf(notes, "; PyTorch uses cudaMallocAsync because of %s: weir serves its tensors",
                name);
    else if (name)
        fprintf(notes, "; PyTorch uses its own allocator because of %s: weir serves %s", name,
                served_without_pools(serves_plain));
}

int frameworks_set_variables(command_put_function *put, void *context, int serves_plain,
                             int preallocates, const struct version *jax, FILE *lacks,
                             FILE *notes) {
    note_torch(serves_plain, notes);
    return set_jax_variables(put, context, serves_plain, preallocates, jax, lacks, notes) ||
           set_tensorflow_variables(put, context, serves_plain, lacks);
}

/* ---- versions ---- */

/* The frameworks, with the oldest and newest versions that weir supports (1000 * major + minor).  A `range' of NULL
 * means all versions. */
static const struct known {
    const char *name, *pattern, *other_pattern;
    int first, last;
    const char *range, *served;
} known[FRAMEWORK_COUNT] = {
    {"JAX", "jax_cuda*_pjrt-[0-9]*.dist-info", "", 9, 12, "0.9 to 0.12",
     "its allocator cuda_async"},
    {"CuPy", "cupy-[0-9]*.dist-info", "cupy_cuda*-[0-9]*.dist-info", 13000, 14999, "13 to 14",
     "its malloc_async"},
    {"RMM", "rmm-[0-9]*.dist-info", "rmm_cu*-[0-9]*.dist-info", 26000, 26999, "26",
     "its CudaAsyncMemoryResource"},
    {"Numba-CUDA", "numba_cuda-[0-9]*.dist-info", "", 0, 0, NULL,
     "it by NUMBA_CUDA_MEMORY_MANAGER=weir_cuda.numba"},
};

static void parse_version(struct version *version, const char *folder) {
    const char *begin = strchr(folder, '-') + 1;
    int length = (int)(strrchr(folder, '.') - begin);

    snprintf(version->text, sizeof version->text, "%.*s", length, begin);
    (void)sscanf(version->text, "%d.%d.%d", &version->major, &version->minor, &version->patch);
}

static void read_version_of(struct version found[FRAMEWORK_COUNT], const char *name) {
    for (int i = 0; i < FRAMEWORK_COUNT; i++)
        if (!found[i].text[0] && (fnmatch(known[i].pattern, name, 0) == 0 ||
                                  fnmatch(known[i].other_pattern, name, 0) == 0))
            parse_version(&found[i], name);
}

void versions_find(struct version found[FRAMEWORK_COUNT], const char *folders) {
    size_t length;

    memset(found, 0, FRAMEWORK_COUNT * sizeof *found);
    for (; *folders; folders += length + (folders[length] == '\n')) {
        char path[PATH_MAX];
        struct dirent *entry;
        DIR *folder;

        length = strcspn(folders, "\n");
        if (length == 0 || length >= sizeof path)
            continue;
        snprintf(path, sizeof path, "%.*s", (int)length, folders);
        folder = opendir(path);
        while (folder && (entry = readdir(folder)))
            read_version_of(found, entry->d_name);
        if (folder)
            closedir(folder);
    }
}

const char *version_unknown(enum framework framework, const struct version *version) {
    const struct known *of = &known[framework];
    int number = 1000 * version->major + version->minor;

    return version->text[0] && of->range && (number < of->first || number > of->last) ? of->range
                                                                                      : NULL;
}

void versions_note(const struct version found[FRAMEWORK_COUNT], FILE *notes) {
    for (int i = 0; i < FRAMEWORK_COUNT; i++) {
        const char *range = version_unknown((enum framework)i, &found[i]);

        if (!found[i].text[0])
            continue;
        fprintf(notes, "; %s %s: weir serves %s", known[i].name, found[i].text, known[i].served);
        if (range)
            fprintf(notes, " (weir knows %s)", range);
    }
}
