/* SPDX-License-Identifier: MIT */
/*
 * README.md says how these were found. Open MPI yields by itself once it is told that ranks
 * outnumber cores (--oversubscribe).
 */
#include "setting.h"

#include "protocol.h"

#include <stdint.h>

#define KI  ((size_t)1 << 10)
#define MI  ((size_t)1 << 20)
#define ANY SIZE_MAX

static const struct launcher mpirun = {
    .program = "mpirun.openmpi",
    .pinned = {"--bind-to", "core"},
    .crowded = {"--oversubscribe", "--bind-to", "none"},
};

static const struct launcher mpiexec = {
    .program = "mpiexec.mpich",
    .pinned = {"-bind-to", "core"},
    .crowded = {"-bind-to", "none"},
};

#define OPENMPI .library = "openmpi", .program = "bench-openmpi", .launcher = &mpirun
#define MPICH   .library = "mpich", .program = "bench-mpich", .launcher = &mpiexec
#define GLOO    .library = "gloo", .program = "bench-gloo"
#define TUTTI   .library = "tutti", .program = "bench-tutti"
#define BOTH    (SETTING_PINNED | SETTING_CROWDED)
#define VARIANT "TUTTI_BENCH_VARIANT="

const struct setting settings[] = {
    {TUTTI, .name = "tutti", .uses = BOTH, .to = ANY},
    {TUTTI, .name = "tutti symmetric", .uses = BOTH, .from = 8 * KI, .to = ANY,
     .environment = {VARIANT "symmetric"}},

    {OPENMPI, .name = "openmpi", .uses = BOTH, .to = ANY},
    {OPENMPI, .name = "openmpi vader", .uses = BOTH, .to = ANY,
     .environment = {"OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader",
                     "OMPI_MCA_btl_vader_single_copy_mechanism=none",
                     "OMPI_MCA_btl_vader_eager_limit=262144",
                     "OMPI_MCA_btl_vader_max_send_size=262144",
                     "OMPI_MCA_btl_vader_segment_size=67108864"}},
    {OPENMPI, .name = "openmpi ucx", .uses = BOTH, .from = 512, .to = ANY,
     .environment = {"OMPI_MCA_pml=ucx", "OMPI_MCA_pml_ucx_tls=any", "OMPI_MCA_pml_ucx_devices=any",
                     "UCX_TLS=self,posix,cma"}},
    {OPENMPI, .name = "openmpi sm", .uses = SETTING_PINNED, .from = 4 * KI, .to = 512 * KI,
     .environment = {"OMPI_MCA_coll_sm_priority=100", "OMPI_MCA_coll_sm_fragment_size=65536",
                     "OMPI_MCA_coll_sm_comm_num_segments=32",
                     "OMPI_MCA_coll_sm_comm_in_use_flags=8"}},
    {OPENMPI, .name = "openmpi ring", .uses = BOTH, .from = 16 * MI, .to = ANY,
     .environment = {"OMPI_MCA_coll_tuned_use_dynamic_rules=1",
                     "OMPI_MCA_coll_tuned_allreduce_algorithm=5",
                     "OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize=1048576"}},

    {MPICH, .name = "mpich", .uses = BOTH, .to = ANY},
    {MPICH, .name = "mpich doubling", .uses = SETTING_PINNED, .to = 128 * KI,
     .environment = {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=recursive_doubling"}},
    {MPICH, .name = "mpich scatter", .uses = SETTING_PINNED, .from = 4 * KI, .to = ANY,
     .environment = {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=reduce_scatter_allgather"}},

    {GLOO, .name = "gloo", .uses = SETTING_CROWDED, .to = ANY, .environment = {VARIANT "new"}},
    {GLOO, .name = "gloo halving", .uses = BOTH, .to = ANY,
     .environment = {VARIANT "halving_doubling"}},
    {GLOO, .name = "gloo ring", .uses = SETTING_PINNED, .from = 1 * MI, .to = ANY,
     .environment = {VARIANT "ring_chunked"}},
};
const int setting_count = sizeof(settings) / sizeof(settings[0]);
