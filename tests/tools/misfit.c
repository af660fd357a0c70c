/* SPDX-License-Identifier: MIT */
/*
 * A program whose rank 1 misbehaves in its third operation, or whose rank 0 calls two communicators
 * in another order than the other ranks do.
 *
 * usage: misfit count|stop|cross
 */
#include "tutti/tutti.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* One operation on each of two communicators, then the crossed ones, in which all ranks stay. */
static enum tutti_status cross(tutti_store_t *store, const struct tutti_launcher *me)
{
    static const char *const names[2] = {"first", "second"};
    tutti_comm_t *comms[2] = {NULL, NULL};
    enum tutti_status status = TUTTI_OK;
    float x[4] = {0};
    for (int i = 0; i < 2 && status == TUTTI_OK; i++) {
        const struct tutti_comm_options options = {.struct_size = sizeof options, .name = names[i]};
        status = tutti_comm_create(store, me->rank, me->world_size, &options, &comms[i]);
    }
    for (int i = 0; i < 4 && status == TUTTI_OK; i++)
        status = tutti_all_reduce(x, x, 4, TUTTI_FLOAT32, TUTTI_SUM,
                                  comms[(i + (i > 1 && me->rank > 0)) % 2], TUTTI_STREAM_DEFAULT);
    for (int i = 0; i < 2; i++)
        tutti_comm_destroy(comms[i]);
    return status;
}

int main(int argc, char **argv)
{
    struct tutti_launcher me = {.struct_size = sizeof me};
    tutti_store_t *store = NULL;
    tutti_comm_t *comm = NULL;
    enum tutti_status status = TUTTI_OK;
    float x[5] = {0};
    const bool crosses = argc == 2 && strcmp(argv[1], "cross") == 0;
    if (argc != 2 || tutti_info_launcher(&me) || tutti_store_open("env:", 0, &store) ||
        (!crosses && tutti_comm_create(store, me.rank, me.world_size, NULL, &comm))) {
        fprintf(stderr, "%s\n", tutti_last_error());
        return 1;
    }
    if (crosses)
        status = cross(store, &me);
    for (int i = 1; i <= 3 && !crosses && status == TUTTI_OK; i++) {
        bool misfit = i == 3 && me.rank == 1;
        if (misfit && strcmp(argv[1], "stop") == 0)
            raise(SIGSTOP);
        status = tutti_all_reduce(x, x, misfit ? 5 : 4, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                  TUTTI_STREAM_DEFAULT);
    }
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return 0;
}
