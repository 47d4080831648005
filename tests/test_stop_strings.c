/* test_stop_strings.c - stop strings in a stream against a search in the whole text. */
#include <stdio.h>
#include <string.h>

#include "engine/text/chat/stop_strings.h"
#include "tests/test.h"

typedef struct shown { char text[20000]; size_t len; int n_call; int answer; } shown;

static int show(void *ctx, str_view text)
{
    shown *s = ctx;
    s->n_call++;
    if (text.len == 0 || text.len > sizeof s->text - s->len) return -99;
    memcpy(s->text + s->len, text.ptr, text.len);
    s->len += text.len;
    return s->answer;
}

/* How much of the n bytes must have passed: up to the first position where a stop string is
 * (*found), or may still come if more text follows. */
static size_t plain_search(bool *found, const char *text, size_t n, const char *const *strings,
                           int n_string, bool more)
{
    *found = false;
    for (size_t at = 0; at < n; at++)
        for (int pass = 0; pass < 2; pass++)             /* whole ones first */
            for (int k = 0; k < n_string; k++) {
                const size_t len = strlen(strings[k]), left = n - at;
                if (pass == 0 && len <= left && !memcmp(text + at, strings[k], len)) {
                    *found = true;
                    return at;
                }
                if (pass == 1 && more && len > left && !memcmp(text + at, strings[k], left))
                    return at;
            }
    return n;
}

/* Pushes text cut after each byte i whose bit i of cuts is set, and checks after each push. */
static bool stream_is_right(const char *const *strings, int n_string, const char *text, size_t n,
                            uint64_t cuts, stop_strings *s, shown *out)
{
    bool found = false;
    size_t want, from = 0;
    int rc = 0;

    stop_strings_reset(s);
    out->len = 0;
    mem_guard(true);
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (i + 1 < n && !(cuts >> (i % 64) & 1)) continue;
        rc = stop_strings_push(s, (str_view){ text + from, i + 1 - from }, show, out);
        from = i + 1;
        want = plain_search(&found, text, from, strings, n_string, true);
        if (rc != found || out->len != want) break;
    }
    if (rc == 0) {
        rc = stop_strings_end(s, show, out);
        want = plain_search(&found, text, n, strings, n_string, false);
    } else {
        want = plain_search(&found, text, from, strings, n_string, true);
    }
    mem_guard(false);
    return rc == found && out->len == want && !memcmp(out->text, text, want);
}

static const struct { const char *strings[4]; const char *text; const char *why; } streams[] = {
    { { "aab" }, "aaab", "a match that begins inside a failed one" },
    { { "aab" }, "aaaaaac", "never complete" },
    { { "abab", "ba" }, "xababx", "the longer starts earlier" },
    { { "abcd", "bc" }, "abcdx", "the shorter ends first, the longer starts first" },
    { { "abcd", "bc" }, "abcx", "the shorter waited for the longer in vain" },
    { { "abcd", "bc" }, "abc", "the same at the end of the stream" },
    { { "ab", "abc" }, "xabc", "one is a prefix of the other" },
    { { "abc", "ab" }, "xabx", "the same, the longer first" },
    { { "a" }, "a", "one byte" },
    { { "END", "\n\n" }, "one\n\n", "usual" },
    { { "END", "\n\n" }, "E\nEN\n", "beginnings only" },
    { { "\xE2\x82\xAC" }, "x\xE2\x82\xE2\x82\xAC", "inside a character" },
    { { "x", "x" }, "axb", "twice the same" },
};

static int count_strings(const char *const *strings)
{
    int n = 0;
    while (n < 4 && strings[n]) n++;
    return n;
}

static void test_streams(void)
{
    static shown out;
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        const int n_string = count_strings(streams[i].strings);
        const size_t n = strlen(streams[i].text);
        stop_strings *s;
        CHECK(stop_strings_create(&s, streams[i].strings, n_string, NULL) == 0);
        for (uint64_t cuts = 0; cuts < 1u << (n - 1); cuts++)
            CHECK_MSG(stream_is_right(streams[i].strings, n_string, streams[i].text, n, cuts, s,
                                      &out), "%s: cuts %x", streams[i].why, (unsigned)cuts);
        stop_strings_free(s);
    }
}

static void test_random_streams(void)
{
    static shown out;
    test_rng r = { 77 };
    int n_found = 0;
    for (int round = 0; round < 4000; round++) {
        char texts[4][8], text[40];
        const char *strings[4];
        const int n_string = 1 + (int)test_below(&r, 4);
        const uint32_t alphabet = 2 + test_below(&r, 2);
        const size_t n = 1 + test_below(&r, sizeof text);
        stop_strings *s;
        bool found, right = true;

        for (int k = 0; k < n_string; k++) {
            const uint32_t len = 1 + test_below(&r, 7);
            for (uint32_t c = 0; c < len; c++) texts[k][c] = (char)('a' + test_below(&r, alphabet));
            texts[k][len] = '\0';
            strings[k] = texts[k];
        }
        for (size_t c = 0; c < n; c++) text[c] = (char)('a' + test_below(&r, alphabet));
        CHECK(stop_strings_create(&s, strings, n_string, NULL) == 0);
        for (int k = 0; k < 8; k++) {
            const uint64_t cuts = k == 0 ? 0 : k == 1 ? UINT64_MAX : test_rand(&r);
            right = right && stream_is_right(strings, n_string, text, n, cuts, s, &out);
        }
        plain_search(&found, text, n, strings, n_string, false);
        n_found += found;
        CHECK_MSG(right, "round %d: '%.*s'", round, (int)n, text);
        stop_strings_free(s);
    }
    CHECK_MSG(n_found > 1000 && n_found < 3900, "%d found: proves little", n_found);
}

