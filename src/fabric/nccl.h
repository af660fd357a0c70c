/* SPDX-License-Identifier: MIT */
/* NCCL as a fabric, for memory of the device. */
#ifndef TUTTI_FABRIC_NCCL_H
#define TUTTI_FABRIC_NCCL_H

#include "fabric/fabric.h"

extern const struct fabric_ops nccl_fabric;

#endif
