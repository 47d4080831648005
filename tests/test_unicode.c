/* test_unicode.c - character classes, NFC, the cutters, and bytes to text that may be shown.
 *
 * The cutters are tested here directly because ids hide some of their mistakes: the vocabularies
 * were made with the same cuts. Expected cuts are what the published expressions give in a regular
 * expression engine. */
#include "engine/text/tokenizer/pretokenize.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/tokenizer/unicode.h"
#include "tests/case_file.h"

#include <stdio.h>
#include <string.h>

static str_view view(const char *s) { return str_from(s); }

static str_view nfc_of(str_view s)
{
    byte_buf out = { 0 };
    nfc_scratch scratch = { 0 };
    err_ctx err;
    CHECK(nfc_append(&out, &scratch, (const uint8_t *)s.ptr, s.len, &err) == 0);
    nfc_scratch_free(&scratch);
    return (str_view){ (char *)out.ptr, out.n };
}

/* ---- character classes, NFC ------------------------------------------------------------------ */

static void test_classes(void)
{
    static const struct { uint32_t cp; unsigned want; const char *why; } rows[] = {
        { 'A', CLASS_UPPER, "Lu" }, { 'z', CLASS_LOWER, "Ll" }, { 0x1C5, CLASS_UPPER, "Lt" },
        { 0x2B0, CLASS_LETTER, "Lm" }, { 0x4E2D, CLASS_LETTER, "Lo" }, { 0x301, CLASS_MARK, "Mn" },
        { 0x903, CLASS_MARK, "Mc" }, { '7', CLASS_NUMBER, "Nd" }, { 0xB2, CLASS_NUMBER,
          "superscript" },
        { 0x2167, CLASS_NUMBER, "Roman numeral" }, { 0x85, CLASS_SPACE, "NEL is white space" },
        { 0x3000, CLASS_SPACE, "ideographic space" }, { '\n', CLASS_NEWLINE, "LF" },
        { '\r', CLASS_NEWLINE, "CR" }, { 0xFEFF, CLASS_OTHER, "BOM is no white space" },
        { 0x180E, CLASS_OTHER, "nor is U+180E" }, { 0x1C, CLASS_OTHER, "nor are 1C to 1F" },
        { 0x10FFFF, CLASS_OTHER, "last code point" }, { 0x10D4A, CLASS_LETTER, "new in 16.0" },
    };
    long letters = 0, numbers = 0, marks = 0, spaces = 0, one_bit = 0;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        CHECK_MSG(unicode_class(rows[i].cp) == rows[i].want, "U+%04X %s: class %u, expected %u",
                  rows[i].cp, rows[i].why, unicode_class(rows[i].cp), rows[i].want);
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        const unsigned c = unicode_class(cp);
        letters += (c & (CLASS_UPPER | CLASS_LOWER | CLASS_LETTER)) != 0;
        numbers += (c & CLASS_NUMBER) != 0;
        marks += (c & CLASS_MARK) != 0;
        spaces += (c & (CLASS_SPACE | CLASS_NEWLINE)) != 0;
        one_bit += c && (c & (c - 1)) == 0 && (cp >= 128 || unicode_ascii[cp] == c);
    }
    CHECK_MSG(letters == 141028 && numbers == 1911 && marks == 2501 && spaces == 25,
              "Unicode 16.0 has 141028 L, 1911 N, 2501 M, 25 white; tables %ld, %ld, %ld, %ld",
              letters, numbers, marks, spaces);
    CHECK_MSG(one_bit == 0x110000, "%ld code points have one class", one_bit);
}

static void check_nfc(const char *in, const char *want, const char *why)
{
    str_view got = nfc_of(view(in));
    char a[100], b[100], c[100];
    CHECK_MSG(str_eq(got, view(want)), "NFC of '%s' is '%s', expected '%s': %s", ESC(a, view(in)),
              ESC(b, got), ESC(c, view(want)), why);
    mem_free((void *)got.ptr);
    got = nfc_of(view(want));
    CHECK_MSG(str_eq(got, view(want)), "NFC of '%s' changes again", ESC(c, view(want)));
    mem_free((void *)got.ptr);
}

