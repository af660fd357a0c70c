/* SPDX-License-Identifier: MIT */
#include "symm.h"
bool symm_find(const void *pointer, size_t bytes, struct symm_view *view)
{
    (void)pointer, (void)bytes, (void)view;
    return false;
}
