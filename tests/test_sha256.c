/* test_sha256.c - SHA-256 against the standard's examples, and in pieces of every size against the
 * whole. The sums are those of FIPS 180-2, appendix B, and of coreutils' sha256sum. */
#include "cli/pull/sha256.h"

#include <string.h>

#include "tests/test.h"

static const struct { const char *text; long times; const char *sum, *why; } rows[] = {
    { "", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "nothing" },
    { "abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "FIPS B.1" },
    { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
      "FIPS B.2: the length needs a block of its own" },
    { "a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
      "FIPS B.3" },
    { "a", 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318",
      "room for the length" },
    { "a", 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb",
      "a whole block" },
    { "a", 119, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb", "two blocks" },
};

static void check_rows(void)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char got[SHA256_TEXT];
        sha256 s;
        sha256_init(&s);
        for (long t = 0; t < rows[i].times; t++) sha256_add(&s, rows[i].text, strlen(rows[i].text));
        sha256_end(got, &s);
        CHECK_MSG(!strcmp(got, rows[i].sum), "%s: %s, expected %s", rows[i].why, got, rows[i].sum);
    }
}

/* Lengths around one and two blocks, in two pieces cut anywhere. */
static void check_pieces(void)
{
    uint8_t data[200];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7);
    for (size_t n = 0; n <= sizeof data; n++) {
        char whole[SHA256_TEXT], cut[SHA256_TEXT];
        int n_bad = 0;
        sha256 s;
        sha256_init(&s);
        sha256_add(&s, data, n);
        sha256_end(whole, &s);
        for (size_t at = 0; at <= n; at++) {
            sha256_init(&s);
            sha256_add(&s, data, at);
            sha256_add(&s, data + at, n - at);
            n_bad += strcmp(sha256_end(cut, &s), whole) != 0;
        }
        CHECK_MSG(n_bad == 0, "%zu bytes: %d cuts give other sums", n, n_bad);
    }
}

static void check_text(void)
{
    CHECK(sha256_is_text(str_from(rows[0].sum)));
    CHECK(!sha256_is_text(str_from("")));
    CHECK(!sha256_is_text((str_view){ rows[0].sum, 63 }));
    char big[SHA256_TEXT];
    strcpy(big, rows[0].sum);
    big[0] = 'E';
    CHECK(!sha256_is_text(str_from(big)));
}

int main(int argc, char **argv)
{
    test_begin("sha256", argc, argv);
    check_rows();
    check_pieces();
    check_text();
    return test_end();
}
