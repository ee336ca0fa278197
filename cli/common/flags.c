/* SPDX-License-Identifier: MIT */
/* flags.c: makes a command-line flag for each setting of an allocator.
 *
 * The option table (lib/config) has a row for each setting.  weir makes a flag and its help text from each row.
 *
 * This file must not contain code for a certain subcommand or setting.
 */
#include "cli/common/flags.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/profile_use.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/common/files.h"
#include "config/amount.h"

/* The keys of flags without a one-letter name begin here.  argp would accept a key below 256 as a one-letter name. */
enum { FIRST_KEY = 0x5700, FIRST_OF_TABLE = 0x5800 };

/* The names of flags in messages, such as "flag --prealloc". */
static char flag_names[WEIR_SETTING_COUNT][40];
static char flag_docs[WEIR_SETTING_COUNT][512];
static struct argp_option flag_options[WEIR_SETTING_COUNT + 1];
static int hidden_setting;

#define PROFILE_EXPECTED "expected a profile, the name of one to be made, or a folder"

/* The exit codes after an error.  BAD_VALUE is for a flag or variable whose value is wrong on every machine. */
enum { FAILED = 1, BAD_VALUE };

static int report_problem(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints a line to standard error, and returns `code'. */
static int report_problem(int code, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    fputs("weir: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return code;
}

/* -------------------------------------------------------------------- flags ---- */

void weir_cli_settings_set(struct weir_cli_settings *settings, enum weir_setting setting,
                           const char *text) {
    const char *label = flag_names[setting] + strlen("flag ");
    char error[sizeof settings->error];

    if (weir__option_set(&settings->options, setting, label, text, error, sizeof error) == WEIR_OK)
        settings->sources.of[setting] = flag_names[setting];
    else if (!settings->error[0])
        snprintf(settings->error, sizeof settings->error, "%s", error);
}

static error_t parse_setting_flag(int key, char *argument, struct argp_state *state) {
    if (key < FIRST_KEY || key >= FIRST_KEY + WEIR_SETTING_COUNT)
        return ARGP_ERR_UNKNOWN;
    weir_cli_settings_set(state->input, (enum weir_setting)(key - FIRST_KEY), argument);
    return 0;
}

/* Replaces each pair of blanks by one blank.  Otherwise argp could break a line between both blanks, and begin the next
 * line with a blank. */
static void remove_double_blanks(char *text) {
    char *to = text;

    for (const char *from = text; *from; from++)
        if (from[0] != ' ' || from[1] != ' ')
            *to++ = *from;
    *to = '\0';
}

/* Fills argp's list of options, one for each setting.  Help texts list advanced settings only if `all' is set. */
static void list_flags(int all) {
    struct argp_option *option = flag_options;

    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        const struct weir_setting_row *row = weir__setting_row((enum weir_setting)i);

        snprintf(flag_docs[i], sizeof flag_docs[i], "%s  Takes %s.  Default: %s.", row->help,
                 row->accepts,
                 i == WEIR_SETTING_DEVICE ? "here the GPU if there is one, else the model"
                                          : row->default_text);
        remove_double_blanks(flag_docs[i]);
        *option++ = (struct argp_option){
            .name = row->name,
            .key = FIRST_KEY + i,
            .arg = row->argument,
            .flags = i == hidden_setting || (row->is_advanced && !all) ? OPTION_HIDDEN : 0,
            .doc = flag_docs[i]};
    }
}

const struct argp *weir_settings_argp(int hidden) {
    static const struct argp argp = {.options = flag_options, .parser = parse_setting_flag};

    hidden_setting = hidden;
    list_flags(0);
    return &argp;
}

int help_is_requested(const char *argument) {
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0 ||
           strcmp(argument, "-?") == 0;
}

/* Lists advanced settings in the help if the arguments contain `--help --all'.  Must run before argp_parse(), because
 * argp prints the help as soon as it reads --help. */
static void list_advanced_if_requested(int argc, char **argv) {
    for (int i = 1; i + 1 < argc && strcmp(argv[i], "--") != 0; i++)
        if (help_is_requested(argv[i]) && strcmp(argv[i + 1], "--all") == 0)
            list_flags(1);
}

/* -------------------------------------------------------------- misspelt flags ---- */

