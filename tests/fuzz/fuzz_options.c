/* SPDX-License-Identifier: MIT */
/* fuzz_options.c: reads texts and structs that define an allocator (lib/config/option_*.c, environment.c, text.c).
 *
 * The first byte chooses: a text for each reader of text.c; a text for one option; a whole environment; a struct of any
 * bytes; a device's name.  A value that was read and written reads back unchanged.  A refused text has a message and
 * changes nothing.  Completed options are complete. */
#include "fuzz.h"

#include <string.h>
#include <unistd.h>

#include "config/settings.h"
#include "base/text.h"

enum { MOST_TEXT = 512, MESSAGE = 320 };

/* Copies the input up to a newline into a separate allocation, so that a read past the text's end is detected. */
static char *take_text(struct fuzz_bytes *in) {
    const uint8_t *end = in->left > 0 ? memchr(in->at, '\n', in->left) : NULL;
    size_t bytes = end ? (size_t)(end - in->at) : in->left, kept = bytes;
    const uint8_t *nul = bytes > 0 ? memchr(in->at, 0, bytes) : NULL;
    char *text;

    kept = nul ? (size_t)(nul - in->at) : kept;
    kept = kept < MOST_TEXT ? kept : MOST_TEXT;
    text = malloc(kept + 1);
    HOLDS(text);
    if (kept > 0)
        memcpy(text, in->at, kept);
    text[kept] = '\0';
    in->at += bytes + (end ? 1 : 0);
    in->left -= bytes + (end ? 1 : 0);
    return text;
}

/* ---- readers --------------------------------------------------------------------------------- */

static void expect_reason(const struct weir_problem *problem) {
    HOLDS(problem->text[0] && memchr(problem->text, '\0', sizeof problem->text));
}

static void read_bytes(const char *text) {
    struct weir_problem problem = {.text = ""};
    char spelled[WEIR_SPELL_BYTES], shown[WEIR_SPELL_BYTES];
    uint64_t bytes = 77, again;

    if (!weir__bytes_read(text, &bytes, &problem)) {
        expect_reason(&problem);
        SAME(bytes, 77);
        return;
    }
    weir__bytes_spell(bytes, spelled, sizeof spelled);
    HOLDS(weir__bytes_read(spelled, &again, &problem));
    SAME(again, bytes);
    weir__bytes_show(bytes, shown, sizeof shown);
    HOLDS(shown[0] >= '0' && shown[0] <= '9');
}

static void read_amount(const char *text) {
    struct weir_problem problem = {.text = ""};
    char spelled[WEIR_SPELL_BYTES];
    weir_amount amount = {77, 77}, again;

    if (!weir__amount_read(text, &amount, &problem)) {
        expect_reason(&problem);
        HOLDS(amount.value == 77 && amount.kind == 77);
        return;
    }
    HOLDS(amount.kind != WEIR_AMOUNT_DEFAULT && amount.kind < WEIR_AMOUNT_OF_IN_USE);
    HOLDS(amount.kind == WEIR_AMOUNT_BYTES || amount.value <= 1000000);
    weir__amount_spell(&amount, spelled, sizeof spelled);
    HOLDS(weir__amount_read(spelled, &again, &problem));
    HOLDS(amount.value == again.value && amount.kind == again.kind);
}

static void read_factor(const char *text) {
    struct weir_problem problem = {.text = ""};
    char spelled[WEIR_SPELL_BYTES];
    const char *end;
    double factor = 77, again;

    if (!weir__factor_read(text, &end, &factor, &problem)) {
        expect_reason(&problem);
        HOLDS(factor == 77.0);
        return;
    }
    HOLDS(end > text && end <= text + strlen(text));
    HOLDS(factor >= 0 && factor < 1e15);
    weir__factor_spell(factor, spelled, sizeof spelled);
    HOLDS(weir__factor_read(spelled, &end, &again, &problem) && *end == '\0');
    HOLDS(again >= factor && again <= factor);
}

