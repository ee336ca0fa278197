/* SPDX-License-Identifier: MIT */
/* timeline.c: records growths and memory sizes over time, and writes them as a trace for Perfetto (timeline.h).
 *
 * The file has the "Trace Event Format" (Google, 2016), with events of type M (names), C (counters), X (slices, which
 * have a start and an end) and i (marks).  Times are in microseconds.  Two slices of one thread must not overlap,
 * unless one contains the other.  So each slice goes into the first free lane, which the file shows as a thread. */
#include "api/timeline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "base/output.h"
#include "base/size.h"

enum { LANES = 16, FIRST_SLICES = 256, NUMBERS = 32 };

enum what { GROWTH, GIVEN_BACK, FAILURE, ITERATION };

struct slice {
    uint64_t from_ns, ns;
    uint64_t asked, got, after;
    const char *name;
    enum what what;
};

struct point {
    uint64_t time_ns;
    uint64_t values[WEIR_TIMELINE_COUNTERS];
};

struct weir_timeline {
    size_t points;    /* the number of used entries in the array `point` */
    size_t of_last;   /* the number of records in the last entry of `point` */
    size_t per_point; /* the number of records in each other entry of `point` */
    size_t slices, room;
    struct slice *slice;
    uint64_t missing;
    int has_now;
    struct point now; /* the values of the latest record */
    struct point point[WEIR_TIMELINE_POINTS];
};

struct weir_timeline *weir__timeline_open(void) {
    struct weir_timeline *t = calloc(1, sizeof *t);

    if (t)
        t->per_point = 1;
    return t;
}

void weir__timeline_close(struct weir_timeline *t) {
    if (!t)
        return;
    free(t->slice);
    free(t);
}

uint64_t weir__timeline_missing(const struct weir_timeline *t) {
    return t->missing;
}

/* ---- counters ------------------------------------------------------------------------------------ */

static void raise_to(struct point *p, const uint64_t values[WEIR_TIMELINE_COUNTERS]) {
    for (int i = 0; i < WEIR_TIMELINE_COUNTERS; i++)
        p->values[i] = weir__size_larger(p->values[i], values[i]);
}

/* Merges each two adjacent points into one, which gets the larger values. */
static void halve(struct weir_timeline *t) {
    for (size_t i = 0; i < WEIR_TIMELINE_POINTS / 2; i++) {
        t->point[i] = t->point[2 * i];
        raise_to(&t->point[i], t->point[2 * i + 1].values);
    }
    t->points = WEIR_TIMELINE_POINTS / 2;
    t->per_point *= 2;
    t->of_last = t->per_point;
}

void weir__timeline_count(struct weir_timeline *t, uint64_t time_ns,
                          const uint64_t values[WEIR_TIMELINE_COUNTERS]) {
    if (t->has_now && memcmp(t->now.values, values, sizeof t->now.values) == 0)
        return;
    t->has_now = 1;
    t->now.time_ns = time_ns;
    memcpy(t->now.values, values, sizeof t->now.values);
    if (t->points > 0 && t->of_last < t->per_point) {
        t->of_last++;
        raise_to(&t->point[t->points - 1], values);
        return;
    }
    if (t->points == WEIR_TIMELINE_POINTS)
        halve(t);
    t->point[t->points++] = t->now;
    t->of_last = 1;
}

size_t weir__timeline_extents(const struct weir_timeline *t, struct weir_timeline_extent *out,
                              size_t most) {
    /* If the last point merges several records, it has only their largest values.  t->now has the latest values. */
    size_t points = t->points + (t->of_last > 1);
    size_t each = (points + most - 1) / most, count = 0;

    for (size_t i = 0; i < points; i++) {
        const struct point *p = i < t->points ? &t->point[i] : &t->now;

        if (i % each == 0) {
            out[count].time_ns = p->time_ns;
            memcpy(out[count].low, p->values, sizeof p->values);
            memcpy(out[count++].high, p->values, sizeof p->values);
        }
        for (int k = 0; k < WEIR_TIMELINE_COUNTERS; k++) {
            out[count - 1].low[k] = weir__size_smaller(out[count - 1].low[k], p->values[k]);
            out[count - 1].high[k] = weir__size_larger(out[count - 1].high[k], p->values[k]);
        }
    }
    return count;
}

