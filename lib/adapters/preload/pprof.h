/* SPDX-License-Identifier: MIT */
/* pprof.h: a profile of call stacks in the format of pprof (profile.proto), written without its libraries.
 *
 * Must not know: what is counted, the caller.
 */
#ifndef WEIR_PPROF_H
#define WEIR_PPROF_H

#include <stddef.h>
#include <stdint.h>

enum { WEIR_PPROF_VALUES = 4 };

struct weir_pprof_sample {
    void *const *frame; /* return addresses, innermost first */
    size_t depth;
    uint64_t value[WEIR_PPROF_VALUES];
    const char *device; /* a label */
};

/* What the values are, and a remark for whoever reads the profile. */
struct weir_pprof_kind {
    const char *type[WEIR_PPROF_VALUES], *unit[WEIR_PPROF_VALUES];
    const char *shown; /* the type that is shown unless another is asked for */
    const char *remark;
};

/* Writes the samples to a file, replaced as a whole; frames of the library that has `own` are left out at the inner
 * end.  Names are those that dladdr knows; mappings are those of the process, with build ids.  Packed as
 * gzip if the name ends with .gz (stored, not made smaller).  0, or errno.  Takes host memory, and the
 * dynamic linker's lock. */
int weir__pprof_write(const char *path, const struct weir_pprof_kind *kind,
                      const struct weir_pprof_sample *samples, size_t count, const void *own);

#endif
