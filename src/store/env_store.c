/* SPDX-License-Identifier: MIT */
/*
 * env:, the store that the launcher's environment points to.
 *
 * With MASTER_ADDR and MASTER_PORT it works as PyTorch's: rank 0 serves there and the others
 * connect, unless torchrun's agent serves (TORCHELASTIC_USE_AGENT_STORE=True). Without them rank 0
 * serves on a free loopback port. It writes the port and a random secret into a notice, a file of
 * mode 0600 in the private directory, so that the store is as private as that directory. The notice
 * has the name of the job. Each opening writes a new one, and removes it once all ranks have
 * joined.
 */
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/order.h"
#include "base/parse.h"
#include "base/reminder.h"
#include "ipc/channel.h"
#include "ipc/random.h"
#include "store/launcher.h"
#include "store/tcp.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SECRET_BYTES = 32,
    TRY_MS = 500,            /* to reach the server of a notice, before the notice is read again */
    LONGEST_NAP_NS = 5000000 /* between two reads of the notice */
};

/* What rank 0 tells: a line with port and secret. */
struct notice {
    char path[512];
    char secret[2 * SECRET_BYTES + 1];
};

/* ---- MASTER_ADDR and MASTER_PORT ------------------------------------------------------------- */

static bool agent_serves(const struct tutti_launcher *launcher)
{
    const char *text = getenv("TORCHELASTIC_USE_AGENT_STORE");
    return strcmp(launcher->name, "torchrun") == 0 && text && strcmp(text, "True") == 0;
}

/* The agent's store outlives the workers. Workers that the agent starts again must not find the
 * keys of those that failed. */
static enum tutti_status restart_prefix(tutti_store_t *store)
{
    const char *text = getenv("TORCHELASTIC_RESTART_COUNT");
    char prefix[32];
    int64_t count = 0;
    if (text && *text && !parse_number(text, 0, INT32_MAX, &count))
        return error_set(TUTTI_ERR_INVALID,
                         "TORCHELASTIC_RESTART_COUNT=%.80s: expected a whole number", text);
    if (count == 0)
        return TUTTI_OK;
    snprintf(prefix, sizeof prefix, "attempt_%lld", (long long)count);
    free(store->url);
    store->url = NULL;
    return store_prefix_add(store, prefix);
}

/* Opens the store, again if all ranks have joined it: rank 0 may still serve the store of an
 * earlier opening, and will replace it. */
static enum tutti_status open_full(const struct store_url *url, int64_t timeout_ms,
                                   tutti_store_t **store)
{
    int64_t deadline = deadline_after(timeout_ms), nap_ns = 1000000;
    struct tcp_options options = {.secret = getenv("TUTTI_STORE_SECRET"),
                                  .connect_ms = timeout_ms,
                                  .timeout_ms = timeout_ms,
                                  .exclusive = true};
    for (;;) {
        enum tutti_status status = tcp_open_with(url, &options, store);
        if (status == TUTTI_OK) /* for the store's later calls */
            (*store)->timeout_ms = timeout_ms;
        if (status != TUTTI_ERR_SYSTEM || url->server || deadline_passed(deadline))
            return status;
        deadline_nap(deadline, &nap_ns, LONGEST_NAP_NS);
        options.connect_ms = options.timeout_ms = deadline_timeout_ms(deadline);
    }
}

static enum tutti_status open_master(const struct tutti_launcher *launcher, const char *host,
                                     const char *port, int64_t timeout_ms, tutti_store_t **store)
{
    struct store_url url = {
        .kind = STORE_TCP, .world_size = launcher->world_size, .rank = launcher->rank};
    int64_t number;
    bool agent = agent_serves(launcher);
    if (agent)
        url.rank = -1; /* no rank serves */
    if (!parse_number(port, 1, 65535, &number))
        return error_set(TUTTI_ERR_INVALID, "MASTER_PORT=%.80s: expected a port from 1 to 65535",
                         port);
    if (strlen(host) >= sizeof url.bind)
        return error_set(TUTTI_ERR_INVALID, "MASTER_ADDR=%.80s... is too long", host);
    url.port = (uint16_t)number;
    strcpy(url.text, host);
    url.server = launcher->rank == 0 && !agent;
    if (url.server)
        strcpy(url.bind, host);
    if (!agent)
        return open_full(&url, timeout_ms, store);
    enum tutti_status status = tcp_open(&url, timeout_ms, store);
    if (status != TUTTI_OK)
        return status;
    status = restart_prefix(*store);
    if (status != TUTTI_OK) {
        tutti_store_close(*store);
        *store = NULL;
    }
    return status;
}

/* ---- the notice ------------------------------------------------------------------------------ */

static enum tutti_status notice_init(struct notice *notice, const struct tutti_launcher *launcher)
{
    /* The n-th opening of each rank opens one store. */
    static uint32_t openings;
    char directory[256], job[160];
    enum tutti_status status = channel_directory(directory, sizeof directory, true);
    if (status == TUTTI_OK)
        status = launcher_job(launcher, job, sizeof job);
    if (status == TUTTI_OK)
        snprintf(notice->path, sizeof notice->path, "%s/job-%s-%u", directory, job,
                 order_fetch_add_u32(&openings, 1));
    return status;
}

