/* SPDX-License-Identifier: MIT */
/*
 * Communicators without a store of the caller's: tutti_unique_id_create() and
 * tutti_comm_create_from_id().
 *
 * A process that makes ids serves one tcp store, from its first id to its end. If only ranks of
 * this host can use the ids, the store is on a Unix socket, since that needs no interface of IP.
 * The socket has an abstract name: it needs no folder, and a process that is killed leaves no file.
 * For other hosts the store listens at the address that TUTTI_ID_ADDRESS names, or on all
 * interfaces (unique_id_make()). There the ranks of this host connect by IP, too, which needs
 * loopback.
 *
 * An id has the store's place and secret, and a token. Its ranks meet under TOKEN/ in the store:
 *   - open: the id has not made its communicator yet
 *   - done/R: rank R has its communicator; `done` counts these ranks
 *
 * The last rank deletes these keys, so that an id leaves nothing in the store. A communicator of
 * several hosts keeps its handle of the store until its end.
 */
#include "comm/unique_id.h"
#include "base/error.h"
#include "base/fork_mutex.h"
#include "base/log.h"
#include "base/options.h"
#include "comm/comm.h"
#include "comm/id_address.h"
#include "ipc/process.h"
#include "ipc/random.h"
#include "store/hmac.h"
#include "store/tcp.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECRET_CHARS = 32, TOKEN_CHARS = 16, NAME_CHARS = 16, CHECK_BYTES = 8 };

static const uint64_t ID_MAGIC = 0x7475747469756964;

/* Where an id's store listens. */
enum id_reach {
    ID_HOST,    /* on a Unix socket: for this host */
    ID_ALL,     /* on all interfaces: other hosts use the address, this one uses loopback */
    ID_ADDRESS, /* at the address alone: all ranks use it */
};

union id_place {
    char name[NAME_CHARS];   /* ID_HOST: the end of the socket's name */
    struct in6_addr address; /* that of IPv4 as IPv6 has it */
};

/* The content of an id. */
struct id_content {
    uint64_t magic;
    uint32_t version; /* of the library */
    uint16_t port;
    uint16_t reach;            /* enum id_reach */
    char secret[SECRET_CHARS]; /* hexadecimal */
    char token[TOKEN_CHARS];
    struct process owner; /* serves the store */
    union id_place place;
    uint8_t check[CHECK_BYTES]; /* of all before it */
};
static_assert(sizeof(struct id_content) == sizeof(struct tutti_unique_id), "copied as bytes");

static void forget(void);
static struct fork_mutex lock = FORK_MUTEX(forget);
/* Of this process, once it has made an id. */
static tutti_store_t *home;
static uint16_t home_port;
static enum id_reach home_reach;
static union id_place home_place;
static char home_secret[SECRET_CHARS + 1];

static void forget(void)
{
    home = NULL;
}

static enum tutti_status hex_fill(char *text, size_t chars)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t bytes[SECRET_CHARS];
    enum tutti_status status = random_fill(bytes, chars);
    for (size_t i = 0; i < chars && status == TUTTI_OK; i++)
        text[i] = digits[bytes[i] % 16];
    return status;
}

static void check_make(const struct id_content *content, uint8_t check[CHECK_BYTES])
{
    uint8_t digest[SHA256_BYTES];
    sha256(NULL, content, offsetof(struct id_content, check), digest);
    memcpy(check, digest, CHECK_BYTES);
}

/* ---- the process that makes ids -------------------------------------------------------------- */

static enum tutti_status port_note(void *context, uint16_t port)
{
    (void)context;
    home_port = port;
    return TUTTI_OK;
}

/* The URL's part that names the socket. */
static void socket_name(const union id_place *place, struct store_url *url)
{
    url->is_unix = true;
    snprintf(url->text, sizeof url->text, "tutti-id-%.*s", NAME_CHARS, place->name);
}

/* Sets home_reach and home_place. `everywhere`: of unique_id_make(). NULL: as the environment
 * says. Without loopback this host does not reach its own addresses: a connection to one of them
 * would be tried until the time is over. */
static enum tutti_status home_choose(const struct in_addr *everywhere)
{
    const char *named = everywhere ? NULL : getenv("TUTTI_ID_ADDRESS");
    if (named && *named) {
        home_reach = ID_ADDRESS;
        const enum tutti_status status = id_address_find(named, &home_place.address);
        return status == TUTTI_OK && id_loopback_is_down()
                   ? error_set(TUTTI_ERR_SYSTEM,
                               "TUTTI_ID_ADDRESS=%.80s: the loopback interface is down, and this "
                               "host reaches its own addresses by it: bring it up (ip link set lo "
                               "up)",
                               named)
                   : status;
    }
    home_reach = ID_HOST;
    if (!everywhere || !everywhere->s_addr)
        return hex_fill(home_place.name, NAME_CHARS);
    if (id_loopback_is_down()) {
        log_write(TUTTI_LOG_WARN, -1,
                  "the loopback interface is down, so only ranks of this host can use the ids of "
                  "this process: bring it up (ip link set lo up)");
        return hex_fill(home_place.name, NAME_CHARS);
    }
    home_reach = ID_ALL;
    home_place.address = id_address_mapped(*everywhere);
    return TUTTI_OK;
}

