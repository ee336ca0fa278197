/* SPDX-License-Identifier: MIT */
/* group_cost.c: measures the time that a process group adds to a physical allocation and its release, on the device
 * model.  (The processes of a group share a memory limit.)
 *
 *     bench/group_cost [STEPS]     STEPS is 200000 by default
 *
 * A step counts some bytes in the group and subtracts them again, or it creates a physical allocation and releases
 * it.  The program prints four lines.  Each line shows the real time of one step in nanoseconds, the median of 15
 * rounds.  The driver's part of a step is simulated, so the result is the difference between the last two lines.
 * The program exits with 1 if the group adds more than 3 us to a step.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "driver/model/model.h"
#include "ipc/group_process.h"

#define STEP ((size_t)2 << 20)
#define LIMIT ((uint64_t)64 << 30)
#define MAX_NS 3000.0
enum { ROUNDS = 15, OTHERS = 7 };

static char folder[] = "/tmp/weir-group-cost-XXXXXX";

static void exit_group_cost(const char *what) {
    fprintf(stderr, "group_cost: %s\n", what);
    exit(1);
}

static int compare_costs(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;

    return (a > b) - (a < b);
}

static double measure_round(void (*step)(void *), void *context, size_t steps) {
    uint64_t began = weir__clock_ns();

    for (size_t i = 0; i < steps; i++)
        step(context);
    return (double)(weir__clock_ns() - began) / (double)steps;
}

static double median(double round[ROUNDS]) {
    qsort(round, ROUNDS, sizeof round[0], compare_costs);
    return round[ROUNDS / 2];
}

/* Returns the time of one step in nanoseconds, the median over all rounds. */
static double measure_steps_of(void (*step)(void *), void *context, size_t steps) {
    double round[ROUNDS];

    for (int r = 0; r < ROUNDS; r++)
        round[r] = measure_round(step, context, steps);
    return median(round);
}

/* Measures step(one) and step(two) alternately, and stores their times in `out'. */
static void measure_two_steps(void (*step)(void *), void *one, void *two, size_t steps,
                              double out[2]) {
    double round[2][ROUNDS];

    for (int r = 0; r < ROUNDS; r++) {
        round[0][r] = measure_round(step, one, steps);
        round[1][r] = measure_round(step, two, steps);
    }
    out[0] = median(round[0]);
    out[1] = median(round[1]);
}

static void count_and_uncount(void *group) {
    if (!weir__group_charge(group, WEIR_GROUP_RESERVE, STEP))
        exit_group_cost("a step was refused");
    weir__group_uncharge(group, WEIR_GROUP_RESERVE, STEP);
}

static void create_and_release(void *table) {
    const struct weir_driver *driver = table;
    CUmemAllocationProp kind;
    CUmemGenericAllocationHandle handle;

    memset(&kind, 0, sizeof kind);
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    if (driver->cuMemCreate(&handle, STEP, &kind, 0) != CUDA_SUCCESS ||
        driver->cuMemRelease(handle) != CUDA_SUCCESS)
        exit_group_cost("the driver refuses a step");
}

static void join_bench_group(struct weir_group *g) {
    char why[WEIR_GROUP_WHY];

    if (weir__group_join(g, "cost", "GPU-cost", LIMIT, 1, why) != 0)
        exit_group_cost(why);
}

/* Starts a process that counts bytes for the group in an endless loop.  Returns the process id. */
static pid_t start_other(void) {
    pid_t pid = fork();
    struct weir_group g;

    if (pid != 0)
        return pid;
    join_bench_group(&g);
    for (;;)
        count_and_uncount(&g);
}

static double measure_count_beside(int others, size_t steps) {
    pid_t pids[OTHERS];
    struct weir_group g;
    double each;

    for (int i = 0; i < others; i++)
        pids[i] = start_other();
    join_bench_group(&g);
    while (others > 0 && weir__group_used(&g) == 0)
        usleep(1000);
    each = measure_steps_of(count_and_uncount, &g, steps);
    for (int i = 0; i < others; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    weir__group_leave(&g);
    return each;
}

int main(int argc, char **argv) {
    size_t steps = argc > 1 ? (size_t)strtoull(argv[1], NULL, 10) : 200000;
    const struct weir_driver *inner, *table;
    struct weir_driver_failure failure;
    double alone, beside, driver[2];
    CUcontext context;
    char command[96];

    if (!mkdtemp(folder) || setenv("WEIR_RUN_FOLDER", folder, 1) != 0)
        exit_group_cost("there is no folder to work in");
    alone = measure_count_beside(0, steps);
    beside = measure_count_beside(OTHERS, steps);
    inner = weir__driver_open("model", &failure);
    if (!inner || setenv("WEIR_GROUP", "cost", 1) != 0 || setenv("WEIR_GROUP_LIMIT", "64GiB", 1))
        exit_group_cost("there is no model");
    table = weir__group_driver(inner);
    if (table->cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS)
        exit_group_cost("there is no context");
    measure_two_steps(create_and_release, (void *)(uintptr_t)inner, (void *)(uintptr_t)table,
                      steps / 10, driver);
    (void)table->cuDevicePrimaryCtxRelease(0);
    printf("%-52s %8.0f ns\n", "counted and given back, one member", alone);
    printf("%-52s %8.0f ns\n", "the same beside 7 members that do so all the time", beside);
    printf("%-52s %8.0f ns\n", "cuMemCreate and cuMemRelease, no group", driver[0]);
    printf("%-52s %8.0f ns\n", "the same in a group", driver[1]);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) != 0 || alone > MAX_NS || driver[1] - driver[0] > MAX_NS;
}
