/* SPDX-License-Identifier: MIT */
/* micro_run.c: a case from its beginning to its rows: who takes part, what each has laid down before
 * it is timed, and what comes of it.
 *
 * All subjects of a case are opened and prepared before any is timed.  Where all together need more
 * memory than there is, each is measured by itself, and its row says so; what does not fit even then
 * is left out, with the reason.
 *
 * Must not know: how time is taken, what a load does.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/common/jsonfile.h"
#include "cli/micro/micro.h"
#include "config/settings.h"

uint32_t micro_sizes[MICRO_SIZES];

/* --------------------------------------------------------------- preparation ---- */

static void draw_sizes(const struct micro_case *of) {
    uint64_t random = UINT64_C(88172645463325252);
    unsigned octaves = 0;

    while (of->by_octave && of->smallest << (octaves + 1) <= of->largest)
        octaves++;
    for (size_t i = 0; i < MICRO_SIZES; i++) {
        size_t from = of->smallest, to = of->largest;

        if (octaves) {
            from <<= (micro_random(&random) >> 32) % octaves;
            to = from * 2;
        }
        micro_sizes[i] = (uint32_t)(from + (micro_random(&random) >> 32) % (to - from + 1));
    }
}

static int make_streams(struct micro_run *run) {
    const struct weir_driver *driver = run->micro->driver;
    const struct micro_subject *subject = run->instance.subject;
    CUresult result;
    weir_status status;

    run->streams = calloc(run->of->streams, sizeof *run->streams);
    if (!run->streams)
        return micro_run_fail(run, "out of host memory");
    if (subject->place == MICRO_ON_HOST) {
        run->stream_count = run->of->streams;
        return 1;
    }
    for (unsigned i = 0; i < run->of->streams; i++) {
        result = driver->cuStreamCreate(&run->streams[i], CU_STREAM_NON_BLOCKING);
        if (result != CUDA_SUCCESS)
            return micro_run_fail(run, "cuStreamCreate: %s",
                                  weir__driver_error_name(driver, result));
        status = subject->enter ? subject->enter(&run->instance, run->streams[i]) : WEIR_OK;
        if (status != WEIR_OK) {
            driver->cuStreamDestroy(run->streams[i]);
            return micro_run_fail(run, "a stream cannot be bound: %s", weir_status_message(status));
        }
        run->stream_count++;
    }
    return 1;
}

static int make_workers(struct micro_run *run) {
    unsigned threads = run->of->threads;

    run->workers = aligned_alloc(_Alignof(struct micro_worker), threads * sizeof *run->workers);
    if (!run->workers)
        return micro_run_fail(run, "out of host memory");
    memset(run->workers, 0, threads * sizeof *run->workers);
    for (unsigned i = 0; i < threads; i++) {
        struct micro_worker *worker = &run->workers[i];
        unsigned stream = run->of->load->on_two_sides ? i / 2 : i;

        worker->run = run;
        worker->instance = &run->instance;
        worker->subject = run->instance.subject;
        worker->clock = &run->clock;
        worker->stream = run->streams[stream % run->stream_count];
        worker->random = UINT64_C(88172645463325252) + i;
        worker->chunk = MICRO_GROUP;
        worker->index = i;
    }
    for (unsigned i = 0; run->of->load->on_two_sides && i + 1 < threads; i += 2) {
        run->workers[i].ring = run->workers[i + 1].ring = micro_ring_make();
        if (!run->workers[i].ring)
            return micro_run_fail(run, "out of host memory");
    }
    return 1;
}

static uint64_t laid_by(const struct micro_case *of) {
    return of->unmapped_ranges ? 2 * of->live : of->live;
}

