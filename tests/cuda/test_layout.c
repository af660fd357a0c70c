/* SPDX-License-Identifier: MIT */
/*
 * docs/layout.md has the offset of each word of a CUDA arena and of symmetric memory on a device.
 * The test compares these offsets with the compiler's.
 */
#include "cuda/kernels/symm_launch.h"
#include "cuda/pipe/proxy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Every member but padding: of the arena by its name, of others as the page calls them. */
#define MEMBER_MAP(X)                                                                              \
    X("", cuda_arena, control)                                                                     \
    X("", cuda_arena, headers)                                                                     \
    X("", cuda_arena, meetings)                                                                    \
    X("", cuda_arena, arrivals)                                                                    \
    X("", cuda_arena, credits)                                                                     \
    X("", cuda_arena, sent)                                                                        \
    X("", cuda_arena, received)                                                                    \
    X("", cuda_arena, flagged)                                                                     \
    X("", cuda_arena, one_shot)                                                                    \
    X("", cuda_arena, two_shot)                                                                    \
    X("", cuda_arena, pipes)                                                                       \
    X("", cuda_arena, copies)                                                                      \
    X("", cuda_arena, escapes)                                                                     \
    X("", cuda_arena, messages)                                                                    \
    X("", cuda_arena, tiles)                                                                       \
    X("header.", cuda_header, signature)                                                           \
    X("header.", cuda_header, parameter)                                                           \
    X("header.", cuda_header, sequence)                                                            \
    X("flagged.", cuda_flagged, data)                                                              \
    X("flagged.", cuda_flagged, flag)                                                              \
    X("count.", cuda_arrival_count, tiles)                                                         \
    X("count.", cuda_arrival_count, flag)                                                          \
    X("meeting.", cuda_meeting, count)                                                             \
    X("meeting.", cuda_meeting, subset)                                                            \
    X("row.", cuda_row, sequence)                                                                  \
    X("row.", cuda_row, failed)                                                                    \
    X("row.", cuda_row, buffers)                                                                   \
    X("state.", cuda_buffer_state, buffer)                                                         \
    X("state.", cuda_buffer_state, pipe)                                                           \
    X("state.", cuda_buffer_state, dirty)                                                          \
    X("control.", cuda_control, rows)                                                              \
    X("control.", cuda_control, former)                                                            \
    X("control.", cuda_control, meetings)                                                          \
    X("control.", cuda_control, claimed)                                                           \
    X("control.", cuda_control, failed)                                                            \
    X("control.", cuda_control, look_ns)                                                           \
    X("control.", cuda_control, gone)                                                              \
    X("host.", cuda_host, stop)                                                                    \
    X("host.", cuda_host, stop_peer)                                                               \
    X("host.", cuda_host, timeout_ns)                                                              \
    X("host.", cuda_host, gone)                                                                    \
    X("host.", cuda_host, failed)                                                                  \
    X("host.", cuda_host, status)                                                                  \
    X("host.", cuda_host, peer)                                                                    \
    X("host.", cuda_host, parameters)                                                              \
    X("host.", cuda_host, sequence)                                                                \
    X("host.", cuda_host, signatures)                                                              \
    X("tail.", cuda_symm_tail, left)                                                               \
    X("tail.", cuda_symm_tail, failed)                                                             \
    X("tail.", cuda_symm_tail, claimed)                                                            \
    X("tail.", cuda_symm_tail, rank)                                                               \
    X("tail.", cuda_symm_tail, magic)                                                              \
    X("tail.", cuda_symm_tail, ended)                                                              \
    X("tail.", cuda_symm_tail, buffers)                                                            \
    X("tail.", cuda_symm_tail, pads)                                                               \
    X("page.", cuda_symm_page, stop)                                                               \
    X("page.", cuda_symm_page, gone)                                                               \
    X("page.", cuda_symm_page, timeout_ns)                                                         \
    X("page.", cuda_symm_page, failed)                                                             \
    X("page.", cuda_symm_page, status)                                                             \
    X("page.", cuda_symm_page, peer)                                                               \
    X("page.", cuda_symm_page, channel)                                                            \
    X("page.", cuda_symm_page, call)                                                               \
    X("page.", cuda_symm_page, awaited)                                                            \
    X("page.", cuda_symm_page, ended)                                                              \
    X("page.", cuda_symm_page, tail)                                                               \
    X("proxy.", cuda_proxy_page, come)                                                             \
    X("proxy.", cuda_proxy_page, done)                                                             \
    X("proxy.", cuda_proxy_page, slots)

static struct member {
    const char *name;
    uint64_t offset, size;
    bool seen;
} members[] = {
#define MEMBER_ROW(prefix, type, member)                                                           \
    {prefix #member, offsetof(struct type, member), sizeof(((struct type *)NULL)->member), false},
    MEMBER_MAP(MEMBER_ROW)
#undef MEMBER_ROW
};
enum { MEMBERS = sizeof members / sizeof *members };

/* "2 x 12 Mi" */
static uint64_t product(const char *text)
{
    uint64_t value = 1;
    for (char *end; *text; text = end) {
        value *= strtoull(text, &end, 10);
        while (*end == ' ' || *end == 'x' || *end == 'K' || *end == 'M' || *end == 'i') {
            value *= *end == 'K' ? 1024 : *end == 'M' ? 1048576 : 1;
            end++;
        }
        if (end == text || *end == '|')
            break;
    }
    return value;
}

static struct member *member_named(const char *name)
{
    for (int i = 0; i < MEMBERS; i++)
        if (strcmp(members[i].name, name) == 0)
            return &members[i];
    fail_msg("docs/layout.md: the headers have no %s", name);
    return NULL;
}

static void compare_row(const char *line)
{
    char offset[32], size[32], name[64];
    if (sscanf(line, "| %31[0-9] | %31[0-9 xKMi] | `%63[a-z_.]", offset, size, name) != 3)
        return;
    struct member *member = member_named(name);
    member->seen = true;
    if (product(offset) != member->offset || product(size) != member->size)
        fail_msg("docs/layout.md: %s: is at %llu and has %llu bytes", name,
                 (unsigned long long)member->offset, (unsigned long long)member->size);
}

static void the_page_is_true(void **state)
{
    (void)state;
    FILE *page = fopen(LAYOUT, "r");
    char line[512];
    bool ours = false;
    assert_non_null(page);
    while (fgets(line, sizeof line, page)) {
        if (strncmp(line, "## ", 3) == 0)
            ours = strstr(line, "CUDA") != NULL;
        else if (ours)
            compare_row(line);
    }
    fclose(page);
    for (int i = 0; i < MEMBERS; i++)
        if (!members[i].seen)
            fail_msg("docs/layout.md: does not have %s", members[i].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_is_true),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
