/* SPDX-License-Identifier: MIT */
/* tutti_all_reduce_rms_norm(): an all-reduce whose result goes on, row by row. */
#ifndef TUTTI_COMM_RMS_NORM_H
#define TUTTI_COMM_RMS_NORM_H

#include "tutti/tutti.h"

/* Runs a call on a communicator that has entered. `given`: its options, NULL for none. Returns what
 * tutti_all_reduce_rms_norm() does. */
enum tutti_status comm_rms_norm(struct tutti_comm *comm, const struct tutti_rms_norm *norm,
                                tutti_stream_t stream, const struct tutti_call_options *given);

#endif
