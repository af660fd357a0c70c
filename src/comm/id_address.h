/* SPDX-License-Identifier: MIT */
/* The address at which the store of an id listens. An address of IPv4 is one of IPv6 that is mapped
 * (::ffff:10.9.0.1). */
#ifndef TUTTI_ID_ADDRESS_H
#define TUTTI_ID_ADDRESS_H

#include "tutti/tutti.h"

#include <netinet/in.h>
#include <stdbool.h>

/* `named` is an address, or an interface of this host, whose address of IPv4 counts first. INVALID:
 * it is neither, or no rank could connect to it. */
enum tutti_status id_address_find(const char *named, struct in6_addr *address);
struct in6_addr id_address_mapped(struct in_addr address);
/* False also if the system does not tell. */
bool id_loopback_is_down(void);
/* As people write it: 10.9.0.1. */
void id_address_text(const struct in6_addr *address, char *text, size_t size);

#endif
