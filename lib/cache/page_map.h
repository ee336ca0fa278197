/* SPDX-License-Identifier: MIT */
/* page_map.h: the records of blocks that the per-stream caches got from the engine below them, and the page map, which
 * finds the record of the block at a device address.
 *
 * Glossary
 *   span    the record of one block from the engine; the block is a multiple of a page (16 KiB)
 *   whole   a span that serves one request, of more than 512 KiB or without a cache
 *   slab    a span that is cut into slots of one size class
 *   class   all sizes that are rounded to one slot size: every 512 bytes up to 4 KiB, then eight in each doubling
 *   away    the state of a slot that was freed but is not in its slab's free list
 *
 * The page map is a radix tree of three levels.  A leaf has entries for pages of 16 KiB and for ranges of 512 KiB.  The
 * record of a slab is in the entries of all its pages, the record of a whole block in the entry of its first page.  But
 * a slab of 512 KiB, or a whole block above 512 KiB, has its record in the entry of the range in which it begins.  Such
 * a slab's entry also has a tag: the slab's first page in the range.  So the entry of an address's range and the entry
 * before it tell which slab contains the address.
 *
 * The record of a freed whole block stays in the map with bytes == 0.  The next whole block of the entry gets the
 * record.  The thread that allocates the block writes the record without a lock: no two live blocks share a record,
 * since a large block contains the last page of the range in which the block begins.
 *
 * Readers take no lock.  The entry of a live block does not change.  Leaves and records stay allocated until the map
 * closes, so a reader may read the record that it finds for any address.
 */
#ifndef WEIR_PAGE_MAP_H
#define WEIR_PAGE_MAP_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/size.h"

enum { WEIR_SLAB_CLASSES = 64, WEIR_SLAB_UNIT = 512 };
#define WEIR_SLAB_SMALL ((size_t)1 << 19) /* the largest request that a slab serves */

/* The state of a slot in its slab's free list.  The lower bits are the number of the next free slot, or SLOT_NONE. */
#define WEIR_SLOT_IDLE UINT32_C(0x80000000)
#define WEIR_SLOT_AWAY UINT32_C(0xC0000000) /* the state of a freed slot outside the free list */
#define WEIR_SLOT_NONE UINT32_C(0x3FFFFFFF)
_Static_assert(WEIR_SLAB_SMALL <= WEIR_SLOT_NONE && WEIR_SLOT_NONE < WEIR_SLOT_IDLE &&
                   WEIR_SLOT_IDLE < WEIR_SLOT_AWAY,
               "the states of live and of idle slots do not overlap");

struct weir_cache;

/* The record of a slab, or of a whole block, which has no slots.  The three parts lie on separate cache lines. */
struct weir_slab {
    _Alignas(64) _Atomic uint64_t base; /* for whole blocks above 512 KiB, valid only while live */
    _Atomic size_t bytes;               /* 0 for a whole block that was returned to the engine */
    _Atomic(struct weir_cache *) cache; /* the cache that owns a slab, or NULL */
    union {
        uint64_t inverse; /* for slabs: the odd factor of a slot's bytes, inverted modulo 2^64 */
        _Atomic uint64_t fetched_for; /* for whole blocks: the id of the requesting stream, or 0 */
    };
    uint8_t shift; /* log2 of the slot's bytes divided by the odd factor: 9 to 19 */
    uint8_t size_class, order;
    uint32_t slot_units; /* a slot's bytes divided by WEIR_SLAB_UNIT, or 0 for a whole block */
    uint32_t slots;
    _Atomic uint64_t asked; /* the bytes requested for a live whole block, else 0 */

    /* The lock of the cache that owns the slab, or whose inbox has the whole block, guards the next five fields.
     * weir_caches.lock guards the fields of a slab without an owner. */
    _Alignas(64) struct weir_slab *next; /* the next record in a list */
    struct weir_slab *prev;
    uint32_t idle;  /* the number of slots in the slab's free list */
    uint32_t head;  /* the first slot in the free list, or SLOT_NONE */
    uint32_t epoch; /* the cache's `epoch` when the slab became empty */

    /* The lock of the queue of slots that other threads have freed guards the next four fields. */
    _Alignas(64) struct weir_slab *posted_next; /* the next slab with slots in the queue */
    uint32_t posted, posted_first, posted_last; /* number, first and last slot in the queue */
    _Atomic uint32_t slot[]; /* the requested bytes of a live slot, else the slot's state */
};

static inline uint64_t weir__slab_base(const struct weir_slab *s) {
    return atomic_load_explicit(&s->base, memory_order_relaxed);
}

