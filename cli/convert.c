/* SPDX-License-Identifier: MIT */
/* convert.c: `weir convert': traces from and to the formats of others. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/replace.h"
#include "base/text.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/outputs.h"
#include "cli/common/shipped.h"
#include "cli/formats/conversion.h"
#include "cli/formats/input.h"

enum { TO_KEY = 0x5601 };

static const struct conversion_format *const weirs_own = &conversion_formats[CONVERSION_OWN];

static struct command {
    const char *from, *to;
    const struct conversion_format *format;
} command;

/* ------------------------------------------------------------------- one of them ---- */

static int fail(const char *path, const char *why) {
    int is_standard = strcmp(path, "-") == 0;

    fprintf(stderr, "weir convert: %s: %s\n",
            !is_standard           ? path
            : path == command.from ? "stdin"
                                   : "stdout",
            why);
    return 1;
}

static int convert(struct conversion *conversion, const struct conversion_format *from) {
    int good;

    if (from != weirs_own)
        return from->read(conversion);
    if (weir_trace_reader_create(lines_read, &conversion->lines, &conversion->reader) != WEIR_OK) {
        conversion->failed = ENOMEM;
        return 0;
    }
    good = command.format->write(conversion);
    weir_trace_reader_destroy(conversion->reader);
    return good && !conversion->message[0];
}

/* 0, or errno.  *good: what it is converted from is. */
static int fill(struct conversion *conversion, const struct conversion_format *from, int file,
                int *good) {
    if (file < 0)
        return errno;
    conversion->sink = sink_on(file, command.to);
    if (!conversion->sink)
        return errno;
    *good = convert(conversion, from);
    if (!sink_close(conversion->sink) && !conversion->failed)
        conversion->failed = errno ? errno : EIO;
    return conversion->failed;
}

/* A file is replaced as a whole, or left as it was. */
static int write_file(struct conversion *conversion, const struct conversion_format *from,
                      int *good) {
    struct weir_replacement made;
    int why = weir__replace_begin(&made, command.to, 0666);

    if (why != 0)
        return why;
    why = fill(conversion, from, fcntl(made.file, F_DUPFD_CLOEXEC, 3), good);
    if (*good || why != 0)
        return weir__replace_end(&made, why, 0);
    (void)weir__replace_end(&made, ECANCELED, 0);
    return 0;
}

static int write_to(struct conversion *conversion, const struct conversion_format *from) {
    int good = 0, why;

    if (outputs_are_one(command.from, command.to))
        return fail(command.to, "is where it comes from");
    why = !sink_can(command.to) ? ENOTSUP
          : strcmp(command.to, "-") == 0
              ? fill(conversion, from, fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3), &good)
              : write_file(conversion, from, &good);
    if (why != 0)
        return fail(command.to, strerror(why));
    if (!good)
        return fail(command.from, conversion->message[0]         ? conversion->message
                                  : conversion->lines.message[0] ? conversion->lines.message
                                                                 : "out of memory");
    if (conversion->left_out)
        fprintf(stderr, "weir convert: %s: %" PRIu64 " event%s left out: %s has no place for %s\n",
                command.from, conversion->left_out, weir__plural(conversion->left_out),
                command.format->name, command.format->lacks);
    return 0;
}

/* What FROM is decides what the flag may be. */
static int misuse(const char *why) {
    (void)fail(command.from, why);
    return 2;
}

/* What is of no other format: a trace of weir's, which can become others, or nothing that is known. */
static int refuse_own(struct conversion *conversion) {
    static const char is_one[] =
        "this is a trace of weir's already; --to rmm or --to minimalloc converts it";
    weir_trace_event event;
    weir_status status;

    if (weir_trace_reader_create(lines_read, &conversion->lines, &conversion->reader) != WEIR_OK)
        return fail(command.from, "out of memory");
    status = weir_trace_next(conversion->reader, &event);
    if (status != WEIR_OK)
        input_refuse(conversion->reader, status, 0, conversion->message,
                     sizeof conversion->message);
    weir_trace_reader_destroy(conversion->reader);
    return status == WEIR_OK ? misuse(is_one) : fail(command.from, conversion->message);
}

static int run(void) {
    struct conversion conversion = {.name = command.from};
    const struct conversion_format *from;
    int code;

    if (!lines_open(&conversion.lines, command.from)) {
        code = fail(command.from, conversion.lines.message);
        shipped_advise(command.from);
        return code;
    }
    from = conversion_format_of(&conversion.lines);
    if (!from)
        code = fail(command.from, conversion.lines.message);
    else if (from == weirs_own && command.format == weirs_own)
        code = refuse_own(&conversion);
    else if (from != weirs_own && command.format != weirs_own)
        code = misuse("this is no trace of weir's, which --to needs");
    else
        code = write_to(&conversion, from);
    lines_close(&conversion.lines);
    return code;
}

/* --------------------------------------------------------------- the command line ---- */

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    switch (key) {
    case TO_KEY:
        for (size_t i = 0; i < CONVERSION_FORMATS; i++)
            if (strcmp(conversion_formats[i].name, argument) == 0) {
                command.format = &conversion_formats[i];
                return 0;
            }
        argp_error(state, "--to '%s': expected rmm, minimalloc or weir", argument);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            command.from = argument;
        else if (state->arg_num == 1)
            command.to = weir_cli_file(state, "TO", argument, 1);
        else
            return ARGP_ERR_UNKNOWN;
        return 0;
    case ARGP_KEY_END:
        if (!command.to)
            argp_error(state, "expected two files: from where, to where");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int weir_cmd_convert(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"to", TO_KEY, "FORMAT", 0,
         "Convert to this format; by default to a trace of weir.  Takes rmm, minimalloc or weir.",
         0},
        {0}};
    static const char doc[] =
        "Converts allocation traces from and to the formats of RMM and minimalloc.\vFROM is RMM's "
        "log (of its logging_resource_adaptor), a CSV file of minimalloc, or a trace of weir's; "
        "its first line tells which.  The first two become a trace; a trace becomes the format of "
        "--to.  '-' is standard input or output, and FROM may be the name of a trace that comes "
        "with weir; TO is compressed if its name ends in .zst or .gz.\n\nExit code: 0 all went "
        "well, 1 something failed, 2 usage or a bad value.";
    struct argp argp = {options, parse_argument, "FROM TO", doc, NULL, NULL, NULL};

    char *path;
    int code = 1;

    command.format = weirs_own;
    if (weir_cli_parse(&argp, argc, argv, 0, NULL) != 0)
        return 2;
    path = shipped_resolve(command.from);
    command.from = path;
    if (path)
        code = run();
    else
        fputs("weir: out of memory\n", stderr);
    free(path);
    return code;
}
