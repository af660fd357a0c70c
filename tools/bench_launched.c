/* SPDX-License-Identifier: MIT */
/*
 * The measurement of ranks that a launcher has started (mpirun, srun, torchrun): this process is
 * one of them. They meet at the launcher's store, env:. If they are, or may be, on several hosts,
 * and the launcher is one of MPI's, they are joined by the fabric mpi:, and the MPI tells all ranks
 * the address of rank 0's store. Rank 0 gathers the records and prints them.
 */
#include "bench.h"
#include "library.h"
#include "mpi_calls.h"
#include "tool.h"
#include "tutti/fabric.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { URL_BYTES = 128, SECRET_CHARS = 32 };

struct launched {
    const struct bench_config *config;
    const struct bench_listener *listener;
    tutti_fabric_t *fabric;
    tutti_store_t *home;          /* rank 0's, if it serves one */
    struct bench_record *records; /* rank 0's: of all ranks */
    char url[URL_BYTES];
};

/* ---- the command line ------------------------------------------------------------------------ */

/* Whether a launcher has started this process as one of several ranks. In a Slurm job only `srun`
 * starts ranks; the variables are set in other processes, too. */
static bool find_launcher(struct tutti_launcher *launcher)
{
    *launcher = (struct tutti_launcher){.struct_size = sizeof *launcher};
    return !tutti_info_launcher(launcher) && launcher->world_size > 1 &&
           (strcmp(launcher->name, "slurm") != 0 || getenv("SLURM_STEP_ID"));
}

void bench_launched_check(struct argp_state *state, struct bench_config *config)
{
    struct tutti_launcher launcher;
    const bool found = find_launcher(&launcher);
    const char *name = found ? launcher.name : "";
    if (found && config->ranks && strcmp(name, "slurm") != 0)
        argp_error(state,
                   "%d ranks: %s has started %d already, which are the ranks: leave out -n, -t and "
                   "-g",
                   config->ranks, name, launcher.world_size);
    if (found && !config->ranks)
        config->launched = (struct bench_launched){.name = name,
                                                   .rank = launcher.rank,
                                                   .size = launcher.world_size,
                                                   .local_size = launcher.local_size};
    const bool launched = config->launched.size;
    const struct {
        bool wrong;
        const char *text;
    } rules[] = {
        {config->threads, "--threads: the ranks are processes"},
        {config->device == TUTTI_DEVICE_CUDA, "--device cuda: only CPU ranks are measured"},
        {config->norms, "--collective all_reduce_rms_norm: it is not measured"},
        {config->vs_libraries, "--vs: give mpi"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules && launched; i++)
        if (rules[i].wrong)
            argp_error(state, "%s among the ranks that %s has started", rules[i].text, name);
    if (!launched && (config->vs_mpi || config->fabric))
        argp_error(state,
                   "%s: the ranks must be those of a launcher: mpirun -n 4 tutti bench, without -n "
                   "behind it",
                   config->vs_mpi ? "--vs mpi" : "--fabric");
    if (config->vs_mpi && config->fabric && strncmp(config->fabric, "mpi:", 4) != 0)
        argp_error(state, "--vs mpi: the fabric is mpi:, not %s", config->fabric);
}

/* ---- the fabric ------------------------------------------------------------------------------ */

/* "" if the ranks share a host, or if their launcher starts no MPI. */
static const char *choose_fabric(const struct bench_config *config)
{
    const struct bench_launched *launched = &config->launched;
    const bool has_mpi = strcmp(launched->name, "torchrun") != 0;
    if (config->fabric)
        return config->fabric;
    return config->vs_mpi || (has_mpi && launched->local_size != launched->size) ? "mpi:" : "";
}

static bool open_fabric(struct launched *launched)
{
    const struct bench_config *config = launched->config;
    const struct bench_launched *ranks = &config->launched;
    const char *url = choose_fabric(config);
    if (!*url)
        return true;
    if (tutti_fabric_open(url, &launched->fabric)) {
        tool_fail("rank %d: %s", ranks->rank, tutti_last_error());
        /* Slurm does not say how many ranks a host has, and may start ranks without an MPI. */
        return ranks->local_size < 0 && !config->fabric && !config->vs_mpi;
    }
    return strncmp(url, "mpi:", 4) != 0 || mpi_calls_open() || tool_fail("%s", library_error());
}

/* ---- the store ------------------------------------------------------------------------------- */

/* The address of the first interface that is up and not the loopback. */
static bool find_address(char *text, size_t capacity)
{
    struct ifaddrs *all = NULL;
    struct in_addr found = {0};
    if (getifaddrs(&all) != 0)
        return tool_fail_errno("cannot list the network interfaces");
    for (const struct ifaddrs *one = all; one && !found.s_addr; one = one->ifa_next)
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && one->ifa_flags & IFF_UP &&
            !(one->ifa_flags & IFF_LOOPBACK))
            found = ((const struct sockaddr_in *)(const void *)one->ifa_addr)->sin_addr;
    freeifaddrs(all);
    return (found.s_addr && inet_ntop(AF_INET, &found, text, (socklen_t)capacity)) ||
           tool_fail("no network interface has an IPv4 address: set MASTER_ADDR and MASTER_PORT");
}

