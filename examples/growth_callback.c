/* SPDX-License-Identifier: MIT */
/* growth_callback.c: a growth policy of the program's own.
 *
 *     cc growth_callback.c $(pkg-config --cflags --libs weir) && ./a.out [DEVICE]
 *
 * A program that shares its GPU takes memory by large steps as long as there is plenty, since a step costs
 * time, and only what it needs once others would miss it.  The policy is asked whenever the reserved memory has to
 * grow, and is told what stands in weir_growth_state; weir holds its answer between the request and what
 * the limit and the device leave.
 *
 * DEVICE is "model", a GPU in software, unless another is named: "cuda", "cuda:1".
 */
#include <inttypes.h>
#include <stdio.h>

#include <weir/weir.h>

#define MIB ((size_t)1 << 20)

/* What the policy wants to know beyond what weir tells: the context.  It lives as long as the allocator;
 * weir calls the policy under a lock, so that one allocator's context needs none of its own. */
struct manners {
    size_t keep_free;      /* bytes of the device that are for others */
    size_t step;           /* bytes to take at once as long as more than that is free */
    unsigned large, small; /* steps so far */
};

/* Bytes to add.  Calls nothing of weir's, and does not wait. */
static size_t mannerly(const weir_growth_state *state, void *context) {
    struct manners *manners = context;
    size_t room = state->limit > state->reserved ? state->limit - state->reserved : 0;

    if (state->device_free < room) /* SIZE_MAX: not known */
        room = state->device_free;
    if (room < manners->keep_free + manners->step) {
        manners->small++;
        return state->request;
    }
    manners->large++;
    return manners->step;
}

static int failed(const char *what, weir_status status) {
    fprintf(stderr, "growth_callback: %s: %s\n", what, weir_status_message(status));
    return 1;
}

/* How the reserved memory grew. */
static void tell_steps(weir_allocator *weir) {
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

/* Takes memory until there is no more, and gives it back: the policy has met both of its cases then. */
static int use_all(weir_allocator *weir) {
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
    struct manners manners = {.keep_free = 256 * MIB, .step = 256 * MIB, .large = 0, .small = 0};
    weir_options options;
    weir_allocator *weir;
    weir_status status;
    int bad;

    if (weir_options_init(&options) != WEIR_OK)
        return 1;
    options.device = argc > 1 ? argv[1] : "model";
    options.limit = (weir_amount){.value = 2048 * MIB, .kind = WEIR_AMOUNT_BYTES};
    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = mannerly;
    options.growth_context = &manners;
    status = weir_allocator_create(&options, &weir);
    if (status != WEIR_OK)
        return failed("cannot start", status);
    bad = use_all(weir);
    tell_steps(weir);
    printf("%u large steps, %u small ones\n", manners.large, manners.small);
    status = weir_allocator_destroy(weir);
    return status == WEIR_OK ? bad : failed("cannot end", status);
}
