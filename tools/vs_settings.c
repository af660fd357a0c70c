/* SPDX-License-Identifier: MIT */
/* bench/README.md describes how these settings were found. */
#include "vs.h"

#include <string.h>

#define KI  ((size_t)1 << 10)
#define MI  ((size_t)1 << 20)
#define ANY SIZE_MAX

enum { TUTTI, OPENMPI, OPENMPI5, MPICH, MPICH5, INTELMPI, GLOO };

/* Open MPI yields if it knows that there are more ranks than cores. It runs as root, the only user
 * of many containers, only with both of these variables. */
#define OPENMPI_LAUNCH                                                                             \
    .bound = {"--bind-to", "core"}, .crowded = {"--oversubscribe", "--bind-to", "none"},           \
    .environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",                \
                    "PRTE_ALLOW_RUN_AS_ROOT=1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1"}
#define MPICH_LAUNCH .bound = {"-bind-to", "core"}, .crowded = {"-bind-to", "none"}

const struct vs_library vs_libraries[] = {
    [TUTTI] = {.name = "tutti", .title = "Tutti"},
    [OPENMPI] = {.name = "openmpi",
                 .title = "Open MPI",
                 .program = "tutti-bench-openmpi",
                 .launcher = "mpirun.openmpi",
                 OPENMPI_LAUNCH},
    [OPENMPI5] = {.name = "openmpi5",
                  .title = "Open MPI",
                  .program = "tutti-bench-openmpi5",
                  .root = "openmpi",
                  .launcher = "@/bin/mpirun",
                  OPENMPI_LAUNCH},
    [MPICH] = {.name = "mpich",
               .title = "MPICH",
               .program = "tutti-bench-mpich",
               .launcher = "mpiexec.mpich",
               MPICH_LAUNCH},
    [MPICH5] = {.name = "mpich5",
                .title = "MPICH",
                .program = "tutti-bench-mpich5",
                .root = "mpich",
                .launcher = "@/bin/mpiexec",
                MPICH_LAUNCH},
    /* Intel MPI has MPICH's ABI and uses the same program. The ranks bind themselves. */
    [INTELMPI] = {.name = "intelmpi",
                  .title = "Intel MPI",
                  .program = "tutti-bench-mpich5",
                  .root = "intelmpi",
                  .launcher = "@/bin/mpiexec.hydra",
                  .environment = {"LD_LIBRARY_PATH=@/lib", "FI_PROVIDER_PATH=@/lib", "I_MPI_ROOT=@",
                                  "I_MPI_PIN=0", "I_MPI_FABRICS=shm"}},
    [GLOO] = {.name = "gloo",
              .title = "Gloo",
              .program = "tutti-bench-gloo",
              .all_reduce_only = true},
};
const int vs_library_count = sizeof vs_libraries / sizeof *vs_libraries;