static inline size_t weir__slab_bytes(const struct weir_slab *s) {
    return atomic_load_explicit(&s->bytes, memory_order_relaxed);
}

/* Returns the class of a request of 1 to WEIR_SLAB_SMALL bytes. */
static inline unsigned weir__slab_class(size_t bytes) {
    size_t units = (bytes - 1) / WEIR_SLAB_UNIT; /* the number of units minus one */
    unsigned shift;

    if (units < 8)
        return (unsigned)units;
    /* the sizes between two powers of two have 8 classes, which are 2^shift units apart */
    shift = 60u - (unsigned)__builtin_clzll(units);
    return shift * 8 + (unsigned)(units >> shift);
}

static inline uint32_t weir__slab_units(unsigned size_class) {
    unsigned shift = size_class < 16 ? 0 : size_class / 8 - 1;

    return (uint32_t)((size_class - shift * 8 + 1) << shift);
}

static inline size_t weir__slab_slot_bytes(unsigned size_class) {
    return (size_t)weir__slab_units(size_class) * WEIR_SLAB_UNIT;
}

static inline uint64_t weir__slab_address(const struct weir_slab *s, uint32_t slot) {
    return weir__slab_base(s) + (uint64_t)slot * s->slot_units * WEIR_SLAB_UNIT;
}

/* Returns the number of the slot at `address`, or SLOT_NONE if no slot starts there.  In that case, `slot` is at least
 * s->slots (Granlund, Montgomery: "Division by invariant integers", section 9). */
static inline uint32_t weir__slab_slot(const struct weir_slab *s, uint64_t address) {
    uint64_t product = (address - weir__slab_base(s)) * s->inverse;
    uint64_t slot = product >> s->shift | product << (64 - s->shift);

    return slot < s->slots ? (uint32_t)slot : WEIR_SLOT_NONE;
}

static inline uint32_t weir__slab_slot_asked(const struct weir_slab *s, uint32_t slot) {
    uint32_t state = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);

    return state & WEIR_SLOT_IDLE ? 0 : state;
}

/* Returns the bytes that were requested for the live block at `address`, or 0 if no live block starts there. */
static inline uint64_t weir__slab_asked(const struct weir_slab *s, uint64_t address) {
    uint32_t slot;

    if (!s->slot_units)
        return address == weir__slab_base(s) ? atomic_load_explicit(&s->asked, memory_order_relaxed)
                                             : 0;
    slot = weir__slab_slot(s, address);
    return slot == WEIR_SLOT_NONE ? 0 : weir__slab_slot_asked(s, slot);
}

/* Returns the size of a slot of the slab, or of the whole block if the block is not cut into slots. */
static inline size_t weir__slab_in_use(const struct weir_slab *s) {
    return s->slot_units ? (size_t)s->slot_units * WEIR_SLAB_UNIT : weir__slab_bytes(s);
}

/* Allocates the first slot of the slab's free list, which must not be empty. */
static inline uint32_t weir__slab_take(struct weir_slab *s, uint32_t asked) {
    uint32_t slot = s->head;

    s->head = atomic_load_explicit(&s->slot[slot], memory_order_relaxed) & WEIR_SLOT_NONE;
    atomic_store_explicit(&s->slot[slot], asked, memory_order_relaxed);
    s->idle--;
    return slot;
}

static inline void weir__slab_put(struct weir_slab *s, uint32_t slot) {
    atomic_store_explicit(&s->slot[slot], WEIR_SLOT_IDLE | s->head, memory_order_relaxed);
    s->head = slot;
    s->idle++;
}

/* Puts a slot that another thread has freed into the queue.  Returns 1 if the queue had no slot of the slab, else 0. */
static inline int weir__slab_post(struct weir_slab *s, uint32_t slot) {
    int first = s->posted++ == 0;

    if (first)
        s->posted_last = slot;
    atomic_store_explicit(&s->slot[slot],
                          WEIR_SLOT_IDLE | (first ? WEIR_SLOT_NONE : s->posted_first),
                          memory_order_relaxed);
    s->posted_first = slot;
    return first;
}

/* Moves the slab's slots from the queue of slots that other threads have freed to the slab's free list. */
static inline void weir__slab_collect(struct weir_slab *s) {
    if (s->head != WEIR_SLOT_NONE)
        atomic_store_explicit(&s->slot[s->posted_last], WEIR_SLOT_IDLE | s->head,
                              memory_order_relaxed);
    s->head = s->posted_first;
    s->idle += s->posted;
    s->posted = 0;
}

