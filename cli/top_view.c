/* SPDX-License-Identifier: MIT */
/* top_view.c: see top_view.h.  Any process of the user may write the figures, so weir__show_check() must check them
 * first. */
#include "cli/top_view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/size.h"
#include "base/text.h"
#include "cli/common/jsonfile.h"
#include "cli/common/spell.h"
#include "config/settings.h"

enum { LOG_LINES = 4 };

/* A program whose figures are older than this is shown as silent. */
#define QUIET_NS UINT64_C(2000000000)

/* ---- figures ------------------------------------------------------------------------------------- */

/* Requests and frees per second, and the share of requests from a per-stream cache.  A negative value is unknown. */
struct rates {
    double requests, frees, cached;
};

static int is_same_allocator(const struct weir_show_allocator *a,
                             const struct weir_show_allocator *b) {
    return strcmp(a->device, b->device) == 0 && strcmp(a->serves, b->serves) == 0 &&
           a->allocs >= b->allocs && a->frees >= b->frees && a->cache_hits >= b->cache_hits;
}

static double percent_of(uint64_t part, uint64_t whole) {
    return whole == 0 ? -1 : part >= whole ? 1 : (double)part / (double)whole;
}

static struct rates rates_of(const struct top_program *p, size_t i) {
    const struct weir_show_allocator *now = &p->now.allocator[i], *before = &p->before.allocator[i];
    double seconds = (double)weir__size_subtract(p->now.time_ns, p->before.time_ns) / 1e9;
    struct rates rates = {-1, -1, percent_of(now->cache_hits, now->allocs)};

    if (!p->has_before || i >= p->before.allocators || seconds <= 0 ||
        !is_same_allocator(now, before))
        return rates;
    rates.requests = (double)(now->allocs - before->allocs) / seconds;
    rates.frees = (double)(now->frees - before->frees) / seconds;
    if (now->allocs > before->allocs)
        rates.cached =
            percent_of(now->cache_hits - before->cache_hits, now->allocs - before->allocs);
    return rates;
}

/* Returns the age of a program's figures in seconds, or 0 if they are recent. */
static double seconds_silent(const struct top *top, const struct top_program *p) {
    uint64_t age = weir__size_subtract(top->now_ns, p->now.time_ns);

    return age > QUIET_NS ? (double)age / 1e9 : 0;
}

/* ---- order --------------------------------------------------------------------------------------- */

static const char *const order_names[TOP_ORDERS] = {"RESERVED", "IN USE", "REQ/S", "PID"};

const char *top_order_name(enum top_order order) {
    return order_names[order];
}

/* The column by which compare_programs() compares. */
static enum top_order sorted_by;

static double sort_key(const struct top_program *p) {
    double sum = 0;

    if (sorted_by == TOP_BY_PID)
        return -(double)p->name.pid;
    for (size_t i = 0; p->has_now && i < p->now.allocators; i++) {
        double requests = rates_of(p, i).requests;

        sum += sorted_by == TOP_BY_RESERVED ? (double)p->now.allocator[i].reserved
               : sorted_by == TOP_BY_IN_USE ? (double)p->now.allocator[i].in_use
               : requests > 0               ? requests
                                            : 0;
    }
    return sum;
}

/* Compares two programs for qsort(3): the larger value comes first; if both are equal, the smaller process id. */
static int compare_programs(const void *left, const void *right) {
    const struct top_program *a = *(struct top_program *const *)left;
    const struct top_program *b = *(struct top_program *const *)right;
    double key_a = sort_key(a), key_b = sort_key(b);

    if (key_a != key_b)
        return key_a > key_b ? -1 : 1;
    return a->name.pid < b->name.pid ? -1 : a->name.pid > b->name.pid;
}

void top_sort(struct top *top) {
    sorted_by = top->order;
    if (top->count > 0)
        qsort(top->programs, top->count, sizeof *top->programs, compare_programs);
}

/* ---- text ---------------------------------------------------------------------------------------- */

static struct spelled spell_rate(double rate) {
    struct spelled spelled = {"-"};
    double per = rate >= 9999.5e3 ? 1e6 : rate >= 9999.5 ? 1e3 : 1;

