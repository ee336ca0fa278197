/* SPDX-License-Identifier: MIT */
/* page_map.c: the functions of page_map.h that are not inlined. */
#include "cache/page_map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/hostmem.h"

enum { WHOLES_KEPT = 1 << 16 }; /* with more whole-block records, a freed block loses its record */
#define CHUNK ((size_t)64 << 10)
#define CHUNK_LARGE ((size_t)2 << 20) /* the bytes of a chunk once host_bytes reaches this number */
struct weir_records_chunk {
    struct weir_records_chunk *next;
    size_t bytes;
};

/* ---- the page map ---- */

/* Finds or makes the page map's leaf for a page of device memory.  Returns NULL if there is no host memory. */
static struct weir__pagemap_leaf *leaf_of(struct weir_records *r, uint64_t page) {
    _Atomic(struct weir__pagemap_node *) *above =
        &r->top[page >> (WEIR__PAGEMAP_NODE_BITS + WEIR__PAGEMAP_LEAF_BITS)];
    struct weir__pagemap_node *node = atomic_load_explicit(above, memory_order_relaxed);
    _Atomic(struct weir__pagemap_leaf *) *place;
    struct weir__pagemap_leaf *leaf;

    if (!node) {
        node = calloc(1, sizeof *node);
        if (!node)
            return NULL;
        r->host_bytes += sizeof *node;
        atomic_store_explicit(above, node, memory_order_release);
    }
    place = &node->leaf[page >> WEIR__PAGEMAP_LEAF_BITS & (WEIR__PAGEMAP_NODE_SLOTS - 1)];
    leaf = atomic_load_explicit(place, memory_order_relaxed);
    if (leaf)
        return leaf;
    /* The kernel zeroes the leaf.  weir makes it map leaf->large now, to save page faults. */
    leaf = mmap(NULL, sizeof *leaf, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (leaf == MAP_FAILED)
        return NULL;
    weir__hostmem_populate(leaf->large, sizeof leaf->large);
    r->host_bytes += sizeof *leaf - sizeof leaf->value;
    atomic_store_explicit(place, leaf, memory_order_release);
    return leaf;
}

/* Makes the kernel provide the host memory in which the leaf stores its entries for the pages `page` to `last`. */
static void populate_words(struct weir_records *r, struct weir__pagemap_leaf *leaf, uint64_t page,
                           uint64_t last) {
    const size_t mask = WEIR__PAGEMAP_LEAF_SLOTS - 1;
    const size_t first = (page & mask) / WEIR__PAGEMAP_HOST_SLOTS;
    const size_t end = (last & mask) / WEIR__PAGEMAP_HOST_SLOTS + 1;
    const size_t bytes = WEIR__PAGEMAP_HOST_SLOTS * sizeof leaf->value[0];
    size_t more = 0;

    for (size_t at = first; at < end; at++) {
        const uint64_t bit = UINT64_C(1) << at % 64;

        if (!(leaf->counted[at / 64] & bit))
            more += bytes;
        leaf->counted[at / 64] |= bit;
    }
    r->host_bytes += more;
    if (more > 0)
        weir__hostmem_populate((char *)leaf->value + first * bytes, (end - first) * bytes);
}

/* Makes the page map's tables for the addresses.  Returns 0 without host memory or for an invalid address, else 1. */
static int reserve_words(struct weir_records *r, uint64_t address, size_t bytes, int large) {
    struct weir__pagemap_leaf *leaf;
    uint64_t page = address >> WEIR__PAGE_SHIFT, last, end;

    if (bytes == 0 || address % WEIR_PAGE != 0 || address + (bytes - 1) < address)
        return 0;
    last = (address + (bytes - 1)) >> WEIR__PAGE_SHIFT;
    if (last >> (WEIR__PAGEMAP_NODE_BITS + WEIR__PAGEMAP_LEAF_BITS) >= WEIR__PAGEMAP_TOP_SLOTS)
        return 0;
    for (; page <= last; page = end + 1) {
        end = page | (WEIR__PAGEMAP_LEAF_SLOTS - 1);
        end = last < end ? last : end;
        leaf = leaf_of(r, page);
        if (!leaf)
            return 0;
        if (!large)
            populate_words(r, leaf, page, end);
    }
    return 1;
}

/* ---- records ---- */

/* Returns the index in `spare` for a record: 0 for a whole block, n for a slab of up to 2^(n-1) slots. */
static unsigned order_of(uint32_t slots) {
    if (slots <= 1)
        return slots;
    return 33u - (unsigned)__builtin_clz(slots - 1);
}

static size_t bytes_of(unsigned order) {
    size_t bytes = order == 0
                       ? offsetof(struct weir_slab, posted_next)
                       : offsetof(struct weir_slab, slot) + (sizeof(uint32_t) << (order - 1));

    return (bytes + WEIR_RECORDS_ALIGN - 1) & ~(size_t)(WEIR_RECORDS_ALIGN - 1);
}

static int add_chunk(struct weir_records *r) {
    size_t size = r->host_bytes < CHUNK_LARGE ? CHUNK : CHUNK_LARGE;
    struct weir_records_chunk *chunk = aligned_alloc(size, size);

    if (!chunk)
        return 0;
    weir__hostmem_prefer_large_pages(chunk, size);
    weir__hostmem_populate(chunk, size);
    memset(chunk, 0, size);
    chunk->next = r->chunks;
    chunk->bytes = size;
    r->chunks = chunk;
    r->chunk_at = (char *)chunk + WEIR_RECORDS_ALIGN;
    r->chunk_end = (char *)chunk + size;
    r->host_bytes += size;
    return 1;
}

static struct weir_slab *new_record(struct weir_records *r, uint32_t slots) {
    unsigned order = order_of(slots);
    size_t bytes = bytes_of(order);
    struct weir_slab *s = r->spare[order];

