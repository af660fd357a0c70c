/* SPDX-License-Identifier: MIT */
/* A hash table of objects with a key: (tag, sequence). */
#ifndef TUTTI_PG_TABLE_H
#define TUTTI_PG_TABLE_H

#include <stddef.h>
#include <stdint.h>

enum { PG_BUCKETS = 512 };

/* The key; it is a member of the object. */
struct pg_key {
    uint32_t tag;
    uint64_t sequence;
    struct pg_key *next;
};

struct pg_table {
    struct pg_key *buckets[PG_BUCKETS];
    size_t count;
};

/* Return NULL if there is none. */
struct pg_key *pg_table_find(const struct pg_table *table, uint32_t tag, uint64_t sequence);
/* No object with that key is in the table. */
void pg_table_insert(struct pg_table *table, struct pg_key *key);
/* Remove an object and return it; NULL if there is none. */
struct pg_key *pg_table_take(struct pg_table *table, uint32_t tag, uint64_t sequence);
/* Remove any object and return it; NULL if the table is empty. */
struct pg_key *pg_table_take_any(struct pg_table *table);
/* Call fn with each object. */
void pg_table_each(const struct pg_table *table, void (*fn)(void *context, struct pg_key *key),
                   void *context);

#endif
