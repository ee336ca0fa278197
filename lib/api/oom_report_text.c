/* SPDX-License-Identifier: MIT */
/* oom_report_text.c: writes an OOM report as a screen of text, or as JSON.
 *
 * The report is written into the caller's memory.  Nothing is allocated, since the host may have no memory left.
 *
 * Must not know: how an OOM report is made.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/oom_reporting.h"
#include "base/file.h"
#include "base/log.h"
#include "base/replace.h"
#include "base/size.h"
#include "base/text.h"
#include "config/settings.h"

enum { SCREEN_BYTES = 4096, STEP = 32 << 20 /* the step by which pools grow */ };

/* An OOM report of version 1 ends with `settings`. */
#define SMALLEST_SIZE (offsetof(weir_oom_report, settings) + sizeof((weir_oom_report){0}.settings))

/* The text's memory.  `length` is the length of the whole text, even if it does not fit. */
struct out {
    char *text;
    size_t bytes, length;
};

__attribute__((format(printf, 2, 3))) static void put(struct out *out, const char *format, ...) {
    size_t room = out->length < out->bytes ? out->bytes - out->length : 0;
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(room ? out->text + out->length : NULL, room, format, arguments);
    va_end(arguments);
    out->length += length > 0 ? (size_t)length : 0;
}

#define SHOW WEIR_SHOWN

/* Spells bytes that are always known, however many they are. */
static struct weir_shown show_any(uint64_t bytes) {
    struct weir_shown s;

    weir__bytes_show(bytes, s.text, sizeof s.text);
    return s;
}

static void put_stream(struct out *out, const weir_oom_report *v, uint64_t stream) {
    if (stream && stream == v->default_stream)
        put(out, "the default stream");
    else if (stream)
        put(out, "stream id %llu", (unsigned long long)stream);
    else
        put(out, "a stream not known");
}

const char *weir_oom_report_cause_word(int cause) {
    static const char *const words[] = {
#define CAUSE_WORD(name, word) word,
        WEIR_OOM_REPORT_CAUSES(CAUSE_WORD)
#undef CAUSE_WORD
    };

    return cause >= 0 && cause < WEIR_OOM_REPORT_CAUSE_COUNT ? words[cause] : "unknown";
}

/* ---- the sentence ---------------------------------------------------------------------------- */

static void put_limit(struct out *out, const weir_oom_report *v) {
    const weir_amount share = {.value = v->weight, .kind = WEIR_AMOUNT_SHARE};
    char spelled[WEIR_SPELL_BYTES];

    if (v->limit_is_set && v->keep_free == 0) {
        put(out, "the program's own limit of %s; %s is in use", SHOW(v->limit), SHOW(v->in_use));
    } else if (v->keep_free > 0) {
        put(out, "--keep-free keeps %s for others: this process may have %s", SHOW(v->keep_free),
            SHOW(v->limit));
    } else if (v->is_share) {
        weir__amount_spell(&share, spelled, sizeof spelled);
        put(out, "limit %s is %s now, of which %s is in use", spelled, SHOW(v->limit),
            SHOW(v->in_use));
    } else {
        put(out, "the limit of %s, of which %s is in use", SHOW(v->limit), SHOW(v->in_use));
    }
}

/* Returns 1 if the limit allows the bytes but not the step by which memory grows, else 0. */
static int is_short_of_a_step(const weir_oom_report *v) {
    uint64_t left = weir__size_less(v->limit, v->reserved);

    return v->cause == WEIR_OOM_REPORT_LIMIT && left > 0 && left < STEP &&
           v->idle + left >= v->asked;
}

/* Returns 1 if this process has most of the memory that is not the allocator's, else 0. */
static int are_local_peers(const weir_oom_report *v) {
    return v->other_allocators > (v->others == UINT64_MAX ? 0 : v->others);
}

/* Returns the bytes that the limit and the device allow. */
static uint64_t room_of(const weir_oom_report *v) {
    return weir__size_smaller(weir__size_less(v->limit, v->reserved),
                              v->device_free == UINT64_MAX ? v->device_total : v->device_free);
}

static const char *driver_error(const weir_oom_report *v, char *number, size_t bytes) {
    if (v->driver_result == 2)
        return "CUDA_ERROR_OUT_OF_MEMORY";
    if (v->driver_result == 0)
        return "an error";
    snprintf(number, bytes, "CUDA error %llu", (unsigned long long)v->driver_result);
    return number;
}

