/* SPDX-License-Identifier: MIT */
/* info.c: `weir info': shows the driver, the devices and the settings.
 *
 * weir info always shows whether there is a CUDA driver.  It shows the device model only if the user chose the model,
 * or if there is no GPU.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/allocator.h>

#include "api/allocator_internal.h"
#include "api/profile_use.h"
#include "base/size.h"
#include "base/text.h"
#include "cli/common/commands.h"
#include "cli/common/files.h"
#include "cli/common/flags.h"
#include "cli/common/jsonfile.h"
#include "cli/holders.h"
#include "config/amount.h"

#define ANSWER_NS                                                                                  \
    UINT64_C(30000000) /* the time for which weir info waits for reports of processes */

enum { MAX_DEVICES = 64 };

struct device_facts {
    char name[96];
    char uuid[WEIR_UUID_BYTES]; /* the UUID of the device, or "" if it is not known */
    uint64_t total;
    uint64_t free;
    int has_free; /* set if `free' is known, for which weir needs a context on the device */
    int has_pools;
    char peers[MAX_DEVICES]; /* peers[i] is 1 if this device can access the memory of device i */
};

struct info {
    struct weir_cli_settings settings;
    struct weir_cli_device device;
    /* The source of a preallocation from a profile, such as "profile of 3 runs", or "". */
    char profile[64];
    /* The reduced preallocation, if a framework's variable requests more than the limit.  Otherwise 0. */
    uint64_t limited_prealloc;
    struct weir_driver_failure no_cuda; /* the reason why there is no CUDA driver */
    struct device_facts devices[MAX_DEVICES];
    int count;
    int all, json, processes; /* set if the user gave --all, --json, --processes */
    /* The file of --json.  If NULL, the JSON goes to standard output in place of the table. */
    const char *file;
};

/* ---------------------------------------------------------------- gathering ---- */

/* Stores the free memory of a device in *out.  Retains the primary context of the device meanwhile.  Returns 1 on
 * success, 0 on failure. */
static int query_free_memory(const struct weir_driver *driver, CUdevice handle, uint64_t *out) {
    CUcontext context, popped;
    size_t free_bytes = 0, total;
    CUresult result;

    if (driver->cuDevicePrimaryCtxRetain(&context, handle) != CUDA_SUCCESS)
        return 0;
    result = driver->cuCtxPushCurrent(context);
    if (result == CUDA_SUCCESS) {
        result = driver->cuMemGetInfo(&free_bytes, &total);
        driver->cuCtxPopCurrent(&popped);
    }
    driver->cuDevicePrimaryCtxRelease(handle);
    *out = free_bytes;
    return result == CUDA_SUCCESS;
}

static void gather_device(const struct weir_driver *driver, int ordinal, struct device_facts *out) {
    CUdevice handle;
    size_t total = 0;

    if (driver->cuDeviceGet(&handle, ordinal) != CUDA_SUCCESS)
        return;
    driver->cuDeviceGetName(out->name, sizeof out->name, handle);
    if (weir__driver_uuid(driver, handle, out->uuid) != CUDA_SUCCESS)
        out->uuid[0] = '\0';
    driver->cuDeviceTotalMem(&total, handle);
    out->total = total;
    driver->cuDeviceGetAttribute(&out->has_pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
                                 handle);
    out->has_free = query_free_memory(driver, handle, &out->free);
}

/* Stores in devices[i].peers[j] whether device i can access memory of device j, if the driver has peer access. */
static void gather_peers(struct info *info) {
    const struct weir_driver *driver = info->device.driver;
    CUdevice handle, other;

    if (!(driver->capabilities & WEIR_CAP_PEER))
        return;
    for (int i = 0; i < info->count; i++)
        for (int j = 0; j < info->count; j++) {
            int can = 0;

            if (i != j && driver->cuDeviceGet(&handle, i) == CUDA_SUCCESS &&
                driver->cuDeviceGet(&other, j) == CUDA_SUCCESS &&
                driver->cuDeviceCanAccessPeer(&can, handle, other) == CUDA_SUCCESS)
                info->devices[i].peers[j] = (char)(can != 0);
        }
}

