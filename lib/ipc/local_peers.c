/* SPDX-License-Identifier: MIT */
/* local_peers.c: the list of a process's allocators, sorted by number.  weir__local_peers_next() searches by number,
 * so entries may join and leave between two calls.  A child of fork() never uses the list. */
#include "ipc/local_peers.h"

#include <pthread.h>
#include <stddef.h>

#include "base/assert.h"

/* Guards the list; no other lock is taken under this lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static struct weir_local_peer *first;
static uint64_t joined;

void weir__local_peers_join(struct weir_local_peer *s) {
    struct weir_local_peer **at = &first;

    pthread_mutex_lock(&lock);
    while (*at)
        at = &(*at)->next;
    s->number = ++joined;
    s->next = NULL;
    *at = s;
    pthread_mutex_unlock(&lock);
}

void weir__local_peers_leave(struct weir_local_peer *s) {
    struct weir_local_peer **at = &first;

    pthread_mutex_lock(&lock);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    while (s->users > 0)
        pthread_cond_wait(&let_go, &lock);
    s->number = 0;
    pthread_mutex_unlock(&lock);
}

/* Ends the use of an entry.  The last user wakes the thread that removes the entry.  The caller holds the lock. */
static void release_peer(struct weir_local_peer *s) {
    WEIR_ASSERT(s->users > 0);
    if (--s->users == 0)
        pthread_cond_broadcast(&let_go);
}

struct weir_local_peer *weir__local_peers_next(const struct weir_local_peer *s,
                                               struct weir_local_peer *last) {
    struct weir_local_peer *found;
    uint64_t after;

    pthread_mutex_lock(&lock);
    after = last ? last->number : 0;
    for (found = first; found; found = found->next)
        if (found->number > after &&
            (!s || (found != s && found->driver == s->driver && found->device == s->device)))
            break;
    if (found)
        found->users++;
    if (last)
        release_peer(last);
    pthread_mutex_unlock(&lock);
    return found;
}

void weir__local_peers_release(struct weir_local_peer *s) {
    pthread_mutex_lock(&lock);
    release_peer(s);
    pthread_mutex_unlock(&lock);
}
