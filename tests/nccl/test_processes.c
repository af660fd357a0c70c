/* SPDX-License-Identifier: MIT */
/* Ranks of libnccl.so.2 that are processes. ThreadSanitizer does not follow them. */
#include "harness.h"

#include <sys/wait.h>
#include <unistd.h>

/* Each rank a process, as a launcher starts them; the parent has made the id. */
static void processes_run(void (*run)(int rank, ncclUniqueId id))
{
    ncclUniqueId id;
    pid_t pids[RANKS];
    OK(ncclGetUniqueId(&id));
    for (int r = 0; r < RANKS; r++) {
        pids[r] = fork();
        CHECK(pids[r] >= 0);
        if (pids[r])
            continue;
        device_enter(r);
        run(r, id);
        _exit(0);
    }
    for (int r = 0; r < RANKS; r++) {
        int status = -1;
        CHECK(waitpid(pids[r], &status, 0) == pids[r] && status == 0);
    }
}

static void process(int rank, ncclUniqueId id)
{
    ncclComm_t comm, child;
    const cudaStream_t stream = stream_create();
    OK(ncclCommInitRank(&comm, RANKS, id, rank));
    OK(ncclCommSplit(comm, rank == 0, 0, &child, NULL));
    comm_check(comm, RANKS, stream);
    comm_check(child, rank == 0 ? 1 : RANKS - 1, stream);
    OK(ncclCommDestroy(child));
    OK(ncclCommDestroy(comm));
}

/* All ranks get the error at once: none waits for the rank that lacks NVIDIA's library. */
static void lacking(int rank, ncclUniqueId id)
{
    ncclComm_t comm;
    int made = 0;
    setenv("TUTTI_TIMEOUT_MS", "5000", 1);
    setenv("TUTTI_NCCL_LIBRARY", rank == 1 ? "/none" : REAL, 1);
    OK(ncclCommInitRank(&comm, RANKS, id, rank));
    CHECK(ncclDevCommCreate(comm, NULL, &made) == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(comm), "TUTTI_NCCL_LIBRARY"));
    OK(ncclCommDestroy(comm));
}

static void test_processes(void **unused)
{
    (void)unused;
    processes_run(process);
}

static void test_lacking(void **unused)
{
    (void)unused;
    processes_run(lacking);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_lacking),
    };
    harness_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
