/* SPDX-License-Identifier: MIT */
/* CUDA tensors through host memory. All is for the group's thread. */
#ifndef TUTTI_PG_STAGING_H
#define TUTTI_PG_STAGING_H

#include "pg/cuda.h"

/* Take a block for a message. If it is to be sent, start copying it to the block. */
void pg_staging_copy_message(struct pg_operation *operation);
/* The host memory of a message's tensor. */
void *pg_staging_message_data(const struct pg_operation *operation);
/* Start copying a received message to the device. Returns CUDA. */
enum tutti_status pg_staging_message_out(const struct pg_operation *operation);
/* Run the operation, or one pair with `elements` elements in a block, together with all ranks.
 * After OK the last copies to the device may still be under way. */
enum tutti_status pg_staging_run(struct tutti_pg *pg, struct pg_operation *operation, int pair,
                                 size_t elements);

#endif
