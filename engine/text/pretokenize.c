/* pretokenize.c - the cutters for qwen2, qwen35 and gpt-4o.
 *
 * Written from the models' expressions, quoted above each cutter. The invariant behind the forward
 * scans: a cutter looks at most one run of one set of classes past the piece it returns, and the
 * next piece takes that run, so no byte is scanned more than a few times. Normalization and special
 * tokens are the caller's business. */
#include "engine/text/pretokenize.h"

#include <assert.h>

#include "engine/text/unicode.h"
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

/* Class and length of the character at p; 0 and 0 at the end of the text. */
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

/* How many of the eight bytes in x, lowest first, are ASCII letters; bits 0x20 in fold make
 * capitals count as well. */
static inline size_t letters_in_word(uint64_t x, uint64_t fold)
{
    const uint64_t low = (x | fold) & ~HIGH;
    const uint64_t from_a = low + (0x80 - 'a') * ONES;           /* high bit: 'a' and above */
    const uint64_t above_z = low + (0x80 - 'z' - 1) * ONES;      /* high bit: above 'z' */
    const uint64_t stop = ~(from_a & ~above_z & ~x) & HIGH;
    return stop ? (size_t)__builtin_ctzll(stop) / 8 : 8;
}

/* The end of the run of characters of the classes in set that starts at p. */
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

/* Length of (?i:'s|'t|'re|'ve|'m|'ll|'d) at p, or 0. Folding case by Unicode's rules makes U+017F,
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

/* \s*[\r\n]+|\s+(?!\S)|\s+ : the white space at p up to its last newline; without one, all of it at
 * the end of the text, else all but the last character, which goes with what follows. */
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

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+
 * word is \p{L} and punct the rest; qwen35 moves \p{M} from punct to word. */
static inline const uint8_t *cut_qwen(const uint8_t *p, const uint8_t *end, unsigned word,
                                      unsigned punct)
{
    size_t len, next_len;
    const unsigned c = class_at(&len, p, end);
    const uint8_t *const next = p + len;
    if (c & word) return run_of(next, end, word);
    if (c & CLASS_NUMBER) return next;
    if (*p == '\'' && (len = contraction(p, end)) > 0) return p + len;
    const unsigned d = class_at(&next_len, next, end);
    if ((c & PREFIX) && (d & word)) return run_of(next, end, word);
    if ((c & punct) || (*p == ' ' && (d & punct)))
        return run_of(run_of(next, end, punct), end, CLASS_NEWLINE);
    return cut_space(p, end);
}

/* [HEAD]*[TAIL]+ at p: NULL if it does not match. If no lower-case letter follows the run of HEAD,
 * the run gives back what TAIL does not have: the capitals after its last other character. */
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
    /* where no word matched, a run of HEAD holds capitals only: TAIL* adds nothing to it */
    if ((c & PREFIX) && (d & HEAD)) { q = run_of(next, end, HEAD); goto word; }
    if (c & HEAD) { q = run_of(next, end, HEAD); goto word; }

    if (c & CLASS_NUMBER) {
        if (!(d & CLASS_NUMBER)) return next;
        q = next + next_len;
        return class_at(&len, q, end) & CLASS_NUMBER ? q + len : q;
    }
    if ((c & (CLASS_MARK | CLASS_OTHER)) || (*p == ' ' && (d & (CLASS_MARK | CLASS_OTHER)))) {
        q = run_of(next, end, CLASS_MARK | CLASS_OTHER);
        while (q < end && (*q == '\r' || *q == '\n' || *q == '/')) q++;
        return q;
    }
    return cut_space(p, end);
word:
    return q + contraction(q, end);
}

static const uint8_t *cut_qwen2(const uint8_t *p, const uint8_t *end)
{
    return cut_qwen(p, end, ANY_LETTER, CLASS_MARK | CLASS_OTHER);
}

static const uint8_t *cut_qwen35(const uint8_t *p, const uint8_t *end)
{
    return cut_qwen(p, end, ANY_LETTER | CLASS_MARK, CLASS_OTHER);
}

#define CUT_ALL(cut)                                     \
    while (n_piece < cap && p < end) {                   \
        const uint8_t *const q = cut(p, end);            \
        lens[n_piece++] = (size_t)(q - p);               \
        p = q;                                           \
    }

size_t pretokenize(pretokenizer pre, size_t *lens, size_t cap, const uint8_t *p, size_t n)
{
    const uint8_t *const end = p + n;
    size_t n_piece = 0;
    switch (pre) {
    case PRE_QWEN2: CUT_ALL(cut_qwen2) break;
    case PRE_GPT4O: CUT_ALL(cut_gpt4o) break;
    case PRE_QWEN35: CUT_ALL(cut_qwen35) break;
    default: assert(!"a pretokenizer");
    }
    return n_piece;
}

static const char *const names[N_PRETOKENIZER] = { "qwen2", "gpt-4o", "qwen35" };

const char *pretokenizer_name(pretokenizer pre)
{
    return names[pre];
}

bool pretokenizer_find(pretokenizer *out, str_view name)
{
    for (int i = 0; i < N_PRETOKENIZER; i++) {
        if (!str_is(name, names[i])) continue;
        *out = (pretokenizer)i;
        return true;
    }
    return false;
}

bool pretokenizer_wants_nfc(pretokenizer pre)
{
    return pre != PRE_GPT4O;
}
