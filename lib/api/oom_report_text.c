/* SPDX-License-Identifier: MIT */
/* oom_report_text.c: writes an OOM report as text or JSON.  Allocates no memory, since the host may have none left. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/oom_reporting.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "base/replace.h"
#include "base/size.h"
#include "base/text.h"
#include "config/settings.h"

enum {
    SCREEN_BYTES = 4096,
    STEP = 32 << 20 /* the unit in which the driver's pools grow, in bytes */
};

/* The size of the first version of struct weir_oom_report.  Smaller sizes are invalid. */
#define SMALLEST_SIZE (offsetof(weir_oom_report, settings) + sizeof((weir_oom_report){0}.settings))

#define SHOW WEIR_SHOWN

static void put_stream(struct weir_output *out, const weir_oom_report *v, uint64_t stream) {
    if (stream && stream == v->default_stream)
        weir__put(out, "the default stream");
    else if (stream)
        weir__put(out, "stream id %ju", stream);
    else
        weir__put(out, "a stream not known");
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

static void put_limit(struct weir_output *out, const weir_oom_report *v) {
    const weir_amount share = {.value = v->weight, .kind = WEIR_AMOUNT_SHARE};
    char spelled[WEIR_SPELL_BYTES];

    if (v->limit_is_set && v->keep_free == 0) {
        weir__put(out, "the program's own limit of %s; %s is in use", SHOW(v->limit),
                  SHOW(v->in_use));
    } else if (v->keep_free > 0) {
        weir__put(out, "--keep-free keeps %s for others: this process may have %s",
                  SHOW(v->keep_free), SHOW(v->limit));
    } else if (v->is_share) {
        weir__amount_spell(&share, spelled, sizeof spelled);
        weir__put(out, "limit %s is %s now, of which %s is in use", spelled, SHOW(v->limit),
                  SHOW(v->in_use));
    } else {
        weir__put(out, "the limit of %s, of which %s is in use", SHOW(v->limit), SHOW(v->in_use));
    }
}

static void put_driver(struct weir_output *out, const weir_oom_report *v) {
    weir__put(out, "the driver answers ");
    if (v->driver_result == 2)
        weir__put(out, "CUDA_ERROR_OUT_OF_MEMORY");
    else if (v->driver_result == 0)
        weir__put(out, "an error");
    else
        weir__put(out, "CUDA error %ju", v->driver_result);
    weir__put(out, " with %s free", SHOW(v->device_free));
    if (v->no_descriptors)
        weir__put(out, ": no file descriptor is left");
}

/* Writes that a graph cannot use weir's idle memory.  Returns advice for the user. */
static const char *put_reserve(struct weir_output *out, const weir_oom_report *v) {
    weir__put(out, "%s is idle in weir, but graphs take memory from the driver", SHOW(v->idle));
    if (v->status != WEIR_E_LIMIT)
        return "Trim before the capture (weir_trim), or use a smaller --prealloc or --limit.";
    return v->limit_is_set
               ? "Trim before the capture (weir_trim), or use a larger limit (weir_set_limit)."
               : "Trim before the capture (weir_trim), or use a larger --limit.";
}

static void put_pieces(struct weir_output *out, const weir_oom_report *v) {
    if (v->largest_free_block == UINT64_MAX)
        weir__put(out, "%s is idle, in pieces or behind other streams", SHOW(v->idle));
    else if (v->largest_free_block == 0)
        weir__put(out, "%s is idle, but only as padding of live blocks", SHOW(v->idle));
    else
        weir__put(out, "%s is idle, but in pieces of %s at most", SHOW(v->idle),
                  SHOW(v->largest_free_block));
}

/* Writes one sentence about the cause of the failure.  Returns the advice to print if no setting helps. */
static const char *put_cause(struct weir_output *out, const weir_oom_report *v) {
    const char *advice = v->in_use > 0
                             ? "Request less, or free live blocks first: no setting makes room."
                             : "Request less: no setting makes room.";
    uint64_t others = v->others == UINT64_MAX ? 0 : v->others;

    switch (v->cause) {
    case WEIR_OOM_REPORT_TOO_LARGE:
        weir__put(out, "it is more than the %s that the device has", SHOW(v->device_total));
        return advice;
    case WEIR_OOM_REPORT_PENDING:
        weir__put(out, "enough is idle%s, but %s of it waits for other streams",
                  v->idle < v->asked ? " or may be added" : "", SHOW(v->pending));
        return advice;
    case WEIR_OOM_REPORT_FRAGMENTED:
        put_pieces(out, v);
        return advice;
    case WEIR_OOM_REPORT_LIMIT:
        put_limit(out, v);
        return advice;
    case WEIR_OOM_REPORT_GRAPHS:
        weir__put(out, "the device has too little left, and graphs have %s of it", SHOW(v->graphs));
        return v->graphs_idle > 0 ? "Call cuDeviceGraphMemTrim: no setting makes room." : advice;
    case WEIR_OOM_REPORT_OTHERS:
        if (v->other_allocators > others) {
            weir__put(out, "other weir pools of this process have %s of the device",
                      SHOW(v->other_allocators));
            return "Trim the other pools, or free their blocks: no setting makes room.";
        }
        weir__put(out, "the device has too little left, and others have %s of it",
                  SHOW(v->other_allocators + others));
        return "Wait for other processes, or end them (weir info --processes):\n"
               "  no setting makes room.";
    case WEIR_OOM_REPORT_IN_USE:
        weir__put(out, "only %s is idle or free",
                  SHOW(v->idle + (v->device_free == UINT64_MAX ? 0 : v->device_free)));
        if (v->in_use > 0)
            weir__put(out, "; live blocks have %s", SHOW(v->in_use));
        return advice;
    case WEIR_OOM_REPORT_RESERVE:
        return put_reserve(out, v);
    case WEIR_OOM_REPORT_DRIVER:
        put_driver(out, v);
        return v->no_descriptors
                   ? "Raise the limit of open files (ulimit -n): no setting makes room."
                   : "See what the driver lacks, such as host memory: no setting makes room.";
    case WEIR_OOM_REPORT_GROUP:
        weir__put(out, "the process group has %s of its limit of %s", SHOW(v->group_used),
                  SHOW(v->group_limit));
        return "Request less, or end members of the group: no setting makes room.";
    default:
        weir__put(out, "nothing any more: it would be served now");
        return "Try the request again.";
    }
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Writes which process does not answer weir, and which other processes use memory of the device. */
static void put_holders(struct weir_output *out, const weir_oom_report *v) {
    uint64_t rest = v->others;

    if (v->silent_pid != 0)
        weir__put(out, "              process %ju has %s of it, and %s\n", v->silent_pid,
                  SHOW(v->silent_reserved), v->silent_stopped ? "is stopped" : "does not answer");
    for (uint32_t i = 0; i < v->process_count; i++) {
        const weir_oom_report_member *p = &v->process[i];

        weir__put(out, "%s%.16s (process %ju) has %s, could release %s\n",
                  i ? "              " : "  holders     ", p->command, p->pid, SHOW(p->bytes),
                  SHOW(p->idle));
        rest = rest == UINT64_MAX ? rest : weir__size_subtract(rest, p->bytes);
    }
    if (v->processes > v->process_count)
        weir__put(out, "              and %u more processes\n", v->processes - v->process_count);
    else if (v->process_count > 0 && rest != UINT64_MAX)
        weir__put(out, "              contexts, and memory that weir does not serve: %s\n",
                  SHOW(rest));
}

static void put_members(struct weir_output *out, const weir_oom_report *v) {
    weir__put(out, "  group       '%s': limit %s, used %s, %u member%s\n", v->process_group,
              SHOW(v->group_limit), SHOW(v->group_used), v->members, weir__plural(v->members));
    for (uint32_t i = 0; i < v->member_count; i++) {
        const weir_oom_report_member *m = &v->member[i];

        weir__put(out, "              pid %ju: %s, %s idle, share %s: %.24s\n", m->pid,
                  SHOW(m->bytes), SHOW(m->idle), SHOW(m->share), m->command);
    }
    if (v->members > v->member_count)
        weir__put(out, "              and %u more\n", v->members - v->member_count);
    weir__put(out, "              (contexts are estimates of 528MiB each)\n");
}

/* Writes the first lines, with the main facts, since a log may cut the end.  Returns the text for put_advice(). */
static const char *put_head(struct weir_output *out, const weir_oom_report *v) {
    uint64_t left = weir__size_subtract(v->limit, v->reserved);
    char asked[WEIR_SPELL_BYTES];
    const char *advice;

    /* SHOW() would print "not known" for UINT64_MAX, which is a valid size of a request */
    weir__bytes_show(v->asked, asked, sizeof asked);
    weir__put(out, "weir: out of memory: could not allocate %s on %s\n", asked,
              v->device[0] ? v->device : "the device");
    weir__put(out, "  cause       %s: ", weir_oom_report_cause_word(v->cause));
    advice = put_cause(out, v);
    weir__put(out, "\n");
    if (v->cause == WEIR_OOM_REPORT_LIMIT && left > 0 && left < STEP && v->idle + left >= v->asked)
        weir__put(out, "              less is left than one growth needs\n");
    if (v->cause == WEIR_OOM_REPORT_FRAGMENTED && v->idle < v->asked)
        weir__put(out, "              with %s that may be added it would be enough in one piece\n",
                  SHOW(weir__size_smaller(left, v->device_free == UINT64_MAX ? v->device_total
                                                                             : v->device_free)));
    put_holders(out, v);
    weir__put(out, "  (reserved %s", SHOW(v->reserved));
    if (v->limit == UINT64_MAX)
        weir__put(out, ", no limit");
    else
        weir__put(out, v->keep_free > 0 ? " of %s that keep-free leaves" : " of %s limit",
                  SHOW(v->limit));
    if (v->largest_free_block != UINT64_MAX)
        weir__put(out, "%s largest free block %s", v->keep_free > 0 ? ",\n " : ",",
                  SHOW(v->largest_free_block));
    weir__put(out, ",\n");
    if (v->device_free == UINT64_MAX)
        weir__put(out, "  device has %s, free not known).\n", SHOW(v->device_total));
    else
        weir__put(out, "  %s has %s free).\n",
                  v->process_group[0] ? "process group or device" : "device", SHOW(v->device_free));
    return advice;
}

static void put_figures(struct weir_output *out, const weir_oom_report *v) {
    weir__put(out, "  reserved    in use %s, idle %s", SHOW(v->in_use), SHOW(v->idle));
    if (v->pending > 0 && v->pending != UINT64_MAX)
        weir__put(out, ";\n              of this %s still used by pending work", SHOW(v->pending));
    weir__put(out, "\n");
    for (uint32_t i = 0; i < v->pending_streams; i++) {
        weir__put(out, "              %s waits for ", SHOW(v->pending_by[i].bytes));
        put_stream(out, v, v->pending_by[i].stream);
        weir__put(out, "\n");
    }
    weir__put(out, "  device      %s; graphs %s (%s of it unused),\n", SHOW(v->device_total),
              SHOW(v->graphs), SHOW(v->graphs_idle));
    weir__put(out, "              other weir pools of this process %s, contexts and others %s\n",
              SHOW(v->other_allocators), SHOW(v->others));
}

static void put_groups(struct weir_output *out, const weir_oom_report *v) {
    for (uint32_t i = 0; i < v->group_count; i++) {
        const weir_oom_report_group *g = &v->groups[i];

        weir__put(out, "%s%s in %ju block%s of %s, ", i ? "              " : "  live        ",
                  SHOW(g->total), g->blocks, weir__plural(g->blocks), SHOW(g->bytes));
        put_stream(out, v, g->stream);
        weir__put(out, "\n");
    }
    if (v->ungrouped > 0)
        weir__put(out, "              %s not listed: out of host memory\n", SHOW(v->ungrouped));
}

/* ---- the advice ------------------------------------------------------------------------------ */

static const char *variable_of(const char *name) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        if (strcmp(weir__setting_row((enum weir_setting)i)->name, name) == 0)
            return weir__setting_row((enum weir_setting)i)->variable;
    return name;
}

static int is_own_limit(const weir_oom_report_setting *setting) {
    return setting->name == weir__oom_report_own_limit;
}

static void put_advised_settings(struct weir_output *out, const weir_oom_report *v) {
    const weir_oom_report_setting *end = v->settings, *s;
    int count = 0, any = 0;

    for (; end < v->settings + WEIR_OOM_REPORT_SETTINGS && end->name; end++)
        if (is_own_limit(end))
            weir__put(out, "  Raise options.limit to %s.\n", end->value);
        else
            count++;
    if (count == 0)
        return;
    weir__put(out, "  Try");
    for (s = v->settings; s < end; s++)
        if (!is_own_limit(s))
            /* any smaller value of keep-free helps, too */
            weir__put(out, " --%s %s%s", s->name, s->value,
                      strcmp(s->name, "keep-free") == 0 ? " or less" : "");
    weir__put(out, "%s(", count > 1 ? "\n      " : " ");
    for (s = v->settings; s < end; s++)
        if (!is_own_limit(s))
            weir__put(out, "%s%s=%s", any++ ? " " : "", variable_of(s->name), s->value);
    weir__put(out, ").\n");
}

/* Writes what the user can do: settings, or else `advice`. */
static void put_advice(struct weir_output *out, const weir_oom_report *v, const char *advice) {
    char limit[WEIR_SPELL_BYTES];

    if (v->set_limit > 0) {
        weir__bytes_spell(v->set_limit, limit, sizeof limit);
        weir__put(out, "  Call weir_set_limit with %s or more%s\n", limit,
                  v->settings[0].name ? ", and" : ".");
    }
    if (v->settings[0].name)
        put_advised_settings(out, v);
    else if (v->set_limit > 0)
        return;
    else if (v->silent_pid != 0 && v->silent_stopped)
        weir__put(out, "  Continue process %ju (kill -CONT %ju), or end it.\n", v->silent_pid,
                  v->silent_pid);
    else if (v->silent_pid != 0)
        weir__put(out, "  Wait until process %ju answers, or end it.\n", v->silent_pid);
    else
        weir__put(out, "  %s\n", advice);
}

static void put_report_text(struct weir_output *out, const weir_oom_report *v) {
    put_advice(out, v, put_head(out, v));
    weir__put(out, "  request     for ");
    put_stream(out, v, v->stream);
    weir__put(out, ": %s, waited %ju.%ju ms", weir_status_name(v->status), v->waited_ns / 1000000,
              v->waited_ns / 100000 % 10);
    if (v->largest > 0)
        weir__put(out, "\n              %s would fit now%s", SHOW(v->largest),
                  v->largest > v->largest_free_block ? ": weir can add or move memory" : "");
    weir__put(out, "\n");
    put_figures(out, v);
    if (v->process_group[0])
        put_members(out, v);
    put_groups(out, v);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Returns the number, or UINT64_MAX for 0, because the JSON writer prints UINT64_MAX as null (not known). */
static uint64_t id(uint64_t number) {
    return number ? number : UINT64_MAX;
}

static void put_processes_json(struct weir_output *out, const weir_oom_report_member *member,
                               uint32_t count, int has_share) {
    for (const weir_oom_report_member *m = member; m < member + count; m++) {
        weir__put_json(out, ",{'pid':%ju,'bytes':%ju,'idle':%ju", m->pid, m->bytes, m->idle);
        if (has_share)
            weir__put_json(out, ",'share':%ju", m->share);
        weir__put_json(out, ",'command':%s}", m->command);
    }
}

static void put_settings_json(struct weir_output *out, const weir_oom_report_setting *setting) {
    char flag[48];

    for (int i = 0; i < WEIR_OOM_REPORT_SETTINGS && setting[i].name; i++) {
        snprintf(flag, sizeof flag, "--%s", setting[i].name);
        if (is_own_limit(&setting[i]))
            weir__put_json(out, ",{'field':'options.limit'");
        else
            weir__put_json(out, ",{'flag':%s,'variable':%s", flag, variable_of(setting[i].name));
        weir__put_json(out, ",'value':%s}", setting[i].value);
    }
}

static void put_lists_json(struct weir_output *out, const weir_oom_report *v) {
    weir__put_json(out, ",'processes_all':%ju,'processes':[", (uintmax_t)v->processes);
    put_processes_json(out, v->process, v->process_count, 0);
    weir__put_json(out, "]");
    if (v->process_group[0]) {
        weir__put_json(out, ",'process_group':%s,'group_limit':%ju,'group_used':%ju",
                       v->process_group, v->group_limit, v->group_used);
        weir__put_json(out, ",'members_all':%ju,'members':[", (uintmax_t)v->members);
        put_processes_json(out, v->member, v->member_count, 1);
        weir__put_json(out, "]");
    }
    weir__put_json(out, ",'pending_by':[");
    for (uint32_t i = 0; i < v->pending_streams; i++)
        weir__put_json(out, ",{'bytes':%ju,'stream':%ju}", v->pending_by[i].bytes,
                       id(v->pending_by[i].stream));
    weir__put_json(out, "],'groups':[");
    for (const weir_oom_report_group *g = v->groups; g < v->groups + v->group_count; g++)
        weir__put_json(out, ",{'bytes':%ju,'blocks':%ju,'total':%ju,'stream':%ju}", g->bytes,
                       g->blocks, g->total, id(g->stream));
    weir__put_json(out, "],'ungrouped':%ju,'try':[", v->ungrouped);
    put_settings_json(out, v->settings);
    weir__put_json(out, "],'set_limit':%ju", id(v->set_limit));
}

static void put_report_json(struct weir_output *out, const weir_oom_report *v) {
    char text[160];
    struct weir_output sentence = {.text = text, .bytes = sizeof text};

    (void)put_cause(&sentence, v);
    weir__put_json(out, "{'cause':%s,'sentence':%s,'status':%s,'device':%s,'asked':",
                   weir_oom_report_cause_word(v->cause), text, weir_status_name(v->status),
                   v->device[0] ? v->device : NULL);
    /* writes the number itself, since weir__put_json() would print UINT64_MAX, a valid size, as null */
    weir__put(out, "%ju", v->asked);
    weir__put_json(out, ",'stream':%ju,'default_stream':%ju,'waited_ns':%ju,'largest':%ju",
                   id(v->stream), id(v->default_stream), v->waited_ns, v->largest);
    weir__put_json(out, ",'limit':%ju,'limit_is_set':%d,'share':%ju,'keep_free':%ju", v->limit,
                   v->limit_is_set != 0, v->is_share ? v->weight : UINT64_MAX, v->keep_free);
    weir__put_json(out, ",'reserved':%ju,'in_use':%ju,'idle':%ju", v->reserved, v->in_use, v->idle);
    weir__put_json(out, ",'largest_free_block':%ju,'pending':%ju", v->largest_free_block,
                   v->pending);
    weir__put_json(out, ",'device_total':%ju,'device_free':%ju,'graphs':%ju,'graphs_idle':%ju",
                   v->device_total, v->device_free, v->graphs, v->graphs_idle);
    weir__put_json(out, ",'other_allocators':%ju,'others':%ju", v->other_allocators, v->others);
    weir__put_json(out, ",'silent_pid':%ju,'silent_reserved':%ju,'silent_stopped':%d",
                   id(v->silent_pid), v->silent_reserved, v->silent_stopped != 0);
    weir__put_json(out, ",'holder_pid':%ju,'holder_reserved':%ju,'holder_reclaimable':%ju",
                   id(v->holder_pid), v->holder_reserved, v->holder_reclaimable);
    weir__put_json(out, ",'driver_result':%ju,'no_descriptors':%d", id(v->driver_result),
                   v->no_descriptors != 0);
    put_lists_json(out, v);
    weir__put_json(out, "}");
}

size_t weir_oom_report_text(const weir_oom_report *v, int format, char *text, size_t text_bytes) {
    struct weir_output out = {.text = text, .bytes = text ? text_bytes : 0};
    weir_oom_report all;

    if (!v || v->size < SMALLEST_SIZE ||
        (format != WEIR_OOM_REPORT_AS_TEXT && format != WEIR_OOM_REPORT_AS_JSON))
        return 0;
    memset(&all, 0, sizeof all); /* the caller's struct may lack newer fields, which are then 0 */
    memcpy(&all, v, v->size < sizeof all ? v->size : sizeof all);
    if (format == WEIR_OOM_REPORT_AS_JSON)
        put_report_json(&out, &all);
    else
        put_report_text(&out, &all);
    return out.length;
}

/* ---- the file ------------------------------------------------------------------------------------ */

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
    if (name) /* for "/name", the folder is "/" and not "" */
        snprintf(folder, sizeof folder, "%.*s", (int)(name == to ? 1 : name - to), to);
    return access(folder, W_OK | X_OK) == 0 ? 0 : errno;
}

void weir__oom_report_write(const weir_oom_report *v, const char *to) {
    size_t length = strlen(to), written;
    int is_json = length > 5 && strcmp(to + length - 5, ".json") == 0, saved_errno = errno, problem;
    char screen[SCREEN_BYTES];

    written = weir_oom_report_text(v, is_json ? WEIR_OOM_REPORT_AS_JSON : WEIR_OOM_REPORT_AS_TEXT,
                                   screen, sizeof screen - 1);
    if (written > sizeof screen - 2) /* unreached: a report is much shorter than the screen */
        written = sizeof screen - 2;
    if (is_json)
        screen[written++] = '\n';
    problem = strcmp(to, "stderr") == 0 ? -1 : weir__append_all(to, screen, written);
    if (problem > 0) /* logs this failure even if the log level is off */
        weir__log(WEIR_LOG_WARNING, WEIR_LOG_WARNING,
                  "oom-report '%s': %s: this OOM report goes to standard error", to,
                  strerror(problem));
    if (problem != 0)
        (void)weir__write_all(STDERR_FILENO, screen, written);
    errno = saved_errno;
}
