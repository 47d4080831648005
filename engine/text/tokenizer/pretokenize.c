/* pretokenize.c - the cutters, and the table of their names.
 *
 * Each cutter implements the regular expression quoted above it. Invariant: a cutter looks at most
 * one run of one set of classes past the piece that it returns, and the next piece takes that run.
 * So each byte is scanned a few times at most. The caller handles normalization and specials. */
#include "engine/text/tokenizer/pretokenize.h"

#include <stdio.h>
#include <string.h>

#include "engine/text/tokenizer/unicode.h"
#include "loader/bytes.h"

#define ONES 0x0101010101010101u
#define HIGH 0x8080808080808080u

enum {
    ANY_LETTER = CLASS_UPPER | CLASS_LOWER | CLASS_LETTER,
    ANY_SPACE = CLASS_SPACE | CLASS_NEWLINE,
    PREFIX = CLASS_MARK | CLASS_OTHER | CLASS_SPACE,     /* [^\r\n\p{L}\p{N}] */
    HEAD = CLASS_UPPER | CLASS_LETTER | CLASS_MARK,      /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    TAIL = CLASS_LOWER | CLASS_LETTER | CLASS_MARK       /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
};

/* Returns the class of the character at p and sets *len; both are 0 at the end of the text. */
static inline unsigned class_at(size_t *len, const uint8_t *p, const uint8_t *end)
{
    uint32_t cp;
    *len = 0;
    if (p >= end) return 0;
    *len = 1;
    if (*p < 0x80) return unicode_ascii[*p];
    *len = utf8_read(&cp, p);
    return unicode_class(cp);
}

/* Returns how many bytes of x, from the lowest up to the first other one, are lower-case ASCII
 * letters. If fold has bit 0x20 in each byte, capitals count as well. */
static inline size_t letters_in_word(uint64_t x, uint64_t fold)
{
    const uint64_t low = (x | fold) & ~HIGH;
    const uint64_t from_a = low + (0x80 - 'a') * ONES;           /* high bit: 'a' and above */
    const uint64_t above_z = low + (0x80 - 'z' - 1) * ONES;      /* high bit: above 'z' */
    const uint64_t stop = ~(from_a & ~above_z & ~x) & HIGH;
    return stop ? (size_t)__builtin_ctzll(stop) / 8 : 8;
}

/* Returns the end of the run at p of characters whose class is in set. */
static inline const uint8_t *run_of(const uint8_t *p, const uint8_t *end, unsigned set)
{
    if (set & CLASS_LOWER) {             /* words: eight letters at a time */
        const uint64_t fold = set & CLASS_UPPER ? 0x20 * ONES : 0;
        while (end - p >= 8) {
            const size_t n = letters_in_word(load_u64(p), fold);
            p += n;
            if (n < 8) break;
        }
    }
    for (;;) {
        size_t len;
        if (!(class_at(&len, p, end) & set)) return p;
        p += len;
    }
}

/* Returns the length of (?i:'s|'t|'re|'ve|'m|'ll|'d) at p, or 0. Unicode case folding makes U+017F,
 * the long s, an s. */
