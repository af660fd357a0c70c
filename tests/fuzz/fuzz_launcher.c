/* SPDX-License-Identifier: MIT */
/* Lines NAME=VALUE are the whole environment: what is told of the launcher makes sense. */
#include "fuzz.h"
#include "store/launcher.h"

#include <string.h>

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("RANK=3\nWORLD_SIZE=8\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=4"),
    FUZZ_SEED("OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=1\n"
              "OMPI_COMM_WORLD_LOCAL_SIZE=2\nPMIX_NAMESPACE=prterun-host-1@1"),
    FUZZ_SEED("PMI_RANK=2\nPMI_SIZE=3\nMPI_LOCALRANKID=2\nMPI_LOCALNRANKS=3"),
    FUZZ_SEED("SLURM_PROCID=9\nSLURM_NTASKS=11\nSLURM_LOCALID=1\nSLURM_NODEID=2\n"
              "SLURM_STEP_TASKS_PER_NODE=4(x2),3\nSLURM_JOB_ID=7\nSLURM_STEP_ID=0"),
};
const size_t fuzz_seed_count = sizeof fuzz_seeds / sizeof *fuzz_seeds;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    char job[64], *rest, *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, bytes, size);
    text[size] = 0;
    clearenv();
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *equals = strchr(line, '=');
        if (equals && equals != line) {
            *equals = 0;
            setenv(line, equals + 1, 1);
        }
    }
    if (tutti_info_launcher(&launcher) == TUTTI_OK) {
        fuzz_check(launcher.name && launcher.world_size >= 1);
        fuzz_check(launcher.rank >= 0 && launcher.rank < launcher.world_size);
        fuzz_check(launcher.local_rank >= -1);
        fuzz_check(launcher.local_size == -1 || launcher.local_rank < launcher.local_size);
        if (launcher_job(&launcher, job, sizeof job) == TUTTI_OK)
            for (const char *one = job; *one; one++)
                fuzz_check(strchr("/ \t\n", *one) == NULL);
    }
    free(text);
    return 0;
}