/* Every row of the data: what should recompose does, what must not does not. */
static void test_nfc_data(void)
{
    char path[512];
    size_t bytes;
    int n = 0;
    char *data = test_read_file(test_path(path, sizeof path, "%s/tokenizer/nfc-data.tsv",
                                          test_unpacked()), &bytes);
    for (char *line = data, *next; line && *line; line = next) {
        unsigned cp, a, b;
        char flag = 0;
        uint8_t whole[5] = { 0 }, parts[9] = { 0 };
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        else next = line + strlen(line);
        if (line[0] != 'D') continue;
        const bool two = sscanf(line, "D\t%x\t%x\t%x\t%c", &cp, &a, &b, &flag) == 4;
        if (!two && sscanf(line, "D\t%x\t%x\t%c", &cp, &a, &flag) != 3) continue;
        n++;
        utf8_write(whole, cp);
        size_t len = utf8_write(parts, a);
        if (two) len += utf8_write(parts + len, b);
        str_view one = nfc_of(view((char *)whole)), other = nfc_of((str_view){ (char *)parts,
                                                                   len });
        CHECK_MSG(str_eq(one, other), "U+%04X and its decomposition normalize differently", cp);
        CHECK_MSG(str_eq(one, view((char *)whole)) == (flag == 'P'),
                  "U+%04X %s its own NFC", cp, flag == 'P' ? "is" : "is not");
        mem_free((void *)one.ptr);
        mem_free((void *)other.ptr);
    }
    CHECK_MSG(n == 2061, "%d decompositions, expected 2061", n);
    mem_free(data);
}

static void test_nfc(void)
{
    check_nfc("plain ASCII text, long enough for words", "plain ASCII text, long enough for words",
              "");
    check_nfc("e\u0301", "\u00e9", "letter and accent");
    check_nfc("12345678e\u0301", "12345678\u00e9", "after a run of eight bytes");
    check_nfc("a\u0323\u0302", "\u1ead", "two marks, in order");
    check_nfc("a\u0302\u0323", "\u1ead", "two marks, out of order");
    check_nfc("\u00e2\u0323", "\u1ead", "composed letter, then a mark that goes below it");
    check_nfc("a\u0301\u0301", "\u00e1\u0301", "the second accent is blocked");
    check_nfc("\u1100\u1161", "\uac00", "Hangul L V");
    check_nfc("\u1100\u1161\u11a8", "\uac01", "Hangul L V T");
    check_nfc("\uac00\u11a8", "\uac01", "Hangul LV T");
    check_nfc("\uac01\u11a8", "\uac01\u11a8", "Hangul LVT takes no second T");
    check_nfc("\uac00\u11a7", "\uac00\u11a7", "U+11A7 is no trailing consonant");
    check_nfc("\u0958", "\u0915\u093c", "excluded from composition");
    check_nfc("\u212b", "\u00c5", "singleton");
    check_nfc("\u2f800", "\u2f800", "U+2F80 and a digit");
    check_nfc("\U0002f800", "\u4e3d", "compatibility ideograph");
    check_nfc("\u0e01\u0e38\u0e48", "\u0e01\u0e38\u0e48", "marks in order stay");
    check_nfc("\u0e01\u0e48\u0e38", "\u0e01\u0e38\u0e48", "out of order, though none composes");
    check_nfc("a\u0316\u0323", "a\u0316\u0323",
              "a + U+0323 compose, but one of its class is between");
    check_nfc("\u0301e\u0301", "\u0301\u00e9", "starts with a mark");
    check_nfc(">\u0338", "\u226f", "punctuation composes too");
    test_nfc_data();

    /* a long run of marks: sorted, stable, not in quadratic time */
    enum { N = 100000 };
    char *in = mem_alloc(4 * N + 2), *want = mem_alloc(4 * N + 2);
    if (!in || !want) return;
    in[0] = want[0] = 'q';
    for (int i = 0; i < N; i++) {
        memcpy(in + 1 + 4 * i, "\u0301\u0323", 4);               /* above, below */
        memcpy(want + 1 + 2 * i, "\u0323", 2);
        memcpy(want + 1 + 2 * N + 2 * i, "\u0301", 2);
    }
    str_view got = nfc_of((str_view){ in, 4 * N + 1 });
    CHECK_MSG(str_eq(got, (str_view){ want, 4 * N + 1 }), "%d marks are not in order", 2 * N);
    mem_free((void *)got.ptr);
    mem_free(in);
    mem_free(want);
}

/* ---- cutters --------------------------------------------------------------------------------- */

/* pieces: the text with | where it must be cut. Asking for few at a time changes nothing. */
static void check_cut(pretokenizer pre, const char *pieces, const char *why)
{
    char joined[256], got[512], a[256], b[256];
    size_t n = 0, at = 0, used = 0, lens[3];
    for (const char *p = pieces; *p; p++)
        if (*p != '|') joined[n++] = *p;
    while (at < n) {
        const size_t k = pretokenize(pre, lens, ARRAY_LEN(lens), (const uint8_t *)joined + at,
                                     n - at);
        for (size_t i = 0; i < k; i++) {
            if (used) got[used++] = '|';
            memcpy(got + used, joined + at, lens[i]);
            used += lens[i];
            at += lens[i];
        }
        if (!CHECK(k > 0)) return;
    }
    CHECK_MSG(str_eq((str_view){ got, used }, view(pieces)), "%s cuts '%s', expected '%s': %s",
              pretokenizer_name(pre), ESC(a, ((str_view){ got, used })), ESC(b, view(pieces)), why);
}

