/* SPDX-License-Identifier: MIT */
/* model_oracle.c: the oracle, which checks that each use of memory is ordered after the earlier uses of this memory.
 *
 * weir__model_use declares that work on a stream reads and writes some bytes for an owner.  An owner is a number that
 * stands for one block of a caller.  For each byte that was ever used, the oracle keeps the last owner.  It also keeps
 * the uses by this owner: for each stream, the number of the last operation that used the byte.  The first use by a new
 * owner must be ordered after all these uses.  There are three ways.  Both uses are on one stream.  The stream of the
 * new use waits for an event that was recorded after the old use.  Or the host has observed the completion of the old
 * use before it submits the new use.  If the old use is merely completed by chance, the new use is not ordered after
 * it.
 *
 * A free of memory to the driver must also be ordered after these uses.  cuMemFreeAsync is ordered like work on its
 * stream.  cuMemFree is ordered like the host, unless cuMemFree waits for the device.  After the free, the driver is
 * responsible for the memory.
 *
 * cuMemUnmap takes effect at once and does not wait.  So the host must have observed the completion of all uses of the
 * unmapped bytes, including fills and copies, which have no owner.  This rule also applies to cuMemSetAccess if the
 * call removes access.  Memory in a new mapping has no owner.  The oracle keeps owners by address.  If memory is mapped
 * at two addresses, a use at one address must be ordered after the uses at the other address.  The owner at the other
 * address does not change.
 *
 * If a use is not ordered, the oracle keeps a text about this fault, with the orders of both uses.  It keeps only the
 * first fault.
 *
 * This file must not depend on why memory is used, or on how a pool places blocks.
 */
#include "driver/model/model_inside.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* A range of bytes that was last used by one owner (a block of the program), with the operations that used it. */
struct model_share {
    struct model_node node; /* `key` is the address of the first byte */
    uint64_t bytes;
    uint64_t owner;
    /* For each stream, the last operation that used this memory.  The first use by another owner must be ordered
     * after all of these operations.  An operation may be missing if the host has observed its completion. */
    struct model_orders uses;
};

