/* SPDX-License-Identifier: MIT */
/* plugins.c: error messages, and frees that cannot fail, for all adapters of this folder.
 *
 * A framework forgets a block even if the free fails.  So if a free is not possible now, for example during a stream
 * capture, weir adds the free to a list, and the next call of a framework retries the free.
 *
 * Locks: `lock` guards the list.  While a thread holds `lock`, it calls no function.
 *
 * The code in this file must not depend on a framework, or on headers of weir outside include/weir. */
#include "adapters/plugins/plugins.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- messages -------------------------------------------------------------------------------- */

enum { TEXT_BYTES = 512, LINE_BYTES = TEXT_BYTES + 96 };

#define STATUS_FITS(name, value, message) _Static_assert(-(value) < 32, "a bit for each status");
WEIR_STATUSES(STATUS_FITS)
#undef STATUS_FITS

/* Prints an error line once for each status, by one write(2), so that the lines of several threads do not mix. */
static void print_error_once(atomic_uint *printed, weir_status status, const char *text,
                             const char *more) {
    unsigned bit = 1u << (unsigned)-status;
    char line[LINE_BYTES];
    int length;

    if (atomic_fetch_or_explicit(printed, bit, memory_order_relaxed) & bit)
        return;
    length = snprintf(line, sizeof line,
                      "weir: error: %s (further errors like it are not reported%s)\n", text, more);
    /* If write() fails, there is no place to report the error. */
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        return;
}

static double mib(uint64_t bytes) {
    return (double)bytes / (1 << 20);
}

static const char *driver_result_text(char *text, size_t bytes) {
    int result = weir_last_driver_result();

    text[0] = '\0';
    if (result)
        snprintf(text, bytes, " (driver result %d)", result);
    return text;
}

/* Returns 1 and fills *r if weir's last failure in this thread belongs to this request, else 0. */
static int is_failure_of_request(weir_failure *r, size_t bytes, weir_status status) {
    r->size = sizeof *r;
    return (status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT) &&
           weir_last_failure(r) == WEIR_OK && r->asked == bytes;
}

void weir__adapter_text(char *text, size_t text_bytes, const char *who, size_t bytes,
                        weir_status status) {
    weir_failure r;
    char limit[48] = "none", device[48] = "unknown", part[32];

    if (!is_failure_of_request(&r, bytes, status)) {
        snprintf(text, text_bytes, "%s: could not allocate %zu bytes (%.1f MiB): %s%s", who, bytes,
                 mib(bytes), weir_status_message(status), driver_result_text(part, sizeof part));
        return;
    }
    if (r.limit != UINT64_MAX)
        snprintf(limit, sizeof limit, "%.1f MiB", mib(r.limit));
    if (r.device_free != UINT64_MAX)
        snprintf(device, sizeof device, "%.1f of %.1f MiB", mib(r.device_free),
                 mib(r.device_total));
    snprintf(text, text_bytes,
             "%s: could not allocate %zu bytes (%.1f MiB): %s; reserved %.1f MiB, in use %.1f MiB, "
             "limit %s, free on the device %s; at least %.1f MiB would fit now",
             who, bytes, mib(bytes), weir_status_message(status), mib(r.reserved), mib(r.in_use),
             limit, device, mib(r.largest));
}

void weir__adapter_report_failure(const char *who, size_t bytes, weir_status status) {
    static atomic_uint printed;
    char text[TEXT_BYTES];
    weir_failure r;

    weir__adapter_text(text, sizeof text, who, bytes, status);
    print_error_once(&printed, status, text,
                     is_failure_of_request(&r, bytes, status) && !getenv("WEIR_OOM_REPORT")
                         ? "; set WEIR_OOM_REPORT=stderr for the cause"
                         : "");
}

