/* SPDX-License-Identifier: MIT */
/*
 * After a job a member polls for a while, because the next piece of an operation comes soon. Then
 * it sleeps. The caller does not sleep while it waits for the members, because their parts are as
 * long as its own.
 */
#include "cpu/transport/team.h"

#include "base/deadline.h"
#include "base/order.h"
#include "base/thread.h"
#include "base/wait.h"
#include "ipc/futex.h"

#include <stdlib.h>

enum {
    LINE_BYTES = 64,
    SPINS = 300, /* rounds of SPIN polls and a yield for the next job, up to a millisecond */
    SPIN = 64,
    SLEEP_MS = 60000,
    POLLS = 1000, /* of a caller, before it yields */
};

struct member {
    uint32_t done; /* the last job that it has done: release S2 */
    int number;
    pthread_t thread;
    struct cpu_team *team;
    char pad[LINE_BYTES - sizeof(pthread_t) - sizeof(void *) - 2 * sizeof(int)];
};

struct cpu_team {
    uint32_t jobs; /* so far: release S1 */
    uint32_t asleep;
    uint32_t bell; /* futex */
    int size;      /* members[0] is the caller */
    bool stop;
    void (*part)(const void *context, int i);
    const void *context;
    struct member members[];
};

static uint32_t jobs_of(const struct cpu_team *team)
{
    return order_load_acquire_u32(&team->jobs); /* S1a pairs S1 */
}

struct next_job {
    const struct cpu_team *team;
    uint32_t after;
};

static bool has_come(void *context)
{
    const struct next_job *next = context;
    return jobs_of(next->team) != next->after;
}

static bool comes_soon(const struct cpu_team *team, uint32_t job)
{
    struct next_job next = {team, job};
    int64_t now = deadline_now();
    for (int i = 0; i < SPINS; i++)
        if (wait_spin(has_come, &next, 0, SPIN))
            return true;
        else if (!wait_yield(&now))
            break;
    return false;
}

/* Waits for a job after `job`. A member counts itself as asleep, then checks for a job; the caller
 * publishes a job, then checks for sleepers. */
static uint32_t job_await(struct cpu_team *team, uint32_t job)
{
    while (!comes_soon(team, job)) {
        const uint32_t bell = order_load_relaxed_u32(&team->bell);
        order_fetch_add_u32(&team->asleep, 1);
        order_fence();
        if (jobs_of(team) == job)
            futex_sleep(&team->bell, bell, SLEEP_MS);
        order_fetch_add_u32(&team->asleep, UINT32_MAX);
    }
    return jobs_of(team);
}

static void *member_main(void *argument)
{
    struct member *self = argument;
    struct cpu_team *team = self->team;
    uint32_t job = 0;
    while (job = job_await(team, job), !team->stop) {
        team->part(team->context, self->number);
        order_store_release_u32(&self->done, job); /* S2 pairs S2a: the part */
    }
    return NULL;
}

void cpu_team_wake(struct cpu_team *team)
{
    if (!order_load_relaxed_u32(&team->asleep))
        return;
    order_fetch_add_u32(&team->bell, 1);
    futex_wake_all(&team->bell);
}

static void job_begin(struct cpu_team *team)
{
    order_store_release_u32(&team->jobs, team->jobs + 1); /* S1 pairs S1a: the job */
    order_fence();
    cpu_team_wake(team);
}

struct cpu_team *cpu_team_create(int size)
{
    struct cpu_team *team = calloc(1, sizeof *team + (size_t)size * sizeof *team->members);
    if (!team)
        return NULL;
    for (team->size = 1; team->size < size; team->size++) {
        struct member *member = &team->members[team->size];
        member->number = team->size;
        member->team = team;
        if (!thread_start(&member->thread, member_main, member))
            break;
    }
    if (team->size == size)
        return team;
    cpu_team_destroy(team);
    return NULL;
}

void cpu_team_destroy(struct cpu_team *team)
{
    if (!team)
        return;
    team->stop = true;
    job_begin(team);
    for (int i = 1; i < team->size; i++)
        pthread_join(team->members[i].thread, NULL);
    free(team);
}

int cpu_team_size(const struct cpu_team *team)
{
    return team->size;
}

static bool has_done(void *context)
{
    const struct member *member = context;
    return order_load_acquire_u32(&member->done) == member->team->jobs; /* S2a pairs S2 */
}

void cpu_team_run(struct cpu_team *team, void (*part)(const void *context, int i),
                  const void *context)
{
    team->part = part;
    team->context = context;
    job_begin(team);
    part(context, 0);
    for (int i = 1; i < team->size; i++) {
        struct member *member = &team->members[i];
        const struct waiter waiter = {.poll = has_done, .context = member, .yields = INT64_MAX};
        if (!wait_spin(has_done, member, 0, POLLS))
            waiter_run(&waiter);
    }
}
