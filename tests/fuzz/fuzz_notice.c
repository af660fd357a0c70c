/* SPDX-License-Identifier: MIT */
/* The file in which rank 0 of `env:` tells its port and secret: what is accepted is a port, and
 * hexadecimal digits that fit. */
#include "store/env_store.c" /* its reader is static */

#include "fuzz.h"

static const char path[] = "fuzz_notice.file";

static void remove_file(void)
{
    unlink(path);
}

static int scratch_open(void)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    fuzz_check(fd >= 0);
    atexit(remove_file);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static int fd = -1;
    struct notice notice = {.secret = ""};
    uint16_t port;
    if (fd < 0)
        fd = scratch_open();
    fuzz_check(pwrite(fd, bytes, size, 0) == (ssize_t)size && ftruncate(fd, (off_t)size) == 0);
    strcpy(notice.path, path);
    if (!notice_read(&notice, &port))
        return 0;
    size_t length = strnlen(notice.secret, sizeof notice.secret);
    fuzz_check(length > 0 && length < sizeof notice.secret);
    fuzz_check(strspn(notice.secret, "0123456789abcdef") == length);
    return 0;
}