/* Lays the blocks down in order, and frees a random half where unmapped ranges are asked for. */
static int lay(struct micro_run *run) {
    struct micro_worker *worker = &run->workers[0];
    uint64_t laid = laid_by(run->of), random = UINT64_C(2463534242);
    weir_status status;

    if (laid == 0)
        return 1;
    run->live = calloc(laid, sizeof *run->live);
    if (!run->live)
        return micro_run_fail(run, "out of host memory");
    for (; run->live_count < laid; run->live_count++) {
        status = worker->subject->alloc(worker->instance, micro_size(micro_random(&random)),
                                        worker->stream, &run->live[run->live_count]);
        if (status == WEIR_OK)
            continue;
        if (status != WEIR_E_NO_MEMORY && status != WEIR_E_LIMIT && status != WEIR_E_HOST_MEMORY)
            return micro_fail(worker, "laying blocks down", status);
        snprintf(run->skipped, sizeof run->skipped,
                 "block %" PRIu64 " of %" PRIu64 " does not fit: %s", run->live_count + 1, laid,
                 weir_status_message(status));
        return 0;
    }
    while (run->live_count > run->of->live) {
        uint64_t at = (micro_random(&random) >> 8) % run->live_count;

        if (!micro_free(worker, run->live[at], worker->stream))
            return 0;
        run->live[at] = run->live[--run->live_count];
    }
    return 1;
}

static void prepare(struct micro_run *run) {
    struct micro *micro = run->micro;

    run->instance.micro = micro;
    run->clock = micro->clock;
    if (run->of->threads > 1 || run->instance.subject->place == MICRO_ON_HOST)
        run->clock.driver = NULL;
    run->ns = calloc(micro->rounds, sizeof *run->ns);
    run->rate = calloc(micro->rounds, sizeof *run->rate);
    if (!run->ns || !run->rate) {
        micro_run_fail(run, "out of host memory");
        return;
    }
    if (!run->instance.subject->open(&run->instance, run->error, sizeof run->error)) {
        atomic_store(&run->has_failed, 1);
        return;
    }
    run->is_open = 1;
    run->is_ready = make_streams(run) && make_workers(run) && lay(run);
}

static json_t *run_json(struct micro_run *run);

/* The row is made while the subject is still open, and what fails in closing it is added. */
static void finish(struct micro_run *run) {
    struct micro *micro = run->micro;
    const struct micro_subject *subject = run->instance.subject;
    json_t *object = run_json(run);
    char why[MICRO_TEXT_BYTES] = "";

    for (uint64_t i = 0; i < run->live_count; i++)
        subject->free(&run->instance, run->live[i], run->streams[0]);
    if (subject->place == MICRO_ON_DEVICE)
        micro->driver->cuCtxSynchronize();
    for (unsigned i = 0; i < run->stream_count; i++)
        if (subject->leave)
            subject->leave(&run->instance, run->streams[i]);
    if (run->is_open && !subject->close(&run->instance, why, sizeof why) &&
        !atomic_load(&run->has_failed)) {
        micro_run_fail(run, "%s", why);
        json_object_set_new(object, "error", json_string(why));
    }
    for (unsigned i = 0; i < run->stream_count; i++)
        if (run->streams[i])
            micro->driver->cuStreamDestroy(run->streams[i]);
    for (unsigned i = 0; run->workers && i < run->of->threads; i += 2)
        free(run->workers[i].ring);
    free(run->workers);
    free(run->streams);
    free(run->live);
    free(run->ns);
    free(run->rate);
    run->is_open = 0;
    micro->has_failed |= atomic_load(&run->has_failed);
    micro->rows[micro->row_count++] = (struct micro_row){run->of, subject, object};
}

/* ------------------------------------------------------------------- results ---- */

static void set_quantiles(json_t *object, const struct weir_histogram *h) {
    json_object_set_new(object, "p50", jsonfile_integer(weir__histogram_quantile(h, 0.5)));
    json_object_set_new(object, "p99", jsonfile_integer(weir__histogram_quantile(h, 0.99)));
    json_object_set_new(object, "p999", jsonfile_integer(weir__histogram_quantile(h, 0.999)));
    json_object_set_new(object, "max", jsonfile_integer(h->max));
}

static void set_call_times(json_t *object, const char *key, const struct weir_histogram *h) {
    json_t *times;

    if (h->total == 0)
        return;
    times = json_object();
    set_quantiles(times, h);
    json_object_set_new(object, key, times);
}

