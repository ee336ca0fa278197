/* SPDX-License-Identifier: MIT */
/* option_text.c: options by their names: read from text, and shown as text. */
#include "config/option_kinds.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/result.h"
#include "base/text.h"

weir_status weir__option_refuse(weir_status status, char *message, size_t message_bytes,
                                const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    if (message && message_bytes > 0)
        vsnprintf(message, message_bytes, format, arguments);
    va_end(arguments);
    return status;
}

/* Writes the message about a text that a row does not accept.  `label` names the option, or is NULL for the row's
 * name. */
static weir_status no_parse(const struct weir_option_row *row, const char *label, const char *text,
                            const struct weir_problem *problem, char *message,
                            size_t message_bytes) {
    char quoted[80];

    weir__quote(text, quoted, sizeof quoted);
    return weir__option_refuse(WEIR_E_PARSE, message, message_bytes, "%s %s: %s; expected %s",
                               label ? label : row->text.name, quoted, problem->text,
                               row->text.accepts);
}

weir_status weir__option_set(weir_options *options, enum weir_setting setting, const char *label,
                             const char *text, char *message, size_t message_bytes) {
    const struct weir_option_row *row = &weir__option_rows[setting];
    struct weir_problem problem;
    weir_options work;

    no_message(message, message_bytes);
    weir__options_copy(options, &work);
    if (!row->kind->read(row, text, &work, &problem))
        return no_parse(row, label, text, &problem, message, message_bytes);
    weir__options_give(&work, options);
    return WEIR_OK;
}

weir_status weir_options_set(weir_options *options, const char *name, const char *text,
                             char *message, size_t message_bytes) {
    const char *problem = weir__options_size_problem(options);
    char quoted[80];

    if (!problem && (!name || !text))
        problem = name ? "the text is NULL" : "the option's name is NULL";
    if (problem)
        return weir__without_driver(
            weir__option_refuse(WEIR_E_INVALID, message, message_bytes, "%s", problem));
    for (size_t i = 0; i < WEIR_SETTING_COUNT; i++)
        if (strcmp(name, weir__option_rows[i].text.name) == 0)
            return weir__without_driver(weir__option_set(options, (enum weir_setting)i, NULL, text,
                                                         message, message_bytes));
    weir__quote(name, quoted, sizeof quoted);
    return weir__without_driver(
        weir__option_refuse(WEIR_E_INVALID, message, message_bytes,
                            "there is no option %s: weir-settings(7) lists them", quoted));
}

int weir__option_is_set(const weir_options *options, enum weir_setting setting) {
    return weir__option_rows[setting].kind->is_set(&weir__option_rows[setting], options);
}

void weir__option_show(const weir_options *options, enum weir_setting setting, char *text,
                       size_t bytes) {
    weir_options work;

    weir__options_copy(options, &work);
    weir__options_fill(&work);
    weir__option_rows[setting].kind->spell(&weir__option_rows[setting], &work, text, bytes);
}

weir_status weir__peers_parse(const char *text, uint64_t *devices, char *message,
                              size_t message_bytes) {
    struct weir_problem problem;

    no_message(message, message_bytes);
    if (weir__option_peers_scan(text, devices, &problem))
        return WEIR_OK;
    return no_parse(&weir__option_rows[WEIR_SETTING_PEERS], NULL, text, &problem, message,
                    message_bytes);
}

weir_status weir__device_parse(const char *text, const char **driver, int *ordinal, char *message,
                               size_t message_bytes) {
    struct weir_problem problem;

    no_message(message, message_bytes);
    if (weir__option_device_scan(text ? text : "cuda", driver, ordinal, &problem))
        return WEIR_OK;
    return no_parse(&weir__option_rows[WEIR_SETTING_DEVICE], NULL, text, &problem, message,
                    message_bytes);
}