/* ---- slices -------------------------------------------------------------------------------------- */

static void append_slice(struct weir_timeline *t, const struct slice *slice) {
    size_t room = t->room ? 2 * t->room : FIRST_SLICES;
    struct slice *more;

    if (t->slices == t->room) {
        more = t->room < WEIR_TIMELINE_SLICES ? realloc(t->slice, room * sizeof *more) : NULL;
        if (!more) {
            t->missing++;
            return;
        }
        t->slice = more;
        t->room = room;
    }
    t->slice[t->slices++] = *slice;
}

static void append_event(struct weir_timeline *t, uint64_t made_ns, const weir_event *event) {
    uint64_t end = made_ns + event->time_ns, ns = event->stall_ns < end ? event->stall_ns : end;

    append_slice(t, &(struct slice){.from_ns = end - ns,
                                    .ns = ns,
                                    .asked = event->asked,
                                    .got = event->got,
                                    .after = event->reserved_after,
                                    .name = weir_event_cause_word(event->cause),
                                    .what = event->shrink ? GIVEN_BACK : GROWTH});
}

uint64_t weir__timeline_events(struct weir_timeline *t, uint64_t made_ns, uint64_t last,
                               const weir_event *events, size_t count) {
    for (size_t i = 0; i < count; i++) {
        t->missing += events[i].sequence - last - 1;
        append_event(t, made_ns, &events[i]);
        last = events[i].sequence;
    }
    return last;
}

void weir__timeline_failure(struct weir_timeline *t, uint64_t time_ns, uint64_t bytes) {
    append_slice(
        t, &(struct slice){
               .from_ns = time_ns, .asked = bytes, .name = "failed request", .what = FAILURE});
}

void weir__timeline_iteration(struct weir_timeline *t, uint64_t from_ns, uint64_t to_ns,
                              const char *label) {
    append_slice(t, &(struct slice){.from_ns = from_ns,
                                    .ns = to_ns > from_ns ? to_ns - from_ns : 0,
                                    .name = label,
                                    .what = ITERATION});
}

/* ---- the file ------------------------------------------------------------------------------------ */

/* Begins a line of JSON with a new trace event of the type `kind`, such as "C" for counters. */
static struct weir_output open_event(FILE *file, const char *kind, long process, int thread) {
    struct weir_output out = {.file = file};

    weir__put_json(&out, ",\n{'ph':%s,'pid':%ju,'tid':%ju", kind, (uintmax_t)process,
                   (uintmax_t)thread);
    return out;
}

static void put_time(struct weir_output *out, const char *key, uint64_t ns) {
    weir__put(out, ",\"%s\":%ju.%03ju", key, ns / 1000, ns % 1000);
}

/* Returns the trace's thread id for a lane (a row of time slices).  Lane -1 contains the program's iterations. */
static int thread_of(int number, int lane) {
    return number * NUMBERS + lane + 2;
}

static void put_metadata(FILE *file, const char *kind, long process, int thread, const char *name,
                         const char *more) {
    struct weir_output out = open_event(file, "M", process, thread);
    char text[384];

    snprintf(text, sizeof text, "%.300s%s%.60s", name, *more ? " " : "", more);
    weir__put_json(&out, ",'name':%s,'args':{'name':%s}}", kind, text);
}

static void put_point(FILE *file, const struct point *p, long process, const char *name) {
    static const char *const words[WEIR_TIMELINE_COUNTERS] = {"requested", "in use", "reserved"};
    struct weir_output out = open_event(file, "C", process, 0);

    put_time(&out, "ts", p->time_ns);
    weir__put_json(&out, ",'name':%s,'args':{", name);
    for (int i = 0; i < WEIR_TIMELINE_COUNTERS; i++)
        if (p->values[i] != WEIR_TIMELINE_UNKNOWN)
            weir__put_json(&out, ",%s:%ju", words[i], p->values[i]);
    weir__put(&out, "}}");
}

