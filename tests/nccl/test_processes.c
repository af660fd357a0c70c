/* SPDX-License-Identifier: MIT */
/* Ranks of libnccl.so.2 that are processes. ThreadSanitizer does not follow them. */
#include "harness.h"

#include <sys/wait.h>
#include <unistd.h>

/* Each rank a process, as a launcher starts them; the parent has made the id. */
static void test_processes(void **unused)
{
    ncclUniqueId id;
    pid_t pids[RANKS];
    (void)unused;
    OK(ncclGetUniqueId(&id));
    for (int r = 0; r < RANKS; r++) {
        pids[r] = fork();
        CHECK(pids[r] >= 0);
        if (pids[r])
            continue;
        ncclComm_t comm, child;
        device_enter(r);
        const cudaStream_t stream = stream_create();
        OK(ncclCommInitRank(&comm, RANKS, id, r));
        OK(ncclCommSplit(comm, r == 0, 0, &child, NULL));
        comm_check(comm, RANKS, stream);
        comm_check(child, r == 0 ? 1 : RANKS - 1, stream);
        OK(ncclCommDestroy(child));
        OK(ncclCommDestroy(comm));
        _exit(0);
    }
    for (int r = 0; r < RANKS; r++) {
        int status = -1;
        CHECK(waitpid(pids[r], &status, 0) == pids[r] && status == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_processes)};
    harness_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