static inline size_t contraction(const uint8_t *p, const uint8_t *end)
{
    if (end - p < 2 || *p != '\'') return 0;
    switch (p[1] | 0x20) {
    case 's': case 't': case 'm': case 'd':
        return 2;
    case 'r': case 'v':
        return end - p > 2 && (p[2] | 0x20) == 'e' ? 3 : 0;
    case 'l':
        return end - p > 2 && (p[2] | 0x20) == 'l' ? 3 : 0;
    default:
        return end - p > 2 && p[1] == 0xC5 && p[2] == 0xBF ? 3 : 0;
    }
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : cuts the white space at p after its last newline. Without a newline it
 * takes all white space at the end of the text; elsewhere all but the last character, which belongs
 * to the next piece. */
static const uint8_t *cut_space(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *q = p, *last = p, *behind_newline = NULL;
    for (;;) {
        size_t len;
        const unsigned c = class_at(&len, q, end);
        if (!(c & ANY_SPACE)) break;
        last = q;
        q += len;
        if (c & CLASS_NEWLINE) behind_newline = q;
    }
    if (behind_newline) return behind_newline;
    return q == end || last == p ? q : last;
}

/* The rest of \p{N}{1,3}: up to two more numbers at p. */
static inline const uint8_t *two_more_numbers(const uint8_t *p, const uint8_t *end)
{
    for (int i = 0; i < 2; i++) {
        size_t len;
        if (!(class_at(&len, p, end) & CLASS_NUMBER)) break;
        p += len;
    }
    return p;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+
 * word is \p{L} and punct the rest; qwen35 moves \p{M} from punct to word. glm4 and Llama 3 have
 * \p{N}{1,3} for \p{N}: by_three. */
static inline const uint8_t *cut_qwen(const uint8_t *p, const uint8_t *end, unsigned word,
                                      unsigned punct, bool by_three)
{
    size_t len, next_len;
    const unsigned c = class_at(&len, p, end);
    const uint8_t *const next = p + len;
    if (c & word) return run_of(next, end, word);
    if (c & CLASS_NUMBER) return by_three ? two_more_numbers(next, end) : next;
    if (*p == '\'' && (len = contraction(p, end)) > 0) return p + len;
    const unsigned d = class_at(&next_len, next, end);
    if ((c & PREFIX) && (d & word)) return run_of(next, end, word);
    if ((c & punct) || (*p == ' ' && (d & punct)))
        return run_of(run_of(next, end, punct), end, CLASS_NEWLINE);
    return cut_space(p, end);
}

/* Returns the end of [HEAD]*[TAIL]+ at p, or NULL. If no lower-case letter follows the run of HEAD,
 * the match ends after the run's last character that is also in TAIL, that is before its trailing
 * capitals. */
static inline const uint8_t *word_end(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *shared_end = NULL;
    for (;;) {
        size_t len;
        const unsigned c = class_at(&len, p, end);
        if (c & CLASS_LOWER) return run_of(p, end, TAIL);
        if (!(c & HEAD)) return shared_end;
        p += len;
        if (c & (HEAD & TAIL)) shared_end = p;
    }
}

/* [^\r\n\p{L}\p{N}]?[HEAD]*[TAIL]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
 * [^\r\n\p{L}\p{N}]?[HEAD]+[TAIL]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
 * \p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static inline const uint8_t *cut_gpt4o(const uint8_t *p, const uint8_t *end)
{
    size_t len, next_len;
    const unsigned c = class_at(&len, p, end);
    const uint8_t *const next = p + len;
    const uint8_t *q;
    const unsigned d = class_at(&next_len, next, end);

    if ((c & PREFIX) && (d & (HEAD | TAIL)) && (q = word_end(next, end))) goto word;
    if ((c & (HEAD | TAIL)) && (q = word_end(p, end))) goto word;
    /* if no word matched, a run of HEAD has only capitals, so TAIL* matches nothing more */
    if ((c & PREFIX) && (d & HEAD)) { q = run_of(next, end, HEAD); goto word; }
    if (c & HEAD) { q = run_of(next, end, HEAD); goto word; }

    if (c & CLASS_NUMBER) return two_more_numbers(next, end);
    if ((c & (CLASS_MARK | CLASS_OTHER)) || (*p == ' ' && (d & (CLASS_MARK | CLASS_OTHER)))) {
        q = run_of(next, end, CLASS_MARK | CLASS_OTHER);
        while (q < end && (*q == '\r' || *q == '\n' || *q == '/')) q++;
        return q;
    }
    return cut_space(p, end);
word:
    return q + contraction(q, end);
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * GPT-2's rule: contractions in lower case only; a newline is ordinary white space. */
static inline const uint8_t *cut_gpt2(const uint8_t *p, const uint8_t *end)
{
    size_t len, next_len;
    unsigned c = class_at(&len, p, end);
    const uint8_t *next = p + len;
    if (*p == '\'' && end - p >= 2 && !(p[1] & 0x80) && (p[1] & 0x20) &&
        (len = contraction(p, end)) > 0 && (p[len - 1] & 0x20))
        return p + len;
    if (*p == ' ') {
        const unsigned d = class_at(&next_len, next, end);
        if (d && !(d & ANY_SPACE)) c = d, next += next_len;
    }
    if (c & ANY_LETTER) return run_of(next, end, ANY_LETTER);
    if (c & CLASS_NUMBER) return run_of(next, end, CLASS_NUMBER);
    if (!(c & ANY_SPACE)) return run_of(next, end, CLASS_MARK | CLASS_OTHER);
    const uint8_t *last = p;             /* last white space, which belongs to the next piece */
    while (class_at(&len, next, end) & ANY_SPACE) last = next, next += len;
    return next == end || last == p ? next : last;
}

static inline const uint8_t *cut_qwen2(const uint8_t *p, const uint8_t *end)
{
    return cut_qwen(p, end, ANY_LETTER, CLASS_MARK | CLASS_OTHER, false);
}

static inline const uint8_t *cut_qwen35(const uint8_t *p, const uint8_t *end)
{
    return cut_qwen(p, end, ANY_LETTER | CLASS_MARK, CLASS_OTHER, false);
}

static inline const uint8_t *cut_glm4(const uint8_t *p, const uint8_t *end)
{
    return cut_qwen(p, end, ANY_LETTER, CLASS_MARK | CLASS_OTHER, true);
}

static inline const uint8_t *cut_nothing(const uint8_t *p, const uint8_t *end)
{
    (void)p;
    return end;
}

/* [^\n]+|\n+ */
static inline const uint8_t *cut_line(const uint8_t *p, const uint8_t *end)
{
    if (*p != '\n') {
        p = memchr(p, '\n', (size_t)(end - p));
        return p ? p : end;
    }
    while (p < end && *p == '\n') p++;
    return p;
}

/* \n+| *[^ \n]*, not empty */
static inline const uint8_t *cut_word(const uint8_t *p, const uint8_t *end)
{
    if (*p == '\n') return cut_line(p, end);
    while (p < end && *p == ' ') p++;
    while (p < end && *p != ' ' && *p != '\n') p++;
    return p;
}

/* One loop for each rule, so that the compiler inlines its cutter. */
#define CUT_ALL(cut)                                                                             \
    static size_t all_##cut(size_t *lens, size_t cap, const uint8_t *p, const uint8_t *end)      \
    {                                                                                            \
        size_t n_piece = 0;                                                                      \
        while (n_piece < cap && p < end) {                                                       \
            const uint8_t *const q = cut(p, end);                                                \
            lens[n_piece++] = (size_t)(q - p);                                                   \
            p = q;                                                                               \
        }                                                                                        \
        return n_piece;                                                                          \
    }
CUT_ALL(cut_qwen2)
CUT_ALL(cut_qwen35)
CUT_ALL(cut_glm4)
CUT_ALL(cut_gpt4o)
CUT_ALL(cut_gpt2)
CUT_ALL(cut_nothing)
CUT_ALL(cut_line)
CUT_ALL(cut_word)

enum { NFC = 1, WHOLE = 2, BOS = 4, NO_BOS = 8 };

static const struct {
    const char *name;
    size_t (*cut)(size_t *lens, size_t cap, const uint8_t *p, const uint8_t *end);
    unsigned asks;
} rules[N_PRETOKENIZER] = {
    [PRE_QWEN2] = { "qwen2", all_cut_qwen2, NFC },
    [PRE_GPT4O] = { "gpt-4o", all_cut_gpt4o, WHOLE },
    [PRE_QWEN35] = { "qwen35", all_cut_qwen35, NFC },
    [PRE_GLM4] = { "glm4", all_cut_glm4, NO_BOS },
    [PRE_CHATGLM] = { "chatglm-bpe", all_cut_glm4, NO_BOS },
    [PRE_DBRX] = { "dbrx", all_cut_glm4, 0 },
    [PRE_SMAUG] = { "smaug-bpe", all_cut_glm4, 0 },
    [PRE_LLAMA3] = { "llama-bpe", all_cut_glm4, WHOLE | BOS },
    [PRE_OLMO] = { "olmo", all_cut_gpt2, NFC },
    [PRE_WHOLE] = { "none", all_cut_nothing, 0 },
    [PRE_LINES] = { "lines", all_cut_line, 0 },
    [PRE_WORDS] = { "words", all_cut_word, 0 },
};

size_t pretokenize(pretokenizer pre, size_t *lens, size_t cap, const uint8_t *p, size_t n)
{
    return rules[pre].cut(lens, cap, p, p + n);
}

const char *pretokenizer_name(pretokenizer pre) { return rules[pre].name; }

bool pretokenizer_find(pretokenizer *out, str_view name)
{
    for (int i = 0; i < N_PRE_NAMED; i++) {
        if (!str_is(name, rules[i].name)) continue;
        *out = (pretokenizer)i;
        return true;
    }
    return false;
}

const char *pretokenizer_names(char *dst, size_t cap)
{
    size_t used = 0;
    for (int i = 0; i < N_PRE_NAMED && used < cap; i++)
        used += (size_t)snprintf(dst + used, cap - used, i ? ", %s" : "%s", rules[i].name);
    return dst;
}

bool pretokenizer_wants_nfc(pretokenizer pre) { return rules[pre].asks & NFC; }

bool pretokenizer_takes_whole(pretokenizer pre)
{
    return rules[pre].asks & WHOLE;
}

bool pretokenizer_wants_bos(pretokenizer pre) { return rules[pre].asks & BOS; }

bool pretokenizer_forbids_bos(pretokenizer pre)
{
    return rules[pre].asks & NO_BOS;
}
