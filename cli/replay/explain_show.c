/* SPDX-License-Identifier: MIT */
/* explain_show.c: what explain.c gathered, as a table and as JSON; and the command around both.
 *
 * Where one request is a large part of the device the first lines say so, and what its maker can be told,
 * since that answers the question that most people come with.
 */
#include "cli/replay/explain.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/common/jsonfile.h"
#include "cli/common/shipped.h"
#include "cli/common/spell.h"
#include "cli/replay/contest.h"
#include "config/settings.h"

/* Who preallocates, and what turns it off. */
static const struct maker {
    const char *part; /* of the name of a library */
    const char *name;
    const char *advice[2];
} makers[] = {
    {"xla",
     "XLA, for JAX",
     {"XLA_PYTHON_CLIENT_PREALLOCATE=false: takes memory as arrays need it",
      "XLA_PYTHON_CLIENT_MEM_FRACTION=.10: takes a tenth of the device"}},
    {"jax",
     "JAX",
     {"XLA_PYTHON_CLIENT_PREALLOCATE=false: takes memory as arrays need it",
      "XLA_PYTHON_CLIENT_MEM_FRACTION=.10: takes a tenth of the device"}},
    {"tensorflow",
     "TensorFlow",
     {"TF_FORCE_GPU_ALLOW_GROWTH=true: takes memory as tensors need it", NULL}},
};

static const struct maker *maker_of(const char *by) {
    for (size_t i = 0; i < sizeof makers / sizeof makers[0]; i++)
        if (strcasestr(by, makers[i].part))
            return &makers[i];
    return NULL;
}

static double percent(uint64_t part, uint64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : 0.0;
}

static uint64_t device_bytes(const struct explain *explain, const struct explain_group *group) {
    return group->device < EXPLAIN_DEVICES ? explain->devices[group->device].bytes : 0;
}

/* "12.3 s", "4.56 ms". */
static void show_time(uint64_t us, char *text, size_t bytes) {
    if (us >= 100000000)
        snprintf(text, bytes, "%.0f s", (double)us / 1e6);
    else if (us >= 1000000)
        snprintf(text, bytes, "%.2f s", (double)us / 1e6);
    else if (us >= 1000)
        snprintf(text, bytes, "%.1f ms", (double)us / 1e3);
    else
        snprintf(text, bytes, "%" PRIu64 " us", us);
}

/* What a person calls the group's life. */
static void show_life(const struct explain_group *group, char *text, size_t bytes) {
    if (group->unfreed == group->times)
        snprintf(text, bytes, "to the end");
    else
        show_time(group->longest_us, text, bytes);
}

static const char *label_at(const struct explain *explain, uint64_t mark) {
    return mark < explain->mark_count ? explain->labels[mark] : NULL;
}

/* -------------------------------------------------------------------- for a person ---- */

static void print_head(FILE *file, const struct explain *explain) {
    char requests[32], frees[32], peak[32], time[32];

    table_spell(explain->requests, requests, sizeof requests);
    table_spell(explain->frees, frees, sizeof frees);
    weir__bytes_show(explain->live_peak, peak, sizeof peak);
    fprintf(file, "\n%s", explain->name);
    if (explain->recorded[0])
        fprintf(file, " (%s)", explain->recorded);
    show_time(explain->last_us - explain->first_us, time, sizeof time);
    fprintf(file, ": %s request%s, %s free%s, %" PRIu64 " stream%s, %zu mark%s, in %s\n", requests,
            weir__plural(explain->requests), frees, weir__plural(explain->frees), explain->streams,
            weir__plural(explain->streams), explain->mark_count, weir__plural(explain->mark_count),
            time);
    for (size_t i = 0; i < EXPLAIN_DEVICES; i++)
        if (explain->devices[i].bytes) {
            char bytes[32];

            weir__bytes_show(explain->devices[i].bytes, bytes, sizeof bytes);
            fprintf(file, "device %zu: %s, %s\n", i, explain->devices[i].name, bytes);
        }
    show_time(explain->live_peak_us, time, sizeof time);
    fprintf(file, "most at once: %s, at %s\n", peak, time);
}

