/* SPDX-License-Identifier: MIT */
/* mapped.c: the backing of the mapped engine (doc/design.md, "Mapped").
 *
 * Background growth maps physical allocations without the heap's lock, in one thread at a time, which holds
 * `growth_lock`.  A request that has to grow first waits for `growth_lock`, since the new memory may suffice, and since
 * two threads must not map memory at the same addresses.
 *
 * A physical allocation is exported as a file descriptor when a block in it is first shared.  If the program closes the
 * descriptor, weir exports the memory again under another name, so that a receiver cannot open a wrong file.
 */
#include "engine/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/file.h"
#include "base/hostmem.h"
#include "base/kept.h"

/* The size of the address range, in multiples of the device's memory.  Each growing block needs new addresses. */
enum { ADDRESSES = 64, LEAST_ADDRESSES = 4 };
/* Small requests get 1/ADDRESSES_SMALL of the address range, requests that name an address 1/ADDRESSES_APART. */
enum { ADDRESSES_SMALL = 16, ADDRESSES_APART = 8 };

/* ---- file descriptors for other processes ---- */

/* The exported file descriptor of a physical allocation.  The program may have closed the descriptor. */
struct weir_mapped_file {
    struct weir_kept kept;
    uint64_t name;
};

/* The number of exports so far, from which each new export gets its weir_mapped_file.name. */
static _Atomic uint64_t export_count;

/* Returns 1 if the process has no free file descriptor, else 0.  The driver's error does not show this cause. */
static int has_no_descriptor(void) {
    int file = weir__file_open("/", O_PATH, 0);
    int is_out = file < 0 && (errno == EMFILE || errno == ENFILE);

    if (file >= 0)
        close(file);
    return is_out;
}