/* Returns 1 if the misspelt word is one of the words of the name, such as "limit" in "group-limit"; else 0. */
static int is_part_of_name(const struct suggestion *suggestion, const char *name) {
    size_t length;

    for (; (length = strcspn(name, "-")) > 0; name += length + (name[length] == '-'))
        if (length == suggestion->length && strncmp(name, suggestion->word, length) == 0)
            return 1;
    return 0;
}

void suggestion_add(struct suggestion *suggestion, const char *name) {
    size_t distance = weir__text_distance(suggestion->word, suggestion->length, name);

    if (distance > 1 && is_part_of_name(suggestion, name))
        distance = 1;
    if (suggestion->closest && distance >= suggestion->distance)
        return;
    suggestion->closest = name;
    suggestion->distance = distance;
}

const char *suggestion_closest(const struct suggestion *suggestion) {
    return suggestion->closest && suggestion->distance <= 2 &&
                   suggestion->distance * 2 < suggestion->length
               ? suggestion->closest
               : NULL;
}

/* Compares the misspelt word with all options of a command.  Returns 1 if an option begins with the word, because argp
 * accepts such a word; else 0. */
static int compare_options(struct suggestion *suggestion, const struct argp *argp) {
    int is_known = 0;

    for (const struct argp_option *o = argp->options; o && (o->name || o->key || o->doc); o++)
        if (o->name) {
            is_known |= strncmp(suggestion->word, o->name, suggestion->length) == 0;
            suggestion_add(suggestion, o->name);
        }
    for (const struct argp_child *child = argp->children; child && child->argp; child++)
        is_known |= compare_options(suggestion, child->argp);
    return is_known;
}

/* An option that is similar to the first unknown option in the arguments, or NULL. */
static const char *suggested_option;
/* The stream to which argp prints errors if there is a suggested option.  The stream calls write_suggestion(). */
static FILE *argp_errors;
static argp_parser_t parser_of_command;

static const char *find_suggested_option(const struct argp *argp, int argc, char **argv) {
    static const struct argp_option of_argp[] = {
        {.name = "help"}, {.name = "usage"}, {.name = "version"}, {0}};
    static const struct argp own = {.options = of_argp};

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        struct suggestion suggestion = {0};

        if (strncmp(argv[i], "--", 2) != 0)
            continue;
        suggestion.word = argv[i] + 2;
        suggestion.length = strcspn(suggestion.word, "=");
        if (!(compare_options(&suggestion, &own) | compare_options(&suggestion, argp)))
            return suggestion_closest(&suggestion);
    }
    return NULL;
}

/* Writes a message of argp to standard error (a function for fopencookie(3)).  Writes the suggested option before
 * argp's line "Try ... --help". */
static ssize_t write_suggestion(void *unused, const char *words, size_t bytes) {
    static int has_begun;

    (void)unused;
    if (!has_begun && bytes > 4 && strncmp(words, "Try ", 4) == 0)
        fprintf(stderr, "weir: did you mean --%s?\n", suggested_option);
    has_begun = 1;
    return (ssize_t)fwrite(words, 1, bytes, stderr);
}

static error_t parse_with_suggestion(int key, char *argument, struct argp_state *state) {
    if (key == ARGP_KEY_INIT && argp_errors)
        state->err_stream = argp_errors;
    return parser_of_command(key, argument, state);
}

/* ---------------------------------------------------------------- help on a flag ---- */

/* If `topic' is not NULL, weir_cli_parse() only prints the help of the flag topic->word. */
static struct suggestion *topic;
static int topics;

/* Prints the help of the flag `topic', if the command has this flag. */
static void print_topic(const struct argp *argp, const char *command) {
    const struct argp_option *named = NULL; /* the option whose aliases follow in the table */

    for (const struct argp_option *o = argp->options; o && (o->name || o->key || o->doc); o++) {
        if (!(o->flags & OPTION_ALIAS))
            named = o;
        if (!o->name || (named->flags & OPTION_HIDDEN))
            continue;
        suggestion_add(topic, o->name);
        if (strcmp(o->name, topic->word) != 0)
            continue;
        printf("%s%s --%s%s%s%s\n    %s\n", topics++ ? "\n" : "", command, named->name,
               !named->arg                          ? ""
               : named->flags & OPTION_ARG_OPTIONAL ? "[="
                                                    : "=",
               named->arg ? named->arg : "",
               named->arg && (named->flags & OPTION_ARG_OPTIONAL) ? "]" : "", named->doc);
    }
    for (const struct argp_child *child = argp->children; child && child->argp; child++)
        print_topic(child->argp, command);
}

