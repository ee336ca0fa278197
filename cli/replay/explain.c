/* SPDX-License-Identifier: MIT */
/* explain.c: reads a trace and sums it; see explain.h. */
#include "cli/replay/explain.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "cli/formats/input.h"

/* A live block, by its id. */
struct block {
    struct explain_group *group;
    uint64_t time_us;
};

struct explain_state {
    struct weir_map blocks;  /* id + 1 -> struct block */
    struct weir_map groups;  /* hash -> the first struct explain_group */
    struct weir_map streams; /* id + 1 */
    struct weir_map by;      /* hash of a name -> the name */
    uint64_t live;
    size_t group_room, mark_room;
};

/* From this share of the device, or of the peak requested memory where the device is not known, one request is an
 * allocator's that hands it out by itself; an array so large would leave no room for a result. */
enum { PREALLOCATION_PERCENT = 25, PREALLOCATION_OF_PEAK = 50, PREALLOCATION_MIB = 256 };

const char *explain_call_name(const char *word) {
    static const char *const names[][2] = {
        {"async", "cuMemAllocAsync"}, {"pool", "cuMemAllocFromPoolAsync"},
        {"plain", "cuMemAlloc"},      {"pitch", "cuMemAllocPitch"},
        {"vmm", "cuMemCreate"},       {"managed", "cuMemAllocManaged"},
        {"", "(not told)"},
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i][0], word) == 0)
            return names[i][1];
    return word;
}

/* ------------------------------------------------------------------- comments ---- */

static void take_device(struct explain *explain, const char *text) {
    unsigned device;
    uint64_t bytes;
    int name = 0;

    if (sscanf(text, "device %u: %" SCNu64 " bytes, %n", &device, &bytes, &name) != 2 || !name ||
        device >= EXPLAIN_DEVICES)
        return;
    explain->devices[device].bytes = bytes;
    snprintf(explain->devices[device].name, sizeof explain->devices[device].name, "%s",
             text + name);
}

/* "workload W; torch V; device NAME; total BYTES": of traces that PyTorch's own allocator recorded. */
static void take_workload(struct explain *explain, const char *text) {
    struct explain_device *device = &explain->devices[0];
    const char *at = strncmp(text, "workload ", 9) == 0 ? strstr(text, "; device ") : NULL;

    if (at)
        (void)sscanf(at, "; device %63[^;]; total %" SCNu64, device->name, &device->bytes);
}

static void take_call(struct explain *explain, const char *text) {
    struct explain_call call;

    if (explain->call_count < EXPLAIN_CALLS &&
        sscanf(text, "calls %63[^=]=%" SCNu64 " bytes=%" SCNu64 " most=%" SCNu64, call.name,
               &call.count, &call.bytes, &call.most) == 4)
        explain->calls[explain->call_count++] = call;
}

static void take_comment(void *context, const char *text) {
    struct explain *explain = context;

    if (strncmp(text, "weir ", 5) == 0 && strstr(text, " recorded ") && !explain->recorded[0])
        snprintf(explain->recorded, sizeof explain->recorded, "%s", text);
    take_device(explain, text);
    take_workload(explain, text);
    take_call(explain, text);
    (void)tape_read_left_out(text, &explain->left_out);
}

/* --------------------------------------------------------------------- groups ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

static uint64_t hash_of(const char *text) {
    uint64_t hash = 0;

    while (*text)
        hash = mix(hash, (unsigned char)*text++);
    return hash | 1;
}

/* The same pointer for the same name.  NULL: out of memory, or two names have one hash. */
static const char *keep_name(struct explain *explain, const char *name) {
    uint64_t key = hash_of(name);
    uintptr_t known;
    char *copy;

    if (!name[0])
        return "";
    if (weir__map_get(&explain->state->by, key, &known))
        return strcmp((const char *)known, name) == 0 ? (const char *)known : "";
    copy = strdup(name);
    if (copy && weir__map_put(&explain->state->by, key, (uintptr_t)copy))
        return copy;
    free(copy);
    return NULL;
}

/* Beyond the last place all are of one kind. */
static uint32_t kind_of(struct explain *explain, const char *word) {
    size_t i;

    for (i = 0; i < explain->kind_count; i++)
        if (strcmp(explain->kinds[i].word, word) == 0)
            return (uint32_t)i;
    if (i == EXPLAIN_KINDS)
        return EXPLAIN_KINDS - 1;
    snprintf(explain->kinds[i].word, sizeof explain->kinds[i].word, "%s",
             i == EXPLAIN_KINDS - 1 ? "others" : word);
    explain->kind_count++;
    return (uint32_t)i;
}

static int is_same(const struct explain_group *a, const struct explain_group *b) {
    return a->bytes == b->bytes && a->stream == b->stream && a->kind == b->kind &&
           a->device == b->device && a->by == b->by && a->at == b->at && a->range == b->range;
}