static void read_numbers(const char *text, unsigned most) {
    struct weir_problem problem = {.text = ""};
    uint64_t value = 77;

    if (weir__fraction_read(text, &value, &problem)) {
        HOLDS(value > 0 && value <= 1000000);
    } else {
        expect_reason(&problem);
        SAME(value, 77);
    }
    value = 77;
    if (weir__count_read(text, most, &value, &problem)) {
        char spelled[24];
        size_t zeros = strspn(text, "0");

        HOLDS(value <= most);
        snprintf(spelled, sizeof spelled, "%llu", (unsigned long long)value);
        HOLDS(strcmp(spelled, value ? text + zeros : "0") == 0);
    } else {
        expect_reason(&problem);
        SAME(value, 77);
    }
}

static void read_text(struct fuzz_bytes *in) {
    unsigned most = fuzz_byte(in), room = fuzz_byte(in);
    char *text = take_text(in), *quoted = malloc(room + 1);

    HOLDS(quoted);
    read_bytes(text);
    read_amount(text);
    read_factor(text);
    read_numbers(text, most);
    memset(quoted, 'x', room + 1);
    weir__quote(text, quoted, room + 1);
    HOLDS(memchr(quoted, '\0', room + 1) && (room == 0 || quoted[0] == '\''));
    free(quoted);
    free(text);
}

/* ---- options --------------------------------------------------------------------------------- */

/* A buffer of any size for a message. */
struct reply {
    char *text;
    size_t room;
};

static struct reply make_reply(struct fuzz_bytes *in) {
    unsigned choice = fuzz_byte(in);
    struct reply reply = {NULL, choice < 200 ? MESSAGE : choice - 200};

    if (reply.room > 0) {
        reply.text = malloc(reply.room);
        HOLDS(reply.text);
        memset(reply.text, 'x', reply.room);
    }
    return reply;
}

static void end_reply(const struct reply *reply, weir_status status) {
    if (reply->room > 0) {
        HOLDS(memchr(reply->text, '\0', reply->room));
        HOLDS(reply->room == 1 || (reply->text[0] != '\0') == (status != WEIR_OK));
    }
    free(reply->text);
}

/* Checks that an accepted option, written as a text, reads back unchanged. */
static void expect_round_trip(const weir_options *options, enum weir_setting setting) {
    weir_options again;
    char shown[512], twice[512], message[MESSAGE];

    HOLDS(weir__option_is_set(options, setting));
    weir__option_show(options, setting, shown, sizeof shown);
    weir_options_init(&again);
    if (weir__option_set(&again, setting, NULL, shown, message, sizeof message) != WEIR_OK)
        FAULT("%s", message);
    weir__option_show(&again, setting, twice, sizeof twice);
    HOLDS(strcmp(shown, twice) == 0);
}

static void expect_complete(const weir_options *given) {
    weir_options out, twice;
    char message[MESSAGE], shown[512];
    weir_status status;

    memset(&out, 77, sizeof out);
    twice = out;
    status = weir__options_complete(given, &out, message, sizeof message);
    if (status != WEIR_OK) {
        HOLDS(status == WEIR_E_INVALID || status == WEIR_E_LIMIT || status == WEIR_E_NOT_SUPPORTED);
        HOLDS(message[0] && memcmp(&out, &twice, sizeof out) == 0);
        return;
    }
    HOLDS(out.engine && out.growth && out.cache && out.log && out.stream_checks);
    HOLDS(out.limit.kind && out.prealloc.kind && out.release_threshold.kind);
    HOLDS(out.recovery_timeout_ms && out.device);
    SAME(weir__options_complete(&out, &twice, message, sizeof message), WEIR_OK);
    HOLDS(memcmp(&out, &twice, sizeof out) == 0);
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        weir__option_show(&out, (enum weir_setting)i, shown, sizeof shown);
        HOLDS(shown[0] && memchr(shown, '\0', sizeof shown));
    }
}

