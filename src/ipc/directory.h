/* SPDX-License-Identifier: MIT */
/* The sockets' private directory; channel_directory() in channel.h finds it. */
#ifndef TUTTI_IPC_DIRECTORY_H
#define TUTTI_IPC_DIRECTORY_H

#include "tutti/tutti.h"

#include <sys/un.h>

/* A listening socket's path, or the empty string. */
struct socket_path {
    char text[sizeof((struct sockaddr_un *)0)->sun_path];
};

/* Creates the directory if it is missing, and refuses an unsafe one. sweeps: also removes what
 * killed processes have left in it. */
enum tutti_status directory_open(const char *path, bool sweeps);

/* Makes a socket that listens in the directory; close-on-exec, non-blocking. The
 * caller unlinks *path. */
enum tutti_status directory_listen(const char *directory, struct socket_path *path, int *fd);

/* Starts to connect; *fd is -1 when the listener's queue is full: try again. Non-blocking,
 * close-on-exec. Returns SYSTEM with errno kept, without a message when it is ENOENT. */
enum tutti_status directory_connect(const struct socket_path *path, int *fd);

#endif