/* The group that is like this one, made if there is none; NULL: out of memory. */
static struct explain_group *find_group(struct explain *explain, const struct explain_group *like) {
    struct explain_state *state = explain->state;
    uint64_t key = mix(mix(mix(mix(mix(1, like->bytes), like->stream), like->kind), like->device),
                       (uint64_t)(uintptr_t)like->by);
    struct explain_group *made, **groups;
    uintptr_t first = 0;

    key = mix(mix(key, (uint64_t)(uintptr_t)like->at), (uint64_t)(uintptr_t)like->range) | 1;
    (void)weir__map_get(&state->groups, key, &first);
    for (struct explain_group *at = (void *)first; at; at = at->next)
        if (is_same(at, like))
            return at;
    if (explain->group_count == state->group_room) {
        size_t room = state->group_room ? 2 * state->group_room : 256;

        groups = reallocarray(explain->groups, room, sizeof(struct explain_group *));
        if (!groups)
            return NULL;
        explain->groups = groups;
        state->group_room = room;
    }
    made = malloc(sizeof *made);
    if (!made)
        return NULL;
    *made = *like;
    made->next = (void *)first;
    if (!weir__map_put(&state->groups, key, (uintptr_t)made)) {
        free(made);
        return NULL;
    }
    return explain->groups[explain->group_count++] = made;
}

/* --------------------------------------------------------------------- events ---- */

static void note_peak(struct explain *explain, uint64_t time_us) {
    if (explain->state->live <= explain->live_peak)
        return;
    explain->live_peak = explain->state->live;
    explain->live_peak_us = time_us;
    for (size_t i = 0; i < explain->kind_count; i++)
        explain->kinds[i].at_live_peak = explain->kinds[i].live;
}

static uint64_t sum(uint64_t a, uint64_t b) {
    return __builtin_add_overflow(a, b, &a) ? UINT64_MAX : a;
}

/* The caller, as far as the trace tells it.  0: out of memory. */
static int take_caller(struct explain *explain, weir_trace_reader *reader,
                       struct explain_group *group) {
    char by[EXPLAIN_WORD_BYTES], at[EXPLAIN_WORD_BYTES], range[EXPLAIN_WORD_BYTES];

    (void)weir_trace_field(reader, "by", by, sizeof by);
    explain->has_callers |= weir_trace_field(reader, "at", at, sizeof at);
    (void)weir_trace_field(reader, "range", range, sizeof range);
    group->by = keep_name(explain, by);
    group->at = keep_name(explain, at);
    group->range = keep_name(explain, range);
    return group->by && group->at && group->range;
}

/* a x: 0 if memory ran out, or the sum of live bytes is too large. */
static int take_request(struct explain *explain, weir_trace_reader *reader,
                        const weir_trace_event *event) {
    char word[EXPLAIN_WORD_BYTES], device[8];
    struct explain_group like = {.bytes = event->bytes, .stream = event->stream};
    struct explain_group *group;
    struct explain_kind *kind;
    struct block *block;

    (void)weir_trace_field(reader, "kind", word, sizeof word);
    (void)weir_trace_field(reader, "dev", device, sizeof device);
    like.kind = kind_of(explain, word);
    like.device = (uint32_t)strtoul(device, NULL, 10);
    kind = &explain->kinds[like.kind];
    if (kind->requests + kind->refused == 0)
        kind->first_us = event->time_us;
    if (event->operation == 'x') {
        kind->refused++;
        kind->refused_bytes = sum(kind->refused_bytes, event->bytes);
        explain->refused++;
        return 1;
    }
    like.first_us = event->time_us;
    like.first_mark = explain->mark_count;
    group = take_caller(explain, reader, &like) ? find_group(explain, &like) : NULL;
    block = malloc(sizeof *block);
    if (!group || !block || explain->state->live > UINT64_MAX - event->bytes ||
        !weir__map_put(&explain->state->blocks, event->id + 1, (uintptr_t)block)) {
        free(block);
        return 0;
    }
    *block = (struct block){group, event->time_us};
    group->times++;
    group->last_us = event->time_us;
    if (++group->live > group->most_live)
        group->most_live = group->live;
    explain->requests++;
    kind->requests++;
    kind->bytes = sum(kind->bytes, event->bytes);
    kind->live += event->bytes;
    if (kind->live > kind->peak)
        kind->peak = kind->live;
    explain->state->live += event->bytes;
    note_peak(explain, event->time_us);
    return 1;
}

static void take_free(struct explain *explain, const weir_trace_event *event) {
    uintptr_t value = 0;
    struct block *block;
    uint64_t life;

    (void)weir__map_take(&explain->state->blocks, event->id + 1,
                         &value); /* the reader has seen it */
    block = (struct block *)value;
    life = event->time_us > block->time_us ? event->time_us - block->time_us : 0;
    if (life > block->group->longest_us)
        block->group->longest_us = life;
    block->group->live--;
    explain->kinds[block->group->kind].live -= event->bytes;
    explain->state->live -= event->bytes;
    explain->frees++;
    free(block);
}