/* Shortens names, so that there are few: the process never frees a name. */
static void keep_few(enum weir_setting setting, char *text) {
    size_t most = setting == WEIR_SETTING_DEVICE       ? 8
                  : setting == WEIR_SETTING_PROFILE    ? 1
                  : setting == WEIR_SETTING_OOM_REPORT ? 3
                                                       : SIZE_MAX;

    if (strlen(text) > most)
        text[most] = '\0';
}

static void set_options(struct fuzz_bytes *in) {
    weir_options options, before;

    weir_options_init(&options);
    while (in->left > 0) {
        enum weir_setting setting = (enum weir_setting)fuzz_choice(in, WEIR_SETTING_COUNT);
        struct reply reply = make_reply(in);
        char *text = take_text(in);
        weir_status status;

        before = options;
        keep_few(setting, text);
        status = weir_options_set(&options, weir__setting_row(setting)->name, text, reply.text,
                                  reply.room);
        HOLDS(status == WEIR_OK || status == WEIR_E_PARSE);
        if (status == WEIR_OK)
            expect_round_trip(&options, setting);
        else
            HOLDS(memcmp(&options, &before, sizeof options) == 0);
        end_reply(&reply, status);
        free(text);
    }
    expect_complete(&options);
}

static void parse_device(struct fuzz_bytes *in) {
    struct reply reply = make_reply(in);
    char *text = take_text(in);
    const char *driver = NULL;
    int ordinal = -7;
    weir_status status = weir__device_parse(text, &driver, &ordinal, reply.text, reply.room);

    if (status == WEIR_OK)
        HOLDS(ordinal >= 0 && driver && (!strcmp(driver, "cuda") || !strcmp(driver, "model")));
    else
        HOLDS(status == WEIR_E_PARSE && ordinal == -7 && !driver);
    end_reply(&reply, status);
    free(text);
}

/* ---- the environment ------------------------------------------------------------------------- */

static const char *const compat[] = {"WEIR_COMPAT",
                                     "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC",
                                     "TF_GPU_ALLOCATOR",
                                     "TF_FORCE_GPU_ALLOW_GROWTH",
                                     "XLA_CLIENT_MEM_FRACTION",
                                     "XLA_PYTHON_CLIENT_MEM_FRACTION",
                                     "XLA_PYTHON_CLIENT_PREALLOCATE",
                                     "XLA_PYTHON_CLIENT_ALLOCATOR"};
enum { COMPAT = sizeof compat / sizeof compat[0], MOST_VARIABLES = 16 };

/* Writes a variable's name, or one of a few that differ a little.  They are few, since weir remembers each warning. */
static size_t put_name(struct fuzz_bytes *in, char *to, size_t room) {
    unsigned which = fuzz_choice(in, WEIR_SETTING_COUNT + COMPAT), change = fuzz_byte(in);
    const char *known = which < COMPAT
                            ? compat[which]
                            : weir__setting_row((enum weir_setting)(which - COMPAT))->variable;
    size_t bytes = (size_t)snprintf(to, room, "%s", known);

    if (change > 250)
        to[change % bytes] = 'Q';
    else if (change > 245)
        bytes += (size_t)snprintf(to + bytes, room - bytes, "_BYTES");
    return bytes;
}

static char *take_variable(struct fuzz_bytes *in) {
    size_t room = 64 + MOST_TEXT, bytes;
    char *entry = malloc(room), *value;

    HOLDS(entry);
    bytes = put_name(in, entry, 64);
    value = take_text(in);
    if (strncmp(entry, "WEIR_DEVICE", 11) == 0)
        keep_few(WEIR_SETTING_DEVICE, value);
    if (strncmp(entry, "WEIR_PROFILE", 12) == 0)
        keep_few(WEIR_SETTING_PROFILE, value);
    if (strncmp(entry, "WEIR_OOM_REPORT", 15) == 0)
        keep_few(WEIR_SETTING_OOM_REPORT, value);
    snprintf(entry + bytes, room - bytes, "=%s", value);
    free(value);
    return entry;
}

