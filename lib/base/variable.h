/* SPDX-License-Identifier: MIT */
/* variable.h: reads weir's own environment variables.
 *
 * A program may overwrite its environment before weir reads a variable, for example to change its name in ps(1).  So a
 * library that is preloaded into a program copies all WEIR_ variables when it is loaded. */
#ifndef WEIR_VARIABLE_H
#define WEIR_VARIABLE_H

/* Copies the environment variables that begin with WEIR_, once, before the program's main(). */
void weir__variables_store(void);
/* Returns the value of a variable.  If it is not set now, returns the stored copy, or NULL if there is none. */
const char *weir__variable(const char *name);

#endif