/* Rank 0's store, with a secret that only the ranks get. */
static bool serve(struct launched *launched, char secret[SECRET_CHARS + 1])
{
    unsigned char bytes[SECRET_CHARS / 2];
    char address[INET_ADDRSTRLEN], url[URL_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return tool_fail_errno("cannot make a secret");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(secret + 2 * i, 3, "%02x", bytes[i]);
    setenv("TUTTI_STORE_SECRET", secret, 1);
    if (!find_address(address, sizeof address))
        return false;
    snprintf(url, sizeof url, "tcp://%s:0?server=1&bind=%s", address, address);
    if (tutti_store_open(url, launched->config->timeout_ms, &launched->home))
        return tool_fail("%s", tutti_last_error());
    snprintf(launched->url, sizeof launched->url, "%s", tutti_store_url(launched->home));
    return true;
}

/* MPI tells all ranks where rank 0's store is. An empty address says that it has none. */
static bool meet_by_mpi(struct launched *launched)
{
    struct {
        char url[URL_BYTES], secret[SECRET_CHARS + 1];
    } told = {"", ""};
    const bool first = launched->config->launched.rank == 0;
    const bool served = first && serve(launched, told.secret);
    if (served)
        memcpy(told.url, launched->url, sizeof told.url);
    if (!mpi_calls_share(&told, sizeof told))
        return tool_fail("%s", library_error());
    if (!*told.url)
        return first ? false : tool_fail("rank 0 has no store");
    memcpy(launched->url, told.url, sizeof told.url);
    setenv("TUTTI_STORE_SECRET", told.secret, 1);
    return true;
}

static bool find_store(struct launched *launched)
{
    const struct bench_launched *ranks = &launched->config->launched;
    const bool one_host = ranks->local_size == ranks->size;
    if (!one_host && *mpi_calls_version() && !getenv("MASTER_ADDR"))
        return meet_by_mpi(launched);
    snprintf(launched->url, sizeof launched->url, "env:");
    return true;
}

/* ---- the records ----------------------------------------------------------------------------- */

static bool gather(void *context, tutti_comm_t *comm, const struct bench_record *record)
{
    const struct launched *launched = context;
    const int row = record->kind == BENCH_READY ? -1 : record->row;
    if (tutti_gather(record, launched->records, sizeof *record, TUTTI_UINT8, 0, comm,
                     TUTTI_STREAM_DEFAULT))
        return false;
    return launched->config->launched.rank != 0 ||
           bench_pass_on(launched->config, launched->listener, launched->records, row);
}

bool bench_run_launched(const struct bench_config *config, const struct bench_listener *listener)
{
    struct launched launched = {.config = config, .listener = listener};
    struct bench_shared *shared = calloc(1, sizeof *shared);
    launched.records = calloc((size_t)config->ranks, sizeof *launched.records);
    bool ok = (shared && launched.records) || tool_fail("no memory for the ranks' records");
    ok = ok && open_fabric(&launched) && find_store(&launched);
    if (ok) {
        const struct bench_rank self = {.config = config,
                                        .shared = shared,
                                        .store_url = launched.url,
                                        .rank = config->launched.rank,
                                        .pipe = -1,
                                        .fabric = launched.fabric,
                                        .gather = gather,
                                        .context = &launched};
        ok = bench_rank_run(&self);
    }
    /* Before the end of MPI, which may take long. */
    if (ok && config->launched.rank == 0)
        ok = listener->end(listener->context);
    tutti_fabric_close(launched.fabric);
    tutti_store_close(launched.home);
    free(launched.records);
    free(shared);
    return ok;
}
