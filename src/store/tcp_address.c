/* SPDX-License-Identifier: MIT */
/* Where the server of a tcp store listens, and how that is written: an address and a port of IP, or
 * a Unix socket. */
#include "store/tcp.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

bool tcp_is_loopback(const struct sockaddr_storage *address)
{
    struct sockaddr_in ip4;
    struct sockaddr_in6 ip6;
    memcpy(&ip4, address, sizeof ip4);
    memcpy(&ip6, address, sizeof ip6);
    return address->ss_family == AF_INET6
               ? IN6_IS_ADDR_LOOPBACK(&ip6.sin6_addr)
               : address->ss_family == AF_INET && ntohl(ip4.sin_addr.s_addr) >> 24 == 127;
}

const char *tcp_bind_host(const struct store_url *url)
{
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    struct in_addr ip4;
    struct in6_addr ip6;
    if (*url->bind)
        return url->bind;
    if (inet_pton(AF_INET, url->text, &ip4) == 1)
        memcpy(&address, &(struct sockaddr_in){.sin_family = AF_INET, .sin_addr = ip4},
               sizeof(struct sockaddr_in));
    else if (inet_pton(AF_INET6, url->text, &ip6) == 1)
        memcpy(&address, &(struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = ip6},
               sizeof(struct sockaddr_in6));
    return tcp_is_loopback(&address) ? url->text : "";
}

/* An abstract name begins with a zero byte and ends with the address. */
struct sockaddr_storage tcp_unix_address(const char *name)
{
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct sockaddr_storage address = {0};
    strncpy(local.sun_path + 1, name, sizeof local.sun_path - 2);
    memcpy(&address, &local, sizeof local);
    return address;
}

socklen_t tcp_address_bytes(const struct sockaddr_storage *address)
{
    struct sockaddr_un local;
    memcpy(&local, address, sizeof local);
    if (address->ss_family == AF_UNIX)
        return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(local.sun_path + 1));
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

enum tutti_status tcp_resolve(const struct store_url *url, struct sockaddr_storage *addresses,
                              int most, int *count)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    char port[8];
    *count = 0;
    if (url->is_unix) {
        addresses[(*count)++] = tcp_unix_address(url->text);
        return TUTTI_OK;
    }
    snprintf(port, sizeof port, "%u", url->port);
    int code = getaddrinfo(store_url_node(url->text), port, &hints, &found);
    if (code != 0)
        return error_set(TUTTI_ERR_INVALID, "host %s: %s", url->text, gai_strerror(code));
    for (struct addrinfo *one = found; one && *count < most; one = one->ai_next)
        memcpy(&addresses[(*count)++], one->ai_addr, one->ai_addrlen);
    freeaddrinfo(found);
    return TUTTI_OK;
}

uint16_t tcp_port(const struct sockaddr_storage *address)
{
    struct sockaddr_in ip4;
    struct sockaddr_in6 ip6;
    memcpy(&ip4, address, sizeof ip4);
    memcpy(&ip6, address, sizeof ip6);
    if (address->ss_family == AF_UNIX)
        return 0;
    return ntohs(address->ss_family == AF_INET6 ? ip6.sin6_port : ip4.sin_port);
}

void tcp_name(const struct store_url *url, const struct sockaddr_storage *served, char *name,
              size_t size)
{
    const char *host = *tcp_bind_host(url) ? tcp_bind_host(url) : "localhost";
    if (url->is_unix)
        snprintf(name, size, "@%.255s", url->text);
    else
        snprintf(name, size, "%.255s:%u", served ? host : url->text,
                 served ? tcp_port(served) : url->port);
}

char *tcp_url(const struct store_url *url, const struct sockaddr_storage *served)
{
    char *text, size[32] = "";
    uint16_t port = served ? tcp_port(served) : url->port;
    const char *host = url->text;
    if (served && !*tcp_bind_host(url))
        host = served->ss_family == AF_INET6 ? "::1" : "127.0.0.1";
    bool brackets = strchr(host, ':') != NULL;
    if (url->world_size)
        snprintf(size, sizeof size, "?world_size=%d", url->world_size);
    return asprintf(&text, "tcp://%s%s%s:%u%s", brackets ? "[" : "", host, brackets ? "]" : "",
                    port, size) < 0
               ? NULL
               : text;
}
