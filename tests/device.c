/* SPDX-License-Identifier: MIT */
#include "device.h"

#include "../tools/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

bool device_is_cuda(void)
{
    const char *text = getenv("TUTTI_TEST_DEVICE");
    return text && strcmp(text, "cuda") == 0;
}

/* What a child finds: a count and a reason. */
struct finding {
    int count;
    char reason[400];
};

static void look(struct finding *finding)
{
    if (!gpu_open())
        snprintf(finding->reason, sizeof finding->reason, "%s", gpu_error());
    else if ((finding->count = gpu_count()) == 0)
        snprintf(finding->reason, sizeof finding->reason, "there is no GPU");
}

int device_count(const char **reason)
{
    static struct finding finding;
    static bool looked;
    int ends[2];
    if (!looked && pipe(ends) == 0) {
        pid_t child = fork();
        if (child == 0) {
            look(&finding);
            _exit(write(ends[1], &finding, sizeof finding) < 0);
        }
        close(ends[1]);
        if (read(ends[0], &finding, sizeof finding) != sizeof finding)
            snprintf(finding.reason, sizeof finding.reason, "cannot tell");
        close(ends[0]);
        while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
        looked = true;
    }
    if (reason)
        *reason = finding.reason;
    return finding.count;
}

bool device_bind(int rank)
{
    static _Thread_local bool bound;
    if (bound)
        return true;
    if (!gpu_open() || gpu_count() == 0 || !gpu_bind(rank % gpu_count())) {
        fprintf(stderr, "device: rank %d has no GPU: %s\n", rank, gpu_error());
        return false;
    }
    return bound = true;
}
