/* SPDX-License-Identifier: MIT */
/* histogram.c: a log-linear histogram.
 *
 * Each value below 32 has its own bucket.  Above, each range from a power of two to the next has 32 equal buckets. */
#include "base/histogram.h"

#include "base/bounds.h"

enum { SUB_BITS = 5 };

_Static_assert(WEIR_HISTOGRAM_SUB == 1 << SUB_BITS, "sub-buckets per power of two");
_Static_assert(WEIR_HISTOGRAM_BUCKETS == (64 - SUB_BITS + 1) * WEIR_HISTOGRAM_SUB, "buckets");

static unsigned bucket_of(uint64_t value) {
    unsigned shift;

    if (value < WEIR_HISTOGRAM_SUB)
        return (unsigned)value;
    shift = 63u - (unsigned)__builtin_clzll(value) - SUB_BITS;
    return (shift + 1) * WEIR_HISTOGRAM_SUB +
           (unsigned)((value >> shift) & (WEIR_HISTOGRAM_SUB - 1));
}

/* Returns the largest value that falls into the bucket with this index. */
static uint64_t bound_of(unsigned bucket) {
    unsigned shift;

    if (bucket < WEIR_HISTOGRAM_SUB)
        return bucket;
    shift = bucket / WEIR_HISTOGRAM_SUB - 1;
    return ((WEIR_HISTOGRAM_SUB + bucket % WEIR_HISTOGRAM_SUB + UINT64_C(1)) << shift) - 1;
}

static uint64_t load_relaxed(const _Atomic uint64_t *from) {
    return atomic_load_explicit(from, memory_order_relaxed);
}

void weir__histogram_add(struct weir_histogram *h, uint64_t value) {
    atomic_fetch_add_explicit(&h->count[bucket_of(value)], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->total, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum, value, memory_order_relaxed);
    weir__raise_to(&h->max, value);
}

/* Returns the rank of a quantile, at least 1.  The subtraction corrects rounding: 0.07 * 100 is slightly above 7. */
static uint64_t rank_of(double fraction, uint64_t total) {
    double exact = fraction * (double)total;
    uint64_t rank;

    if (!(exact > 1.0))
        return 1;
    if (exact >= (double)total)
        return total;
    exact -= exact * 1e-12;
    rank = (uint64_t)exact;
    return (double)rank < exact ? rank + 1 : rank;
}

uint64_t weir__histogram_quantile(const struct weir_histogram *h, double fraction) {
    uint64_t total = load_relaxed(&h->total), max = load_relaxed(&h->max), seen = 0, rank;

    if (total == 0)
        return 0;
    rank = rank_of(fraction, total);
    for (unsigned i = 0; i < WEIR_HISTOGRAM_BUCKETS; i++) {
        seen += load_relaxed(&h->count[i]);
        if (seen >= rank) {
            uint64_t bound = bound_of(i);

            return bound < max ? bound : max;
        }
    }
    /* The buckets have fewer than `rank` values, since another thread's new value is visible only in `total`. */
    return max;
}
