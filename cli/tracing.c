/* SPDX-License-Identifier: MIT */
/* tracing.c: see tracing.h. */
#include "cli/tracing.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "cli/common/memory.h"
#include "driver/cuda_abi.h"

struct block {
    uint64_t id, bytes, stream;
    uint64_t time; /* the time of the allocation, by the counter of the recorded process */
    unsigned kind, device;
    unsigned uses; /* for cuMemCreate: the number of mappings, plus 1 for a live handle */
};

struct mapping {
    struct block *block;
    uint64_t bytes, time;
};

static const char *const kinds[] = {"async", "pool", "plain", "pitch", "managed", "vmm"};

/* ---- text -------------------------------------------------------------------------------------- */

static __attribute__((format(printf, 2, 3))) void write_trace_text(struct tracing *tracing,
                                                                   const char *format, ...) {
    char line[512];
    va_list arguments;
    int bytes;

    if (tracing->failed)
        return;
    va_start(arguments, format);
    bytes = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    tracing->written += (uint64_t)bytes;
    if (!sink_write(tracing->sink, line, (size_t)bytes))
        tracing->failed = errno;
}

/* ---- modules of processes ---- */

enum { PAGE_BITS = 12 };

/* Appends a module to the list.  Does nothing if there is no host memory. */
static void add_module(struct modules *to, uint64_t begin, uint64_t end, const char *name) {
    struct module made = {begin, end, strdup(name)};

    if (made.name && memory_make_room(&to->modules, &to->room, to->count, sizeof made))
        to->modules[to->count++] = made;
    else
        free(made.name);
}

static void free_modules(struct modules *modules) {
    for (size_t i = 0; i < modules->count; i++)
        free(modules->modules[i].name);
    free(modules->modules);
}

/* Adds the code that a line of /proc/PID/maps describes, such as "7f00-7f10 r-xp 0000 08:01 12 /path/name". */
static void add_mapping(struct modules *to, char *line) {
    uint64_t begin, end;
    char rights[5];
    int before_path = 0;

    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %*s %n", &begin, &end, rights,
               &before_path) != 3 ||
        rights[2] != 'x' || !before_path || line[before_path] != '/')
        return;
    line[strcspn(line, "\n")] = '\0';
    add_module(to, begin, end, strrchr(line + before_path, '/') + 1);
}

/* Replaces the list of modules by the contents of /proc/PID/maps.  If the file lists none, keeps the old list and
 * returns 0. */
static int read_mappings(struct modules *modules) {
    struct modules fresh = {.process = modules->process};
    char path[64], *line = NULL;
    size_t room = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/maps", modules->process);
    file = fopen(path, "re");
    while (file && getline(&line, &room, file) > 0)
        add_mapping(&fresh, line);
    free(line);
    if (file)
        fclose(file);
    if (fresh.count == 0)
        return 0;
    free_modules(modules);
    fresh.nowhere = modules->nowhere;
    *modules = fresh;
    return 1;
}

static int module_contains(const struct modules *modules, size_t i, uint64_t address) {
    return i < modules->count && address >= modules->modules[i].begin &&
           address < modules->modules[i].end;
}

static const char *find_name(struct modules *modules, uint64_t address) {
    size_t low = 0, high = modules->count;

    if (!module_contains(modules, modules->last, address)) {
        while (low < high) {
            size_t middle = (low + high) / 2;

            if (modules->modules[middle].end <= address)
                low = middle + 1;
            else
                high = middle;
        }
        if (!module_contains(modules, low, address))
            return NULL;
        modules->last = low;
    }
    return modules->modules[modules->last].name;
}

/* Returns the program or library whose code contains the address, or NULL.  The name is valid until the next call. */
static const char *find_module(struct modules *modules, uint64_t address) {
    const char *name = find_name(modules, address);
    uint64_t page = (address >> PAGE_BITS) + 1;

    if (name || weir__map_get(&modules->nowhere, page, NULL))
        return name;
    name = read_mappings(modules) ? find_name(modules, address) : NULL;
    if (!name)
        (void)weir__map_put(&modules->nowhere, page, 1);
    return name;
}

/* ---- counts of calls ------------------------------------------------------------------------------- */

static void add_to_counts(struct counts *counts, uint64_t bytes) {
    counts->calls++;
    counts->bytes += bytes;
    counts->live += bytes;
    if (counts->live > counts->live_peak)
        counts->live_peak = counts->live;
}

/* Subtracts from the live bytes, but not below 0: a program may release memory that it requested before the
 * recording. */
static void subtract_from_counts(struct counts *counts, uint64_t bytes) {
    counts->live -= bytes < counts->live ? bytes : counts->live;
}

/* ---- events ------------------------------------------------------------------------------------- */

