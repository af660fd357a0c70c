/* SPDX-License-Identifier: MIT */
/*
 * Hostile bytes to a channel. The first byte chooses: a hello to a rank that opens, an announcement
 * from the store, or a parcel with some descriptors to a rank at work. Whatever comes, nothing is
 * taken for good but the one hello that is, and no descriptor stays open.
 */
#include "ipc/channel_open.c" /* its parsers are static */

#include "fuzz.h"

#include <fcntl.h>
#include <sys/uio.h>

static const uint8_t NONCE[CHANNEL_NONCE_BYTES] = "fuzzed nonce 16";

static void make_pair(int sockets[2])
{
    fuzz_check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) == 0);
}

static void fuzz_hello(const uint8_t *data, size_t size)
{
    struct channel_config config = {.rank = 0, .size = 4};
    struct opening opening = {.config = &config, .to_accept = {{2 | 4 | 8}}};
    int sockets[2];
    memcpy(config.nonce, NONCE, sizeof config.nonce);
    fuzz_check(channel_create(0, 4, &opening.channel) == TUTTI_OK);
    make_pair(sockets);
    opening.channel->pending[0] = sockets[0];
    fuzz_check(send(sockets[1], data, size, 0) == (ssize_t)size);
    fuzz_check(on_pending(&opening, 0) == TUTTI_OK);

    struct hello hello;
    bool good = size == sizeof hello;
    if (good) {
        memcpy(&hello, data, sizeof hello);
        good = hello.magic == MAGIC && hello.version == VERSION && hello.to == 0 &&
               hello.from >= 1 && hello.from <= 3 &&
               memcmp(hello.nonce, NONCE, sizeof hello.nonce) == 0;
    }
    fuzz_check(good != rank_set_empty(opening.channel->connected));
    fuzz_check(opening.channel->pending[0] == -1);
    close(sockets[1]);
    channel_close(opening.channel);
}

static void fuzz_announcement(const uint8_t *data, size_t size)
{
    struct channel_config config = {.rank = 0, .size = 2};
    struct opening opening = {.config = &config};
    opening.all[0] =
        (struct announcement){.magic = MAGIC, .version = VERSION, .peers = rank_set_of(1)};
    if (size > sizeof opening.all[1])
        size = sizeof opening.all[1];
    memcpy(&opening.all[1], data, size);
    if (check_announcement(&opening, 1) == TUTTI_OK)
        fuzz_check(opening.all[1].magic == MAGIC && rank_set_has(opening.all[1].peers, 0));
}

static void fuzz_parcel(const uint8_t *data, size_t size)
{
    struct channel *channel;
    int sockets[2], fd, fds[32];
    fuzz_check(channel_create(0, 2, &channel) == TUTTI_OK);
    make_pair(sockets);
    channel->links[1].socket = sockets[0];
    channel->connected = rank_set_of(1);

    size_t count = data[0] % 32;
    union {
        char bytes[CMSG_SPACE(sizeof fds)];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec payload = {.iov_base = (void *)(uintptr_t)(data + 1), .iov_len = size - 1};
    struct msghdr message = {.msg_iov = &payload, .msg_iovlen = 1};
    if (count) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(count * sizeof *fds);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        *rights = (struct cmsghdr){.cmsg_len = CMSG_LEN(count * sizeof *fds),
                                   .cmsg_level = SOL_SOCKET,
                                   .cmsg_type = SCM_RIGHTS};
        for (size_t i = 0; i < count; i++)
            fds[i] = sockets[1];
        memcpy(CMSG_DATA(rights), fds, count * sizeof *fds);
    }
    fuzz_check(sendmsg(sockets[1], &message, 0) == (ssize_t)(size - 1));
    enum tutti_status status = channel_recv_fd(channel, 1, &fd, 0);
    fuzz_check((status == TUTTI_OK) == (fd >= 0));
    fuzz_check(status != TUTTI_OK || count == 1);
    channel_drop(&fd);
    close(sockets[1]);
    channel_close(channel);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const targets[])(const uint8_t *, size_t) = {fuzz_hello, fuzz_announcement,
                                                               fuzz_parcel};
    if (size < 3 || size > 4096)
        return 0;
    int before = fuzz_lowest_free();
    targets[data[0] % 3](data + 1, size - 1);
    fuzz_check(fuzz_lowest_free() == before);
    return 0;
}
