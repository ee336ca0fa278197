/* SPDX-License-Identifier: MIT */
/* test_pprof.c: build ids of the files that a process has loaded, of which some were made to mislead.
 *
 * A library of the build is copied with its notes changed, and loaded as any.  What a profile has else is looked at by
 * tests/adapters/check-heap-profile. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "adapters/preload/pprof.h"
#include "tests/fixtures/support.h"

enum { MOST = 1 << 20 };

static char folder[64], library[96], profile[96];
static _Alignas(16) unsigned char file[MOST];
static unsigned char written[MOST];
static size_t bytes;
static char build_id[2 * 32 + 1]; /* as it is in the library */

static size_t read_whole(const char *path, unsigned char *to) {
    FILE *from = fopen(path, "r");
    size_t count = from ? fread(to, 1, MOST, from) : 0;

    MUST(!from || (count < MOST && fclose(from) == 0));
    return count;
}

static ElfW(Phdr) * segment_of(uint32_t type) {
    ElfW(Ehdr) *head = (void *)file;
    ElfW(Phdr) *segment = (void *)(file + head->e_phoff);

    for (int i = 0; i < head->e_phnum; i++)
        if (segment[i].p_type == type)
            return &segment[i];
    return NULL;
}

/* The id is the first of its notes. */
static ElfW(Phdr) * notes_of(void) {
    ElfW(Phdr) *notes = segment_of(PT_NOTE);

    if (!notes || ((ElfW(Nhdr) *)(void *)(file + notes->p_offset))->n_type != NT_GNU_BUILD_ID)
        return NULL;
    return notes;
}

static ElfW(Nhdr) * note_of(const ElfW(Phdr) * notes) {
    return (void *)(file + notes->p_offset);
}

static const char *built_library(void) {
    static char path[4200];
    const char *top = getenv("top_builddir");

    snprintf(path, sizeof path, "%s/tests/fake/injection/.libs/libinjection.so", top ? top : ".");
    return path;
}

static void set_up(void) {
    const ElfW(Phdr) * notes;
    const unsigned char *id;

    snprintf(folder, sizeof folder, "/tmp/weir-pprof-XXXXXX");
    MUST(mkdtemp(folder) != NULL);
    snprintf(library, sizeof library, "%s/lib.so", folder);
    snprintf(profile, sizeof profile, "%s/profile", folder);
    bytes = read_whole(built_library(), file);
    notes = notes_of();
    MUST(bytes > 0 && notes != NULL);
    id = (const unsigned char *)(note_of(notes) + 1) + 4;
    for (uint32_t i = 0; i < note_of(notes)->n_descsz; i++)
        snprintf(build_id + 2 * i, 3, "%02x", id[i]);
}

static void tear_down(void) {
    char command[96];

    snprintf(command, sizeof command, "rm -rf %s", folder);
    ANSWERS(0, system(command));
}

static int has_text(const char *text) {
    size_t count = read_whole(profile, written);

    MUST(count > 0);
    return memmem(written, count, text, strlen(text)) != NULL;
}

/* 1 if a profile of a process that has loaded the file as it is now tells its build id. */
static int is_told(void) {
    static const struct weir_pprof_kind kind = {
        {"a", "b", "c", "d"}, {"bytes", "bytes", "bytes", "bytes"}, "a", ""};
    FILE *to = fopen(library, "w");
    void *loaded;

    MUST(to && fwrite(file, 1, bytes, to) == bytes && fclose(to) == 0);
    loaded = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    ck_assert_msg(loaded != NULL, "%s", dlerror());
    ANSWERS(0, weir__pprof_write(profile, &kind, NULL, 0, NULL));
    MUST(has_text(library));
    return has_text(build_id);
}

CASE("build ids", 30, set_up, tear_down);