int weir_cli_flag_print_help(struct suggestion *flag, int (*command)(int argc, char **argv),
                             char *title) {
    char *arguments[] = {title, NULL};
    int before = topics;

    topic = flag;
    (void)command(1, arguments);
    topic = NULL;
    return topics > before;
}

/* --------------------------------------------------------------------- parsing ---- */

/* Prints the help for the option -h, which argp itself does not offer. */
static error_t parse_help(int key, char *argument, struct argp_state *state) {
    (void)argument;
    if (key != 'h')
        return ARGP_ERR_UNKNOWN;
    argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP);
    return 0;
}

int weir_cli_flush_output(void) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 1;
    report_problem(FAILED, "cannot write standard output: %s", strerror(errno));
    return 0;
}

static int is_parsing;

/* Changes the exit code to 1 if a help text could not be written.  Runs at exit(3), because argp itself calls exit(0)
 * after a help text. */
static void check_help(void) {
    if (is_parsing && !weir_cli_flush_output())
        _exit(1);
}

error_t weir_cli_parse(const struct argp *argp, int argc, char **argv, unsigned flags,
                       void *input) {
    static const struct argp_option help_options[] = {{.key = 'h', .flags = OPTION_HIDDEN}, {0}};
    static const struct argp help_argp = {.options = help_options, .parser = parse_help};
    struct argp_child children[8] = {{0}};
    struct argp suggesting = *argp;
    size_t count = 0;
    error_t error;

    if (topic) {
        print_topic(argp, argv[0]);
        return EINVAL;
    }
    for (; argp->children && argp->children[count].argp; count++)
        children[count] = argp->children[count];
    children[count].argp = &help_argp;
    suggesting.children = children;
    list_advanced_if_requested(argc, argv);
    parser_of_command = argp->parser;
    suggesting.parser = parse_with_suggestion;
    suggested_option = find_suggested_option(argp, argc, argv);
    if (suggested_option)
        argp_errors = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_suggestion});
    if (argp_errors)
        setvbuf(argp_errors, NULL, _IOLBF, 0);
    is_parsing = atexit(check_help) == 0;
    error = argp_parse(&suggesting, argc, argv, flags, NULL, input);
    is_parsing = 0;
    if (argp_errors)
        fclose(argp_errors);
    argp_errors = NULL;
    return error;
}

/* ------------------------------------------------------------- tables of flags ---- */

static int flag_key(const struct weir_cli_flag *flags, size_t i) {
    return flags[i].key > 0 && flags[i].key < WEIR_CLI_OPTIONAL ? flags[i].key
                                                                : FIRST_OF_TABLE + (int)i;
}

const struct argp_option *weir_cli_options(const struct weir_cli_flag *flags) {
    /* Room for the options of all commands, because `weir help' converts the flags of every command. */
    static struct argp_option room[128];
    static size_t used;
    size_t first = used;

    for (size_t i = 0; flags[i].name; i++)
        room[used++] =
            (struct argp_option){.name = flags[i].name,
                                 .key = flag_key(flags, i),
                                 .arg = flags[i].argument,
                                 .flags = flags[i].key == WEIR_CLI_OPTIONAL ? OPTION_ARG_OPTIONAL
                                          : flags[i].key == WEIR_CLI_HIDDEN ? OPTION_HIDDEN
                                                                            : 0,
                                 .doc = flags[i].help};
    used++;
    return &room[first];
}

error_t weir_cli_read_flag(const struct weir_cli_flag *flags, int key, char *argument,
                           struct argp_state *state) {
    char label[40];
    size_t i = 0;

    while (flags[i].name && flag_key(flags, i) != key)
        i++;
    if (!flags[i].name)
        return ARGP_ERR_UNKNOWN;
    snprintf(label, sizeof label, "--%s", flags[i].name);
    flags[i].read(state, label, argument, (char *)state->input + flags[i].field);
    return 0;
}

void weir_cli_read_switch(struct argp_state *state, const char *flag, const char *text,
                          void *field) {
    (void)state, (void)flag, (void)text;
    *(int *)field = 1;
}

void weir_cli_read_text(struct argp_state *state, const char *flag, const char *text, void *field) {
    (void)state, (void)flag;
    *(const char **)field = text;
}

