/* SPDX-License-Identifier: MIT */
/* modules.c: see modules.h.  /proc/PID/maps is sorted by address, and read as a whole each time. */
#include "cli/modules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/memory.h"

enum { PAGE_BITS = 12 };

/* Appends a module.  Leaves the module out if there is no host memory. */
static void add_module(struct modules *to, uint64_t begin, uint64_t end, const char *name) {
    struct module made = {begin, end, strdup(name)};

    if (made.name && memory_make_room(&to->modules, &to->room, to->count, sizeof made))
        to->modules[to->count++] = made;
    else
        free(made.name);
}

static void free_modules(struct modules *modules) {
    for (size_t i = 0; i < modules->count; i++)
        free(modules->modules[i].name);
    free(modules->modules);
}

/* Adds the module of a line such as "7f00-7f10 r-xp 0000 08:01 12 /path/name", if the line is of code from a file. */
static void add_mapping(struct modules *to, char *line) {
    uint64_t begin, end;
    char rights[5];
    int before_path = 0;

    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %*s %n", &begin, &end, rights,
               &before_path) != 3 ||
        rights[2] != 'x' || !before_path || line[before_path] != '/')
        return;
    line[strcspn(line, "\n")] = '\0';
    add_module(to, begin, end, strrchr(line + before_path, '/') + 1);
}

/* Reads all mappings.  Returns 1 on success, 0 if there is none to read. */
static int read_mappings(struct modules *modules) {
    struct modules fresh = {.process = modules->process};
    char path[64], *line = NULL;
    size_t room = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/maps", modules->process);
    file = fopen(path, "re");
    while (file && getline(&line, &room, file) > 0)
        add_mapping(&fresh, line);
    free(line);
    if (file)
        fclose(file);
    if (fresh.count == 0)
        return 0;
    free_modules(modules);
    fresh.nowhere = modules->nowhere;
    *modules = fresh;
    return 1;
}

void modules_begin(struct modules *modules, int process) {
    *modules = (struct modules){.process = process};
    (void)read_mappings(modules);
}

static int holds(const struct modules *modules, size_t i, uint64_t address) {
    return i < modules->count && address >= modules->modules[i].begin &&
           address < modules->modules[i].end;
}

static const char *find_name(struct modules *modules, uint64_t address) {
    size_t low = 0, high = modules->count;

    if (!holds(modules, modules->last, address)) {
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
    }
    return modules->modules[modules->last].name;
}

const char *modules_find(struct modules *modules, uint64_t address) {
    const char *name = find_name(modules, address);
    uint64_t page = (address >> PAGE_BITS) + 1;

    if (name || weir__map_get(&modules->nowhere, page, NULL))
        return name;
    name = read_mappings(modules) ? find_name(modules, address) : NULL;
    if (!name)
        (void)weir__map_put(&modules->nowhere, page, 1);
    return name;
}

void modules_end(struct modules *modules) {
    free_modules(modules);
    weir__map_clear(&modules->nowhere);
}