/* Cuts the block into slots of a size class, and puts all slots into the slab's free list in address order. */
static inline void weir__slab_cut(struct weir_slab *s, unsigned size_class, uint32_t slots) {
    uint32_t slot_bytes = weir__slab_units(size_class) * WEIR_SLAB_UNIT, odd;

    s->slot_units = weir__slab_units(size_class);
    s->slots = slots;
    s->shift = (uint8_t)__builtin_ctz(slot_bytes);
    odd = slot_bytes >> s->shift;
    /* Computes the inverse of `odd` modulo 2^64.  Each step doubles the number of correct bits, which is 3 at first. */
    s->inverse = odd;
    for (int bits = 3; bits < 64; bits *= 2)
        s->inverse *= 2 - odd * s->inverse;
    s->size_class = (uint8_t)size_class;
    s->posted = 0;
    s->idle = 0;
    s->head = WEIR_SLOT_NONE;
    for (uint32_t i = slots; i > 0; i--)
        weir__slab_put(s, i - 1);
}

/* ---- the page map ---- */

/* Numbers of address bits: in 16 KiB (a page), in 512 KiB, and for each level of the page map.  A leaf covers 4 GiB. */
enum {
    WEIR__PAGE_SHIFT = 14,
    WEIR__LARGE_SHIFT = 19,
    WEIR__PAGEMAP_LEAF_BITS = 18,
    WEIR__PAGEMAP_NODE_BITS = 11,
    WEIR__PAGEMAP_TOP_BITS = 14
};
#define WEIR__PAGEMAP_LEAF_SLOTS ((size_t)1 << WEIR__PAGEMAP_LEAF_BITS)
#define WEIR__PAGEMAP_LARGE_SLOTS                                                                  \
    (WEIR__PAGEMAP_LEAF_SLOTS >> (WEIR__LARGE_SHIFT - WEIR__PAGE_SHIFT))
#define WEIR__PAGEMAP_HOST_SLOTS ((size_t)512) /* the number of entries in 4 KiB of host memory */
#define WEIR__PAGEMAP_NODE_SLOTS ((size_t)1 << WEIR__PAGEMAP_NODE_BITS)
#define WEIR__PAGEMAP_TOP_SLOTS ((size_t)1 << WEIR__PAGEMAP_TOP_BITS)

enum {
    WEIR_RECORDS_SLOTS = 1024, /* a slab's maximum number of slots: a power of two */
    WEIR_RECORDS_ORDERS = 12,  /* log2 of WEIR_RECORDS_SLOTS, plus 2 */
    WEIR_RECORDS_ALIGN = 128   /* two cache lines, since processors fetch lines in pairs */
};

struct weir__pagemap_leaf {
    _Atomic(void *) value[WEIR__PAGEMAP_LEAF_SLOTS]; /* 2 MiB */
    /* The first entry stays NULL, since a look-up reads an address's entry and the entry before it. */
    _Atomic(void *) large[1 + WEIR__PAGEMAP_LARGE_SLOTS];
    /* One bit for each 4 KiB of the array `value`, set once weir counts these 4 KiB as used host memory. */
    uint64_t counted[WEIR__PAGEMAP_LEAF_SLOTS / WEIR__PAGEMAP_HOST_SLOTS / 64];
};

struct weir__pagemap_node {
    _Atomic(struct weir__pagemap_leaf *) leaf[WEIR__PAGEMAP_NODE_SLOTS];
};

struct weir_records_chunk;

/* All fields are zero before weir__records_open(). */
struct weir_records {
    /* The page map's root.  Readers need no other field, and share no cache line with writers. */
    _Atomic(struct weir__pagemap_node *) *top;
    /* Guards writes to the page map, and the fields below.  A thread that holds this lock takes no other lock. */
    _Alignas(128) struct weir_lock lock;
    struct weir_slab *spare[WEIR_RECORDS_ORDERS];
    struct weir_records_chunk *chunks;
    char *chunk_at, *chunk_end;
    _Atomic size_t host_bytes; /* the bytes of all chunks and tables; read without the lock */
    _Atomic size_t wholes;     /* the number of records of whole blocks; read without the lock */
};

/* ---- inlined look-ups ---- */

/* The two entries in the page map for an address: for its page of 16 KiB, and for its range of 512 KiB. */
struct weir__pagemap_words {
    _Atomic(void *) *page, *large;
};