/* Rank 0. The notice gets its name once it is complete. */
static enum tutti_status notice_write(void *context, uint16_t port)
{
    const struct notice *notice = context;
    char path[sizeof notice->path + 8], text[128];
    int length = snprintf(text, sizeof text, "%u %s\n", port, notice->secret);
    snprintf(path, sizeof path, "%s.new", notice->path);
    unlink(path);
    int fd = fd_lift(open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd < 0)
        return error_errno("creating %s%sset TUTTI_DIR to another directory", path, error_full());
    enum tutti_status status = TUTTI_OK;
    if (write(fd, text, (size_t)length) != length || rename(path, notice->path) < 0) {
        status = error_errno("writing %s%sset TUTTI_DIR to another directory", path, error_full());
        unlink(path);
    }
    close(fd);
    return status;
}

/* The other ranks. False while there is no notice, or if another user may have written it. */
static bool notice_read(struct notice *notice, uint16_t *port)
{
    struct stat about;
    char text[128];
    unsigned number;
    int fd = fd_lift(open(notice->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (fd < 0)
        return false;
    ssize_t bytes = -1;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
        (about.st_mode & 077) == 0)
        bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0)
        return false;
    text[bytes] = 0;
    if (sscanf(text, "%5u %64[0-9a-f]", &number, notice->secret) != 2 || number > 65535)
        return false;
    *port = (uint16_t)number;
    return true;
}

static enum tutti_status serve(struct notice *notice, struct store_url *url, int64_t timeout_ms,
                               tutti_store_t **store)
{
    uint8_t secret[SECRET_BYTES];
    enum tutti_status status = random_fill(secret, sizeof secret);
    if (status != TUTTI_OK)
        return status;
    for (int i = 0; i < SECRET_BYTES; i++)
        snprintf(notice->secret + 2 * i, 3, "%02x", secret[i]);
    struct tcp_options options = {.secret = notice->secret,
                                  .connect_ms = timeout_ms,
                                  .timeout_ms = timeout_ms,
                                  .announce = notice_write,
                                  .context = notice};
    url->server = true;
    status = tcp_open_with(url, &options, store);
    unlink(notice->path);
    return status;
}

/* The notice of a killed job names a server that is gone, or the server of another program. So the
 * notice is read again until rank 0 has replaced it. */
static enum tutti_status follow(struct notice *notice, struct store_url *url, int64_t timeout_ms,
                                tutti_store_t **store)
{
    int64_t deadline = deadline_after(timeout_ms), nap_ns = 200000;
    struct reminder reminder = reminder_start(deadline_now());
    bool found = false;
    for (;;) {
        if (notice_read(notice, &url->port)) {
            bool has_joined = false;
            struct tcp_options options = {.secret = notice->secret,
                                          .connect_ms = TRY_MS,
                                          .timeout_ms = deadline_timeout_ms(deadline),
                                          .has_joined = &has_joined};
            enum tutti_status status = tcp_open_with(url, &options, store);
            if (status == TUTTI_OK) /* for the store's later calls */
                (*store)->timeout_ms = timeout_ms;
            if (status == TUTTI_OK || status == TUTTI_ERR_NO_MEMORY ||
                (has_joined && status == TUTTI_ERR_TIMEOUT))
                return status;
            found = true;
        }
        if (deadline_passed(deadline))
            break;
        const int waited_s = reminder_due(&reminder, deadline_now());
        if (waited_s)
            log_write(TUTTI_LOG_WARN, -1,
                      "this process has waited %d s for rank 0 to write its address to %s",
                      waited_s, notice->path);
        deadline_nap(deadline, &nap_ns, LONGEST_NAP_NS);
    }
    if (found)
        return error_context(TUTTI_ERR_TIMEOUT,
                             "rank 0, which serves the store, was not reached at the "
                             "address in %s",
                             notice->path);
    return error_set(TUTTI_ERR_TIMEOUT,
                     "rank 0, which serves the store, has not come: it did not write its address "
                     "to %s: check that it runs on this host; "
                     "if the ranks see different directories, set MASTER_ADDR and MASTER_PORT",
                     notice->path);
}

static enum tutti_status open_private(const struct tutti_launcher *launcher, int64_t timeout_ms,
                                      tutti_store_t **store)
{
    struct store_url url = {
        .kind = STORE_TCP, .text = "127.0.0.1", .world_size = launcher->world_size};
    url.rank = launcher->rank;
    struct notice notice = {.secret = ""};
    enum tutti_status status = notice_init(&notice, launcher);
    if (status == TUTTI_OK)
        status = launcher->rank == 0 ? serve(&notice, &url, timeout_ms, store)
                                     : follow(&notice, &url, timeout_ms, store);
    explicit_bzero(notice.secret, sizeof notice.secret);
    /* Other processes do not know the secret. */
    if (status == TUTTI_OK) {
        free((*store)->url);
        (*store)->url = NULL;
    }
    return status;
}

enum tutti_status env_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store)
{
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    (void)url;
    enum tutti_status status = tutti_info_launcher(&launcher);
    if (status != TUTTI_OK)
        return status;
    bool has_host = host && *host, has_port = port && *port;
    if (has_host && has_port)
        return open_master(&launcher, host, port, timeout_ms, store);
    if (has_host || has_port || strcmp(launcher.name, "torchrun") == 0)
        return error_set(TUTTI_ERR_INVALID,
                         "%s is not set: MASTER_ADDR and MASTER_PORT say where rank 0's store is",
                         has_host ? "MASTER_PORT" : "MASTER_ADDR");
    return open_private(&launcher, timeout_ms, store);
}
