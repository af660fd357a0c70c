/* SPDX-License-Identifier: MIT */
/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it. */
#ifndef TUTTI_STORE_HMAC_H
#define TUTTI_STORE_HMAC_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK_BYTES = 64 };

/* The digest of `block`, which may be NULL, and the data behind it. */
void sha256(const uint8_t *block, const void *data, size_t bytes, uint8_t digest[SHA256_BYTES]);

void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                 uint8_t digest[SHA256_BYTES]);

#endif
