/* SPDX-License-Identifier: MIT */
/* Keys to values, both byte strings: the contents of a store. A balanced tree, so that no choice of
 * keys makes it slow. Not thread-safe. */
#ifndef TUTTI_STORE_MAP_H
#define TUTTI_STORE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_entry {
    const uint8_t *key;
    size_t key_bytes;
    uint8_t *value;
    size_t value_bytes;
};

/* All zero is an empty map. */
struct map {
    void *root;
    size_t count;
    size_t bytes; /* of all keys and values */
};

void map_fini(struct map *map);

/* NULL if the key is absent. Valid until the next change of the map. */
struct map_entry *map_find(const struct map *map, const void *key, size_t key_bytes);

/* For compare_set: whether the entry has this value. NULL counts as an empty value. */
bool map_entry_is(const struct map_entry *entry, const void *value, size_t value_bytes);
/* Sets the key to a copy of `value`; with `keep`, appends the copy to the key's present value.
 * `value` must lie outside the map. Returns NULL when there is no memory. */
struct map_entry *map_put(struct map *map, const void *key, size_t key_bytes, bool keep,
                          const void *value, size_t value_bytes);
/* Whether the key existed. */
bool map_erase(struct map *map, const void *key, size_t key_bytes);
/* Calls visit(entry, context) for each entry. */
void map_walk(const struct map *map, void (*visit)(const struct map_entry *entry, void *context),
              void *context);

enum { MAP_NUMBER_BYTES = 24 }; /* room for any 64-bit number as text, its sign and a NUL */

/* Adds `amount` to the number that the entry has as text; an absent or empty entry counts as 0.
 * Also writes the sum as text, and returns the length of that text. Returns 0 if the entry is no
 * decimal number of 64 bits, or if the sum needs more than 64 bits. */
size_t map_sum(const struct map_entry *entry, int64_t amount, int64_t *sum,
               char text[MAP_NUMBER_BYTES]);

#endif