static int take_mark(struct explain *explain, const weir_trace_event *event) {
    struct explain_state *state = explain->state;

    if (explain->mark_count == state->mark_room) {
        size_t room = state->mark_room ? 2 * state->mark_room : 64;
        void *labels = reallocarray(explain->labels, room, sizeof *explain->labels);

        if (!labels)
            return 0;
        explain->labels = labels;
        state->mark_room = room;
    }
    memcpy(explain->labels[explain->mark_count++], event->label, sizeof event->label);
    return 1;
}

static int take(struct explain *explain, weir_trace_reader *reader, const weir_trace_event *event) {
    if (explain->requests + explain->refused + explain->mark_count == 0)
        explain->first_us = event->time_us;
    if (event->time_us > explain->last_us)
        explain->last_us = event->time_us;
    switch (event->operation) {
    case 'a':
    case 'x':
        return weir__map_put(&explain->state->streams, event->stream + 1, 1) &&
               take_request(explain, reader, event);
    case 'f':
        take_free(explain, event);
        return 1;
    case 'm':
        return take_mark(explain, event);
    default:
        return 1;
    }
}

/* ---------------------------------------------------------------- all of it ---- */

static int is_smaller(const void *left, const void *right) {
    const struct explain_group *a = *(struct explain_group *const *)left;
    const struct explain_group *b = *(struct explain_group *const *)right;

    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->first_us < b->first_us ? -1 : a->first_us > b->first_us;
}

int explain_primes(const struct explain *explain, const struct explain_group *group) {
    const char *word = explain->kinds[group->kind].word;

    return !group->unfreed && (strcmp(word, "async") == 0 || strcmp(word, "pool") == 0);
}

/* So large, and there to the end or for most of the trace; of a pool, which keeps what is freed, for
 * however long. */
static int is_preallocation(const struct explain *explain, const struct explain_group *group) {
    uint64_t device = group->device < EXPLAIN_DEVICES ? explain->devices[group->device].bytes : 0;
    uint64_t least = device ? device / 100 * PREALLOCATION_PERCENT
                            : explain->live_peak / 100 * PREALLOCATION_OF_PEAK;

    return group->bytes >= (uint64_t)PREALLOCATION_MIB << 20 && group->bytes >= least &&
           group->times == 1 &&
           (explain_primes(explain, group) || group->unfreed ||
            group->longest_us >= (explain->last_us - explain->first_us) / 2);
}

static void finish(struct explain *explain) {
    explain->streams = explain->state->streams.count;
    if (explain->group_count)
        qsort(explain->groups, explain->group_count, sizeof(struct explain_group *), is_smaller);
    for (size_t i = 0; i < explain->group_count; i++)
        explain->groups[i]->unfreed = explain->groups[i]->live;
    for (size_t i = 0; i < explain->group_count && !explain->preallocation; i++)
        if (is_preallocation(explain, explain->groups[i]))
            explain->preallocation = explain->groups[i];
}

static int read_all(struct explain *explain, struct input *input, uint64_t most_marks,
                    char *message, size_t message_bytes) {
    weir_trace_reader *reader = input->reader;
    weir_trace_event event;
    uint64_t events = 0;

    weir_trace_comments(reader, take_comment, explain);
    do {
        weir_status status = weir_trace_next(reader, &event);

        if (status == WEIR_E_PARSE && events > 0 &&
            input_is_cut(explain->name, reader, input->lines.source))
            break;
        if (status != WEIR_OK) {
            input_refuse(reader, status, events, message, message_bytes);
            return 0;
        }
        events++;
        if (event.operation && !take(explain, reader, &event)) {
            snprintf(message, message_bytes, "%s",
                     event.bytes > UINT64_MAX - explain->state->live
                         ? "the sum of live bytes is too large"
                         : "out of memory");
            return 0;
        }
    } while (event.operation && (most_marks == 0 || explain->mark_count < most_marks));
    tape_tell_left_out(explain->name, explain->left_out);
    finish(explain);
    return 1;
}

int explain_read(struct explain *explain, const char *path, uint64_t most_marks, char *message,
                 size_t message_bytes) {
    struct input input;
    int good;

    memset(explain, 0, sizeof *explain);
    tape_name(path, explain->name);
    explain->state = calloc(1, sizeof *explain->state);
    snprintf(message, message_bytes, "out of memory");
    if (!explain->state)
        return 0;
    if (!input_open(&input, path, message, message_bytes))
        return 0;
    good = read_all(explain, &input, most_marks, message, message_bytes);
    input_close(&input);
    return good;
}

static void free_values(struct weir_map *map) {
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].key)
            free((void *)map->slots[i].value);
    weir__map_clear(map);
}

void explain_end(struct explain *explain) {
    for (size_t i = 0; i < explain->group_count; i++)
        free(explain->groups[i]);
    free(explain->groups);
    free(explain->labels);
    if (!explain->state)
        return;
    free_values(&explain->state->blocks);
    free_values(&explain->state->by);
    weir__map_clear(&explain->state->groups);
    weir__map_clear(&explain->state->streams);
    free(explain->state);
}
