/* SPDX-License-Identifier: MIT */
#include "store/hmac.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t word, int bits)
{
    return word >> bits | word << (32 - bits);
}

static uint32_t load_be(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void compress(uint32_t state[8], const uint8_t block[SHA256_BLOCK_BYTES])
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = load_be(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t t1 = s[7] + s1 + choice + round_constants[i] + w[i];
        uint32_t s0 = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
        uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + s0 + majority;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

void sha256(const uint8_t *block, const void *data, size_t bytes, uint8_t digest[SHA256_BYTES])
{
    /* As above, of the square roots of the first 8 primes. */
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t last[2 * SHA256_BLOCK_BYTES] = {0};
    const uint8_t *next = data;
    const uint64_t bits = ((block ? SHA256_BLOCK_BYTES : 0) + (uint64_t)bytes) * 8;
    if (block)
        compress(state, block);
    for (; bytes >= SHA256_BLOCK_BYTES; bytes -= SHA256_BLOCK_BYTES, next += SHA256_BLOCK_BYTES)
        compress(state, next);
    if (bytes > 0)
        memcpy(last, next, bytes);
    last[bytes] = 0x80;
    const size_t end = bytes < SHA256_BLOCK_BYTES - 8 ? SHA256_BLOCK_BYTES : sizeof last;
    for (size_t i = 0; i < 8; i++)
        last[end - 1 - i] = (uint8_t)(bits >> 8 * i);
    for (size_t i = 0; i < end; i += SHA256_BLOCK_BYTES)
        compress(state, last + i);
    for (int i = 0; i < SHA256_BYTES; i++)
        digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                 uint8_t digest[SHA256_BYTES])
{
    uint8_t block[SHA256_BLOCK_BYTES] = {0};
    if (key_bytes > sizeof block)
        sha256(NULL, key, key_bytes, block);
    else if (key_bytes > 0)
        memcpy(block, key, key_bytes);
    for (size_t i = 0; i < sizeof block; i++)
        block[i] ^= 0x36;
    sha256(block, data, bytes, digest);
    for (size_t i = 0; i < sizeof block; i++)
        block[i] ^= 0x36 ^ 0x5c;
    sha256(block, digest, SHA256_BYTES, digest);
}
