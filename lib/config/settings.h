/* SPDX-License-Identifier: MIT */
/* settings.h: the option table, for code that shows, reads or completes options.
 *
 * The environment (environment.c), the flags of the program, `weir info` and the manual all use one table of options
 * (option_table.c).  struct weir_sources has the source of each value.
 *
 * A message about a wrong value has the form "LABEL 'VALUE': PROBLEM; expected FORM".  LABEL is the name that the user
 * typed: "--prealloc", "WEIR_PREALLOC" or "prealloc".
 *
 * This file must not know devices, engines or the effect of an option. */
#ifndef WEIR_SETTINGS_H
#define WEIR_SETTINGS_H

#include <weir/options.h>

/* All settings, in the order in which weir lists the settings.  Basic settings come first, and advanced settings
 * follow. */
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

/* The size of a buffer for the text of any value.  weir refuses file names that do not fit into such a buffer. */
enum { WEIR_SHOW_BYTES = 1024 };

/* The name and the help of one option, for programs and manuals. */
struct weir_setting_row {
    /* The name of the option, such as "prealloc".  The flag is then --prealloc. */
    const char *name;
    const char *variable; /* the environment variable, such as "WEIR_PREALLOC" */
    /* The name of the argument in the usage text, such as "SIZE" or "POLICY". */
    const char *argument;
    /* The texts that the option accepts, such as "a size (4GiB, 512MB, 75%, max)". */
    const char *accepts;
    const char *default_text; /* the default value, in words */
    const char *help;         /* the effect of the option, in one or two sentences */
    int is_advanced;          /* set if weir lists the option only with --all */
};

const struct weir_setting_row *weir__setting_row(enum weir_setting setting);

/* The source of each value, as `weir info` prints the source.  Examples are "flag --prealloc", "WEIR_PREALLOC", or a
 * variable of another program.  If a field was set before weir read the environment, its source is "the program". */
struct weir_sources {
    /* The source of each setting, a static text; NULL if the setting has its default. */
    const char *of[WEIR_SETTING_COUNT];
    /* The names of unknown variables about which weir warns, separated by commas. */
    char unknown[512];
};

/* The kind of program for which weir reads the settings.  The kind decides which variables of other programs count
 * (weir-settings(7), COMPATIBILITY). */
enum weir_place {
    /* A program that creates its own allocator.  All variables count. */
    WEIR_PLACE_OWN,
    /* A program that does not know weir, and for which `weir run` creates an allocator.  No variable of a framework
     * chooses the engine.  The framework's preallocation counts only if a variable makes the framework use CUDA's
     * memory pools. */
    WEIR_PLACE_USER,
    /* `weir run` itself, which will make the framework use CUDA's memory pools. */
    WEIR_PLACE_TELLS
};

/* Reads options from the environment, as weir_options_from_env does, and records the source of each value in *sources;
 * `sources` may be NULL.  Warns on standard error if `warn` is set and the log level allows warnings.  An invalid value
 * is an error even if another value overrides it.  The exception is the framework's own preallocation. */
weir_status weir__options_from_env(weir_options *options, struct weir_sources *sources,
                                   enum weir_place place, int warn, char *message,
                                   size_t message_bytes);
/* Returns the name of the variable of TensorFlow, XLA or JAX that has set the preallocation.  Returns NULL if no such
 * variable has set the preallocation. */
const char *weir__foreign_prealloc(const weir_options *options);

/* The variable with options for JAX's client.  If these options name an allocator, JAX ignores
 * XLA_PYTHON_CLIENT_ALLOCATOR. */
#define WEIR_JAX_OPTIONS "JAX_PJRT_CLIENT_CREATE_OPTIONS"
/* Writes the name of the allocator that WEIR_JAX_OPTIONS contains, cut to `bytes` bytes.  Returns 1 on success, 0 if
 * WEIR_JAX_OPTIONS names no allocator. */
int weir__jax_options_allocator(char *name, size_t bytes);
/* Sets the option `setting` from a text, as weir_options_set does.  `label` is the name of the option in an error
 * message.  If `label` is NULL, the message uses the name from the option table. */
weir_status weir__option_set(weir_options *options, enum weir_setting setting, const char *label,
                             const char *text, char *message, size_t message_bytes);
/* Returns 1 if the option is set, 0 if it has its default. */
int weir__option_is_set(const weir_options *options, enum weir_setting setting);
/* Writes the value of an option as a user types the value ("8GiB", "75%", "step:64MiB", "pool").  If the option has its
 * default, writes the value that the default means.  The default of cache-limit is an exception: the function writes it
 * in words that no user can type. */
void weir__option_show(const weir_options *options, enum weir_setting setting, char *text,
                       size_t bytes);

/* Copies a caller's struct to *out, in the layout of this version of the library.  Leaves out fields that this version
 * does not know.  Returns E_INVALID with a message if `options` is NULL or has a wrong size. */
weir_status weir__options_copy_in(const weir_options *options, weir_options *out, char *message,
                                  size_t message_bytes);
/* Copies options back to a caller's struct.  The size of this struct, and the fields that this version of the library
 * does not know, do not change. */
void weir__options_copy_out(const weir_options *from, weir_options *options);

/* Checks the options of a caller, and writes the complete options to *out.  NULL stands for default options.  Replaces
 * every default by its value for the engine; only the default of cache_limit stays (weir__budget_of_in_use).  Returns
 * OK, or an error with a message: E_INVALID, E_LIMIT if the preallocation is above the limit, or E_NOT_SUPPORTED if the
 * engine cannot open its memory to the named peers. */
weir_status weir__options_complete(const weir_options *options, weir_options *out, char *message,
                                   size_t message_bytes);

/* Returns the log level of a caller's struct.  weir may not have checked the fields of this struct.  Returns
 * WEIR_LOG_NONE if the struct has no valid log level. */
int weir__options_log(const weir_options *options);

/* Checks a limit that a program sets after the allocator's creation.  Such a limit may be 0, but must not be a share.
 * Returns OK, or E_INVALID with a message. */
weir_status weir__limit_check(const weir_amount *limit, char *message, size_t message_bytes);

/* Returns 1 if the engine of these options is a suballocator, which cuts blocks from its reserved memory (mapped, bfc,
 * bfc-fixed); else 0. */
int weir__options_suballocate(const weir_options *options);
/* Returns 1 if the engine of these complete options can open its memory to other devices (peers), else 0. */
int weir__options_can_open(const weir_options *options);
#define WEIR_NOT_OPENED                                                                            \
    "memory of cuMemAlloc is opened to peers by cuCtxEnablePeerAccess: "                           \
    "choose engine mapped or pool"

/* Reads a device: "cuda", "cuda:N", "model" or "model:N".  Writes the name of the driver to *driver, and the number of
 * the device to *ordinal.  A `text` of NULL stands for "cuda".  Returns OK, or E_PARSE with a message. */
weir_status weir__device_parse(const char *text, const char **driver, int *ordinal, char *message,
                               size_t message_bytes);

/* Reads a list of peer devices, and sets one bit in *devices for each device.  The lowest bit is device 0.  The text
 * "all" sets all bits.  Returns OK, or E_PARSE with a message. */
weir_status weir__peers_parse(const char *text, uint64_t *devices, char *message,
                              size_t message_bytes);

#endif