    if (s) {
        r->spare[order] = s->next;
        return s;
    }
    if ((size_t)(r->chunk_end - r->chunk_at) < bytes && !add_chunk(r))
        return NULL;
    s = (struct weir_slab *)(void *)r->chunk_at;
    r->chunk_at += bytes;
    s->order = (uint8_t)order;
    return s;
}

static void recycle_record(struct weir_records *r, struct weir_slab *s) {
    s->next = r->spare[s->order];
    r->spare[s->order] = s;
}

/* Returns 1 if a block's record belongs in leaf->large, 0 if it belongs in leaf->value.  A slab that begins in one leaf
 * and ends in the next one uses leaf->value, since a look-up reads only one leaf. */
static int uses_large(uint64_t base, size_t bytes, int is_slab) {
    enum { LEAF_SHIFT = WEIR__PAGE_SHIFT + WEIR__PAGEMAP_LEAF_BITS };

    if (!is_slab)
        return bytes > WEIR_SLAB_SMALL;
    return bytes == WEIR_SLAB_SMALL && base >> LEAF_SHIFT == (base + (bytes - 1)) >> LEAF_SHIFT;
}

/* Stores `value` (`s` or NULL) in the block's entries of the page map, and recycles other records that were there. */
static void set_words(struct weir_records *r, const struct weir_slab *s, struct weir_slab *value) {
    uint64_t base = weir__slab_base(s), bytes = weir__slab_bytes(s);
    int is_slab = s->slot_units > 0, large = uses_large(base, bytes, is_slab);
    uint64_t end = is_slab && !large ? base + bytes : base + WEIR_PAGE;
    struct weir__pagemap_words words;
    _Atomic(void *) *place;
    struct weir_slab *before;
    void *word = value;

    if (value && is_slab && large)
        word = (char *)value + weir__records_tag(base);
    /* unreached: the look-up never fails, since reserve_words() has made the leaf */
    for (; base < end && weir__records_words(r, base, &words); base += WEIR_PAGE) {
        place = large ? words.large : words.page;
        before = atomic_load_explicit(place, memory_order_relaxed);
        atomic_store_explicit(place, word, memory_order_release);
        if (value && before) {
            recycle_record(r, before);
            r->wholes--;
        }
    }
}

/* Returns 1 if look-ups of each page of a slab, or of a whole block's first page, find the record `s`, else 0. */
static WEIR_ASSERT_ONLY int lead_words_to(const struct weir_records *r, const struct weir_slab *s) {
    size_t bytes = s->slot_units == 0 ? WEIR_PAGE : weir__slab_bytes(s);

    for (size_t at = 0; at < bytes; at += WEIR_PAGE)
        if (weir__records_find(r, weir__slab_base(s) + at) != s)
            return 0;
    return 1;
}

struct weir_slab *weir__records_begin(struct weir_records *r, uint64_t base, size_t bytes,
                                      unsigned size_class, uint32_t slots) {
    int large = uses_large(base, bytes, slots > 0);
    struct weir_slab *s = NULL;

    weir__lock_take(&r->lock);
    if (reserve_words(r, base, slots > 0 ? bytes : WEIR_PAGE, large))
        s = new_record(r, slots);
    if (s) {
        atomic_store_explicit(&s->base, base, memory_order_relaxed);
        atomic_store_explicit(&s->bytes, bytes, memory_order_release);
        s->slot_units = 0;
        s->next = s->prev = NULL;
        atomic_store_explicit(&s->cache, NULL, memory_order_relaxed);
        atomic_store_explicit(&s->asked, 0, memory_order_relaxed);
        if (slots > 0)
            weir__slab_cut(s, size_class, slots);
        else
            r->wholes++;
        set_words(r, s, s);
        WEIR_ASSERT(lead_words_to(r, s));
    }
    weir__lock_give(&r->lock);
    return s;
}

struct weir_slab *weir__records_whole(struct weir_records *r, uint64_t base, size_t bytes) {
    struct weir__pagemap_words words;
    struct weir_slab *kept = NULL;

