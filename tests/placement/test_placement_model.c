/* SPDX-License-Identifier: MIT */
/* test_placement_model.c: placement against a slow model (placement_model.h).
 *
 * Random sequences run on both, every answer and the whole layout are compared after each step, and placement checks
 * its own invariants. */
#include "tests/fixtures/placement_model.h"
#include "tests/fixtures/placements.h"

static int can_be_waited_for(void *context, uint64_t stream, uint64_t sequence) {
    (void)context;
    return (stream + sequence) % 3 != 0;
}

/* ---- operations that the model has here alone ------------------------------------------------ */

static int model_is_others(const struct piece *c, uint64_t stream) {
    return c->sequence != 0 && (stream == 0 || c->stream != stream);
}

static int model_may_have(const struct piece *c, uint64_t stream) {
    return c->requested == 0 &&
           (!model_is_others(c, stream) || can_be_waited_for(NULL, c->stream, c->sequence));
}

/* Finds the fewest pieces up to `end` that hold `size` bytes, and sets `first`.  Returns their bytes, or 0. */
static size_t model_run(size_t end, size_t size, uint64_t stream, size_t *first) {
    size_t sum = 0;

    for (size_t i = end + 1; i-- > 0;) {
        const struct piece *c = &model.piece[i];

        if (c->region != model.piece[end].region || !model_may_have(c, stream))
            return 0;
        sum += c->size;
        *first = i;
        if (sum >= size)
            return sum;
    }
    return 0;
}

static int model_take_behind(size_t bytes, uint64_t stream, struct weir_placement_block *out) {
    size_t size =
        (bytes + model.rule.granularity - 1) / model.rule.granularity * model.rule.granularity;
    size_t best = 0, at = 0, first = 0;
    model_seen(stream);
    for (size_t i = 0; model.several && i < model.pieces; i++) {
        size_t sum = model_run(i, size, stream, &first);

        if (sum > 0 && (best == 0 || sum < best)) {
            best = sum;
            at = first;
        }
    }
    if (best == 0)
        return WEIR_PLACEMENT_NO_FIT;
    for (size_t i = at, got = 0; got < size; got += model.piece[i++].size)
        if (model_is_others(&model.piece[i], stream))
            note_wait(NULL, model.piece[i].stream, model.piece[i].sequence);
    while (model.piece[at].size < size) { /* the next one's beginning, or all of it */
        size_t more = size - model.piece[at].size;

        if (model.piece[at + 1].size > more)
            model_cut(at + 1, more);
        model.piece[at].size += model.piece[at + 1].size;
        model_delete(at + 1);
    }
    if (model.piece[at].size > size)
        model_cut(at, size);
    struct piece *c = &model.piece[at];
    c->requested = bytes;
    c->sequence = c->stream = 0;
    if (c->base + c->size > model.high[c->region])
        model.high[c->region] = c->base + c->size;
    *out = (struct weir_placement_block){c->base, bytes, c->size};
    return WEIR_PLACEMENT_OK;
}

/* Returns the first piece of the region that starts at `base`, or NULL. */
static const struct piece *model_region(uint64_t base) {
    for (size_t i = 0; i < model.pieces; i++) {
        const struct piece *c = &model.piece[i];

        if (c->base == base && (i == 0 || c[-1].region != c->region))
            return c;
    }
    return NULL;
}

/* Returns 1 if the piece is all of its region and the region may be removed, 0 if not. */
static int model_is_idle(const struct piece *first) {
    const struct piece *next = first + 1;

    return first->requested == 0 && !model_waits(first) &&
           (next == model.piece + model.pieces || next->region != first->region);
}

static int model_remove(uint64_t base) {
    const struct piece *first = model_region(base);

    if (first == NULL)
        return WEIR_PLACEMENT_FOREIGN;
    if (!model_is_idle(first))
        return WEIR_PLACEMENT_BUSY;
    model.used[first->region] = 0;
    model_delete((size_t)(first - model.piece));
    return WEIR_PLACEMENT_OK;
}

/* ---- differential ---------------------------------------------------------------------------- */

