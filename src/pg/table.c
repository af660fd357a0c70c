/* SPDX-License-Identifier: MIT */
#include "pg/table.h"

#include <stdlib.h>
#include <string.h>

static size_t size_of(const struct pg_table *table)
{
    return table->grown ? table->size : PG_BUCKETS;
}

static size_t index_of(const struct pg_table *table, uint32_t tag, uint64_t sequence)
{
    /* Successive sequences of a tag use neighbouring buckets; different tags begin far apart. */
    return (sequence + tag * UINT64_C(0x9e3779b1)) % size_of(table);
}

static struct pg_key **buckets_of(struct pg_table *table)
{
    return table->grown ? table->grown : table->few;
}

static struct pg_key *take(struct pg_table *table, struct pg_key **link)
{
    struct pg_key *key = *link;
    *link = key->next;
    table->count--;
    return key;
}

static void put(struct pg_table *table, struct pg_key *key)
{
    const size_t index = index_of(table, key->tag, key->sequence);
    struct pg_key **bucket = &buckets_of(table)[index];
    key->next = *bucket;
    *bucket = key;
    if (index < table->lowest)
        table->lowest = index;
}

/* Without memory the table stays as it is: it is slower then. */
static void grow(struct pg_table *table)
{
    struct pg_table larger = {.size = 4 * size_of(table), .count = table->count};
    larger.grown = calloc(larger.size, sizeof(struct pg_key *));
    if (!larger.grown)
        return;
    for (struct pg_key *key; (key = pg_table_take_any(table));)
        put(&larger, key);
    free(table->grown);
    table->grown = larger.grown;
    table->size = larger.size;
    table->count = larger.count;
    table->lowest = 0;
}

struct pg_key *pg_table_find(const struct pg_table *table, uint32_t tag, uint64_t sequence)
{
    struct pg_key *const *buckets = table->grown ? table->grown : table->few;
    struct pg_key *key = buckets[index_of(table, tag, sequence)];
    while (key && (key->tag != tag || key->sequence != sequence))
        key = key->next;
    return key;
}

void pg_table_insert(struct pg_table *table, struct pg_key *key)
{
    if (table->count >= 2 * size_of(table))
        grow(table);
    put(table, key);
    table->count++;
}

struct pg_key *pg_table_take(struct pg_table *table, uint32_t tag, uint64_t sequence)
{
    struct pg_key **link = &buckets_of(table)[index_of(table, tag, sequence)];
    while (*link && ((*link)->tag != tag || (*link)->sequence != sequence))
        link = &(*link)->next;
    return *link ? take(table, link) : NULL;
}

struct pg_key *pg_table_take_any(struct pg_table *table)
{
    struct pg_key **buckets = buckets_of(table);
    if (!table->count)
        return NULL;
    while (!buckets[table->lowest])
        table->lowest++;
    return take(table, &buckets[table->lowest]);
}

void pg_table_clear(struct pg_table *table)
{
    free(table->grown);
    memset(table, 0, sizeof *table);
}

void pg_table_each(const struct pg_table *table, void (*fn)(void *context, struct pg_key *key),
                   void *context)
{
    struct pg_key *const *buckets = table->grown ? table->grown : table->few;
    if (!table->count)
        return;
    for (size_t i = 0; i < size_of(table); i++)
        for (struct pg_key *key = buckets[i]; key; key = key->next)
            fn(context, key);
}

/* ---- lines ----------------------------------------------------------------------------------- */

struct pg_member *pg_line_first(const struct pg_table *lines, uint32_t tag, uint64_t sequence)
{
    return (struct pg_member *)pg_table_find(lines, tag, sequence);
}

void pg_line_append(struct pg_table *lines, struct pg_member *member)
{
    struct pg_member *first = pg_line_first(lines, member->key.tag, member->key.sequence);
    member->next = NULL;
    member->before = first ? first->last : NULL;
    if (first)
        first->last = first->last->next = member;
    else
        pg_table_insert(lines, &member->key);
    (first ? first : member)->last = member;
}

void pg_line_remove(struct pg_table *lines, struct pg_member *member)
{
    struct pg_member *next = member->next;
    if (next)
        next->before = member->before;
    if (member->before) {
        member->before->next = next;
        if (!next)
            pg_line_first(lines, member->key.tag, member->key.sequence)->last = member->before;
        return;
    }
    pg_table_take(lines, member->key.tag, member->key.sequence);
    if (next) {
        next->last = member->last;
        pg_table_insert(lines, &next->key);
    }
}
