/* SPDX-License-Identifier: MIT */
/* pprof.c: see pprof.h.
 *
 * A message of protobuf is its fields one after the other, each a key (number and kind) and a value, so that messages
 * can be put together in pieces of memory and joined.  Numbers of fields are those of profile.proto.
 *
 * Must not know: what is counted, the caller.
 */
#include "adapters/preload/pprof.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/replace.h"

enum { MOST_BUILD_ID = 32, STORED = 65535, VARINT_BYTES = 10 };

/* ---- bytes ----------------------------------------------------------------------------------- */

struct bytes {
    unsigned char *at;
    size_t length, room;
    int failed; /* host memory ran out: what is there is of no use */
};

static void add_bytes(struct bytes *b, const void *from, size_t length) {
    size_t room = b->room ? b->room : 256;
    unsigned char *moved;

    while (room - b->length < length)
        room *= 2;
    if (room != b->room) {
        moved = realloc(b->at, room);
        if (!moved) {
            b->failed = 1;
            return;
        }
        b->at = moved;
        b->room = room;
    }
    if (length > 0)
        memcpy(b->at + b->length, from, length);
    b->length += length;
}

static void add_varint(struct bytes *b, uint64_t value) {
    unsigned char text[VARINT_BYTES];
    size_t length = 0;

    for (; value >= 0x80; value >>= 7)
        text[length++] = (unsigned char)(value | 0x80);
    text[length++] = (unsigned char)value;
    add_bytes(b, text, length);
}

/* A field that is a number; 0 is the default, and left out. */
static void add_number(struct bytes *b, unsigned field, uint64_t value) {
    if (value == 0)
        return;
    add_varint(b, field << 3);
    add_varint(b, value);
}

static void add_text(struct bytes *b, unsigned field, const void *text, size_t length) {
    add_varint(b, field << 3 | 2);
    add_varint(b, length);
    add_bytes(b, text, length);
}

/* A message as a field, which is empty afterwards. */
static void add_message(struct bytes *b, unsigned field, struct bytes *message) {
    add_text(b, field, message->at, message->length);
    b->failed |= message->failed;
    message->length = 0;
}

/* ---- the profile ------------------------------------------------------------------------------ */

struct mapping {
    uint64_t start, end;
};

struct profile {
    struct bytes all, message, inner; /* the latter two are put together and joined to the former */
    uint64_t strings;
    uint64_t *address; /* of all locations, ascending: the number of one is its place, from 1 */
    size_t addresses;
    struct mapping *mapping; /* likewise by number */
    size_t mappings, mapping_room;
    char program[PATH_MAX];
};

/* Bytes of the character there; 0: it is not UTF-8 (RFC 3629). */
static size_t character_at(const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    unsigned char least = *at == 0xe0 ? 0xa0 : *at == 0xf0 ? 0x90 : 0x80;
    unsigned char most = *at == 0xed ? 0x9f : *at == 0xf4 ? 0x8f : 0xbf;
    size_t length = *at < 0x80                      ? 1
                    : *at < 0xc2 || *at > 0xf4      ? 0
                    : at[1] < least || at[1] > most ? 0
                    : *at < 0xe0                    ? 2
                    : *at < 0xf0                    ? 3
                                                    : 4;

    for (size_t i = 2; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

/* A string of protobuf is UTF-8, and a reader refuses all where one is not; paths may be anything. */
static uint64_t string_of(struct profile *p, const char *text) {
    add_varint(&p->all, 6 << 3 | 2);
    add_varint(&p->all, strlen(text));
    while (*text) {
        size_t length = character_at(text);

        add_bytes(&p->all, length ? text : "?", length ? length : 1);
        text += length ? length : 1;
    }
    return p->strings++;
}

static void add_kind(struct profile *p, unsigned field, const char *type, const char *unit) {
    add_number(&p->message, 1, string_of(p, type));
    add_number(&p->message, 2, string_of(p, unit));
    add_message(&p->all, field, &p->message);
}

/* ---- where code lies -------------------------------------------------------------------------- */

/* So many bytes of a note, which go on at the next multiple. */
static uint64_t padded(uint64_t bytes, uint64_t align) {
    return (bytes + align - 1) & ~(align - 1);
}

/* The build id among the notes of a segment, in hexadecimal: 1, or 0.  They come from a file, which may say anything of
 * their sizes: these are of 32 bits, their sums of 64. */
static int read_build_id(const unsigned char *notes, uint64_t length, uint64_t align, char *text) {
    ElfW(Nhdr) note;

    while (length >= sizeof note) {
        uint64_t data, end;

        memcpy(&note, notes, sizeof note);
        data = padded(sizeof note + (uint64_t)note.n_namesz, align);
        end = data + note.n_descsz;
        if (end > length)
            return 0;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
            memcmp(notes + sizeof note, "GNU", 4) == 0 && note.n_descsz <= MOST_BUILD_ID) {
            for (uint32_t i = 0; i < note.n_descsz; i++)
                snprintf(text + 2 * i, 3, "%02x", notes[data + i]);
            return 1;
        }
        end = padded(end, align);
        if (end > length)
            return 0;
        notes += end;
        length -= end;
    }
    return 0;
}

/* A file may place its notes anywhere: 1 if all of them are in what was loaded to be read. */
static int is_loaded(const struct dl_phdr_info *info, const ElfW(Phdr) * part) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uint64_t at = (uint64_t)part->p_vaddr - segment->p_vaddr;

        if (segment->p_type == PT_LOAD && (segment->p_flags & PF_R) &&
            part->p_vaddr >= segment->p_vaddr && at <= segment->p_memsz &&
            part->p_memsz <= segment->p_memsz - at)
            return 1;
    }
    return 0;
}

