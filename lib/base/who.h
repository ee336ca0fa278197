/* SPDX-License-Identifier: MIT */
/* who.h: checks whether a process still runs, and reads its command.
 *
 * A process id may be used again, so a process is identified by its id and its start time. */
#ifndef WEIR_WHO_H
#define WEIR_WHO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { WEIR_COMMAND_BYTES = 256 }; /* the maximum length of a command, with its NUL */

/* Returns the start time of a process, in clock ticks since the system's boot.  Returns 0 if the process does not exist
 * or is a zombie.  Returns UINT64_MAX if the time cannot be read. */
uint64_t weir__process_start(pid_t pid);
/* Returns 0 if the process with this id and start time has ended, else 1, also if /proc cannot be read. */
int weir__process_lives(pid_t pid, uint64_t start);
/* Returns 1 if the process is ending, else 0.  Such a process executes no more code of its program, but the kernel and
 * the driver may need a while to free its memory. */
int weir__process_is_ending(pid_t pid, uint64_t start);
/* Returns 1 if the process exists and is stopped, by SIGSTOP or by a debugger; else 0. */
int weir__process_is_stopped(pid_t pid);
/* Returns the inode of this process's pid namespace, or 0 if unknown.  Processes of one namespace see equal pids. */
uint64_t weir__process_namespace(void);

/* Returns 1 if libweir-preload.so is loaded in this process, else 0. */
int weir__process_has_preload(void);

/* Writes the command line of a process, or of this one if `pid` is 0, or "" if it cannot be read. */
void weir__process_command(pid_t pid, char *text, size_t bytes);

/* Writes the command line of this process without the folder of the program. */
void weir__process_name(char *text, size_t bytes);

#endif