static struct {
    struct model_node *shares;
    /* The ranges that fills and copies have used in mappings of physical memory.  The owner of these ranges is 0. */
    struct model_node *touched;
    /* The operations whose completion the host has observed, for streams with recorded uses. */
    struct model_orders seen;
    /* For each stream with recorded uses: the number of its device, plus 1. */
    struct model_orders homes;
    uint64_t uses;
    char fault[1024]; /* the text about the first fault; empty if there was none */
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

/* Stores a text about a use that is not ordered after an earlier use.  `stream` is the stream of the new use, or NULL
 * for the host.  Does nothing if part of the recorded order was lost for lack of host memory, because then the report
 * might be false. */
static void store_order_fault(const struct model_share *share, const char *what,
                              const struct model_stream *stream) {
    size_t length = 0;

    if (oracle.fault[0] || oracle.seen.lost || oracle.homes.lost || (stream && stream->after.lost))
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
    append_fault_orders(&length, &oracle.seen);
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

/* ---- Work that the host has completed ---- */

static int has_seen(uint64_t id, uint64_t seq) {
    return weir__model_order(&oracle.seen, id) >= seq;
}

void weir__model_oracle_observe(uint64_t id, uint64_t seq, const struct model_orders *after) {
    if (!oracle.shares && !oracle.touched)
        return;
    weir__model_orders_add(&oracle.seen, id, seq);
    weir__model_orders_add_all(&oracle.seen, after);
}

/* ---- Histories ---- */

static struct model_share *first_from(struct model_node *tree, uint64_t address) {
    return (struct model_share *)(void *)weir__model_tree_ceiling(tree, address, 0);
}
static struct model_share *share_from(uint64_t address) {
    return first_from(oracle.shares, address);
}

static void drop_from(struct model_node **tree, struct model_share *share) {
    weir__model_tree_remove(tree, &share->node);
    weir__model_orders_clear(&share->uses);
    free(share);
}
static void drop_share(struct model_share *share) {
    drop_from(&oracle.shares, share);
}

/* Adds a range of used bytes to a tree.  Returns NULL if there is no host memory; the oracle then may miss a fault,
 * but reports no false fault. */
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

/* Splits the recorded range that contains both the byte before `address` and the byte at `address`, if there is such
 * a range. */
static void cut_at(uint64_t address) {
    struct model_share *left, *right;

    left = (struct model_share *)(void *)weir__model_tree_floor(oracle.shares, address, 0);
    if (!left || left->node.key == address || left->node.key + left->bytes <= address)
        return;
    right = add_share(address, left->node.key + left->bytes - address, left->owner);
    if (right)
        weir__model_orders_add_all(&right->uses, &left->uses);
    left->bytes = address - left->node.key;
}

/* Returns 1 if the next operation of the stream is ordered after the use, else 0.  If `stream` is NULL, returns 1 if
 * the host has observed the completion of the use, else 0. */
static int is_behind(const struct model_stream *stream, const struct model_order *use) {
    return has_seen(use->id, use->seq) ||
           (stream && (weir__model_stream_id(stream) == use->id ||
                       weir__model_order(&stream->after, use->id) >= use->seq));
}

static int all_behind(const struct model_stream *stream, const struct model_orders *uses) {
    size_t i;

    for (i = 0; i < uses->count; i++)
        if (!is_behind(stream, &uses->item[i]))
            return 0;
    return 1;
}

/* Checks that the next operation of the stream is ordered after all uses of these bytes by other owners, and removes
 * these uses.  If `stream` is NULL, the host must have observed the completion of the uses. */
static void check_other_owners(uint64_t address, uint64_t bytes, const char *what,
                               const struct model_stream *stream, uint64_t owner) {
    struct model_share *share, *next;

    cut_at(address);
    cut_at(address + bytes);
    for (share = share_from(address); share && share->node.key < address + bytes; share = next) {
        next = share_from(share->node.key + share->bytes);
        if (share->owner == owner)
            continue;
        if (!all_behind(stream, &share->uses))
            store_order_fault(share, what, stream);
        drop_share(share);
    }
}

struct alias {
    const struct model_stream *stream;
    uint64_t owner;
};

/* Called for each other address at which the used memory is mapped.  Checks that the new use is ordered after the
 * uses at this address. */
static void check_alias(void *context, uint64_t address, uint64_t bytes) {
    const struct alias *a = context;
    struct model_share *share =
        (struct model_share *)(void *)weir__model_tree_floor(oracle.shares, address, 0);

    if (!share || share->node.key + share->bytes <= address)
        share = share_from(address);
    for (; share && share->node.key < address + bytes;
         share = share_from(share->node.key + share->bytes))
        if (share->owner != a->owner && !all_behind(a->stream, &share->uses))
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

static void learn_use(struct model_share *share, const struct model_stream *stream) {
    uint64_t id = weir__model_stream_id(stream);

    weir__model_orders_add(&oracle.homes, id, (uint64_t)stream->context->device + 1);
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
    /* Now all recorded ranges in these bytes belong to the owner.  Adds ranges for the gaps between them, and records
     * the new use. */
    while (at < address + bytes) {
        share = share_from(at);
        if (!share || share->node.key > at) {
            uint64_t end =
                share && share->node.key < address + bytes ? share->node.key : address + bytes;

            share = add_share(at, end - at, owner);
            if (!share)
                return;
        }
        learn_use(share, stream);
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
        learn_use(share, stream);
}

/* Checks that the host has observed the completion of all uses of mappings that nobody can access from now on.  Then
 * removes these uses. */
static void check_lost_mappings(uint64_t address, uint64_t bytes, const char *what) {
    struct model_share *share;

    check_other_owners(address, bytes, what, NULL, 0);
    while ((share = first_from(oracle.touched, address)) && share->node.key < address + bytes) {
        if (!all_behind(NULL, &share->uses))
            store_order_fault(share, what, NULL);
        drop_from(&oracle.touched, share);
    }
}

void weir__model_oracle_unmapped(uint64_t address, uint64_t bytes) {
    check_lost_mappings(address, bytes, "unmapped before the host saw its uses done");
}

/* Later uses need not be compared with the removed ones, because the host has observed the completion of those. */
void weir__model_oracle_closed(uint64_t address, uint64_t bytes) {
    check_lost_mappings(address, bytes, "access taken before the host saw its uses done");
}

void weir__model_oracle_remove(uint64_t address, uint64_t bytes) {
    struct model_share *share;

    cut_at(address);
    cut_at(address + bytes);
    while ((share = share_from(address)) && share->node.key < address + bytes)
        drop_share(share);
}

/* ---- Forgetting completed uses, and dropping all uses ---- */

/* Removes from a tree all uses whose completion the host has observed, and all uses by streams of `device` (-1 for no
 * device).  Adds the streams of the remaining uses to the list `named`. */
static void drop_completed(struct model_node **tree, int device, struct model_orders *named) {
    struct model_share *share = first_from(*tree, 0), *next;

    for (; share; share = next) {
        struct model_orders *uses = &share->uses;
        size_t kept = 0;

        for (size_t i = 0; i < uses->count; i++) {
            struct model_order use = uses->item[i];

            if (has_seen(use.id, use.seq) ||
                weir__model_order(&oracle.homes, use.id) == (uint64_t)(device + 1))
                continue;
            uses->item[kept++] = use;
            weir__model_orders_add(named, use.id, use.seq);
        }
        uses->count = kept;
        next = first_from(*tree, share->node.key + 1);
        if (kept == 0)
            drop_from(tree, share);
    }
}

/* Removes from both trees all uses whose completion the host has observed.  Then forgets what the host has observed,
 * since it concerned only the removed uses. */
static void forget_completed(int device, struct model_orders *named) {
    drop_completed(&oracle.shares, device, named);
    drop_completed(&oracle.touched, device, named);
    oracle.seen.count = 0;
    weir__model_orders_keep_streams(&oracle.homes, named);
}

void weir__model_oracle_collect(struct model_orders *named) {
    forget_completed(-1, named);
}

/* Records that the host has observed the completion of all work of the device.  This includes work on other devices
 * for which streams of the device have waited. */
void weir__model_oracle_observe_device(int device) {
    const struct model_stream *stream = weir__model.devices[device].context.streams;
    struct model_orders named = {0};

    for (; stream && (oracle.shares || oracle.touched); stream = stream->next)
        weir__model_orders_add_all(&oracle.seen, &stream->after);
    forget_completed(device, &named);
    weir__model_orders_clear(&named);
}

void weir__model_oracle_reset(void) {
    while (oracle.shares)
        drop_share(share_from(0));
    while (oracle.touched)
        drop_from(&oracle.touched, first_from(oracle.touched, 0));
    weir__model_orders_clear(&oracle.seen);
    weir__model_orders_clear(&oracle.homes);
    oracle.uses = 0;
    oracle.fault[0] = '\0';
}
