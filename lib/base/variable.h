/* SPDX-License-Identifier: MIT */
/* variable.h: weir's own variables of the environment.
 *
 * A program may overwrite its environment before weir reads it, as some do that set their title, or clear it.  A library
 * that is preloaded into such a program notes, when it is loaded, what the program was started with.
 *
 * Must not know: what a variable means.
 */
#ifndef WEIR_VARIABLE_H
#define WEIR_VARIABLE_H

/* Notes the variables that begin with WEIR_.  To be called once, before the program's main. */
void weir__variables_note(void);
/* The value: as the environment has it now, else as noted.  NULL: there is none. */
const char *weir__variable(const char *name);

#endif
