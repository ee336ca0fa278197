/* SPDX-License-Identifier: MIT */
/* preload_show.c: publishes the memory statistics of this process for `weir top`, in a shared memory segment.
 *
 * While `weir top` runs, a thread of this process publishes the statistics four times a second, so requests and frees
 * are not slowed down.  At other times the thread sleeps.
 *
 * A child of fork publishes nothing: it has no such thread, and weir allocates nothing in a child.  If the process
 * executes another program, the new program continues to use the process's file.
 *
 * Locks: the thread holds `show_lock` while it queries the driver.  A thread that unloads the driver or ends a
 * context waits for `show_lock`, but for at most a second.
 *
 * The code in this file must not depend on what `weir top` does with the statistics. */

#include "adapters/preload/preload.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "base/who.h"

enum { PAUSE_MS = 250 };

static pthread_mutex_t show_lock = PTHREAD_MUTEX_INITIALIZER;
static int is_closed;               /* set when publication has ended; guarded by `show_lock` */
static struct weir_segment segment; /* used only by the thread "weir-show", once this thread runs */
static struct weir_show show;       /* used only by the thread "weir-show", once this thread runs */

/* Returns 1 if a pool uses the allocator at present, else 0. */
static int is_served_shown(const struct weir_served *s) {
    return atomic_load_explicit(&s->state, memory_order_relaxed) != WEIR_SERVED_SPARE;
}

_Static_assert((int)WEIR_GROUP_KIND_COUNT <= (int)WEIR_SHOW_KINDS &&
                   (int)WEIR_PLAIN_CALLERS <= (int)WEIR_SHOW_CALLERS &&
                   (int)WEIR_PLAIN_NAME == (int)WEIR_SHOW_OBJECT,
               "there is room for all");

/* Stores the memory that the program has allocated without weir. */
static void fill_plain(void) {
    struct weir_plain_figures plain;
    int kinds = 0;

    weir__plain_read(&plain);
    memset(show.kind, 0, sizeof show.kind);
    memset(show.caller, 0, sizeof show.caller);
    for (int k = 0; k < WEIR_GROUP_KIND_COUNT; k++)
        if (plain.kind[k] > 0) {
            strncpy(show.kind[kinds].call, weir__group_kind_word((enum weir_group_kind)k),
                    WEIR_SHOW_WORD - 1);
            show.kind[kinds++].bytes = plain.kind[k];
        }
    for (int i = 0; i < WEIR_PLAIN_CALLERS; i++) {
        memcpy(show.caller[i].object, plain.caller[i].name, WEIR_SHOW_OBJECT);
        show.caller[i].bytes = plain.caller[i].bytes;
    }
}

static void fill_shown_figures(void) {
    fill_plain();
    show.left = 0;
    for (int i = 0; i < WEIR_UNSERVED_COUNT; i++)
        show.left += atomic_load_explicit(&weir__unserved[i], memory_order_relaxed);
    show.all = 0;
    show.allocators = 0;
    for (unsigned i = 0; i < weir__served_known(); i++) {
        struct weir_show_allocator *to = &show.allocator[show.allocators];
        struct weir_served *s = weir__served_at(i);

        if (!is_served_shown(s) || show.all++ >= WEIR_SHOW_MOST ||
            !weir__show_fill(s->allocator, to))
            continue;
        memset(to->device, 0, sizeof to->device);
        memcpy(to->device, s->device_text, sizeof s->device_text);
        strncpy(to->serves, s->is_plain ? "cuMemAlloc" : "pool", sizeof to->serves - 1);
        show.allocators++;
    }
    show.time_ns = weir__clock_ns();
}

/* Publishes the statistics.  Returns 1 on success, 0 after weir__show_end(). */
static int publish_figures(void) {
    int goes_on;

    pthread_mutex_lock(&show_lock);
    goes_on = !is_closed;
    if (goes_on) {
        fill_shown_figures();
        weir__segment_publish(&segment, &show);
    }
    pthread_mutex_unlock(&show_lock);
    return goes_on;
}

static void *run_show_thread(void *unused) {
    weir__is_serving = 1; /* driver calls of this thread go to the driver unchanged */
    weir__segment_each(&weir__show_kind, NULL, NULL);
    for (;;) {
        weir__segment_wait(&segment, PAUSE_MS);
        if (weir__segment_is_watched(&segment) && !publish_figures())
            return unused;
    }
}

int weir__start_thread(void *(*of)(void *), const char *name) {
    pthread_t thread;
    int error = weir__thread_start(&thread, of, NULL);

    if (!error) {
        (void)pthread_setname_np(thread, name);
        (void)pthread_detach(thread);
    }
    return error;
}

void weir__show_begin(void) {
    static atomic_int has_begun;
    int before = errno, error = 0;

    if (atomic_exchange(&has_begun, 1))
        return;
    weir__process_command(0, show.command, sizeof show.command);
    if (weir__segment_create(&segment, &weir__show_kind) != 0)
        error = errno;
    else if ((error = weir__start_thread(run_show_thread, "weir-show")) != 0)
        weir__segment_remove(&segment);
    if (error)
        weir__run_log("`weir top' does not see this program: %s", strerror(error));
    errno = before;
}

void weir__show_pause(void) {
    pthread_mutex_lock(&show_lock);
}

int weir__show_pause_in_time(void) {
    return weir__thread_lock_at_end(&show_lock);
}

void weir__show_resume(void) {
    pthread_mutex_unlock(&show_lock);
}

void weir__show_remove(void) {
    weir__segment_remove(&segment);
}

void weir__show_end(void) {
    weir__show_remove();
    if (!weir__thread_lock_at_end(&show_lock))
        return;
    is_closed = 1;
    pthread_mutex_unlock(&show_lock);
}