static void put_driver(struct out *out, const weir_oom_report *v) {
    char number[40];

    put(out, "the driver answers %s with %s free", driver_error(v, number, sizeof number),
        SHOW(v->device_free));
    if (v->no_descriptors)
        put(out, ": no file descriptor is left");
}

static void put_in_use(struct out *out, const weir_oom_report *v) {
    uint64_t rest = v->idle + (v->device_free == UINT64_MAX ? 0 : v->device_free);

    put(out, "only %s is idle or free", SHOW(rest));
    if (v->in_use > 0)
        put(out, "; live blocks have %s", SHOW(v->in_use));
}

static void put_cause(struct out *out, const weir_oom_report *v) {
    switch (v->cause) {
    case WEIR_OOM_REPORT_TOO_LARGE:
        put(out, "it is more than the %s that the device has", SHOW(v->device_total));
        return;
    case WEIR_OOM_REPORT_PENDING:
        put(out, "enough is idle%s, but %s of it waits for other streams",
            v->idle < v->asked ? " or may be added" : "", SHOW(v->pending));
        return;
    case WEIR_OOM_REPORT_FRAGMENTED:
        if (v->largest_free_block == UINT64_MAX)
            put(out, "%s is idle, in pieces or behind other streams", SHOW(v->idle));
        else if (v->largest_free_block == 0)
            put(out, "%s is idle, but only as padding of live blocks", SHOW(v->idle));
        else
            put(out, "%s is idle, but in pieces of %s at most", SHOW(v->idle),
                SHOW(v->largest_free_block));
        return;
    case WEIR_OOM_REPORT_LIMIT:
        put_limit(out, v);
        return;
    case WEIR_OOM_REPORT_GRAPHS:
        put(out, "the device has too little left, and graphs have %s of it", SHOW(v->graphs));
        return;
    case WEIR_OOM_REPORT_OTHERS:
        if (are_local_peers(v))
            put(out, "other weir pools of this process have %s of the device",
                SHOW(v->other_allocators));
        else
            put(out, "the device has too little left, and others have %s of it",
                SHOW(v->other_allocators + (v->others == UINT64_MAX ? 0 : v->others)));
        return;
    case WEIR_OOM_REPORT_IN_USE:
        put_in_use(out, v);
        return;
    case WEIR_OOM_REPORT_RESERVE:
        put(out, "%s is idle in weir, but graphs take memory from the driver", SHOW(v->idle));
        return;
    case WEIR_OOM_REPORT_DRIVER:
        put_driver(out, v);
        return;
    case WEIR_OOM_REPORT_GROUP:
        put(out, "the process group has %s of its limit of %s", SHOW(v->group_used),
            SHOW(v->group_limit));
        return;
    default:
        put(out, "nothing any more: it would be served now");
        return;
    }
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Writes which process does not answer, and the other processes that have memory of the device. */
static void put_holders(struct out *out, const weir_oom_report *v) {
    uint64_t rest = v->others;

    if (v->silent_pid != 0)
        put(out, "              process %llu has %s of it, and %s\n",
            (unsigned long long)v->silent_pid, SHOW(v->silent_reserved),
            v->silent_stopped ? "is stopped" : "does not answer");
    for (uint32_t i = 0; i < v->process_count; i++) {
        const weir_oom_report_member *p = &v->process[i];

        put(out, "%s%.16s (process %llu) has %s, could release %s\n",
            i ? "              " : "  holders     ", p->command, (unsigned long long)p->pid,
            SHOW(p->bytes), SHOW(p->idle));
        rest = rest == UINT64_MAX ? rest : weir__size_less(rest, p->bytes);
    }
    if (v->processes > v->process_count)
        put(out, "              and %u more processes\n", v->processes - v->process_count);
    else if (v->process_count > 0 && rest != UINT64_MAX)
        put(out, "              contexts, and memory that weir does not serve: %s\n", SHOW(rest));
}

/* Writes the members of the process group and their memory. */
static void put_members(struct out *out, const weir_oom_report *v) {
    put(out, "  group       '%s': limit %s, used %s, %u member%s\n", v->process_group,
        SHOW(v->group_limit), SHOW(v->group_used), v->members, weir__plural(v->members));
    for (uint32_t i = 0; i < v->member_count; i++) {
        const weir_oom_report_member *m = &v->member[i];

        put(out, "              pid %llu: %s, %s idle, share %s: %.24s\n",
            (unsigned long long)m->pid, SHOW(m->bytes), SHOW(m->idle), SHOW(m->share), m->command);
    }
    if (v->members > v->member_count)
        put(out, "              and %u more\n", v->members - v->member_count);
    put(out, "              (contexts are estimates of 528MiB each)\n");
}

/* Writes what failed and why, who has the memory, and the main figures.  These lines come first, since a log may cut the
 * text off. */
static void put_head(struct out *out, const weir_oom_report *v) {
    put(out, "weir: out of memory: could not allocate %s on %s\n", show_any(v->asked).text,
        v->device[0] ? v->device : "the device");
    put(out, "  cause       %s: ", weir_oom_report_cause_word(v->cause));
    put_cause(out, v);
    put(out, "\n");
    if (is_short_of_a_step(v))
        put(out, "              less is left than one growth needs\n");
    if (v->cause == WEIR_OOM_REPORT_FRAGMENTED && v->idle < v->asked)
        put(out, "              with %s that may be added it would be enough in one piece\n",
            SHOW(room_of(v)));
    put_holders(out, v);
    put(out, "  (reserved %s", SHOW(v->reserved));
    if (v->limit == UINT64_MAX)
        put(out, ", no limit");
    else
        put(out, v->keep_free > 0 ? " of %s that keep-free leaves" : " of %s limit",
            SHOW(v->limit));
    if (v->largest_free_block != UINT64_MAX)
        put(out, "%s largest free block %s", v->keep_free > 0 ? ",\n " : ",",
            SHOW(v->largest_free_block));
    put(out, ",\n");
    if (v->device_free == UINT64_MAX)
        put(out, "  device has %s, free not known).\n", SHOW(v->device_total));
    else
        put(out, "  %s has %s free).\n", v->process_group[0] ? "process group or device" : "device",
            SHOW(v->device_free));
}

static void put_figures(struct out *out, const weir_oom_report *v) {
    put(out, "  reserved    in use %s, idle %s", SHOW(v->in_use), SHOW(v->idle));
    if (v->pending > 0 && v->pending != UINT64_MAX)
        put(out, ";\n              of this %s still used by pending work", SHOW(v->pending));
    put(out, "\n");
    for (uint32_t i = 0; i < v->pending_streams; i++) {
        put(out, "              %s waits for ", SHOW(v->pending_by[i].bytes));
        put_stream(out, v, v->pending_by[i].stream);
        put(out, "\n");
    }
    put(out, "  device      %s; graphs %s (%s of it unused),\n", SHOW(v->device_total),
        SHOW(v->graphs), SHOW(v->graphs_idle));
    put(out, "              other weir pools of this process %s, all else %s\n",
        SHOW(v->other_allocators), SHOW(v->others));
}

static void put_groups(struct out *out, const weir_oom_report *v) {
    for (uint32_t i = 0; i < v->group_count; i++) {
        const weir_oom_report_group *g = &v->groups[i];

        put(out, "%s%s in %llu block%s of %s, ", i ? "              " : "  live        ",
            SHOW(g->total), (unsigned long long)g->blocks, weir__plural(g->blocks), SHOW(g->bytes));
        put_stream(out, v, g->stream);
        put(out, "\n");
    }
    if (v->ungrouped > 0)
        put(out, "              %s not listed: out of host memory\n", SHOW(v->ungrouped));
}

/* ---- the advice ------------------------------------------------------------------------------ */

static const char *variable_of(const char *name) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        if (strcmp(weir__setting_row((enum weir_setting)i)->name, name) == 0)
            return weir__setting_row((enum weir_setting)i)->variable;
    return name;
}

