/* SPDX-License-Identifier: MIT */
/* explain.c: `weir replay --explain': shows which requests of a trace take memory.
 *
 * The requests are summed up by the kind of call.  Requests form a group if their size, call, caller, NVTX range,
 * stream and device are equal.  If one request is a large part of the device's memory, it is probably the preallocation
 * of a framework; the first lines then show it, and how the user can turn it off.
 *
 * This file must not depend on allocators or devices.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/text.h"
#include "cli/common/files.h"
#include "cli/common/jsonfile.h"
#include "cli/common/memory.h"
#include "cli/common/spell.h"
#include "cli/formats/input.h"
#include "cli/replay/benchmark.h"

enum { EXPLAIN_KINDS = 32, EXPLAIN_DEVICES = 64, EXPLAIN_WORD_BYTES = 64, EXPLAIN_CALLS = 8 };

/* The totals of all requests of one kind, such as all requests to cuMemAlloc. */
struct explain_kind {
    char word[EXPLAIN_WORD_BYTES]; /* the kind as the trace names it, such as "plain", or "" */
    uint64_t requests, refused;
    uint64_t bytes, refused_bytes;
    uint64_t live, peak;   /* the live bytes of this kind, and their peak */
    uint64_t at_live_peak; /* the live bytes of this kind when those of all kinds had their peak */
    uint64_t first_us;     /* the time of the first request */
};

struct explain_group {
    uint64_t bytes, stream;
    uint32_t kind, device;
    /* The caller's library, the caller's place in the code, and the NVTX range; each is "" if unknown. */
    char by[EXPLAIN_WORD_BYTES], at[EXPLAIN_WORD_BYTES], range[EXPLAIN_WORD_BYTES];
    uint64_t times, live, most_live;
    uint64_t first_us, last_us; /* the times of the first and the last request */
    uint64_t longest_us;        /* the longest time from a request to the free */
    uint64_t first_mark; /* the number of marks (ends of iterations) before the first request */
    uint64_t unfreed;           /* the number of blocks that are live at the end of the trace */
};

struct explain_device {
    uint64_t bytes; /* the memory of the device, or 0 if the trace does not contain it */
    char name[EXPLAIN_WORD_BYTES];
};

/* The totals of calls that use no device memory, from one comment line "# calls" of the trace. */
struct explain_call {
    char name[EXPLAIN_WORD_BYTES];
    uint64_t count, bytes, most;
};

struct explain {
    char name[TRACE_NAME_BYTES];
    uint64_t left_out; /* the number of events that `weir record' left out */
    /* The origin, such as "weir 0.1.0 recorded python", or "". */
    char recorded[EXPLAIN_WORD_BYTES * 2];
    struct explain_kind kinds[EXPLAIN_KINDS];
    size_t kind_count;
    struct explain_device devices[EXPLAIN_DEVICES];
    struct explain_call calls[EXPLAIN_CALLS];
    size_t call_count;
    struct explain_group **groups; /* at the end, those with the largest requests come first */
    size_t group_count;
    char (*labels)[WEIR_TRACE_LABEL_BYTES];
    size_t mark_count;
    uint64_t requests, refused, frees;
    int has_callers;            /* set if the trace names callers (weir record --callers) */
    uint64_t first_us, last_us; /* the times of the trace's first and last event */
    uint64_t live_peak, live_peak_us;
    /* The group that is probably the preallocation of a framework, or NULL. */
    const struct explain_group *preallocation;

    /* ---- reading the trace ---- */
    struct weir_map blocks; /* a map from id + 1 to struct block */
    /* A JSON object that maps a text with all properties of a request group to the group's index. */
    json_t *group_numbers;
    struct weir_map stream_ids; /* the set of all stream ids, as id + 1 */
    uint64_t live;
    size_t group_room, mark_room;
};

/* A live block. */
struct block {
    struct explain_group *group;
    uint64_t time_us;
};

/* A framework's preallocation has at least PREALLOCATION_MIB, and this percentage of the device's memory.  If the
 * device's memory is unknown, it has PREALLOCATION_OF_PEAK percent of the peak requested memory. */
