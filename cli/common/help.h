/* SPDX-License-Identifier: MIT */
/* help.h: the choices of a user in help texts and in messages. */
#ifndef WEIR_CLI_HELP_H
#define WEIR_CLI_HELP_H

#include <stdio.h>

/* Is for the help filter of a struct argp.  Returns the text behind the options with the output of `list' and an empty
 * line before the text.  Returns other texts unchanged, and this text too if there is no host memory.  argp frees the
 * result. */
char *help_with_list(int key, const char *text, void (*list)(FILE *file));

/* Appends a word to a list such as "one, two".  Cuts off what does not fit. */
void help_join(char *text, size_t bytes, const char *word);

/* Returns 1 if the argument is a request for help: --help, -h or -?; 0 if not. */
int help_is_requested(const char *argument);

/* The name that is most like a misspelt word.  The word need not end behind its `length'. */
struct likeness {
    const char *word;
    size_t length;
    const char *closest; /* NULL: no name was compared yet */
    size_t distance;
};

/* Compares one more name. */
void likeness_add(struct likeness *likeness, const char *name);
/* Returns the closest name.  Returns NULL if the word differs from the name in more than two letters, or in half of the
 * word. */
const char *likeness_closest(const struct likeness *likeness);

#endif
