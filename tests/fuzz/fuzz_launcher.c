/* SPDX-License-Identifier: MIT */
/*
 * Lines NAME=VALUE are the whole environment. What the library reports about the launcher is
 * consistent.
 */
#include "fuzz.h"
#include "store/launcher.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    char job[64], *rest, *text = fuzz_text(bytes, size);
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
