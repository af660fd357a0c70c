/* SPDX-License-Identifier: MIT */
#include "fabric/mpi_abi.h"

#include "base/error.h"

#include <assert.h>
#include <dlfcn.h>
#include <string.h>

static const struct mpi_abi mpich = {
    .name = "MPICH",
    .kind = MPI_KIND_MPICH,
    .thread_levels = {0, 1, 2, 3},
    .truncate = 14,
    .other = 15,
    .any_source = -2,
    .root = -3,
    .in_place = (void *)-1,
    .handle_bits = UINT32_MAX,
};

static const struct mpi_abi standard = {
    .name = "standard",
    .kind = MPI_KIND_STANDARD,
    .thread_levels = {0, 1024, 2048, 4096},
    .truncate = 15,
    .other = 16,
    .any_source = -1,
    .root = -4,
    .in_place = (void *)1,
    .handle_bits = UINTPTR_MAX,
};

static const struct mpi_abi openmpi = {
    .name = "Open MPI", /* its handles are the addresses of variables */
    .kind = MPI_KIND_OPENMPI,
    .thread_levels = {0, 1, 2, 3},
    .truncate = 15,
    .other = 16,
    .any_source = -1,
    .root = -4,
    .in_place = (void *)1,
    .handle_bits = UINTPTR_MAX,
};

/* The address of one of Open MPI's objects. A program that is linked without -fPIC has a copy of
 * the object, which the library then uses too. The program's is found first. */
static uintptr_t object(void *library, const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    return (uintptr_t)(found ? found : dlsym(library, name));
}

uintptr_t mpi_abi_handle(const struct mpi_abi *abi, void *library, const char *openmpi_name,
                         uintptr_t mpich_value, uintptr_t standard_value)
{
    switch (abi->kind) {
    case MPI_KIND_MPICH:
        return mpich_value;
    case MPI_KIND_STANDARD:
        return standard_value;
    case MPI_KIND_OPENMPI:
        break;
    }
    return object(library, openmpi_name);
}

static enum tutti_status find_functions(void *library, const char *path, struct mpi_abi *abi)
{
    static const char *const names[] = {
#define MPI_NAME(member, name, arguments) "PMPI_" #name,
        MPI_FUNCTION_MAP(MPI_NAME)
#undef MPI_NAME
    };
    enum { COUNT = sizeof names / sizeof *names };
    void *found[COUNT];
    static_assert(offsetof(struct mpi_abi, initialized) + sizeof found == sizeof *abi, "members");
    for (int i = 0; i < COUNT; i++) {
        found[i] = dlsym(library, names[i]);
        if (!found[i])
            return error_set(TUTTI_ERR_DECLINED, "%s has no %s: an MPI 3.0 or newer is needed",
                             path, names[i]);
    }
    memcpy((char *)abi + offsetof(struct mpi_abi, initialized), found, sizeof found);
    return TUTTI_OK;
}

enum tutti_status mpi_abi_find(void *library, const char *path, struct mpi_abi *abi)
{
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    if (dlsym(library, MPI_WORLD_OBJECT))
        *abi = openmpi;
    else
        *abi = strncmp(base, "libmpi_abi", 10) == 0 ? standard : mpich;
    abi->world =
        mpi_abi_handle(abi, library, MPI_WORLD_OBJECT, MPI_WORLD_MPICH, MPI_WORLD_STANDARD);
    abi->byte = mpi_abi_handle(abi, library, "ompi_mpi_byte", 0x4c00010d, 0x247);
    abi->errors_return = mpi_abi_handle(abi, library, "ompi_mpi_errors_return", 0x54000001, 0x143);
    return find_functions(library, path, abi);
}

int mpi_thread_level(const struct mpi_abi *abi, int level)
{
    for (int i = 3; i > 0; i--)
        if (abi->thread_levels[i] == level)
            return i;
    return 0;
}

enum tutti_status mpi_error(const struct mpi_abi *abi, const char *call, int code)
{
    char text[MPI_TEXT_BYTES] = "";
    int length = 0;
    if (abi->error_string(code, text, &length) != 0)
        text[0] = 0;
    text[strcspn(text, "\n")] = 0;
    return error_set(TUTTI_ERR_SYSTEM, "MPI_%s: error %d: %.300s", call, code, text);
}