/* Readers refuse a profile with a string that is not UTF-8. */
TEST(a_path_that_is_not_utf8) {
    static const char is[] = "-\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80-"
                             "\xff\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82-\xc3",
                      told[] = "-\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80-??"
                               "??"
                               "??"
                               "??"
                               "??"
                               "??"
                               "-?";
    static const struct weir_pprof_kind kind = {
        {"a", "b", "c", "d"}, {"bytes", "bytes", "bytes", "bytes"}, "a", ""};
    FILE *to;

    snprintf(library, sizeof library, "%s/%s", folder, is);
    to = fopen(library, "w");
    MUST(to && fwrite(file, 1, bytes, to) == bytes && fclose(to) == 0);
    MUST(dlopen(library, RTLD_LAZY | RTLD_LOCAL) != NULL);
    ANSWERS(0, weir__pprof_write(profile, &kind, NULL, 0, NULL));
    MUST(has_text(told));
    MUST(!has_text(is));
}

TEST(a_file_as_it_is) {
    MUST(is_told());
}

static const struct {
    const char *why;
    uint32_t name,
        data; /* sizes; UINT32_MAX - 0 to - 3 become nothing where they are rounded up in 32 bits */
} sizes[] = {{"a name that ends behind all", UINT32_MAX, 20},
             {"a name of half of all addresses", UINT32_MAX / 2, 20},
             {"a name that leaves no room", 24, 20},
             {"data that end behind all", 4, UINT32_MAX},
             {"data that go round", 4, UINT32_MAX - 3},
             {"data that are a byte too long", 4, 21},
             {"both together go round", UINT32_MAX - 3, 16},
             {"data longer than an id is", 4, 33}};

enum { SIZES = sizeof sizes / sizeof sizes[0] };

TEST_EACH(SIZES, sizes_that_are_not_so) {
    ElfW(Phdr) *notes = notes_of();

    notes->p_filesz = notes->p_memsz = sizeof(ElfW(Nhdr)) + 4 + 20;
    note_of(notes)->n_namesz = sizes[_i].name;
    note_of(notes)->n_descsz = sizes[_i].data;
    ck_assert_msg(!is_told(), "%s", sizes[_i].why);
}

/* Behind what was loaded, partly behind it, before it, and round the end of all addresses. */
TEST_EACH(4, notes_that_are_elsewhere) {
    ElfW(Phdr) *notes = notes_of();

    if (_i == 0)
        notes->p_vaddr = (ElfW(Addr))1 << (sizeof(void *) == 8 ? 40 : 28);
    else if (_i == 1)
        notes->p_memsz = (ElfW(Addr))1 << (sizeof(void *) == 8 ? 40 : 28);
    else if (_i == 2)
        notes->p_vaddr = (ElfW(Addr)) - 4096;
    else
        notes->p_memsz = (ElfW(Addr)) - 8;
    MUST(!is_told());
}

/* Another note stands before it, of five bytes that take eight: both where tables for exceptions were. */
TEST(an_id_behind_another_note) {
    ElfW(Nhdr) other = {4, 5, 1};
    ElfW(Phdr) *notes = notes_of(), *tables = segment_of(PT_GNU_EH_FRAME);
    size_t count = notes->p_filesz;
    unsigned char *at;

    if (!tables || tables->p_filesz < 24 + count) /* of another processor */
        return;
    at = file + tables->p_offset;
    memcpy(at, &other, sizeof other);
    memcpy(at + sizeof other, "GNU", 4);
    memcpy(at + 24, file + notes->p_offset, count);
    notes->p_offset = tables->p_offset;
    notes->p_vaddr = tables->p_vaddr;
    notes->p_memsz = notes->p_filesz = 24 + count;
    MUST(is_told());
}

int main(void) {
    if (access(built_library(), R_OK) != 0) {
        puts("1..0 # SKIP no shared libraries");
        return 77;
    }
    bytes = read_whole(built_library(), file);
    if (!notes_of()) {
        puts("1..0 # SKIP what is built has no build ids");
        return 77;
    }
    return run_tests("pprof", CK_FORK);
}
