/* SPDX-License-Identifier: MIT */
/* driver_count.c: a driver table that counts the calls of another one and forwards them.
 *
 * Each thread counts in a page of its own, which only its owner writes: no locked instruction and no
 * shared cache line, so that counting neither costs nor serialises what is being measured.  Pages
 * are linked into a list that only grows; a thread that ends leaves its page, with the counts in it,
 * to the next thread that starts, so the sum over the list is exact and no count is ever folded.
 * A thread that gets no page (out of memory) counts in a shared one with locked additions.
 *
 * Must not know: what the counted table does; who counts.
 */
#include "driver/driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct page {
    _Alignas(64) _Atomic uint64_t calls[WEIR_ENTRY_COUNT];
    struct page *next; /* set before the page is linked, never changed */
    atomic_int owned;  /* by a live thread */
};

static const struct weir_driver *inner_table; /* set before the counted table is handed out */
static struct weir_driver counted_table;
static pthread_mutex_t make_lock = PTHREAD_MUTEX_INITIALIZER;

static _Atomic(struct page *) pages;
static struct page shared_page;
static _Thread_local struct page *own_page;
static pthread_key_t page_key; /* its destructor gives a page back at the end of a thread */

static void leave_page(void *page) {
    own_page = NULL;
    atomic_store_explicit(&((struct page *)page)->owned, 0, memory_order_release);
}

static struct page *take_page(void) {
    struct page *page;

    for (page = atomic_load_explicit(&pages, memory_order_acquire); page; page = page->next) {
        int free_page = 0;

        if (atomic_compare_exchange_strong_explicit(&page->owned, &free_page, 1,
                                                    memory_order_acquire, memory_order_relaxed))
            return page;
    }
    page = aligned_alloc(_Alignof(struct page), sizeof *page);
    if (!page)
        return NULL;
    for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
        atomic_init(&page->calls[i], 0);
    atomic_init(&page->owned, 1);
    page->next = atomic_load_explicit(&pages, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&pages, &page->next, page, memory_order_release,
                                                  memory_order_relaxed))
        ;
    return page;
}

/* The first call of a thread, and each call of one that gets no page. */
static __attribute__((noinline)) void count_slowly(enum weir_driver_entry entry) {
    struct page *page = take_page();

    if (page && pthread_setspecific(page_key, page) != 0) {
        leave_page(page);
        page = NULL;
    }
    own_page = page;
    atomic_fetch_add_explicit(page ? &page->calls[entry] : &shared_page.calls[entry], 1,
                              memory_order_relaxed);
}

static inline void count_call(enum weir_driver_entry entry) {
    struct page *page = own_page;

    if (page)
        atomic_store_explicit(&page->calls[entry],
                              atomic_load_explicit(&page->calls[entry], memory_order_relaxed) + 1,
                              memory_order_relaxed);
    else
        count_slowly(entry);
}

#define WEIR_ENTRY(group, entry, symbol, version, params, args)                                    \
    static CUresult counted_##entry params {                                                       \
        count_call(WEIR_ENTRY_##entry);                                                            \
        return inner_table->entry args;                                                            \
    }
WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY

const struct weir_driver *weir__driver_counted(const struct weir_driver *inner) {
    const struct weir_driver *table = NULL;

    if (!inner)
        return NULL;
    pthread_mutex_lock(&make_lock);
    if (!inner_table && pthread_key_create(&page_key, leave_page) == 0) {
        counted_table = *inner; /* the clock, the capabilities, and NULL where there is NULL */
#define WEIR_ENTRY(group, entry, symbol, version, params, args)                                    \
    if (inner->entry)                                                                              \
        counted_table.entry = counted_##entry;
        WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
        inner_table = inner;
    }
    if (inner == inner_table)
        table = &counted_table;
    pthread_mutex_unlock(&make_lock);
    return table;
}

void weir__driver_counts(uint64_t counts[WEIR_ENTRY_COUNT]) {
    const struct page *page;

    for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
        counts[i] = atomic_load_explicit(&shared_page.calls[i], memory_order_relaxed);
    for (page = atomic_load_explicit(&pages, memory_order_acquire); page; page = page->next)
        for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
            counts[i] += atomic_load_explicit(&page->calls[i], memory_order_relaxed);
}

const char *weir__driver_entry_name(enum weir_driver_entry entry) {
    static const char *const names[] = {
#define WEIR_ENTRY(group, entry, symbol, version, params, args) symbol,
        WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
    };

    return (unsigned)entry < WEIR_ENTRY_COUNT ? names[entry] : NULL;
}
