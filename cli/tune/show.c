/* SPDX-License-Identifier: MIT */
/* show.c: see show.h. */
#include "cli/tune/show.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/replace.h"
#include "base/size.h"
#include "base/text.h"
#include "cli/replay/table.h"

static void put_row(const char *name, uint64_t reserved, uint64_t requested) {
    char bytes[24];

    weir__bytes_show(reserved, bytes, sizeof bytes);
    printf("  %-14s %11s %8.3f", name, bytes,
           requested ? (double)reserved / (double)requested : 0.0);
}

static void put_figures(const char *name, const struct measured *m, int has_marks) {
    put_row(name, m->reserved, m->requested);
    if (has_marks)
        printf(" %12.3f %12.3f %12.3f\n", m->first_ns / 1e6, m->steady_ns / 1e6, m->run_ns / 1e6);
    else
        printf(" %12s %12s %12.3f\n", "-", "-", m->run_ns / 1e6);
}

/* "-12.3%", "as before". */
static void put_gain(const char *what, double before, double now) {
    if (before > 0)
        printf("%s %+.1f%%", what, 100 * (now / before - 1) + 0.0);
    else
        printf("%s as before", what);
}

static void put_change(const struct measured *usual, const struct measured *best, int has_marks) {
    put_gain("  change: reserved", (double)usual->reserved, (double)best->reserved);
    if (has_marks) {
        put_gain(", first", usual->first_ns, best->first_ns);
        put_gain(", steady", usual->steady_ns, best->steady_ns);
    }
    put_gain(has_marks ? ", 1000 iterations" : ", time", usual->run_ns, best->run_ns);
    putchar('\n');
}

/* Where the default does not serve the traces there is nothing to compare. */
static void show_trace(const struct tuning *tuning, size_t i, int usual_serves,
                       const struct measured *usual, const struct measured *best) {
    const struct tuned_trace *trace = &tuning->traces[i];
    uint64_t all = trace->marks[PART_ALL], chosen = trace->marks[PART_CHOSEN];

    table_trace(stdout, &tuning->contest->traces[i].header);
    if (all)
        printf("  chosen on iterations 1 to %" PRIu64 "; steady is of iterations %" PRIu64
               " to %" PRIu64
               ", which had no say, and\n  reserved is the most that there was to their end\n",
               chosen, chosen + 1, all);
    else
        puts("  no marks divide this trace: the search and the figures are of all of it, and hold "
             "for\n  a program that requests just this");
    if (tuning->contest->traces[i].header.streams > 1)
        puts("  the replays have no GPU work: with several streams a program may reserve more");
    printf("  %-14s %11s %8s %12s %12s %12s\n", "", "reserved", "/ peak", "first ms", "steady ms",
           all ? "1000 it. ms" : "all ms");
    put_row("peak requested", best->requested, best->requested);
    putchar('\n');
    if (usual_serves)
        put_figures("default", usual, all > 0);
    else
        puts("  default         requests fail");
    put_figures("recommended", best, all > 0);
    if (usual_serves)
        put_change(usual, best, all > 0);
    if (all)
        puts("  1000 iterations: an estimate of a run of that length: what was replayed, and the "
             "rest at the steady time");
}

static void put_limit(FILE *file, const struct fit *fit, const char *before, const char *between) {
    char text[WEIR_SPELL_BYTES];

    weir__bytes_spell(fit->bytes, text, sizeof text);
    if (fit->bytes && !fit->is_device)
        fprintf(file, "%slimit%s%s", before, between, text);
}

void show_recommended(const struct tuning *tuning, const struct evaluation *usual,
                      const struct evaluation *best, const struct candidate *lost,
                      const struct fit *fit, char *const *command) {
    char bytes[24];

    table_head(stdout, tuning->contest);
    if (tuning->contest->modelled)
        puts("device model: no GPU was used; times are those of driver calls, to be compared with "
             "each other only");
    for (size_t i = 0; i < tuning->contest->trace_count; i++)
        show_trace(tuning, i, usual->served, &usual->measured[i], &best->measured[i]);
    weir__bytes_show(fit->bytes, bytes, sizeof bytes);
    if (fit->bytes)
        printf("\nIt fits: with these settings every request is served %s %s.",
               fit->is_device ? "on a device of" : "within", bytes);
    putchar('\n');
    if (lost) {
        fputs("On all iterations weir's defaults do as well as what the search chose, or better:",
              stdout);
        candidate_print(stdout, lost, &tuning->space);
        putchar('\n');
    } else if (candidate_is(&best->candidate, &usual->candidate)) {
        fputs("weir's defaults are best here.  ", stdout);
    }
    printf("%zu combinations of settings were tried.  Use:\n  weir run", tuning->count);
    candidate_print(stdout, &best->candidate, &tuning->space);
    put_limit(stdout, fit, " --", " ");
    fputs(" --", stdout);
    for (size_t i = 0; command && command[i]; i++)
        printf(" %s", command[i]);
    puts(command ? "" : " PROGRAM");
}

void show_missing(const struct tuning *tuning, const struct fit *fit) {
    char bytes[24], peak[24], least[24], more[24];
    uint64_t needed = fit->least + fit->taken, requested = 0;

    table_head(stdout, tuning->contest);
    weir__bytes_show(fit->bytes, bytes, sizeof bytes);
    for (size_t i = 0; i < tuning->contest->trace_count; i++)
        if (tuning->contest->traces[i].header.live_peak_bytes > requested)
            requested = tuning->contest->traces[i].header.live_peak_bytes;
    weir__bytes_show(requested, peak, sizeof peak);
    weir__bytes_show(fit->least, least, sizeof least);
    printf("\nIt does not fit %s %s: the peak requested memory is %s.\n",
           fit->is_device ? "on a device of" : "into", bytes, peak);
    if (fit->taken) {
        weir__bytes_show(fit->taken, more, sizeof more);
        printf("The context on it takes %s.\n", more);
    }
    if (!fit->least) {
        puts("No memory of this device serves it.");
        return;
    }
    weir__bytes_show(weir__size_less(needed, fit->bytes), more, sizeof more);
    printf("%s more are needed: the smallest limit that serves it, in steps of 32 MiB, is %s, "
           "with\n  weir run",
           more, least);
    candidate_print(stdout, &fit->by, &tuning->space);
    puts(" -- PROGRAM");
}

int show_write(const struct tuning *tuning, const struct candidate *candidate,
               const struct fit *fit, const char *path) {
    struct candidate_setting settings[AXES + 1];
    size_t count = candidate_settings(candidate, &tuning->space, settings), bytes;
    char *text = NULL;
    FILE *file = open_memstream(&text, &bytes);
    int error;

    if (file) {
        fprintf(file, "# weir tune, on %s\n", tuning->contest->device);
        for (size_t i = 0; i < tuning->contest->trace_count; i++)
            fprintf(file, "# %s\n", tuning->contest->traces[i].header.name);
        for (size_t i = 0; i < count; i++)
            fprintf(file, "%s=%s\n", weir__setting_row(settings[i].setting)->name,
                    settings[i].text);
        put_limit(file, fit, "", "=");
        if (fit->bytes && !fit->is_device)
            putc('\n', file);
    }
    error = file && fclose(file) == 0 ? weir__replace_file(path, 0666, 0, text, bytes) : ENOMEM;
    free(text);
    if (error)
        fprintf(stderr, "weir: cannot write %s: %s\n", path, strerror(error));
    return !error;
}
