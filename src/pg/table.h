/* SPDX-License-Identifier: MIT */
/* A table of things that bear a key: (tag, sequence). */
#ifndef TUTTI_PG_TABLE_H
#define TUTTI_PG_TABLE_H

#include <stddef.h>
#include <stdint.h>

enum { PG_BUCKETS = 512 };

/* Lies in the thing. */
struct pg_key {
    uint32_t tag;
    uint64_t sequence;
    struct pg_key *next;
};

struct pg_table {
    struct pg_key *buckets[PG_BUCKETS];
    size_t count;
};

/* NULL if there is none. */
struct pg_key *pg_table_find(const struct pg_table *table, uint32_t tag, uint64_t sequence);
/* There is none of that key yet. */
void pg_table_insert(struct pg_table *table, struct pg_key *key);
/* Takes it out, and returns it; NULL if there is none. */
struct pg_key *pg_table_take(struct pg_table *table, uint32_t tag, uint64_t sequence);
/* Any one, taken out; NULL if the table is empty. */
struct pg_key *pg_table_take_any(struct pg_table *table);
/* Calls fn with every one. */
void pg_table_each(const struct pg_table *table, void (*fn)(void *context, struct pg_key *key),
                   void *context);

#endif