static weir_status export_handle(struct weir_device *device, struct weir_mapped_handle *unit) {
    int file = -1;
    CUresult result = device->driver->cuMemExportToShareableHandle(
        &file, unit->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

    if (result != CUDA_SUCCESS && has_no_descriptor())
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    if (result != CUDA_SUCCESS)
        return weir__device_status(device, result);
    (void)fcntl(file, F_SETFD, FD_CLOEXEC);
    file = weir__file_above(file);
    if (file < 0)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    if (weir__kept_set(&unit->file->kept, file) != 0) {
        close(file);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    unit->file->name = atomic_fetch_add_explicit(&export_count, 1, memory_order_relaxed) + 1;
    return WEIR_OK;
}

/* Appends a physical allocation and its descriptor to `out`.  Without a free descriptor, returns E_HOST_MEMORY. */
static weir_status append_file(struct weir_device *device, struct weir_mapped_handle *unit,
                               struct weir_memory_files *out) {
    struct weir_memory_file *list =
        weir__hostmem_room(out->list, out->count, &out->capacity, sizeof *list);
    weir_status status;

    if (!list)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    out->list = list;
    if (!unit->file) {
        unit->file = malloc(sizeof *unit->file);
        if (!unit->file)
            return weir__without_driver(WEIR_E_HOST_MEMORY);
        *unit->file = (struct weir_mapped_file){.kept = WEIR_KEPT_NONE};
    }
    status = weir__kept_is(&unit->file->kept) ? WEIR_OK : export_handle(device, unit);
    if (status != WEIR_OK)
        return status;
    list[out->count++] = (struct weir_memory_file){unit->base, unit->bytes, unit->file->kept.number,
                                                   unit->file->name};
    return WEIR_OK;
}

/* ---- aliased mappings: old addresses of moved memory ---- */

static void add_alias(struct weir_heap *h, const struct weir_mapped_alias *s) {
    struct weir_mapped_range *g = h->range;
    size_t at = 0;

    h->unusable += s->last ? s->bytes : 0;
    while (at < g->alias_count && g->aliases[at].base <= s->base)
        at++;
    memmove(&g->aliases[at + 1], &g->aliases[at], (g->alias_count - at) * sizeof g->aliases[0]);
    g->alias_count++;
    g->aliases[at] = *s;
}

static struct weir_mapped_alias *alias_of(const struct weir_mapped_range *g,
                                          CUmemGenericAllocationHandle handle) {
    for (size_t i = 0; i < g->alias_count; i++)
        if (g->aliases[i].base != NOWHERE && g->aliases[i].handle == handle)
            return &g->aliases[i];
    return NULL;
}

static void close_file(struct weir_mapped_file *file) {
    if (file)
        weir__kept_close(&file->kept);
    free(file);
}

static CUresult release_handle(const struct weir_heap *h, CUmemGenericAllocationHandle handle,
                               struct weir_mapped_file *file) {
    close_file(file);
    return h->e.device->driver->cuMemRelease(handle);
}

/* Releases a physical allocation, at once or after its last unmapping.  Needs room for one more entry in g->aliases. */
static void release_memory(struct weir_heap *h, struct weir_mapped_handle unit) {
    struct weir_mapped_alias *s = alias_of(h->range, unit.handle);

    if (s) {
        s->last = 1;
        s->file = unit.file;
        h->unusable += unit.bytes;
    } else if (release_handle(h, unit.handle, unit.file) != CUDA_SUCCESS) {
        add_alias(h, &(struct weir_mapped_alias){
                         .base = NOWHERE, .bytes = unit.bytes, .handle = unit.handle, .last = 1});
    }
}

/* Returns 1 if all work on the addresses of the aliased mapping is known to have completed, else 0. */
static int is_alias_completed(const struct weir_heap *h, const struct weir_mapped_alias *s) {
    for (size_t i = s->tags; i-- > 0;)
        if (!weir__order_is_observed(&h->order, s->tag[i].stream, s->tag[i].sequence))
            return 0;
    return 1;
}

/* Unmaps old addresses of moved memory if all work there has completed.  Releases memory that has no mapping left. */
static void unmap_alias(struct weir_heap *h, struct weir_mapped_alias *s) {
    const struct weir_driver *driver = h->e.device->driver;
    struct weir_mapped_alias *other;

    if (s->base != NOWHERE) {
        if (!is_alias_completed(h, s) || driver->cuMemUnmap(s->base, s->bytes) != CUDA_SUCCESS)
            return;
        s->base = NOWHERE;
        other = s->last ? alias_of(h->range, s->handle) : NULL;
        if (other) {
            other->last = 1;
            other->file = s->file;
            s->last = 0;
        }
    }
    if (s->last && release_handle(h, s->handle, s->file) == CUDA_SUCCESS) {
        h->unusable -= s->bytes;
        s->last = 0;
    }
    s->file = NULL;
}

/* Unmaps all old addresses that no stream work uses any more.  Counts and logs released memory if `notes` is set. */
static void unmap_completed_aliases(struct weir_heap *h, int notes) {
    const struct weir_driver *driver = h->e.device->driver;
    struct weir_mapped_range *g = h->range;
    uint64_t started = driver->ticks(), before = h->unusable;
    struct weir_driver_scope scope;
    size_t kept = 0;

    if (g->alias_count == 0 ||
        weir__driver_enter(driver, h->e.device->context, &scope) != CUDA_SUCCESS)
        return;
    for (size_t i = 0; i < g->alias_count; i++)
        unmap_alias(h, &g->aliases[i]);
    for (size_t i = 0; i < g->alias_count; i++)
        if (g->aliases[i].base != NOWHERE || g->aliases[i].last)
            g->aliases[kept++] = g->aliases[i];
    g->alias_count = kept;
    weir__driver_leave(driver, &scope);
    if (notes && h->unusable < before)
        weir__engine_record(&h->e, WEIR_EVENT_RECOVERY, 1, before, before - h->unusable,
                            weir__device_elapsed_ns(h->e.device, started), weir__heap_reserve(h));
}

/* ---- physical allocations ---- */

/* Makes room in g->handles and g->aliases for new entries, and one for background growth.  Returns 0 on failure. */
static int reserve_entries(struct weir_mapped_range *g, size_t handles, size_t aliases) {
    struct weir_mapped_handle *more = weir__hostmem_room(g->handles, g->handle_count + handles,
                                                         &g->handle_capacity, sizeof *more);
    struct weir_mapped_alias *more_aliases;

    if (!more)
        return 0;
    g->handles = more;
    more_aliases = weir__hostmem_room(g->aliases, g->alias_count + aliases, &g->alias_capacity,
                                      sizeof *more_aliases);
    if (!more_aliases)
        return 0;
    g->aliases = more_aliases;
    return 1;
}

/* Maps a physical allocation at m->to.base for all devices of g->access, and creates the allocation if necessary. */
static weir_status map_memory(const struct weir_heap *h, struct weir_mapped_move *m) {
    const struct weir_driver *driver = h->e.device->driver;
    const struct weir_mapped_range *g = h->range;
    CUresult result = CUDA_SUCCESS;

    if (!m->is_created)
        result = driver->cuMemCreate(&m->to.handle, m->to.bytes, &g->kind, 0);
    if (result != CUDA_SUCCESS)
        return weir__device_status(h->e.device, result);
    m->is_created = 1;
    result = driver->cuMemMap(m->to.base, m->to.bytes, 0, m->to.handle, 0);
    if (result == CUDA_SUCCESS) {
        m->is_mapped = 1;
        result = driver->cuMemSetAccess(m->to.base, m->to.bytes, g->access.list, g->access.count);
    }
    return weir__device_status(h->e.device, result);
}

/* Adds mapped memory to the free chunks of the stream `id`, or of all streams if `id` is WEIR_ENGINE_OBSERVED. */
static weir_status place_handle(struct weir_heap *h, const struct weir_mapped_handle *unit,
                                size_t at, uint64_t id) {
    const struct weir_mapped_handle *below = at > 0 ? &h->range->handles[at - 1] : NULL;
    struct weir_order_stream *on =
        id == WEIR_ENGINE_OBSERVED ? NULL : weir__order_stream(&h->order, id);
    struct weir_placement *p = weir__heap_placement(h, unit->base);
    uint64_t begin = 0, sequence = 0;
    size_t bytes;
    int placed;

    /* unreached: the request has already created the stream's record */
    if (id != WEIR_ENGINE_OBSERVED && !on)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    if (on) {
        weir__order_allocated(on, unit->bytes);
        sequence = weir__order_freed(&h->order, on, unit->bytes);
    }
    (void)weir__placement_region_above(p, unit->base, &begin, &bytes);
    if (below)
        begin = weir__size_larger(begin, below->base + below->bytes);
    placed =
        weir__placement_fill(p, begin, unit->base, unit->bytes, on ? &on->placed : NULL, sequence);
    if (placed == WEIR_PLACEMENT_OK)
        weir__heap_set_total(h, h->total + unit->bytes);
    return weir__heap_status(placed);
}

/* Adds memory to the heap if `status` is OK, else unmaps the memory.  The caller has called reserve_entries(). */
static weir_status insert_handle(struct weir_heap *h, weir_status status,
                                 struct weir_mapped_move *m, uint64_t id) {
    struct weir_mapped_range *g = h->range;
    size_t at = handle_above(g, m->to.base);

    if (status == WEIR_OK)
        status = place_handle(h, &m->to, at, id);
    if (status == WEIR_OK) {
        memmove(&g->handles[at + 1], &g->handles[at],
                (g->handle_count - at) * sizeof g->handles[0]);
        g->handles[at] = m->to;
        g->handle_count++;
        m->is_created = 0;
    } else if (m->is_mapped &&
               h->e.device->driver->cuMemUnmap(m->to.base, m->to.bytes) != CUDA_SUCCESS) {
        add_alias(h, &(struct weir_mapped_alias){.base = m->to.base,
                                                 .bytes = m->to.bytes,
                                                 .handle = m->to.handle,
                                                 .last = 1,
                                                 .file = m->to.file});
        m->is_created = 0;
    }
    m->is_mapped = 0;
    return status;
}

/* Removes the idle physical allocation at `base` from the heap, and makes `stream` wait for other streams' work there.
 * The old addresses stay mapped until all work on them has completed.  The caller has called reserve_entries(). */
static weir_status detach_handle(struct weir_heap *h, weir_stream stream, uint64_t base,
                                 struct weir_mapped_handle *unit) {
    struct weir_mapped_range *g = h->range;
    size_t at = handle_above(g, base), piece = g->handles[at].piece;
    struct weir_mapped_alias old = {
        .base = base, .bytes = g->handles[at].bytes, .handle = g->handles[at].handle};
    CUresult result = CUDA_SUCCESS;
    weir_status status;

    for (size_t i = piece; i < g->piece_count && g->pieces[i].base < base + old.bytes; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];

        if (p->state == BEHIND && result == CUDA_SUCCESS)
            result = weir__order_wait(&h->order, stream, p->tag.stream, p->tag.sequence);
        if (p->state != CLEAN)
            old.tag[old.tags++] = p->tag;
    }
    if (result != CUDA_SUCCESS)
        return weir__device_status(h->e.device, result);
    status = weir__heap_status(weir__placement_unmap(weir__heap_placement(h, base),
                                                     g->pieces[piece].base, base, old.bytes));
    if (status != WEIR_OK)
        return status;
    weir__heap_set_total(h, h->total - old.bytes);
    *unit = g->handles[at];
    g->handle_count--;
    memmove(&g->handles[at], &g->handles[at + 1], (g->handle_count - at) * sizeof g->handles[0]);
    if (old.tags == 0)
        result = h->e.device->driver->cuMemUnmap(base, old.bytes);
    old.last = result != CUDA_SUCCESS;
    old.file = old.last ? unit->file : NULL;
    if (old.tags > 0 || old.last)
        add_alias(h, &old);
    return weir__device_status(h->e.device, result);
}

/* ---- carrying out the plan for a request ---- */

/* Creates all new physical allocations of the plan before idle memory moves, since the device may lack memory. */
static weir_status create_planned(struct weir_heap *h, struct weir_request *r) {
    const struct weir_driver *driver = h->e.device->driver;
    struct weir_mapped_range *g = h->range;
    CUresult result = CUDA_SUCCESS;
    uint64_t least = 0;

    for (size_t i = 0; i < g->move_count; i++)
        if (g->moves[i].from == NOWHERE)
            least += g->moves[i].least;
    if (least >= WEIR_ENGINE_LARGE && weir__engine_predicts_failure(&h->e, r, least, 0))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < g->move_count && result == CUDA_SUCCESS; i++) {
        struct weir_mapped_move *m = &g->moves[i];

        if (m->from != NOWHERE)
            continue;
        result = driver->cuMemCreate(&m->to.handle, m->to.bytes, &g->kind, 0);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && m->to.bytes > m->least) {
            m->to.bytes = m->least;
            result = driver->cuMemCreate(&m->to.handle, m->to.bytes, &g->kind, 0);
        }
        m->is_created = result == CUDA_SUCCESS;
    }
    return weir__device_status(h->e.device, result);
}