/* Switches the per-stream caches off if the driver has no stream ids. */
static void disable_caches_without_ids(struct info *info) {
    weir_options *options = &info->settings.options;
    weir_options completed;

    if (info->device.driver->capabilities & WEIR_CAP_STREAM_ID)
        return;
    if (weir__options_complete(options, &completed, NULL, 0) != WEIR_OK ||
        completed.cache != WEIR_SWITCH_ON)
        return;
    options->cache = WEIR_SWITCH_OFF;
    info->settings.sources.of[WEIR_SETTING_CACHE] = "driver";
}

/* If the user named no engine, sets the engine that a new allocator chooses on this device. */
static void choose_engine(struct info *info) {
    weir_options *options = &info->settings.options;
    CUdevice handle;

    if (options->engine != WEIR_ENGINE_DEFAULT ||
        info->device.driver->cuDeviceGet(&handle, info->device.ordinal) != CUDA_SUCCESS)
        return;
    weir__default_engine_fill(info->device.driver, handle, options);
    if (options->engine != WEIR_ENGINE_DEFAULT)
        info->settings.sources.of[WEIR_SETTING_ENGINE] = "device";
}

/* If the settings name a profile, sets the preallocation that a new allocator reads from this profile. */
static void read_profile_prealloc(struct info *info) {
    weir_options *options = &info->settings.options, completed;
    struct device_facts facts = {0};
    struct weir_device_memory memory;
    struct weir_run_profile *learn;
    CUdevice handle;
    uint64_t target;

    if (weir__option_is_set(options, WEIR_SETTING_PREALLOC) ||
        weir__options_complete(options, &completed, NULL, 0) != WEIR_OK ||
        info->device.driver->cuDeviceGet(&handle, info->device.ordinal) != CUDA_SUCCESS)
        return;
    if (options->log == WEIR_LOG_DEFAULT)
        completed.log = WEIR_LOG_WARNING;
    learn = weir__run_profile_open(info->device.driver, handle, &completed);
    target = learn ? weir__profile_target(&learn->known) : 0;
    gather_device(info->device.driver, info->device.ordinal, &facts);
    memory = (struct weir_device_memory){.total = facts.total, .free = facts.free};
    /* If --prealloc-min is larger than the preallocation of the profile, weir preallocates --prealloc-min. */
    if (target > weir__budget_bytes(&completed.prealloc, &memory, 0)) {
        options->prealloc = (weir_amount){target, WEIR_AMOUNT_BYTES};
        snprintf(info->profile, sizeof info->profile, "profile of %llu run%s",
                 (unsigned long long)learn->known.runs, weir__plural(learn->known.runs));
        info->settings.sources.of[WEIR_SETTING_PREALLOC] = info->profile;
    }
    weir__run_profile_close(learn);
}

/* Checks the settings as a new allocator does.  Returns 0, or 1 after the library has logged what is wrong.  Ignores
 * driver calls that fail, because they may succeed when the device has more free memory. */
static int check_settings(struct info *info) {
    weir_options options = info->settings.options;
    struct weir_device_memory memory = {info->device.total, info->device.total};
    uint64_t asked = weir__budget_bytes(&options.prealloc, &memory, 0), prealloc;

    if (options.log < WEIR_LOG_WARNING)
        options.log = WEIR_LOG_WARNING;
    if (weir__allocator_check_on(info->device.driver, &options, &prealloc, NULL, 0) != WEIR_OK)
        return weir_last_driver_result() == 0;
    if (weir__framework_prealloc(&options) && prealloc < asked)
        info->limited_prealloc = prealloc;
    return 0;
}

/* Reads everything that weir info shows.  Returns 0 on success.  On failure, prints a message and returns the exit
 * code. */
static int read_info(struct info *info) {
    int code;

    choose_engine(info);
    disable_caches_without_ids(info);
    code = check_settings(info);
    if (code == 0)
        code = weir_cli_profile_check(&info->settings, 0);
    if (code == 0)
        code = weir_cli_oom_report_check(&info->settings);
    if (code != 0)
        return code;
    read_profile_prealloc(info);
    if (info->device.fell_back)
        snprintf(info->no_cuda.text, sizeof info->no_cuda.text, "%s", info->device.why_not);
    else if (strcmp(info->device.driver->name, "cuda") != 0)
        weir__driver_open("cuda", &info->no_cuda);
    info->count = info->device.count < MAX_DEVICES ? info->device.count : MAX_DEVICES;
    for (int i = 0; i < info->count; i++)
        gather_device(info->device.driver, i, &info->devices[i]);
    gather_peers(info);
    return 0;
}