/* The cuts of a cell, which has "\u00b7" for |. */
static const char *cuts_of(char *cell)
{
    char *to = cell;
    for (const char *p = cell; *p; p++)
        *to++ = p[0] == '\xC2' && p[1] == '\xB7' ? p++, '|' : *p;
    *to = '\0';
    return cell;
}

static void test_cutters(void)
{
    static const pretokenizer of[] = { PRE_QWEN2, PRE_GPT4O, PRE_QWEN35 };
    static case_rows rows;
    if (!case_rows_read(&rows, "cuts_qwen2.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        char **cells = rows.cells[i];
        for (size_t k = 0; k < ARRAY_LEN(of); k++)
            check_cut(of[k], strcmp(cells[k], "=") ? cuts_of(cells[k]) : cells[0], cells[3]);
    }
    case_rows_free(&rows);
}

/* What glm4 and olmo do otherwise. */
static void test_more_cutters(void)
{
    static case_rows rows;
    static const struct { pretokenizer pre; const char *pieces, *why; } others[] = {
        { PRE_WHOLE, "one two\n\nthree  ", "not cut at all" },
        { PRE_LINES, "one  two |\n\n| three", "runs of newlines" },
        { PRE_LINES, "\n|x|\n", "at both ends" },
        { PRE_WORDS, "one|  two| |\n\n| three|  ", "spaces go with the word after them" },
        { PRE_WORDS, "\u4e2d| \u6587|\n", "characters of any length" },
    };
    static const pretokenizer like_glm4[] = { PRE_GLM4, PRE_CHATGLM, PRE_DBRX, PRE_SMAUG,
                                              PRE_LLAMA3 };
    if (!case_rows_read(&rows, "cuts_glm4.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        char **cells = rows.cells[i];
        cuts_of(cells[0]);
        for (size_t k = 0; k < ARRAY_LEN(like_glm4); k++)
            check_cut(like_glm4[k], cells[0], cells[2]);
        check_cut(PRE_OLMO, cuts_of(cells[1]), cells[2]);
    }
    case_rows_free(&rows);
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        check_cut(others[i].pre, others[i].pieces, others[i].why);
}

/* ---- streaming ------------------------------------------------------------------------------- */

static void test_stream(void)
{
    static const struct { const char *tokens[4]; const char *shown[5]; const char *why; } rows[] = {
        { { "a", "b" }, { "a", "b", "" }, "plain" },
        { { "\xE4", "\xB8", "\xAD" }, { "", "", "\u4e2d", "" }, "one character in three tokens" },
        { { "x\xF0\x9F", "\x98\x80y" }, { "x", "\U0001f600y", "" }, "cut in the middle" },
        { { "\xE4\xB8", "a" }, { "", "\uFFFD\uFFFD" "a", "" }, "never completed" },
        { { "\xC0\xAF" }, { "\uFFFD\uFFFD", "" }, "overlong: nothing to wait for" },
        { { "\xE0", "\x80" }, { "", "\uFFFD\uFFFD", "" }, "overlong, seen with the second byte" },
        { { "\xED", "\xA0", "\x80" }, { "", "\uFFFD\uFFFD", "\uFFFD", "" }, "surrogate" },
        { { "\xF4", "\x90" }, { "", "\uFFFD\uFFFD", "" }, "above U+10FFFF" },
        { { "\xF5" }, { "\uFFFD", "" }, "never a lead byte" },
        { { "\xF0\x9F\x98" }, { "", "\uFFFD" }, "a tail at the end is one character" },
        { { "\xE4", "\xE4\xB8\xAD" }, { "", "\uFFFD\u4e2d", "" }, "a new lead byte" },
        { { "\xE4", "" , "\xB8\xAD" }, { "", "", "\u4e2d", "" }, "an empty token in between" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        utf8_stream s = { 0 };
        int k = 0;
        for (;; k++) {
            char got[64], a[64];
            const bool end = k == 4 || !rows[i].tokens[k];
            const size_t n = end ? utf8_stream_end(&s, got)
                                 : utf8_stream_push(&s, got, view(rows[i].tokens[k]));
            CHECK_MSG(str_eq((str_view){ got, n }, view(rows[i].shown[k])),
                      "stream, %s: step %d shows '%s'", rows[i].why, k,
                      ESC(a, ((str_view){ got, n })));
            if (end) break;
        }
    }
}

int main(int argc, char **argv)
{
    test_begin("unicode", argc, argv);
    test_classes();
    test_nfc();
    test_cutters();
    test_more_cutters();
    test_stream();
    return test_end();
}