/* Detaches idle memory that will move, the highest first, since g->pieces stays valid only below detached memory. */
static weir_status detach_planned(struct weir_heap *h, struct weir_request *r) {
    struct weir_mapped_range *g = h->range;
    weir_status status = WEIR_OK;
    uint64_t last = UINT64_MAX;

    while (status == WEIR_OK) {
        struct weir_mapped_move *next = NULL;
        uint64_t to;

        for (size_t i = 0; i < g->move_count; i++)
            if (g->moves[i].from != NOWHERE && g->moves[i].from < last &&
                (!next || g->moves[i].from > next->from))
                next = &g->moves[i];
        if (!next)
            break;
        last = next->from;
        to = next->to.base;
        status = detach_handle(h, r->stream, next->from, &next->to);
        next->is_created = status == WEIR_OK;
        next->to.base = to;
    }
    return status;
}

/* Carries out the plan in g->moves.  `state` is its window's `state`.  The caller has entered the device's context. */
static weir_status execute_plan(struct weir_heap *h, struct weir_request *r, int state) {
    struct weir_mapped_range *g = h->range;
    uint64_t started = h->e.device->driver->ticks(), before = weir__heap_reserve(h), after;
    uint64_t id = state == OWN ? r->id : WEIR_ENGINE_OBSERVED;
    weir_status status;
    int pending = 0;

    /* Each step adds at most one entry to g->handles and two to g->aliases, even if the step fails. */
    if (!reserve_entries(g, g->move_count, 2 * g->move_count))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    status = create_planned(h, r);
    if (status == WEIR_OK)
        status = detach_planned(h, r);
    for (size_t i = 0; i < g->move_count; i++) {
        struct weir_mapped_move *m = &g->moves[i];

        pending |= m->to.state != CLEAN;
        if (status == WEIR_OK)
            status = insert_handle(h, map_memory(h, m), m, m->to.state == CLEAN ? id : r->id);
    }
    /* Releases physical allocations that a failed step has left without a mapping. */
    for (size_t i = 0; i < g->move_count; i++)
        if (g->moves[i].is_created)
            release_memory(h, g->moves[i].to);
    if (pending) /* weir might record no later event after the frees in this memory */
        weir__order_cover(&h->order, weir__order_stream(&h->order, r->id), r->stream);
    after = weir__heap_reserve(h);
    if (after > before) {
        r->grew = 1;
        weir__heap_update_peak(h);
        weir__engine_record(&h->e, WEIR_EVENT_REQUEST, 0, r->bytes, after - before,
                            weir__device_elapsed_ns(h->e.device, started), after);
        /* Reserved memory has fallen, since weir released idle memory that it had unmapped but could not map again. */
    } else if (after < before) {
        weir__engine_record(&h->e, WEIR_EVENT_RECOVERY, 1, 0, before - after,
                            weir__device_elapsed_ns(h->e.device, started), after);
    }
    return status;
}

