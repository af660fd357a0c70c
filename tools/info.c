/* SPDX-License-Identifier: MIT */
/* tutti info: the facts with which a problem report should begin. They are collected in one JSON
 * tree, which is printed as indented text or as JSON. */
#include "info.h"
#include "placement.h"
#include "results.h"
#include "tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

extern char **environ;

/* ---- what the machine says ------------------------------------------------------------------- */

static json_t *string_from_file(const char *path)
{
    char text[256] = "";
    FILE *file = fopen(path, "re");
    if (file && fgets(text, sizeof text, file))
        text[strcspn(text, "\n")] = 0;
    if (file)
        fclose(file);
    return *text ? json_string(text) : json_null();
}

static json_t *describe_host(void)
{
    struct utsname name = {0};
    struct sysinfo memory = {0};
    uname(&name);
    sysinfo(&memory);
    return json_pack("{s:s, s:s, s:s, s:o, s:I, s:I}", "name", name.nodename, "kernel",
                     name.release, "architecture", name.machine, "boot_id",
                     string_from_file("/proc/sys/kernel/random/boot_id"), "memory_bytes",
                     (json_int_t)memory.totalram * memory.mem_unit, "free_memory_bytes",
                     (json_int_t)memory.freeram * memory.mem_unit);
}

static json_t *limit(int resource)
{
    struct rlimit value;
    if (getrlimit(resource, &value) < 0)
        return json_null();
    return value.rlim_cur == RLIM_INFINITY ? json_string("unlimited")
                                           : json_integer((json_int_t)value.rlim_cur);
}

/* "yes", or why a system call that the library needs is refused. */
static json_t *verdict(int descriptor)
{
    if (descriptor < 0)
        return json_sprintf("no: %s", strerror(errno));
    close(descriptor);
    return json_string("yes");
}

static json_t *describe_limits(void)
{
    struct statvfs shm = {0};
    statvfs("/dev/shm", &shm);
    return json_pack("{s:o, s:o, s:o, s:I, s:I, s:o, s:o}", "memlock_bytes", limit(RLIMIT_MEMLOCK),
                     "open_files", limit(RLIMIT_NOFILE), "processes", limit(RLIMIT_NPROC),
                     "dev_shm_bytes", (json_int_t)(shm.f_blocks * shm.f_frsize),
                     "dev_shm_free_bytes", (json_int_t)(shm.f_bavail * shm.f_frsize),
                     "sealed_memfd",
                     verdict(memfd_create("tutti-info", MFD_CLOEXEC | MFD_ALLOW_SEALING)), "pidfd",
                     verdict((int)syscall(SYS_pidfd_open, getpid(), 0)));
}

static json_t *describe_namespaces(void)
{
    static const char *const names[] = {"pid", "net", "ipc", "mnt", "user"};
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64], target[64];
        snprintf(path, sizeof path, "/proc/self/ns/%s", names[i]);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        json_object_set_new(object, names[i], json_string(target));
    }
    return object;
}

/* ---- what the library says ------------------------------------------------------------------- */

static json_t *describe_launcher(void)
{
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    if (tutti_info_launcher(&launcher)) {
        const char *why = tutti_last_error(); /* there is no launcher, or a variable is malformed */
        return json_text(strncmp(why, "no launcher", 11) == 0 ? "none" : why);
    }
    return json_sprintf("%s, rank %d of %d", launcher.name, launcher.rank, launcher.world_size);
}

/* Reports are shown to others, so the secret's value is left out. */
static json_t *describe_environment(void)
{
    static const char secret[] = "TUTTI_STORE_SECRET=";
    json_t *object = json_object();
    for (char **variable = environ; *variable; variable++) {
        const char *value = strchr(*variable, '=');
        if (strncmp(*variable, "TUTTI_", 6) != 0 || !value)
            continue;
        bool hidden = strncmp(*variable, secret, sizeof secret - 1) == 0;
        json_object_setn_new(object, *variable, (size_t)(value - *variable),
                             json_text(hidden ? "(set, not shown)" : value + 1));
    }
    return object;
}

static json_t *describe_symm_backend(void)
{
    char backend[32];
    return json_text(tutti_info("symm.backend", backend, sizeof backend) ? tutti_last_error()
                                                                         : backend);
}

static json_t *describe_library(void)
{
    char isa[32] = "", enabled[32] = "";
    (void)tutti_info("isa", isa, sizeof isa);
    (void)tutti_info("enabled", enabled, sizeof enabled);
    return json_pack("{s:s, s:s, s:b, s:o, s:b, s:o, s:o}", "version", tutti_version_string(),
                     "isa", isa, "enabled", *enabled == 'y', "symmetric_memory",
                     describe_symm_backend(), "multicast", false, "launcher", describe_launcher(),
                     "environment", describe_environment());
}

