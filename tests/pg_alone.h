/* SPDX-License-Identifier: MIT */
/* A process group of one rank, for cmocka. */
#ifndef TESTS_PG_ALONE_H
#define TESTS_PG_ALONE_H

#include "tutti/pg.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static tutti_store_t *store;
static tutti_comm_t *comm;
static tutti_pg_t *pg;

static int open_group(void **state)
{
    (void)state;
    assert_int_equal(tutti_store_open("memory:pg", 1000, &store), TUTTI_OK);
    assert_int_equal(tutti_comm_create(store, 0, 1, NULL, &comm), TUTTI_OK);
    assert_int_equal(tutti_pg_create(comm, NULL, &pg), TUTTI_OK);
    return 0;
}

static int close_group(void **state)
{
    (void)state;
    tutti_pg_destroy(pg);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return 0;
}

#endif