/* A smaller keep-free also works: this allocator then gets the memory. */
static const char *bound_of(const char *name) {
    return strcmp(name, weir__setting_row(WEIR_SETTING_KEEP_FREE)->name) == 0 ? " or less" : "";
}

static int is_own(const weir_oom_report_setting *setting) {
    return setting->name == weir__oom_report_own_limit;
}

static void put_settings(struct out *out, const weir_oom_report *v) {
    const weir_oom_report_setting *end = v->settings, *s;
    int count = 0, any = 0;

    for (; end < v->settings + WEIR_OOM_REPORT_SETTINGS && end->name; end++)
        if (is_own(end))
            put(out, "  Raise options.limit to %s.\n", end->value);
        else
            count++;
    if (count == 0)
        return;
    put(out, "  Try");
    for (s = v->settings; s < end; s++)
        if (!is_own(s))
            put(out, " --%s %s%s", s->name, s->value, bound_of(s->name));
    put(out, "%s(", count > 1 ? "\n      " : " ");
    for (s = v->settings; s < end; s++)
        if (!is_own(s))
            put(out, "%s%s=%s", any++ ? " " : "", variable_of(s->name), s->value);
    put(out, ").\n");
}

/* Writes how to get memory from a process that is stopped or does not answer. */
static void put_silent_advice(struct out *out, const weir_oom_report *v) {
    unsigned long long pid = v->silent_pid;

    if (v->silent_stopped)
        put(out, "  Continue process %llu (kill -CONT %llu), or end it.\n", pid, pid);
    else
        put(out, "  Wait until process %llu answers, or end it.\n", pid);
}

