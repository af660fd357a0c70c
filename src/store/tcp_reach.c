/* SPDX-License-Identifier: MIT */
/* Why a store cannot be reached, and whether it is worth while to try again. */
#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/reminder.h"
#include "store/store.h"
#include "store/tcp_client.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

static bool is_loopback(const struct sockaddr_storage *address)
{
    struct sockaddr_in ip4;
    struct sockaddr_in6 ip6;
    memcpy(&ip4, address, sizeof ip4);
    memcpy(&ip6, address, sizeof ip6);
    return address->ss_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&ip6.sin6_addr)
                                          : ntohl(ip4.sin_addr.s_addr) >> 24 == 127;
}

enum tutti_status tcp_connect_failed(const struct tcp_connection *connection,
                                     const struct sockaddr_storage *address, bool *hopeless)
{
    *hopeless = errno == EMFILE || errno == ENFILE || errno == EACCES || errno == EPERM ||
                errno == EAFNOSUPPORT;
    if (errno == EMFILE || errno == ENFILE)
        return error_errno(
            "cannot connect to the store at %s: close descriptors, or raise ulimit -n",
            connection->name);
    if (is_loopback(address) && (errno == ENETUNREACH || errno == EADDRNOTAVAIL)) {
        *hopeless = true;
        return error_errno(
            "cannot connect to the store at %s: the loopback interface is down: bring "
            "it up (ip link set lo up)",
            connection->name);
    }
    return error_errno("cannot connect to the store at %s; see whether its process runs",
                       connection->name);
}

void tcp_waiting_log(const char *name, struct reminder *reminder, const char *why)
{
    const int waited_s = reminder_due(reminder, deadline_now());
    if (waited_s)
        log_write(TUTTI_LOG_WARN, -1, "after %d s the store at %s still %s", waited_s, name, why);
}