/* ---- requests that name an address ---- */

/* Returns the middle of the largest unmapped range, where the block can grow; NOWHERE if no range is large enough. */
static uint64_t find_extendable(const struct weir_heap *h, size_t bytes) {
    const struct weir_mapped_range *g = h->range;
    uint64_t at = NOWHERE;
    size_t most = 2 * bytes;

    for (size_t i = g->first[WEIR_HEAP_AT_ADDRESS]; i < g->piece_count; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];

        if (p->state != UNMAPPED || p->bytes <= most)
            continue;
        most = p->bytes;
        at = p->base;
        if (at != h->starts[WEIR_HEAP_AT_ADDRESS])
            at += weir__size_round_down(p->bytes / 2, PAGE);
    }
    return at;
}

/* Returns 1 if the window has only unmapped pieces and memory that is free for all streams, else 0. */
static int is_window_free(const struct weir_mapped_range *g, const struct weir_mapped_window *w) {
    uint64_t at = w->base;

    for (size_t i = g->first[WEIR_HEAP_AT_ADDRESS]; i < g->piece_count && at < w->end; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];

        if (p->base + p->bytes <= at)
            continue;
        if (p->base > at || (p->state != UNMAPPED && p->state != CLEAN))
            return 0;
        at = p->base + p->bytes;
    }
    return at >= w->end;
}

/* Sets *w to the addresses that the request names.  Sets w->missing to SIZE_MAX if these addresses are in use. */
static void find_addressed_window(const struct weir_heap *h, const struct weir_request *r,
                                  struct weir_mapped_window *w) {
    *w = (struct weir_mapped_window){.state = CLEAN};
    w->base = r->at == WEIR_ENGINE_FAR ? find_extendable(h, r->bytes) : r->at;
    w->end = w->base + r->bytes;
    if (w->base == NOWHERE || !is_window_free(h->range, w))
        w->missing = SIZE_MAX;
}

/* ---- requests that found no free memory for their stream ---- */

/* Maps the memory that is missing in the window.  If the request names an address, or its stream has no id, does not
 * move idle memory that pending work may use. */
static weir_status fill_window(struct weir_heap *h, struct weir_request *r, int kind,
                               const struct weir_mapped_window *w, int method) {
    int least = r->id != 0 && kind != WEIR_HEAP_AT_ADDRESS ? BEHIND : CLEAN;
    size_t planned;

    weir__mapped_find_spares(h->range, w, method == GROWN ? UNMAPPED : least);
    if (!weir__mapped_plan(h, kind, w, method, &planned))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    if (planned > weir__heap_room(h))
        return weir__heap_full_status(h);
    /* Makes weir record events soon.  Only after an event can freed memory move to an address that a request names. */
    if (kind == WEIR_HEAP_AT_ADDRESS && planned > 0)
        weir__heap_count_lack(h);
    return WEIR_STATUS_IN_SCOPE(h->e.device, execute_plan(h, r, w->state));
}

/* Adds 1/TIME_PART of the time since the last call to g->budget.  Called before a request maps or moves memory. */
static void raise_budget(struct weir_heap *h) {
    struct weir_mapped_range *g = h->range;

    g->budget += (int64_t)weir__device_elapsed_ns(h->e.device, g->earned) / TIME_PART;
    if (g->budget > BUDGET_MOST_NS)
        g->budget = BUDGET_MOST_NS;
    g->earned = h->e.device->driver->ticks();
}

/* Subtracts the time since raise_budget() from the budget, and adds EARNED_NS for each GiB in `grown`. */
static void charge_budget(struct weir_heap *h, size_t grown) {
    struct weir_mapped_range *g = h->range;
    int64_t earned = (int64_t)(grown / MIB) * EARNED_NS / 1024;

    g->budget -= (int64_t)weir__device_elapsed_ns(h->e.device, g->earned);
    if (g->budget < CREDIT_NS)
        g->budget = g->budget + earned < CREDIT_NS ? g->budget + earned : CREDIT_NS;
}

static WEIR_ASSERT_ONLY int are_handles_valid(const struct weir_heap *h) {
    uint64_t at = h->starts[0], total = 0;

    for (size_t i = 0; i < h->range->handle_count; i++) {
        const struct weir_mapped_handle *handle = &h->range->handles[i];

        if (handle->base < at || handle->bytes == 0 || (handle->base | handle->bytes) % PAGE != 0)
            return 0;
        at = handle->base + handle->bytes;
        total += handle->bytes;
    }
    return at <= h->starts[WEIR_HEAP_KINDS] && total == h->total;
}

