/* SPDX-License-Identifier: MIT */
/* model_oracle.c: the oracle, which checks that each use of memory is ordered after the earlier uses of this memory.
 *
 * For each byte that was used, the oracle keeps the last owner (a number for one block of a caller), and for each
 * stream the last operation that used the byte.  The first use by a new owner must be ordered after all these
 * operations: both are on one stream, the new use waits for an event that was recorded after the old use, or the host
 * has observed the completion of the old use before it submits the new use.  Completion alone is not enough.
 *
 * A free must be ordered, too: cuMemFreeAsync as work on its stream, cuMemFree as an operation of the host, unless
 * cuMemFree waits for the device.  cuMemUnmap, and cuMemSetAccess if it removes access, take effect at once: the host
 * must have observed the completion of all uses, including fills and copies, which have no owner.  If memory is mapped
 * at two addresses, a use at one address must be ordered after the uses at the other, whose owner does not change.
 */
#include "driver/model/model_inside.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* A range of bytes whose last uses all belong to one owner. */
struct model_share {
    struct model_node node; /* `key` is the address of the first byte */
    uint64_t bytes;
    uint64_t owner;
    struct model_orders uses; /* the last operation of each stream that used this memory */
};

static struct {
    struct model_node *shares;
    /* The mappings of physical memory that memset or memcpy calls have used.  These calls have no owner (0). */
    struct model_node *touched;
    /* For each stream that has used memory: the last operation whose completion the host has observed. */
    struct model_orders observed;
    /* For each stream that has used memory: the number of its device, plus 1. */
    struct model_orders device_numbers;
    uint64_t uses;
    char fault[1024]; /* the text about the first fault, or "" */
} oracle;

/* ---- Words ---- */

static __attribute__((format(printf, 2, 3))) void append_fault_text(size_t *length,
                                                                    const char *format, ...) {
    size_t left = sizeof oracle.fault - *length;
    va_list arguments;
    int wrote;

    va_start(arguments, format);
    wrote = vsnprintf(oracle.fault + *length, left, format, arguments);
    va_end(arguments);
    if (wrote > 0)
        *length += (size_t)wrote < left ? (size_t)wrote : left - 1;
}

static void append_fault_orders(size_t *length, const struct model_orders *orders) {
    size_t i;

    for (i = 0; i < orders->count; i++)
        append_fault_text(length, "%s%" PRIu64 ":%" PRIu64, i ? " " : "", orders->item[i].id,
                          orders->item[i].seq);
    if (orders->count == 0)
        append_fault_text(length, "none");
}

/* Stores the text of the first fault: a use on `stream` (NULL is the host) does not wait for earlier uses (`share`).
 * Stores nothing if a list of orders is incomplete, because host memory was too short. */
static void store_order_fault(const struct model_share *share, const char *what,
                              const struct model_stream *stream) {
    size_t length = 0;

    if (oracle.fault[0] || oracle.observed.lost || oracle.device_numbers.lost ||
        (stream && stream->after.lost))
        return;
    append_fault_text(&length, "%s: %" PRIu64 " bytes at %#" PRIx64 " were used by ", what,
                      share->bytes, share->node.key);
    if (share->owner)
        append_fault_text(&length, "owner %" PRIu64, share->owner);
    else
        append_fault_text(&length, "fills or copies");
    append_fault_text(&length, " (stream:operation ");
    append_fault_orders(&length, &share->uses);
    append_fault_text(&length, "); ");
    if (stream) {
        append_fault_text(&length, "stream %" PRIu64 " at operation %" PRIu64 " is behind ",
                          weir__model_stream_id(stream), stream->seq);
        append_fault_orders(&length, &stream->after);
        append_fault_text(&length, "; ");
    }
    append_fault_text(&length, "the host has seen ");
    append_fault_orders(&length, &oracle.observed);
}

const char *weir__model_fault(void) {
    const char *fault;

    weir__model_lock();
    fault = oracle.fault[0] ? oracle.fault : NULL;
    weir__model_unlock();
    return fault;
}

uint64_t weir__model_uses(void) {
    uint64_t uses;

    weir__model_lock();
    uses = oracle.uses;
    weir__model_unlock();
    return uses;
}

/* ---- completed work ---- */

static int has_observed_completion(uint64_t id, uint64_t seq) {
    return weir__model_order(&oracle.observed, id) >= seq;
}

void weir__model_oracle_observe(uint64_t id, uint64_t seq, const struct model_orders *after) {
    if (!oracle.shares && !oracle.touched)
        return;
    weir__model_orders_add(&oracle.observed, id, seq);
    weir__model_orders_add_all(&oracle.observed, after);
}

/* ---- Histories ---- */

