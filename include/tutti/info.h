/* SPDX-License-Identifier: MIT */
/* Queries. Part of tutti.h, whose conventions hold. */
#ifndef TUTTI_INFO_H
#define TUTTI_INFO_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- queries that need no communicator ------------------------------------------------------- */

/*
 * Writes the value of a key as text. Local; needs no communicator. `tutti info` prints them.
 *
 * - [out] text: 32 bytes are enough for any key
 * - "enabled": "no" if TUTTI_DISABLE is set to something else than 0, off, false or no; the
 *   application should then not use the library. Else "yes"
 * - "isa": the instruction set of CPU reductions: "baseline", "avx2", "avx512" or "neon"; the
 *   processor's best, or the one that TUTTI_ISA names if it has that
 * - "symm.backend": what TUTTI_SYMM_BACKEND names, "cpu" or "cuda"; "cpu" if it is unset. A query
 *   only: tutti_symm_alloc() takes the device
 * - "cuda.device": the ordinal of the current CUDA device; -1 if there is none that Tutti can use
 * - "cuda.multicast": "yes" if the current CUDA device supports NVLink multicast objects, else "no"
 * - "calls": the number of calls of collectives, barriers and messages in this process, those of
 *   process groups and refused calls included. In a group of calls, all calls on one CPU
 *   communicator count as one
 *
 * Returns INVALID (an unknown key, and the message lists the keys; a text that is too short, and
 * the message names the bytes needed; a wrong environment variable).
 */
TUTTI_API enum tutti_status tutti_info(const char *key, char *text, size_t size);
/*
 * What the launcher's environment variables say about this process. `tutti run` sets those of
 * torchrun. The launchers, in the order in which they are tried:
 *
 * - torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
 * - openmpi: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK,
 *   OMPI_COMM_WORLD_LOCAL_SIZE
 * - hydra: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
 * - slurm: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID; no local size
 */
struct tutti_launcher {
    size_t struct_size;
    const char *name; /* static, as in that list */
    int rank;
    int world_size;
    int local_rank; /* on this node; -1: not given */
    int local_size; /* ranks on this node; -1: not given */
};
/* Fills *launcher from the variables of the first launcher whose rank and world size are both set.
 * Returns INVALID (none is recognised, and the message names the variables; or a variable is
 * malformed). */
TUTTI_API enum tutti_status tutti_info_launcher(struct tutti_launcher *launcher);
/*
 * Sets links[i * count + j] to the number of NVLinks from device i to device j, from NVML; 0 on the
 * diagonal. A link to an NVSwitch counts as one link to each device on that switch.
 *
 * - [in] bus_ids: PCI bus ids of count devices, as CUDA writes them: "0000:01:00.0"
 *
 * Returns INVALID, DECLINED (no NVML on this machine), NO_MEMORY, SYSTEM (NVML's error).
 */
TUTTI_API enum tutti_status tutti_info_links(const char *const *bus_ids, int count, int *links);

#ifdef __cplusplus
}
#endif

#endif