/* Maps memory for a request in the part `kind` of the address range, and sets *w to the request's addresses. */
static weir_status make_room_for_kind(struct weir_heap *h, struct weir_request *r, int kind,
                                      size_t bytes, struct weir_mapped_window *w) {
    int last = kind == WEIR_HEAP_AT_ADDRESS ? MOVED : SQUEEZED, method;
    uint64_t peak = h->reserved_peak;
    weir_status status;

    raise_budget(h);
    weir__order_query_idle(&h->order, r->id, r->stream);
    unmap_completed_aliases(h, 1);
    method = weir__mapped_has_budget(h) ? MOVED : GROWN;
    do {
        if (!weir__mapped_survey(h, r->id))
            return weir__without_driver(WEIR_E_HOST_MEMORY);
        if (kind == WEIR_HEAP_AT_ADDRESS)
            find_addressed_window(h, r, w);
        else
            weir__mapped_find_place(h, kind, bytes, method, w);
        status = w->missing == SIZE_MAX ? weir__without_driver(WEIR_E_NO_MEMORY)
                                        : fill_window(h, r, kind, w, method);
    } while (weir__is_failure(status) && method++ < last);
    charge_budget(h, (size_t)(h->reserved_peak - peak));
    WEIR_ASSERT(are_handles_valid(h));
    return status;
}

static weir_status mapped_make_room(struct weir_heap *h, struct weir_request *r) {
    size_t bytes = weir__size_round_down(r->bytes + GRANULARITY - 1, GRANULARITY);
    struct weir_mapped_window w;
    weir_status status;

    h->range->knows_free = 0;
    status = make_room_for_kind(h, r, r->kind, bytes, &w);
    if (weir__is_failure(status) && r->kind == WEIR_HEAP_SMALL && bytes > SMALL) {
        r->kind = WEIR_HEAP_COMMON;
        status = make_room_for_kind(h, r, r->kind, bytes, &w);
    }
    return status;
}

/* ---- background growth, before requests need memory ---- */

/* Background growth maps 1/PREALLOC_SMALL of its bytes for small requests. */
enum { PREALLOC_SMALL = 16 };
#define PREALLOC_SMALL_MOST (16 * MIB)

/* Takes `growth_lock`.  Releases the heap's lock for a while, since `growth_lock` must be taken first. */
static void lock_growth(struct weir_heap *h) {
    struct weir_mapped_range *g = h->range;

    weir__lock_give(&h->lock);
    pthread_mutex_lock(&g->growth_lock);
    weir__lock_take(&h->lock);
}

int weir__mapped_await(struct weir_heap *h) {
    if (h->range->bytes_being_mapped == 0)
        return 0;
    lock_growth(h);
    pthread_mutex_unlock(&h->range->growth_lock);
    return 1;
}

/* Finds the unmapped addresses at the end of the address range's part `kind`.  Returns 1 on success, else 0. */
static int find_end(const struct weir_heap *h, int kind, uint64_t *at, size_t *bytes) {
    const struct weir_mapped_range *g = h->range;
    uint64_t end;

    if (!weir__placement_last_unmapped(h->placement[kind], at, bytes))
        return 0;
    end = *at + *bytes;
    for (size_t i = 0; i < g->alias_count; i++)
        if (g->aliases[i].base >= *at && g->aliases[i].base < end)
            *at = g->aliases[i].base + g->aliases[i].bytes;
    *bytes = (size_t)(end - *at);
    return *bytes > 0;
}

/* Returns the free bytes at addresses for small requests, in whole pages, also those that stream work may still use. */
static size_t idle_small(const struct weir_mapped_range *g) {
    size_t bytes = 0;

    for (size_t i = g->first[WEIR_HEAP_SMALL]; i < g->first[WEIR_HEAP_AT_ADDRESS]; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];

        bytes += p->state == UNMAPPED || p->state == ALIAS || p->bytes < SMALL ? 0 : p->bytes;
    }
    return weir__size_round_down(bytes, PAGE);
}

/* Maps a new physical allocation at the unmapped address `at`, without the heap's lock.  Sets *added to the growth. */
static weir_status map_without_lock(struct weir_heap *h, uint64_t at, size_t bytes, size_t *added) {
    struct weir_mapped_range *g = h->range;
    struct weir_mapped_move m = {.to = {.base = at, .bytes = bytes}};
    weir_status status;
    uint64_t before, peak = h->reserved_peak;

    if (!reserve_entries(g, 1, 1))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    g->bytes_being_mapped = bytes;
    h->unusable += bytes;
    weir__heap_update_peak(h);
    weir__lock_give(&h->lock);
    status = map_memory(h, &m);
    weir__lock_take(&h->lock);
    g->bytes_being_mapped = 0;
    h->unusable -= bytes;
    before = weir__heap_reserve(h);
    status = insert_handle(h, status, &m, WEIR_ENGINE_OBSERVED);
    if (m.is_created)
        release_memory(h, m.to);
    /* The peak must not include memory that could not be mapped.  No other thread has raised the peak meanwhile. */
    if (status != WEIR_OK) {
        h->reserved_peak = peak;
        weir__heap_update_peak(h);
    }
    /* If the mapping failed and the driver also failed to release the new memory, *added includes this memory. */
    *added = (size_t)(weir__heap_reserve(h) - before);
    return status;
}