enum { PREALLOCATION_PERCENT = 25, PREALLOCATION_OF_PEAK = 50, PREALLOCATION_MIB = 256 };

/* Returns the driver function for a kind of request, such as "cuMemAlloc" for "plain", or the word itself if it is
 * unknown. */
static const char *explain_call_name(const char *word) {
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

static void read_device_comment(struct explain *explain, const char *text) {
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

/* Reads a comment line "workload W; torch V; device NAME; total BYTES" of a trace from PyTorch's allocator. */
static void read_workload_comment(struct explain *explain, const char *text) {
    struct explain_device *device = &explain->devices[0];
    const char *at = strncmp(text, "workload ", 9) == 0 ? strstr(text, "; device ") : NULL;

    if (at)
        (void)sscanf(at, "; device %63[^;]; total %" SCNu64, device->name, &device->bytes);
}

static void read_calls_comment(struct explain *explain, const char *text) {
    struct explain_call call;

    if (explain->call_count < EXPLAIN_CALLS &&
        sscanf(text, "calls %63[^=]=%" SCNu64 " bytes=%" SCNu64 " most=%" SCNu64, call.name,
               &call.count, &call.bytes, &call.most) == 4)
        explain->calls[explain->call_count++] = call;
}

static void read_explain_comment(void *context, const char *text) {
    struct explain *explain = context;

    if (strncmp(text, "weir ", 5) == 0 && strstr(text, " recorded ") && !explain->recorded[0])
        snprintf(explain->recorded, sizeof explain->recorded, "%s", text);
    read_device_comment(explain, text);
    read_workload_comment(explain, text);
    read_calls_comment(explain, text);
    (void)trace_read_left_out(text, &explain->left_out);
}

/* --------------------------------------------------------------------- groups ---- */

/* Returns the index of a kind of request.  Adds the kind, or returns the index of "others" if the table is full. */
static uint32_t explained_kind_index(struct explain *explain, const char *word) {
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

/* Returns the group with the same properties as `like', and creates it if it does not exist.  Returns NULL if there is
 * no host memory. */
static struct explain_group *find_explain_group(struct explain *explain,
                                                const struct explain_group *like) {
    char key[5 * EXPLAIN_WORD_BYTES];
    struct explain_group *made = NULL;
    const json_t *number;

    snprintf(key, sizeof key, "%" PRIu64 " %" PRIu64 " %u %u %s %s %s", like->bytes, like->stream,
             like->kind, like->device, like->by, like->at, like->range);
    number = json_object_get(explain->group_numbers, key);
    if (number)
        return explain->groups[json_integer_value(number)];
    if (memory_make_room(&explain->groups, &explain->group_room, explain->group_count,
                         sizeof *explain->groups))
        made = malloc(sizeof *made);
    if (!made || json_object_set_new_nocheck(explain->group_numbers, key,
                                             json_integer((json_int_t)explain->group_count)) != 0) {
        free(made);
        return NULL;
    }
    *made = *like;
    return explain->groups[explain->group_count++] = made;
}

/* --------------------------------------------------------------------- events ---- */

static void update_explained_peak(struct explain *explain, uint64_t time_us) {
    if (explain->live <= explain->live_peak)
        return;
    explain->live_peak = explain->live;
    explain->live_peak_us = time_us;
    for (size_t i = 0; i < explain->kind_count; i++)
        explain->kinds[i].at_live_peak = explain->kinds[i].live;
}

static uint64_t add_saturating(uint64_t a, uint64_t b) {
    return __builtin_add_overflow(a, b, &a) ? UINT64_MAX : a;
}

/* Adds a request to the sums.  Returns 0 if there is no host memory or a sum is too large. */
static int add_explained_request(struct explain *explain, weir_trace_reader *reader,
                                 const weir_trace_event *event) {
    char word[EXPLAIN_WORD_BYTES], device[8];
    struct explain_group like = {.bytes = event->bytes, .stream = event->stream};
    struct explain_group *group;
    struct explain_kind *kind;
    struct block *block;

    (void)weir_trace_field(reader, "kind", word, sizeof word);
    (void)weir_trace_field(reader, "dev", device, sizeof device);
    like.kind = explained_kind_index(explain, word);
    like.device = (uint32_t)strtoul(device, NULL, 10);
    kind = &explain->kinds[like.kind];
    if (kind->requests + kind->refused == 0)
        kind->first_us = event->time_us;
    if (event->operation == 'x') {
        kind->refused++;
        kind->refused_bytes = add_saturating(kind->refused_bytes, event->bytes);
        explain->refused++;
        return 1;
    }
    like.first_us = event->time_us;
    like.first_mark = explain->mark_count;
    (void)weir_trace_field(reader, "by", like.by, sizeof like.by);
    explain->has_callers |= weir_trace_field(reader, "at", like.at, sizeof like.at);
    (void)weir_trace_field(reader, "range", like.range, sizeof like.range);
    group = find_explain_group(explain, &like);
    block = malloc(sizeof *block);
    if (!group || !block || explain->live > UINT64_MAX - event->bytes ||
        !weir__map_put(&explain->blocks, event->id + 1, (uintptr_t)block)) {
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
    kind->bytes = add_saturating(kind->bytes, event->bytes);
    kind->live += event->bytes;
    if (kind->live > kind->peak)
        kind->peak = kind->live;
    explain->live += event->bytes;
    update_explained_peak(explain, event->time_us);
    return 1;
}

static void add_explained_free(struct explain *explain, const weir_trace_event *event) {
    uintptr_t value = 0;
    struct block *block;
    uint64_t life;

    /* The reader of the trace has checked that the block is live. */
    (void)weir__map_remove(&explain->blocks, event->id + 1, &value);
    block = (struct block *)value;
    life = event->time_us > block->time_us ? event->time_us - block->time_us : 0;
    if (life > block->group->longest_us)
        block->group->longest_us = life;
    block->group->live--;
    explain->kinds[block->group->kind].live -= event->bytes;
    explain->live -= event->bytes;
    explain->frees++;
    free(block);
}

static int count_mark(struct explain *explain, const weir_trace_event *event) {
    if (!memory_make_room(&explain->labels, &explain->mark_room, explain->mark_count,
                          sizeof *explain->labels))
        return 0;
    memcpy(explain->labels[explain->mark_count++], event->label, sizeof event->label);
    return 1;
}

static int count_event(struct explain *explain, weir_trace_reader *reader,
                       const weir_trace_event *event) {
    if (explain->requests + explain->refused + explain->mark_count == 0)
        explain->first_us = event->time_us;
    if (event->time_us > explain->last_us)
        explain->last_us = event->time_us;
    switch (event->operation) {
    case 'a':
    case 'x':
        return weir__map_put(&explain->stream_ids, event->stream + 1, 1) &&
               add_explained_request(explain, reader, event);
    case 'f':
        add_explained_free(explain, event);
        return 1;
    case 'm':
        return count_mark(explain, event);
    default:
        return 1;
    }
}

/* ----------------------------------- the groups of a whole trace ---- */

static int compare_explained_groups(const void *left, const void *right) {
    const struct explain_group *a = *(struct explain_group *const *)left;
    const struct explain_group *b = *(struct explain_group *const *)right;

    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->first_us < b->first_us ? -1 : a->first_us > b->first_us;
}

/* Returns 1 if all blocks of the group were freed into a memory pool of the driver, which keeps the memory; else 0. */
static int returns_to_driver_pool(const struct explain *explain,
                                  const struct explain_group *group) {
    const char *word = explain->kinds[group->kind].word;

    return !group->unfreed && (strcmp(word, "async") == 0 || strcmp(word, "pool") == 0);
}

static uint64_t device_bytes(const struct explain *explain, const struct explain_group *group) {
    return group->device < EXPLAIN_DEVICES ? explain->devices[group->device].bytes : 0;
}

/* Returns 1 if the group is probably the preallocation of a framework, else 0. */
static int is_preallocation(const struct explain *explain, const struct explain_group *group) {
    uint64_t device = device_bytes(explain, group);
    uint64_t least = device ? device / 100 * PREALLOCATION_PERCENT
                            : explain->live_peak / 100 * PREALLOCATION_OF_PEAK;

    return group->bytes >= (uint64_t)PREALLOCATION_MIB << 20 && group->bytes >= least &&
           group->times == 1 &&
           (returns_to_driver_pool(explain, group) || group->unfreed ||
            group->longest_us >= (explain->last_us - explain->first_us) / 2);
}

static void finish_explain(struct explain *explain) {
    if (explain->group_count)
        qsort(explain->groups, explain->group_count, sizeof(struct explain_group *),
              compare_explained_groups);
    for (size_t i = 0; i < explain->group_count; i++)
        explain->groups[i]->unfreed = explain->groups[i]->live;
    for (size_t i = 0; i < explain->group_count && !explain->preallocation; i++)
        if (is_preallocation(explain, explain->groups[i]))
            explain->preallocation = explain->groups[i];
}

static int read_explained_events(struct explain *explain, struct input *input, uint64_t most_marks,
                                 char *message, size_t message_bytes) {
    weir_trace_event event;

    weir_trace_comments(input->reader, read_explain_comment, explain);
    do {
        if (!input_next(input, explain->name, &event, message, message_bytes))
            return 0;
        if (event.operation && !count_event(explain, input->reader, &event)) {
            snprintf(message, message_bytes, "%s",
                     event.bytes > UINT64_MAX - explain->live ? "the sum of live bytes is too large"
                                                              : "out of memory");
            return 0;
        }
    } while (event.operation && (most_marks == 0 || explain->mark_count < most_marks));
    trace_report_left_out(explain->name, explain->left_out);
    finish_explain(explain);
    return 1;
}

/* Reads the trace.  A `most_marks' of 0 means all iterations.  The caller must call free_explain(), also on failure. */
static int read_explained_trace(struct explain *explain, const char *path, uint64_t most_marks,
                                char *message, size_t message_bytes) {
    struct input input;
    int good;

    *explain = (struct explain){.group_numbers = json_object()};
    name_of_trace(path, explain->name);
    if (!input_open(&input, path, message, message_bytes))
        return 0;
    good = read_explained_events(explain, &input, most_marks, message, message_bytes);
    input_close(&input);
    return good;
}

static void free_explain(struct explain *explain) {
    for (size_t i = 0; i < explain->group_count; i++)
        free(explain->groups[i]);
    free(explain->groups);
    free(explain->labels);
    memory_free_values(&explain->blocks);
    json_decref(explain->group_numbers);
    weir__map_clear(&explain->stream_ids);
}

#define JAX_ADVICE                                                                                 \
    {                                                                                              \
        "XLA_PYTHON_CLIENT_PREALLOCATE=false: allocates memory when arrays need it",               \
            "XLA_PYTHON_CLIENT_MEM_FRACTION=.10: preallocates a tenth of the device"               \
    }

/* The frameworks that preallocate memory, and how to turn the preallocation off. */
static const struct preallocating_framework {
    const char *part; /* a part of the name of the framework's library */
    const char *name;
    const char *advice[2];
} makers[] = {
    {"xla", "XLA, for JAX", JAX_ADVICE},
    {"jax", "JAX", JAX_ADVICE},
    {"tensorflow",
     "TensorFlow",
     {"TF_FORCE_GPU_ALLOW_GROWTH=true: allocates memory when tensors need it", NULL}},
};

static const struct preallocating_framework *find_preallocating_framework(const char *by) {
    for (size_t i = 0; i < sizeof makers / sizeof makers[0]; i++)
        if (strcasestr(by, makers[i].part))
            return &makers[i];
    return NULL;
}

static double percent(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0.0;
}

/* Returns the longest time from a request to the free as text, or "to the end" if no block was freed. */
static struct spelled spell_longest_life(const struct explain_group *group) {
    return group->unfreed == group->times ? (struct spelled){"to the end"}
                                          : spell_time(group->longest_us * 1000);
}

static const char *label_at(const struct explain *explain, uint64_t mark) {
    return mark < explain->mark_count ? explain->labels[mark] : NULL;
}

/* --------------------------------------------------------------------- text output ---- */

static void print_head(FILE *file, const struct explain *explain) {
    fprintf(file, "\n%s", explain->name);
    if (explain->recorded[0])
        fprintf(file, " (%s)", explain->recorded);
    fprintf(file, ": %s request%s, %s free%s, %zu stream%s, %zu mark%s, in %s\n",
            SPELL_COUNT(explain->requests), weir__plural(explain->requests),
            SPELL_COUNT(explain->frees), weir__plural(explain->frees), explain->stream_ids.count,
            weir__plural(explain->stream_ids.count), explain->mark_count,
            weir__plural(explain->mark_count),
            SPELL_TIME((explain->last_us - explain->first_us) * 1000));
    for (size_t i = 0; i < EXPLAIN_DEVICES; i++)
        if (explain->devices[i].bytes)
            fprintf(file, "device %zu: %s, %s\n", i, explain->devices[i].name,
                    WEIR_SHOWN(explain->devices[i].bytes));
    fprintf(file, "most at once: %s, at %s\n", WEIR_SHOWN(explain->live_peak),
            SPELL_TIME(explain->live_peak_us * 1000));
}

static void print_preallocation(FILE *file, const struct explain *explain) {
    const struct explain_group *group = explain->preallocation;
    const struct preallocating_framework *framework;
    uint64_t device;

    if (!group)
        return;
    framework = find_preallocating_framework(group->by);
    device = device_bytes(explain, group);
    fprintf(file, "\n>> PREALLOCATION: one %s of %s, ",
            explain_call_name(explain->kinds[group->kind].word), WEIR_SHOWN(group->bytes));
    if (device)
        fprintf(file, "%.1f%% of the device", percent(group->bytes, device));
    else
        fprintf(file, "%.1f%% of all memory in use", percent(group->bytes, explain->live_peak));
    fprintf(file, "%s%s\n", group->by[0] ? ", requested by " : "", group->by);
    if (returns_to_driver_pool(explain, group))
        fprintf(
            file,
            "   It was freed after %s into the driver's pool, which keeps it for later requests.\n",
            spell_longest_life(group).text);
    else
        fprintf(file,
                "   An allocator inside the program (%s) allocates it at once, and places its "
                "arrays in it.\n   The trace does not show how much of it the arrays need.\n",
                framework ? framework->name : "its framework's");
    for (size_t i = 0; framework && i < 2 && framework->advice[i]; i++)
        fprintf(file, "   %s\n", framework->advice[i]);
}

static void print_explain_kinds(FILE *file, const struct explain *explain) {
    fprintf(file, "\n%-24s %10s %8s %8s %11s %11s %11s %7s\n", "call", "requests", "failed",
            "first at", "bytes", "most", "at the peak", "of it");
    for (size_t i = 0; i < explain->kind_count; i++) {
        const struct explain_kind *kind = &explain->kinds[i];

        fprintf(file, "%-24.24s %10s %8" PRIu64 " %8s %11s %11s %11s %6.1f%%\n",
                explain_call_name(kind->word), SPELL_COUNT(kind->requests), kind->refused,
                SPELL_TIME(kind->first_us * 1000), WEIR_SHOWN(kind->bytes), WEIR_SHOWN(kind->peak),
                WEIR_SHOWN(kind->at_live_peak), percent(kind->at_live_peak, explain->live_peak));
    }
    for (size_t i = 0; i < explain->call_count; i++) {
        const struct explain_call *call = &explain->calls[i];

        fprintf(file, "%-24.24s %10s %8s %8s %11s %11s no memory of its own\n", call->name,
                SPELL_COUNT(call->count), "-", "-", WEIR_SHOWN(call->bytes),
                WEIR_SHOWN(call->most));
    }
}

/* Writes the labels of the marks (ends of iterations) before and after the group's first request: "step3-step4". */
static void show_marks(const struct explain *explain, const struct explain_group *group, char *text,
                       size_t bytes) {
    const char *before = group->first_mark ? label_at(explain, group->first_mark - 1) : NULL;
    const char *after = label_at(explain, group->first_mark);

    if (!explain->mark_count)
        snprintf(text, bytes, "-");
    else
        snprintf(text, bytes, "%.11s-%.11s", before ? before : "start", after ? after : "end");
}

/* Writes what is known about the caller of the group's requests, such as "train.py:12(step) in forward". */
static void show_caller(const struct explain_group *group, char *text, size_t bytes) {
    const char *caller = group->at[0] ? group->at : group->by;

    snprintf(text, bytes, "%s%s%s", caller, group->range[0] ? " in " : "", group->range);
}

static void print_group(FILE *file, const struct explain *explain,
                        const struct explain_group *group, int by_width) {
    uint64_t device = device_bytes(explain, group);
    const char *call = explain_call_name(explain->kinds[group->kind].word);
    char share[16] = "-", marks[32], caller[3 * EXPLAIN_WORD_BYTES];

    if (device)
        snprintf(share, sizeof share, "%.1f%%", percent(group->bytes, device));
    show_marks(explain, group, marks, sizeof marks);
    show_caller(group, caller, sizeof caller);
    fprintf(file, "%10s %6s %6s  %-18.18s %-*.*s %6" PRIu64 " %8s %10s  %s\n",
            WEIR_SHOWN(group->bytes), share, SPELL_COUNT(group->times),
            strcmp(call, "cuMemAllocFromPoolAsync") == 0 ? call + 5 : call, by_width, by_width,
            caller, group->stream, SPELL_TIME(group->first_us * 1000),
            spell_longest_life(group).text, marks);
}

static void print_groups(FILE *file, const struct explain *explain, size_t most) {
    char caller[3 * EXPLAIN_WORD_BYTES];
    int by_width = 0, widest = explain->has_callers ? 56 : 20;

    for (size_t i = 0; i < explain->group_count && i < most; i++) {
        show_caller(explain->groups[i], caller, sizeof caller);
        by_width = (int)strlen(caller) > by_width ? (int)strlen(caller) : by_width;
    }
    by_width = by_width == 0 ? 0 : by_width < 8 ? 8 : by_width > widest ? widest : by_width;
    fprintf(file, "\nthe largest blocks; equal blocks share a line (x times)\n");
    fprintf(file, "%10s %6s %6s  %-18s %-*s %6s %8s %10s  %s\n", "bytes", "device", "x", "call",
            by_width, by_width ? "caller" : "", "stream", "first at", "lived", "between marks");
    for (size_t i = 0; i < explain->group_count && i < most; i++)
        print_group(file, explain, explain->groups[i], by_width);
    if (explain->group_count > most)
        fprintf(file,
                "%10s %zu more line%s, of blocks that are not larger: --explain=%zu shows all\n",
                "...", explain->group_count - most, weir__plural(explain->group_count - most),
                explain->group_count);
}

static void explain_print(FILE *file, const struct explain *explain, size_t most) {
    print_head(file, explain);
    print_preallocation(file, explain);
    if (explain->kind_count)
        print_explain_kinds(file, explain);
    if (explain->group_count)
        print_groups(file, explain, most);
}

/* ---------------------------------------------------------------------------- JSON ---- */

/* Returns the text as a JSON string, or JSON null if the text is empty. */
static json_t *text_or_null(const char *text) {
    return text && text[0] ? jsonfile_text(text) : json_null();
}

static json_t *kind_json(const struct explain_kind *kind) {
    return json_pack("{s:o,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "kind", jsonfile_text(kind->word),
                     "call", explain_call_name(kind->word), "requests", kind->requests, "failed",
                     kind->refused, "first_us", kind->first_us, "bytes", kind->bytes,
                     "failed_bytes", kind->refused_bytes, "peak_bytes", kind->peak,
                     "requested_peak_bytes", kind->at_live_peak);
}

static json_t *explain_group_json(const struct explain *explain,
                                  const struct explain_group *group) {
    int has_ended = group->unfreed < group->times;

    return json_pack(
        "{s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:o,s:i,s:I,s:I,s:I,s:o,s:o,s:o}", "bytes", group->bytes,
        "times", group->times, "most_live", group->most_live, "unfreed", group->unfreed, "call",
        jsonfile_text(explain_call_name(explain->kinds[group->kind].word)), "by",
        text_or_null(group->by), "at", text_or_null(group->at), "range", text_or_null(group->range),
        "device", (int)group->device, "stream", group->stream, "first_us", group->first_us,
        "last_us", group->last_us, "longest_us",
        has_ended ? jsonfile_integer(group->longest_us) : json_null(), "mark_before",
        text_or_null(group->first_mark ? label_at(explain, group->first_mark - 1) : NULL),
        "mark_after", text_or_null(label_at(explain, group->first_mark)));
}

static json_t *explain_json(const struct explain *explain, size_t most) {
    json_t *kinds = json_array(), *groups = json_array(), *devices = json_array(),
           *calls = json_array(), *preallocation = json_null();

    for (size_t i = 0; i < explain->kind_count; i++)
        json_array_append_new(kinds, kind_json(&explain->kinds[i]));
    for (size_t i = 0; i < explain->group_count && i < most; i++)
        json_array_append_new(groups, explain_group_json(explain, explain->groups[i]));
    for (size_t i = 0; i < EXPLAIN_DEVICES; i++)
        if (explain->devices[i].bytes)
            json_array_append_new(devices, json_pack("{s:i,s:o,s:I}", "device", (int)i, "name",
                                                     jsonfile_text(explain->devices[i].name),
                                                     "bytes", explain->devices[i].bytes));
    for (size_t i = 0; i < explain->call_count; i++)
        json_array_append_new(
            calls, json_pack("{s:o,s:I,s:I,s:I}", "call", jsonfile_text(explain->calls[i].name),
                             "count", explain->calls[i].count, "bytes", explain->calls[i].bytes,
                             "peak_bytes", explain->calls[i].most));
    if (explain->preallocation) {
        uint64_t bytes = device_bytes(explain, explain->preallocation);

        preallocation = explain_group_json(explain, explain->preallocation);
        json_object_set_new(preallocation, "device_bytes",
                            bytes ? jsonfile_integer(bytes) : json_null());
    }
    return json_pack("{s:o,s:o,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:o}", "trace",
                     jsonfile_text(explain->name), "recorded", text_or_null(explain->recorded),
                     "devices", devices, "requests", explain->requests, "failed", explain->refused,
                     "frees", explain->frees, "streams", (json_int_t)explain->stream_ids.count,
                     "marks", (json_int_t)explain->mark_count, "first_us", explain->first_us,
                     "last_us", explain->last_us, "requested_peak_bytes", explain->live_peak,
                     "requested_peak_us", explain->live_peak_us, "calls", kinds, "other_calls",
                     calls, "blocks", groups, "preallocation", preallocation);
}

/* --------------------------------------------------------------------- the command ---- */

int benchmark_explain(struct benchmark *benchmark, size_t most) {
    FILE *file = benchmark_table_file(benchmark);
    json_t *array, *common;
    int good = 1, lacks_callers = 0;

    if (benchmark->has_failed || !output_check("--json", benchmark->json_file))
        return 1;
    array = json_array();
    common = jsonfile_common(benchmark->argc, benchmark->argv);
    for (size_t i = 0; i < benchmark->trace_count; i++) {
        const char *path = benchmark->traces[i].path;
        struct explain explain;
        char message[512];

        if (read_explained_trace(&explain, path, benchmark->iterations, message, sizeof message)) {
            json_t *object = explain_json(&explain, most);

            explain_print(file, &explain, most);
            lacks_callers |= explain.requests > 0 && !explain.has_callers;
            json_object_update(object, common);
            json_array_append_new(array, object);
        } else {
            benchmark_report_no_trace(path, message);
            good = 0;
        }
        free_explain(&explain);
    }
    if (lacks_callers && good)
        fputs("\nTo see the functions, lines of Python and NVTX ranges that request memory, record "
              "the program with `weir record --callers'.\n",
              file);
    json_decref(common);
    good &= !benchmark->json_file || jsonfile_write(benchmark->json_file, array);
    json_decref(array);
    return weir_cli_flush_output() && good ? 0 : 1;
}