    if (rate >= 0)
        snprintf(spelled.text, sizeof spelled.text, "%.0f%s", rate / per,
                 per > 1e3 ? "M"
                 : per > 1 ? "k"
                           : "");
    return spelled;
}

static struct spelled spell_share(double share_of) {
    struct spelled spelled = {"-"};

    if (share_of >= 0)
        snprintf(spelled.text, sizeof spelled.text, "%.1f%%", share_of * 100);
    return spelled;
}

static struct spelled spell_ago(uint64_t ns) {
    double seconds = (double)ns / 1e9;
    struct spelled spelled;

    if (seconds < 100)
        snprintf(spelled.text, sizeof spelled.text, "%.1f s", seconds);
    else if (seconds < 6000)
        snprintf(spelled.text, sizeof spelled.text, "%.0f min", seconds / 60);
    else
        snprintf(spelled.text, sizeof spelled.text, "%.0f h", seconds / 3600);
    return spelled;
}

static void print_latency(FILE *file, const char *what, const struct weir_show_latency *l) {
    if (l->count > 0)
        fprintf(file, "        %-5s p50 %s, p90 %s, p99 %s, p99.9 %s, max %s\n", what,
                SPELL_TIME(l->p50_ns), SPELL_TIME(l->p90_ns), SPELL_TIME(l->p99_ns),
                SPELL_TIME(l->p999_ns), SPELL_TIME(l->max_ns));
}

/* Prints the last growths and trims of an allocator, the newest first. */
static void print_log(FILE *file, const struct weir_show_allocator *a, uint64_t older_ns) {
    for (uint64_t i = 0; i < a->events && i < LOG_LINES; i++) {
        const struct weir_show_event *e = &a->event[a->events - 1 - i];

        fprintf(file, "        %9s ago  %c%-10s in %-9s reserved %-9s %s\n",
                spell_ago(e->ago_ns + older_ns).text, e->shrink ? '-' : '+', WEIR_SHOWN(e->got),
                SPELL_TIME(e->stall_ns), WEIR_SHOWN(e->reserved_after),
                weir_event_cause_word((int)e->cause));
    }
}

/* Returns the command line without the folder of the program, for narrow windows. */
static const char *without_folder(const char *command) {
    size_t program = strcspn(command, " ");

    while (program > 0 && command[program - 1] != '/')
        program--;
    return command + program;
}

static void print_allocator(FILE *file, const struct top *top, const struct top_program *p,
                            size_t i) {
    const struct weir_show_allocator *a = &p->now.allocator[i];
    struct rates rates = rates_of(p, i);
    /* The text for the columns REQ/S and CACHED, or "silent N s" if the program is silent. */
    char now[80];

    if (seconds_silent(top, p) > 0)
        snprintf(now, sizeof now, "silent %.0f s", seconds_silent(top, p));
    else
        snprintf(now, sizeof now, "%6s %6s", spell_rate(rates.requests).text,
                 spell_share(rates.cached).text);
    fprintf(file, "%7ld %-6s %-6s %8s %8s %8s %13s  %s%s\n", (long)p->name.pid, a->device,
            a->engine, a->limit == UINT64_MAX ? "max" : WEIR_SHOWN(a->limit),
            WEIR_SHOWN(a->reserved), WEIR_SHOWN(a->in_use), now, without_folder(p->now.command),
            strcmp(a->serves, "pool") == 0 ? "" : " (plain memory)");
    if (a->failed_requests > 0)
        fprintf(file, "        %" PRIu64 " request%s failed\n", a->failed_requests,
                weir__plural(a->failed_requests));
    print_latency(file, "alloc", &a->latency[0]);
    print_latency(file, "free", &a->latency[1]);
    print_log(file, a, weir__size_subtract(top->now_ns, p->now.time_ns));
}

/* Prints the memory that the program has requested directly from the driver, not from weir. */
static void print_plain(FILE *file, long pid, const struct weir_show *show) {
    if (show->allocators == 0)
        fprintf(file, "%7ld nothing is served  %s\n", pid, show->command);
    if (!show->kind[0].call[0])
        return;
    fputs("        its own: ", file);
    for (int i = 0; i < WEIR_SHOW_KINDS && show->kind[i].call[0]; i++)
        fprintf(file, "%s%s %s", i ? ", " : "", show->kind[i].call,
                WEIR_SHOWN(show->kind[i].bytes));
    for (int i = 0; i < WEIR_SHOW_CALLERS && show->caller[i].object[0]; i++)
        fprintf(file, "%s%s %s", i ? ", " : "; by ", show->caller[i].object,
                WEIR_SHOWN(show->caller[i].bytes));
    fputc('\n', file);
}