/* Returns the bytes of a setting that is a percentage of the device's memory, or 0 if it is no percentage. */
static uint64_t share_in_bytes(const struct info *info, enum weir_setting setting) {
    const struct device_facts *facts = &info->devices[info->device.ordinal];
    struct weir_device_memory memory = {info->device.total, facts->free};
    weir_options completed;
    const weir_amount *amount;

    if (weir__options_complete(&info->settings.options, &completed, NULL, 0) != WEIR_OK)
        return 0;
    amount = setting == WEIR_SETTING_PREALLOC            ? &completed.prealloc
             : setting == WEIR_SETTING_PREALLOC_MIN      ? &completed.prealloc_min
             : setting == WEIR_SETTING_LIMIT             ? &completed.limit
             : setting == WEIR_SETTING_RELEASE_THRESHOLD ? &completed.release_threshold
                                                         : NULL;
    if (!amount || info->device.ordinal >= info->count ||
        ((amount->kind & WEIR_AMOUNT_KIND) != WEIR_AMOUNT_OF_TOTAL &&
         !(amount->kind == WEIR_AMOUNT_OF_FREE && facts->has_free)))
        return 0;
    return weir__budget_bytes(amount, &memory, 0);
}

static const char *source_of(const struct info *info, int setting) {
    const char *source = info->settings.sources.of[setting];

    return source                                                     ? source
           : setting == WEIR_SETTING_DEVICE && info->device.fell_back ? "no GPU"
                                                                      : "default";
}

static void version_show(int version, char *text, size_t bytes) {
    snprintf(text, bytes, "%d.%d", version / 1000, version % 1000 / 10);
}

/* -------------------------------------------------------------------- table ---- */

static void print_info_device(const struct info *info, int i) {
    const struct device_facts *facts = &info->devices[i];

    printf("  %s:%d%s  %s\n", info->device.driver->name, i,
           i == info->device.ordinal ? " (chosen)" : "", facts->name);
    printf("    uuid          %s\n", facts->uuid[0] ? facts->uuid : "unknown");
    printf("    memory        %s, %s free\n", WEIR_SHOWN(facts->total),
           facts->has_free ? WEIR_SHOWN(facts->free) : "unknown");
    printf("    memory pools  %s\n", facts->has_pools ? "yes" : "no");
}

/* Prints for each pair of devices whether the first can access memory of the second. */
static void print_peers(const struct info *info) {
    if (info->count < 2)
        return;
    printf("\npeers (yes: the device of the row can access memory of the device of the column)\n   "
           "  ");
    for (int i = 0; i < info->count; i++)
        printf(" %3d", i);
    printf("\n");
    for (int i = 0; i < info->count; i++) {
        printf("  %3d", i);
        for (int j = 0; j < info->count; j++)
            printf(" %3s", i == j ? "." : info->devices[i].peers[j] ? "yes" : "no");
        printf("\n");
    }
}

static int is_setting_shown(const struct info *info, int setting) {
    return info->all || info->settings.sources.of[setting] ||
           !weir__setting_row((enum weir_setting)setting)->is_advanced;
}

static void print_settings(const struct info *info) {
    char text[WEIR_SHOW_BYTES], value[WEIR_SHOW_BYTES + 64];
    size_t used;
    int left = 0;

    printf("\nsettings\n");
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        uint64_t share = share_in_bytes(info, (enum weir_setting)i);

        if (!is_setting_shown(info, i)) {
            left++;
            continue;
        }
        weir__option_show(&info->settings.options, (enum weir_setting)i, text, sizeof text);
        used = (size_t)snprintf(value, sizeof value, "%s%s%s", text, share > 0 ? " = " : "",
                                share > 0 ? WEIR_SHOWN(share) : "");
        if (i == WEIR_SETTING_PREALLOC && info->limited_prealloc > 0)
            snprintf(value + used, sizeof value - used, ", reduced to %s",
                     WEIR_SHOWN(info->limited_prealloc));
        printf("  %-21s %-22s %s\n", weir__setting_row((enum weir_setting)i)->name, value,
               source_of(info, i));
    }
    if (left > 0)
        printf("  %d more settings have their defaults: weir info --all\n", left);
}

