/* SPDX-License-Identifier: MIT */
/* settings.h: the options and their table (option_table.c).  The environment, the flags of the program `weir`, `weir
 * info` and the manual use the table.
 *
 * A message about a wrong value has the form "LABEL 'VALUE': PROBLEM; expected FORM".  LABEL is the name that the user
 * typed: "--prealloc", "WEIR_PREALLOC" or "prealloc". */
#ifndef WEIR_SETTINGS_H
#define WEIR_SETTINGS_H

#include <weir/options.h>

/* The settings in the order in which weir lists them: basic settings before advanced ones. */
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

/* The size of a buffer for the value of any option as text.  weir refuses longer file names. */
enum { WEIR_SHOW_BYTES = 1024 };

struct weir_setting_row {
    const char *name;     /* such as "prealloc"; the flag is then --prealloc */
    const char *variable; /* such as "WEIR_PREALLOC" */
    const char *argument; /* the argument in the usage text, such as "SIZE" or "POLICY" */
    const char *accepts;  /* in words, such as "a size (4GiB, 512MB, 75%, max)" */
    const char *default_text;
    const char *help;         /* the effect of the option, in one or two sentences */
    int is_advanced;          /* set if weir lists the option only with the flag --all */
};

const struct weir_setting_row *weir__setting_row(enum weir_setting setting);

/* Where the value of each option comes from, as `weir info` prints it. */
struct weir_sources {
    const char *of[WEIR_SETTING_COUNT]; /* static texts; NULL if the option has its default */
    char unknown[512];                  /* variables that weir does not know, separated by commas */
};

/* The kind of program, which decides which frameworks' variables have an effect (weir-settings(7), COMPATIBILITY). */
enum weir_place {
    /* A program that calls weir to create its allocator.  All variables of frameworks have an effect. */
    WEIR_PLACE_OWN,
    /* An unmodified program under `weir run`.  Variables of frameworks do not choose the engine. */
    WEIR_PLACE_UNMODIFIED,
    /* The command `weir run` itself, which will make the framework use CUDA's memory pools. */
    WEIR_PLACE_RUN
};

/* Reads options as weir_options_from_env does.  If `warn` is set, prints warnings.  `sources` may be NULL. */
weir_status weir__options_from_env(weir_options *options, struct weir_sources *sources,
                                   enum weir_place place, int warn, char *message,
                                   size_t message_bytes);
/* Returns the name of the variable of TensorFlow, XLA or JAX that has set the preallocation, or NULL. */
const char *weir__framework_prealloc(const weir_options *options);

/* Options for JAX's client.  If they name an allocator, JAX ignores XLA_PYTHON_CLIENT_ALLOCATOR. */
#define WEIR_JAX_OPTIONS "JAX_PJRT_CLIENT_CREATE_OPTIONS"
/* Writes the name of the allocator in WEIR_JAX_OPTIONS, cut to `bytes` bytes.  Returns 0 if there is none, else 1. */
int weir__jax_options_allocator(char *name, size_t bytes);
/* Sets an option from a text (weir_options_set).  Messages use `label` or, if `label` is NULL, the option's name. */
weir_status weir__option_set(weir_options *options, enum weir_setting setting, const char *label,
                             const char *text, char *message, size_t message_bytes);
/* Returns 1 if the program or the user has set the option, 0 if it has its default. */
int weir__option_is_set(const weir_options *options, enum weir_setting setting);
/* Writes the value of an option as a user types it, such as "8GiB" or "step:64MiB". */
void weir__option_show(const weir_options *options, enum weir_setting setting, char *text,
                       size_t bytes);

/* Copies a caller's struct, perhaps of another version, to *out.  Returns E_INVALID with a message for a wrong size. */
weir_status weir__options_copy_in(const weir_options *options, weir_options *out, char *message,
                                  size_t message_bytes);
/* Copies options to a caller's struct, perhaps of another version.  Does not change `size` or unknown fields. */
void weir__options_copy_out(const weir_options *from, weir_options *options);

/* Checks a caller's options (NULL means all defaults), and writes the complete options to *out.  Replaces each default
 * by its value, except the default of cache_limit.  Returns OK, or an error with a message. */
weir_status weir__options_complete(const weir_options *options, weir_options *out, char *message,
                                   size_t message_bytes);

/* Returns the log level in a caller's options, which may be unchecked, or WEIR_LOG_NONE if the level is invalid. */
int weir__options_log(const weir_options *options);

/* Checks a limit of weir_set_limit.  Allows 0, but not WEIR_AMOUNT_SHARE.  Returns OK, or E_INVALID with a message. */
weir_status weir__limit_check(const weir_amount *limit, char *message, size_t message_bytes);

/* Returns 1 if the engine divides large regions into blocks (mapped, bfc, bfc-fixed), else 0. */
int weir__options_suballocate(const weir_options *options);
/* Returns 1 if the engine that complete options select lets other devices use its memory, else 0. */
int weir__options_allow_peer_access(const weir_options *options);
#define WEIR_NO_PEER_ACCESS                                                                        \
    "memory of cuMemAlloc is opened to peers by cuCtxEnablePeerAccess: "                           \
    "choose engine mapped or pool"

/* Reads a device such as "cuda:1" or "model"; NULL is "cuda".  Returns OK, or E_PARSE with a message. */
weir_status weir__device_parse(const char *text, const char **driver, int *ordinal, char *message,
                               size_t message_bytes);

/* Reads a list of peer devices such as "0,2" or "all" into a bit mask; the lowest bit is device 0. */
weir_status weir__peers_parse(const char *text, uint64_t *devices, char *message,
                              size_t message_bytes);

#endif
