/* SPDX-License-Identifier: MIT */
/*
 * Runs a fuzzer without libFuzzer.
 *   fuzz_NAME [--seconds N] FOLDER  every input in the folder, every beginning of it, then
 * mutations of them, the same in each run, for N seconds at most (2; or what
 *                                   TUTTI_TEST_FUZZ_SECONDS says)
 *   fuzz_NAME FILE...               these inputs, to look at them again
 * The input under way lies in fuzz_NAME.input in the working directory, so that the input is there
 * that ended the process. The file goes once all is well.
 */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_BYTES = 65536, /* of an input */
    GROW_BYTES = 4096, /* to which mutations add */
    BEGINNINGS = 512,  /* of an input: the longer ones in steps */
    MUTATIONS = 200000,
    SECONDS = 2,
    HANG_S = 60, /* for one input, on any machine */
};

struct seed {
    uint8_t *bytes;
    size_t size;
};

static struct {
    struct seed *all;
    size_t count;
} seeds;

static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t next(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* ---- the input under way --------------------------------------------------------------------- */

static char input_path[300];
static char epitaph[1000];
static int input_fd = -1;

static void say_input(void)
{
    if (input_fd >= 0 && write(STDERR_FILENO, epitaph, strlen(epitaph)) < 0)
        _exit(1);
}

static void on_signal(int number)
{
    say_input();
    signal(number, SIG_DFL);
    raise(number);
}

/* The sanitizers', where they are. */
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

static void input_open(const char *program)
{
    snprintf(input_path, sizeof input_path, "%s.input", program_invocation_short_name);
    snprintf(epitaph, sizeof epitaph, "the input is kept; look at it again with: %.300s %s\n",
             program, input_path);
    input_fd = open(input_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (input_fd < 0) {
        perror(input_path);
        exit(1);
    }
    signal(SIGALRM, on_signal); /* a hang */
    signal(SIGABRT, on_signal);
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(say_input);
        return;
    }
    signal(SIGSEGV, on_signal);
    signal(SIGBUS, on_signal);
    signal(SIGFPE, on_signal);
}

static void input_close(void)
{
    alarm(0);
    close(input_fd);
    unlink(input_path);
}

/* From a block of its own size, so that a read past the end is seen by the sanitizers. */
static void run(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy || pwrite(input_fd, bytes, size, 0) != (ssize_t)size ||
        ftruncate(input_fd, (off_t)size) < 0)
        abort();
    memcpy(copy, bytes, size);
    alarm(HANG_S);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void seed_load(int folder, const char *name)
{
    static uint8_t bytes[MAX_BYTES];
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, bytes, sizeof bytes);
    struct seed *all = realloc(seeds.all, (seeds.count + 1) * sizeof *all);
    if (size < 0 || !all) {
        perror(name);
        exit(1);
    }
    close(fd);
    seeds.all = all;
    all[seeds.count] = (struct seed){.bytes = malloc((size_t)size + 1), .size = (size_t)size};
    if (!all[seeds.count].bytes)
        abort();
    memcpy(all[seeds.count++].bytes, bytes, (size_t)size);
}

/* In the order of their names, so that every run is the same. */
static void seeds_load(const char *path)
{
    struct dirent **entries;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int count = folder < 0 ? -1 : scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.')
            seed_load(folder, entries[i]->d_name);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    if (folder >= 0)
        close(folder);
    if (seeds.count > 0)
        return;
    fprintf(stderr, "%s: no inputs: %s\n", path, count < 0 ? strerror(errno) : "it is empty");
    exit(1);
}

static void seeds_free(void)
{
    for (size_t i = 0; i < seeds.count; i++)
        free(seeds.all[i].bytes);
    free(seeds.all);
}

/* ---- mutations ------------------------------------------------------------------------------- */

static size_t insert(uint8_t *bytes, size_t size, size_t at, const uint8_t *part, size_t count)
{
    size_t room = size < GROW_BYTES ? GROW_BYTES - size : 0;
    if (count > room)
        count = room;
    memmove(bytes + at + count, bytes + at, size - at);
    memcpy(bytes + at, part, count);
    return size + count;
}

/* One small change. */
static size_t mutate(uint8_t *bytes, size_t size)
{
    static const uint8_t odd[] = {0, 1, 0x7f, 0x80, 0xff, '/', '-', '0', '9', '=', ',', ':', '\n'};
    const struct seed *seed = &seeds.all[next(seeds.count)];
    size_t at = next(size + 1), from = next(seed->size + 1);
    uint8_t random = (uint8_t)next(256);
    switch (next(6)) {
    case 0:
        return insert(bytes, size, at, &random, 1);
    case 1:
        return insert(bytes, size, at, &odd[next(sizeof odd)], 1);
    case 2:
        return insert(bytes, size, at, seed->bytes + from, next(seed->size - from + 1));
    case 3: {
        size_t count = size > at ? next(size - at) + 1 : 0;
        memmove(bytes + at, bytes + at + count, size - at - count);
        return size - count;
    }
    case 4:
        if (at < size)
            bytes[at] = odd[next(sizeof odd)];
        return size;
    default:
        if (at < size)
            bytes[at] ^= (uint8_t)(1u << next(8));
        return size;
    }
}

static void run_mutations(int seconds)
{
    static uint8_t bytes[MAX_BYTES];
    time_t end = time(NULL) + seconds;
    int done = 0;
    for (; done < MUTATIONS && (done % 64 || time(NULL) < end); done++) {
        const struct seed *seed = &seeds.all[next(seeds.count)];
        size_t size = seed->size;
        memcpy(bytes, seed->bytes, size);
        for (uint64_t changes = next(8) + 1; changes > 0; changes--)
            size = mutate(bytes, size);
        run(bytes, size);
    }
    printf("%zu inputs, %d mutations\n", seeds.count, done);
}

/* ---- main ------------------------------------------------------------------------------------ */

static void run_seeds(void)
{
    for (size_t i = 0; i < seeds.count; i++) {
        const struct seed *seed = &seeds.all[i];
        size_t step = seed->size / BEGINNINGS + 1;
        for (size_t size = 0; size < seed->size; size += step)
            run(seed->bytes, size);
        run(seed->bytes, seed->size);
    }
}

static int run_files(char **paths)
{
    for (; *paths; paths++) {
        static uint8_t bytes[1 << 20];
        FILE *file = fopen(*paths, "rb");
        if (!file) {
            perror(*paths);
            return 1;
        }
        size_t size = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        uint8_t *copy = malloc(size ? size : 1);
        if (!copy)
            return 1;
        memcpy(copy, bytes, size);
        LLVMFuzzerTestOneInput(copy, size);
        free(copy);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *program = argv[0];
    struct stat about;
    const char *asked = getenv("TUTTI_TEST_FUZZ_SECONDS");
    int seconds = asked ? atoi(asked) : SECONDS;
    if (argc > 2 && strcmp(argv[1], "--seconds") == 0) {
        seconds = atoi(argv[2]);
        argc -= 2;
        argv += 2;
    }
    if (argc < 2) {
        fprintf(stderr, "usage: %s [--seconds N] FOLDER | FILE...\n", program);
        return 2;
    }
    if (stat(argv[1], &about) < 0 || !S_ISDIR(about.st_mode))
        return run_files(argv + 1);
    seeds_load(argv[1]);
    input_open(program);
    run_seeds();
    run_mutations(seconds);
    input_close();
    seeds_free();
    return 0;
}
