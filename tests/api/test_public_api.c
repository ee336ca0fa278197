/* SPDX-License-Identifier: MIT */
/* test_public_api.c: weir as a program uses it: one header, one library, the environment.
 *
 * The program is plain C without a test framework or internal functions, as a reader of the manual would write it.
 * Variables set up the default allocator, and several threads share it.  The program reads figures and events, parses a
 * trace, and makes its own allocator with its own growth policy. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

static int number, failures;

static void print_result(int holds, const char *what) {
    printf("%s %d - %s\n", holds ? "ok" : "not ok", ++number, what);
    failures += !holds;
}

/* Returns the per-thread default stream, like cudaStreamPerThread. */
static weir_stream per_thread_stream(void) {
    return (weir_stream)0x2;
}

struct worker {
    pthread_t thread;
    weir_allocator *allocator;
    int refused; /* a request or a free failed */
};

static void *churn_small_blocks(void *arg) {
    struct worker *worker = arg;
    void *blocks[10];

    for (int round = 0; round < 200 && !worker->refused; round++) {
        for (size_t i = 0; i < 10; i++)
            if (weir_alloc(worker->allocator, (i + 1) * 10000, per_thread_stream(), &blocks[i]) !=
                WEIR_OK)
                worker->refused = 1;
        for (size_t i = 0; i < 10 && !worker->refused; i++)
            if (weir_free(worker->allocator, blocks[i], per_thread_stream()) != WEIR_OK)
                worker->refused = 1;
    }
    return NULL;
}

static void test_default_allocator(void) {
    weir_statistics s = {.size = sizeof s};
    weir_allocator *allocator = NULL;
    weir_event events[4];
    struct worker worker[4];
    size_t count = 0;
    int fine = 1;

    setenv("WEIR_DEVICE", "model", 1);
    setenv("WEIR_PREALLOC", "256MiB", 1);
    print_result(weir_default_allocator(&allocator) == WEIR_OK, "the default allocator is there");
    for (int i = 0; i < 4; i++) {
        worker[i].allocator = allocator;
        worker[i].refused = 0;
        fine &= pthread_create(&worker[i].thread, NULL, churn_small_blocks, &worker[i]) == 0;
    }
    for (int i = 0; i < 4; i++)
        fine &= pthread_join(worker[i].thread, NULL) == 0 && !worker[i].refused;
    print_result(fine, "four threads allocate and free");
    print_result(weir_stats(allocator, &s) == WEIR_OK && s.size == sizeof s,
                 "statistics can be read");
    print_result(s.allocs == 8000 && s.frees == 8000 && s.blocks == 0, "they counted every call");
    print_result(s.prealloc_kept == UINT64_C(256) << 20 && s.hits == s.allocs,
                 "the preallocation served everything");
    print_result(weir_events(allocator, 0, events, sizeof events[0], 4, &count) == WEIR_OK &&
                     count == 1 && strcmp(weir_event_cause_word(events[0].cause), "prealloc") == 0,
                 "its one growth step is an event");
    print_result(weir_trim(allocator, 0, NULL) == WEIR_OK, "idle memory can be given back");
}

/* Returns twice the size of the request. */
static size_t twice(const weir_growth_state *state, void *context) {
    ++*(int *)context;
    return 2 * state->request;
}

static void test_own_allocator(void) {
    weir_allocator *allocator = NULL;
    char message[200] = "";
    weir_options options;
    void *block = NULL, *other = NULL;
    int steps = 0;

    weir_options_init(&options);
    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = twice;
    options.growth_context = &steps;
    print_result(weir_options_set(&options, "limit", "1GiB", message, sizeof message) == WEIR_OK &&
                     weir_options_set(&options, "device", "model", message, sizeof message) ==
                         WEIR_OK,
                 "options can be set by name");
    print_result(weir_options_set(&options, "limit", "much", message, sizeof message) ==
                         WEIR_E_PARSE &&
                     strstr(message, "much") != NULL,
                 "a wrong value is named in the message");
    print_result(weir_allocator_create(&options, &allocator) == WEIR_OK,
                 "an allocator of one's own");
    print_result(
        weir_alloc(allocator, (size_t)64 << 20, per_thread_stream(), &block) == WEIR_OK && block &&
            weir_alloc(allocator, (size_t)64 << 20, per_thread_stream(), &other) == WEIR_OK &&
            other,
        "two blocks");
    print_result(steps == 1, "the growth policy was asked once: its step holds both");
    print_result(weir_use(allocator, block, (weir_stream)0x1) == WEIR_OK,
                 "another stream uses one");
    print_result(weir_allocator_destroy(allocator) == WEIR_E_BUSY,
                 "live blocks hold the allocator");
    print_result(weir_free(allocator, block, per_thread_stream()) == WEIR_OK &&
                     weir_free(allocator, other, per_thread_stream()) == WEIR_OK &&
                     weir_allocator_destroy(allocator) == WEIR_OK,
                 "freed, it goes");
}

static void test_failure(void) {
    weir_failure failure = {.size = sizeof failure};
    weir_allocator *allocator = NULL;
    weir_options options;
    void *block = &options;

    weir_options_init(&options);
    options.device = "model";
    options.engine = WEIR_ENGINE_BFC;
    options.limit = (weir_amount){.value = 1 << 20, .kind = WEIR_AMOUNT_BYTES};
    if (weir_allocator_create(&options, &allocator) != WEIR_OK)
        return print_result(0, "an arena");
    print_result(weir_alloc(allocator, 2 << 20, per_thread_stream(), &block) == WEIR_E_LIMIT &&
                     block == (void *)&options,
                 "a request above the limit is refused and nothing written");
    print_result(weir_last_failure(&failure) == WEIR_OK && failure.asked == 2 << 20 &&
                     failure.limit == 1 << 20,
                 "the failure has its figures");
    print_result(strcmp(weir_status_name(WEIR_E_LIMIT), "WEIR_E_LIMIT") == 0 &&
                     strlen(weir_status_message(WEIR_E_LIMIT)) > 0,
                 "its status has a name and a message");
    print_result(weir_allocator_destroy(allocator) == WEIR_OK, "the arena goes");
}

struct text {
    const char *at;
};

static ptrdiff_t read_from_text(void *context, char *buffer, size_t bytes, char *message,
                                size_t message_bytes) {
    struct text *text = context;
    size_t left = strlen(text->at);

    (void)message, (void)message_bytes;
    if (bytes > left)
        bytes = left;
    memcpy(buffer, text->at, bytes);
    text->at += bytes;
    return (ptrdiff_t)bytes;
}

static void test_trace(void) {
    struct text text = {"# weir-trace 1\n0 a 1 4096 0\n5 f 1 4096 0\n9 m end\n"};
    weir_trace_reader *reader = NULL;
    weir_trace_event event = {0};
    int events = 0;

    print_result(weir_trace_reader_create(read_from_text, &text, &reader) == WEIR_OK,
                 "a trace is opened");
    while (weir_trace_next(reader, &event) == WEIR_OK && event.operation != 0)
        events++;
    print_result(events == 3 && weir_trace_message(reader)[0] == '\0', "it has three events");
    weir_trace_reader_destroy(reader);
}

int main(void) {
    print_result(weir_version()[0] != '\0', "the library has a version");
    test_default_allocator();
    test_own_allocator();
    test_failure();
    test_trace();
    printf("1..%d\n", number);
    return failures != 0;
}