static void same_piece(size_t at, const struct weir_placement_span *span) {
    const struct piece *c = &model.piece[at];
    int waits = c->requested == 0 && model_waits(c);

    MUST(at < model.pieces);
    MUST_EQUAL(span->address, c->base);
    MUST_EQUAL(span->size, c->size);
    MUST_EQUAL(span->requested, c->requested);
    MUST_EQUAL(span->live, c->requested != 0);
    MUST_EQUAL(span->sequence, waits ? c->sequence : 0);
    MUST_EQUAL(span->stream, !waits ? 0 : model.several ? c->stream : model.only);
}

static void same_layout(void) {
    struct weir_placement_span span = {0};
    size_t at = 0;

    while (weir__placement_next(p, &span))
        same_piece(at++, &span);
    MUST_EQUAL(at, model.pieces);
    healthy();
}

/* The block allocated last.  The next step may well free it, or request its size again. */
static struct weir_placement_block last;
static uint64_t last_stream;

/* Compares an allocation with the model's. */
static void differ_take(uint64_t stream, size_t bytes) {
    struct weir_placement_block ours = {0};
    struct weir_placement_block theirs = {0};

    MUST_EQUAL(weir__placement_alloc(p, bytes, record_of(stream), &ours),
               model_take(bytes, stream, &theirs));
    if (ours.size != 0) {
        last = ours;
        last_stream = stream;
    }
    MUST_EQUAL(ours.address, theirs.address);
    MUST_EQUAL(ours.requested, theirs.requested);
    MUST_EQUAL(ours.size, theirs.size);
}

static void differ_take_behind(uint64_t stream, size_t bytes) {
    static const struct weir_placement_waits waits = {can_be_waited_for, note_wait, NULL};
    struct weir_placement_block ours = {0};
    struct weir_placement_block theirs = {0};
    char expected[sizeof waited_for];
    waited_for[0] = '\0';
    int result = model_take_behind(bytes, stream, &theirs);
    memcpy(expected, waited_for, sizeof expected);
    waited_for[0] = '\0';
    MUST_EQUAL(weir__placement_alloc_wait(p, bytes, record_of(stream), &waits, &ours), result);
    MUST(strcmp(expected, waited_for) == 0);
    MUST_EQUAL(ours.address, theirs.address);
    MUST_EQUAL(ours.requested, theirs.requested);
    MUST_EQUAL(ours.size, theirs.size);
}

/* Returns a live piece, as a rule. */
static const struct piece *random_piece(void) {
    const struct piece *c = &model.piece[random_below(model.pieces)];

    for (int i = 0; i < 5 && c->requested == 0; i++)
        c = &model.piece[random_below(model.pieces)];
    return c;
}

static void differ_give_at(uint64_t address, uint64_t stream, uint64_t sequence) {
    struct weir_placement_block ours = {0};
    struct weir_placement_block theirs = {0};
    int expected = model_give(address, stream, sequence, &theirs);

    MUST_EQUAL(weir__placement_find(p, address, &ours), expected);
    MUST_EQUAL(give_at(address, stream, sequence, &ours), expected);
    MUST_EQUAL(ours.address, theirs.address);
    MUST_EQUAL(ours.requested, theirs.requested);
    MUST_EQUAL(ours.size, theirs.size);
}

static void differ_give(uint64_t stream, uint64_t sequence) {
    const struct piece *c = random_piece();

    differ_give_at(c->base + (random_below(40) == 0 ? random_below(2 * c->size) : 0), stream,
                   sequence);
}

/* Allocates and frees a block again and again, for which a placement may take a short cut. */
static void differ_again(uint64_t stream, uint64_t *sequence) {
    size_t bytes = random_request_bytes();

    differ_take(stream, bytes);
    for (size_t i = random_below(4); i > 0; i--) {
        if (random_below(8) == 0)
            stream = last_stream;
        differ_give_at(last.address, stream, ++*sequence);
        if (random_below(8) == 0) {
            observe_frees_until(stream, *sequence);
            model_observe(stream, *sequence);
        }
        if (random_below(4) == 0 && last.size != 0)
            bytes = random_below(2) == 0 ? last.requested : last.size;
        differ_take(stream, bytes);
    }
}

