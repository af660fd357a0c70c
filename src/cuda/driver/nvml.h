/* SPDX-License-Identifier: MIT */
/*
 * NVLinks between devices, as libnvidia-ml reports them. The library is opened at run time; nvml.c
 * declares the part of its interface that is used.
 */
#ifndef TUTTI_CUDA_NVML_H
#define TUTTI_CUDA_NVML_H

#include "tutti/tutti.h"

/*
 * links[i * count + j] = active NVLinks from device i to device j, where a link that ends in an
 * NVSwitch counts as one to every device that has such links; 0 on the diagonal.
 * [in] bus_ids  of the devices, as CUDA writes them ("0000:01:00.0"): ordinals differ
 * Returns DECLINED (no library, which TUTTI_NVML_LIBRARY names instead of libnvidia-ml.so.1, or one
 * that lacks a function), SYSTEM (NVML's error), NO_MEMORY.
 */
enum tutti_status nvml_links(const char *const *bus_ids, int count, int *links);

#endif