    if (weir__records_words(r, base, &words))
        kept = atomic_load_explicit(bytes > WEIR_SLAB_SMALL ? words.large : words.page,
                                    memory_order_acquire);
    if (!kept)
        return weir__records_begin(r, base, bytes, 0, 0);
    atomic_store_explicit(&kept->base, base, memory_order_relaxed);
    /* A reader that sees this value of `bytes` also sees the new base. */
    atomic_store_explicit(&kept->bytes, bytes, memory_order_release);
    return kept;
}

uint64_t weir__records_end(struct weir_records *r, struct weir_slab *s) {
    uint64_t base = atomic_load_explicit(&s->base, memory_order_relaxed);
    int whole = s->slot_units == 0;

    if (whole && r->wholes <= WHOLES_KEPT) {
        atomic_store_explicit(&s->bytes, 0, memory_order_relaxed);
        return base;
    }
    weir__lock_take(&r->lock);
    WEIR_ASSERT(lead_words_to(r, s));
    set_words(r, s, NULL);
    recycle_record(r, s);
    r->wholes -= (size_t)whole;
    weir__lock_give(&r->lock);
    return base;
}

/* Skips recycled records, which no look-up finds, and the unused end of a chunk, where all bytes are 0. */
void weir__records_walk(struct weir_records *r, void (*visit)(void *context, struct weir_slab *s),
                        void *context) {
    weir__lock_take(&r->lock);
    for (struct weir_records_chunk *chunk = r->chunks; chunk; chunk = chunk->next) {
        char *at = (char *)chunk + WEIR_RECORDS_ALIGN, *end = (char *)chunk + chunk->bytes;

        while (at < end) {
            struct weir_slab *s = (struct weir_slab *)(void *)at;

            if (weir__slab_base(s) != 0 && weir__records_find(r, weir__slab_base(s)) == s)
                visit(context, s);
            at += bytes_of(s->order);
        }
    }
    weir__lock_give(&r->lock);
}

int weir__records_open(struct weir_records *r) {
    r->top = calloc(WEIR__PAGEMAP_TOP_SLOTS, sizeof *r->top);
    return r->top != NULL;
}

void weir__records_close(struct weir_records *r) {
    struct weir__pagemap_node *node;
    struct weir__pagemap_leaf *leaf;

    while (r->chunks) {
        struct weir_records_chunk *chunk = r->chunks;

        r->chunks = chunk->next;
        free(chunk);
    }
    for (size_t i = 0; r->top && i < WEIR__PAGEMAP_TOP_SLOTS; i++) {
        node = atomic_load_explicit(&r->top[i], memory_order_relaxed);
        for (size_t k = 0; node && k < WEIR__PAGEMAP_NODE_SLOTS; k++) {
            leaf = atomic_load_explicit(&node->leaf[k], memory_order_relaxed);
            if (leaf)
                (void)munmap(leaf, sizeof *leaf);
        }
        free(node);
    }
    free(r->top);
}
