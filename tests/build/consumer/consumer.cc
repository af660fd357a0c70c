/* SPDX-License-Identifier: MIT */
/* The header from C++11. */
#include <cstdio>
#include <tutti/tutti.h>

int main()
{
    tutti_comm_options options = tutti_comm_options();
    options.struct_size = sizeof options;
    const tutti_op_t op = TUTTI_SUM;
    std::printf("%d %s\n", tutti_version(), tutti_status_name(TUTTI_OK));
    return op != nullptr && tutti_version() == TUTTI_VERSION && options.timeout_ms == 0 ? 0 : 1;
}
