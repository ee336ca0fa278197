/* SPDX-License-Identifier: MIT */
/* shim.c: finds shims, locks shims while they are compiled, and reads PyTorch's environment variables (shim.h). */
#include "adapters/torch/shim.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <weir/weir.h>

#include "adapters/torch/shim_hash.h"
#include "base/clock.h"
#include "base/file.h"

/* ---- build ids ----------------------------------------------------------------------------------- */

static size_t padded(size_t bytes) {
    return (bytes + 3) & ~(size_t)3;
}

int weir__shim_id_in(const void *notes, size_t bytes, char id[WEIR_BUILD_ID_BYTES]) {
    const unsigned char *at = notes;
    Elf64_Nhdr note;

    while (bytes >= sizeof note) {
        size_t name, length;

        memcpy(&note, at, sizeof note);
        name = padded(note.n_namesz);
        length = sizeof note + name + padded(note.n_descsz);
        if (length > bytes)
            return 0;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof "GNU" &&
            memcmp(at + sizeof note, "GNU", sizeof "GNU") == 0 && note.n_descsz > 0 &&
            2 * note.n_descsz < WEIR_BUILD_ID_BYTES) {
            for (size_t i = 0; i < note.n_descsz; i++)
                snprintf(id + 2 * i, 3, "%02x", at[sizeof note + name + i]);
            return 1;
        }
        at += length;
        bytes -= length;
    }
    return 0;
}

static int read_elf_bytes(int file, void *to, size_t bytes, uint64_t offset) {
    return pread(file, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

static int id_in_segment(int file, const Elf64_Phdr *segment, char *id) {
    enum { MOST = 1 << 16 };

    unsigned char *notes;
    int found;

    if (segment->p_type != PT_NOTE || segment->p_filesz > MOST)
        return 0;
    notes = malloc(segment->p_filesz + 1);
    found = notes && read_elf_bytes(file, notes, segment->p_filesz, segment->p_offset) &&
            weir__shim_id_in(notes, segment->p_filesz, id);
    free(notes);
    return found;
}

int weir__shim_id_of(const char *path, char id[WEIR_BUILD_ID_BYTES]) {
    int file = weir__file_open(path, O_RDONLY, 0), found = 0;
    Elf64_Ehdr head;
    Elf64_Phdr segment;

    if (file < 0)
        return 0;
    if (read_elf_bytes(file, &head, sizeof head, 0) && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
        head.e_ident[EI_CLASS] == ELFCLASS64 && head.e_phentsize == sizeof segment)
        for (unsigned i = 0; i < head.e_phnum && !found; i++)
            found =
                read_elf_bytes(file, &segment, sizeof segment, head.e_phoff + i * sizeof segment) &&
                id_in_segment(file, &segment, id);
    close(file);
    return found;
}

/* ---- the cache ----------------------------------------------------------------------------------- */

int weir__shim_path(char *path, size_t bytes, const char *id, const char *ending) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int is_named = cache && cache[0] == '/';
    int length;

    if (!is_named && (!home || home[0] != '/'))
        return 0;
    length =
        snprintf(path, bytes, "%s%s/weir/torch/%s-%s-" WEIR_SHIM_HASH "%s", is_named ? cache : home,
                 is_named ? "" : "/.cache", id, weir_version(), ending);
    return length > 0 && (size_t)length < bytes;
}

/* Opens the file that a process locks while it compiles a shim.  Returns -1 with the reason in errno on failure. */
static int open_shim_lock(int flags) {
    char path[4096];

    errno = ENOENT;
    return weir__shim_path(path, sizeof path, "compiling", "") ? weir__file_open(path, flags, 0600)
                                                               : -1;
}

/* Locks byte 0 of the file, which stands for the compilation of any shim.  Other bytes stand for one shim each. */
int weir__shim_lock(void) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
    int file = open_shim_lock(O_RDWR | O_CREAT);

    if (file >= 0 && fcntl(file, F_OFD_SETLK, &lock) != 0) {
        close(file);
        return -1;
    }
    return file;
}

int weir__shim_locked_by_other(int file, const char *id) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1};

    for (int i = 0; i < 8 && id[i]; i++)
        lock.l_start = 31 * lock.l_start + (unsigned char)id[i];
    return fcntl(file, F_OFD_SETLK, &lock) != 0 && (errno == EAGAIN || errno == EACCES);
}

/* Returns 1 if a process is compiling any shim, else 0.  Takes no lock, because a child of fork would keep the lock. */
static int is_shim_compiling(int file) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

int weir__shim_await(const char *path, uint64_t timeout_ns) {
    static const struct timespec pause = {0, 20000000};
    uint64_t end = weir__clock_ns() + timeout_ns;
    int file = open_shim_lock(O_RDONLY), is_late = 0;

    while (file >= 0 && access(path, R_OK) != 0 && is_shim_compiling(file) && !is_late) {
        (void)nanosleep(&pause, NULL);
        is_late = weir__clock_ns() >= end;
    }
    if (file >= 0)
        close(file);
    return !is_late;
}

int weir__shim_failure(const char *id, char *why, size_t bytes) {
    char path[4096];
    FILE *file = weir__shim_path(path, sizeof path, id, ".failed") ? weir__file_read(path) : NULL;

    if (!file)
        return 0;
    if (!fgets(why, (int)bytes, file))
        snprintf(why, bytes, "unknown");
    why[strcspn(why, "\n")] = '\0';
    fclose(file);
    return 1;
}

int weir__shim_is_safe(const char *path) {
    struct stat is;

    return stat(path, &is) == 0 && S_ISREG(is.st_mode) &&
           (is.st_uid == geteuid() || is.st_uid == 0) && !(is.st_mode & (S_IWGRP | S_IWOTH));
}

/* ---- PyTorch's variables ------------------------------------------------------------------------- */

/* Returns the length of the first option, up to a comma.  A comma in brackets does not end an option. */
static size_t option_length(const char *list) {
    size_t length = 0;
    int depth = 0;

    for (; list[length] && (depth > 0 || list[length] != ','); length++)
        depth += (list[length] == '[') - (list[length] == ']');
    return length;
}

static int option_is(const char *option, size_t length, const char *name) {
    while (length > 0 && *option == ' ') {
        option++;
        length--;
    }
    return length > strlen(name) && strncmp(option, name, strlen(name)) == 0 &&
           (option[strlen(name)] == ':' || option[strlen(name)] == ' ');
}

const char *weir__torch_option(const char *list, const char *name, size_t *length) {
    while (*list) {
        *length = option_length(list);
        if (option_is(list, *length, name))
            return list;
        list += *length + (list[*length] == ',');
    }
    return NULL;
}

const char *weir__shim_disabled_by(void) {
    static const char *const lists[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    static const char uncached[] = "PYTORCH_NO_CUDA_MEMORY_CACHING";
    size_t length;

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        const char *list = getenv(lists[i]);

        if (list && weir__torch_option(list, "backend", &length))
            return lists[i];
    }
    return getenv(uncached) ? uncached : NULL;
}