static struct model_share *first_from(struct model_node *tree, uint64_t address) {
    return (struct model_share *)(void *)weir__model_tree_ceiling(tree, address, 0);
}
static struct model_share *share_from(uint64_t address) {
    return first_from(oracle.shares, address);
}

static void remove_share_from(struct model_node **tree, struct model_share *share) {
    weir__model_tree_remove(tree, &share->node);
    weir__model_orders_clear(&share->uses);
    free(share);
}
static void drop_share(struct model_share *share) {
    remove_share_from(&oracle.shares, share);
}

/* Adds a range of used bytes to a tree.  Returns NULL if there is no host memory; the oracle then may miss a fault. */
static struct model_share *add_to(struct model_node **tree, uint64_t address, uint64_t bytes,
                                  uint64_t owner) {
    struct model_share *share = calloc(1, sizeof *share);

    if (!share)
        return NULL;
    share->node.key = address;
    share->bytes = bytes;
    share->owner = owner;
    weir__model_tree_insert(tree, &share->node);
    return share;
}
static struct model_share *add_share(uint64_t address, uint64_t bytes, uint64_t owner) {
    return add_to(&oracle.shares, address, bytes, owner);
}

/* If a recorded range begins before `address` and ends behind it, splits the range at `address`. */
static void split_share_at(uint64_t address) {
    struct model_share *left, *right;

    left = (struct model_share *)(void *)weir__model_tree_floor(oracle.shares, address, 0);
    if (!left || left->node.key == address || left->node.key + left->bytes <= address)
        return;
    right = add_share(address, left->node.key + left->bytes - address, left->owner);
    if (right)
        weir__model_orders_add_all(&right->uses, &left->uses);
    left->bytes = address - left->node.key;
}

/* Returns 1 if the next operation of the stream is ordered after the use, else 0.  `stream` is NULL for the host. */
static int is_ordered_after_use(const struct model_stream *stream, const struct model_order *use) {
    return has_observed_completion(use->id, use->seq) ||
           (stream && (weir__model_stream_id(stream) == use->id ||
                       weir__model_order(&stream->after, use->id) >= use->seq));
}

static int is_ordered_after_all(const struct model_stream *stream,
                                const struct model_orders *uses) {
    size_t i;

    for (i = 0; i < uses->count; i++)
        if (!is_ordered_after_use(stream, &uses->item[i]))
            return 0;
    return 1;
}

/* Checks that a new use is ordered after all recorded uses by other owners.  Removes the records.  NULL is the host. */
static void check_other_owners(uint64_t address, uint64_t bytes, const char *what,
                               const struct model_stream *stream, uint64_t owner) {
    struct model_share *share, *next;

    split_share_at(address);
    split_share_at(address + bytes);
    for (share = share_from(address); share && share->node.key < address + bytes; share = next) {
        next = share_from(share->node.key + share->bytes);
        if (share->owner == owner)
            continue;
        if (!is_ordered_after_all(stream, &share->uses))
            store_order_fault(share, what, stream);
        drop_share(share);
    }
}

struct alias {
    const struct model_stream *stream;
    uint64_t owner;
};

/* Checks that a new use is ordered after other owners' uses of the same memory at another address. */
static void check_alias(void *context, uint64_t address, uint64_t bytes) {
    const struct alias *a = context;
    struct model_share *share =
        (struct model_share *)(void *)weir__model_tree_floor(oracle.shares, address, 0);

    if (!share || share->node.key + share->bytes <= address)
        share = share_from(address);
    for (; share && share->node.key < address + bytes;
         share = share_from(share->node.key + share->bytes))
        if (share->owner != a->owner && !is_ordered_after_all(a->stream, &share->uses))
            store_order_fault(share, "use beside another's at another address of the same memory",
                              a->stream);
}

/* ---- Uses ---- */