static void print_table(const struct info *info) {
    const struct weir_driver *driver = info->device.driver;
    char version[32];

    printf("weir %s\n", weir_version());
    if (info->no_cuda.text[0])
        printf("CUDA driver: none: %s\n", info->no_cuda.text);
    if (driver->charge)
        printf("running on the device model: a GPU in software, times on it are modelled\n"
               "profile of the model: %s\n",
               weir_cli_model_profile());
    version_show(driver->version, version, sizeof version);
    printf("\ndriver\n  %s %s\n  capabilities ", driver->name, version);
#define PRINT_CAPABILITY(bit, word, first)                                                         \
    if (driver->capabilities & WEIR_CAP_##bit)                                                     \
        printf(" %s", word);
    WEIR_CAPABILITIES(PRINT_CAPABILITY)
#undef PRINT_CAPABILITY
    printf("\n\ndevices\n");
    for (int i = 0; i < info->count; i++)
        print_info_device(info, i);
    print_peers(info);
    print_settings(info);
}

/* --------------------------------------------------------------------- JSON ---- */

/* Returns a JSON object about the driver, or NULL if there is no host memory. */
static json_t *json_driver(const struct weir_driver *driver) {
    json_t *capabilities = json_array();
    char version[32];
    int failed = 0;

#define ADD_CAPABILITY(bit, word, first)                                                           \
    if (driver->capabilities & WEIR_CAP_##bit)                                                     \
        failed |= json_array_append_new(capabilities, json_string(word));
    WEIR_CAPABILITIES(ADD_CAPABILITY)
#undef ADD_CAPABILITY
    version_show(driver->version, version, sizeof version);
    if (!failed)
        return json_pack("{s:s, s:s, s:o}", "name", driver->name, "version", version,
                         "capabilities", capabilities);
    json_decref(capabilities);
    return NULL;
}

static json_t *json_device(const struct info *info, int ordinal) {
    const struct device_facts *facts = &info->devices[ordinal];
    json_t *peers = json_array();

    for (int i = 0; i < info->count; i++)
        if (facts->peers[i])
            json_array_append_new(peers, json_integer(i));
    return json_pack("{s:i, s:s, s:s?, s:I, s:o, s:b, s:o}", "ordinal", ordinal, "name",
                     facts->name, "uuid", facts->uuid[0] ? facts->uuid : NULL, "total_bytes",
                     (json_int_t)facts->total, "free_bytes",
                     facts->has_free ? json_integer((json_int_t)facts->free) : json_null(),
                     "memory_pools", facts->has_pools, "peers", peers);
}

static json_t *json_setting(const struct info *info, int i) {
    const char *variable = weir__setting_row((enum weir_setting)i)->variable;
    uint64_t share = share_in_bytes(info, (enum weir_setting)i);
    uint64_t limited = i == WEIR_SETTING_PREALLOC ? info->limited_prealloc : 0;
    char text[WEIR_SHOW_BYTES];

    weir__option_show(&info->settings.options, (enum weir_setting)i, text, sizeof text);
    return json_pack("{s:s, s:o*, s:o*, s:s, s:s}", "value", text, "bytes",
                     share > 0 ? json_integer((json_int_t)share) : NULL, "held_to",
                     limited > 0 ? json_integer((json_int_t)limited) : NULL, "source",
                     source_of(info, i), "variable", variable);
}

static json_t *json_info(const struct info *info) {
    json_t *devices = json_array(), *settings = json_object();
    int failed = 0;

    for (int i = 0; i < info->count; i++)
        failed |= json_array_append_new(devices, json_device(info, i));
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        failed |= json_object_set_new(settings, weir__setting_row((enum weir_setting)i)->name,
                                      json_setting(info, i));
    if (!failed)
        return json_pack(
            "{s:s, s:s?, s:s, s:s?, s:o, s:o, s:o}", "weir", weir_version(), "no_cuda",
            info->no_cuda.text[0] ? info->no_cuda.text : NULL, "device", info->device.name,
            "model_profile", info->device.driver->charge ? weir_cli_model_profile() : NULL,
            "driver", json_driver(info->device.driver), "devices", devices, "settings", settings);
    json_decref(devices);
    json_decref(settings);
    return NULL;
}

/* ------------------------------------------------------------------ command ---- */

/* Reads the flag --json and the name of its file.  Without a name, or with "-", the JSON goes to standard output. */
static void read_json_flag(struct argp_state *state, const char *flag, const char *text,
                           void *field) {
    struct info *info = state->input;

    info->json = 1;
    info->file = NULL;
    if (text && strcmp(text, "-") != 0)
        weir_cli_read_file(state, flag, text, field);
}

static const struct weir_cli_flag flags[] = {
    {"all", 0, NULL, weir_cli_read_switch, offsetof(struct info, all),
     "Show advanced settings that have their defaults, too."},
    {"processes", 0, NULL, weir_cli_read_switch, offsetof(struct info, processes),
     "Show only the processes on each device, and the memory that each has reserved."},
    {"json", WEIR_CLI_OPTIONAL, "FILE", read_json_flag, offsetof(struct info, file),
     "Write JSON to FILE in addition to the table; without FILE, to standard output in its place."},
    {0}};

static error_t parse_info_argument(int key, char *argument, struct argp_state *state) {
    struct info *info = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &info->settings;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'%s", argument,
                   info->json && !info->file ? ": a file is given as --json=FILE" : "");
        return EINVAL;
    default:
        return weir_cli_read_flag(flags, key, argument, state);
    }
}

