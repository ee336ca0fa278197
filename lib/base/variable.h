/* SPDX-License-Identifier: MIT */
/* variable.h: weir's own variables of the environment.
 *
 * A program may overwrite or clear its environment before weir reads a variable.  Some programs do so to set their
 * title.  So a library that is preloaded into a program stores, when it is loaded, the variables that the program was
 * started with.
 *
 * This file must not know the meaning of a variable.
 */
#ifndef WEIR_VARIABLE_H
#define WEIR_VARIABLE_H

/* Stores the variables that begin with WEIR_.  The caller calls this function once, before the program's main(). */
void weir__variables_note(void);
/* Returns the variable's present value.  If the variable is not set now, returns the stored value, or NULL if there is
 * none. */
const char *weir__variable(const char *name);

#endif
