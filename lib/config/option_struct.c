/* SPDX-License-Identifier: MIT */
/* option_struct.c: a caller's weir_options, which may be of another version of the library.
 *
 * New fields come at the end of the struct, and `size` says which fields the caller knows.
 */
#include "config/option_kinds.h"

#include <stddef.h>
#include <string.h>

#include "base/result.h"

#define AT(member) offsetof(weir_options, member)

/* The size of the first version. */
#define SMALLEST_SIZE offsetof(weir_options, cache)

/* A larger size was never initialised. */
#define LARGEST_SIZE ((size_t)65536)

/* Returns 1 if some version of weir_options has this size, else 0.  Each offset of a field is the size of a version. */
static int is_size(size_t bytes) {
    _Static_assert(sizeof(weir_options) - AT(peers) <= sizeof(uint64_t),
                   "a field behind peers, if it is no setting's, is named below");
    if (bytes >= sizeof(weir_options))
        return bytes <= LARGEST_SIZE;
    for (size_t i = 0; i < WEIR_SETTING_COUNT; i++)
        if (weir__option_rows[i].offset == bytes)
            return bytes >= SMALLEST_SIZE;
    return bytes == AT(oom_callback) || bytes == AT(oom_callback_data);
}

const char *weir__options_size_problem(const weir_options *options) {
    if (!options)
        return "options is NULL";
    if (!is_size(options->size))
        return "options.size is not a size of weir_options: call weir_options_init first";
    return NULL;
}

void weir__options_copy(const weir_options *options, weir_options *out) {
    memset(out, 0, sizeof *out);
    memcpy(out, options, options->size < sizeof *out ? options->size : sizeof *out);
    out->size = sizeof *out;
}

void weir__options_give(const weir_options *from, weir_options *options) {
    size_t size = options->size;

    memcpy(options, from, size < sizeof *from ? size : sizeof *from);
    options->size = size;
}

int weir__options_tail_is_zero(const weir_options *options) {
    const unsigned char *bytes = (const unsigned char *)options;

    for (size_t i = sizeof *options; i < options->size; i++)
        if (bytes[i] != 0)
            return 0;
    return 1;
}

weir_status weir__options_take(const weir_options *options, weir_options *out, char *message,
                               size_t message_bytes) {
    no_message(message, message_bytes);
    if (weir__options_size_problem(options))
        return weir__option_refuse(WEIR_E_INVALID, message, message_bytes, "%s",
                                   weir__options_size_problem(options));
    weir__options_copy(options, out);
    return WEIR_OK;
}

weir_status weir_options_init_sized(weir_options *options, size_t bytes) {
    if (!options || !is_size(bytes))
        return weir__without_driver(WEIR_E_INVALID);
    memset(options, 0, bytes);
    options->size = bytes;
    return WEIR_OK;
}

int weir__options_log(const weir_options *options) {
    return options && options->size >= AT(log) + sizeof options->log &&
                   options->log <= WEIR_LOG_DEBUG
               ? options->log
               : WEIR_LOG_NONE;
}
