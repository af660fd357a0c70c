/* SPDX-License-Identifier: MIT */
/* The URLs of tutti_store_open(). */
#include "store/kind.h"

#include "base/error.h"
#include "base/parse.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

const char *store_url_node(const char *host)
{
    return strcasecmp(host, "localhost") == 0 || strcasecmp(host, "localhost.") == 0 ? NULL : host;
}

static bool copy(char *to, size_t capacity, const char *from, size_t bytes)
{
    if (bytes >= capacity)
        return false;
    memcpy(to, from, bytes);
    to[bytes] = 0;
    return true;
}

/* HOST:PORT or [HOST]:PORT, up to `end`. */
static enum tutti_status parse_address(const char *text, const char *end, struct store_url *url)
{
    const char *host = text, *colon = memrchr(text, ':', (size_t)(end - text));
    if (!colon)
        return error_set(TUTTI_ERR_INVALID, "the port is missing: write tcp://HOST:PORT");
    const char *host_end = colon;
    if (*host == '[') {
        host++;
        if (host_end == host || *--host_end != ']')
            return error_set(TUTTI_ERR_INVALID, "an IPv6 address is written tcp://[::1]:PORT");
    }
    if (host_end <= host || !copy(url->text, 256, host, (size_t)(host_end - host)))
        return error_set(TUTTI_ERR_INVALID, "the host is missing or too long");
    char port[8];
    int64_t number;
    if (!copy(port, sizeof port, colon + 1, (size_t)(end - colon - 1)) ||
        !parse_number(port, 0, 65535, &number))
        return error_set(TUTTI_ERR_INVALID, "the port is no number from 0 to 65535");
    url->port = (uint16_t)number;
    return TUTTI_OK;
}

static enum tutti_status parse_option(const char *text, size_t bytes, struct store_url *url)
{
    char option[300];
    int64_t number;
    if (!copy(option, sizeof option, text, bytes))
        return error_set(TUTTI_ERR_INVALID, "option %.40s... is too long", text);
    char *value = strchr(option, '=');
    if (value)
        *value++ = 0;
    if (value && strcmp(option, "server") == 0 && parse_number(value, 0, 1, &number))
        url->server = number == 1;
    else if (value && strcmp(option, "world_size") == 0 && parse_number(value, 1, INT_MAX, &number))
        url->world_size = (int)number;
    else if (value && strcmp(option, "rank") == 0 && parse_number(value, 0, INT_MAX, &number))
        url->rank = (int)number;
    else if (value && strcmp(option, "bind") == 0 && *value &&
             copy(url->bind, sizeof url->bind, value, strlen(value)))
        ;
    else
        return error_set(TUTTI_ERR_INVALID,
                         "option \"%s\" is not known or its value is wrong: server=0 or 1, "
                         "bind=ADDRESS, world_size=N, rank=R",
                         option);
    return TUTTI_OK;
}

static enum tutti_status parse_tcp(const char *text, struct store_url *url)
{
    const char *end = strchrnul(text, '?');
    enum tutti_status status = parse_address(text, end, url);
    while (status == TUTTI_OK && *end) {
        const char *option = end + 1;
        end = strchrnul(option, '&');
        status = parse_option(option, (size_t)(end - option), url);
    }
    if (status == TUTTI_OK && !url->server && url->port == 0)
        status = error_set(TUTTI_ERR_INVALID, "port 0 is for a server: add ?server=1");
    if (status == TUTTI_OK && !url->server && *url->bind)
        status = error_set(TUTTI_ERR_INVALID, "bind= is for a server: add server=1");
    if (status == TUTTI_OK && url->rank >= 0 && url->rank >= url->world_size)
        status = error_set(TUTTI_ERR_INVALID, "rank=%d needs a larger world_size=N", url->rank);
    return status;
}

static enum tutti_status parse_text(const char *text, struct store_url *url)
{
    if (!*text)
        return error_set(TUTTI_ERR_INVALID, "the %s is missing",
                         url->kind == STORE_MEMORY ? "name" : "path");
    if (!copy(url->text, sizeof url->text, text, strlen(text)))
        return error_set(TUTTI_ERR_INVALID, "the %s is longer than %zu bytes",
                         url->kind == STORE_MEMORY ? "name" : "path", sizeof url->text - 1);
    return TUTTI_OK;
}

/* A path may contain '?', so the text after the last one is an option only if it has the form of
 * one. An unknown option is an error: with "?rank=N" as a part of the path, each rank would open a
 * file of its own. */
static enum tutti_status parse_file(const char *text, struct store_url *url)
{
    static const char option[] = "?world_size=";
    int64_t number;
    enum tutti_status status = parse_text(text, url);
    char *last = strrchr(url->text, '?');
    if (status != TUTTI_OK || !last || last == url->text)
        return status;
    size_t letters = strspn(last + 1, "abcdefghijklmnopqrstuvwxyz_");
    if (letters == 0 || last[1 + letters] != '=')
        return TUTTI_OK;
    if (strncmp(last, option, sizeof option - 1) != 0 ||
        !parse_number(last + sizeof option - 1, 1, INT_MAX, &number))
        return error_set(TUTTI_ERR_INVALID,
                         "\"%.80s\" is not known or its value is wrong: ?world_size=N is all that "
                         "may follow the path",
                         last);
    url->world_size = (int)number;
    *last = 0;
    return TUTTI_OK;
}

static enum tutti_status parse_empty(const char *text, struct store_url *url)
{
    (void)url;
    return *text && strcmp(text, "//") != 0
               ? error_set(TUTTI_ERR_INVALID, "env: takes nothing after it, not \"%.40s\"", text)
               : TUTTI_OK;
}

enum tutti_status store_url_parse(const char *text, struct store_url *url)
{
    static const struct {
        const char *scheme;
        enum store_url_kind kind;
        enum tutti_status (*parse)(const char *text, struct store_url *url);
    } rows[] = {
        {"memory:", STORE_MEMORY, parse_text},
        {"file:", STORE_FILE, parse_file},
        {"tcp://", STORE_TCP, parse_tcp},
        {"env:", STORE_ENV, parse_empty},
    };
    memset(url, 0, sizeof *url);
    url->rank = -1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t bytes = strlen(rows[i].scheme);
        if (strncmp(text, rows[i].scheme, bytes) == 0) {
            url->kind = rows[i].kind;
            return rows[i].parse(text + bytes, url);
        }
    }
    return error_set(TUTTI_ERR_INVALID,
                     "no such kind of store: memory:NAME, file:PATH, tcp://HOST:PORT or env:");
}