static void put_reserve_advice(struct out *out, const weir_oom_report *v) {
    put(out, "  Trim before the capture (weir_trim), or use a %s.\n",
        v->status != WEIR_E_LIMIT ? "smaller --prealloc or --limit"
        : v->limit_is_set         ? "larger limit (weir_set_limit)"
                                  : "larger --limit");
}

/* Writes advice that is no setting. */
static void put_other_advice(struct out *out, const weir_oom_report *v) {
    if (v->cause == WEIR_OOM_REPORT_NONE)
        put(out, "  Try the request again.\n");
    else if (v->cause == WEIR_OOM_REPORT_RESERVE)
        put_reserve_advice(out, v);
    else if (v->silent_pid != 0)
        put_silent_advice(out, v);
    else if (v->cause == WEIR_OOM_REPORT_DRIVER && v->no_descriptors)
        put(out, "  Raise the limit of open files (ulimit -n): no setting makes room.\n");
    else if (v->cause == WEIR_OOM_REPORT_DRIVER)
        put(out, "  See what the driver lacks, such as host memory: no setting makes room.\n");
    else if (v->cause == WEIR_OOM_REPORT_GRAPHS && v->graphs_idle > 0)
        put(out, "  Call cuDeviceGraphMemTrim: no setting makes room.\n");
    else if (v->cause == WEIR_OOM_REPORT_OTHERS && are_local_peers(v))
        put(out, "  Trim the other pools, or free their blocks: no setting makes room.\n");
    else if (v->cause == WEIR_OOM_REPORT_OTHERS)
        put(out, "  Wait for other processes, or end them (weir info --processes):\n"
                 "  no setting makes room.\n");
    else if (v->cause == WEIR_OOM_REPORT_GROUP)
        put(out, "  Request less, or end members of the group: no setting makes room.\n");
    else
        put(out, "  Request less%s: no setting makes room.\n",
            v->in_use > 0 ? ", or free live blocks first" : "");
}

static void put_advice(struct out *out, const weir_oom_report *v) {
    char limit[WEIR_SPELL_BYTES];

    if (v->set_limit > 0) {
        weir__bytes_spell(v->set_limit, limit, sizeof limit);
        put(out, "  Call weir_set_limit with %s or more%s\n", limit,
            v->settings[0].name ? ", and" : ".");
    }
    if (v->settings[0].name)
        put_settings(out, v);
    else if (v->set_limit == 0)
        put_other_advice(out, v);
}

