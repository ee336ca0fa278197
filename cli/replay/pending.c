/* SPDX-License-Identifier: MIT */
/* pending.c: see pending.h. */
#include "cli/replay/pending.h"

#include <stdlib.h>
#include <string.h>

#include "base/hostmem.h"

/* Bytes that are pending until then. */
struct piece {
    uint64_t end_ns, bytes;
};

/* First to last as they were freed, so by the end of their work, too. */
struct queue {
    struct piece *pieces;
    size_t first, count, capacity;
};

struct use {
    struct use *next;
    uint16_t stream;
};

struct pending {
    size_t streams, blocks;
    uint64_t *end_ns;     /* by stream, of the work submitted so far */
    struct queue *queues; /* by stream, */
    struct queue shared;  /* and what several used, in no order */
    uint64_t *bytes;      /* by block */
    struct use **uses;    /* by block, on other streams */
    uint64_t now, most;   /* requested and pending */
};

struct pending *pending_open(const struct tape_header *header) {
    struct pending *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->streams = (size_t)header->streams;
    p->blocks = (size_t)header->blocks;
    p->end_ns = calloc(p->streams + 1, sizeof *p->end_ns);
    p->queues = calloc(p->streams + 1, sizeof *p->queues);
    p->bytes = calloc(p->blocks + 1, sizeof *p->bytes);
    p->uses = calloc(p->blocks + 1, sizeof *p->uses);
    if (p->end_ns && p->queues && p->bytes && p->uses)
        return p;
    pending_close(p);
    return NULL;
}

static void drop_uses(struct pending *p, size_t block) {
    while (p->uses[block]) {
        struct use *use = p->uses[block];

        p->uses[block] = use->next;
        free(use);
    }
}

void pending_close(struct pending *p) {
    if (!p)
        return;
    for (size_t i = 0; p->queues && i < p->streams; i++)
        free(p->queues[i].pieces);
    for (size_t i = 0; p->uses && i < p->blocks; i++)
        drop_uses(p, i);
    free(p->shared.pieces);
    free(p->end_ns);
    free(p->queues);
    free(p->bytes);
    free(p->uses);
    free(p);
}

static int push(struct queue *q, uint64_t end_ns, uint64_t bytes) {
    struct piece *pieces;

    if (q->first == q->count)
        q->first = q->count = 0;
    pieces = weir__hostmem_room(q->pieces, q->count, &q->capacity, sizeof *pieces);
    if (!pieces)
        return 0;
    q->pieces = pieces;
    pieces[q->count++] = (struct piece){end_ns, bytes};
    return 1;
}

/* Takes what has ended out of the queues. */
static void end_work(struct pending *p, uint64_t now_ns) {
    struct queue *shared = &p->shared;

    for (size_t i = 0; i < p->streams; i++) {
        struct queue *q = &p->queues[i];

        while (q->first < q->count && q->pieces[q->first].end_ns <= now_ns)
            p->now -= q->pieces[q->first++].bytes;
    }
    for (size_t i = shared->first; i < shared->count;)
        if (shared->pieces[i].end_ns <= now_ns) {
            p->now -= shared->pieces[i].bytes;
            shared->pieces[i] = shared->pieces[--shared->count];
        } else {
            i++;
        }
}

/* What the stream takes of its own pending bytes is in `now` already. */
static void take(struct pending *p, size_t stream, uint64_t bytes) {
    struct queue *q = &p->queues[stream];

    while (bytes > 0 && q->first < q->count) {
        struct piece *last = &q->pieces[q->count - 1];
        uint64_t part = last->bytes < bytes ? last->bytes : bytes;

        bytes -= part;
        last->bytes -= part;
        if (last->bytes == 0)
            q->count--;
    }
    p->now += bytes;
    if (p->now > p->most)
        p->most = p->now;
}

static int give(struct pending *p, const struct tape_op *op) {
    uint64_t end_ns = p->end_ns[op->stream];
    struct queue *q = p->uses[op->block] ? &p->shared : &p->queues[op->stream];

    for (const struct use *use = p->uses[op->block]; use; use = use->next)
        if (p->end_ns[use->stream] > end_ns)
            end_ns = p->end_ns[use->stream];
    drop_uses(p, op->block);
    return push(q, end_ns, p->bytes[op->block]);
}

static int add_use(struct pending *p, const struct tape_op *op) {
    struct use *use = malloc(sizeof *use);

    if (!use)
        return 0;
    *use = (struct use){p->uses[op->block], op->stream};
    p->uses[op->block] = use;
    return 1;
}

int pending_note(struct pending *p, const struct tape_op *op, uint64_t now_ns) {
    end_work(p, now_ns);
    switch (op->code) {
    case 'a':
        p->bytes[op->block] = op->bytes;
        take(p, op->stream, op->bytes);
        return 1;
    case 'f':
        return give(p, op);
    case 'u':
        return add_use(p, op);
    case 'w':
        if (p->end_ns[op->stream] < p->end_ns[op->block])
            p->end_ns[op->stream] = p->end_ns[op->block];
        return 1;
    default: /* a mark: the device was synchronised */
        end_work(p, UINT64_MAX);
        memset(p->end_ns, 0, p->streams * sizeof *p->end_ns);
        return 1;
    }
}

void pending_work(struct pending *p, size_t stream, uint64_t ns, uint64_t now_ns) {
    if (p->end_ns[stream] < now_ns)
        p->end_ns[stream] = now_ns;
    p->end_ns[stream] += ns;
}

uint64_t pending_floor(const struct pending *p) {
    return p->most;
}
