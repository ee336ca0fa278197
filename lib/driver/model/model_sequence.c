/* SPDX-License-Identifier: MIT */
/* model_sequence.c: records driver calls as a digest and as lines of text, by which a test compares two runs.
 *
 * For each call, the sequence contains the entry point, numbers (bytes, flags, counts), streams, events, pools, and the
 * result.  It contains no addresses or times, which differ between runs.  Streams, events and pools are numbered in the
 * order of their first calls.  model.c measures the recording as the model's own time, not the caller's.
 */
#include "driver/model/model_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static struct {
    struct weir_model_sequence so_far;
    uint64_t named[MODEL_OTHER]; /* for each kind, the number of objects that have a number */
    uint64_t entries[WEIR_ENTRY_COUNT]; /* a digest of each driver call's name */
    FILE *lines;
} sequence; /* guarded by the lock of the model */

static void reset_ordinals(const struct model_slab *slab) {
    for (size_t i = 0; i < slab->used; i++)
        ((struct model_slot *)(slab->base + i * slab->stride))->ordinal = 0;
}

static uint64_t mixed(uint64_t digest, uint64_t value) {
    digest = (digest ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return digest ^ digest >> 29;
}

static uint64_t digest_of(const char *name) {
    uint64_t digest = 0;

    while (*name)
        digest = mixed(digest, (unsigned char)*name++);
    return digest;
}

void weir__model_sequence_start(FILE *lines) {
    weir__model_lock();
    memset(&sequence, 0, sizeof sequence);
    sequence.lines = lines;
    for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
        sequence.entries[i] = digest_of(weir__driver_entry_name((enum weir_driver_entry)i));
    reset_ordinals(&weir__model.streams);
    reset_ordinals(&weir__model.events);
    reset_ordinals(&weir__model.pools);
    atomic_fetch_or(&weir__model.state, MODEL_SEQUENCED);
    weir__model_unlock();
}

void weir__model_sequence(struct weir_model_sequence *out) {
    weir__model_lock();
    *out = sequence.so_far;
    weir__model_unlock();
}

/* Returns an object's number in the recording, or UINT64_MAX on failure.  A destroyed object keeps its number. */
static uint64_t ordinal(const struct model_slab *slab, const struct model_argument *argument) {
    uintptr_t offset = argument->value - (uintptr_t)slab->base;
    struct model_slot *slot = (struct model_slot *)argument->value;

    if (offset >= slab->stride * slab->used || (offset & (slab->stride - 1)) != 0)
        return argument->value <= WEIR_STREAM_PER_THREAD_VALUE ? argument->value : UINT64_MAX;
    if (!slot->ordinal)
        slot->ordinal = WEIR_STREAM_PER_THREAD_VALUE + ++sequence.named[argument->kind];
    return slot->ordinal;
}

static void add(const char *word, uint64_t value) {
    sequence.so_far.digest = mixed(sequence.so_far.digest, value);
    if (sequence.lines)
        fprintf(sequence.lines, " %s%" PRIu64, word, value);
}

static void add_argument(const struct model_argument *argument) {
    const CUmemPoolProps *properties;

    switch (argument->kind) {
    case MODEL_NUMBER:
        add("", argument->value);
        break;
    case MODEL_STREAM:
        add("stream ", ordinal(&weir__model.streams, argument));
        break;
    case MODEL_EVENT:
        add("event ", ordinal(&weir__model.events, argument));
        break;
    case MODEL_POOL:
        add("pool ", ordinal(&weir__model.pools, argument));
        break;
    case MODEL_PROPERTIES:
        properties = (const CUmemPoolProps *)argument->value;
        add("most ", properties ? properties->maxSize : 0);
        break;
    case MODEL_OTHER:
        break;
    }
}

void weir__model_sequence_add(enum weir_driver_entry entry,
                              const struct model_argument arguments[MODEL_ARGUMENTS],
                              CUresult result) {
    weir__model_lock();
    sequence.so_far.calls++;
    if (sequence.lines)
        fputs(weir__driver_entry_name(entry), sequence.lines);
    sequence.so_far.digest = mixed(sequence.so_far.digest, sequence.entries[entry]);
    for (int i = 0; i < MODEL_ARGUMENTS; i++)
        add_argument(&arguments[i]);
    if (entry == WEIR_ENTRY_cuMemPoolSetAttribute &&
        arguments[1].value == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && arguments[2].value)
        add("threshold ", *(const uint64_t *)arguments[2].value);
    add("= ", result);
    if (sequence.lines)
        fputc('\n', sequence.lines);
    weir__model_unlock();
}