static void put_text(struct out *out, const weir_oom_report *v) {
    put_head(out, v);
    put_advice(out, v);
    put(out, "  request     for ");
    put_stream(out, v, v->stream);
    put(out, ": %s, waited %llu.%llu ms", weir_status_name(v->status),
        (unsigned long long)(v->waited_ns / 1000000),
        (unsigned long long)(v->waited_ns / 100000 % 10));
    if (v->largest > 0)
        put(out, "\n              %s would fit now%s", SHOW(v->largest),
            v->largest > v->largest_free_block ? ": weir can add or move memory" : "");
    put(out, "\n");
    put_figures(out, v);
    if (v->process_group[0])
        put_members(out, v);
    put_groups(out, v);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_number(struct out *out, const char *name, uint64_t value) {
    if (value == UINT64_MAX)
        put(out, ",\"%s\":null", name);
    else
        put(out, ",\"%s\":%llu", name, (unsigned long long)value);
}

/* Returns the number for JSON, where 0 means unknown. */
static uint64_t id(uint64_t number) {
    return number ? number : UINT64_MAX;
}

static void put_lists(struct out *out, const weir_oom_report *v) {
    put(out, ",\"pending_by\":[");
    for (uint32_t i = 0; i < v->pending_streams; i++) {
        put(out, "%s{\"bytes\":%llu", i ? "," : "", (unsigned long long)v->pending_by[i].bytes);
        put_number(out, "stream", id(v->pending_by[i].stream));
        put(out, "}");
    }
    put(out, "],\"groups\":[");
    for (uint32_t i = 0; i < v->group_count; i++) {
        put(out, "%s{\"bytes\":%llu", i ? "," : "", (unsigned long long)v->groups[i].bytes);
        put_number(out, "blocks", v->groups[i].blocks);
        put_number(out, "total", v->groups[i].total);
        put_number(out, "stream", id(v->groups[i].stream));
        put(out, "}");
    }
    put(out, "]");
    put_number(out, "ungrouped", v->ungrouped);
    put(out, ",\"try\":[");
    for (int i = 0; i < WEIR_OOM_REPORT_SETTINGS && v->settings[i].name; i++)
        if (is_own(&v->settings[i]))
            put(out, "%s{\"field\":\"options.limit\",\"value\":\"%s\"}", i ? "," : "",
                v->settings[i].value);
        else
            put(out, "%s{\"flag\":\"--%s\",\"variable\":\"%s\",\"value\":\"%s\"}", i ? "," : "",
                v->settings[i].name, variable_of(v->settings[i].name), v->settings[i].value);
    put(out, "]");
    put_number(out, "set_limit", id(v->set_limit));
}

/* Writes a command.  Characters that JSON would not accept become question marks. */
static void put_plain(struct out *out, const char *text) {
    for (; *text; text++)
        put(out, "%c", *text < ' ' || *text == '"' || *text == '\\' ? '?' : *text);
}

/* Writes a list of processes; `has_share` adds the share of each in its group. */
static void put_processes(struct out *out, const weir_oom_report_member *member, uint32_t count,
                          int has_share) {
    for (uint32_t i = 0; i < count; i++) {
        const weir_oom_report_member *m = &member[i];

        put(out, "%s{\"pid\":%llu", i ? "," : "", (unsigned long long)m->pid);
        put_number(out, "bytes", m->bytes);
        put_number(out, "idle", m->idle);
        if (has_share)
            put_number(out, "share", m->share);
        put(out, ",\"command\":\"");
        put_plain(out, m->command);
        put(out, "\"}");
    }
    put(out, "]");
}

static void put_process_group(struct out *out, const weir_oom_report *v) {
    put(out, ",\"process_group\":\"%s\"", v->process_group); /* a group's name needs no escapes */
    put_number(out, "group_limit", v->group_limit);
    put_number(out, "group_used", v->group_used);
    put_number(out, "members_all", v->members);
    put(out, ",\"members\":[");
    put_processes(out, v->member, v->member_count, 1);
}

static void put_json(struct out *out, const weir_oom_report *v) {
    put(out, "{\"cause\":\"%s\",\"sentence\":\"", weir_oom_report_cause_word(v->cause));
    put_cause(out, v); /* words and sizes need no escapes */
    put(out, "\",\"status\":\"%s\"", weir_status_name(v->status));
    if (v->device[0])
        put(out, ",\"device\":\"%s\"", v->device); /* a word and a number need no escapes */
    else
        put(out, ",\"device\":null");
    put(out, ",\"asked\":%llu", (unsigned long long)v->asked);
    put_number(out, "stream", id(v->stream));
    put_number(out, "default_stream", id(v->default_stream));
    put_number(out, "waited_ns", v->waited_ns);
    put_number(out, "largest", v->largest);
    put_number(out, "limit", v->limit);
    put(out, ",\"limit_is_set\":%s", v->limit_is_set ? "true" : "false");
    put_number(out, "share", v->is_share ? v->weight : UINT64_MAX);
    put_number(out, "keep_free", v->keep_free);
    put_number(out, "reserved", v->reserved);
    put_number(out, "in_use", v->in_use);
    put_number(out, "idle", v->idle);
    put_number(out, "largest_free_block", v->largest_free_block);
    put_number(out, "pending", v->pending);
    put_number(out, "device_total", v->device_total);
    put_number(out, "device_free", v->device_free);
    put_number(out, "graphs", v->graphs);
    put_number(out, "graphs_idle", v->graphs_idle);
    put_number(out, "other_allocators", v->other_allocators);
    put_number(out, "others", v->others);
    put_number(out, "silent_pid", id(v->silent_pid));
    put_number(out, "silent_reserved", v->silent_reserved);
    put(out, ",\"silent_stopped\":%s", v->silent_stopped ? "true" : "false");
    put_number(out, "holder_pid", id(v->holder_pid));
    put_number(out, "holder_reserved", v->holder_reserved);
    put_number(out, "holder_reclaimable", v->holder_reclaimable);
    put_number(out, "driver_result", id(v->driver_result));
    put(out, ",\"no_descriptors\":%s", v->no_descriptors ? "true" : "false");
    put_number(out, "processes_all", v->processes);
    put(out, ",\"processes\":[");
    put_processes(out, v->process, v->process_count, 0);
    if (v->process_group[0])
        put_process_group(out, v);
    put_lists(out, v);
    put(out, "}");
}

size_t weir_oom_report_text(const weir_oom_report *v, int format, char *text, size_t text_bytes) {
    struct out out = {.text = text, .bytes = text ? text_bytes : 0};
    weir_oom_report all;

    if (!v || v->size < SMALLEST_SIZE ||
        (format != WEIR_OOM_REPORT_AS_TEXT && format != WEIR_OOM_REPORT_AS_JSON))
        return 0;
    memset(&all, 0, sizeof all); /* fields that a caller's older struct lacks are 0 */
    memcpy(&all, v, v->size < sizeof all ? v->size : sizeof all);
    if (format == WEIR_OOM_REPORT_AS_JSON)
        put_json(&out, &all);
    else
        put_text(&out, &all);
    return out.length;
}

/* ---- told ------------------------------------------------------------------------------------ */

static int add_to_file(const char *name, const char *text, size_t length) {
    int file = weir__file_open(name, O_WRONLY | O_CREAT | O_APPEND, 0666), problem;

    if (file < 0)
        return errno;
    problem = weir__write_all(file, text, length);
    if (close(file) != 0 && problem == 0) /* unreached: fails only for a file on another machine */
        problem = errno;                  /* unreached: fails only for a file on another machine */
    return problem;
}

int weir__oom_report_problem(const char *to) {
    const char *name = strrchr(to, '/');
    char folder[4096] = ".";
    int file;

    if (!weir__oom_report_is_wanted(to) || strcmp(to, "stderr") == 0)
        return 0;
    file = weir__file_open(to, O_WRONLY | O_APPEND | O_NONBLOCK, 0);
    if (file >= 0) {
        (void)close(file);
        return 0;
    }
    if (errno != ENOENT)
        return errno;
    if (name) /* the name of the root folder is its slash */
        snprintf(folder, sizeof folder, "%.*s", (int)(name == to ? 1 : name - to), to);
    return access(folder, W_OK | X_OK) == 0 ? 0 : errno;
}

void weir__oom_report_tell(const weir_oom_report *v, const char *to) {
    size_t length = strlen(to), written;
    int is_json = length > 5 && strcmp(to + length - 5, ".json") == 0, saved_errno = errno, problem;
    char screen[SCREEN_BYTES];

    written = weir_oom_report_text(v, is_json ? WEIR_OOM_REPORT_AS_JSON : WEIR_OOM_REPORT_AS_TEXT,
                                   screen, sizeof screen - 1);
    if (written > sizeof screen - 2) /* unreached: a report is shorter by far */
        written = sizeof screen - 2;
    if (is_json)
        screen[written++] = '\n';
    problem = strcmp(to, "stderr") == 0 ? -1 : add_to_file(to, screen, written);
    if (problem > 0) /* the log always says that the report is not in the file */
        weir__log(WEIR_LOG_WARNING, WEIR_LOG_WARNING,
                  "oom-report '%s': %s: this OOM report goes to standard error", to,
                  strerror(problem));
    if (problem != 0)
        (void)weir__write_all(STDERR_FILENO, screen, written);
    errno = saved_errno;
}
