/* SPDX-License-Identifier: MIT */
/* What launchers leave in the environment, and the store that it opens. */
#include "store_suite.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLENTY_MS = 60000 };

/* "A=1 B=2" in place of the whole environment. */
static void environment(const char *text)
{
    char copy[1024], *rest;
    clearenv();
    snprintf(copy, sizeof copy, "%s", text);
    for (char *one = strtok_r(copy, " ", &rest); one; one = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(one, '=');
        *equals = 0;
        setenv(one, equals + 1, 1);
    }
}

static void launchers_are_recognised(void **state)
{
    static const struct {
        const char *environment, *name;
        int rank, world_size, local_rank, local_size;
    } rows[] = {
        {"RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", "torchrun", 3, 8, 1, 4},
        {"RANK=0 WORLD_SIZE=1", "torchrun", 0, 1, -1, -1},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=1",
         "openmpi", 1, 2, 1, 2},
        {"PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=3", "hydra", 2, 3, 2, 3},
        {"SLURM_PROCID=5 SLURM_NTASKS=11 SLURM_LOCALID=1", "slurm", 5, 11, 1, -1},
        {"SLURM_PROCID=0 SLURM_NTASKS=2", "slurm", 0, 2, -1, -1},
        /* Half of one launcher's variables does not hide another. */
        {"WORLD_SIZE=2 PMI_RANK=0 PMI_SIZE=1", "hydra", 0, 1, -1, -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tutti_launcher launcher = {.struct_size = sizeof launcher};
        environment(rows[i].environment);
        if (tutti_info_launcher(&launcher) != TUTTI_OK)
            fail_msg("%s: %s", rows[i].environment, tutti_last_error());
        assert_string_equal(launcher.name, rows[i].name);
        assert_int_equal(launcher.rank, rows[i].rank);
        assert_int_equal(launcher.world_size, rows[i].world_size);
        assert_int_equal(launcher.local_rank, rows[i].local_rank);
        assert_int_equal(launcher.local_size, rows[i].local_size);
    }
}

static void malformed_variables_are_named(void **state)
{
    static const struct {
        const char *environment, *named;
    } rows[] = {
        {"", "RANK and WORLD_SIZE (torchrun)"},
        {"RANK=0", "SLURM_PROCID"},
        {"RANK=x WORLD_SIZE=2", "RANK=x"},
        {"RANK=2 WORLD_SIZE=2", "RANK=2"},
        {"RANK=-1 WORLD_SIZE=2", "RANK=-1"},
        {"RANK=0 WORLD_SIZE=0", "WORLD_SIZE=0"},
        {"RANK=0 WORLD_SIZE=99999999999", "WORLD_SIZE=99999999999"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK=2"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3"},
        {"PMI_RANK=1e1 PMI_SIZE=20", "PMI_RANK=1e1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tutti_launcher launcher = {.struct_size = sizeof launcher, .rank = -7};
        environment(rows[i].environment);
        assert_int_equal(tutti_info_launcher(&launcher), TUTTI_ERR_INVALID);
        if (!strstr(tutti_last_error(), rows[i].named))
            fail_msg("%s: %s", rows[i].environment, tutti_last_error());
        assert_int_equal(launcher.rank, -7);
    }
    struct tutti_launcher launcher = {.struct_size = 1};
    assert_int_equal(tutti_info_launcher(&launcher), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_info_launcher(NULL), TUTTI_ERR_INVALID);
}

/* ---- env: -------------------------------------------------------------------------------------
 */

static char directory[64];

struct job {
    const char *format; /* of the environment, with the rank */
    int size;
    bool private_too; /* no address is given: the store's URL is nobody's business */
};

static int open_and_meet(void *context, int index)
{
    const struct job *job = context;
    char text[1024];
    int all[8];
    size_t used = (size_t)snprintf(text, sizeof text, job->format, index);
    snprintf(text + used, sizeof text - used, " TUTTI_DIR=%s", directory);
    environment(text);
    for (int round = 0; round < 3; round++) {
        tutti_store_t *store;
        if (tutti_store_open("env:", PLENTY_MS, &store) != TUTTI_OK)
            return 1;
        struct tutti_exchanger exchanger = {.struct_size = sizeof exchanger,
                                            .store = store,
                                            .prefix = "g",
                                            .rank = index,
                                            .size = job->size};
        int mine = 10 * round + index;
        if (tutti_exchanger_all_gather(&exchanger, &mine, sizeof mine, all, PLENTY_MS) != TUTTI_OK)
            return 1;
        for (int rank = 0; rank < job->size; rank++)
            if (all[rank] != 10 * round + rank)
                return 1;
        if (job->private_too != (tutti_store_url(store) == NULL))
            return 1;
        tutti_store_close(store);
    }
    return 0;
}

static int count_files(void)
{
    int count = 0;
    DIR *folder = opendir(directory);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count - 2;
}

/* Each opening meets its own peers and nothing is left in the directory. */
static void a_launchers_ranks_meet(void **state)
{
    static const struct job jobs[] = {
        {"OMPI_COMM_WORLD_RANK=%d OMPI_COMM_WORLD_SIZE=3 PMIX_NAMESPACE=x@1/2", 3, true},
        {"PMI_RANK=%d PMI_SIZE=3", 3, true},
        {"SLURM_PROCID=%d SLURM_NTASKS=2 SLURM_JOB_ID=4 SLURM_STEP_ID=0", 2, true},
        {"PMI_RANK=%d PMI_SIZE=1", 1, true},
    };
    (void)state;
    strcpy(directory, "/tmp/tutti-test-XXXXXX");
    assert_non_null(mkdtemp(directory));
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct job job = jobs[i];
        assert_int_equal(suite_processes(job.size, open_and_meet, &job), 0);
        assert_int_equal(count_files(), 0);
    }
    rmdir(directory);
}

