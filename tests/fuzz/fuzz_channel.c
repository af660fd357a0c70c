/* SPDX-License-Identifier: MIT */
/*
 * Hostile bytes to a channel. The first byte chooses: the first packet to a rank that opens, or a
 * packet with some descriptors on a link. Whatever comes, nothing is taken for good but the one
 * hello that is, and no descriptor stays open.
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

static struct channel *make_channel(int size)
{
    struct channel *channel;
    fuzz_check(channel_create(&channel) == TUTTI_OK);
    channel->size = size;
    memcpy(channel->nonce, NONCE, sizeof channel->nonce);
    return channel;
}

/* A packet for rank 0, of a kind up to `most`. */
static bool is_good(const uint8_t *data, size_t size, uint32_t most)
{
    struct packet packet;
    if (size != sizeof packet)
        return false;
    memcpy(&packet, data, sizeof packet);
    return packet.magic == PACKET_MAGIC && packet.version == PACKET_VERSION && packet.to == 0 &&
           packet.kind >= PACKET_HELLO && packet.kind <= most &&
           memcmp(packet.nonce, NONCE, sizeof packet.nonce) == 0;
}

static void fuzz_first(const uint8_t *data, size_t size)
{
    const struct channel_address addresses[4] = {{.id = "0"}, {.id = "1"}, {.id = "2"}};
    const struct channel_config config = {.size = 4, .addresses = addresses};
    struct opening opening = {
        .channel = make_channel(4), .config = &config, .to_accept = {{2 | 4 | 8}}};
    int sockets[2];
    make_pair(sockets);
    opening.channel->pending[0] = sockets[0];
    fuzz_check(send(sockets[1], data, size, 0) == (ssize_t)size);
    fuzz_check(on_pending(&opening, 0) == TUTTI_OK);

    struct packet packet = {.from = 0};
    bool good = is_good(data, size, PACKET_LEAVE);
    if (good)
        memcpy(&packet, data, sizeof packet);
    good = good && packet.from >= 1 && packet.from <= 3;
    for (uint32_t r = 1; r < 4; r++)
        fuzz_check((opening.channel->links[r] != NULL) == (good && packet.from == r));
    fuzz_check(opening.channel->pending[0] == -1);
    close(sockets[1]);
    channel_close(opening.channel);
}

/* The one packet that is good is a descriptor of rank 1. */
static void fuzz_packet(const uint8_t *data, size_t size)
{
    const struct ucred nobody = {.pid = 0};
    struct channel *channel = make_channel(2);
    int sockets[2], fd, fds[32];
    make_pair(sockets);
    channel->links[1] = link_make((const uint8_t *)"a process, 16 B ", sockets[0], &nobody, NULL);
    fuzz_check(channel->links[1] != NULL);
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
    fuzz_check(status != TUTTI_OK || (count >= 1 && is_good(data + 1, size - 1, PACKET_SEND)));
    fd_drop(&fd);
    close(sockets[1]);
    channel_close(channel);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const targets[])(const uint8_t *, size_t) = {fuzz_first, fuzz_packet};
    if (size < 3 || size > 4096)
        return 0;
    int before = fuzz_lowest_free();
    targets[data[0] % 2](data + 1, size - 1);
    fuzz_check(fuzz_lowest_free() == before);
    return 0;
}
