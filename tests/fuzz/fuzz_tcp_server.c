/* SPDX-License-Identifier: MIT */
/*
 * The server's input: two clients talk in turns, in pieces of any size. The first byte says whether
 * there is a secret, whether the clients are introduced already, and how large the pieces are.
 */
#include "fuzz.h"
#include "store/tcp_session.h"

#include <string.h>

static void feed(struct tcp_session *session, int *open, const uint8_t *bytes, size_t size)
{
    size_t room;
    if (!*open)
        return;
    uint8_t *to = tcp_session_room(session, &room);
    fuzz_check(to != NULL && room >= size);
    memcpy(to, bytes, size);
    *open = tcp_session_feed(session, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const uint8_t hello[] = {0, 0xce, 0xf7, 0x85, 0x3c};
    struct tcp_space space = {0};
    struct tcp_session sessions[2];
    int open[2] = {1, 1};
    uint8_t head = size ? *bytes++ : 0;
    size -= size ? 1 : 0;
    space.secret = head & 2 ? "secret" : NULL;
    for (int i = 0; i < 2; i++) {
        tcp_session_init(&sessions[i], &space);
        if (head & 1)
            feed(&sessions[i], &open[i], hello, sizeof hello);
    }
    size_t piece = (size_t)(head >> 2) + 1;
    for (int turn = 0; size > 0; turn ^= 1) {
        size_t part = piece < size ? piece : size;
        feed(&sessions[turn], &open[turn], bytes, part);
        /* Half of the output is sent at once, the rest later. */
        tcp_session_sent(&sessions[turn], (sessions[turn].out.size + 1) / 2);
        tcp_session_sent(&sessions[turn ^ 1], (sessions[turn ^ 1].out.size + 1) / 2);
        bytes += part;
        size -= part;
    }
    tcp_session_fini(&sessions[0]);
    tcp_session_fini(&sessions[1]);
    fuzz_check(space.sessions == NULL);
    tcp_space_fini(&space);
    fuzz_check(space.buffered_bytes == 0 && space.values.count == 0);
    return 0;
}
