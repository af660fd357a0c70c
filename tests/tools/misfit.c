/* SPDX-License-Identifier: MIT */
/*
 * A program whose rank 1 misbehaves in its third operation.
 *
 * usage: misfit count|stop
 */
#include "tutti/tutti.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct tutti_launcher me = {.struct_size = sizeof me};
    tutti_store_t *store = NULL;
    tutti_comm_t *comm = NULL;
    enum tutti_status status = TUTTI_OK;
    float x[5] = {0};
    if (argc != 2 || tutti_info_launcher(&me) || tutti_store_open("env:", 0, &store) ||
        tutti_comm_create(store, me.rank, me.world_size, NULL, &comm)) {
        fprintf(stderr, "%s\n", tutti_last_error());
        return 1;
    }
    for (int i = 1; i <= 3 && status == TUTTI_OK; i++) {
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
