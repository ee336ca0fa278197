/* SPDX-License-Identifier: MIT */
/* settings.h: the option table, for code that shows, parses or completes options.
 *
 * One table (option_table.c) has all that weir_options, the environment (environment.c), the flags of the program,
 * `weir info` and the manual need.  struct weir_sources has the source of each value.
 *
 * A message about a value reads "LABEL 'VALUE': PROBLEM; expected FORM".  LABEL is the name that the user typed:
 * "--prealloc", "WEIR_PREALLOC" or "prealloc".
 *
 * This file must not know devices, engines or what an option does.
 */
#ifndef WEIR_SETTINGS_H
#define WEIR_SETTINGS_H

#include <weir/options.h>

/* The settings, in the order in which weir shows the settings.  Settings that are not advanced come first. */
enum weir_setting {
#define WEIR_SETTING_LIST(X)                                                                       \
    X(ENGINE)                                                                                      \
    X(PREALLOC)                                                                                    \
    X(LIMIT)                                                                                       \
    X(GROWTH)                                                                                      \
    X(RELEASE_THRESHOLD)                                                                           \
    X(PROFILE)                                                                                     \
    X(GROW_AHEAD)                                                                                  \
    X(KEEP_FREE)                                                                                   \
    X(DECAY)                                                                                       \
    X(HARDEN)                                                                                      \
    X(DEVICE)                                                                                      \
    X(LOG)                                                                                         \
    X(PREALLOC_MIN)                                                                                \
    X(RECOVERY_TIMEOUT)                                                                            \
    X(LATENCY)                                                                                     \
    X(CACHE)                                                                                       \
    X(CACHE_LIMIT)                                                                                 \
    X(STREAM_CHECKS)                                                                               \
    X(INTERNAL_DEPENDENCIES)                                                                       \
    X(OOM_REPORT)                                                                                  \
    X(REGISTRY)                                                                                    \
    X(PRIORITY)                                                                                    \
    X(PEERS)
#define WEIR_SETTING_ENUM(name) WEIR_SETTING_##name,
    WEIR_SETTING_LIST(WEIR_SETTING_ENUM)
#undef WEIR_SETTING_ENUM
        WEIR_SETTING_COUNT
};

/* The number of bytes that holds the text of any value.  weir refuses longer names of files. */
enum { WEIR_SHOW_BYTES = 1024 };

/* The texts of one option, for programs and manuals. */
struct weir_setting_row {
    /* For example "prealloc", with the flag --prealloc and the variable WEIR_PREALLOC. */
    const char *name;
    const char *variable;     /* "WEIR_PREALLOC" */
    const char *argument;     /* "SIZE", "POLICY", ... for the usage text */
    const char *accepts;      /* the accepted texts: "a size (4GiB, 512MB, 75%, 90%free, max)" */
    const char *default_text; /* the default in words */
    const char *help;         /* one or two sentences */
    int is_advanced;          /* set if weir shows the option only with --all */
};

const struct weir_setting_row *weir__setting_row(enum weir_setting setting);

/* The source of each value, as `weir info` prints the source: "flag --prealloc", "WEIR_PREALLOC", a variable of another
 * program, or "the program" for a field that was set before weir read the environment. */
struct weir_sources {
    const char *of[WEIR_SETTING_COUNT]; /* static text; NULL for a default */
    /* The unknown variables of which weir warns, separated by commas. */
    char unknown[512];
};

/* The kind of program that reads the settings.  The kind decides which variables of other programs count
 * (weir-settings(7), COMPATIBILITY). */
enum weir_place {
    WEIR_PLACE_OWN, /* a program that creates its own allocator: all variables count */
    /* An allocator that `weir run' puts below a program that does not know weir.  No variable of a framework chooses
     * the engine.  The framework's preallocation counts only if a variable makes the framework use CUDA's memory
     * pools. */
    WEIR_PLACE_USER,
    WEIR_PLACE_TELLS /* `weir run' itself, which will make the framework use CUDA's memory pools */
};

