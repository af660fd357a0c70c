/* SPDX-License-Identifier: MIT */
/* A hash map of objects with a key: (tag, sequence). */
#ifndef TUTTI_PG_MAP_H
#define TUTTI_PG_MAP_H

#include <stddef.h>
#include <stdint.h>

enum { PG_BUCKETS = 512 }; /* at first */

/* The key; it is a member of the object. */
struct pg_key {
    uint32_t tag;
    uint64_t sequence;
    struct pg_key *next;
};

/* Zeroed, it is empty. */
struct pg_map {
    struct pg_key *few[PG_BUCKETS];
    struct pg_key **grown; /* the buckets of a map with many objects; NULL: `few` */
    size_t size;           /* of `grown` */
    size_t count;
    size_t lowest; /* no bucket below it has an object */
};

/* An object that waits in a line with others of the same key, in order. The map of the lines has
 * the first one of each line. */
struct pg_member {
    struct pg_key key; /* must be the first member: a pointer to it is cast to struct pg_member */
    struct pg_member *next, *before;
    struct pg_member *last; /* of the line's first one: its end */
};

/* Return NULL if there is none. */
struct pg_key *pg_map_find(const struct pg_map *map, uint32_t tag, uint64_t sequence);
/* No object with that key is in the map. */
void pg_map_insert(struct pg_map *map, struct pg_key *key);
/* Remove an object and return it; NULL if there is none. */
struct pg_key *pg_map_take(struct pg_map *map, uint32_t tag, uint64_t sequence);
/* Remove any object and return it; NULL if the map is empty. */
struct pg_key *pg_map_take_any(struct pg_map *map);
/* Forget all objects. */
void pg_map_clear(struct pg_map *map);
/* Call fn with each object. */
void pg_map_each(const struct pg_map *map, void (*fn)(void *context, struct pg_key *key),
                 void *context);

/* A line: append a member, which has its key; return the first one, or NULL; remove one. */
void pg_line_append(struct pg_map *lines, struct pg_member *member);
struct pg_member *pg_line_first(const struct pg_map *lines, uint32_t tag, uint64_t sequence);
void pg_line_remove(struct pg_map *lines, struct pg_member *member);

#endif
