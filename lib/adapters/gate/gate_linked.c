/* SPDX-License-Identifier: MIT */
/* gate_linked.c: whether something that is loaded is linked to a function of the driver that has no stub, as of a driver
 * that is newer than gate_names.h.
 *
 * Symbols that an object lacks come first in its table: before those that its hash table knows.
 */
#include "adapters/gate/gate.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ipc/gate_page.h"

enum { MOST = 8 };

struct search {
    unsigned long long loads;
    int is_news;
    int count;
    char name[MOST][WEIR_GATE_NAME];
};

static int has_stub(const char *name) {
#define COMPARE(known) strcmp(name, #known) == 0 ||
    return WEIR_GATE_NAMES(COMPARE) strncmp(name, "cuGetProcAddress", 16) == 0;
#undef COMPARE
}

static void look_at_symbol(const char *name, struct search *search) {
    if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z' || has_stub(name) ||
        search->count == MOST || strlen(name) >= WEIR_GATE_NAME)
        return;
    strcpy(search->name[search->count++], name);
}

struct tables {
    const ElfW(Sym) * symbols;
    const char *names;
    const uint32_t *hash, *gnu_hash;
};

/* glibc has made addresses of what is in a file relative to its start, but not everywhere. */
static const void *at(const struct dl_phdr_info *object, ElfW(Addr) where) {
    return (const void *)(where < object->dlpi_addr ? where + object->dlpi_addr : where);
}

static struct tables tables_of(const struct dl_phdr_info *object, const ElfW(Dyn) * entry) {
    struct tables tables = {0};

    for (; entry->d_tag != DT_NULL; entry++) {
        const void *place = at(object, entry->d_un.d_ptr);

        if (entry->d_tag == DT_SYMTAB)
            tables.symbols = place;
        else if (entry->d_tag == DT_STRTAB)
            tables.names = place;
        else if (entry->d_tag == DT_HASH)
            tables.hash = place;
        else if (entry->d_tag == DT_GNU_HASH)
            tables.gnu_hash = place;
    }
    return tables;
}

static void look_at_tables(const struct tables *tables, struct search *search) {
    uint32_t count = 0;

    if (!tables->symbols || !tables->names)
        return;
    if (tables->gnu_hash)
        count = tables->gnu_hash[1]; /* the first symbol that it knows */
    else if (tables->hash)
        count = tables->hash[1];
    for (uint32_t i = 1; i < count; i++)
        if (tables->symbols[i].st_shndx == SHN_UNDEF)
            look_at_symbol(tables->names + tables->symbols[i].st_name, search);
}

static int look_at_object(struct dl_phdr_info *object, size_t bytes, void *context) {
    struct search *search = context;
    static _Atomic unsigned long long seen;

    (void)bytes;
    if (!search->is_news) {
        search->loads = object->dlpi_adds;
        if (atomic_exchange(&seen, search->loads) == search->loads)
            return 1;
        search->is_news = 1;
    }
    if (!object->dlpi_name || strstr(object->dlpi_name, "linux-vdso"))
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC) {
            struct tables tables =
                tables_of(object, (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr));

            look_at_tables(&tables, search);
        }
    return 0;
}

void weir__gate_look_at_links(void) {
    struct search search = {0};
    void *driver;

    dl_iterate_phdr(look_at_object, &search);
    if (search.count == 0 || !(driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)))
        return;
    for (int i = 0; i < search.count; i++)
        if (weir__gate_real_dlsym()(driver, search.name[i]))
            weir__gate_refuse(WEIR_GATE_BYPASSED, search.name[i]);
    dlclose(driver);
    (void)dlerror();
}
