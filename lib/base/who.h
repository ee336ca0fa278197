/* SPDX-License-Identifier: MIT */
/* who.h: what a process is to others: since when it is there, in which namespace, by which command.
 *
 * Must not know: the caller.
 */
#ifndef WEIR_WHO_H
#define WEIR_WHO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { WEIR_COMMAND_BYTES = 256 }; /* of its text, as others have room for it */

/* When a process began, in ticks since the machine did; 0: there is no such process, or only what its parent has
 * not taken note of yet; UINT64_MAX: it cannot be told. */
uint64_t weir__process_start(pid_t pid);
/* 1: the process that began then has not ended, or that cannot be told.  One that waits for its parent has. */
int weir__process_lives(pid_t pid, uint64_t start);
/* 1: the process that began then is about to end, by a signal or not: it does nothing any more, and what it had is
 * taken from it, by the kernel and by drivers, which may take a while. */
int weir__process_is_ending(pid_t pid, uint64_t start);
/* 1: it is there, and does nothing until somebody has it go on (SIGSTOP, a debugger). */
int weir__process_is_stopped(pid_t pid);
/* The inode of this process's namespace of pids; 0: it cannot be told. */
uint64_t weir__process_namespace(void);

/* Returns 1 if libweir-preload.so is loaded in this process, else 0. */
int weir__process_has_preload(void);

/* The words of this process's command, and of another's; "": it cannot be told. */
void weir__process_command(char *text, size_t bytes);
void weir__process_command_of(pid_t pid, char *text, size_t bytes);

#endif