static void read_environment(struct fuzz_bytes *in) {
    char *variables[MOST_VARIABLES + 1] = {NULL}, **before_fuzz = environ;
    struct weir_sources sources = {.of = {NULL}};
    struct reply reply = make_reply(in);
    weir_options options, before;
    enum weir_place place;
    weir_status status;
    int count = 0;

    weir_options_init(&options);
    options.log = WEIR_LOG_NONE;
    before = options;
    place = (enum weir_place)fuzz_choice(in, WEIR_PLACE_RUN + 1);
    while (in->left > 0 && count < MOST_VARIABLES)
        variables[count++] = take_variable(in);
    environ = variables;
    status = weir__options_from_env(&options, &sources, place, 1, reply.text, reply.room);
    environ = before_fuzz;
    HOLDS(status == WEIR_OK || status == WEIR_E_PARSE);
    if (status != WEIR_OK)
        HOLDS(memcmp(&options, &before, sizeof options) == 0);
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        HOLDS((sources.of[i] != NULL) ==
              (status == WEIR_OK && weir__option_is_set(&options, (enum weir_setting)i)));
    expect_complete(&options);
    end_reply(&reply, status);
    while (count > 0)
        free(variables[--count]);
}

/* ---- structs --------------------------------------------------------------------------------- */

static size_t grow_by_request(const weir_growth_state *state, void *context) {
    (void)context;
    return state->request;
}

static int fail_at_once(const weir_oom *oom, void *data) {
    (void)oom;
    (void)data;
    return 0;
}

/* Completes a struct of any bytes and any size, with valid pointers, as another version of a program may pass it. */
static void parse_options_struct(struct fuzz_bytes *in) {
    static const char *const oom_reports[] = {NULL, "", "stderr", "a file"};
    static const char *const peers[] = {NULL, "", "none", "all", "0,5", "x"};
    static _Alignas(weir_options) uint8_t bytes[2 * sizeof(weir_options)];
    weir_options *options = (weir_options *)(void *)bytes, *exact;
    size_t taken = in->left < sizeof bytes ? in->left : sizeof bytes;
    unsigned pointers = fuzz_byte(in), size = fuzz_byte(in);

    memset(bytes, 0, sizeof bytes);
    taken = in->left < sizeof bytes ? in->left : sizeof bytes;
    if (taken > 0)
        memcpy(bytes, in->at, taken);
    options->device = pointers & 1 ? "model" : pointers & 2 ? "cuda:x" : NULL;
    options->growth_function = pointers & 4 ? grow_by_request : NULL;
    options->growth_context = NULL;
    options->oom_callback = pointers & 16 ? fail_at_once : NULL;
    options->oom_callback_data = pointers & 32 ? bytes : NULL;
    options->profile = pointers & 64 ? "a file" : pointers & 128 ? "" : NULL;
    options->oom_report = oom_reports[bytes[offsetof(weir_options, oom_report)] % 4];
    options->peers = peers[bytes[offsetof(weir_options, peers)] % 6];
    options->size = pointers & 8 ? sizeof *options : (size_t)size / 4 * 8; /* no half pointers */
    if (options->size > sizeof bytes)
        options->size = sizeof bytes;
    exact = malloc(options->size > sizeof options->size ? options->size : sizeof options->size);
    HOLDS(exact);
    memcpy(exact, bytes,
           options->size > sizeof options->size ? options->size : sizeof options->size);
    expect_complete(exact);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_bytes in = {data, size};

    switch (fuzz_choice(&in, 5)) {
    case 0:
        read_text(&in);
        break;
    case 1:
        set_options(&in);
        break;
    case 2:
        read_environment(&in);
        break;
    case 3:
        parse_options_struct(&in);
        break;
    default:
        parse_device(&in);
    }
    return 0;
}
