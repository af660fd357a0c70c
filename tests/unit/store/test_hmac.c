/* SPDX-License-Identifier: MIT */
/* SHA-256 and HMAC against FIPS 180-4's examples and RFC 4231's vectors. */
#include "store/hmac.h"

#include "ipc/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect(const uint8_t *digest, const char *hex)
{
    char text[2 * SHA256_BYTES + 1];
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal(text, hex);
}

static void expect_sha(const char *message, const char *hex)
{
    uint8_t digest[SHA256_BYTES];
    sha256(NULL, message, strlen(message), digest);
    expect(digest, hex);
}

static void sha256_is_fips_180(void **state)
{
    (void)state;
    expect_sha("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect_sha("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect_sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
               "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void sha256_takes_any_length(void **state)
{
    enum { MILLION = 1000000 };
    uint8_t digest[SHA256_BYTES], expected[SHA256_BYTES], *message = malloc(MILLION);
    (void)state;
    assert_non_null(message);
    memset(message, 'a', MILLION);
    sha256(NULL, message, MILLION, digest);
    expect(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    /* A first block by itself is the same; the padding takes a block of its own or none. */
    for (size_t bytes = SHA256_BLOCK_BYTES; bytes < 3 * SHA256_BLOCK_BYTES; bytes++) {
        sha256(NULL, message, bytes, expected);
        sha256(message, message + SHA256_BLOCK_BYTES, bytes - SHA256_BLOCK_BYTES, digest);
        assert_memory_equal(digest, expected, SHA256_BYTES);
    }
    free(message);
}

static void hmac_is_rfc_4231(void **state)
{
    uint8_t key[131], data[152], digest[SHA256_BYTES];
    (void)state;
    memset(key, 0x0b, 20);
    hmac_sha256(key, 20, "Hi There", 8, digest);
    expect(digest, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, digest);
    expect(digest, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, 131);
    memset(data, 0xdd, 50);
    hmac_sha256(key, 20, data, 50, digest);
    expect(digest, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    hmac_sha256(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54, digest);
    expect(digest, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    hmac_sha256(key, 131,
                "This is a test using a larger than block-size key and a larger than block-size "
                "data. The key needs to be hashed before being used by the HMAC algorithm.",
                152, digest);
    expect(digest, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

static void equal_tells_every_byte_apart(void **state)
{
    uint8_t a[SHA256_BYTES] = {0}, b[SHA256_BYTES] = {0};
    (void)state;
    assert_true(secret_equal(a, b, sizeof a));
    for (int i = 0; i < SHA256_BYTES; i++) {
        b[i] = 0x80;
        assert_false(secret_equal(a, b, sizeof a));
        b[i] = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_is_fips_180),
        cmocka_unit_test(sha256_takes_any_length),
        cmocka_unit_test(hmac_is_rfc_4231),
        cmocka_unit_test(equal_tells_every_byte_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
