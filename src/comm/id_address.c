/* SPDX-License-Identifier: MIT */
#include "comm/id_address.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>

struct in6_addr id_address_mapped(struct in_addr address)
{
    struct in6_addr mapped = {0};
    mapped.s6_addr[10] = mapped.s6_addr[11] = 0xff;
    memcpy(&mapped.s6_addr[12], &address, sizeof address);
    return mapped;
}

void id_address_text(const struct in6_addr *address, char *text, size_t size)
{
    if (IN6_IS_ADDR_V4MAPPED(address))
        inet_ntop(AF_INET, &address->s6_addr[12], text, (socklen_t)size);
    else
        inet_ntop(AF_INET6, address, text, (socklen_t)size);
}

/* The address of one entry of an interface; false if it has none that another host can use without
 * more words. */
static bool entry_address(const struct ifaddrs *entry, struct in6_addr *address)
{
    const struct sockaddr *socket = entry->ifa_addr;
    if (!socket || !(entry->ifa_flags & IFF_UP))
        return false;
    if (socket->sa_family == AF_INET)
        *address = id_address_mapped(((const struct sockaddr_in *)(const void *)socket)->sin_addr);
    else if (socket->sa_family == AF_INET6)
        *address = ((const struct sockaddr_in6 *)(const void *)socket)->sin6_addr;
    else
        return false;
    return !IN6_IS_ADDR_LINKLOCAL(address); /* it is valid together with an interface alone */
}

/* The interface's first address of IPv4, else its first one of IPv6. */
static bool interface_address(const char *name, struct in6_addr *address)
{
    struct ifaddrs *all = NULL;
    struct in6_addr one;
    bool found = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
        if (strcmp(entry->ifa_name, name) != 0 || !entry_address(entry, &one) ||
            (found && (IN6_IS_ADDR_V4MAPPED(address) || !IN6_IS_ADDR_V4MAPPED(&one))))
            continue;
        *address = one;
        found = true;
    }
    freeifaddrs(all);
    return found;
}

bool id_loopback_is_down(void)
{
    struct ifaddrs *all = NULL;
    bool is_up = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next)
        is_up |= entry->ifa_flags & IFF_LOOPBACK && entry->ifa_flags & IFF_UP;
    freeifaddrs(all);
    return !is_up;
}

enum tutti_status id_address_find(const char *named, struct in6_addr *address)
{
    struct in_addr ip4;
    if (inet_pton(AF_INET, named, &ip4) == 1)
        *address = id_address_mapped(ip4);
    else if (inet_pton(AF_INET6, named, address) != 1 && !interface_address(named, address))
        return error_set(TUTTI_ERR_INVALID,
                         "TUTTI_ID_ADDRESS=%.80s: neither an IP address nor an interface of this "
                         "host that is up and has an address (ip address shows them)",
                         named);
    const struct in6_addr none = id_address_mapped((struct in_addr){htonl(INADDR_ANY)});
    if (IN6_IS_ADDR_UNSPECIFIED(address) || IN6_ARE_ADDR_EQUAL(address, &none))
        return error_set(TUTTI_ERR_INVALID,
                         "TUTTI_ID_ADDRESS=%.80s: ranks connect to this address, so name that of "
                         "one interface",
                         named);
    if (IN6_IS_ADDR_LINKLOCAL(address))
        return error_set(TUTTI_ERR_INVALID,
                         "TUTTI_ID_ADDRESS=%.80s: an address of this link alone; name one of a "
                         "network",
                         named);
    return TUTTI_OK;
}