static void print_preallocation(FILE *file, const struct explain *explain) {
    const struct explain_group *group = explain->preallocation;
    const struct maker *maker;
    uint64_t device;
    char bytes[32], life[32];

    if (!group)
        return;
    maker = maker_of(group->by);
    device = device_bytes(explain, group);
    weir__bytes_show(group->bytes, bytes, sizeof bytes);
    show_life(group, life, sizeof life);
    fprintf(file, "\n>> PREALLOCATION: one %s of %s, ",
            explain_call_name(explain->kinds[group->kind].word), bytes);
    if (device)
        fprintf(file, "%.1f%% of the device", percent(group->bytes, device));
    else
        fprintf(file, "%.1f%% of all memory in use", percent(group->bytes, explain->live_peak));
    fprintf(file, "%s%s\n", group->by[0] ? ", requested by " : "", group->by);
    if (explain_primes(explain, group))
        fprintf(
            file,
            "   It was freed after %s into the driver's pool, which keeps it for later requests.\n",
            life);
    else
        fprintf(
            file,
            "   An allocator inside the program (%s) takes it at once and cuts its arrays out of "
            "it:\n   what these need of it is not in this trace, and nothing uses the rest.\n",
            maker ? maker->name : "its framework's");
    for (size_t i = 0; maker && i < 2 && maker->advice[i]; i++)
        fprintf(file, "   %s\n", maker->advice[i]);
}

static void print_kinds(FILE *file, const struct explain *explain) {
    fprintf(file, "\n%-24s %10s %8s %8s %11s %11s %11s %7s\n", "call", "requests", "failed",
            "first at", "bytes", "most", "at the peak", "of it");
    for (size_t i = 0; i < explain->kind_count; i++) {
        const struct explain_kind *kind = &explain->kinds[i];
        char requests[32], first[32], bytes[32], most[32], at_peak[32];

        table_spell(kind->requests, requests, sizeof requests);
        show_time(kind->first_us, first, sizeof first);
        weir__bytes_show(kind->bytes, bytes, sizeof bytes);
        weir__bytes_show(kind->peak, most, sizeof most);
        weir__bytes_show(kind->at_live_peak, at_peak, sizeof at_peak);
        fprintf(file, "%-24.24s %10s %8" PRIu64 " %8s %11s %11s %11s %6.1f%%\n",
                explain_call_name(kind->word), requests, kind->refused, first, bytes, most, at_peak,
                percent(kind->at_live_peak, explain->live_peak));
    }
    for (size_t i = 0; i < explain->call_count; i++) {
        const struct explain_call *call = &explain->calls[i];
        char count[32], bytes[32], most[32];

        table_spell(call->count, count, sizeof count);
        weir__bytes_show(call->bytes, bytes, sizeof bytes);
        weir__bytes_show(call->most, most, sizeof most);
        fprintf(file, "%-24.24s %10s %8s %8s %11s %11s no memory of its own\n", call->name, count,
                "-", "-", bytes, most);
    }
}

/* "step3 - step4": the marks around the first of a group. */
static void show_marks(const struct explain *explain, const struct explain_group *group, char *text,
                       size_t bytes) {
    const char *before = group->first_mark ? label_at(explain, group->first_mark - 1) : NULL;
    const char *after = label_at(explain, group->first_mark);

    if (!explain->mark_count)
        snprintf(text, bytes, "-");
    else
        snprintf(text, bytes, "%.11s-%.11s", before ? before : "start", after ? after : "end");
}

/* As much of it as there is room for: what all share is left out. */
static const char *short_name(const char *call) {
    return strcmp(call, "cuMemAllocFromPoolAsync") == 0 ? call + 5 : call;
}

/* "train.py:12(step) in forward": the most exact that is known. */
static void show_caller(const struct explain_group *group, char *text, size_t bytes) {
    const char *caller = group->at[0] ? group->at : group->by;

    snprintf(text, bytes, "%s%s%s", caller, group->range[0] ? " in " : "", group->range);
}

static void print_group(FILE *file, const struct explain *explain,
                        const struct explain_group *group, int by_width) {
    uint64_t device = device_bytes(explain, group);
    char bytes[32], share[16] = "-", times[32], first[32], life[32], marks[32];
    char caller[3 * EXPLAIN_WORD_BYTES];

    weir__bytes_show(group->bytes, bytes, sizeof bytes);
    if (device)
        snprintf(share, sizeof share, "%.1f%%", percent(group->bytes, device));
    table_spell(group->times, times, sizeof times);
    show_time(group->first_us, first, sizeof first);
    show_life(group, life, sizeof life);
    show_marks(explain, group, marks, sizeof marks);
    show_caller(group, caller, sizeof caller);
    fprintf(file, "%10s %6s %6s  %-18.18s %-*.*s %6" PRIu64 " %8s %10s  %s\n", bytes, share, times,
            short_name(explain_call_name(explain->kinds[group->kind].word)), by_width, by_width,
            caller, group->stream, first, life, marks);
}