/* Maps new memory at the end of the part `kind`, by up to `most` bytes at a time.  Adds the growth to *got. */
static weir_status grow_kind(struct weir_heap *h, int kind, size_t bytes, size_t most,
                             size_t *got) {
    weir_status status = WEIR_OK;

    while (status == WEIR_OK) {
        size_t added = 0, room, step;
        uint64_t at;

        /* Another thread may have lowered the limit since the last iteration. */
        bytes = weir__size_smaller(bytes, weir__size_round_down(weir__heap_room(h), PAGE));
        if (bytes == 0)
            break;
        if (!find_end(h, kind, &at, &room))
            return weir__without_driver(WEIR_E_NO_MEMORY);
        step = weir__size_smaller(weir__size_smaller(bytes, room), most);
        status = map_without_lock(h, at, step, &added);
        *got += added;
        bytes -= weir__size_smaller(added, bytes);
        if (status == WEIR_E_NO_MEMORY && step > PAGE) {
            most = weir__size_round_down(step / 2, PAGE);
            status = WEIR_OK;
        }
    }
    return status;
}

static weir_status mapped_grow(struct weir_heap *h, uint64_t reserve, uint64_t goal, int cause,
                               size_t *got) {
    struct weir_driver_scope scope;
    weir_status status;
    size_t lacks, bytes, small, most, room;
    uint64_t at;

    lock_growth(h);
    unmap_completed_aliases(h, 1);
    most = fine_bytes(weir__size_larger(reserve, goal), FINE_LEAST, FINE_MOST);
    most *= cause == WEIR_EVENT_PREALLOC ? 1 : COARSE;
    lacks = (size_t)weir__size_subtract(reserve, weir__heap_reserve(h));
    bytes = weir__size_round_down(weir__size_smaller(lacks, weir__heap_room(h)), PAGE);
    if (!weir__mapped_survey(h, 0)) {
        pthread_mutex_unlock(&h->range->growth_lock);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    small = weir__size_round_down(within(PAGE, bytes / PREALLOC_SMALL, PREALLOC_SMALL_MOST), PAGE);
    small = bytes > PAGE ? (size_t)weir__size_subtract(small, idle_small(h->range)) : 0;
    small = weir__size_smaller(small, bytes);
    if (!find_end(h, WEIR_HEAP_SMALL, &at, &room)) /* all addresses for small requests are in use */
        small = 0;
    status = weir__device_status(
        h->e.device, weir__driver_enter(h->e.device->driver, h->e.device->context, &scope));
    if (status == WEIR_OK) {
        status = grow_kind(h, WEIR_HEAP_COMMON, bytes - small, most, got);
        if (status == WEIR_OK)
            status = grow_kind(h, WEIR_HEAP_SMALL, small, most, got);
        weir__driver_leave(h->e.device->driver, &scope);
    }
    pthread_mutex_unlock(&h->range->growth_lock);
    weir__heap_update_peak(h);
    if (status == WEIR_OK && *got < lacks)
        return weir__heap_full_status(h);
    return status;
}

weir_status weir__mapped_place_at(struct weir_heap *h, struct weir_request *r,
                                  struct weir_placement_stream *on,
                                  struct weir_placement_block *out) {
    struct weir_mapped_window w;
    weir_status status;
    int placed;

    (void)weir__mapped_await(h);
    (void)weir__heap_query_events(h, SIZE_MAX);
    status = make_room_for_kind(h, r, WEIR_HEAP_AT_ADDRESS, r->bytes, &w);
    if (status != WEIR_OK)
        return status;
    placed =
        weir__placement_alloc_at(h->placement[WEIR_HEAP_AT_ADDRESS], w.base, r->bytes, on, out);
    /* The result is NO_FIT if no free chunk starts at w.base, since the new memory has joined a lower free chunk. */
    return placed == WEIR_PLACEMENT_NO_FIT ? weir__without_driver(WEIR_E_NO_MEMORY)
                                           : weir__heap_status(placed);
}

/* ---- trims: releasing idle memory ---- */

/* Releases idle physical allocations down to `keep` bytes.  Sets *pending if stream work keeps memory reserved. */
static weir_status release_idle_handles(struct weir_heap *h, size_t keep, int *pending) {
    struct weir_mapped_range *g = h->range;
    struct weir_mapped_handle unit;
    struct weir_driver_scope scope;
    weir_status status;

    unmap_completed_aliases(h, 0);
    if (!weir__mapped_survey(h, 0))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    weir__mapped_find_spares(g, &(struct weir_mapped_window){0}, OTHERS);
    if (!reserve_entries(g, 0, g->handle_count))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    status = weir__device_status(
        h->e.device, weir__driver_enter(h->e.device->driver, h->e.device->context, &scope));
    if (status != WEIR_OK)
        return status;
    for (size_t i = g->handle_count; i-- > 0;) {
        const struct weir_mapped_handle *s = &g->handles[i];

        if (!s->spare)
            continue;
        if (s->state != CLEAN) {
            *pending = 1;
        } else if (status == WEIR_OK && weir__heap_reserve(h) >= keep + s->bytes) {
            status = detach_handle(h, NULL, s->base, &unit);
            if (status == WEIR_OK)
                release_memory(h, unit);
        }
    }
    for (size_t i = 0; i < g->alias_count; i++)
        *pending |= g->aliases[i].last && !is_alias_completed(h, &g->aliases[i]);
    weir__driver_leave(h->e.device->driver, &scope);
    return status;
}

/* Records the sizes of the live blocks that were allocated since the last call of this function. */
static void record_lasting(struct weir_heap *h) {
    struct weir_mapped_range *g = h->range;

    memset(g->lasting, 0, sizeof g->lasting);
    g->was_trimmed = 1;
    for (int kind = 0; kind < WEIR_HEAP_AT_ADDRESS; kind++) {
        struct weir_placement_span span = {0};

        while (weir__placement_next(h->placement[kind], &span)) {
            unsigned bit = lasting_bit(span.size);

            if (span.live && weir__placement_age(h->placement[kind], &span))
                g->lasting[bit / 64] |= UINT64_C(1) << bit % 64;
        }
    }
}

static weir_status mapped_shrink(struct weir_heap *h, const struct weir_trim *trim) {
    int pending = 0, is_above = weir__heap_is_above(h);
    uint64_t before = h->total;
    weir_status status;

    WEIR_ASSERT(are_handles_valid(h));
    status = release_idle_handles(h, trim->keep, &pending);
    if (is_above && h->total < before && trim->cause == WEIR_EVENT_DECAY)
        record_lasting(h);
    if (trim->mode != WEIR_TRIM_WAIT)
        return WEIR_OK;
    if (status != WEIR_OK || weir__heap_reserve(h) <= trim->keep || !pending)
        return status;
    status = weir__heap_wait(h, 1);
    return status == WEIR_OK ? release_idle_handles(h, trim->keep, &pending) : status;
}

/* ---- access of other devices, and exports to other processes ---- */

weir_status weir__mapped_allow(struct weir_heap *h, const CUmemAccessDesc *access) {
    const struct weir_driver *driver = h->e.device->driver;
    struct weir_mapped_range *g = h->range;
    CUmemAccessDesc before = *access;
    struct weir_driver_scope scope;
    CUresult result;
    size_t i;

    lock_growth(h);
    result = weir__driver_enter(driver, h->e.device->context, &scope);
    if (result != CUDA_SUCCESS) {
        pthread_mutex_unlock(&h->range->growth_lock);
        return weir__device_status(h->e.device, result);
    }
    before.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    for (i = 0; i < g->access.count; i++)
        if (g->access.list[i].location.id == access->location.id)
            before.flags = g->access.list[i].flags;
    for (i = 0; i < g->handle_count && result == CUDA_SUCCESS; i++)
        result = driver->cuMemSetAccess(g->handles[i].base, g->handles[i].bytes, access, 1);
    if (result == CUDA_SUCCESS)
        weir__peers_change(&g->access, access);
    else
        while (i-- > 0)
            (void)driver->cuMemSetAccess(g->handles[i].base, g->handles[i].bytes, &before, 1);
    weir__driver_leave(driver, &scope);
    pthread_mutex_unlock(&h->range->growth_lock);
    return weir__device_status(h->e.device, result);
}

/* Appends the physical allocations of [base, base + bytes) to `out`.  Returns E_NOT_OWNED if a part is not mapped. */
static weir_status list_files(struct weir_heap *h, uint64_t base, size_t bytes,
                              struct weir_memory_files *out) {
    struct weir_mapped_range *g = h->range;
    weir_status status = WEIR_OK;
    uint64_t at = base;

    for (size_t i = handle_above(g, base); at < base + bytes && status == WEIR_OK; i++) {
        struct weir_mapped_handle *unit = &g->handles[i];

        if (i == g->handle_count || unit->base > at)
            return weir__without_driver(WEIR_E_NOT_OWNED);
        status = append_file(h->e.device, unit, out);
        at = unit->base + unit->bytes;
    }
    return status;
}

weir_status weir__mapped_share(struct weir_engine *e, uint64_t base, size_t bytes,
                               struct weir_memory_files *out) {
    struct weir_heap *h = (struct weir_heap *)e;
    struct weir_mapped_range *g = h->range;
    weir_status status;
    uint64_t mark;

    if (g->kind.requestedHandleTypes == 0)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    weir__lock_take(&h->lock);
    mark = atomic_load_explicit(&export_count, memory_order_relaxed);
    status = WEIR_STATUS_IN_SCOPE(e->device, list_files(h, base, bytes, out));
    for (size_t i = 0; status != WEIR_OK && i < g->handle_count; i++)
        if (g->handles[i].file && g->handles[i].file->name > mark) /* exported by this call */
            weir__kept_close(&g->handles[i].file->kept);
    weir__lock_give(&h->lock);
    return status;
}

/* ---- queries about memory ---- */

int weir__mapped_units(const struct weir_heap *h, const struct weir_visit *visit) {
    const struct weir_mapped_range *g = h->range;
    int count = 0;

    for (size_t i = 0; i < g->handle_count; i++)
        count += weir__visit_show(visit, g->handles[i].base, g->handles[i].bytes);
    return count;
}

static size_t mapped_largest(struct weir_heap *h, const struct weir_survey *asked) {
    struct weir_mapped_range *g = h->range;
    const struct weir_mapped_piece *last;
    struct weir_mapped_window tail;
    size_t bytes;

    if (!weir__mapped_survey(h, asked->id))
        return 0;
    weir__mapped_find_tail(h, WEIR_HEAP_COMMON, 0, &tail);
    if (tail.missing > 0)
        return 0;
    last = &g->pieces[g->first[WEIR_HEAP_SMALL] - 1];
    tail.end = last->base;
    weir__mapped_find_spares(g, &tail, CLEAN);
    bytes = weir__size_round_down(weir__device_room(h->e.device, weir__heap_room(h), 0), PAGE);
    bytes += (size_t)(tail.end - tail.base);
    for (size_t i = 0; i < g->handle_count; i++)
        bytes += g->handles[i].spare ? g->handles[i].bytes : 0;
    bytes = (size_t)weir__size_smaller(bytes, last->base + last->bytes - tail.base);
    return bytes <= SMALL ? 0 : bytes;
}

/* ---- opening and closing the engine ---- */

/* Returns OK if the device can map physical allocations (VMM), else E_NOT_SUPPORTED or the driver's error. */
static weir_status check_device(struct weir_device *device) {
    CUresult result = CUDA_SUCCESS;
    int can = 0;

    if (device->driver->capabilities & WEIR_CAP_VIRTUAL)
        result = device->driver->cuDeviceGetAttribute(
            &can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device->ordinal);
    if (can || result != CUDA_SUCCESS)
        return weir__device_status(device, result);
    return weir__without_driver(WEIR_E_NOT_SUPPORTED);
}

static void mapped_close(struct weir_heap *h) {
    struct weir_mapped_range *g = h->range;
    const struct weir_driver *driver = h->e.device->driver;
    struct weir_driver_scope scope;

    /* If the device is lost, the driver calls below fail, but the process still needs its file descriptors back. */
    for (size_t i = 0; i < g->handle_count; i++)
        close_file(g->handles[i].file);
    for (size_t i = 0; i < g->alias_count; i++)
        close_file(g->aliases[i].file);
    if (weir__driver_enter(driver, h->e.device->context, &scope) == CUDA_SUCCESS) {
        for (size_t i = 0; i < g->handle_count; i++) {
            (void)driver->cuMemUnmap(g->handles[i].base, g->handles[i].bytes);
            (void)driver->cuMemRelease(g->handles[i].handle);
        }
        for (size_t i = 0; i < g->alias_count; i++) {
            if (g->aliases[i].base != NOWHERE)
                (void)driver->cuMemUnmap(g->aliases[i].base, g->aliases[i].bytes);
            if (g->aliases[i].last)
                (void)driver->cuMemRelease(g->aliases[i].handle);
        }
        (void)driver->cuMemAddressFree(h->starts[0],
                                       (size_t)(h->starts[WEIR_HEAP_KINDS] - h->starts[0]));
        weir__driver_leave(driver, &scope);
    }
    pthread_mutex_destroy(&g->growth_lock);
    free(g->handles);
    free(g->aliases);
    free(g->pieces);
    free(g->moves);
    free(g);
}

/* Reserves the address range, and sets `starts` to its parts.  The caller has entered the device's context. */
static CUresult reserve_addresses(const struct weir_device *device, uint64_t *starts) {
    const size_t total = weir__size_round_down(device->total, PAGE);
    size_t bytes = total * ADDRESSES, apart = 0;
    CUdeviceptr base = 0;
    CUresult result = device->driver->cuMemAddressReserve(&base, bytes, 0, 0, 0);

    while (result == CUDA_ERROR_OUT_OF_MEMORY && bytes > total * LEAST_ADDRESSES) {
        bytes /= 2;
        result = device->driver->cuMemAddressReserve(&base, bytes, 0, 0, 0);
    }
    if (bytes == total * ADDRESSES)
        apart = weir__size_round_down(bytes / ADDRESSES_APART, PAGE);
    starts[WEIR_HEAP_COMMON] = base;
    starts[WEIR_HEAP_KINDS] = base + bytes;
    starts[WEIR_HEAP_AT_ADDRESS] = base + bytes - apart;
    starts[WEIR_HEAP_SMALL] =
        starts[WEIR_HEAP_AT_ADDRESS] - weir__size_round_down(bytes / ADDRESSES_SMALL, PAGE);
    return result;
}

static const struct weir_backing backing = {
    .rule = {.granularity = GRANULARITY, .split_waste = GRANULARITY, .prefer_tagged = 1},
    .small = SMALL,
    .unit = PAGE,
    .step_bytes = COARSE * FINE_MOST,
    .traits = WEIR_ENGINE_RELEASES_ASYNC,
    .close = mapped_close,
    .make_room = mapped_make_room,
    .grow = mapped_grow,
    .shrink = mapped_shrink,
    .largest = mapped_largest,
};

static weir_status open_range(struct weir_heap *h) {
    struct weir_device *device = h->e.device;
    struct weir_mapped_range *g = calloc(1, sizeof *g);
    CUresult result;

    if (!g)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    result =
        weir__device_mapped_kind(device->driver, device->ordinal, device->decompresses, &g->kind);
    if (result == CUDA_SUCCESS)
        result =
            WEIR_IN_SCOPE(device->driver, device->context, reserve_addresses(device, h->starts));
    if (result != CUDA_SUCCESS) {
        free(g);
        return weir__device_status(device, result);
    }
    g->access = device->access;
    g->budget = CREDIT_NS;
    g->earned = device->driver->ticks();
    pthread_mutex_init(&g->growth_lock, NULL);
    h->range = g;
    for (int kind = 0; kind < WEIR_HEAP_KINDS; kind++) {
        size_t bytes = (size_t)(h->starts[kind + 1] - h->starts[kind]);

        if (bytes > 0 && weir__placement_add_unmapped(h->placement[kind], h->starts[kind], bytes) !=
                             WEIR_PLACEMENT_OK) {
            mapped_close(h);
            return weir__without_driver(WEIR_E_HOST_MEMORY);
        }
        weir__engine_extend_bounds(&h->e, h->starts[kind], bytes);
    }
    return WEIR_OK;
}

weir_status weir__mapped_open(const struct weir_engine *setup, struct weir_engine **out) {
    weir_status status = check_device(setup->device);
    struct weir_heap *h;

    if (status == WEIR_OK)
        status = weir__heap_open(setup, &backing, &h);
    if (status != WEIR_OK)
        return status;
    status = open_range(h);
    if (status != WEIR_OK) {
        weir__heap_drop(h);
        return status;
    }
    *out = &h->e;
    return WEIR_OK;
}
