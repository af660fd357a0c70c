/* SPDX-License-Identifier: MIT */
#include "tool.h"

#include "collective.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES_MOST = 64 << 20 };

static error_t parse_help(int key, char *text, struct argp_state *state)
{
    (void)text;
    if (key != 'h')
        return ARGP_ERR_UNKNOWN;
    argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP); /* ends the program */
    return 0;
}

static const struct argp_option help_options[] = {{0, 'h', 0, 0, "The same as --help", -1}, {0}};
static const struct argp help_argp = {.options = help_options, .parser = parse_help};
const struct argp_child help_children[] = {{&help_argp, 0, 0, 0}, {0}};

static bool fail(int code, const char *format, va_list args)
{
    char text[2048];
    vsnprintf(text, sizeof text, format, args);
    if (code)
        fprintf(stderr, "%s: %s: %s\n", program_invocation_name, text, strerror(code));
    else
        fprintf(stderr, "%s: %s\n", program_invocation_name, text);
    return false;
}

bool tool_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail(0, format, args);
    va_end(args);
    return false;
}

bool tool_fail_errno(const char *format, ...)
{
    int code = errno;
    va_list args;
    va_start(args, format);
    fail(code, format, args);
    va_end(args);
    return false;
}

bool tool_output_arrived(void)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    tool_fail_errno("cannot write the output");
    clearerr(stdout);
    return false;
}

bool parse_size(const char *text, size_t *bytes)
{
    static const char units[] = "KMGT";
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || strpbrk(text, "xXpPeE"))
        return false;
    const char *unit = isalpha((unsigned char)*end) ? strchr(units, *end & ~0x20) : NULL;
    if (unit) {
        value = ldexp(value, 10 * (int)(unit - units + 1));
        end++;
        if (*end == 'i' && end[1] == 'B')
            end++;
    }
    if (*end == 'B')
        end++;
    if (*end || value != floor(value) || value >= ldexp(1, 62))
        return false;
    *bytes = (size_t)value;
    return true;
}

bool parse_integer(const char *text, long low, long high, long *value)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno || end == text || *end || number < low || number > high)
        return false;
    *value = number;
    return true;
}

int integer_argument(struct argp_state *state, const char *option, const char *text, long low,
                     long high)
{
    long value = low;
    if (!parse_integer(text, low, high, &value))
        argp_error(state, "%s: '%s' is no whole number from %ld to %ld", option, text, low, high);
    return (int)value;
}

bool access_for_writing(const char *path)
{
    if (access(path, F_OK) == 0)
        return access(path, W_OK) == 0;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path + 1)) : strdup(".");
    bool ok = folder && access(folder, W_OK | X_OK) == 0;
    free(folder);
    return ok;
}

char *tool_read_file(const char *path, size_t *bytes)
{
    size_t capacity = 1 << 16;
    char *text = malloc(capacity);
    FILE *file = fopen(path, "re");
    bool read = file && text;
    for (*bytes = 0; read;) {
        *bytes += fread(text + *bytes, 1, capacity - *bytes, file);
        if (*bytes < capacity)
            break;
        char *larger = capacity < FILE_BYTES_MOST ? realloc(text, capacity *= 2) : NULL;
        text = larger ? larger : text;
        read = larger != NULL;
    }
    if (!file || (read && ferror(file)))
        read = tool_fail_errno("%s", path);
    else if (!read)
        tool_fail("%s: more than %d MiB, or than there is memory", path, FILE_BYTES_MOST >> 20);
    if (file)
        fclose(file);
    if (!read)
        free(text);
    return read ? text : NULL;
}

size_t size_argument(struct argp_state *state, const char *option, const char *text)
{
    size_t bytes = 0;
    if (!parse_size(text, &bytes))
        argp_error(state,
                   "%s: '%s' is no size: give bytes, or a number with K, M or G, such as 64M",
                   option, text);
    return bytes;
}

/* If the text is this label, stores the value and returns true. */
#define NAME(label, constant, to)                                                                  \
    if (strcmp(text, label) == 0) {                                                                \
        *(to) = constant;                                                                          \
        return true;                                                                               \
    }

bool parse_dtype(const char *text, enum tutti_dtype *dtype)
{
    static const struct {
        const char *name;
        enum tutti_dtype dtype;
    } aliases[] = {{"float", TUTTI_FLOAT32}, {"half", TUTTI_FLOAT16}, {"double", TUTTI_FLOAT64}};
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(text, aliases[i].name) == 0) {
            *dtype = aliases[i].dtype;
            return true;
        }
#define ROW(name, value, size, label) NAME(label, TUTTI_##name, dtype)
    TUTTI_DTYPE_MAP(ROW)
#undef ROW
    return false;
}

bool parse_op(const char *text, tutti_op_t *op)
{
#define ROW(name, value, label) NAME(label, TUTTI_##name, op)
    TUTTI_OP_MAP(ROW)
#undef ROW
    return false;
}

bool parse_algo(const char *text, enum tutti_algo *algo)
{
#define ROW(name, value, label) NAME(label, TUTTI_ALGO_##name, algo)
    TUTTI_ALGO_MAP(ROW)
#undef ROW
    return false;
}

bool parse_collective(const char *text, enum tutti_collective *collective)
{
    for (int i = TUTTI_COLLECTIVE_ALL_REDUCE; i < COLLECTIVE_ROWS; i++) {
        *collective = (enum tutti_collective)i;
        if (strcmp(text, collective_name(*collective)) == 0)
            return collectives[i].data || *collective == TUTTI_COLLECTIVE_BARRIER;
    }
    return false;
}

void format_size(size_t bytes, char *text, size_t capacity)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1024;
    snprintf(text, capacity, "%.4g %s", value, units[unit]);
}

void tool_setenv(const char *name, size_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%zu", value);
    setenv(name, text, 1);
}

void format_date(char *text, size_t capacity)
{
    time_t now = time(NULL);
    struct tm utc;
    strftime(text, capacity, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
}

bool sums_in_ring(tutti_comm_t *comm)
{
    enum tutti_algo algo = TUTTI_ALGO_NONE;
    return tutti_comm_world_size(comm) > 2 &&
           tutti_comm_algorithm(comm, 1, TUTTI_FLOAT32, TUTTI_SUM, NULL, &algo, NULL) == TUTTI_OK &&
           algo == TUTTI_ALGO_RING;
}

double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
