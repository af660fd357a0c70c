/* SPDX-License-Identifier: MIT */
/*
 * Rank 0 hands out tasks to workers; a fast worker gets more of them. The tasks are messages of a
 * process group, and rank 0 receives answers from any source. Before that a broadcast in the
 * background gives all ranks the table that the tasks need.
 *
 *     tutti run -n 4 build/examples/workers
 */
#include <stdio.h>
#include <stdlib.h>
#include <tutti/pg.h>

enum { TASKS = 100, TABLE = 1024, TAG_ANSWER = 1, TAG_TASK = 2, NO_TASK = -1 };

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

static struct tutti_tensor vector(int32_t *data, const int64_t *count)
{
    return (struct tutti_tensor){.struct_size = sizeof(struct tutti_tensor),
                                 .data = data,
                                 .dtype = TUTTI_INT32,
                                 .dims = 1,
                                 .sizes = count};
}

/* Wait for the work; return the sender of what it has received. */
static int done(tutti_work_t *work)
{
    must(tutti_work_wait_host(work, 0));
    const int source = tutti_work_source(work);
    tutti_work_destroy(work);
    return source;
}

static void send_to(tutti_pg_t *pg, int32_t *data, int64_t count, int rank, uint32_t tag)
{
    const struct tutti_tensor tensor = vector(data, &count);
    const struct tutti_pg_call_options options = {.struct_size = sizeof options, .tag = tag};
    tutti_work_t *work;
    must(tutti_pg_send(pg, &tensor, rank, &options, &work));
    (void)done(work);
}

static int receive(tutti_pg_t *pg, int32_t *data, int64_t count, int rank, uint32_t tag)
{
    const struct tutti_tensor tensor = vector(data, &count);
    const struct tutti_pg_call_options options = {.struct_size = sizeof options, .tag = tag};
    tutti_work_t *work;
    must(tutti_pg_recv(pg, &tensor, rank, &options, &work));
    return done(work);
}

/* An answer is a task and its result. A worker's first answer belongs to no task. */
static int hand_out(tutti_pg_t *pg, int workers)
{
    int32_t answer[2], task = 0;
    int wrong = 0;
    while (workers) {
        const int worker = receive(pg, answer, 2, TUTTI_ANY_SOURCE, TAG_ANSWER);
        int32_t next = task < TASKS ? task++ : NO_TASK;
        wrong += answer[0] != NO_TASK && answer[1] != 3 * answer[0] + 1;
        send_to(pg, &next, 1, worker, TAG_TASK);
        workers -= next == NO_TASK;
    }
    return wrong;
}

static void work(tutti_pg_t *pg, const int32_t *table)
{
    int32_t answer[2] = {NO_TASK, 0};
    do {
        send_to(pg, answer, 2, 0, TAG_ANSWER);
        receive(pg, answer, 1, 0, TAG_TASK);
        answer[1] = answer[0] == NO_TASK ? 0 : table[answer[0]];
    } while (answer[0] != NO_TASK);
}

int main(void)
{
    tutti_store_t *store;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *broadcast, *barrier;
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    must(tutti_info_launcher(&launcher));
    must(tutti_store_open("env:", 0, &store));
    must(tutti_comm_create(store, launcher.rank, launcher.world_size, NULL, &comm));
    must(tutti_pg_create(comm, NULL, &pg));

    const int64_t count = TABLE;
    int32_t table[TABLE];
    const struct tutti_tensor tensor = vector(table, &count);
    for (int i = 0; launcher.rank == 0 && i < TABLE; i++)
        table[i] = 3 * i + 1;
    must(tutti_pg_broadcast(pg, &tensor, 1, &tensor, 1, 0, NULL, &broadcast));
    (void)done(broadcast);

    int wrong = 0;
    if (launcher.rank == 0)
        wrong = hand_out(pg, launcher.world_size - 1);
    else
        work(pg, table);
    must(tutti_pg_barrier(pg, NULL, &barrier));
    (void)done(barrier);
    if (launcher.rank == 0)
        printf("%d workers did %d tasks, %d results are wrong\n", launcher.world_size - 1, TASKS,
               wrong);
    tutti_pg_destroy(pg);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return wrong ? 1 : 0;
}