static void put_slice(FILE *file, const struct slice *s, long process, int thread) {
    static const char *const kinds[] = {"growth", "given back", "failed request", "iteration"};
    static const char *const verbs[] = {"grow: ", "give back: ", "", ""};
    char name[384];
    int is_mark = s->what == FAILURE;
    struct weir_output out = open_event(file, is_mark ? "i" : "X", process, thread);

    put_time(&out, "ts", s->from_ns);
    if (is_mark)
        weir__put_json(&out, ",'s':'t'");
    else
        put_time(&out, "dur", s->ns);
    snprintf(name, sizeof name, "%s%s", verbs[s->what], s->name);
    weir__put_json(&out, ",'cat':%s,'name':%s", kinds[s->what], name);
    if (is_mark)
        weir__put_json(&out, ",'args':{'bytes':%ju}", s->asked);
    else if (s->what != ITERATION)
        weir__put_json(&out, ",'args':{'asked':%ju,'got':%ju,'reserved after':%ju}", s->asked,
                       s->got, s->after);
    weir__put(&out, "}");
}

/* Compares two slices by their start times.  A longer slice comes before a shorter one that it contains. */
static int compare_slices(const void *one, const void *other) {
    const struct slice *a = one, *b = other;

    if (a->from_ns != b->from_ns)
        return a->from_ns < b->from_ns ? -1 : 1;
    return a->ns == b->ns ? 0 : a->ns > b->ns ? -1 : 1;
}

/* Returns a free lane for a slice, and marks the lane as in use.  Lane -1 contains iterations. */
static int lane_of(const struct slice *s, uint64_t ends[LANES]) {
    int lane = 0;

    if (s->what == ITERATION)
        return -1;
    while (lane < LANES - 1 && s->from_ns < ends[lane])
        lane++;
    if (ends[lane] < s->from_ns + s->ns)
        ends[lane] = s->from_ns + s->ns;
    return lane;
}

static void put_slices(const struct weir_timeline *t, FILE *file, long process, int number,
                       const char *name) {
    struct slice *sorted = t->slices ? malloc(t->slices * sizeof *sorted) : NULL;
    const struct slice *slices = sorted ? sorted : t->slice;
    uint64_t ends[LANES] = {0};
    int lanes = -1, has_iterations = 0;

    if (sorted) {
        memcpy(sorted, t->slice, t->slices * sizeof *sorted);
        qsort(sorted, t->slices, sizeof *sorted, compare_slices);
    }
    for (size_t i = 0; i < t->slices; i++) {
        int lane = lane_of(&slices[i], ends);

        has_iterations |= lane < 0;
        lanes = lane > lanes ? lane : lanes;
        put_slice(file, &slices[i], process, thread_of(number, lane));
    }
    free(sorted);
    if (has_iterations)
        put_metadata(file, "thread_name", process, thread_of(number, -1), name, "iterations");
    for (int lane = 0; lane <= lanes; lane++)
        put_metadata(file, "thread_name", process, thread_of(number, lane), name, "growth");
}

#define FIRST                                                                                      \
    "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"                                              \
    "{\"ph\":\"M\",\"name\":\"trace\",\"pid\":0,\"tid\":0,\"args\":{\"by\":\"weir\"}}"
#define LAST "\n],\"otherData\":{\"slices missing\":\"%" PRIu64 "\"}}\n"

void weir__timeline_begin_file(FILE *file) {
    fputs(FIRST, file);
}

int weir__timeline_unfinished(char *text, size_t bytes, long process) {
    return snprintf(text, bytes,
                    FIRST ",\n{\"ph\":\"M\",\"name\":\"unfinished\",\"pid\":%ld,\"tid\":0,"
                          "\"args\":{}}" LAST,
                    process, UINT64_C(0));
}

void weir__timeline_write(const struct weir_timeline *t, FILE *file, long process,
                          const char *process_name, int number, const char *name) {
    put_metadata(file, "process_name", process, 0, process_name, "");
    for (size_t i = 0; i < t->points; i++)
        put_point(file, &t->point[i], process, name);
    /* If the last point merges several records, it has only their largest values.  t->now has the latest values. */
    if (t->of_last > 1)
        put_point(file, &t->now, process, name);
    put_slices(t, file, process, number, name);
}

void weir__timeline_end_file(FILE *file, uint64_t missing) {
    fprintf(file, LAST, missing);
}