static void print_program(FILE *file, const struct top *top, const struct top_program *p) {
    if (!p->has_now) {
        fprintf(file, "%7ld %s\n", (long)p->name.pid,
                p->fault == WEIR_SEGMENT_NONE || p->fault == WEIR_SEGMENT_NOT_YET
                    ? "no answer yet"
                    : weir__segment_fault_text(p->fault));
        return;
    }
    for (size_t i = 0; i < p->now.allocators; i++)
        print_allocator(file, top, p, i);
    print_plain(file, (long)p->name.pid, &p->now);
    if (p->now.all > p->now.allocators)
        fprintf(file, "        and %" PRIu64 " pool%s more\n", p->now.all - p->now.allocators,
                weir__plural(p->now.all - p->now.allocators));
}

static int is_counted(const struct top *top, uint64_t pid, const struct holders_device *device) {
    for (size_t i = 0; i < top->count; i++)
        if (top->programs[i]->is_running && (uint64_t)top->programs[i]->name.pid == pid)
            return 1;
    for (const struct holders_device *d = top->holders.devices; d < device; d++)
        for (size_t e = 0; e < d->count; e++)
            if (d->processes[e].entry.pid == pid)
                return 1;
    return 0;
}

/* Returns the number of programs that call the library themselves, and not through `weir run'.  The table of programs
 * does not list them. */
static size_t count_others(const struct top *top) {
    size_t others = 0;

    for (size_t i = 0; i < top->holders.count; i++) {
        const struct holders_device *d = &top->holders.devices[i];

        for (size_t e = 0; e < d->count; e++)
            others += !is_counted(top, d->processes[e].entry.pid, d);
    }
    return others;
}

void top_print(FILE *file, const struct top *top) {
    time_t now = time(NULL);
    char clock[16] = "";
    struct tm broken;
    size_t there = 0, others;

    for (size_t i = 0; i < top->count; i++)
        there += (size_t)top->programs[i]->is_running;
    others = count_others(top);
    if (localtime_r(&now, &broken))
        strftime(clock, sizeof clock, "%H:%M:%S", &broken);
    fprintf(file, "weir top, %s: %zu program%s\n", clock, there + others,
            weir__plural(there + others));
    if (there > 0)
        fprintf(file, "%7s %-6s %-6s %8s %8s %8s %6s %6s  %s\n", "PID", "DEVICE", "ENGINE", "LIMIT",
                "RESERVED", "IN USE", "REQ/S", "CACHED", "COMMAND");
    for (size_t i = 0; i < top->count; i++)
        if (top->programs[i]->is_running)
            print_program(file, top, top->programs[i]);
    holders_print(file, &top->holders);
}

void top_name(const struct top_program *p, char *text, size_t bytes) {
    snprintf(text, bytes, "%ld%s%.100s%s", (long)p->name.pid, p->has_now ? " (" : "",
             p->has_now ? p->now.command : "", p->has_now ? ")" : "");
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

static json_t *json_rate(double rate, double per) {
    return rate < 0 ? json_null() : jsonfile_rounded(rate, per);
}

static json_t *json_latency(const struct weir_show_latency *l) {
    if (l->count == 0)
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "count", jsonfile_integer(l->count),
                     "p50_ns", jsonfile_integer(l->p50_ns), "p90_ns", jsonfile_integer(l->p90_ns),
                     "p99_ns", jsonfile_integer(l->p99_ns), "p999_ns", jsonfile_integer(l->p999_ns),
                     "max_ns", jsonfile_integer(l->max_ns));
}