void weir_cli_read_output(struct argp_state *state, const char *flag, const char *text,
                          void *field) {
    if (!*text)
        argp_error(state, "%s '': expected the name of a file", flag);
    *(const char **)field = text;
}

void weir_cli_read_file(struct argp_state *state, const char *flag, const char *text, void *field) {
    if (strcmp(text, "-") == 0)
        argp_error(state, "%s '-': expected the name of a file", flag);
    weir_cli_read_output(state, flag, text, field);
}

void weir_cli_read_page(struct argp_state *state, const char *flag, const char *text, void *field) {
    const char *dot = strrchr(text, '.');

    if (!dot || dot == text || (strcmp(dot, ".html") != 0 && strcmp(dot, ".htm") != 0))
        argp_error(state, "%s '%s': expected a file whose name ends in .html", flag, text);
    *(const char **)field = text;
}

void weir_cli_read_size(struct argp_state *state, const char *flag, const char *text, void *field) {
    struct weir_problem problem = {.text = "it is 0"};

    if (!weir__size_read(text, field, &problem) || *(uint64_t *)field == 0)
        argp_error(state, "%s '%s': %s; expected a size, such as 24GiB", flag, text, problem.text);
}

void weir_cli_read_device(struct argp_state *state, const char *flag, const char *text,
                          void *field) {
    (void)state, (void)flag;
    weir_cli_settings_set(field, WEIR_SETTING_DEVICE, text);
}

static int is_name_of(const struct weir_setting_row *row, const char *name) {
    return strcmp(name, row->name) == 0 || strcmp(name, row->variable) == 0;
}

int weir_cli_settings_print_help(const char *name, FILE *file) {
    int printed = 0, few = name && strcmp(name, "settings") == 0, left = 0;

    if (name && strncmp(name, "--", 2) == 0)
        name += 2;
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        const struct weir_setting_row *row = weir__setting_row((enum weir_setting)i);

        if (few ? row->is_advanced : name && !is_name_of(row, name)) {
            left++;
            continue;
        }
        fprintf(file, "%s--%s=%s, %s\n    %s\n    Takes %s.\n    Default: %s.\n",
                printed ? "\n" : "", row->name, row->argument, row->variable, row->help,
                row->accepts, row->default_text);
        printed = 1;
    }
    if (few)
        fprintf(file, "\n%d more settings are advanced: `weir help --all' shows all.\n", left);
    return printed;
}

void weir_cli_settings_init(struct weir_cli_settings *settings) {
    memset(settings, 0, sizeof *settings);
    settings->options.size = sizeof settings->options;
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        snprintf(flag_names[i], sizeof flag_names[i], "flag --%s",
                 weir__setting_row((enum weir_setting)i)->name);
}

int weir_cli_settings_finish(struct weir_cli_settings *settings) {
    char *error = settings->error;
    size_t bytes = sizeof settings->error;
    weir_options completed;

    if (!error[0] &&
        weir__options_from_env(&settings->options, &settings->sources, settings->place, 1, error,
                               bytes) == WEIR_OK &&
        weir__options_complete(&settings->options, &completed, error, bytes) == WEIR_OK)
        return 0;
    return report_problem(BAD_VALUE, "%s", error);
}

/* Returns NULL if the file can be used as a profile, else the reason why not.  Accepts an empty file or a folder,
 * too. */
static const char *profile_problem(const char *path, const struct stat *is) {
    static const char title[] = "weir profile ";
    char begin[sizeof title] = "";
    FILE *file;
    size_t bytes;

    if (S_ISDIR(is->st_mode))
        return access(path, W_OK | X_OK) == 0 ? NULL : strerror(errno);
    if (!S_ISREG(is->st_mode))
        return "it is no plain file; " PROFILE_EXPECTED;
    file = fopen(path, "re");
    if (!file)
        return strerror(errno);
    bytes = fread(begin, 1, sizeof title - 1, file);
    fclose(file);
    return bytes > 0 && strcmp(begin, title) != 0
               ? "it is not a profile, and weir does not overwrite it; " PROFILE_EXPECTED
               : NULL;
}

const char *weir_cli_source_name(const struct weir_cli_settings *settings,
                                 enum weir_setting setting) {
    const char *source = settings->sources.of[setting];

    return !source ? weir__setting_row(setting)->name
                   : source + (strncmp(source, "flag ", 5) == 0 ? 5 : 0);
}

