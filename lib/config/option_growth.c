/* SPDX-License-Identifier: MIT */
/* option_growth.c: the option that says how reserved memory grows: a policy, and what follows its colon. */
#include "config/option_kinds.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

const struct weir_option_word weir__option_policies[] = {
#define POLICY_WORD(name, word, value) {word, value},
    WEIR_GROWTH_POLICIES(POLICY_WORD)
#undef POLICY_WORD
        {NULL, 0},
};

static int factor_valid(int growth, double factor, struct weir_problem *problem) {
    if (growth == WEIR_GROWTH_GEOMETRIC && !(factor > 1 && factor <= 1e300))
        return weir__problem(problem, "the factor must be above 1 and finite");
    if (growth == WEIR_GROWTH_REMAINING && !(factor > 0 && factor <= 1))
        return weir__problem(problem, "the fraction must be above 0 and at most 1");
    return 1;
}

/* Reads the text after the colon of a policy: "64MiB", "2:4GiB", "0.5". */
static int growth_argument(const char *text, weir_options *growth, struct weir_problem *problem) {
    const char *end;

    if (growth->growth == WEIR_GROWTH_STEP) {
        if (!weir__size_read(text, &growth->growth_step, problem))
            return 0;
        return growth->growth_step > 0 || weir__problem(problem, "the step is 0");
    }
    if (growth->growth != WEIR_GROWTH_GEOMETRIC && growth->growth != WEIR_GROWTH_REMAINING)
        return weir__problem(problem, "this policy takes nothing after a colon");
    if (!weir__factor_read(text, &end, &growth->growth_factor, problem))
        return 0;
    if (*end != '\0' && (*end != ':' || growth->growth != WEIR_GROWTH_GEOMETRIC))
        return weir__problem(problem, "something follows the number");
    if (!factor_valid(growth->growth, growth->growth_factor, problem))
        return 0;
    if (*end == '\0')
        return 1;
    if (!weir__size_read(end + 1, &growth->growth_step, problem))
        return 0;
    return growth->growth_step > 0 || weir__problem(problem, "the cap is 0");
}

/* Sets all fields of growth, so that no argument of an earlier policy stays. */
static int growth_read(const struct weir_option_row *row, const char *text, weir_options *options,
                       struct weir_problem *problem) {
    size_t length = strcspn(text, ":");
    const struct weir_option_word *word = weir__option_find(weir__option_policies, text, length);
    weir_options growth = {.growth = word ? word->value : WEIR_GROWTH_DEFAULT};

    (void)row;
    if (growth.growth == WEIR_GROWTH_CALLBACK)
        return weir__problem(problem, "a callback is a function of the program, no text can name "
                                      "it");
    if (growth.growth == WEIR_GROWTH_DEFAULT)
        return weir__problem(problem, *text ? "there is no such policy" : "it is empty");
    if (text[length] == ':' && !growth_argument(text + length + 1, &growth, problem))
        return 0;
    options->growth = growth.growth;
    options->growth_step = growth.growth_step;
    options->growth_factor = growth.growth_factor;
    options->growth_function = NULL;
    options->growth_context = NULL;
    return 1;
}

static void growth_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                         size_t bytes) {
    char argument[WEIR_SPELL_BYTES] = "", cap[WEIR_SPELL_BYTES] = "";
    const char *word = weir__option_word_for(weir__option_policies, options->growth);

    (void)row;
    if (options->growth == WEIR_GROWTH_STEP)
        weir__bytes_spell(options->growth_step, argument, sizeof argument);
    if (options->growth == WEIR_GROWTH_GEOMETRIC || options->growth == WEIR_GROWTH_REMAINING)
        weir__factor_spell(options->growth_factor, argument, sizeof argument);
    if (options->growth == WEIR_GROWTH_GEOMETRIC && options->growth_step > 0)
        weir__bytes_spell(options->growth_step, cap, sizeof cap);
    snprintf(text, bytes, "%s%s%s%s%s", word ? word : "?", argument[0] ? ":" : "", argument,
             cap[0] ? ":" : "", cap);
}

static int growth_is_set(const struct weir_option_row *row, const weir_options *options) {
    (void)row;
    return options->growth != WEIR_GROWTH_DEFAULT || options->growth_function != NULL;
}

static int growth_check(const struct weir_option_row *row, const weir_options *options,
                        struct weir_problem *problem) {
    int callback = options->growth == WEIR_GROWTH_CALLBACK;

    (void)row;
    if (options->growth < WEIR_GROWTH_DEFAULT || options->growth > WEIR_GROWTH_CALLBACK)
        return weir__problem(problem, "there is no policy %d", options->growth);
    if (callback && !options->growth_function)
        return weir__problem(problem, "the callback policy needs growth_function");
    if (!callback && options->growth_function)
        return weir__problem(problem, "growth_function is set, but the policy is not callback");
    if (options->growth_factor >= 0 && options->growth_factor <= 0)
        return 1; /* the policy's default */
    return factor_valid(options->growth, options->growth_factor, problem);
}

const struct weir_option_kind weir__option_growth = {
    FUNCTIONS(growth_read, growth_spell, growth_is_set, growth_check)};