static enum tutti_status home_open(const struct in_addr *everywhere)
{
    struct store_url url = {.kind = STORE_TCP, .text = "127.0.0.1", .server = true};
    int64_t timeout_ms = 0;
    enum tutti_status status = home_choose(everywhere);
    if (status != TUTTI_OK)
        return status;
    if (home_reach == ID_HOST)
        socket_name(&home_place, &url);
    if (home_reach == ID_ALL)
        snprintf(url.bind, sizeof url.bind, "0.0.0.0");
    if (home_reach == ID_ADDRESS)
        id_address_text(&home_place.address, url.bind, sizeof url.bind);
    status = store_default_timeout(&timeout_ms);
    if (status == TUTTI_OK)
        status = hex_fill(home_secret, SECRET_CHARS);
    if (status != TUTTI_OK)
        return status;
    const struct tcp_options options = {.secret = home_secret,
                                        .connect_ms = timeout_ms,
                                        .timeout_ms = timeout_ms,
                                        .announce = port_note};
    status = tcp_open_with(&url, &options, &home);
    return status != TUTTI_OK && home_reach == ID_ADDRESS
               ? error_context(status, "TUTTI_ID_ADDRESS (an address of this host?)")
               : status;
}

static enum tutti_status id_make(const struct in_addr *everywhere, struct id_content *content)
{
    char key[TOKEN_CHARS + sizeof "/open"];
    enum tutti_status status = home ? TUTTI_OK : home_open(everywhere);
    if (status == TUTTI_OK)
        status = hex_fill(content->token, TOKEN_CHARS);
    if (status != TUTTI_OK)
        return status;
    content->magic = ID_MAGIC;
    content->version = TUTTI_VERSION;
    content->port = home_port;
    content->reach = (uint16_t)home_reach;
    memcpy(content->secret, home_secret, SECRET_CHARS);
    process_identify(&content->owner);
    content->place = home_place;
    check_make(content, content->check);
    snprintf(key, sizeof key, "%.*s/open", TOKEN_CHARS, content->token);
    return tutti_store_set(home, key, "", 0);
}

static enum tutti_status make(const struct in_addr *everywhere, struct tutti_unique_id *id)
{
    static const char call[] = "tutti_unique_id_create";
    struct id_content content = {.magic = 0};
    if (!id)
        return error_set(TUTTI_ERR_INVALID, "%s: id is NULL", call);
    memset(id, 0, sizeof *id);
    fork_mutex_lock(&lock);
    enum tutti_status status = id_make(everywhere, &content);
    fork_mutex_unlock(&lock);
    if (status != TUTTI_OK)
        return error_context(status, "%s", call);
    memcpy(id, &content, sizeof *id);
    return TUTTI_OK;
}

enum tutti_status tutti_unique_id_create(struct tutti_unique_id *id)
{
    return make(NULL, id);
}

enum tutti_status unique_id_make(struct in_addr address, struct tutti_unique_id *id)
{
    return make(&address, id);
}

/* ---- the ranks ------------------------------------------------------------------------------- */

/* Returns whether both are known and differ. */
static bool is_elsewhere(const struct id_content *content)
{
    struct process self;
    process_identify(&self);
    return content->owner.host && self.host && content->owner.host != self.host;
}

/* Whether this process serves the id. */
static bool is_own(const struct id_content *content)
{
    struct process self;
    process_identify(&self);
    self.tid = content->owner.tid;
    return memcmp(&self, &content->owner, sizeof self) == 0;
}

/* Whether this rank reaches the store at the id's address. */
static bool uses_address(const struct id_content *content)
{
    return content->reach == ID_ADDRESS || (content->reach == ID_ALL && is_elsewhere(content));
}

static enum tutti_status id_check(const struct id_content *content)
{
    uint8_t check[CHECK_BYTES];
    struct process self;
    check_make(content, check);
    if (content->magic != ID_MAGIC || memcmp(check, content->check, sizeof check) != 0)
        return error_set(TUTTI_ERR_INVALID,
                         "these %zu bytes are no id, or were changed on the way: pass on all bytes "
                         "that tutti_unique_id_create() made",
                         sizeof *content);
    if (content->version != TUTTI_VERSION)
        return error_set(TUTTI_ERR_VERSION,
                         "Tutti %" PRIu32 " made the id, this is %d: run one version on all ranks",
                         content->version, TUTTI_VERSION);
    process_identify(&self);
    if (process_has_ended(&content->owner, &self))
        return error_set(TUTTI_ERR_PEER_DEAD,
                         "process %" PRId64 ", which made the id and serves it, has ended: it must "
                         "live until all ranks have their communicator",
                         content->owner.pid);
    if (is_elsewhere(content) && !uses_address(content))
        return error_set(TUTTI_ERR_DECLINED,
                         "the id was made on another host, where its store is on a Unix socket, "
                         "for ranks of that host alone: TUTTI_ID_ADDRESS of the process that makes "
                         "the id names an address for other hosts, or an interface");
    return TUTTI_OK;
}

