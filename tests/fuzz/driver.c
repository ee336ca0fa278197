/* SPDX-License-Identifier: MIT */
/* driver.c: runs a fuzz target as an ordinary test, without a fuzzer: on each file of tests/fuzz/corpus/FUZZ_TARGET,
 * and on thousands of inputs that it makes from these files with a fixed seed.
 *
 * If an input ends the process, driver.c writes the input to FUZZ_TARGET.crash; `fuzz_FUZZ_TARGET FILE...` runs it
 * again.  WEIR_TEST_SOAK=N makes the test N times as long (0.1: a tenth), and WEIR_TEST_SEED=N sets the seed.
 *
 * Must not know: what a target tests. */
#include "fuzz.h"

#include "tests/fixtures/random.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { MOST_FILES = 1024, MOST_BYTES = 4096 };

static struct input {
    size_t bytes;
    uint8_t *data;
} corpus[MOST_FILES];
static int corpus_files;

static uint64_t state = 1;

static uint64_t draw_for_input(uint64_t sides) {
    return next_random(&state) % sides;
}

/* ---- the end of the process ------------------------------------------------------------------ */

static struct input running;

static void keep_and_die(int signal_number) {
    static const char name[] = FUZZ_TARGET ".crash";
    static const char words[] = "Bail out! the input that did it is in " FUZZ_TARGET ".crash\n";
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    if (file >= 0 && write(file, running.data, running.bytes) >= 0 && close(file) == 0)
        (void)!write(STDOUT_FILENO, words, sizeof words - 1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void run_input(const struct input *input) {
    running = *input;
    LLVMFuzzerTestOneInput(input->data, input->bytes);
}

/* ---- the corpus ------------------------------------------------------------------------------ */

static int read_input(const char *path, struct input *out) {
    FILE *file = fopen(path, "rb");

    if (!file)
        return 0;
    out->data = malloc(MOST_BYTES);
    out->bytes = out->data ? fread(out->data, 1, MOST_BYTES, file) : 0;
    return fclose(file) == 0 && out->data;
}

static int is_file(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int read_corpus(const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, is_file, alphasort);
    char path[PATH_MAX + 260];

    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (corpus_files < MOST_FILES && read_input(path, &corpus[corpus_files]))
            corpus_files++;
        free(entries[i]);
    }
    if (count > 0)
        free(entries);
    return corpus_files;
}

/* ---- mutation -------------------------------------------------------------------------------- */

static void change(struct input *input) {
    uint8_t *at = input->data + draw_for_input(input->bytes);
    size_t behind = input->bytes - (size_t)(at - input->data);

    switch (draw_for_input(5)) {
    case 0:
        *at = (uint8_t)draw_for_input(256);
        break;
    case 1:
        *at ^= (uint8_t)(1u << draw_for_input(8));
        break;
    case 2: /* inserts a byte */
        if (input->bytes < MOST_BYTES) {
            memmove(at + 1, at, behind);
            *at = (uint8_t)draw_for_input(256);
            input->bytes++;
        }
        break;
    case 3: /* removes a byte */
        if (input->bytes > 1) {
            memmove(at, at + 1, behind - 1);
            input->bytes--;
        }
        break;
    default: { /* replaces the rest by the end of another file */
        const struct input *other = &corpus[draw_for_input((uint64_t)corpus_files)];
        size_t from = other->bytes > 0 ? draw_for_input(other->bytes) : 0,
               bytes = other->bytes - from;
        size_t room = MOST_BYTES - (size_t)(at - input->data);

        bytes = bytes < room ? bytes : room;
        if (bytes > 0) {
            memcpy(at, other->data + from, bytes);
            input->bytes = (size_t)(at - input->data) + bytes;
        }
    }
    }
}

static void run_mutated(void) {
    static uint8_t data[MOST_BYTES];
    const struct input *from = &corpus[draw_for_input((uint64_t)corpus_files)];
    struct input input = {from->bytes, data};

    memcpy(data, from->data, from->bytes);
    if (input.bytes == 0)
        data[input.bytes++] = 0;
    for (uint64_t changes = draw_for_input(4) + 1; changes > 0; changes--)
        change(&input);
    run_input(&input);
}

static uint64_t number_or_standard(const char *variable, uint64_t standard) {
    const char *text = getenv(variable);

    return text ? strtoull(text, NULL, 0) : standard;
}

static void run_suite(void) {
    const char *source = getenv("top_srcdir");
    char folder[PATH_MAX];
    const char *soak = getenv("WEIR_TEST_SOAK");
    uint64_t mutated = (uint64_t)(FUZZ_MUTATED * (soak ? strtod(soak, NULL) : 1));

    state = (number_or_standard("WEIR_TEST_SEED", 1) + 1) * UINT64_C(0x9e3779b97f4a7c15);
    snprintf(folder, sizeof folder, "%s/tests/fuzz/corpus/%s", source ? source : ".", FUZZ_TARGET);
    printf("1..2\n");
    read_corpus(folder);
    for (int i = 0; i < corpus_files; i++)
        run_input(&corpus[i]);
    printf("%sok 1 - the %d files of %s\n", corpus_files > 0 ? "" : "not ", corpus_files, folder);
    for (uint64_t i = 0; i < mutated && corpus_files > 0; i++)
        run_mutated();
    printf("%sok 2 - %llu inputs made of them\n", corpus_files > 0 ? "" : "not ",
           (unsigned long long)mutated);
}

int main(int argc, char **argv) {
    static const int deadly[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM, SIGTERM};

    for (size_t i = 0; i < sizeof deadly / sizeof deadly[0]; i++)
        signal(deadly[i], keep_and_die);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 1)
        run_suite();
    for (int i = 1; i < argc; i++) {
        struct input input;

        if (!read_input(argv[i], &input)) {
            fprintf(stderr, "cannot read %s\n", argv[i]);
            return 2;
        }
        run_input(&input);
        free(input.data);
    }
    for (int i = 0; i < corpus_files; i++)
        free(corpus[i].data);
    return argc == 1 && corpus_files == 0;
}
