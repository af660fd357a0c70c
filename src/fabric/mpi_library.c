/* SPDX-License-Identifier: MIT */
#include "fabric/mpi_library.h"

#include "base/error.h"
#include "base/log.h"
#include "ipc/process.h"

#include <dlfcn.h>
#include <libgen.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CANDIDATES = 8, ANCESTORS = 8 };

struct launcher {
    const char *name, *variable, *size;
    const char *job; /* a variable that names the launch */
    bool takes_openmpi, takes_mpich;
    const char *libraries[5];
};

/* The first match wins. Open MPI's launcher also sets PMIX_RANK. */
static const struct launcher launchers[] = {
    {.name = "Open MPI's mpirun",
     .variable = "OMPI_COMM_WORLD_SIZE",
     .size = "OMPI_COMM_WORLD_SIZE",
     .job = "PMIX_NAMESPACE",
     .takes_openmpi = true,
     .libraries = {"libmpi.so.40"}},
    {.name = "the launcher that set PMI_RANK (MPICH's or Intel MPI's mpiexec)",
     .variable = "PMI_RANK",
     .size = "PMI_SIZE",
     .takes_mpich = true,
     .libraries = {"libmpich.so.12", "libmpi.so.12", "libmpi_abi.so.1"}},
    {.name = "the launcher that set PMIX_RANK",
     .variable = "PMIX_RANK",
     .size = "SLURM_NTASKS",
     .job = "PMIX_NAMESPACE",
     .takes_openmpi = true,
     .takes_mpich = true,
     .libraries = {"libmpi.so.40", "libmpi_abi.so.1", "libmpich.so.12", "libmpi.so.12"}},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mpi_library found; /* constant while opens > 0 */
static int opens;
static uintptr_t own_parent; /* never freed; 0: none yet */
static bool must_finalise;   /* it was initialised here */

static const struct launcher *find_launcher(void)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *text = getenv(launchers[i].variable);
        if (text && *text)
            return &launchers[i];
    }
    return NULL;
}

/* ---- the library that is loaded -------------------------------------------------------------- */