#define VARIANT RIVAL_VARIANT "="
#define MPICH_ALGORITHM(name)                                                                      \
    .environment = {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=" name}, .all_reduce_only = true
#define OPENMPI_UCX                                                                                \
    .environment = {"OMPI_MCA_pml=ucx", "OMPI_MCA_pml_ucx_tls=any",                                \
                    "OMPI_MCA_pml_ucx_devices=any", "UCX_TLS=self,posix,cma"}
#define OPENMPI_RING                                                                               \
    .environment = {"OMPI_MCA_coll_tuned_use_dynamic_rules=1",                                     \
                    "OMPI_MCA_coll_tuned_allreduce_algorithm=5",                                   \
                    "OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize=1048576"},                \
    .all_reduce_only = true

const struct vs_setting vs_settings[] = {
    {TUTTI, "tutti", VS_BOTH, .to = ANY},
    {TUTTI, "tutti symmetric", VS_BOTH, .from = 8 * KI, .to = ANY,
     .environment = {VARIANT "symmetric"}},

    {OPENMPI, "openmpi", VS_BOTH, .to = ANY},
    {OPENMPI, "openmpi vader", VS_BOTH, .to = ANY,
     .environment = {"OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader",
                     "OMPI_MCA_btl_vader_single_copy_mechanism=none",
                     "OMPI_MCA_btl_vader_eager_limit=262144",
                     "OMPI_MCA_btl_vader_max_send_size=262144",
                     "OMPI_MCA_btl_vader_segment_size=67108864"}},
    {OPENMPI, "openmpi ucx", VS_BOTH, .from = 512, .to = ANY, OPENMPI_UCX},
    {OPENMPI, "openmpi sm", VS_BOUND, .from = 4 * KI, .to = 512 * KI,
     .environment = {"OMPI_MCA_coll_sm_priority=100", "OMPI_MCA_coll_sm_fragment_size=65536",
                     "OMPI_MCA_coll_sm_comm_num_segments=32",
                     "OMPI_MCA_coll_sm_comm_in_use_flags=8"},
     .all_reduce_only = true},
    {OPENMPI, "openmpi ring", VS_BOTH, .from = 16 * MI, .to = ANY, OPENMPI_RING},

    {OPENMPI5, "openmpi5", VS_BOTH, .to = ANY},
    {OPENMPI5, "openmpi5 eager", VS_BOTH, .to = ANY,
     .environment = {"OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,sm", "OMPI_MCA_smsc=^cma",
                     "OMPI_MCA_btl_sm_eager_limit=262144", "OMPI_MCA_btl_sm_max_send_size=262144",
                     "OMPI_MCA_btl_sm_segment_size=67108864"}},
    {OPENMPI5, "openmpi5 ucx", VS_BOTH, .from = 512, .to = ANY, OPENMPI_UCX},
    {OPENMPI5, "openmpi5 sm", VS_BOUND, .from = 4 * KI, .to = 512 * KI,
     .environment = {"OMPI_MCA_coll_sm_priority=100", "OMPI_MCA_coll_sm_fragment_size=65536",
                     "OMPI_MCA_coll_sm_comm_num_segments=32",
                     "OMPI_MCA_coll_sm_comm_in_use_flags=8"},
     .all_reduce_only = true},
    {OPENMPI5, "openmpi5 ring", VS_BOTH, .from = 16 * MI, .to = ANY, OPENMPI_RING},

    {MPICH, "mpich", VS_BOTH, .to = ANY},
    {MPICH, "mpich doubling", VS_BOUND, .to = 128 * KI, MPICH_ALGORITHM("recursive_doubling")},
    {MPICH, "mpich scatter", VS_BOUND, .from = 4 * KI, .to = ANY,
     MPICH_ALGORITHM("reduce_scatter_allgather")},

    {MPICH5, "mpich5", VS_BOTH, .to = ANY},
    {MPICH5, "mpich5 doubling", VS_BOUND, .to = 128 * KI, MPICH_ALGORITHM("recursive_doubling")},
    {MPICH5, "mpich5 scatter", VS_BOUND, .from = 4 * KI, .to = ANY,
     MPICH_ALGORITHM("reduce_scatter_allgather")},

    {INTELMPI, "intelmpi", VS_BOTH, .to = ANY},
    {INTELMPI, "intelmpi direct", VS_BOUND, .from = 256 * KI, .to = ANY,
     .environment = {"I_MPI_SHM_LMT=direct"}},
    {INTELMPI, "intelmpi yield", VS_CROWDED, .to = ANY, .environment = {"I_MPI_THREAD_YIELD=2"}},

    {GLOO, "gloo", VS_CROWDED, .to = ANY, .environment = {VARIANT "new"}},
    {GLOO, "gloo halving", VS_BOTH, .to = ANY, .environment = {VARIANT "halving_doubling"}},
    {GLOO, "gloo ring", VS_BOUND, .from = 1 * MI, .to = ANY,
     .environment = {VARIANT "ring_chunked"}},
};
const int vs_setting_count = sizeof vs_settings / sizeof *vs_settings;
_Static_assert(sizeof vs_settings / sizeof *vs_settings <= VS_INSTANCES, "room for all");

static int find_library(const char *name)
{
    for (int i = TUTTI + 1; i < vs_library_count; i++)
        if (strcmp(vs_libraries[i].name, name) == 0)
            return i;
    return -1;
}

bool vs_parse(char *text, unsigned *libraries, const char **bad)
{
    char *rest = NULL;
    *libraries = 0;
    *bad = text;
    for (char *name = strtok_r(text, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        int library = find_library(name);
        *bad = name;
        if (strcmp(name, "all") == 0)
            *libraries |= ((1u << vs_library_count) - 1) & ~(1u << TUTTI);
        else if (library >= 0)
            *libraries |= 1u << library;
        else
            return false;
    }
    return *libraries != 0;
}

const char *vs_names(void)
{
    static char names[128];
    size_t used = 0;
    for (int i = TUTTI + 1; i < vs_library_count; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                                 vs_libraries[i].name);
    return names;
}

void vs_expand(const struct vs_library *library, const char *text, char *expanded, size_t capacity)
{
    const char *at = strchr(text, '@');
    if (at)
        snprintf(expanded, capacity, "%.*s%s/%s%s", (int)(at - text), text, TOOL_RIVALS,
                 library->root, at + 1);
    else
        snprintf(expanded, capacity, "%s", text);
}
