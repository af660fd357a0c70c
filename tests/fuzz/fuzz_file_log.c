/* SPDX-License-Identifier: MIT */
/*
 * The records of a FileStore: the parser uses no more bytes than there are, and only whole records.
 */
#include "fuzz.h"
#include "store/file_log.h"

static void check_entry(const struct map_entry *entry, void *entries)
{
    int64_t number;
    char text[MAP_NUMBER_BYTES];
    ++*(size_t *)entries;
    fuzz_check(map_sum(entry, 1, &number, text) < sizeof text);
    fuzz_check(file_log_key_known(entry->key, entry->key_bytes));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct map map = {0}, again = {0};
    size_t used, used_again;
    enum file_log_result result = file_log_apply(&map, bytes, size, &used);
    fuzz_check(used <= size && (result != FILE_LOG_WHOLE || used == size));
    fuzz_check(file_log_apply(&again, bytes, used, &used_again) == FILE_LOG_WHOLE);
    fuzz_check(used_again == used && again.count == map.count && again.bytes == map.bytes);
    size_t entries = 0;
    map_walk(&map, check_entry, &entries);
    fuzz_check(entries == map.count);
    map_fini(&map);
    map_fini(&again);
    return 0;
}
