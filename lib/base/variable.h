/* SPDX-License-Identifier: MIT */
/* variable.h: weir's own variables of the environment.
 *
 * A program may overwrite or clear its environment before weir reads it; some do to set their title.  So a library that
 * is preloaded into a program stores, when it is loaded, the variables that the program was started with.
 *
 * This file must not know the meaning of a variable.
 */
#ifndef WEIR_VARIABLE_H
#define WEIR_VARIABLE_H

/* Stores the variables that begin with WEIR_.  Called once, before the program's main. */
void weir__variables_note(void);
/* Returns the value that the environment has now, else the stored one, or NULL if there is none. */
const char *weir__variable(const char *name);

#endif