/* Appends " KEY=NAME" to the text.  Does nothing if the name is NULL. */
static void add_name(const char *key, const char *name, char *text, size_t bytes) {
    size_t used = strlen(text);

    if (!name || used + 1 >= bytes)
        return;
    snprintf(text + used, bytes - used, " %s=%s", key, name);
    for (char *at = text + used + 1; *at; at++)
        if ((unsigned char)*at <= ' ' || *at == 0x7f)
            *at = '_';
}

static const char *name_of_caller(const struct tracing *tracing, uint64_t number) {
    uintptr_t name;

    return number && weir__map_get(&tracing->names, number, &name) ? (const char *)name : NULL;
}

/* Returns the program or library that contains the caller's address, or NULL. */
static const char *find_module_file(struct tracing *tracing, uint64_t address) {
    const char *name = find_module(&tracing->modules, address);

    return name && strcmp(name, TRACING_LIBRARY) != 0 ? name : NULL;
}

/* Appends the known parts of " by=FILE at=PLACE range=NAME" to the text. */
static void spell_caller(struct tracing *tracing, const struct weir_record_event *event, char *text,
                         size_t bytes) {
    add_name("by", find_module_file(tracing, event->caller), text, bytes);
    add_name("at", name_of_caller(tracing, event->place), text, bytes);
    add_name("range", name_of_caller(tracing, event->range), text, bytes);
}

static void store_caller_name(struct tracing *tracing, struct weir_record_event *event) {
    char *name;

    event->name[sizeof event->name - 1] = '\0';
    if (name_of_caller(tracing, event->total))
        return;
    name = strdup(event->name);
    if (name && weir__map_put(&tracing->names, event->total, (uintptr_t)name))
        return;
    free(name);
    tracing->failed = ENOMEM;
}

static void write_block_event(struct tracing *tracing, uint64_t time_us, char operation,
                              const struct block *block, uint64_t stream,
                              const struct weir_record_event *event) {
    char by[512] = "";

    /* The trace does not list requests for host memory, but contains their sum. */
    if (block->device == WEIR_RECORD_HOST) {
        if (operation == 'a')
            add_to_counts(&tracing->host, block->bytes);
        else if (operation == 'f')
            subtract_from_counts(&tracing->host, block->bytes);
        return;
    }
    if (operation != 'f')
        spell_caller(tracing, event, by, sizeof by);
    write_trace_text(
        tracing, "%" PRIu64 " %c %" PRIu64 " %" PRIu64 " %" PRIu64 " dev=%u tid=%u kind=%s%s%s\n",
        time_us, operation, block->id, block->bytes, stream, block->device, event->thread,
        kinds[block->kind], by, event->is_captured ? " cap=1" : "");
    tracing->events++;
    tracing->since_mark++;
}

static void write_mark_event(struct tracing *tracing, uint64_t time_us, const char *label) {
    char word[WEIR_RECORD_LABEL_BYTES];
    size_t i;

    for (i = 0; i < sizeof word - 1 && label[i]; i++)
        word[i] = (unsigned char)label[i] <= ' ' || label[i] == 0x7f ? '_' : label[i];
    word[i] = '\0';
    write_trace_text(tracing, "%" PRIu64 " m %s\n", time_us, i ? word : "mark");
    tracing->events++;
    tracing->since_mark = 0;
}

void tracing_begin(struct tracing *tracing, const char *command, int process) {
    char shown[256];
    size_t i;

    tracing->modules.process = process;
    (void)read_mappings(&tracing->modules);
    for (i = 0; i < sizeof shown - 1 && command[i]; i++)
        shown[i] = (unsigned char)command[i] < ' ' ? ' ' : command[i];
    shown[i] = '\0';
    write_trace_text(tracing, "# weir-trace 1\n# weir %s recorded %s\n", weir_version(), shown);
}

/* ---- streams ----------------------------------------------------------------------------------- */

static uint64_t number_stream(struct tracing *tracing, uint64_t stream,
                              const struct weir_record_event *event) {
    int is_default = stream <= WEIR_STREAM_PER_THREAD_VALUE;
    struct weir_map *map = is_default ? &tracing->defaults : &tracing->streams;
    uint64_t key = !is_default                              ? stream
                   : stream == WEIR_STREAM_PER_THREAD_VALUE ? (uint64_t)1 << 32 | event->thread
                                                            : (uint64_t)event->device + 1;
    uintptr_t number;

    if (weir__map_get(map, key, &number))
        return number - 1;
    if (!weir__map_put(map, key, (uintptr_t)++tracing->next_stream))
        tracing->failed = ENOMEM;
    return tracing->next_stream - 1;
}

/* ---- blocks ------------------------------------------------------------------------------------ */

static struct block *remove_block(struct weir_map *map, uint64_t key) {
    uintptr_t value;

