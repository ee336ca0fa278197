/* SPDX-License-Identifier: MIT */
/* gated.c: a program that reaches tests/gate/gate_driver.c in each way, for test_gate.c: what it does is the word behind
 * its name.  It ends with 0 if every call answered what it must. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int kernel(int a, int b, int c, int d, int e, int f, int g, int h, int i, double p,
                   double q, double r, double s, double t, double u, double v, double w, double x,
                   int j, int k);
typedef int resolve(const char *name, void **address, int version, uint64_t flags,
                    unsigned *status);

extern kernel cuLaunchKernel;
extern int cuLaunchHostFunc(int (*function)(void *), void *context);
#ifdef NEWER
extern int cuGateNobodyKnows(void);
#endif

#define MUST(fact) ((fact) ? (void)0 : fail(#fact))

_Noreturn static void fail(const char *what) {
    fprintf(stderr, "gated: not so: %s\n", what);
    exit(1);
}

static int call(kernel *of) {
    return of(1, 2, 3, 4, 5, 6, 7, 8, 9, .5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 10, 11);
}

enum { EXPECTED = 506 + 262 };

static void *find(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY), *found = dlsym(driver, name);

    MUST(found);
    return found;
}

static int call_inside(void *of) {
    return call(__extension__(kernel *) of) == EXPECTED ? 7 : 0;
}

static void arguments(void) {
    kernel *looked_up = __extension__(kernel *) find("cuLaunchKernel");
    resolve *asked = __extension__(resolve *) find("cuGetProcAddress_v2");
    void *resolved;

    MUST(call(cuLaunchKernel) == EXPECTED);
    MUST(call(looked_up) == EXPECTED);
    MUST(asked("cuLaunchKernel", &resolved, 13000, 0, NULL) == 0);
    MUST(call(__extension__(kernel *) resolved) == EXPECTED);
    MUST(cuLaunchHostFunc(call_inside, resolved) == 8);
    MUST(dlsym(RTLD_DEFAULT, "cuGreenCtxCreate") == NULL); /* that driver has none */
    MUST(looked_up != cuLaunchKernel);                     /* each has a stub */
    MUST(find("cuLaunchKernel") == __extension__(void *) looked_up);
}

static void *work(void *endless) {
    kernel *looked_up = __extension__(kernel *) find("cuLaunchKernel");

    for (int i = 0; endless || i < 20000; i++) {
        MUST(call(looked_up) == EXPECTED);
        MUST(cuLaunchHostFunc(call_inside, __extension__(void *) looked_up) == 8);
        if (endless && i % 64 == 0)
            usleep(100);
    }
    return NULL;
}

static void in_threads(int count, int endless) {
    pthread_t threads[64];

    for (int i = 0; i < count; i++)
        MUST(pthread_create(&threads[i], NULL, work, endless ? threads : NULL) == 0);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

/* A child goes on while its parent waits at the gate. */
static void fork_child(void) {
    int status;
    pid_t child;

    MUST(call(cuLaunchKernel) == EXPECTED);
    puts("ready");
    fflush(stdout);
    getchar(); /* the gate is closed by now */
    child = fork();
    if (child == 0) {
        MUST(call(cuLaunchKernel) == EXPECTED);
        exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    puts("child");
    fflush(stdout);
    MUST(call(cuLaunchKernel) == EXPECTED);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";

    if (strcmp(what, "arguments") == 0)
        arguments();
    else if (strcmp(what, "threads") == 0)
        in_threads(8, 0);
    else if (strcmp(what, "works") == 0)
        in_threads(6, 1);
    else if (strcmp(what, "many") == 0)
        for (int i = 0; i < 60; i++) /* more than there are slots */
            in_threads(20, 0);
    else if (strcmp(what, "forks") == 0)
        fork_child();
    else if (strcmp(what, "shares") == 0)
        MUST((__extension__(int (*)(void)) find("cuIpcGetMemHandle"))() == 5);
#ifdef NEWER
    else if (strcmp(what, "newer") == 0)
        MUST(cuGateNobodyKnows() == 6 && call(cuLaunchKernel) == EXPECTED);
#endif
    else
        return 2;
    puts("done");
    fflush(stdout);
    if (strcmp(what, "shares") == 0 || strcmp(what, "newer") == 0)
        getchar();
    return 0;
}
