/* SPDX-License-Identifier: MIT */
/* settings.h: the option table, for those inside that show, parse or resolve options.
 *
 * ONE table (option_table.c) drives the fields of weir_options, the environment (environment.c), the flags
 * of the program, `weir info` and the manual.  Where each value came from is kept beside the options
 * in `sources`, since the public struct has no room for it.
 *
 * A message about a value reads  LABEL 'VALUE': what is wrong; expected WHAT PARSES  where LABEL is
 * what the user typed: "--prealloc", "WEIR_PREALLOC", "prealloc".
 *
 * Must not know: devices, engines, what an option does.
 */
#ifndef WEIR_SETTINGS_H
#define WEIR_SETTINGS_H

#include <weir/options.h>

/* In the order in which they are shown: first those that are not advanced. */
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
    X(PACKING)                                                                                     \
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

/* Room for any value as text, and so for any profile's name: a longer one is refused. */
enum { WEIR_SHOW_BYTES = 1024 };

/* One row, for programs and manuals. */
struct weir_setting_row {
    const char *name;         /* "prealloc": the flag is --prealloc, the variable WEIR_PREALLOC */
    const char *variable;     /* "WEIR_PREALLOC" */
    const char *argument;     /* "SIZE", "POLICY", ... for the usage text */
    const char *accepts;      /* what parses, one line: "a size (4GiB, 512MB, 75%, 90%free, max)" */
    const char *default_text; /* the default in words */
    const char *help;         /* one or two sentences */
    int is_advanced;          /* not of the few that are shown unless all are asked for */
};

const struct weir_setting_row *weir__setting_row(enum weir_setting setting);

/* Where a value came from; text for `weir info`: "default", "flag --prealloc", "WEIR_PREALLOC",
 * "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", ...; "the program" when it was set before the
 * environment was read and nobody said where. */
struct weir_sources {
    const char *of[WEIR_SETTING_COUNT]; /* static text; NULL: default */
    /* Names that draw a warning, with commas between, as many as there is room for. */
    char unknown[512];
};

/* In whose place settings are read, which decides what the variables of other programs come to: weir-settings(7),
 * COMPATIBILITY. */
enum weir_place {
    WEIR_PLACE_OWN, /* a program makes an allocator for itself: all of them count */
    /* Weir stands in a user's place, as below a program that knows nothing of it.  No variable that says where a
     * framework takes its memory names an engine; and what one would preallocate counts where
     * that framework is told to ask CUDA's memory pools, */
    WEIR_PLACE_USER,
    WEIR_PLACE_TELLS /* or is told nothing, and will be told to */
};

/* weir_options_from_env with sources: fills what is still default.  `sources` may be NULL.
 * Warnings go to standard error through log.h when `warn` is not 0, unless the log level is set and
 * below them.  A value that does not parse is an error even where a field that is set, or a variable
 * of higher precedence, makes it count for nothing: it would count elsewhere.  Not so of what a framework preallocates
 * itself. */
weir_status weir__options_from_env(weir_options *options, struct weir_sources *sources,
                                   enum weir_place place, int warn, char *message,
                                   size_t message_bytes);
/* Returns the variable of another program that the preallocation comes from, or NULL.  The process remembers the last
 * such amount that it read, so the caller of weir_options_from_env need not pass on where the amount came from. */
const char *weir__foreign_prealloc(const weir_options *options);

/* JAX's variable of options for its client, of which an allocator goes before XLA_PYTHON_CLIENT_ALLOCATOR. */
#define WEIR_JAX_OPTIONS "JAX_PJRT_CLIENT_CREATE_OPTIONS"
/* That allocator's name, cut to `bytes': 1, or 0 if it names none. */
int weir__jax_options_allocator(char *name, size_t bytes);
/* weir_options_set by row; `label` names the option in the message, NULL: the row's name. */
weir_status weir__option_set(weir_options *options, enum weir_setting setting, const char *label,
                             const char *text, char *message, size_t message_bytes);
/* 1 if the field is set (not default). */
int weir__option_is_set(const weir_options *options, enum weir_setting setting);
/* The value as it would be typed ("8GiB", "75%", "step:64MiB", "pool"); defaults are shown as what
 * they mean ("pool", not "default"; that of cache-limit, which cannot be typed, in words).  `text` is
 * NUL-terminated. */
void weir__option_show(const weir_options *options, enum weir_setting setting, char *text,
                       size_t bytes);

/* A caller's struct in this library's layout: what the caller's version does not have is default,
 * what this one does not know is left out.  E_INVALID with a message: NULL or no size. */
weir_status weir__options_take(const weir_options *options, weir_options *out, char *message,
                               size_t message_bytes);
/* Back into a caller's struct, which keeps its size and what this library does not know. */
void weir__options_give(const weir_options *from, weir_options *options);

/* Checks a caller's struct (size, unknown tail, ranges) and copies the struct into *out in this library's layout.
 * Replaces every default by its value for the engine, except that of cache_limit, which is a share with a floor and
 * stays of kind DEFAULT (weir__budget_of_in_use).  With options NULL all fields are default.  Returns with a message:
 * E_INVALID; E_LIMIT if the preallocation is above the limit; E_NOT_SUPPORTED if peers are named and the engine cannot
 * serve them. */
weir_status weir__options_complete(const weir_options *options, weir_options *out, char *message,
                                   size_t message_bytes);

/* The log level of a caller's struct in which something may be wrong; NONE: not even that can be told. */
int weir__options_log(const weir_options *options);

/* A limit that is set later: as that of the options, but it may be 0, and is no share.  E_INVALID, with a message. */
weir_status weir__limit_check(const weir_amount *limit, char *message, size_t message_bytes);

/* Returns 1 if the engine of these options cuts blocks from memory that it has reserved, else 0. */
int weir__options_suballocate(const weir_options *options);
/* 1 if an engine of these options, which are completed, can open its memory to peers; and why not. */
int weir__options_can_open(const weir_options *options);
#define WEIR_NOT_OPENED                                                                            \
    "memory of cuMemAlloc is opened to peers by cuCtxEnablePeerAccess: "                           \
    "choose engine mapped or pool"

/* "cuda", "cuda:N", "model", "model:N" -> driver name ("cuda"/"model") and ordinal; NULL is "cuda".
 * E_PARSE. */
weir_status weir__device_parse(const char *text, const char **driver, int *ordinal, char *message,
                               size_t message_bytes);

/* A list of peers as bits, device 0 the lowest; UINT64_MAX: all.  E_PARSE. */
weir_status weir__peers_parse(const char *text, uint64_t *devices, char *message,
                              size_t message_bytes);

#endif
