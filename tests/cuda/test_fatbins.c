/* SPDX-License-Identifier: MIT */
/* Every kernel is in the library for every architecture, with PTX of the last one for those to
 * come, and all of them take 20 MB at most. */
#include "cuda/kernels/rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const uint32_t archs[] = {ARCHS};
enum { ARCH_COUNT = sizeof archs / sizeof *archs };

/* As nvcc writes it, and as far as it is looked at here. */
struct container {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* that follow the header */
};

struct entry {
    uint16_t kind; /* 1: PTX, 2: machine code */
    uint16_t version;
    uint32_t header_bytes;
    uint64_t bytes; /* that follow the header */
    uint32_t others[3];
    uint32_t arch;
};

static struct container container_of(const unsigned char *fatbin)
{
    struct container container;
    memcpy(&container, fatbin, sizeof container);
    return container;
}

static int is_known(uint32_t arch)
{
    for (int i = 0; i < ARCH_COUNT; i++)
        if (archs[i] == arch)
            return i;
    return -1;
}

static void each_has_every_architecture(void **state)
{
    (void)state;
    for (int f = 0; f < CUDA_KERNELS; f++) {
        struct container container = container_of(cuda_kernel_rows[f].fatbin);
        assert_int_equal(container.magic, 0xba55ed50);
        const unsigned char *at = cuda_kernel_rows[f].fatbin + container.header_bytes,
                            *end = at + container.bytes;
        unsigned code = 0, ptx = 0;
        while (at < end) {
            struct entry entry;
            memcpy(&entry, at, sizeof entry);
            assert_in_range(entry.kind, 1, 2);
            int arch = is_known(entry.arch);
            assert_int_not_equal(arch, -1);
            if (entry.kind == 2)
                code |= 1u << arch;
            else
                ptx |= 1u << arch;
            at += entry.header_bytes + entry.bytes;
        }
        assert_ptr_equal(at, end);
        assert_int_equal(code, (1u << ARCH_COUNT) - 1);
        assert_int_equal(ptx, 1u << (ARCH_COUNT - 1));
    }
}

static void all_are_within_20_megabytes(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    for (int f = 0; f < CUDA_KERNELS; f++)
        bytes += container_of(cuda_kernel_rows[f].fatbin).header_bytes +
                 container_of(cuda_kernel_rows[f].fatbin).bytes;
    assert_in_range(bytes, 1000, 20000000);
}

int main(void)
{
    if (container_of(cuda_kernel_rows[0].fatbin).bytes == 0) {
        puts("this library was built without CUDA kernels: it has stubs in their place");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_has_every_architecture),
        cmocka_unit_test(all_are_within_20_megabytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
