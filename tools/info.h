/* SPDX-License-Identifier: MIT */
/* The parts of `tutti info` that run something. */
#ifndef TUTTI_TOOL_INFO_H
#define TUTTI_TOOL_INFO_H

#include "tutti/tutti.h"

#include <jansson.h>

/* Each returns an array of {"test", "result", ...}. A result is "ok" or what went wrong; the latter
 * sets *failed. NULL: no memory. */
json_t *selftest_stores(bool *failed);
json_t *selftest_comms(int ranks, bool *failed);
/* [{"cpu", "round_trip_ns", "distance"}]: from the first core to every other one. */
json_t *selftest_distances(void);
/* The algorithms that a communicator would choose: [{"ranks", "dtypes", "topology",
 * "topology_reason", "links", "choices": [{"from_bytes", "to_bytes", ...}]}], for float32 among 2
 * and among `ranks` ranks. With `whole`: for every dtype among 2 to at least 8 ranks. With
 * TUTTI_TOPOLOGY_FILE: among `ranks` ranks only. */
json_t *selftest_algorithms(int ranks, bool whole, bool *failed);
/* The description of a communicator: {"key": "value"}, and "links" as an array of rows. */
json_t *describe_comm(const tutti_comm_t *comm);
/* Those rows, as text. */
void print_links(const json_t *rows, int indent);
/* Whether TUTTI_TOPOLOGY_FILE is set. Such a file is for one number of ranks. */
bool has_topology_file(void);
/* Driver, devices, links, peers tested with data, ranks that share a device, communicators of up to
 * 8 GPUs; or {"missing"}. Uses child processes. */
json_t *describe_cuda(bool *failed);

#endif