static void find_build_id(const struct dl_phdr_info *info, char *text) {
    text[0] = '\0';
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];

        if (segment->p_type == PT_NOTE && is_loaded(info, segment) &&
            read_build_id((const unsigned char *)info->dlpi_addr + segment->p_vaddr,
                          segment->p_memsz, segment->p_align == 8 ? 8 : 4, text))
            return;
    }
}

static void add_mapping(struct profile *p, const struct dl_phdr_info *info,
                        const ElfW(Phdr) * segment, const char *build_id) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = info->dlpi_addr + segment->p_vaddr;
    uint64_t start = first & ~(page - 1), end = (first + segment->p_memsz + page - 1) & ~(page - 1);
    struct mapping *moved = p->mapping;

    if (p->mappings == p->mapping_room) {
        p->mapping_room = p->mapping_room ? p->mapping_room * 2 : 64;
        moved = realloc(p->mapping, p->mapping_room * sizeof *moved);
        if (!moved) {
            p->all.failed = 1;
            p->mapping_room = p->mappings;
            return;
        }
        p->mapping = moved;
    }
    p->mapping[p->mappings++] = (struct mapping){start, end};
    add_number(&p->message, 1, p->mappings);
    add_number(&p->message, 2, start);
    add_number(&p->message, 3, end);
    add_number(&p->message, 4, segment->p_offset & ~(page - 1));
    add_number(&p->message, 5,
               string_of(p, info->dlpi_name && *info->dlpi_name ? info->dlpi_name : p->program));
    if (*build_id)
        add_number(&p->message, 6, string_of(p, build_id));
    add_message(&p->all, 3, &p->message);
}

static int add_mappings(struct dl_phdr_info *info, size_t bytes, void *profile) {
    char build_id[2 * MOST_BUILD_ID + 1];

    (void)bytes;
    find_build_id(info, build_id);
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X))
            add_mapping(profile, info, &info->dlpi_phdr[i], build_id);
    return 0;
}

/* ---- locations -------------------------------------------------------------------------------- */

