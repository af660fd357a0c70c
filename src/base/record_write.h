/* SPDX-License-Identifier: MIT */
/* How an operation is recorded: a few stores into a line, and one reading of the processor's clock.
 * No lock, no allocation, no system call. One thread writes: the communicator's caller. */
#ifndef TUTTI_RECORD_WRITE_H
#define TUTTI_RECORD_WRITE_H

#include "base/order.h"
#include "base/record.h"
#include "base/ticks.h"
#include "tutti/tutti.h"

/* The fields of an operation that are known at its start. */
struct recorder_operation {
    uint64_t sequence;
    uint64_t signature; /* signature.h */
    uint32_t parameter;
    uint32_t tag;
    enum record_kind kind;
};

/* Begins the entry of that number. A reader that sees a field of the new operation also sees a new
 * number. */
static inline struct record_entry *record_start(struct record_page *page, uint64_t number,
                                                const struct recorder_operation *operation,
                                                enum record_state state, uint64_t ticks)
{
    struct record_entry *entry = &page->entries[number % RECORD_ENTRIES];
    order_store_relaxed_u64(&entry->number, 0);
    order_store_release_u64(&entry->sequence, operation->sequence); /* R2 pairs R2a, all these */
    order_store_release_u64(&entry->signature, operation->signature);
    order_store_release_u64(&entry->detail, operation->parameter | (uint64_t)operation->tag << 32);
    order_store_release_u64(&entry->started, ticks); /* R2 */
    order_store_release_u64(&entry->ended, 0);
    order_store_release_u64(&entry->outcome, record_outcome(state, TUTTI_OK, operation->kind));
    order_store_release_u64(&entry->number, number);
    return entry;
}

static inline void recorder_end(struct record_entry *entry, enum record_state state,
                                enum tutti_status status, enum record_kind kind, uint64_t ticks)
{
    order_store_relaxed_u64(&entry->ended, ticks);
    /* R3 pairs R3a: the end's time */
    order_store_release_u64(&entry->outcome, record_outcome(state, (int)status, kind));
}

#endif
