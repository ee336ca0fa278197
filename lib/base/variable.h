/* SPDX-License-Identifier: MIT */
/* variable.h: reads weir's own environment variables.
 *
 * A program may overwrite or clear its environment before weir reads a variable.  Some programs do this to change their
 * name in ps(1).  So a library that is preloaded into a program copies all WEIR_ variables when the library is loaded.
 *
 * This file must not depend on the meaning of a variable. */
#ifndef WEIR_VARIABLE_H
#define WEIR_VARIABLE_H

/* Copies the environment variables that begin with WEIR_.  The caller calls this function once, before the program's
 * main(). */
void weir__variables_store(void);
/* Returns the value of an environment variable.  If the variable is not set now, returns the value that
 * weir__variables_store() has copied.  Returns NULL if there is no copy either. */
const char *weir__variable(const char *name);

#endif