static void print_block_error(atomic_uint *printed, const char *who, const char *what,
                              const void *block, weir_status status) {
    char text[TEXT_BYTES], part[32];

    snprintf(text, sizeof text, "%s: %s of %p refused: %s%s", who, what, block,
             weir_status_message(status), driver_result_text(part, sizeof part));
    print_error_once(printed, status, text, "");
}

static void print_free_error(const char *who, const void *block, weir_status status) {
    static atomic_uint printed;

    print_block_error(&printed, who, "free", block, status);
}

void weir__adapter_lost_use(const char *who, const void *block, weir_status status) {
    static atomic_uint printed;

    print_block_error(&printed, who, "use", block, status);
}

void weir__adapter_failed(const char *who, weir_status status) {
    static atomic_uint printed;
    char text[TEXT_BYTES], part[32];

    snprintf(text, sizeof text, "%s: %s%s", who, weir_status_message(status),
             driver_result_text(part, sizeof part));
    print_error_once(&printed, status, text, "");
}

/* ---- frees ----------------------------------------------------------------------------------- */

struct delayed_free {
    struct delayed_free *next;
    const char *who;
    weir_allocator *allocator;
    void *block;
    weir_stream stream;
    enum weir__adapter_order order;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct delayed_free *list;    /* the frees that weir retries; guarded by `lock` */
static atomic_int has_delayed_frees; /* set while the list is not empty; written only with `lock` */

static weir_status try_free(const struct delayed_free *k) {
    weir_status status = k->order == WEIR__ADAPTER_ANY
                             ? weir_free_any(k->allocator, k->block)
                             : weir_free(k->allocator, k->block, k->stream);

    /* The stream has been destroyed, but its work may still run, so weir_free_any() waits for the device. */
    if (status == WEIR_E_STREAM)
        status = weir_free_any(k->allocator, k->block);
    return status;
}

static void append_delayed_free(const struct delayed_free *k) {
    struct delayed_free *copy = malloc(sizeof *copy);

    if (!copy) {
        print_free_error(k->who, k->block, WEIR_E_HOST_MEMORY);
        return;
    }
    *copy = *k;
    /* Before the free is retried, a new stream may get this stream's handle.  So the retry does not use the handle. */
    copy->order = WEIR__ADAPTER_ANY;
    pthread_mutex_lock(&lock);
    copy->next = list;
    list = copy;
    atomic_store_explicit(&has_delayed_frees, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

static weir_status free_or_delay(const struct delayed_free *k) {
    weir_status status = try_free(k);

    if (status == WEIR_E_CAPTURE || status == WEIR_E_HOST_MEMORY || status == WEIR_E_NO_MEMORY) {
        append_delayed_free(k);
        return WEIR_OK;
    }
    if (status != WEIR_OK && status != WEIR_E_FORKED && status != WEIR_E_DEVICE_LOST)
        print_free_error(k->who, k->block, status);
    return status;
}

static __attribute__((noinline)) void free_kept(void) {
    struct delayed_free *frees;

    pthread_mutex_lock(&lock);
    frees = list;
    list = NULL;
    atomic_store_explicit(&has_delayed_frees, 0, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    while (frees) {
        struct delayed_free *next = frees->next;

        (void)free_or_delay(frees);
        free(frees);
        frees = next;
    }
}

void weir__adapter_retry_frees(void) {
    if (atomic_load_explicit(&has_delayed_frees, memory_order_relaxed))
        free_kept();
}

weir_status weir__adapter_free(const char *who, weir_allocator *allocator, void *block,
                               enum weir__adapter_order order, weir_stream stream) {
    struct delayed_free k = {
        .who = who, .allocator = allocator, .block = block, .stream = stream, .order = order};

    weir__adapter_retry_frees();
    return free_or_delay(&k);
}

weir_status weir__adapter_owner(const void *block, weir_stream stream, weir_allocator **allocator) {
    weir_status status = weir_block_allocator(block, allocator);

    return status == WEIR_OK || status == WEIR_E_FORKED ? status
                                                        : weir_stream_allocator(stream, allocator);
}
