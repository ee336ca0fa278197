/* SPDX-License-Identifier: MIT */
/* flags.h: reads the flags of commands, and makes a flag for each setting of an allocator.
 *
 * weir_settings_argp() returns one long flag for each row of the option table (lib/config/settings.h).  A subcommand
 * adds this argp as a child of its own argp, and parses its arguments.  Then the subcommand calls
 * weir_cli_settings_finish(), which reads the environment and reports bad values.  Finally, it may open the device.
 *
 * This file must not contain code for a certain subcommand or setting.
 */
#ifndef WEIR_CLI_FLAGS_H
#define WEIR_CLI_FLAGS_H

#include <argp.h>
#include <stdio.h>
#include <jansson.h>

#include "config/settings.h"
#include "driver/driver.h"

/* The title above the settings in help texts. */
#define WEIR_SETTINGS_TITLE "Allocator settings (all of them: --help --all):"

struct weir_cli_settings {
    weir_options options;
    /* The source of each value: a flag, a variable, or NULL for a default. */
    struct weir_sources sources;
    /* The kind of program that uses the settings.  Some environment variables have an effect in certain kinds only. */
    enum weir_place place;
    char error[512]; /* the message about the first wrong value of a flag, or "" */
};

/* Returns the flags of all settings for a struct argp_child, whose input is a struct weir_cli_settings that
 * weir_cli_settings_init() has initialised.  The result is static memory.  Help texts do not list the setting `hidden',
 * if it is not negative.  Not thread-safe. */
const struct argp *weir_settings_argp(int hidden);
/* Returns the setting whose name is the first `length' bytes of `name'.  Returns WEIR_SETTING_COUNT if there is no
 * such setting. */
int weir_cli_setting(const char *name, size_t length);
/* Prints the help of a setting: "settings" means the common settings, and NULL means all.  Returns 0 if there is no
 * such setting. */
int weir_cli_settings_print_help(const char *name, FILE *file);

/* Flushes standard output.  Returns 1 on success.  If some output could not be written, prints a message and returns 0.
 */
int weir_cli_flush_output(void);

/* Parses arguments as argp_parse() does, but accepts -h, and suggests an option in place of an unknown one. */
error_t weir_cli_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* Returns 1 if the argument asks for help (--help, -h or -?), 0 if not. */
int help_is_requested(const char *argument);

/* A search for the name that is most similar to a misspelt word: the first `length' bytes of `word'. */
struct suggestion {
    const char *word;
    size_t length;
    const char *closest; /* NULL before the first name */
    size_t distance;
};

/* Compares the misspelt word with one more name. */
void suggestion_add(struct suggestion *suggestion, const char *name);
/* Returns the most similar name, or NULL if no name is similar enough. */
const char *suggestion_closest(const struct suggestion *suggestion);

/* Prints the help text of the flag flag->word of a command.  Returns 1 if the command has this flag, 0 if not. */
int weir_cli_flag_print_help(struct suggestion *flag, int (*command)(int argc, char **argv),
                             char *title);

/* Reads the argument `text' of a flag (NULL if it has none) into a command's struct.  Ends the program if the text is
 * wrong. */
typedef void weir_cli_flag_reader(struct argp_state *state, const char *flag, const char *text,
                                  void *field);

/* A row of a command's table of flags.  The last row has no name. */
struct weir_cli_flag {
    const char *name;
    int key; /* the letter of the short option, or 0, WEIR_CLI_OPTIONAL or WEIR_CLI_HIDDEN */
    const char *argument; /* the argument's name in help texts, or NULL without argument */
    weir_cli_flag_reader *read;
    size_t field; /* the offset, in the command's struct, of the field that `read' sets */
    const char *help;
};
/* Keys of flags without a short option.  WEIR_CLI_OPTIONAL: the argument is optional.  WEIR_CLI_HIDDEN: help texts do
 * not list the flag. */
enum { WEIR_CLI_OPTIONAL = 0x100, WEIR_CLI_HIDDEN };