/* ---- as text --------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static void print_value(const char *key, const json_t *value)
{
    char size[32];
    if (json_is_integer(value) && ends_with(key, "bytes")) {
        format_size((size_t)json_integer_value(value), size, sizeof size);
        fputs(size, stdout);
    } else if (json_is_integer(value)) {
        printf("%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        printf("%.4g", json_real_value(value));
    } else if (json_is_string(value)) {
        fputs(json_string_value(value), stdout);
    } else {
        fputs(json_is_true(value) ? "yes" : json_is_false(value) ? "no" : "unknown", stdout);
    }
}

/* Prints an object of an array: its plain values on one line, nested ones below. */
static void print_tree(json_t *object, int depth, bool in_array)
{
    const char *key, *separator = "";
    json_t *value, *element;
    size_t index;
    if (in_array)
        printf("%*s- ", 2 * depth - 2, "");
    json_object_foreach(object, key, value)
    {
        if (json_is_object(value) || json_is_array(value))
            continue;
        if (in_array)
            printf("%s%s ", separator, key);
        else
            printf("%*s%s: ", 2 * depth, "", key);
        print_value(key, value);
        separator = ", ";
        if (!in_array)
            printf("\n");
    }
    if (in_array)
        printf("\n");
    json_object_foreach(object, key, value)
    {
        if (json_is_object(value) && json_object_size(value)) {
            printf("%*s%s:\n", 2 * depth, "", key);
            print_tree(value, depth + 1, false);
        } else if (json_is_array(value) && strcmp(key, "links") == 0) {
            printf("%*s%s:\n", 2 * depth, "", key);
            print_links(value, 2 * depth + 2);
        } else if (json_is_array(value)) {
            printf("%*s%s:\n", 2 * depth, "", key);
            json_array_foreach(value, index, element) print_tree(element, depth + 2, true);
        }
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

struct request {
    int ranks;
    bool json;
    bool plan;
};

enum { OPTION_JSON = 256, OPTION_PLAN };

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0,
     "Show and test a communicator of N ranks, 2 to 64, in addition to that of 2 (default: one "
     "rank for "
     "each core)",
     0},
    {"plan", OPTION_PLAN, 0, 0,
     "Show only the chosen algorithm, for every dtype and size, among 2 to 8 ranks (to N, if N is "
     "more), and on the GPUs",
     0},
    {"json", OPTION_JSON, 0, 0, "Print JSON", 0},
    {0},
};

static const char doc[] =
    "Shows the host, its processors, memory and limits as far as they matter to the library, tests "
    "stores and communicators, and shows which algorithm is chosen for which size and why.\v"
    "The exit status is 1 if a test failed.";

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case 'n':
        request->ranks = integer_argument(state, "-n", text, 2, TUTTI_MAX_RANKS);
        return 0;
    case OPTION_PLAN:
        request->plan = true;
        return 0;
    case OPTION_JSON:
        request->json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s': no argument is expected, options only", text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The facts so far. */
struct report {
    const struct request *request;
    json_t *tree;
    bool failed;
};

/* Adds a part. NULL is left out. Text is printed at once, so that the user sees it while the next
 * part is tried. */
static void report_add(struct report *report, const char *key, json_t *part)
{
    if (!part)
        return;
    if (!report->request->json) {
        json_t *alone = json_pack("{s:O}", key, part);
        print_tree(alone, 0, false);
        json_decref(alone);
        fflush(stdout);
    }
    if (json_object_set_new(report->tree, key, part) != 0)
        report->failed = !tool_fail("no memory for the description");
}

/* The parts that try nothing come first. */
static void describe_all(struct report *report)
{
    const struct request *request = report->request;
    if (!request->plan) {
        report_add(report, "library", describe_library());
        report_add(report, "host", describe_host());
        report_add(report, "processors", placement_describe());
        report_add(report, "limits", describe_limits());
        report_add(report, "namespaces", describe_namespaces());
        report_add(report, "core_distances", selftest_distances());
        report_add(report, "stores", selftest_stores(&report->failed));
        report_add(report, "communicators", selftest_comms(request->ranks, &report->failed));
    }
    report_add(report, "algorithms",
               selftest_algorithms(request->ranks, request->plan, &report->failed));
    report_add(report, "cuda", describe_cuda(&report->failed));
}

int command_info(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options, .parser = parse_option, .doc = doc, .children = help_children};
    struct request request = {0};
    struct placement placement;
    if (argp_parse(&argp, argc, argv, 0, NULL, &request) || !placement_make(&placement, 2, true))
        return TOOL_FAILED;
    if (request.ranks == 0)
        request.ranks = placement.cores < 2                 ? 2
                        : placement.cores > TUTTI_MAX_RANKS ? TUTTI_MAX_RANKS
                                                            : placement.cores;
    struct report report = {.request = &request, .tree = json_object()};
    if (!report.tree) {
        tool_fail("no memory for the description");
        return TOOL_FAILED;
    }
    describe_all(&report);
    if (request.json) {
        json_dumpf(report.tree, stdout, JSON_INDENT(1));
        printf("\n");
    }
    json_decref(report.tree);
    return report.failed ? TOOL_FAILED : TOOL_OK;
}
