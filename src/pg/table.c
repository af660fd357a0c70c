/* SPDX-License-Identifier: MIT */
#include "pg/table.h"

static size_t bucket_of(uint32_t tag, uint64_t sequence)
{
    /* Successive sequences of a tag use neighbouring buckets; different tags begin far apart. */
    return (sequence + tag * UINT64_C(0x9e3779b1)) % PG_BUCKETS;
}

static struct pg_key **link_of(struct pg_table *table, uint32_t tag, uint64_t sequence)
{
    struct pg_key **link = &table->buckets[bucket_of(tag, sequence)];
    while (*link && ((*link)->tag != tag || (*link)->sequence != sequence))
        link = &(*link)->next;
    return link;
}

static struct pg_key *take(struct pg_table *table, struct pg_key **link)
{
    struct pg_key *key = *link;
    *link = key->next;
    table->count--;
    return key;
}

struct pg_key *pg_table_find(const struct pg_table *table, uint32_t tag, uint64_t sequence)
{
    struct pg_key *key = table->buckets[bucket_of(tag, sequence)];
    while (key && (key->tag != tag || key->sequence != sequence))
        key = key->next;
    return key;
}

void pg_table_insert(struct pg_table *table, struct pg_key *key)
{
    struct pg_key **bucket = &table->buckets[bucket_of(key->tag, key->sequence)];
    key->next = *bucket;
    *bucket = key;
    table->count++;
}

struct pg_key *pg_table_take(struct pg_table *table, uint32_t tag, uint64_t sequence)
{
    struct pg_key **link = link_of(table, tag, sequence);
    return *link ? take(table, link) : NULL;
}

struct pg_key *pg_table_take_any(struct pg_table *table)
{
    for (size_t i = 0; table->count && i < PG_BUCKETS; i++)
        if (table->buckets[i])
            return take(table, &table->buckets[i]);
    return NULL;
}

void pg_table_each(const struct pg_table *table, void (*fn)(void *context, struct pg_key *key),
                   void *context)
{
    if (!table->count)
        return;
    for (size_t i = 0; i < PG_BUCKETS; i++)
        for (struct pg_key *key = table->buckets[i]; key; key = key->next)
            fn(context, key);
}
