/* SPDX-License-Identifier: MIT */
/* measure.h: what the driver of this machine takes, as a profile of the device model (lib/driver/model).
 *
 * The parent starts some processes in turn, each of which measures a part (what is dearer for the
 * first time in a process shows once in each) and sends figures back: nanoseconds by a name.  A curve's
 * have the point behind a colon, "pool_grow_ns:8".  The median over the processes goes into the profile, or a
 * line through the medians.
 *
 * Before each growth, trim and handle 1 MiB of host memory is gone through (measure_chill).  How much was chosen by
 * stalls of traces on an H200.  By profiles made right behind these the model's stalls of arenas (memory by handles)
 * were 1.3 to 2.0 times the machine's with 8 MiB, 0.9 to 1.3 with 1 MiB, 0.9 to 1.2 with nothing; by those of two
 * minutes before, when calls on handles took 1.4 times less, 1.0 to 1.6, 0.7 to 0.9, 0.7 to 0.9.  For pools it makes
 * little difference.
 *
 * Must not know: traces, configurations, the allocator.
 */
#ifndef WEIR_CLI_MEASURE_H
#define WEIR_CLI_MEASURE_H

#include <jansson.h>

#include "cli/common/flags.h"
#include "cli/common/stopwatch.h"
#include "driver/driver.h"

/* job.measure */
enum measure_part { MEASURE_POOLS = 1, MEASURE_HANDLES };

/* Measures the device that the settings name, and writes the profile; NULL: to standard output.  0, or 1
 * with a message printed. */
int measure_run(const struct weir_cli_settings *settings, const char *path);

/* The child's side: sends its figures, or why there are none.  The program's exit code. */
int measure_child(struct weir_cli_settings *settings, enum measure_part part);

/* ---- Within a child ---- */

struct measure {
    const struct weir_driver *driver;
    CUdevice device;
    CUstream stream;
    struct stopwatch watch; /* of real time; a modelled device has a clock of its own */
    uint64_t budget;        /* bytes that may be had at a time */
    char *cold;             /* for measure_chill; NULL on a modelled device */
    uint64_t begun;
    CUresult result;
    char error[160]; /* the first driver call that failed; "" */
    json_t *figures;
};

enum { MEASURE_EARLY = 8 }; /* the first growths and handles of a process, one by one */

/* Nanoseconds of single calls. */
enum { SERIES = 256 };
struct series {
    size_t count;
    double ns[SERIES];
};

/* 1, or 0 with m->error, once a driver call has answered with m->result. */
int measure_check(struct measure *m, const char *entry);
void measure_begin(struct measure *m);
double measure_end(const struct measure *m);
/* Goes through 1 MiB, about a core's own cache, as a program and the allocator do between two requests.  On a modelled
 * device nothing. */
void measure_chill(const struct measure *m);
void measure_add(struct series *series, double ns);
/* The mean without the tenth at either end. */
void measure_note(const struct measure *m, const char *name, const struct series *series);
/* As the point of a curve. */
void measure_note_at(const struct measure *m, const char *curve, uint64_t x,
                     const struct series *series);

#define MEASURE_CALL(m, entry, ...)                                                                \
    ((m)->result = (m)->driver->entry(__VA_ARGS__), measure_check(m, #entry))
/* The same, with what it took in *ns. */
#define MEASURE_TIME(m, ns, entry, ...)                                                            \
    (measure_begin(m), (m)->result = (m)->driver->entry(__VA_ARGS__), *(ns) = measure_end(m),      \
     measure_check(m, #entry))

/* Each 1, or 0 with m->error. */
int measure_pools(struct measure *m);
int measure_handles(struct measure *m);
int measure_direct(struct measure *m); /* cuMemAlloc and cuMemFree */
int measure_calls(struct measure *m);  /* what takes the same whatever it is about */

#endif