/* Of the call, not of what follows it. */
static uint64_t call_of(const void *frame) {
    return (uint64_t)(uintptr_t)frame - 1;
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* All addresses of the samples, once each.  1, or 0: no host memory. */
static int gather(struct profile *p, const struct weir_pprof_sample *samples, size_t count) {
    size_t all = 0, kept = 0;

    for (size_t i = 0; i < count; i++)
        all += samples[i].depth;
    p->address = malloc((all + 1) * sizeof *p->address);
    if (!p->address)
        return 0;
    for (size_t i = 0, at = 0; i < count; i++)
        for (size_t j = 0; j < samples[i].depth; j++)
            p->address[at++] = call_of(samples[i].frame[j]);
    qsort(p->address, all, sizeof *p->address, compare);
    for (size_t i = 0; i < all; i++)
        if (kept == 0 || p->address[kept - 1] != p->address[i])
            p->address[kept++] = p->address[i];
    p->addresses = kept;
    return 1;
}

static uint64_t mapping_of(const struct profile *p, uint64_t address) {
    for (size_t i = 0; i < p->mappings; i++)
        if (address - p->mapping[i].start < p->mapping[i].end - p->mapping[i].start)
            return i + 1;
    return 0;
}

/* Functions have the number of the first location in them. */
static void add_locations(struct profile *p) {
    const void *last = NULL;
    uint64_t function = 0, name;

    for (size_t i = 0; i < p->addresses; i++) {
        Dl_info info;
        int known = dladdr((const void *)(uintptr_t)p->address[i], &info) != 0 && info.dli_sname;

        if (known && (info.dli_saddr != last || !function)) {
            last = info.dli_saddr;
            function = i + 1;
            name = string_of(p, info.dli_sname);
            add_number(&p->message, 1, function);
            add_number(&p->message, 2, name);
            add_number(&p->message, 3, name);
            add_message(&p->all, 5, &p->message);
        }
        add_number(&p->message, 1, i + 1);
        add_number(&p->message, 2, mapping_of(p, p->address[i]));
        add_number(&p->message, 3, p->address[i]);
        if (known) {
            add_number(&p->inner, 1, function);
            add_message(&p->message, 4, &p->inner);
        }
        add_message(&p->all, 4, &p->message);
    }
}

static uint64_t location_of(const struct profile *p, const void *frame) {
    uint64_t wanted = call_of(frame);
    const uint64_t *found =
        bsearch(&wanted, p->address, p->addresses, sizeof wanted, compare); /* it is there */

    return (uint64_t)(found - p->address) + 1;
}

/* ---- samples ---------------------------------------------------------------------------------- */

static const void *library_of(const void *address) {
    Dl_info info;

    return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

static void add_sample(struct profile *p, const struct weir_pprof_sample *s, uint64_t device,
                       const void *own) {
    size_t first = 0;

    while (own && first < s->depth &&
           library_of((const void *)((uintptr_t)s->frame[first] - 1)) == own)
        first++;
    for (size_t i = first; i < s->depth; i++)
        add_varint(&p->inner, location_of(p, s->frame[i]));
    add_message(&p->message, 1, &p->inner);
    for (int i = 0; i < WEIR_PPROF_VALUES; i++)
        add_varint(&p->inner, s->value[i]);
    add_message(&p->message, 2, &p->inner);
    add_number(&p->inner, 1, device);
    add_number(&p->inner, 2, string_of(p, s->device));
    add_message(&p->message, 3, &p->inner);
    add_message(&p->all, 2, &p->message);
}

static void put_together(struct profile *p, const struct weir_pprof_kind *kind,
                         const struct weir_pprof_sample *samples, size_t count, const void *own) {
    ssize_t length = readlink("/proc/self/exe", p->program, sizeof p->program - 1);
    const void *library = own ? library_of(own) : NULL;
    struct timespec now = {0, 0};
    uint64_t device;

    p->program[length > 0 ? length : 0] = '\0';
    (void)string_of(p, ""); /* number 0 */
    for (int i = 0; i < WEIR_PPROF_VALUES; i++)
        add_kind(p, 1, kind->type[i], kind->unit[i]);
    dl_iterate_phdr(add_mappings, p);
    add_locations(p);
    device = string_of(p, "device");
    for (size_t i = 0; i < count; i++)
        add_sample(p, &samples[i], device, library);
    (void)clock_gettime(CLOCK_REALTIME, &now);
    add_number(&p->all, 9, (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec);
    add_kind(p, 11, kind->shown, "bytes");
    add_number(&p->all, 12, 1);
    add_number(&p->all, 13, string_of(p, kind->remark));
    add_number(&p->all, 14, string_of(p, kind->shown));
}

/* ---- gzip (RFC 1952), of stored blocks --------------------------------------------------------- */

static uint32_t crc_of(const unsigned char *at, size_t length) {
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < length; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (UINT32_C(0xEDB88320) & (0 - (crc & 1)));
    }
    return ~crc;
}

static void add_little(struct bytes *b, uint32_t value, int bytes) {
    unsigned char text[4];

    for (int i = 0; i < bytes; i++)
        text[i] = (unsigned char)(value >> 8 * i);
    add_bytes(b, text, (size_t)bytes);
}

static void pack(struct bytes *to, const struct bytes *from) {
    static const unsigned char header[10] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255};
    size_t at = 0;

    add_bytes(to, header, sizeof header);
    do {
        size_t length = from->length - at < STORED ? from->length - at : STORED;
        unsigned char is_last = at + length == from->length;

        add_bytes(to, &is_last, 1);
        add_little(to, (uint32_t)length, 2);
        add_little(to, ~(uint32_t)length, 2);
        add_bytes(to, from->at + at, length);
        at += length;
    } while (at < from->length);
    add_little(to, crc_of(from->at, from->length), 4);
    add_little(to, (uint32_t)from->length, 4);
    to->failed |= from->failed;
}

/* ---- the file --------------------------------------------------------------------------------- */

static int put_file(const char *path, const struct bytes *b) {
    return weir__replace_file(path, 0666, 0, b->at, b->length);
}

static int is_packed(const char *path) {
    size_t length = strlen(path);

    return length >= 3 && strcmp(path + length - 3, ".gz") == 0;
}

int weir__pprof_write(const char *path, const struct weir_pprof_kind *kind,
                      const struct weir_pprof_sample *samples, size_t count, const void *own) {
    struct profile *p = calloc(1, sizeof *p);
    struct bytes packed = {0};
    int why = ENOMEM;

    if (!p)
        return ENOMEM;
    if (gather(p, samples, count)) {
        put_together(p, kind, samples, count, own);
        if (is_packed(path))
            pack(&packed, &p->all);
        if (!p->all.failed && !packed.failed)
            why = put_file(path, is_packed(path) ? &packed : &p->all);
    }
    free(packed.at);
    free(p->all.at);
    free(p->message.at);
    free(p->inner.at);
    free(p->address);
    free(p->mapping);
    free(p);
    return why;
}