static json_t *json_events(const struct weir_show_allocator *a) {
    json_t *events = json_array();

    for (uint64_t i = 0; i < a->events; i++) {
        const struct weir_show_event *e = &a->event[i];

        json_array_append_new(events, json_pack("{s:o, s:s, s:b, s:o, s:o, s:o, s:o}", "ago_ns",
                                                jsonfile_integer(e->ago_ns), "cause",
                                                weir_event_cause_word((int)e->cause), "gave_back",
                                                e->shrink != 0, "asked", jsonfile_integer(e->asked),
                                                "got", jsonfile_integer(e->got), "took_ns",
                                                jsonfile_integer(e->stall_ns), "reserved_after",
                                                jsonfile_integer(e->reserved_after)));
    }
    return events;
}

static json_t *json_allocator(const struct top_program *p, size_t i) {
    const struct weir_show_allocator *a = &p->now.allocator[i];
    struct rates rates = rates_of(p, i);
    json_t *object = json_pack("{s:s, s:s, s:s, s:o}", "device", a->device, "engine", a->engine,
                               "serves", a->serves, "limit",
                               a->limit == UINT64_MAX ? json_null() : jsonfile_integer(a->limit));

#define SET(name) json_object_set_new(object, #name, jsonfile_integer(a->name))
    SET(reserved);
    SET(reserved_peak);
    SET(in_use);
    SET(in_use_peak);
    SET(cache_idle);
    SET(requested);
    SET(requested_peak);
    SET(blocks);
    SET(allocs);
    SET(frees);
    SET(hits);
    SET(cache_hits);
    SET(failed_requests);
    SET(growths);
    SET(growth_bytes);
    SET(stall_ns);
    SET(trims);
    SET(trim_bytes);
#undef SET
    json_object_set_new(object, "idle",
                        jsonfile_integer(weir__size_subtract(a->reserved, a->in_use)));
    json_object_set_new(object, "requests_per_s", json_rate(rates.requests, 10));
    json_object_set_new(object, "frees_per_s", json_rate(rates.frees, 10));
    json_object_set_new(object, "cached", json_rate(rates.cached, 1e4));
    json_object_set_new(object, "alloc_latency", json_latency(&a->latency[0]));
    json_object_set_new(object, "free_latency", json_latency(&a->latency[1]));
    json_object_set_new(object, "events", json_events(a));
    return object;
}

static json_t *json_plain(const struct weir_show *show) {
    json_t *kinds = json_object(), *callers = json_object();

    for (int i = 0; i < WEIR_SHOW_KINDS && show->kind[i].call[0]; i++)
        json_object_set_new(kinds, show->kind[i].call, jsonfile_integer(show->kind[i].bytes));
    for (int i = 0; i < WEIR_SHOW_CALLERS && show->caller[i].object[0]; i++)
        json_object_set_new(callers, show->caller[i].object,
                            jsonfile_integer(show->caller[i].bytes));
    return json_pack("{s:o, s:o}", "by_call", kinds, "by_library", callers);
}

static json_t *json_program(const struct top *top, const struct top_program *p) {
    json_t *allocators = json_array();
    const char *fault = p->fault == WEIR_SEGMENT_NONE ? NULL : weir__segment_fault_text(p->fault);

    for (size_t i = 0; p->has_now && i < p->now.allocators; i++)
        json_array_append_new(allocators, json_allocator(p, i));
    if (!p->has_now)
        return json_pack("{s:i, s:o, s:s?, s:o}", "pid", (int)p->name.pid, "start",
                         jsonfile_integer(p->name.start), "fault", fault, "allocators", allocators);
    return json_pack("{s:i, s:o, s:s?, s:s, s:o, s:o, s:o, s:o}", "pid", (int)p->name.pid, "start",
                     jsonfile_integer(p->name.start), "fault", fault, "command", p->now.command,
                     "age_ns", jsonfile_integer(weir__size_subtract(top->now_ns, p->now.time_ns)),
                     "left_to_driver", jsonfile_integer(p->now.left), "own_memory",
                     json_plain(&p->now), "allocators", allocators);
}

json_t *top_json(const struct top *top) {
    json_t *programs = json_array();
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    for (size_t i = 0; i < top->count; i++)
        if (top->programs[i]->is_running)
            json_array_append_new(programs, json_program(top, top->programs[i]));
    return json_pack("{s:f, s:o, s:o}", "time",
                     (double)now.tv_sec + (double)(now.tv_nsec / 1000000) / 1e3, "programs",
                     programs, "devices", holders_json(&top->holders));
}