/* Stores a text about a use of bytes that are not allocated, or that the stream's device must not access. */
static void store_access_fault(const struct model_stream *stream, uint64_t address, uint64_t bytes,
                               uint64_t owner) {
    int device = stream->context->device, i;
    size_t length = 0;

    if (oracle.fault[0])
        return;
    for (i = 0; i < weir__model.device_count; i++)
        if (weir__model_allows(i, address, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
            break;
    append_fault_text(&length,
                      "use of memory that %s: %" PRIu64 " bytes at %#" PRIx64 " by owner %" PRIu64,
                      i < weir__model.device_count ? "the stream's device has no access to"
                                                   : "the driver has not given out",
                      bytes, address, owner);
    append_fault_text(&length, " on stream %" PRIu64 " of device %d", weir__model_stream_id(stream),
                      device);
}

static void record_operation(struct model_share *share, const struct model_stream *stream) {
    uint64_t id = weir__model_stream_id(stream);

    weir__model_orders_add(&oracle.device_numbers, id, (uint64_t)stream->context->device + 1);
    weir__model_orders_add(&share->uses, id, stream->seq);
}

void weir__model_oracle_use(const struct model_stream *stream, uint64_t address, uint64_t bytes,
                            uint64_t owner) {
    uint64_t at = address;
    struct model_share *share;

    oracle.uses++;
    if (!weir__model_allows(stream->context->device, address, bytes,
                            CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
        store_access_fault(stream, address, bytes, owner);
        return;
    }
    check_other_owners(address, bytes, "use beside another's", stream, owner);
    weir__model_each_alias(address, bytes, check_alias, &(struct alias){stream, owner});
    /* All ranges left in these bytes belong to `owner`, because check_other_owners() has removed the others. */
    while (at < address + bytes) {
        share = share_from(at);
        if (!share || share->node.key > at) {
            uint64_t end =
                share && share->node.key < address + bytes ? share->node.key : address + bytes;

            share = add_share(at, end - at, owner);
            if (!share)
                return;
        }
        record_operation(share, stream);
        at = share->node.key + share->bytes;
    }
}

void weir__model_oracle_freed(uint64_t address, uint64_t bytes, const struct model_stream *stream) {
    check_other_owners(address, bytes,
                       stream ? "freed before its uses" : "freed before the host saw its uses",
                       stream, 0);
}

void weir__model_oracle_touched(const struct model_stream *stream, uint64_t address,
                                uint64_t bytes) {
    struct model_share *share = first_from(oracle.touched, address);

    if (!share || share->node.key != address)
        share = add_to(&oracle.touched, address, bytes, 0);
    if (share)
        record_operation(share, stream);
}

/* Checks that the host has observed the completion of all work on these bytes.  Removes the records of the work. */
static void check_lost_mappings(uint64_t address, uint64_t bytes, const char *what) {
    struct model_share *share;

    check_other_owners(address, bytes, what, NULL, 0);
    while ((share = first_from(oracle.touched, address)) && share->node.key < address + bytes) {
        if (!is_ordered_after_all(NULL, &share->uses))
            store_order_fault(share, what, NULL);
        remove_share_from(&oracle.touched, share);
    }
}

void weir__model_oracle_unmapped(uint64_t address, uint64_t bytes) {
    check_lost_mappings(address, bytes, "unmapped before the host saw its uses done");
}

void weir__model_oracle_closed(uint64_t address, uint64_t bytes) {
    check_lost_mappings(address, bytes, "access taken before the host saw its uses done");
}

void weir__model_oracle_remove(uint64_t address, uint64_t bytes) {
    struct model_share *share;

    split_share_at(address);
    split_share_at(address + bytes);
    while ((share = share_from(address)) && share->node.key < address + bytes)
        drop_share(share);
}

/* ---- removal of uses ---- */

/* Removes uses whose completion the host has observed, and all uses by streams of `device` (-1 for no device). */
static void drop_completed(struct model_node **tree, int device, struct model_orders *named) {
    struct model_share *share = first_from(*tree, 0), *next;

    for (; share; share = next) {
        struct model_orders *uses = &share->uses;
        size_t kept = 0;

        for (size_t i = 0; i < uses->count; i++) {
            struct model_order use = uses->item[i];

            if (has_observed_completion(use.id, use.seq) ||
                weir__model_order(&oracle.device_numbers, use.id) == (uint64_t)(device + 1))
                continue;
            uses->item[kept++] = use;
            weir__model_orders_add(named, use.id, use.seq);
        }
        uses->count = kept;
        next = first_from(*tree, share->node.key + 1);
        if (kept == 0)
            remove_share_from(tree, share);
    }
}

static void remove_completed_uses(int device, struct model_orders *named) {
    drop_completed(&oracle.shares, device, named);
    drop_completed(&oracle.touched, device, named);
    oracle.observed.count = 0;
    weir__model_orders_keep_streams(&oracle.device_numbers, named);
}

void weir__model_oracle_collect(struct model_orders *named) {
    remove_completed_uses(-1, named);
}

/* Marks the work of the device, and all work for which its streams have waited, as observed by the host. */
void weir__model_oracle_observe_device(int device) {
    const struct model_stream *stream = weir__model.devices[device].context.streams;
    struct model_orders named = {0};

    for (; stream && (oracle.shares || oracle.touched); stream = stream->next)
        weir__model_orders_add_all(&oracle.observed, &stream->after);
    remove_completed_uses(device, &named);
    weir__model_orders_clear(&named);
}

void weir__model_oracle_reset(void) {
    while (oracle.shares)
        drop_share(share_from(0));
    while (oracle.touched)
        remove_share_from(&oracle.touched, first_from(oracle.touched, 0));
    weir__model_orders_clear(&oracle.observed);
    weir__model_orders_clear(&oracle.device_numbers);
    oracle.uses = 0;
    oracle.fault[0] = '\0';
}