/* Finds the processes on each device.  If no process has reported the used memory of a device, queries the driver.
 * Never queries a device model that only this process uses. */
static void find_info_processes(const struct info *info, struct holders *holders) {
    const struct weir_driver *driver = info->device.driver;

    holders_query(holders, ANSWER_NS);
    for (int i = 0; i < info->device.count; i++) {
        struct device_facts facts = {0};
        CUdevice handle;

        if ((driver->charge && !getenv("WEIR_MODEL_SHARED")) ||
            driver->cuDeviceGet(&handle, i) != CUDA_SUCCESS ||
            weir__driver_uuid(driver, handle, facts.uuid) != CUDA_SUCCESS ||
            holders_has_usage(holders, facts.uuid))
            continue;
        gather_device(driver, i, &facts);
        if (facts.has_free)
            holders_set_usage(holders, facts.uuid, facts.total,
                              weir__size_subtract(facts.total, facts.free));
    }
}

static void print_processes(const struct holders *holders) {
    size_t count = 0;

    for (size_t i = 0; i < holders->count; i++)
        count += holders->devices[i].count;
    holders_print(stdout, holders);
    if (count == 0)
        printf("no process under weir uses memory of a device\n");
}

int weir_cmd_info(int argc, char **argv) {
    struct argp_child children[] = {{weir_settings_argp(-1), 0, WEIR_SETTINGS_TITLE, 1}, {0}};
    struct argp argp = {
        .options = weir_cli_options(flags),
        .parser = parse_info_argument,
        .doc = "Shows the driver, the devices, the settings, and where each setting came from.",
        .children = children};
    static struct info info; /* static, because the struct takes some kilobytes */
    struct holders holders = {0};
    int code, has_table;

    weir_cli_settings_init(&info.settings);
    if (weir_cli_parse(&argp, argc, argv, 0, &info) != 0)
        return 2;
    if (!output_check("--json", info.file))
        return 1;
    code = weir_cli_settings_finish(&info.settings);
    if (code == 0)
        code = weir_cli_device_open(&info.settings, &info.device, 1);
    if (code == 0 && info.processes)
        find_info_processes(&info, &holders);
    else if (code == 0)
        code = read_info(&info);
    if (code != 0)
        return code;
    has_table = !info.json || info.file;
    if (has_table && info.processes)
        print_processes(&holders);
    else if (has_table)
        print_table(&info);
    if (info.json) {
        json_t *object = info.processes ? json_pack("{s:o}", "devices", holders_json(&holders))
                                        : json_info(&info);

        code = !jsonfile_write(info.file ? info.file : "-", object);
        json_decref(object);
    }
    return code ? code : !weir_cli_flush_output();
}
