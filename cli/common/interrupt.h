/* SPDX-License-Identifier: MIT */
/* interrupt.h: a command that takes long and is interrupted shows what it has by then.
 *
 * Must not know: what a command does.
 */
#ifndef WEIR_CLI_INTERRUPT_H
#define WEIR_CLI_INTERRUPT_H

/* From now on SIGINT, SIGTERM and SIGHUP are noted. */
void interrupt_watch(void);
/* 1: it came, and nothing new is to be begun. */
int interrupt_came(void);
/* Ends the process by the signal, if one came: the process that started it is to know. */
void interrupt_end(void);

#endif
