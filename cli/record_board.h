/* SPDX-License-Identifier: MIT */
/* record_board.h: the folders and the board of record_ring.h, as the recorder has them.
 *
 * Must not know: what an event is, what becomes of it.
 */
#ifndef WEIR_CLI_RECORD_BOARD_H
#define WEIR_CLI_RECORD_BOARD_H

#include <stddef.h>
#include <stdint.h>

#include "adapters/record/record_ring.h"

enum { BOARD_FOLDERS = 2 };

/* The places of the folders, in the order in which they are tried. */
extern const char *const board_places[BOARD_FOLDERS];

struct board {
    struct weir_record_board *map;
    int fd;          /* the board, which has the recorder's lock */
    uint32_t spares; /* the number of spare files; no process can change this copy */
    uint64_t seen;   /* the number of files that processes had made at the last look */
    uint8_t is_adopted[WEIR_RECORD_SPARES]; /* the spare files that were found */
    uint32_t told; /* the number of unrecorded processes that the user was told of */
    char outer[BOARD_FOLDERS][96];    /* the outer folders; "" if one could not be made */
    char folders[BOARD_FOLDERS][136]; /* the inner folders */
};

/* The files of new processes. */
struct found {
    struct weir_record_file **files;
    size_t count, room;
};

/* Makes the folders and the board, and takes the recorder's lock.  Returns 0 or errno. */
int board_begin(struct board *board);
/* Writes the value of the variable WEIR_RECORD_FOLDER. */
void board_spell(const struct board *board, char *text, size_t bytes);
/* Tells the processes that nobody reads any more.  board_has_new() then returns 1 once. */
void board_close(struct board *board);
/* Removes the folders with their files. */
void board_end(struct board *board);

/* Returns 1 if a process has truncated a file that it shares with the recorder, so that events are lost; else 0. */
int board_is_cut(void);

/* Returns 1 if processes have made files since the last look, else 0. */
int board_has_new(const struct board *board);
/* Adds the new files to `found`, and sorts `found`, the oldest file first.  Returns 0, or an errno if a file could not
 * be mapped. */
int board_look(struct board *board, struct found *found);
/* Maps a file of the folders, and unlinks the file.  Returns NULL with errno if it cannot be mapped. */
void *board_map(const struct board *board, const char *name, size_t bytes);
/* Unmaps a process's file, or makes a spare one ready for another process. */
void board_release(struct board *board, struct weir_record_file *file);

/* Tells the user which processes have found no place for their events since the last call, why, and what to do.
 * Returns 1 if there are any, else 0. */
int board_tell_unrecorded(struct board *board);
/* Adds the processes that found no place for their events, and these events, to the counts. */
void board_count_unrecorded(const struct board *board, uint64_t *processes, uint64_t *events);

/* Returns 1 if the process of this file lives, or cannot be known to have ended; else 0. */
int board_owner_lives(const struct board *board, const struct weir_record_head *head);
/* Returns 1 if a process that has loaded the library lives, else 0. */
int board_anyone_lives(const struct board *board);

#endif
