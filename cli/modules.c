/* SPDX-License-Identifier: MIT */
/* modules.c: see modules.h.  /proc/PID/maps is sorted by address, and read as a whole each time. */
#include "cli/modules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BITS = 12 };

/* An array's room for so many elements; 0: out of memory. */
static int make_room(void **array, size_t *room, size_t count, size_t element) {
    size_t more = *room ? *room : 256;
    void *moved;

    while (more < count)
        more *= 2;
    if (more == *room)
        return 1;
    moved = reallocarray(*array, more, element);
    if (!moved)
        return 0;
    *array = moved;
    *room = more;
    return 1;
}

static void add(struct modules *to, uint64_t begin, uint64_t end, const char *name) {
    size_t bytes = strlen(name) + 1;
    void *modules = to->modules, *names = to->names;

    if (make_room(&modules, &to->room, to->count + 1, sizeof *to->modules)) {
        to->modules = modules;
        if (make_room(&names, &to->names_room, to->used + bytes, 1)) {
            to->names = names;
            memcpy(to->names + to->used, name, bytes);
            to->modules[to->count++] = (struct module){begin, end, to->used};
            to->used += bytes;
        }
    }
}

/* "7f00-7f10 r-xp 0000 08:01 12 /path/name": code, from a file. */
static void add_line(struct modules *to, char *line) {
    uint64_t begin, end;
    char rights[5];
    int before_path = 0;
    char *path;

    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %*s %n", &begin, &end, rights,
               &before_path) != 3 ||
        rights[2] != 'x' || !before_path || line[before_path] != '/')
        return;
    line[strcspn(line, "\n")] = '\0';
    path = strrchr(line + before_path, '/') + 1;
    add(to, begin, end, path);
}

/* 1: something was read. */
static int read_all(struct modules *modules) {
    struct modules fresh = {.process = modules->process};
    char path[64], *line = NULL;
    size_t room = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/maps", modules->process);
    file = fopen(path, "re");
    while (file && getline(&line, &room, file) > 0)
        add_line(&fresh, line);
    free(line);
    if (file)
        fclose(file);
    if (fresh.count) {
        free(modules->modules);
        free(modules->names);
        fresh.nowhere = modules->nowhere;
        *modules = fresh;
    } else {
        free(fresh.modules);
        free(fresh.names);
    }
    return fresh.count > 0;
}

void modules_begin(struct modules *modules, int process) {
    *modules = (struct modules){.process = process};
    (void)read_all(modules);
}

static int holds(const struct modules *modules, size_t i, uint64_t address) {
    return i < modules->count && address >= modules->modules[i].begin &&
           address < modules->modules[i].end;
}

static const char *find(struct modules *modules, uint64_t address) {
    size_t low = 0, high = modules->count;

    if (holds(modules, modules->last, address))
        return modules->names + modules->modules[modules->last].name;
    while (low < high) {
        size_t middle = (low + high) / 2;

        if (modules->modules[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (!holds(modules, low, address))
        return NULL;
    modules->last = low;
    return modules->names + modules->modules[low].name;
}

const char *modules_find(struct modules *modules, uint64_t address) {
    const char *name = find(modules, address);
    uint64_t page = (address >> PAGE_BITS) + 1;

    if (name || weir__map_get(&modules->nowhere, page, NULL))
        return name;
    name = read_all(modules) ? find(modules, address) : NULL;
    if (!name)
        (void)weir__map_put(&modules->nowhere, page, 1);
    return name;
}

void modules_end(struct modules *modules) {
    free(modules->modules);
    free(modules->names);
    weir__map_clear(&modules->nowhere);
}
