/* SPDX-License-Identifier: MIT */
/* What any fabric must do, for tests of each. A failure is told on stderr, with the last error. */
#ifndef TESTS_PATTERN_H
#define TESTS_PATTERN_H

#include "fabric/fabric.h"

enum { PATTERN_TIMEOUT_MS = 30000 };

/* Connects the ranks by addresses under `name` in the store. */
bool pattern_connect(tutti_store_t *store, tutti_fabric_t *fabric, const char *name, int rank,
                     int size, struct fabric_link **link);

/* Waits for a batch. */
enum tutti_status pattern_wait(struct fabric_link *link, struct fabric_batch *batch);

/* Messages of all pairs of `bytes` bytes, `depth` in each direction, in two batches: the receives
 * begin first or last, and the tags are received in the order of sending or in the opposite one. */
bool pattern_exchange(struct fabric_link *link, size_t bytes, int depth, bool sends_first,
                      bool backwards);

/* pattern_exchange() of many sizes up to `most`. */
bool pattern_all(struct fabric_link *link, size_t most);

/* A rank aborts its link while it waits for a message that never comes: it gets ABORTED within a
 * second. The link is left aborted on all ranks. */
bool pattern_abort(struct fabric_link *link);

/* Rank 1 sends rank 0 `bytes` bytes, but it expects 8: rank 0 gets MISMATCH. Others do nothing. The
 * link is then of no more use to rank 0. */
bool pattern_mismatch(struct fabric_link *link, size_t bytes);

#endif