    return key && weir__map_remove(map, key, &value) ? (struct block *)value : NULL;
}

/* Removes the block at the freed address from the map, and returns the block.  Returns NULL if there is no such block,
 * or only one that was allocated after the free. */
static struct block *remove_freed_block(struct tracing *tracing, struct weir_map *map,
                                        const struct weir_record_event *event) {
    uintptr_t value;

    if (!event->address || !weir__map_get(map, event->address, &value)) {
        tracing->left_out_frees++;
        return NULL;
    }
    return event->time < ((struct block *)value)->time ? NULL : remove_block(map, event->address);
}

static void write_trace_free(struct tracing *tracing, uint64_t time_us, struct block *block,
                             uint64_t stream, const struct weir_record_event *event) {
    write_block_event(tracing, time_us, 'f', block, stream, event);
    free(block);
}

static void drop_handle_use(struct tracing *tracing, uint64_t time_us, struct block *block,
                            const struct weir_record_event *event) {
    if (--block->uses == 0)
        write_trace_free(tracing, time_us, block, block->stream, event);
}

static void write_trace_alloc(struct tracing *tracing, struct weir_map *map,
                              const struct weir_record_event *event, uint64_t time_us) {
    struct block *block = malloc(sizeof *block), *old = remove_block(map, event->address);

    if (old) {
        tracing->added_frees++;
        drop_handle_use(tracing, time_us, old, event);
    }
    if (!block || !weir__map_put(map, event->address, (uintptr_t)block)) {
        tracing->failed = ENOMEM;
        free(block);
        return;
    }
    *block = (struct block){.id = tracing->next_id++,
                            .bytes = event->bytes,
                            .stream = number_stream(tracing, event->stream, event),
                            .time = event->time,
                            .kind = event->kind,
                            .device = event->device,
                            .uses = 1};
    write_block_event(tracing, time_us, 'a', block, block->stream, event);
}

static void add_failed(struct tracing *tracing, const struct weir_record_event *event,
                       uint64_t time_us) {
    struct block none = {.id = tracing->next_id++,
                         .bytes = event->bytes <= INT64_MAX ? event->bytes : INT64_MAX,
                         .kind = event->kind,
                         .device = event->device};

    write_block_event(tracing, time_us, 'x', &none, number_stream(tracing, event->stream, event),
                      event);
}

/* Writes the free of a block.  If event->bytes is above 0, the free is a cuMemFree, which has no stream.  The trace
 * then names the stream of the allocation. */
static void add_trace_free(struct tracing *tracing, struct weir_record_event *event,
                           uint64_t time_us) {
    struct block *block = remove_freed_block(tracing, &tracing->blocks, event);

    if (!block)
        return;
    event->device = (uint8_t)block->device;
    write_trace_free(tracing, time_us, block,
                     event->bytes ? block->stream : number_stream(tracing, event->stream, event),
                     event);
}

/* ---- memory of cuMemCreate ---- */

static void add_release(struct tracing *tracing, const struct weir_record_event *event,
                        uint64_t time_us) {
    struct block *block = remove_freed_block(tracing, &tracing->handles, event);

    if (block)
        drop_handle_use(tracing, time_us, block, event);
}

static void end_mapping(struct tracing *tracing, uint64_t address,
                        const struct weir_record_event *event, uint64_t time_us) {
    uintptr_t value;

    if (!weir__map_remove(&tracing->maps, address, &value))
        return;
    drop_handle_use(tracing, time_us, ((struct mapping *)value)->block, event);
    free((void *)value);
}

static void add_map(struct tracing *tracing, const struct weir_record_event *event,
                    uint64_t time_us) {
    struct mapping *mapping;
    uintptr_t block;

    add_to_counts(&tracing->mapped, event->bytes);
    end_mapping(tracing, event->address, event, time_us);
    /* An unknown handle comes from another process.  The trace of that process contains the memory. */
    if (!weir__map_get(&tracing->handles, event->stream, &block))
        return;
    mapping = malloc(sizeof *mapping);
    if (!mapping || !weir__map_put(&tracing->maps, event->address, (uintptr_t)mapping)) {
        tracing->failed = ENOMEM;
        free(mapping);
        return;
    }
    *mapping = (struct mapping){(struct block *)block, event->bytes, event->time};
    mapping->block->uses++;
}

/* Ends all mappings that begin in the unmapped range. */
static void add_unmap(struct tracing *tracing, const struct weir_record_event *event,
                      uint64_t time_us) {
    uint64_t at = event->address, end = at + event->bytes;
    uintptr_t value;

    subtract_from_counts(&tracing->mapped, event->bytes);
    while (at < end && weir__map_get(&tracing->maps, at, &value) &&
           ((struct mapping *)value)->time <= event->time) {
        uint64_t bytes = ((struct mapping *)value)->bytes;

        end_mapping(tracing, at, event, time_us);
        at += bytes;
    }
}

