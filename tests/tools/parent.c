/* SPDX-License-Identifier: MIT */
/*
 * Runs a program as an odd parent would: with SIGCHLD ignored, or with standard output and standard
 * error non-blocking (and, if they are pipes, as small as the kernel allows).
 *
 * usage: parent no-children|non-blocking PROGRAM [ARGUMENT...]
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 3)
        return 64;
    if (strcmp(argv[1], "no-children") == 0)
        signal(SIGCHLD, SIG_IGN);
    for (int fd = STDOUT_FILENO; strcmp(argv[1], "non-blocking") == 0 && fd <= STDERR_FILENO;
         fd++) {
        fcntl(fd, F_SETPIPE_SZ, 1); /* rounded up */
        if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
            return 1;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
