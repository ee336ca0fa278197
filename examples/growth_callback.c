/* SPDX-License-Identifier: MIT */
/* growth_callback.c: a program with its own growth policy.
 *
 *     cc growth_callback.c $(pkg-config --cflags --libs weir) && ./a.out [DEVICE]
 *
 * The program shares its GPU with other programs.  While the device has plenty of free memory, the policy grows by
 * large steps, since each growth takes time.  Otherwise it adds only the memory that the request needs.  weir calls the
 * policy whenever reserved memory has to grow, and passes a struct weir_growth_state.  Whatever the policy returns,
 * weir adds at least the request, and stays within the limit and the device's memory.
 *
 * DEVICE is "cuda", "cuda:1", or "model" (the default), a GPU in software.
 */
#include <inttypes.h>
#include <stdio.h>

#include <weir/weir.h>

#define MIB ((size_t)1 << 20)

/* The context of the policy.  It must exist as long as the allocator, but needs no lock, because weir calls the policy
 * of an allocator in one thread at a time. */
struct sharing {
    size_t keep_free;      /* the memory of the device that is for other programs */
    size_t step;           /* the size of a large step */
    unsigned large, small; /* the number of large and small steps so far */
};

/* The policy: returns the number of bytes to add.  It must not call weir or wait. */
static size_t choose_growth(const weir_growth_state *state, void *context) {
    struct sharing *sharing = context;
    size_t room = state->limit > state->reserved ? state->limit - state->reserved : 0;

    if (state->device_free < room) /* SIZE_MAX means that the free memory is unknown */
        room = state->device_free;
    if (room < sharing->keep_free + sharing->step) {
        sharing->small++;
        return state->request;
    }
    sharing->large++;
    return sharing->step;
}

static int failed(const char *what, weir_status status) {
    fprintf(stderr, "growth_callback: %s: %s\n", what, weir_status_message(status));
    return 1;
}

/* Prints each growth of the reserved memory. */
static void print_growths(weir_allocator *weir) {
    weir_event events[64];
    size_t count = 0;

    if (weir_events(weir, 0, events, sizeof events[0], sizeof events / sizeof events[0], &count) !=
        WEIR_OK)
        return;
    for (size_t i = 0; i < count; i++)
        printf("%-8s %6" PRIu64 " MiB, reserve %6" PRIu64 " MiB\n",
               weir_event_cause_word(events[i].cause), events[i].got / MIB,
               events[i].reserved_after / MIB);
}

/* Allocates blocks until memory runs out, so that the policy makes large and small steps.  Then frees them. */
static int exhaust_memory(weir_allocator *weir) {
    enum { BLOCKS = 64 };
    weir_stream stream = NULL;
    void *block[BLOCKS];
    weir_status status = WEIR_OK;
    size_t taken = 0;

    while (taken < BLOCKS && status == WEIR_OK) {
        status = weir_alloc(weir, 48 * MIB, stream, &block[taken]);
        if (status == WEIR_OK)
            taken++;
    }
    printf("%zu blocks of 48 MiB, then: %s\n", taken, weir_status_message(status));
    while (taken > 0)
        if (weir_free(weir, block[--taken], stream) != WEIR_OK)
            return 1;
    return status != WEIR_OK && status != WEIR_E_LIMIT && status != WEIR_E_NO_MEMORY;
}

int main(int argc, char **argv) {
    struct sharing sharing = {.keep_free = 256 * MIB, .step = 256 * MIB, .large = 0, .small = 0};
    weir_options options;
    weir_allocator *weir;
    weir_status status;
    int bad;

    if (weir_options_init(&options) != WEIR_OK)
        return 1;
    options.device = argc > 1 ? argv[1] : "model";
    options.limit = (weir_amount){.value = 2048 * MIB, .kind = WEIR_AMOUNT_BYTES};
    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = choose_growth;
    options.growth_context = &sharing;
    status = weir_allocator_create(&options, &weir);
    if (status != WEIR_OK)
        return failed("cannot start", status);
    bad = exhaust_memory(weir);
    print_growths(weir);
    printf("%u large steps, %u small ones\n", sharing.large, sharing.small);
    status = weir_allocator_destroy(weir);
    return status == WEIR_OK ? bad : failed("cannot end", status);
}