static void print_groups(FILE *file, const struct explain *explain, size_t most) {
    char caller[3 * EXPLAIN_WORD_BYTES];
    int by_width = 0, widest = explain->has_callers ? 56 : 20;

    for (size_t i = 0; i < explain->group_count && i < most; i++) {
        show_caller(explain->groups[i], caller, sizeof caller);
        by_width = (int)strlen(caller) > by_width ? (int)strlen(caller) : by_width;
    }
    by_width = by_width == 0 ? 0 : by_width < 8 ? 8 : by_width > widest ? widest : by_width;
    fprintf(file, "\nthe largest blocks, those that are alike in one line (x times)\n");
    fprintf(file, "%10s %6s %6s  %-18s %-*s %6s %8s %10s  %s\n", "bytes", "device", "x", "call",
            by_width, by_width ? "caller" : "", "stream", "first at", "lived", "between marks");
    for (size_t i = 0; i < explain->group_count && i < most; i++)
        print_group(file, explain, explain->groups[i], by_width);
    if (explain->group_count > most)
        fprintf(file, "%10s %zu more line%s, of blocks none larger: --explain=%zu shows all\n",
                "...", explain->group_count - most, weir__plural(explain->group_count - most),
                explain->group_count);
}

void explain_print(FILE *file, const struct explain *explain, size_t most) {
    print_head(file, explain);
    print_preallocation(file, explain);
    if (explain->kind_count)
        print_kinds(file, explain);
    if (explain->group_count)
        print_groups(file, explain, most);
}

/* ---------------------------------------------------------------------------- JSON ---- */

/* Returns text of the trace, or null if there is none. */
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

static json_t *group_json(const struct explain *explain, const struct explain_group *group) {
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

json_t *explain_json(const struct explain *explain, size_t most) {
    json_t *kinds = json_array(), *groups = json_array(), *devices = json_array(),
           *calls = json_array(), *preallocation = json_null();

    for (size_t i = 0; i < explain->kind_count; i++)
        json_array_append_new(kinds, kind_json(&explain->kinds[i]));
    for (size_t i = 0; i < explain->group_count && i < most; i++)
        json_array_append_new(groups, group_json(explain, explain->groups[i]));
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

        preallocation = group_json(explain, explain->preallocation);
        json_object_set_new(preallocation, "device_bytes",
                            bytes ? jsonfile_integer(bytes) : json_null());
    }
    return json_pack("{s:o,s:o,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:o}", "trace",
                     jsonfile_text(explain->name), "recorded", text_or_null(explain->recorded),
                     "devices", devices, "requests", explain->requests, "failed", explain->refused,
                     "frees", explain->frees, "streams", explain->streams, "marks",
                     (json_int_t)explain->mark_count, "first_us", explain->first_us, "last_us",
                     explain->last_us, "requested_peak_bytes", explain->live_peak,
                     "requested_peak_us", explain->live_peak_us, "calls", kinds, "other_calls",
                     calls, "blocks", groups, "preallocation", preallocation);
}

/* --------------------------------------------------------------------- the command ---- */

int explain_run(struct contest *contest, size_t most) {
    FILE *file = contest_table_file(contest);
    json_t *array = json_array(), *common = jsonfile_common(contest->argc, contest->argv);
    int good = 1, lacks_callers = 0;

    if (!jsonfile_check("--json", contest->json_file)) {
        json_decref(array);
        json_decref(common);
        return 1;
    }
    for (size_t i = 0; i < contest->trace_count; i++) {
        const char *path = contest->traces[i].path;
        struct explain explain;
        char message[512];

        if (explain_read(&explain, path, contest->iterations, message, sizeof message)) {
            json_t *object = explain_json(&explain, most);

            explain_print(file, &explain, most);
            lacks_callers |= explain.requests > 0 && !explain.has_callers;
            json_object_update(object, common);
            json_array_append_new(array, object);
        } else {
            fprintf(stderr, "weir: %s: %s\n", strcmp(path, "-") == 0 ? "stdin" : path, message);
            shipped_advise(path);
            good = 0;
        }
        explain_end(&explain);
    }
    if (lacks_callers && good)
        fputs("\nTo see the functions, lines of Python and NVTX ranges that request memory, record "
              "the "
              "program with `weir record --callers'.\n",
              file);
    json_decref(common);
    good &= !contest->json_file || jsonfile_write(contest->json_file, array);
    json_decref(array);
    return weir_cli_written() && good ? 0 : 1;
}
