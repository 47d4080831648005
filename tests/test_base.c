/* test_base.c - errors, escaping, UTF-8, sizes and the allocator's test seams. */
#include <errno.h>
#include <string.h>

#include "loader/base.h"
#include "tests/test.h"

static void test_errors(void)
{
    err_ctx err;
    char long_text[2000];
    CHECK(err_set(&err, ERR_RANGE, "x = %d", 7) == ERR_RANGE && err.code == ERR_RANGE);
    CHECK(strcmp(err.msg, "x = 7") == 0);
    CHECK(err_prefix(&err, ERR_RANGE, "file %s", "a") == ERR_RANGE &&
          !strcmp(err.msg, "file a: x = 7"));
    errno = ENOENT;
    CHECK(err_sys(&err, "open %s", "b") == ERR_IO &&
          !strcmp(err.msg, "open b: No such file or directory"));
    CHECK(err_set(NULL, ERR_IO, "no error context") == ERR_IO);
    CHECK(err_prefix(NULL, -3, "no context") == -3);
    memset(long_text, 'a', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    err_set(&err, ERR_IO, "%s", long_text);
    CHECK(strlen(err.msg) == sizeof err.msg - 1);
    err_prefix(&err, ERR_IO, "p");
    CHECK(strlen(err.msg) == sizeof err.msg - 1 && !strncmp(err.msg, "p: aaa", 6));
}

static const struct {
    const char *bytes;
    size_t n;
    int len;
    uint32_t cp;
    const char *why;
} sequences[] = {
    { "A", 1, 1, 'A', "ASCII" },
    { "\0", 1, 1, 0, "NUL is a character" },
    { "\xC2\x80", 2, 2, 0x80, "smallest of two" },
    { "\xDF\xBF", 2, 2, 0x7FF, "largest of two" },
    { "\xE0\xA0\x80", 3, 3, 0x800, "smallest of three" },
    { "\xEF\xBF\xBF", 3, 3, 0xFFFF, "largest of three" },
    { "\xF0\x90\x80\x80", 4, 4, 0x10000, "smallest of four" },
    { "\xF4\x8F\xBF\xBF", 4, 4, 0x10FFFF, "largest" },
    { "", 0, 0, 0, "nothing" },
    { "\x80", 1, 0, 0, "continuation alone" },
    { "\xC0\xAF", 2, 0, 0, "overlong of two" },
    { "\xC1\xBF", 2, 0, 0, "overlong of two, last" },
    { "\xE0\x9F\xBF", 3, 0, 0, "overlong of three" },
    { "\xF0\x8F\xBF\xBF", 4, 0, 0, "overlong of four" },
    { "\xED\xA0\x80", 3, 0, 0, "surrogate" },
    { "\xF4\x90\x80\x80", 4, 0, 0, "past 10FFFF" },
    { "\xF5\x80\x80\x80", 4, 0, 0, "F5" },
    { "\xE2\x82", 2, 0, 0, "cut" },
    { "\xE2\x28\xA1", 3, 0, 0, "bad continuation" },
};

static void test_utf8(void)
{
    for (size_t i = 0; i < ARRAY_LEN(sequences); i++) {
        uint32_t cp = 0;
        const int n = utf8_decode(&cp, (const uint8_t *)sequences[i].bytes, sequences[i].n);
        CHECK_MSG(n == sequences[i].len && (n == 0 || cp == sequences[i].cp),
                  "%s: %d bytes, U+%04X", sequences[i].why, n, cp);
    }
}

static const struct { const char *text; size_t len, cap; const char *want, *why; } escapes[] = {
    { "plain", 5, 64, "plain", "unchanged" },
    { "a\nb\x1b", 4, 64, "a\\x0Ab\\x1B", "control characters" },
    { "\xC3\xA9", 2, 64, "\xC3\xA9", "valid UTF-8 stays" },
    { "\xC3(", 2, 64, "\\xC3(", "invalid UTF-8" },
    { "\xC2\x85", 2, 64, "\\xC2\\x85", "C1 control" },
    { "\xE2\x80\xAE", 3, 64, "\\xE2\\x80\\xAE", "right-to-left override" },
    { "\xE2\x80\xA8", 3, 64, "\\xE2\\x80\\xA8", "line separator" },
    { "\xE2\x80\xA7", 3, 64, "\xE2\x80\xA7", "its harmless neighbour" },
    { "a\0b", 3, 64, "a\\x00b", "embedded NUL" },
    { "abcdefghij", 10, 8, "abcd...", "cut" },
    { "abcd", 4, 8, "abcd", "fits exactly" },
    { "ab", 2, 1, "", "room for the terminator only" },
    { "", 0, 64, "", "empty" },
};

static void test_escape(void)
{
    for (size_t i = 0; i < ARRAY_LEN(escapes); i++) {
        char buf[64];
        const char *got = str_escape(buf, escapes[i].cap,
                                     (str_view){ escapes[i].text, escapes[i].len });
        CHECK_MSG(strcmp(got, escapes[i].want) == 0, "%s: '%s'", escapes[i].why, got);
    }
}

static void test_sizes(void)
{
    uint64_t v;
    CHECK(size_mul(&v, 1ull << 32, (1ull << 32) - 1) && v == 0xFFFFFFFF00000000u);
    CHECK(!size_mul(&v, 1ull << 32, 1ull << 32));
    CHECK(size_add(&v, UINT64_MAX - 1, 1) && v == UINT64_MAX);
    CHECK(!size_add(&v, UINT64_MAX, 1));
    CHECK(size_align(0, 32) == 0 && size_align(1, 32) == 32 && size_align(64, 32) == 64);
}

static void test_strings(void)
{
    const str_view a = { "a\0b", 3 }, b = { "a\0c", 3 };
    CHECK(!str_eq(a, b) && str_eq(a, a) && !str_is(a, "a"));
    CHECK(str_starts(str_from("blk.7"), "blk.") && !str_starts(str_from("bl"), "blk."));
    CHECK(str_ends(str_from("x.weight"), ".weight") && !str_ends(str_from("t"), ".weight"));
    CHECK(str_hash(a) != str_hash(b) && str_hash(a) == str_hash(a));
    CHECK(str_eq((str_view){ NULL, 0 }, str_from("")));
}

static void test_compare(void)
{
    const str_view a = { "a\0b", 3 }, b = { "a\0c", 3 };
    CHECK(str_compare(a, b) < 0 && str_compare(b, a) > 0 && str_compare(a, a) == 0);
    CHECK(str_compare(str_from("ab"), str_from("abc")) < 0);
    CHECK(str_compare(str_from("b"), str_from("abc")) > 0);
    CHECK(str_compare((str_view){ NULL, 0 }, str_from("")) == 0);
    CHECK(str_compare(str_from("\x80"), str_from("a")) > 0);      /* bytes are unsigned */
}

static void test_textbuf(void)
{
    textbuf b = { 0 };
    char *at;

    textbuf_put(&b, (str_view){ NULL, 0 });
    CHECK(b.len == 0 && !b.ptr);
    textbuf_str(&b, "hello ");
    for (int i = 0; i < 200; i++) textbuf_put(&b, (str_view){ "ab\0", 3 });
    CHECK(b.len == 606 && b.cap >= 606 && memcmp(b.ptr + 600, "ab\0ab\0", 6) == 0);
    textbuf_drop(&b, 6);
    CHECK(b.len == 600 && memcmp(b.ptr, "ab\0", 3) == 0);
    at = textbuf_room(&b, 5000);
    CHECK(at == b.ptr + 600 && b.len == 600 && b.cap >= 5600);
    mem_guard(true);
    textbuf_str(&b, "fits");
    CHECK(!b.failed && textbuf_view(&b).len == 604);
    CHECK(!textbuf_room(&b, b.cap) && b.failed && b.len == 604);
    mem_guard(false);
    textbuf_str(&b, "dropped");
    CHECK(b.failed && b.len == 604);
    textbuf_free(&b);
    CHECK(!b.ptr && !b.failed && b.cap == 0);
}

static void test_allocator(void)
{
    void *p, *q;
    mem_fail_after(2);
    p = mem_alloc(1);
    q = mem_zalloc(1);
    CHECK(p && !q);
    q = mem_alloc(1);
    CHECK(q);
    mem_fail_after(0);
    mem_guard(true);
    CHECK(!mem_alloc(1) && !mem_resize(p, 2, 1));
    mem_guard(false);
    CHECK(!mem_array(SIZE_MAX / 2, 3));
    mem_free(p);
    mem_free(q);
    p = mem_strdup_n("ab\0c", 4);
    CHECK(p && memcmp(p, "ab\0c", 5) == 0);
    mem_free(p);
}

static char last_line[64];
static void keep_line(void *ctx, const char *line)
{
    (void)ctx;
    strncpy(last_line, line, sizeof last_line - 1);
}

static void test_log(void)
{
    log_line("dropped");
    log_set_sink(keep_line, NULL);
    log_line("xfer: layer=%d", 12);
    log_set_sink(NULL, NULL);
    log_line("dropped too");
    CHECK(strcmp(last_line, "xfer: layer=12") == 0);
}

int main(int argc, char **argv)
{
    test_begin("base", argc, argv);
    test_errors();
    test_utf8();
    test_escape();
    test_sizes();
    test_strings();
    test_compare();
    test_textbuf();
    test_allocator();
    test_log();
    return test_end();
}