/* ---- adding any event -------------------------------------------------------------------------- */

static void add_trace_event(struct tracing *tracing, struct weir_record_event *event,
                            uint64_t time_us) {
    switch (event->operation) {
    case WEIR_RECORD_ALLOC:
        write_trace_alloc(tracing, &tracing->blocks, event, time_us);
        break;
    case WEIR_RECORD_CREATE:
        write_trace_alloc(tracing, &tracing->handles, event, time_us);
        break;
    case WEIR_RECORD_FAILED:
        add_failed(tracing, event, time_us);
        break;
    case WEIR_RECORD_FREE:
        add_trace_free(tracing, event, time_us);
        break;
    case WEIR_RECORD_RELEASE:
        add_release(tracing, event, time_us);
        break;
    case WEIR_RECORD_MAP:
        add_map(tracing, event, time_us);
        break;
    case WEIR_RECORD_UNMAP:
        add_unmap(tracing, event, time_us);
        break;
    case WEIR_RECORD_RESERVE:
        add_to_counts(&tracing->reserved, event->bytes);
        break;
    case WEIR_RECORD_UNRESERVE:
        subtract_from_counts(&tracing->reserved, event->bytes);
        break;
    case WEIR_RECORD_DEVICE:
        event->name[sizeof event->name - 1] = '\0';
        write_trace_text(tracing, "# device %u: %" PRIu64 " bytes, %s\n", event->device,
                         event->total, event->name);
        break;
    case WEIR_RECORD_CALLER:
        store_caller_name(tracing, event);
        break;
    case WEIR_RECORD_STREAM_ENDS:
        (void)weir__map_remove(&tracing->streams, event->stream, NULL);
        break;
    /* Removes all streams, because the streams of the context are not known. */
    case WEIR_RECORD_CONTEXT_ENDS:
        weir__map_clear(&tracing->streams);
        break;
    case WEIR_RECORD_MARK:
        tracing->has_marks = 1;
        write_mark_event(tracing, time_us, event->label);
        break;
    default:
        if (!tracing->has_marks && tracing->since_mark)
            write_mark_event(tracing, time_us, "sync");
    }
}

void tracing_add(struct tracing *tracing, const struct weir_record_event *event, uint64_t time_us) {
    struct weir_record_event copy = *event;

    if (tracing->failed ||
        /* Checks the kind, because the recorded program may overwrite the shared memory. */
        event->kind > WEIR_RECORD_VMM)
        return;
    if (tracing->limit && (tracing->left_out || tracing->written >= tracing->limit))
        tracing->left_out++;
    else
        add_trace_event(tracing, &copy, time_us);
}

static void write_call_counts(struct tracing *tracing, const char *name,
                              const struct counts *counts) {
    if (counts->calls)
        write_trace_text(tracing, "# calls %s=%" PRIu64 " bytes=%" PRIu64 " most=%" PRIu64 "\n",
                         name, counts->calls, counts->bytes, counts->live_peak);
}

void tracing_end(struct tracing *tracing) {
    write_call_counts(tracing, "cuMemAddressReserve", &tracing->reserved);
    write_call_counts(tracing, "cuMemMap", &tracing->mapped);
    write_call_counts(tracing, "host", &tracing->host);
    if (tracing->left_out)
        write_trace_text(tracing, "# %" PRIu64 " events left out: --limit\n", tracing->left_out);
    if (tracing->lost)
        write_trace_text(tracing, "# %" PRIu64 " events left out: lost\n", tracing->lost);
    if (tracing->left_out_frees)
        write_trace_text(tracing, "# %" PRIu64 " frees left out: their blocks are unknown\n",
                         tracing->left_out_frees);
    if (tracing->added_frees)
        write_trace_text(tracing, "# %" PRIu64 " frees added: the address was allocated again\n",
                         tracing->added_frees);
    memory_free_values(&tracing->blocks);
    /* A block whose handle was released is not in tracing->handles, so this loop frees it with its last mapping. */
    for (size_t i = 0; i < tracing->maps.capacity; i++)
        if (tracing->maps.slots[i].key) {
            struct mapping *mapping = (struct mapping *)tracing->maps.slots[i].value;

            if (--mapping->block->uses == 0)
                free(mapping->block);
            free(mapping);
        }
    weir__map_clear(&tracing->maps);
    memory_free_values(&tracing->handles);
    weir__map_clear(&tracing->streams);
    weir__map_clear(&tracing->defaults);
    memory_free_values(&tracing->names);
    free_modules(&tracing->modules);
    weir__map_clear(&tracing->modules.nowhere);
}