static void set_parameters(json_t *object, const struct micro_case *of) {
    if (of->bytes)
        json_object_set_new(object, "bytes", jsonfile_integer(of->bytes));
    if (of->largest) {
        json_object_set_new(object, "live", jsonfile_integer(of->live));
        json_object_set_new(object, "smallest", jsonfile_integer(of->smallest));
        json_object_set_new(object, "largest", jsonfile_integer(of->largest));
    }
    json_object_set_new(object, "threads", jsonfile_integer(of->threads));
    json_object_set_new(object, "streams", jsonfile_integer(of->streams));
}

/* Calls per turn by entry, and what those of them cost that ask a question and change nothing. */
static void set_calls(json_t *object, const struct micro_run *run) {
    json_t *calls = json_object();
    double questions_ns = 0.0;

    for (int i = 0; i < WEIR_ENTRY_COUNT; i++) {
        const char *name = weir__driver_entry_name((enum weir_driver_entry)i);
        double per_turn = (double)run->calls[i] / (double)run->counted_turns;

        if (run->calls[i] == 0)
            continue;
        json_object_set_new(calls, name, jsonfile_rounded(per_turn, 10000.0));
        questions_ns += per_turn * json_real_value(json_object_get(run->micro->call_ns, name));
    }
    json_object_set_new(object, "driver_calls_per_pair", calls);
    json_object_set_new(object, "questions_ns", jsonfile_rounded(questions_ns, 10.0));
}

static void set_reserve(json_t *object, struct micro_run *run) {
    const struct micro_subject *subject = run->instance.subject;
    uint64_t bytes = 0;

    if (run->has_reserve_before)
        json_object_set_new(object, "reserved_before_bytes", jsonfile_integer(run->reserve_before));
    if (subject->reserve && subject->reserve(&run->instance, &bytes))
        json_object_set_new(object, "reserved_bytes", jsonfile_integer(bytes));
    if (subject->host_bytes && subject->host_bytes(&run->instance, &bytes))
        json_object_set_new(object, "host_bytes", jsonfile_integer(bytes));
}

static void set_figures(json_t *object, struct micro_run *run) {
    const char *key = run->of->load->key;
    json_t *time = json_object();

    json_object_set_new(time, "median",
                        jsonfile_rounded(micro_median(run->ns, run->rounds), 100.0));
    json_object_set_new(time, "min", jsonfile_rounded(run->ns[0], 100.0)); /* sorted by now */
    if (run->latency.pair.total && !run->of->load->on_two_sides && strcmp(key, "pair_ns") == 0)
        set_quantiles(time, &run->latency.pair);
    json_object_set_new(object, key, time);
    set_call_times(object, "alloc_ns", &run->latency.alloc);
    set_call_times(object, "free_ns", &run->latency.free);
    if (strcmp(key, "pair_ns") == 0)
        json_object_set_new(object, "pairs_per_s",
                            jsonfile_rounded(micro_median(run->rate, run->rounds), 1.0));
    if (run->micro->driver->charge && run->instance.subject->place == MICRO_ON_DEVICE)
        json_object_set_new(object, "driver_ns",
                            jsonfile_rounded((double)run->driver_ns / (double)run->turns, 10.0));
    if (run->counted_turns)
        set_calls(object, run);
    set_reserve(object, run);
    json_object_set_new(object, "rounds", jsonfile_integer(run->rounds));
    json_object_set_new(object, "turns", jsonfile_integer(run->turns));
    json_object_set_new(object, "interleaved", json_boolean(run->is_interleaved));
}

static json_t *run_json(struct micro_run *run) {
    json_t *object = json_object();
    const struct micro_subject *subject = run->instance.subject;
    int on_device = subject->place == MICRO_ON_DEVICE;

    json_object_set_new(object, "scenario", json_string(run->of->scenario));
    json_object_set_new(object, "subject", json_string(subject->name));
    json_object_set_new(object, "device",
                        json_string(on_device ? run->micro->device.name : "host"));
    json_object_set_new(object, "modelled", json_boolean(on_device && run->micro->driver->charge));
    set_parameters(object, run->of);
    if (run->skipped[0])
        json_object_set_new(object, "skipped", json_string(run->skipped));
    else if (atomic_load(&run->has_failed))
        json_object_set_new(object, "error", json_string(run->error));
    else
        set_figures(object, run);
    return object;
}