static void test_long_stops(void)
{
    static shown out;
    static char longest[STOP_STRING_MAX_BYTES + 2], text[12000];
    const char *const strings[] = { longest };
    err_ctx err;
    stop_strings *s;

    memset(longest, 'a', STOP_STRING_MAX_BYTES + 1);
    CHECK(stop_strings_create(&s, strings, 1, &err) == ERR_RANGE && !s);
    CHECK_MSG(!strcmp(err.msg, "stop string 1 of 1 has 1025 bytes; 1024 are possible"), "%s",
              err.msg);
    longest[STOP_STRING_MAX_BYTES - 1] = 'b';
    longest[STOP_STRING_MAX_BYTES] = '\0';
    CHECK(stop_strings_create(&s, strings, 1, &err) == 0);
    memset(text, 'a', sizeof text);
    for (uint64_t cuts = 0; cuts < 3; cuts++) {          /* whole, and in pieces of 64 */
        text[9000] = 'b';
        CHECK(stream_is_right(strings, 1, text, sizeof text, cuts << 62, s, &out));
        CHECK(out.len == 9001 - STOP_STRING_MAX_BYTES);
        text[9000] = 'a';
        CHECK(stream_is_right(strings, 1, text, sizeof text, cuts << 62, s, &out));
        CHECK(out.len == sizeof text);
    }
    stop_strings_free(s);
}

static void test_stop_strings_ends(void)
{
    static shown out;
    const char *const strings[] = { "stop", "" };
    err_ctx err;
    stop_strings *s;

    CHECK(stop_strings_create(&s, strings, 2, &err) == ERR_RANGE && !s);
    CHECK_MSG(!strcmp(err.msg, "stop string 2 of 2 is empty"), "%s", err.msg);
    CHECK(stop_strings_create(&s, strings, -1, &err) == ERR_RANGE && !s);
    static const char *const cut[][2] = {        /* each would end the text inside a character */
        { "ok", "\xE2\x82" }, { "ok", "\x82\xAC" }, { "ok", "a\xC3" }, { "ok", "\xED\xA0\x80" },
    };
    for (size_t i = 0; i < ARRAY_LEN(cut); i++) {
        CHECK(stop_strings_create(&s, cut[i], 2, &err) == ERR_FORMAT && !s);
        CHECK_MSG(!strcmp(err.msg, "stop string 2 of 2 is not valid UTF-8"), "%s", err.msg);
    }

    CHECK(stop_strings_create(&s, NULL, 0, &err) == 0);         /* none: everything passes */
    CHECK(stop_strings_push(s, str_from("stop"), show, &out) == 0 && out.len == 4);
    CHECK(stop_strings_push(s, str_from(""), show, &out) == 0 && out.n_call == 1);
    out.answer = -9;
    CHECK(stop_strings_push(s, str_from("x"), show, &out) == -9);
    CHECK(stop_strings_push(s, str_from("x"), show, &out) == -9 && out.n_call == 2);
    CHECK(stop_strings_end(s, show, &out) == -9);
    stop_strings_free(s);

    out = (shown){ .answer = 1 };        /* only < 0 means anything */
    CHECK(stop_strings_create(&s, strings, 1, &err) == 0);
    CHECK(stop_strings_push(s, str_from("a st"), show, &out) == 0 && out.len == 2);
    CHECK(stop_strings_push(s, str_from("op b"), show, &out) == 1 && out.len == 2);
    CHECK(stop_strings_push(s, str_from("more"), show, &out) == 1 && out.len == 2);
    CHECK(stop_strings_end(s, show, &out) == 1 && out.len == 2 && out.n_call == 1);
    CHECK(stop_strings_which(s) == 0);
    stop_strings_reset(s);
    CHECK(stop_strings_which(s) == -1);
    CHECK(stop_strings_push(s, str_from("op st"), show, &out) == 0 && out.len == 5);
    CHECK(stop_strings_end(s, show, &out) == 0 && out.len == 7 && !memcmp(out.text, "a op st", 7));
    stop_strings_reset(s);
    CHECK(stop_strings_push(s, str_from("st"), show, &out) == 0);
    out.answer = -4;
    CHECK(stop_strings_push(s, str_from("x stop"), show, &out) == -4);
    CHECK(stop_strings_push(s, str_from("x"), show, &out) == -4 && stop_strings_end(s, show, &out) == -4);
    stop_strings_free(s);
}

static void test_memory(void)
{
    const char *const strings[] = { "a", "bc" };
    err_ctx err;
    stop_strings *s = NULL;
    int n = 0, rc;

    do {
        mem_fail_after(++n);
        rc = stop_strings_create(&s, strings, 2, &err);
        mem_fail_after(0);
        CHECK(rc == 0 ? s != NULL : rc == ERR_NOMEM && !s);
    } while (rc < 0 && n < 50);
    CHECK_MSG(n == 5, "%d allocations", n - 1);
    stop_strings_free(s);
    stop_strings_free(NULL);
}

int main(int argc, char **argv)
{
    test_begin("stop_strings", argc, argv);
    test_streams();
    test_random_streams();
    test_long_stops();
    test_stop_strings_ends();
    test_memory();
    return test_end();
}