/* Converts a table of flags to options for a struct argp, in static memory.  Not thread-safe. */
const struct argp_option *weir_cli_options(const struct weir_cli_flag *flags);
/* Reads the flag with this key into the command's struct, state->input.  Returns 0 on success, ARGP_ERR_UNKNOWN if no
 * flag of the table has the key. */
error_t weir_cli_read_flag(const struct weir_cli_flag *flags, int key, char *argument,
                           struct argp_state *state);

/* ---- readers of arguments ---- */

weir_cli_flag_reader weir_cli_read_switch; /* sets an int to 1; the flag has no argument */
weir_cli_flag_reader weir_cli_read_text;   /* stores any text in a const char * */
weir_cli_flag_reader weir_cli_read_file;   /* stores a file name other than "-" in a const char * */
/* Stores a file name, or "-" for standard output, in a const char *. */
weir_cli_flag_reader weir_cli_read_output;
weir_cli_flag_reader weir_cli_read_page;   /* stores the name of a .html file in a const char * */
weir_cli_flag_reader weir_cli_read_size;   /* stores a number of bytes above 0 in a uint64_t */
weir_cli_flag_reader weir_cli_read_device; /* sets the device of a struct weir_cli_settings */

/* Sets all settings to their defaults.  Not thread-safe. */
void weir_cli_settings_init(struct weir_cli_settings *settings);

/* Sets a setting to `text', with the same effect as the flag of the setting. */
void weir_cli_settings_set(struct weir_cli_settings *settings, enum weir_setting setting,
                           const char *text);

/* Reads settings from a file, except those that flags have set.  Must be called between weir_cli_parse() and
 * weir_cli_settings_finish().  Returns 0, or an exit code after a message. */
int settings_file_read(struct weir_cli_settings *settings, const char *flag, const char *path);

/* Reads settings from the environment, and checks all settings.  Must be called after weir_cli_parse().  Returns 0, or
 * 2 after a message. */
int weir_cli_settings_finish(struct weir_cli_settings *settings);

/* Returns the flag or variable that has set the setting, or the name of the setting if the value is the default. */
const char *weir_cli_source_name(const struct weir_cli_settings *settings,
                                 enum weir_setting setting);

/* Prints which of the user's settings a command ignores, because it uses fixed settings. */
void weir_cli_settings_report_unused(const struct weir_cli_settings *settings);

/* The device on which a command runs. */
struct weir_cli_device {
    const struct weir_driver *driver;
    int ordinal;
    int count;      /* the number of devices of the driver */
    uint64_t total; /* the size of the device memory in bytes */
    char name[128]; /* such as "cuda:0 NVIDIA H200" or "model h200" */
    int fell_back;  /* set if this is the device model because there is no GPU */
    char why_not[256]; /* the reason why there is no GPU, if fell_back is set */
};

/* Checks that the file of the profile can be used or created.  On failure, prints a message and returns 1. */
int weir_cli_profile_check(const struct weir_cli_settings *settings, int creates);
/* Returns the file that the setting names, or NULL if it names none.  `setting' is WEIR_SETTING_PROFILE or
 * WEIR_SETTING_OOM_REPORT. */
const char *weir_cli_file_of(const weir_options *options, enum weir_setting setting);
/* Checks that the file of --oom-report or WEIR_OOM_REPORT can be written.  Returns 0 on success.  On failure, prints a
 * message and returns 1. */
int weir_cli_oom_report_check(const struct weir_cli_settings *settings);

/* Opens the device of the settings, or else the GPU, or else the device model, and sets settings->options.device.
 * Prints a note about the device model, unless `quiet' is set.
 *
 * Initialises the driver, so the process must not fork later without exec.  Returns 0 on success.  On failure, prints
 * a message and returns 1.
 */
int weir_cli_device_open(struct weir_cli_settings *settings, struct weir_cli_device *device,
                         int quiet);

/* Returns the file with the device model's times (WEIR_MODEL_PROFILE), or "built-in" if the user named none. */
const char *weir_cli_model_profile(void);

/* Returns all settings as a new JSON object, with the values as flags accept them: {"prealloc": "8GiB", "growth":
 * "step:64MiB", ...}.  Returns NULL if there is no host memory. */
json_t *weir_cli_options_json(const weir_options *options);

#endif
