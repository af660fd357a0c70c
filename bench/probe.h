/* SPDX-License-Identifier: MIT */
/* How far apart two cores are right now: a cache line's round trip between them. */
#ifndef BENCH_PROBE_H
#define BENCH_PROBE_H

struct probe;

/* Binds the calling thread to the first core that it may use and a second thread, asleep between
 * probes, to the next one. Returns NULL if there is one core only, or the thread cannot start. */
struct probe *probe_create(void);
void probe_destroy(struct probe *probe);
/* The round trip in nanoseconds, the best of a few batches; takes about 20 us. NaN if the other
 * thread did not come within a second. */
double probe_round_trip(struct probe *probe);

#endif
