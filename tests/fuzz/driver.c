/* SPDX-License-Identifier: MIT */
/*
 * Runs a fuzzer without libFuzzer: every seed, every beginning of it, then mutations that are the
 * same in each run. With arguments: the files named, to look at one input again.
 */
#include "fuzz.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_BYTES = 4096, MUTATIONS = 200000, SECONDS = 4 };

static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t next(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* From a block of its own size, so that a read past the end is seen by the sanitizers. */
static void run(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        abort();
    memcpy(copy, bytes, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static size_t insert(uint8_t *bytes, size_t size, size_t at, const uint8_t *part, size_t count)
{
    if (count > MAX_BYTES - size)
        count = MAX_BYTES - size;
    memmove(bytes + at + count, bytes + at, size - at);
    memcpy(bytes + at, part, count);
    return size + count;
}

/* One small change. */
static size_t mutate(uint8_t *bytes, size_t size)
{
    static const uint8_t odd[] = {0, 1, 0x7f, 0x80, 0xff, '/', '-', '0', '9', '=', ',', ':', '\n'};
    const struct fuzz_seed *seed = &fuzz_seeds[next(fuzz_seed_count)];
    size_t at = next(size + 1), from = next(seed->size + 1);
    uint8_t random = (uint8_t)next(256);
    switch (next(6)) {
    case 0:
        return insert(bytes, size, at, &random, 1);
    case 1:
        return insert(bytes, size, at, &odd[next(sizeof odd)], 1);
    case 2:
        return insert(bytes, size, at, (const uint8_t *)seed->bytes + from,
                      next(seed->size - from + 1));
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

static void run_mutations(void)
{
    static uint8_t bytes[MAX_BYTES];
    time_t end = time(NULL) + SECONDS;
    int done = 0;
    for (; done < MUTATIONS && (done % 64 || time(NULL) < end); done++) {
        const struct fuzz_seed *seed = &fuzz_seeds[next(fuzz_seed_count)];
        size_t size = seed->size;
        memcpy(bytes, seed->bytes, size);
        for (uint64_t changes = next(8) + 1; changes > 0; changes--)
            size = mutate(bytes, size);
        run(bytes, size);
    }
    printf("%zu seeds, %d mutations\n", fuzz_seed_count, done);
}

static int run_file(const char *path)
{
    static uint8_t bytes[1 << 20];
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    run(bytes, fread(bytes, 1, sizeof bytes, file));
    fclose(file);
    return 0;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (run_file(argv[i]) != 0)
            return 1;
    if (argc > 1)
        return 0;
    for (size_t i = 0; i < fuzz_seed_count; i++)
        for (size_t size = 0; size <= fuzz_seeds[i].size; size++)
            run(fuzz_seeds[i].bytes, size);
    run_mutations();
    return 0;
}
