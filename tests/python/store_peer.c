/* SPDX-License-Identifier: MIT */
/*
 * A rank of ours among PyTorch's, for test_stores.py: does what the lines on its standard input say
 * and prints one line for each. Values are written as text without spaces, "-" is the empty one.
 *
 *   set KEY VALUE | get KEY | wait KEY... | add KEY N | check KEY... | delete KEY | num_keys
 *   compare_set KEY EXPECTED DESIRED | gather PREFIX RANK SIZE ROUNDS | url | quit
 */
#include "tutti/tutti.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 16, MAX_VALUE = 1 << 16, MAX_RANKS = 16, TIMEOUT_MS = 60000 };

static tutti_store_t *store;
static char value[MAX_VALUE + 1];

static const char *text_of(const char *word)
{
    return strcmp(word, "-") == 0 ? "" : word;
}

static void print_value(size_t size)
{
    value[size] = 0;
    printf("%s\n", size ? value : "-");
}

static enum tutti_status do_set(char **words, int count)
{
    (void)count;
    const char *text = text_of(words[2]);
    enum tutti_status status = tutti_store_set(store, words[1], text, strlen(text));
    if (status == TUTTI_OK)
        puts("ok");
    return status;
}

static enum tutti_status do_get(char **words, int count)
{
    (void)count;
    size_t size;
    enum tutti_status status =
        tutti_store_get(store, words[1], TIMEOUT_MS, value, MAX_VALUE, &size);
    if (status == TUTTI_OK)
        print_value(size);
    return status;
}

static enum tutti_status do_wait(char **words, int count)
{
    enum tutti_status status =
        tutti_store_wait(store, (const char *const *)(words + 1), (size_t)count - 1, TIMEOUT_MS);
    if (status == TUTTI_OK)
        puts("ok");
    return status;
}

static enum tutti_status do_add(char **words, int count)
{
    (void)count;
    int64_t result;
    enum tutti_status status = tutti_store_add(store, words[1], atoll(words[2]), &result);
    if (status == TUTTI_OK)
        printf("%" PRId64 "\n", result);
    return status;
}

static enum tutti_status do_check(char **words, int count)
{
    bool exists;
    enum tutti_status status =
        tutti_store_check(store, (const char *const *)(words + 1), (size_t)count - 1, &exists);
    if (status == TUTTI_OK)
        puts(exists ? "True" : "False");
    return status;
}

static enum tutti_status do_delete(char **words, int count)
{
    (void)count;
    bool deleted;
    enum tutti_status status = tutti_store_delete(store, words[1], &deleted);
    if (status == TUTTI_OK)
        puts(deleted ? "True" : "False");
    return status;
}

static enum tutti_status do_num_keys(char **words, int count)
{
    (void)words, (void)count;
    int64_t keys;
    enum tutti_status status = tutti_store_num_keys(store, &keys);
    if (status == TUTTI_OK)
        printf("%" PRId64 "\n", keys);
    return status;
}

static enum tutti_status do_compare_set(char **words, int count)
{
    (void)count;
    size_t size;
    const char *expected = text_of(words[2]), *desired = text_of(words[3]);
    enum tutti_status status =
        tutti_store_compare_set(store, words[1], expected, strlen(expected), desired,
                                strlen(desired), value, MAX_VALUE, &size);
    if (status == TUTTI_OK)
        print_value(size);
    return status;
}

/* The exchanger, whose keys Python ranks write and read by hand: 4-byte values 100 * round + rank.
 */
static enum tutti_status do_gather(char **words, int count)
{
    (void)count;
    uint32_t all[MAX_RANKS];
    struct tutti_exchanger exchanger = {.struct_size = sizeof exchanger,
                                        .store = store,
                                        .prefix = words[1],
                                        .rank = atoi(words[2]),
                                        .size = atoi(words[3])};
    enum tutti_status status = TUTTI_OK;
    for (int round = 0; round < atoi(words[4]) && status == TUTTI_OK; round++) {
        uint32_t mine = (uint32_t)(100 * round + exchanger.rank);
        status = tutti_exchanger_all_gather(&exchanger, &mine, sizeof mine, all, TIMEOUT_MS);
        for (int rank = 0; rank < exchanger.size && status == TUTTI_OK; rank++)
            if (all[rank] != (uint32_t)(100 * round + rank)) {
                printf("rank %d gave %u in round %d\n", rank, all[rank], round);
                exit(1);
            }
    }
    if (status == TUTTI_OK)
        puts("ok");
    return status;
}

static enum tutti_status do_url(char **words, int count)
{
    (void)words, (void)count;
    puts(tutti_store_url(store));
    return TUTTI_OK;
}

static const struct {
    const char *name;
    int words;
    enum tutti_status (*fn)(char **words, int count);
} commands[] = {
    {"set", 3, do_set},           {"get", 2, do_get},
    {"wait", 2, do_wait},         {"add", 3, do_add},
    {"check", 2, do_check},       {"delete", 2, do_delete},
    {"num_keys", 1, do_num_keys}, {"compare_set", 4, do_compare_set},
    {"gather", 5, do_gather},     {"url", 1, do_url},
};

static bool run_line(char *line)
{
    char *words[MAX_WORDS] = {0}, *rest;
    int count = 0;
    for (char *word = strtok_r(line, " \n", &rest); word && count < MAX_WORDS;
         word = strtok_r(NULL, " \n", &rest))
        words[count++] = word;
    if (count == 0 || strcmp(words[0], "quit") == 0)
        return false;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(words[0], commands[i].name) == 0 && count >= commands[i].words) {
            if (commands[i].fn(words, count) != TUTTI_OK)
                printf("error %s\n", tutti_last_error());
            fflush(stdout);
            return true;
        }
    printf("error no such command\n");
    return false;
}

int main(int argc, char **argv)
{
    static char line[1 << 16];
    if (argc != 2) {
        fprintf(stderr, "usage: store_peer URL\n");
        return 2;
    }
    if (tutti_store_open(argv[1], TIMEOUT_MS, &store) != TUTTI_OK) {
        fprintf(stderr, "store_peer: %s\n", tutti_last_error());
        return 1;
    }
    puts("open");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && run_line(line))
        ;
    tutti_store_close(store);
    return 0;
}