const char *weir_cli_file_of(const weir_options *options, enum weir_setting setting) {
    int is_oom_report = setting == WEIR_SETTING_OOM_REPORT;
    const char *path = is_oom_report ? options->oom_report : options->profile;

    return !path || strcmp(path, "off") == 0 || (is_oom_report && strcmp(path, "stderr") == 0)
               ? NULL
               : path;
}

int weir_cli_oom_report_check(const struct weir_cli_settings *settings) {
    const char *path = weir_cli_file_of(&settings->options, WEIR_SETTING_OOM_REPORT);

    return !path || output_check_append(weir_cli_source_name(settings, WEIR_SETTING_OOM_REPORT),
                                        path)
               ? 0
               : FAILED;
}

/* Prints that this run will create the profile. */
static void report_first_profile(const struct weir_cli_settings *settings) {
    const char *path = settings->options.profile;
    char amount[WEIR_SHOW_BYTES];

    if (!weir__run_profile_is_possible(&settings->options))
        return;
    weir__option_show(&settings->options, WEIR_SETTING_PREALLOC, amount, sizeof amount);
    if (weir__option_is_set(&settings->options, WEIR_SETTING_PREALLOC))
        report_problem(0,
                       "profile %s: it does not exist yet: this run creates it if it allocates "
                       "device memory; %s '%s' preallocates instead, as long as it is set",
                       path, weir_cli_source_name(settings, WEIR_SETTING_PREALLOC), amount);
    else
        report_problem(0,
                       "profile %s: it does not exist yet: this run creates it if it allocates "
                       "device memory, and the next run preallocates accordingly",
                       path);
}

int weir_cli_profile_check(const struct weir_cli_settings *settings, int creates) {
    const char *path = weir_cli_file_of(&settings->options, WEIR_SETTING_PROFILE), *why = NULL;
    struct stat is;

    if (!path)
        return 0;
    if (stat(path, &is) == 0)
        why = profile_problem(path, &is);
    else if (errno != ENOENT || !output_can_create(path))
        why = strerror(errno);
    else if (creates)
        report_first_profile(settings);
    return why ? report_problem(FAILED, "%s %s: %s",
                                weir_cli_source_name(settings, WEIR_SETTING_PROFILE), path, why)
               : 0;
}

void weir_cli_settings_report_unused(const struct weir_cli_settings *settings) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        if (settings->sources.of[i] && i != WEIR_SETTING_DEVICE && i != WEIR_SETTING_LOG)
            fprintf(stderr, "weir: %s has no effect: configurations have fixed settings\n",
                    settings->sources.of[i]);
}

