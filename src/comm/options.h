/* SPDX-License-Identifier: MIT */
/* The settings of a new communicator: from arguments, options, the environment, defaults, in this
 * order. */
#ifndef TUTTI_COMM_OPTIONS_H
#define TUTTI_COMM_OPTIONS_H

#include "bootstrap/links.h"
#include "comm/comm.h"

/* Checks the arguments without a look at the machine. Returns INVALID. */
enum tutti_status comm_arguments_check(int rank, int world_size,
                                       const struct tutti_comm_options *options);
const struct backend *comm_backend_of(enum tutti_device device);
/* Checks hardware and world size, before the first use of the store. Returns DECLINED. */
enum tutti_status comm_host_check(enum tutti_device device, int world_size, bool has_fabric);
/* Fills the configuration. Returns INVALID, SYSTEM, NO_MEMORY. */
enum tutti_status comm_config_read(const struct tutti_comm_options *options,
                                   struct tutti_comm *comm);
/* Applies the options, and makes the leaf order. Returns INVALID. */
enum tutti_status comm_options_apply(const struct tutti_comm_options *options,
                                     struct tutti_comm *comm);
/* `order`: NULL is the order of ranks. Returns INVALID. */
enum tutti_status comm_leaf_order_read(const int *order, int size, uint8_t *leaf_order);
struct links comm_links_of(struct tutti_comm *comm);

#endif