static void an_address_is_used(void **state)
{
    tutti_store_t *store;
    char text[256];
    (void)state;
    /* A port that is free, most likely still in a moment. */
    assert_int_equal(tutti_store_open("tcp://h:0?server=1", PLENTY_MS, &store), TUTTI_OK);
    int port = atoi(strrchr(tutti_store_url(store), ':') + 1);
    tutti_store_close(store);
    snprintf(text, sizeof text, "RANK=%%d WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=%d", port);
    struct job job = {text, 3, false};
    assert_int_equal(suite_processes(3, open_and_meet, &job), 0);
}

static void every_rank_is_a_client_of_the_agent(void **state)
{
    tutti_store_t *agent, *store;
    char text[256];
    const char *key = "attempt_2/k";
    bool exists;
    (void)state;
    environment("");
    assert_int_equal(tutti_store_open("tcp://h:0?server=1", PLENTY_MS, &agent), TUTTI_OK);
    snprintf(text, sizeof text,
             "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%s "
             "TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=2",
             strrchr(tutti_store_url(agent), ':') + 1);
    environment(text);
    assert_int_equal(tutti_store_open("env:", PLENTY_MS, &store), TUTTI_OK);
    assert_int_equal(tutti_store_set(store, "k", "", 0), TUTTI_OK);
    assert_int_equal(tutti_store_check(agent, &key, 1, &exists), TUTTI_OK);
    assert_true(exists);
    tutti_store_close(store);
    tutti_store_close(agent);
}

static void half_an_address_is_an_error(void **state)
{
    static const struct {
        const char *environment, *named;
    } rows[] = {
        {"RANK=0 WORLD_SIZE=1", "MASTER_ADDR"},
        {"RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost", "MASTER_PORT"},
        {"PMI_RANK=0 PMI_SIZE=1 MASTER_PORT=1", "MASTER_ADDR"},
        {"RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=0", "MASTER_PORT=0"},
        {"RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=http", "MASTER_PORT=http"},
        {"PMI_RANK=0 PMI_SIZE=1 TUTTI_TIMEOUT_MS=soon", "TUTTI_TIMEOUT_MS=soon"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tutti_store_t *store;
        environment(rows[i].environment);
        assert_int_equal(tutti_store_open("env:", 0, &store), TUTTI_ERR_INVALID);
        if (!strstr(tutti_last_error(), rows[i].named))
            fail_msg("%s: %s", rows[i].environment, tutti_last_error());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launchers_are_recognised),
        cmocka_unit_test(malformed_variables_are_named),
        cmocka_unit_test(a_launchers_ranks_meet),
        cmocka_unit_test(an_address_is_used),
        cmocka_unit_test(every_rank_is_a_client_of_the_agent),
        cmocka_unit_test(half_an_address_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