json_t *weir_cli_options_json(const weir_options *options) {
    json_t *object = json_object();
    char text[WEIR_SHOW_BYTES];

    for (int i = 0; object && i < WEIR_SETTING_COUNT; i++) {
        weir__option_show(options, (enum weir_setting)i, text, sizeof text);
        if (json_object_set_new(object, weir__setting_row((enum weir_setting)i)->name,
                                json_string(text)) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

/* -------------------------------------------------------- a file of settings ---- */

struct reading {
    struct weir_cli_settings *settings;
    const char *flag, *path;
    unsigned line;
    /* The settings that flags have set.  The settings file must not change them. */
    struct weir_sources flags;
};

static int refuse_line(const struct reading *reading, const char *why) {
    return report_problem(BAD_VALUE, "%s %s:%u: %s", reading->flag, reading->path, reading->line,
                          why);
}

int weir_cli_setting(const char *name, size_t length) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        const char *setting = weir__setting_row((enum weir_setting)i)->name;

        if (strlen(setting) == length && strncmp(setting, name, length) == 0)
            return i;
    }
    return WEIR_SETTING_COUNT;
}

static int read_setting_line(struct reading *reading, char *line) {
    static char source[WEIR_SETTING_COUNT][64];
    weir_options *options = &reading->settings->options, unused = *options;
    char *value = strchr(line, '='), why[512], name[80];
    int setting;

    if (!*line || *line == '#')
        return 0;
    weir__quote(line, name, sizeof name);
    if (!value) {
        snprintf(why, sizeof why, "%s: expected NAME=VALUE, such as engine=pool", name);
        return refuse_line(reading, why);
    }
    *value++ = '\0';
    setting = weir_cli_setting(line, strlen(line));
    if (setting == WEIR_SETTING_COUNT) {
        weir__quote(line, name, sizeof name);
        snprintf(why, sizeof why, "there is no setting %s; weir help --all lists them", name);
        return refuse_line(reading, why);
    }
    if (reading->flags.of[setting])
        options = &unused;
    if (weir__option_set(options, (enum weir_setting)setting, NULL, value, why, sizeof why) !=
        WEIR_OK)
        return refuse_line(reading, why);
    if (options == &unused)
        return 0;
    snprintf(source[setting], sizeof source[setting], "flag %s", reading->flag);
    reading->settings->sources.of[setting] = source[setting];
    return 0;
}

int settings_file_read(struct weir_cli_settings *settings, const char *flag, const char *path) {
    struct reading reading = {
        .settings = settings, .flag = flag, .path = path, .flags = settings->sources};
    char why[128], *text = weir__file_text(path, why, sizeof why), *rest = text, *line;
    int code = 0;

    if (!text)
        return report_problem(FAILED, "%s %s: %s", flag, path, why);
    while (code == 0 && (reading.line++, line = strsep(&rest, "\n"))) {
        line[strcspn(line, "\r")] = '\0';
        code = read_setting_line(&reading, line);
    }
    free(text);
    return code;
}

/* ------------------------------------------------------------------- device ---- */

const char *weir_cli_model_profile(void) {
    const char *path = getenv("WEIR_MODEL_PROFILE");

    return path ? path : "built-in";
}

/* Sets device->name, such as "cuda:0 NVIDIA H200".  The simulated device is named "model h200", so that its figures do
 * not pass for measurements of an NVIDIA H200. */
static void name_device(const char *driver, char *model, struct weir_cli_device *device) {
    char *end = strstr(model, " ("), *word;

    if (strcmp(driver, "model") != 0) {
        snprintf(device->name, sizeof device->name, "%s:%d %s", driver, device->ordinal, model);
        return;
    }
    if (end)
        *end = '\0';
    word = strrchr(model, ' ');
    word = word ? word + 1 : model;
    for (char *c = word; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    if (device->ordinal == 0)
        snprintf(device->name, sizeof device->name, "model %s", word);
    else
        snprintf(device->name, sizeof device->name, "model:%d %s", device->ordinal, word);
}

/* Opens device `ordinal' of the driver `name' ("cuda" or "model").  Returns 1 on success.  On failure, writes the
 * reason to `why' and returns 0. */
static int open_named_device(const char *name, int ordinal, struct weir_cli_device *device,
                             char *why, size_t why_bytes) {
    struct weir_driver_failure failure;
    CUresult result;
    CUdevice handle;
    size_t total = 0;
    char model[96];

    device->driver = weir__driver_open(name, &failure);
    if (!device->driver) {
        snprintf(why, why_bytes, "%s", failure.text);
        return 0;
    }
    device->ordinal = ordinal;
    result = device->driver->cuDeviceGetCount(&device->count);
    if (result == CUDA_SUCCESS && ordinal >= device->count) {
        snprintf(why, why_bytes, "the %s sees %d device%s",
                 strcmp(name, "model") == 0 ? "device model" : "driver", device->count,
                 weir__plural((uint64_t)device->count));
        return 0;
    }
    if (result == CUDA_SUCCESS)
        result = device->driver->cuDeviceGet(&handle, ordinal);
    if (result == CUDA_SUCCESS)
        result = device->driver->cuDeviceGetName(model, sizeof model, handle);
    if (result == CUDA_SUCCESS)
        result = device->driver->cuDeviceTotalMem(&total, handle);
    if (result != CUDA_SUCCESS) {
        snprintf(why, why_bytes, "%s", weir__driver_error_name(device->driver, result));
        return 0;
    }
    device->total = total;
    name_device(name, model, device);
    return 1;
}

/* Checks that the preallocation fits into the device's memory and into the limit.  Returns 0 on success. */
static int check_amounts(const weir_options *options, const struct weir_cli_device *device) {
    struct weir_device_memory memory = {device->total, device->total};
    char asked[WEIR_SPELL_BYTES], most_text[WEIR_SPELL_BYTES], limit_text[WEIR_SPELL_BYTES];
    uint64_t prealloc = weir__budget_bytes(&options->prealloc, &memory, 0);
    uint64_t limit = weir__budget_bytes(&options->limit, &memory, UINT64_MAX);
    const char *of_another = weir__framework_prealloc(options);

    if (options->prealloc.kind == WEIR_AMOUNT_MAX || options->prealloc.kind == WEIR_AMOUNT_OF_FREE)
        return 0;
    /* Accepts a framework's preallocation above the limit, since the library lowers such a preallocation. */
    if (of_another && prealloc > limit)
        return 0;
    weir__amount_spell(&options->prealloc, asked, sizeof asked);
    weir__bytes_show(device->total, most_text, sizeof most_text);
    if (prealloc > device->total)
        return report_problem(FAILED, "%s '%s': %s has %s; expected at most that",
                              of_another ? of_another : "prealloc", asked, device->name, most_text);
    if (options->limit.kind == WEIR_AMOUNT_OF_FREE || prealloc <= limit)
        return 0;
    weir__amount_spell(&options->limit, limit_text, sizeof limit_text);
    return report_problem(
        FAILED,
        "prealloc '%s' is more than limit '%s' on a device of %s; expected at most the "
        "limit, or a higher limit",
        asked, limit_text, most_text);
}

/* Opens the GPU, or the device model if there is no GPU.  Returns 1 on success, and sets *text to "cuda" or "model".
 * On failure, writes the reason to `why' and returns 0. */
static int choose_device(struct weir_cli_device *device, const char **text, char *why,
                         size_t why_bytes) {
    *text = "cuda";
    if (open_named_device("cuda", 0, device, device->why_not, sizeof device->why_not))
        return 1;
    *text = "model";
    device->fell_back = 1;
    return open_named_device("model", 0, device, why, why_bytes);
}

/* Writes a list of the driver's devices, such as "cuda:0 (NVIDIA H200), cuda:1 (NVIDIA H200)". */
static void list_devices(const struct weir_cli_device *opened, char *text, size_t bytes) {
    int is_model = strcmp(opened->driver->name, "model") == 0;
    size_t used = 0;

    for (int i = 0; i < opened->count && used < bytes; i++) {
        struct weir_cli_device device;
        const char *name;
        char why[128];

        if (!open_named_device(opened->driver->name, i, &device, why, sizeof why))
            snprintf(device.name, sizeof device.name, "%s", why);
        /* In a name such as "cuda:0 NVIDIA H200", the model of the GPU follows the first blank. */
        name = strchr(device.name, ' ');
        used += (size_t)snprintf(text + used, bytes - used, "%s%s:%d (%s)", i ? ", " : "",
                                 opened->driver->name, i, name ? name + 1 : device.name);
    }
    if (is_model && used < bytes)
        snprintf(text + used, bytes - used, "; WEIR_MODEL_DEVICES=N makes N");
}

/* Prints why the device cannot be opened, and which devices there are.  Returns the exit code. */
static int report_device_problem(const struct weir_cli_settings *settings, const char *text,
                                 const struct weir_cli_device *device, const char *why) {
    const char *label = weir_cli_source_name(settings, WEIR_SETTING_DEVICE);
    char expected[640];

    if (device->driver && device->count >= 1)
        list_devices(device, expected, sizeof expected);
    else if (strncmp(text, "model", 5) == 0) /* `why' contains the expected form of the name */
        return report_problem(FAILED, "%s '%s': %s", label, text, why);
    else
        snprintf(expected, sizeof expected, "a machine with a GPU and its driver, or model");
    return report_problem(FAILED, "%s '%s': %s; expected %s", label, text, why, expected);
}

int weir_cli_device_open(struct weir_cli_settings *settings, struct weir_cli_device *device,
                         int quiet) {
    const char *text = settings->options.device, *name;
    char why[512];
    weir_options completed;
    int ordinal, is_open;

    memset(device, 0, sizeof *device);
    if (!text)
        is_open = choose_device(device, &text, why, sizeof why);
    else
        is_open = weir__device_parse(text, &name, &ordinal, why, sizeof why) == WEIR_OK &&
                  open_named_device(name, ordinal, device, why, sizeof why);
    if (!is_open)
        return report_device_problem(settings, text, device, why);
    if (device->fell_back && !quiet)
        fprintf(stderr, "weir: no GPU (%s): running on the device model, %s\n", device->why_not,
                device->name);
    settings->options.device = text;
    if (weir__options_complete(&settings->options, &completed, why, sizeof why) != WEIR_OK)
        return report_problem(FAILED, "%s", why);
    return check_amounts(&completed, device);
}