/* Finds the page map's entries for `address`.  Returns 1 on success, 0 if the map has none. */
static inline __attribute__((always_inline)) int
weir__records_words(const struct weir_records *r, uint64_t address,
                    struct weir__pagemap_words *out) {
    uint64_t page = address >> WEIR__PAGE_SHIFT;
    uint64_t top = page >> (WEIR__PAGEMAP_NODE_BITS + WEIR__PAGEMAP_LEAF_BITS);
    struct weir__pagemap_node *node;
    struct weir__pagemap_leaf *leaf;

    if (top >= WEIR__PAGEMAP_TOP_SLOTS)
        return 0;
    node = atomic_load_explicit(&r->top[top], memory_order_acquire);
    if (!node)
        return 0;
    leaf = atomic_load_explicit(
        &node->leaf[page >> WEIR__PAGEMAP_LEAF_BITS & (WEIR__PAGEMAP_NODE_SLOTS - 1)],
        memory_order_acquire);
    if (!leaf)
        return 0;
    out->page = &leaf->value[page & (WEIR__PAGEMAP_LEAF_SLOTS - 1)];
    out->large = &leaf->large[1 + (address >> WEIR__LARGE_SHIFT & (WEIR__PAGEMAP_LARGE_SLOTS - 1))];
    return 1;
}

/* The low bits of a record's address, which are 0.  In a slab's entry of `large`, they store weir__records_tag(). */
#define WEIR__RECORDS_TAG ((uintptr_t)WEIR_RECORDS_ALIGN - 1)
_Static_assert(WEIR_SLAB_SMALL == (size_t)1 << WEIR__LARGE_SHIFT,
               "at most one slab of 512 KiB begins in the 512 KiB of a word");
_Static_assert(2 * (WEIR_SLAB_SMALL / WEIR_PAGE) <= WEIR_RECORDS_ALIGN,
               "the tag of the last page has room");

static inline uintptr_t weir__records_tag(uint64_t address) {
    return (uintptr_t)(address >> WEIR__PAGE_SHIFT & (WEIR_SLAB_SMALL / WEIR_PAGE - 1)) << 1 | 1;
}

/* Returns the page map's record for the address, or NULL.  Compilers inline this function only with always_inline. */
static inline __attribute__((always_inline)) struct weir_slab *
weir__records_find(const struct weir_records *r, uint64_t address) {
    struct weir__pagemap_words words;
    uintptr_t word, last, page, ours, lasts;
    struct weir_slab *s;

    if (!weir__records_words(r, address, &words))
        return NULL;
    word = (uintptr_t)atomic_load_explicit(words.large, memory_order_acquire);
    last = (uintptr_t)atomic_load_explicit(words.large - 1, memory_order_acquire);
    if ((word | last) == 0)
        return atomic_load_explicit(words.page, memory_order_acquire);
    if (word && !(word & WEIR__RECORDS_TAG)) {
        /* Another thread may reuse the record for a later block in these 512 KiB, so this code compares the block's
         * base address.  The base is valid only if s->bytes is not 0. */
        s = (struct weir_slab *)word;
        if (atomic_load_explicit(&s->bytes, memory_order_acquire) > 0 &&
            weir__slab_base(s) == address)
            return s;
    }
    page = weir__records_tag(address);
    /* `ours` is 1 if `word` has a slab's tag and the slab begins at or before this page.  A tag of 0 wraps around. */
    ours = (word & WEIR__RECORDS_TAG) - 1 < page;
    lasts = (last & WEIR__RECORDS_TAG) > page; /* 1 if the slab of `last` extends to this page */
    if (__builtin_expect(!(ours | lasts), 0))
        return atomic_load_explicit(words.page, memory_order_acquire);
    /* Selects `word` or `last` without a branch, since a processor would mispredict half of the branches. */
    word ^= (word ^ last) & -lasts;
    return (struct weir_slab *)(word & ~WEIR__RECORDS_TAG);
}

/* ---- records ---- */

/* Opens the records and the page map.  Returns 1 on success, 0 if there is no host memory. */
int weir__records_open(struct weir_records *r);
void weir__records_close(struct weir_records *r);

/* Makes the record of a slab with free slots, or of a whole block if `slots` is 0.  Returns NULL if there is no host
 * memory, or if the address is above 2^57 or not a multiple of a page (16 KiB). */
struct weir_slab *weir__records_begin(struct weir_records *r, uint64_t base, size_t bytes,
                                      unsigned size_class, uint32_t slots);
/* Makes the record of a block without slots, or reuses an earlier block's record.  Returns NULL without host memory. */
struct weir_slab *weir__records_whole(struct weir_records *r, uint64_t base, size_t bytes);
/* Ends a block's record, before the caller returns the block to the engine for reuse.  Returns the block's address. */
uint64_t weir__records_end(struct weir_records *r, struct weir_slab *s);
/* Calls `visit` for the records of all blocks, live or not, under r->lock.  If a record's slot_units is 0, `visit` may
 * read only atomic fields of the record, since another thread may write other fields. */
void weir__records_walk(struct weir_records *r, void (*visit)(void *context, struct weir_slab *s),
                        void *context);

#endif