static bool is_initialised(const struct mpi_abi *abi)
{
    int flag = 0;
    return abi->initialized(&flag) == 0 && flag;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* Takes the loaded library; of several the first one that is initialised. *path stays "" if there
 * is none. The handle stays open, as MPI does. */
static enum tutti_status take_loaded(struct mpi_library *library, void **taken)
{
    static const char *const names[] = {"libmpi_abi.so", "libmpi.so", "libmpich.so", NULL};
    char paths[CANDIDATES][LOADED_PATH_BYTES];
    enum tutti_status status = TUTTI_OK;
    const int count = loaded_find(names, paths, CANDIDATES);
    for (int i = 0; i < count; i++) {
        void *handle = dlopen(paths[i], RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
        struct mpi_abi abi;
        if (handle)
            status = mpi_abi_find(handle, paths[i], &abi);
        if (!handle || status != TUTTI_OK || (*library->path && !is_initialised(&abi)))
            continue;
        library->abi = abi;
        *taken = handle;
        memcpy(library->path, paths[i], sizeof library->path);
        if (is_initialised(&abi))
            break;
    }
    return *library->path ? TUTTI_OK : status;
}

void *mpi_library_loaded(struct mpi_abi *abi, char *path, size_t size)
{
    struct mpi_library library = {.path = ""};
    void *handle = NULL;
    (void)take_loaded(&library, &handle);
    *abi = library.abi;
    snprintf(path, size, "%s", library.path);
    return handle;
}

/* ---- the library of the launcher ------------------------------------------------------------- */

static void *open_file(struct mpi_library *library, const char *path)
{
    snprintf(library->path, sizeof library->path, "%s", path);
    return dlopen(library->path, RTLD_NOW | RTLD_LOCAL);
}

/* One of the launcher's libraries in a folder of libraries; "": wherever the loader looks. */
static void *open_in(struct mpi_library *library, const struct launcher *launcher,
                     const char *folder)
{
    void *handle = NULL;
    for (int i = 0; launcher->libraries[i] && !handle; i++) {
        char path[sizeof library->path];
        snprintf(path, sizeof path, "%s%s", folder, launcher->libraries[i]);
        if (!*folder || access(path, R_OK) == 0)
            handle = open_file(library, path);
    }
    return handle;
}

/* Looks where the launcher is installed, by the programs of this process' ancestors, and then where
 * the loader does. */
static void *open_launchers(struct mpi_library *library, const struct launcher *launcher)
{
    char folder[400], program[300], link[64];
    void *handle = NULL;
    int64_t pid = getppid();
    uint64_t start;
    for (int i = 0; i < ANCESTORS && !handle && pid > 1; i++) {
        snprintf(link, sizeof link, "/proc/%lld/exe", (long long)pid);
        const ssize_t length = readlink(link, program, sizeof program - 1);
        program[length > 0 ? length : 0] = 0;
        if (length > 0) {
            snprintf(folder, sizeof folder, "%s/../lib/", dirname(program));
            handle = open_in(library, launcher, folder);
        }
        if (!process_parent(pid, &pid, &start))
            break;
    }
    return handle ? handle : open_in(library, launcher, "");
}

static enum tutti_status load(const char *path, struct mpi_library *library, void **handle)
{
    const struct launcher *launcher = find_launcher();
    if (!launcher)
        return error_set(TUTTI_ERR_DECLINED,
                         "no MPI: the program has not loaded one (libmpi.so.40, libmpi.so.12, "
                         "libmpich.so.12, libmpi_abi.so.1), and no launcher has started it "
                         "(OMPI_COMM_WORLD_SIZE, PMI_RANK, PMIX_RANK): start it with mpirun");
    *handle = *path ? open_file(library, path) : open_launchers(library, launcher);
    if (!*handle)
        return error_set(TUTTI_ERR_DECLINED,
                         "no MPI: %s started the process, and %s: name its library in mpi:PATH",
                         launcher->name, dlerror());
    return mpi_abi_find(*handle, library->path, &library->abi);
}

/* ---- its state ------------------------------------------------------------------------------- */

/* The first part of MPI's description of itself, of one line. */
static void read_version(struct mpi_library *library)
{
    static char text[MPI_TEXT_BYTES]; /* under the lock */
    int length = 0;
    size_t used = 0;
    memset(text, 0, sizeof text);
    if (library->abi.library_version(text, &length) != 0)
        text[0] = 0;
    for (const char *c = text; *c && !strchr(",\n", *c) && used + 1 < sizeof library->version; c++)
        if (!strchr(" \t", *c))
            library->version[used++] = *c;
        else if (used && library->version[used - 1] != ' ')
            library->version[used++] = ' ';
    library->version[used] = 0;
}

/* Whether MPI's initialisation by this process can succeed. */
static enum tutti_status check_launcher(const struct mpi_library *library)
{
    const struct launcher *launcher = find_launcher();
    const bool is_openmpi = strstr(library->version, "Open MPI") != NULL;
    if (!launcher)
        return error_set(TUTTI_ERR_DECLINED,
                         "%s (%s) is not initialised, and no launcher has started the process: "
                         "each rank would be alone; start it with mpirun",
                         library->version, library->path);
    if (!(is_openmpi ? launcher->takes_openmpi : launcher->takes_mpich))
        return error_set(TUTTI_ERR_DECLINED,
                         "%s (%s) is not the MPI of %s, which started the process: use one MPI's "
                         "launcher and library",
                         library->version, library->path, launcher->name);
    return TUTTI_OK;
}

static enum tutti_status initialise(struct mpi_library *library)
{
    const struct mpi_abi *abi = &library->abi;
    int given = 0, size = 1;
    enum tutti_status status = check_launcher(library);
    if (status != TUTTI_OK)
        return status;
    const int code = abi->init_thread(NULL, NULL, abi->thread_levels[3], &given);
    if (code != 0)
        return mpi_error(abi, "Init_thread", code);
    must_finalise = true;
    const char *expected = getenv(find_launcher()->size);
    if (abi->comm_size(abi->world, &size) != 0 || size > 1 || !expected || atoi(expected) < 2)
        return TUTTI_OK;
    abi->finalize();
    return error_set(TUTTI_ERR_DECLINED,
                     "%s (%s) found 1 rank, but %s started %s: use this launcher's library",
                     library->version, library->path, find_launcher()->name, expected);
}

bool mpi_library_works(const struct mpi_library *library)
{
    int flag = 0;
    return is_initialised(&library->abi) && library->abi.finalized(&flag) == 0 && !flag;
}

/* What is known of an initialised library. */
static enum tutti_status look(struct mpi_library *library)
{
    const struct mpi_abi *abi = &library->abi;
    const struct launcher *launcher = find_launcher();
    const char *job = launcher && launcher->job ? getenv(launcher->job) : NULL;
    int level = 0;
    int code = abi->comm_rank(abi->world, &library->rank);
    if (code == 0)
        code = abi->comm_size(abi->world, &library->size);
    if (code == 0)
        code = abi->query_thread(&level);
    if (code != 0)
        return mpi_error(abi, "Comm_rank", code);
    library->level = mpi_thread_level(abi, level);
    snprintf(library->job, sizeof library->job, "%.55s", job ? job : "");
    return TUTTI_OK;
}

static enum tutti_status check_thread(const struct mpi_library *library)
{
    int is_main = 0;
    if (library->level >= 2 || (library->abi.is_thread_main(&is_main) == 0 && is_main))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_DECLINED,
                     "%s was initialised with %s, and this is not its main thread: open the "
                     "fabric there, or initialise MPI with MPI_THREAD_MULTIPLE",
                     library->version,
                     library->level ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE");
}

/* Makes sure that it is initialised. */
static enum tutti_status prepare(struct mpi_library *library)
{
    int flag = 0;
    read_version(library);
    if (library->abi.finalized(&flag) == 0 && flag)
        return error_set(TUTTI_ERR_DECLINED, "%s (%s) was finalized, and cannot be used again",
                         library->version, library->path);
    const enum tutti_status status = is_initialised(&library->abi) ? TUTTI_OK : initialise(library);
    return status == TUTTI_OK ? look(library) : status;
}

/* A call of Open MPI handles events until none is left. If a peer's process ends while Open MPI
 * sends to it over TCP, Open MPI 4.1 leaves an event of that connection (it writes "invalid
 * connection state"), and the call never returns. With these flags of libevent a call handles the
 * events that are there once. */
static void bound_events(void *handle)
{
    enum { ONCE = 1, NONBLOCK = 2 };
    int (*set)(int) = NULL;
    *(void **)&set = dlsym(handle, "opal_progress_set_event_flag");
    if (set)
        (void)set(ONCE | NONBLOCK);
}

static enum tutti_status open_library(const char *path, struct mpi_library *library)
{
    void *handle = NULL, *loaded = NULL;
    memset(library, 0, sizeof *library);
    enum tutti_status status = take_loaded(library, &loaded);
    if (status == TUTTI_OK && *library->path && *path && !is_same_file(path, library->path))
        status = error_set(TUTTI_ERR_DECLINED,
                           "the program has loaded another MPI, %s: a second one beside it would "
                           "disturb both; open \"mpi:\"",
                           library->path);
    if (status == TUTTI_OK && !*library->path)
        status = load(path, library, &handle);
    if (status == TUTTI_OK)
        status = prepare(library);
    if (status == TUTTI_OK)
        bound_events(handle ? handle : loaded);
    if (status != TUTTI_OK && handle && !must_finalise)
        dlclose(handle); /* a later call may find the right one */
    return status;
}

enum tutti_status mpi_library_open(const char *path, struct mpi_library **library)
{
    enum tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&lock);
    if (!opens)
        status = open_library(path, &found);
    else if (*path && !is_same_file(path, found.path))
        status = error_set(TUTTI_ERR_DECLINED, "another MPI is open, %s", found.path);
    if (status == TUTTI_OK)
        status = check_thread(&found);
    if (status == TUTTI_OK) {
        opens++;
        *library = &found;
        log_write(TUTTI_LOG_INFO, found.rank, "fabric: %s, %s interface, by %s", found.version,
                  found.abi.name, found.path);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void mpi_library_close(void)
{
    pthread_mutex_lock(&lock);
    if (--opens == 0 && must_finalise && mpi_library_works(&found))
        found.abi.finalize();
    pthread_mutex_unlock(&lock);
}

void mpi_library_keep(void)
{
    pthread_mutex_lock(&lock);
    must_finalise = false;
    pthread_mutex_unlock(&lock);
}

void mpi_library_hold(void)
{
    pthread_mutex_lock(&lock);
    opens++;
    must_finalise = false;
    pthread_mutex_unlock(&lock);
}

enum tutti_status mpi_library_parent(const struct mpi_library *library, bool all, uintptr_t *parent)
{
    const struct mpi_abi *abi = &library->abi;
    uintptr_t group = 0, made = 0;
    pthread_mutex_lock(&lock);
    *parent = own_parent ? own_parent : abi->world;
    pthread_mutex_unlock(&lock);
    if (*parent != abi->world || !all)
        return TUTTI_OK;
    int code = abi->comm_group(abi->world, &group);
    if (code == 0) {
        code = abi->comm_create(abi->world, group, &made);
        abi->group_free(&group);
    }
    if (code == 0)
        code = abi->comm_set_errhandler(made, abi->errors_return);
    if (code != 0)
        return mpi_error(abi, "Comm_create", code);
    pthread_mutex_lock(&lock);
    *parent = own_parent = made;
    pthread_mutex_unlock(&lock);
    return TUTTI_OK;
}
