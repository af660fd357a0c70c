/* SPDX-License-Identifier: MIT */
/*
 * NVIDIA's library calls some functions that it exports, among them ncclMemAlloc(), by addresses
 * that the dynamic linker wrote into the library's data. While this library stands first in the
 * process (LD_PRELOAD) these are addresses of this library's functions, unless NVIDIA's was opened
 * with RTLD_DEEPBIND. A program may have opened it without, as PyTorch does; opening it again
 * changes nothing. So the addresses are written anew here.
 */
#include "shim.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
#ifdef __aarch64__
    RELOCATED_CALL = R_AARCH64_JUMP_SLOT,
    RELOCATED_ADDRESS = R_AARCH64_GLOB_DAT,
    RELOCATED_DATA = R_AARCH64_ABS64,
#else
    RELOCATED_CALL = R_X86_64_JUMP_SLOT,
    RELOCATED_ADDRESS = R_X86_64_GLOB_DAT,
    RELOCATED_DATA = R_X86_64_64,
#endif
};

/* A loaded library. */
struct image {
    uintptr_t base;
    const ElfW(Sym) * symbols;
    const char *names;
    const ElfW(Rela) * calls, *others;
    size_t calls_bytes, others_bytes;
    uintptr_t sealed, sealed_end; /* pages that the dynamic linker has made read-only */
    bool opened;                  /* these pages are writable for now */
};

/* Finds the pages that are read-only since relocation. */
static int seal_find(struct dl_phdr_info *object, size_t size, void *context)
{
    struct image *image = context;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    (void)size;
    if (object->dlpi_addr != image->base)
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[i];
        if (header->p_type != PT_GNU_RELRO)
            continue;
        image->sealed = (image->base + header->p_vaddr) & ~(page - 1);
        image->sealed_end = (image->base + header->p_vaddr + header->p_memsz) & ~(page - 1);
    }
    return 1;
}

static bool image_read(void *library, struct image *image)
{
    struct link_map *map;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return false;
    *image = (struct image){.base = map->l_addr};
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        /* The linker of glibc has added the base, others have not. */
        const uintptr_t value = entry->d_un.d_ptr;
        const void *at = (const void *)(value < image->base ? value + image->base : value);
        switch (entry->d_tag) {
        case DT_SYMTAB:
            image->symbols = at;
            break;
        case DT_STRTAB:
            image->names = at;
            break;
        case DT_JMPREL:
            image->calls = at;
            break;
        case DT_PLTRELSZ:
            image->calls_bytes = value;
            break;
        case DT_RELA:
            image->others = at;
            break;
        case DT_RELASZ:
            image->others_bytes = value;
            break;
        }
    }
    dl_iterate_phdr(seal_find, image);
    return image->symbols && image->names;
}

/* Whether the library defines the symbol, a function of NCCL's. */
static bool is_own(const struct image *image, const ElfW(Sym) * symbol)
{
    const char *name = image->names + symbol->st_name;
    if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
        return false;
    for (int i = 0; i < SYMBOLS; i++)
        if (strcmp(name + (*name == 'p'), symbol_names[i]) == 0)
            return true;
    return false;
}

static bool seal(struct image *image, int protection)
{
    return mprotect((void *)image->sealed, image->sealed_end - image->sealed, protection) == 0;
}

/* Writes one address, unless it is right. */
static bool address_write(struct image *image, const ElfW(Rela) * entry)
{
    uint64_t *at = (uint64_t *)(image->base + entry->r_offset);
    const ElfW(Sym) *symbol = &image->symbols[ELF64_R_SYM(entry->r_info)];
    const uint64_t address = image->base + symbol->st_value + (uint64_t)entry->r_addend;
    const bool sealed = (uintptr_t)at >= image->sealed && (uintptr_t)at < image->sealed_end;
    if (order_load_relaxed_u64(at) == address) /* the linker's, or ours of before */
        return true;
    if (sealed && !image->opened) {
        if (!seal(image, PROT_READ | PROT_WRITE))
            return false;
        image->opened = true;
    }
    /* Another thread may call by it meanwhile: relaxed, since either function is there for long. */
    order_store_relaxed_u64(at, address);
    return true;
}

static bool addresses_write(struct image *image, const ElfW(Rela) * entries, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *entries; i++) {
        const unsigned type = ELF64_R_TYPE(entries[i].r_info);
        if ((type == RELOCATED_CALL || type == RELOCATED_ADDRESS || type == RELOCATED_DATA) &&
            is_own(image, &image->symbols[ELF64_R_SYM(entries[i].r_info)]) &&
            !address_write(image, &entries[i]))
            return false;
    }
    return true;
}

bool real_bind(void *library)
{
    struct image image;
    if (!image_read(library, &image))
        return false;
    const bool written = addresses_write(&image, image.calls, image.calls_bytes) &&
                         addresses_write(&image, image.others, image.others_bytes);
    if (image.opened)
        seal(&image, PROT_READ);
    return written;
}
