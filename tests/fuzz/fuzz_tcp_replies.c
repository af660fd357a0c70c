/* SPDX-License-Identifier: MIT */
/* What a server answers: a value never runs past its buffer, and nothing is awaited for ever. */
#include "deadline.h"
#include "fuzz.h"
#include "store/tcp_client.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("\x05\0\0\0\0\0\0\0hello"),
    FUZZ_SEED("\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0x"),
    FUZZ_SEED("\x20\0\0\0\0\0\0\0"
              "a value that is longer than room"),
    FUZZ_SEED("\xff\xff\xff\xff\xff\xff\xff\xff"),
    FUZZ_SEED("\0\0\0\x04\0\0\0\0 2^26 and more"),
};
const size_t fuzz_seed_count = sizeof fuzz_seeds / sizeof *fuzz_seeds;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    enum { ROOM = 16, GUARD = 8 };
    uint8_t value[ROOM + GUARD];
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        return 0;
    size_t sent = size < 65536 ? size : 65536, got = 0;
    fuzz_check(send(fds[0], bytes, sent, MSG_NOSIGNAL) == (ssize_t)sent);
    shutdown(fds[0], SHUT_WR);
    struct tcp_connection connection = {
        .fd = fds[1], .deadline = deadline_after(10000), .name = "fuzz"};
    enum tutti_status status;
    memset(value, 0x5a, sizeof value);
    /* One after the other until the bytes end, as multi_get reads them. */
    do {
        size_t length = 0;
        status = tcp_receive_value(&connection, value, ROOM, &length);
        got += 8 + length;
        fuzz_check(status != TUTTI_OK || got <= sent);
        fuzz_check(status == TUTTI_OK || status == TUTTI_ERR_SYSTEM);
    } while (status == TUTTI_OK);
    for (int i = ROOM; i < ROOM + GUARD; i++)
        fuzz_check(value[i] == 0x5a);
    close(fds[0]);
    close(fds[1]);
    return 0;
}
