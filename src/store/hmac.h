/* SPDX-License-Identifier: MIT */
/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it. */
#ifndef TUTTI_STORE_HMAC_H
#define TUTTI_STORE_HMAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK_BYTES = 64 };

struct sha256 {
    uint32_t state[8];
    uint64_t bytes; /* taken so far */
    uint8_t block[SHA256_BLOCK_BYTES];
};

void sha256_init(struct sha256 *sha);
void sha256_update(struct sha256 *sha, const void *data, size_t bytes);
void sha256_final(struct sha256 *sha, uint8_t digest[SHA256_BYTES]);

void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                 uint8_t digest[SHA256_BYTES]);
/* In a time that does not tell where they differ. */
bool hmac_equal(const uint8_t a[SHA256_BYTES], const uint8_t b[SHA256_BYTES]);

#endif