/* Adds a region at one of eight adjacent places.  Or tries to remove the region there, or all regions but one. */
static void differ_region(void) {
    uint64_t base = BASE + random_below(8) * 64 * KIB;
    int taken = 0;
    if (random_below(2) == 0) {
        for (size_t i = random_below(2) == 0 ? 7 : 0; i < 8 && model.pieces > 1; i++) {
            MUST_EQUAL(weir__placement_remove(p, base), model_remove(base));
            base = BASE + i * 64 * KIB;
        }
        if (model.pieces > 0)
            return;
    }
    size_t bytes = (1 + random_below(256)) * G;
    for (size_t i = 0; i < model.pieces; i++)
        taken |=
            model.piece[i].base < base + bytes && base < model.piece[i].base + model.piece[i].size;
    MUST_EQUAL(weir__placement_add(p, base, bytes),
               taken ? WEIR_PLACEMENT_INVALID : WEIR_PLACEMENT_OK);
    if (!taken)
        model_add(base, bytes);
}

/* Plays `steps` random operations by `streams` streams, with stream 0 among them if there are at least four.  One step
 * in `look` compares the layouts. */
static void differ(const struct weir_placement_rule *rule, uint64_t seed, size_t streams,
                   size_t steps, size_t look) {
    static const uint64_t ids[] = {A, B, C, 0, 1};
    uint64_t sequence = 0;

    memset(&model, 0, sizeof model);
    model.rule = *rule;
    random_state = seed;
    p = NULL;
    forget_streams();
    MUST_EQUAL(weir__placement_create(rule, &p), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_add(p, BASE, 64 * KIB), WEIR_PLACEMENT_OK);
    model_add(BASE, 64 * KIB);
    for (size_t i = 0; i < steps; i++) {
        uint64_t stream = ids[random_below(streams)];
        size_t what = random_below(100);
        size_t takes = i / 300 % 2 == 0 ? 55 : 35; /* the region fills and empties in turn */

        sequence++;
        if (what < takes && random_below(12) == 0) {
            differ_take_behind(stream, random_request_bytes());
        } else if (what < takes) {
            differ_take(stream, random_request_bytes());
        } else if (what < 88) {
            differ_give(stream, sequence);
        } else if (what < 92) {
            differ_again(stream, &sequence);
        } else if (what < 97) {
            uint64_t past = sequence - random_below(sequence < 60 ? sequence : 60);

            observe_frees_until(stream, past);
            model_observe(stream, past);
        } else {
            differ_region();
        }
        if (random_below(50) == 0) {
            weir__placement_set_merge_floor(p, record_of(stream), last_freed[stream]);
            model_part(stream);
        }
        /* A comparison may undo a short cut, so runs of steps without one are tested, too. */
        if (look == 1 || random_below(look) == 0)
            same_layout();
    }
    same_layout();
    end_placement();
}

static const struct weir_placement_rule rules[] = {
    {.granularity = 256, .split_waste = 128 * MIB},
    {.granularity = 256, .split_waste = 4096},
    {.granularity = 256, .split_waste = 256},
    {.granularity = 16, .split_waste = 128 * MIB},
    {.granularity = 256, .split_waste = 256, .prefer_tagged = 1},
};
enum { RULES = sizeof rules / sizeof rules[0] };

CASE("model", 120, NULL, NULL);

TEST_EACH(12, one_stream_agrees_with_the_model) {
    differ(&rules[_i % RULES], test_seed(_i), 1, 25000, _i < 4 ? 1 : 7);
}

TEST_EACH(16, several_streams_agree_with_the_model) {
    differ(&rules[_i % RULES], test_seed(100 + _i), 2 + (size_t)_i % 4, 25000, _i < 8 ? 1 : 7);
}

/* A second stream appears again and again, each time in another layout. */
TEST_EACH(4, second_streams_agree_with_the_model) {
    for (int i = 0; i < 100; i++)
        differ(&rules[i % RULES], test_seed(1000 + 100 * _i + i), 2 + (size_t)(i % 2) * 2,
               20 + (size_t)i, 1 + (size_t)_i);
}

SUITE("placement model", CK_FORK_GETENV);
