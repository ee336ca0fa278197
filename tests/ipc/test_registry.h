/* SPDX-License-Identifier: MIT */
/* test_registry.h: a folder for each test, and members of the registry, for the suite test_registry. */
#ifndef WEIR_TEST_REGISTRY_H
#define WEIR_TEST_REGISTRY_H

#include <dirent.h>

#include "tests/fixtures/folder.h"
#include "tests/fixtures/holder.h"
#include "ipc/registry.h"
#include "tests/fixtures/own_file.h"
#include "base/who.h"

#define DEVICE "00112233445566778899aabbccddeeff"

enum { WRITERS = 3, KILLS = 60, GUESTS = 4, VISITS = 600 };

static struct weir_slot_file registry;
static struct weir_registry_entry entry;

/* The folder is in memory, since the tests make thousands of files. */
static inline void set_up_registry(void) {
    make_folder(memory_folder());
    memset(&entry, 0, sizeof entry);
}

static inline void publish(struct weir_slot_file *l, uint64_t reserve) {
    struct weir_registry_entry e = {.reserved = reserve, .in_use = ~reserve, .command = "a test"};

    sleep_for_ns(1200000); /* so that publishing checks the file */
    weir__registry_publish(l, &e);
}

static inline void open_registry(struct weir_slot_file *l) {
    ck_assert_msg(weir__registry_open(l, DEVICE) == 0, "%s", strerror(errno));
}

/* Returns the number of readable entries, and the sum of their reserved memory in `reserve`. */
static inline int count_entries(uint64_t *reserve) {
    int found = 0;

    *reserve = 0;
    for (int slot = 0; slot < WEIR_SLOTS; slot++)
        if (weir__registry_read(&registry, slot, &entry)) {
            ck_assert_uint_eq(entry.in_use, ~entry.reserved);
            *reserve += entry.reserved;
            found++;
        }
    return found;
}

static inline void expect_count(int wanted, uint64_t wanted_reserve) {
    uint64_t reserve;

    ck_assert_int_eq(count_entries(&reserve), wanted);
    ck_assert_uint_eq(reserve, wanted_reserve);
}

static inline int files_in_folder(void) {
    DIR *entries = opendir(folder);
    int files = 0;

    while (readdir(entries))
        files++;
    closedir(entries);
    return files - 2;
}

/* Closes the last open registry, and checks that this has removed the file. */
static inline void close_last(struct weir_slot_file *l) {
    weir__registry_close(l);
    ck_assert_int_eq(files_in_folder(), 0);
}

/* Claims a slot and publishes `reserve` bytes in it.  Returns 1 on success, else 0. */
static inline int be_member(uint64_t reserve) {
    struct weir_slot_file own;

    if (weir__registry_open(&own, DEVICE) != 0)
        return 0;
    publish(&own, reserve);
    return 1;
}

static inline void note_ending(int slot, const struct weir_registry_entry *of, void *reserve) {
    (void)slot;
    *(uint64_t *)reserve += of->reserved;
}

/* Returns the reserved memory of ending processes. */
static inline uint64_t ending(void) {
    uint64_t reserve = 0;

    weir__registry_each_ending(&registry, note_ending, &reserve);
    return reserve;
}

static inline void *pause_forever(void *unused) {
    for (;;)
        pause();
    return unused;
}

/* Acts as a killed process that has not ended yet: its registry's file is closed, and its first thread has exited.  If
 * `with` is a pipe, waits for a byte from it before that. */
static inline void be_ending(int ready, void *with) {
    char byte = 0;
    const int *told = with;
    pthread_t other;

    if (weir__registry_open(&registry, DEVICE) != 0 ||
        pthread_create(&other, NULL, pause_forever, NULL) != 0)
        _exit(1);
    publish(&registry, 10);
    if (write(ready, &byte, 1) != 1 || (told && read(*told, &byte, 1) != 1))
        _exit(1);
    close(registry.file.number);
    munmap(registry.map, 4096);
    pthread_exit(NULL);
}

/* Starts an ending process, which has the first slot, and opens its registry for reading. */
static inline pid_t begin_ending(void) {
    pid_t pid = begin_child(be_ending, NULL);

    ck_assert_int_eq(weir__registry_view(&registry, DEVICE), 0);
    while (ending() == 0)
        sleep_for_ns(1000000);
    return pid;
}

/* Locks all slots, as a process does that removes the file.  Returns 1 on success, else 0. */
static inline int have_all(uint64_t unused) {
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int file = open(registry.path, O_RDWR);

    (void)unused;
    return file >= 0 && fcntl(file, F_OFD_SETLK, &all) == 0;
}

static inline void write_over(const char *path, size_t at, const void *bytes, size_t length) {
    int file = open(path, O_WRONLY);

    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(pwrite(file, bytes, length, (off_t)at), (ssize_t)length);
    close(file);
}

/* Returns 1 if the registry's path still names the open file, else 0. */
static inline int has_its_name(const struct weir_slot_file *l) {
    struct stat is, named;

    return fstat(l->file.number, &is) == 0 && lstat(l->path, &named) == 0 &&
           is.st_ino == named.st_ino;
}

#endif
