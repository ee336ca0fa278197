/* SPDX-License-Identifier: MIT */
/* who.h: identifies processes by start time, namespace of pids and command. */
#ifndef WEIR_WHO_H
#define WEIR_WHO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { WEIR_COMMAND_BYTES = 256 }; /* the bytes of a command's text */

/* Returns the start time of a process in ticks since boot.  Returns 0 if there is no such process, or if the process
 * has ended, even if the parent has not waited for the process yet.  Returns UINT64_MAX if the start time is not
 * known. */
uint64_t weir__process_start(pid_t pid);
/* Returns 1 if the process with that start time has not ended, or if the state is not known; else 0.  An ended process
 * counts as ended even if its parent has not waited for it yet. */
int weir__process_lives(pid_t pid, uint64_t start);
/* Returns 1 if the process with that start time is ending, because of a signal or by itself, else 0.  Such a process
 * executes no more code of its program, but the kernel and drivers may need a while to free its memory. */
int weir__process_is_ending(pid_t pid, uint64_t start);
/* Returns 1 if the process exists and is stopped (SIGSTOP, a debugger), else 0. */
int weir__process_is_stopped(pid_t pid);
/* Returns the inode of this process's namespace of pids, or 0 if it is not known. */
uint64_t weir__process_namespace(void);

/* Returns 1 if libweir-preload.so is loaded in this process, else 0. */
int weir__process_has_preload(void);

/* Writes the command of a process, or of this process if `pid` is 0.  Writes "" if the command is not known. */
void weir__process_command(pid_t pid, char *text, size_t bytes);

/* Writes the command of this process without the folder of the program, for texts with little room. */
void weir__process_name(char *text, size_t bytes);

#endif
