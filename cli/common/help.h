/* SPDX-License-Identifier: MIT */
/* help.h: what there is to choose from, in help texts and in messages. */
#ifndef WEIR_CLI_HELP_H
#define WEIR_CLI_HELP_H

#include <stdio.h>

/* For the help filter of a struct argp: the text behind the options, with what `list` prints and an
 * empty line before it; other texts, and this one when memory is short, as they are.  argp frees it. */
char *help_with_list(int key, const char *text, void (*list)(FILE *file));

/* Adds a word to "one, two"; what does not fit is cut off. */
void help_join(char *text, size_t bytes, const char *word);

#endif