static enum tutti_status store_join(const struct id_content *content, int64_t timeout_ms,
                                    tutti_store_t **store)
{
    struct store_url url = {.kind = STORE_TCP, .text = "127.0.0.1", .port = content->port};
    char secret[SECRET_CHARS + 1] = "", token[TOKEN_CHARS + 1] = "";
    const struct tcp_options options = {
        .secret = secret, .connect_ms = timeout_ms, .timeout_ms = timeout_ms, .is_up = true};
    memcpy(secret, content->secret, SECRET_CHARS);
    memcpy(token, content->token, TOKEN_CHARS);
    if (content->reach == ID_HOST)
        socket_name(&content->place, &url);
    if (uses_address(content))
        id_address_text(&content->place.address, url.text, sizeof url.text);
    enum tutti_status status = tcp_open_with(&url, &options, store);
    explicit_bzero(secret, sizeof secret);
    if (status != TUTTI_OK)
        return status;
    (*store)->serves = is_own(content);
    return store_prefix_add(*store, token);
}

enum tutti_status unique_id_store(const struct tutti_unique_id *id, tutti_store_t **store)
{
    struct id_content content;
    int64_t timeout_ms = 0;
    memcpy(&content, id, sizeof content);
    *store = NULL;
    enum tutti_status status = id_check(&content);
    if (status == TUTTI_OK)
        status = store_default_timeout(&timeout_ms);
    return status == TUTTI_OK ? store_join(&content, timeout_ms, store) : status;
}

/* The last rank deletes `open` before done/R, so look them up in the opposite order: if done/R was
 * deleted, `open` is not found either. */
static enum tutti_status use_check(tutti_store_t *store, int rank)
{
    char done[32];
    bool is_open = false, is_done = false;
    snprintf(done, sizeof done, "done/%d", rank);
    enum tutti_status status = store_has(store, done, &is_done);
    if (status == TUTTI_OK)
        status = store_has(store, "open", &is_open);
    if (status != TUTTI_OK || (is_open && !is_done))
        return status;
    return error_set(TUTTI_ERR_INVALID,
                     "rank %d has a communicator of this id already: make an id for each "
                     "communicator",
                     rank);
}

/* Best effort: a failure leaves some keys in the store. */
static void use_end(const struct tutti_comm *comm, tutti_store_t *store)
{
    char key[COMM_NAME_BYTES + 32];
    int64_t done = 0;
    snprintf(key, sizeof key, "done/%d", comm->rank);
    (void)tutti_store_set(store, key, "", 0);
    if (tutti_store_add(store, "done", 1, &done) != TUTTI_OK || done < comm->world_size)
        return;
    (void)tutti_store_delete(store, "open", NULL);
    (void)tutti_store_delete(store, "done", NULL);
    for (int r = 0; r < comm->world_size; r++) {
        snprintf(key, sizeof key, "done/%d", r);
        (void)tutti_store_delete(store, key, NULL);
    }
    snprintf(key, sizeof key, "tutti/%s/generation/count", comm->name);
    (void)tutti_store_delete(store, key, NULL);
}

static enum tutti_status create_from_id(const struct id_content *content, int rank, int world_size,
                                        const struct tutti_comm_options *options,
                                        tutti_comm_t **comm)
{
    struct kept_store *kept;
    int64_t timeout_ms = options->timeout_ms;
    enum tutti_status status = id_check(content);
    if (status == TUTTI_OK)
        status = store_default_timeout(&timeout_ms);
    if (status == TUTTI_OK)
        status = kept_store_make(&kept);
    if (status != TUTTI_OK)
        return status;
    status = store_join(content, timeout_ms, &kept->store);
    if (status == TUTTI_OK)
        status = use_check(kept->store, rank);
    if (status == TUTTI_OK)
        status = tutti_comm_create(kept->store, rank, world_size, options, comm);
    if (status == TUTTI_OK)
        use_end(*comm, kept->store);
    if (status == TUTTI_OK && (*comm)->hosts.group)
        (*comm)->kept = kept;
    else
        kept_store_release(kept);
    return status;
}

enum tutti_status tutti_comm_create_from_id(const struct tutti_unique_id *id, int rank,
                                            int world_size, const struct tutti_comm_options *given,
                                            tutti_comm_t **comm)
{
    static const char call[] = "tutti_comm_create_from_id";
    struct tutti_comm_options options = {.struct_size = sizeof options};
    struct id_content content;
    if (!comm)
        return error_set(TUTTI_ERR_INVALID, "%s: comm is NULL", call);
    *comm = NULL;
    if (!id)
        return error_set(TUTTI_ERR_INVALID, "%s: id is NULL", call);
    memcpy(&content, id, sizeof content);
    enum tutti_status status = TUTTI_OK;
    if (given)
        status = options_copy(call, "tutti_comm_options", given, &options, sizeof options);
    if (status != TUTTI_OK)
        return status;
    if (options.defer)
        status = error_set(TUTTI_ERR_INVALID,
                           "options->defer: the ranks meet in this call, so it must be false");
    else
        status = create_from_id(&content, rank, world_size, &options, comm);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
}
