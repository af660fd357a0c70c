/* SPDX-License-Identifier: MIT */
#include "ipc/random.h"

#include "base/error.h"

#include <errno.h>
#include <sys/random.h>

enum tutti_status random_fill(void *bytes, size_t size)
{
    ssize_t got;
    do
        got = getrandom(bytes, size, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0 || (size_t)got != size)
        return error_errno("getrandom of %zu bytes", size);
    return TUTTI_OK;
}

bool secret_equal(const uint8_t *a, const uint8_t *b, size_t size)
{
    uint8_t difference = 0;
    for (size_t i = 0; i < size; i++)
        difference |= (uint8_t)(a[i] ^ b[i]);
    return difference == 0;
}
