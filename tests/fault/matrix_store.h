/* SPDX-License-Identifier: MIT */
#ifndef TESTS_MATRIX_STORE_H
#define TESTS_MATRIX_STORE_H

#include "tutti/tutti.h"

struct store_manner {
    int delay_ms;      /* before every call */
    int version_ahead; /* of the library, in what this rank tells the others of itself */
};

/* Both borrowed until tutti_store_close(); NULL if there is no memory. */
tutti_store_t *store_between(tutti_store_t *store, const struct store_manner *manner);

#endif