/* -------------------------------------------------------------------- memory ---- */

/* Of the host, 80% of what the system calls available. */
static uint64_t host_memory(void) {
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    uint64_t kib = UINT64_MAX / 1024;

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib / 5 * 4 * 1024;
}

struct needs {
    uint64_t device, host;
};

/* Of the host an allocator touches what it writes into: pages at the ends of blocks. */
static void estimate(const struct micro_run *run, struct needs *needs) {
    enum { TOUCHED = 3 * 4096 };
    const struct micro_subject *subject = run->instance.subject;
    uint64_t sum = 0, laid = laid_by(run->of), mean;

    for (size_t i = 0; i < MICRO_SIZES; i++)
        sum += micro_sizes[i];
    mean = sum / MICRO_SIZES;
    *needs = (struct needs){0, laid * 8};
    if (subject->place == MICRO_ON_DEVICE) {
        needs->device = mean * laid / 100 * subject->needs_percent;
        needs->host += laid * 128;
    } else if (subject->place == MICRO_ON_HOST) {
        needs->host += laid * (mean < TOUCHED ? mean : TOUCHED);
    }
}

/* Marks what can not be, and answers whether the rest can be all at once. */
static int fit(const struct micro *micro, struct micro_run *runs, size_t run_count) {
    struct needs there = {UINT64_MAX, host_memory()}, all = {0, 0}, one;
    char needed[32], room[32];
    size_t free_bytes, total;

    if (micro->driver->cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS)
        there.device = free_bytes;
    for (size_t i = 0; i < run_count; i++) {
        int of_device;

        if (runs[i].skipped[0])
            continue;
        estimate(&runs[i], &one);
        of_device = one.device > there.device;
        if (of_device || one.host > there.host) {
            weir__bytes_show(of_device ? one.device : one.host, needed, sizeof needed);
            weir__bytes_show(of_device ? there.device : there.host, room, sizeof room);
            snprintf(runs[i].skipped, sizeof runs[i].skipped,
                     "needs %s of %s memory, of which %s is available", needed,
                     of_device ? "device" : "host", room);
            continue;
        }
        all.device += one.device;
        all.host += one.host;
    }
    return all.device <= there.device && all.host <= there.host;
}

/* ---------------------------------------------------------------------- cases ---- */

static int serves(const struct micro_subject *subject, const struct micro_load *load) {
    return subject->place != MICRO_ON_HOST || load->on_host;
}

static void measure_together(struct micro_run *runs, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!runs[i].skipped[0])
            prepare(&runs[i]);
    micro_rounds(runs, count);
    for (size_t i = 0; i < count; i++)
        finish(&runs[i]);
}

void micro_measure(struct micro *micro, const struct micro_case *of) {
    struct micro_run *runs = calloc(micro->subject_count, sizeof *runs);
    size_t count = 0;
    int all_fit;

    if (!runs) {
        fputs("weir: out of memory\n", stderr);
        micro->has_failed = 1;
        return;
    }
    for (size_t i = 0; i < micro->subject_count; i++)
        if (serves(micro->subjects[i], of->load)) {
            runs[count].micro = micro;
            runs[count].of = of;
            snprintf(runs[count].skipped, sizeof runs[count].skipped, "%s", of->why_not);
            runs[count++].instance.subject = micro->subjects[i];
        }
    draw_sizes(of);
    all_fit = fit(micro, runs, count);
    for (size_t i = 0; i < count; i++)
        runs[i].is_interleaved = all_fit;
    if (all_fit)
        measure_together(runs, count);
    for (size_t i = 0; !all_fit && i < count; i++)
        measure_together(&runs[i], 1);
    free(runs);
}