/* Does what weir_options_from_env does, and stores the sources; `sources` may be NULL.  Warns on standard error if
 * `warn` is set and the log level allows warnings.  A value that does not parse is an error even if another value
 * overrides it, except for a framework's own preallocation. */
weir_status weir__options_from_env(weir_options *options, struct weir_sources *sources,
                                   enum weir_place place, int warn, char *message,
                                   size_t message_bytes);
/* Returns the name of the variable of TensorFlow, XLA or JAX that has set the preallocation, or NULL if no such
 * variable has. */
const char *weir__foreign_prealloc(const weir_options *options);

/* JAX's variable with options for JAX's client.  If these options name an allocator, JAX ignores
 * XLA_PYTHON_CLIENT_ALLOCATOR. */
#define WEIR_JAX_OPTIONS "JAX_PJRT_CLIENT_CREATE_OPTIONS"
/* Writes the name of the allocator in WEIR_JAX_OPTIONS, cut to `bytes'.  Returns 1 on success, 0 if the variable names
 * no allocator. */
int weir__jax_options_allocator(char *name, size_t bytes);
/* Does what weir_options_set does, for the setting with that number.  `label` names the option in the message; if
 * `label` is NULL, the message has the row's name. */
weir_status weir__option_set(weir_options *options, enum weir_setting setting, const char *label,
                             const char *text, char *message, size_t message_bytes);
/* Returns 1 if the field is set, 0 if the field has its default. */
int weir__option_is_set(const weir_options *options, enum weir_setting setting);
/* Writes a value as a user types it ("8GiB", "75%", "step:64MiB", "pool").  For a default, writes the value that the
 * default means ("pool").  Writes the default of cache-limit in words that no user can type. */
void weir__option_show(const weir_options *options, enum weir_setting setting, char *text,
                       size_t bytes);

/* Copies a caller's struct into this library's layout, without fields that this library does not know.  Returns
 * E_INVALID with a message if `options' is NULL or has a wrong size. */
weir_status weir__options_copy_in(const weir_options *options, weir_options *out, char *message,
                                  size_t message_bytes);
/* Copies options back into a caller's struct.  The struct keeps its size, and the fields that this library does not
 * know. */
void weir__options_copy_out(const weir_options *from, weir_options *options);

/* Checks a caller's struct and copies it into *out in this library's layout; NULL stands for default options.  Replaces
 * every default by its value for the engine, except the default of cache_limit (weir__budget_of_in_use).  Returns OK,
 * or an error with a message: E_INVALID, E_LIMIT if the preallocation is above the limit, E_NOT_SUPPORTED if the engine
 * cannot open its memory to the named peers. */
weir_status weir__options_complete(const weir_options *options, weir_options *out, char *message,
                                   size_t message_bytes);

/* Returns the log level of a caller's struct that may be wrong, or WEIR_LOG_NONE if the struct has no valid level. */
int weir__options_log(const weir_options *options);

/* Checks a limit that a program sets after the creation.  Such a limit may be 0, and must not be a share.  Returns OK,
 * or E_INVALID with a message. */
weir_status weir__limit_check(const weir_amount *limit, char *message, size_t message_bytes);

/* Returns 1 if the engine of these options cuts blocks from memory that it has reserved, else 0. */
int weir__options_suballocate(const weir_options *options);
/* Returns 1 if the engine of these completed options can open its memory to peers, else 0. */
int weir__options_can_open(const weir_options *options);
#define WEIR_NOT_OPENED                                                                            \
    "memory of cuMemAlloc is opened to peers by cuCtxEnablePeerAccess: "                           \
    "choose engine mapped or pool"

/* Reads "cuda", "cuda:N", "model" or "model:N" into the name of a driver and an ordinal; NULL stands for "cuda".
 * Returns OK, or E_PARSE with a message. */
weir_status weir__device_parse(const char *text, const char **driver, int *ordinal, char *message,
                               size_t message_bytes);

/* Reads a list of peers into bits.  The lowest bit is device 0.  Sets all bits for "all".  Returns OK, or E_PARSE with
 * a message. */
weir_status weir__peers_parse(const char *text, uint64_t *devices, char *message,
                              size_t message_bytes);

#endif
