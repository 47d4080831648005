/* unicode.c - UTF-8 scanning and repair, and canonical composition (NFC).
 *
 * Normalization works on segments. A segment begins at a character that never combines with an
 * earlier one, so segments are independent; text that is already NFC is copied unchanged. Time is
 * linear, also for long runs of marks. The tables are in unicode_tables.c. */
#include "engine/text/tokenizer/unicode.h"

#include <string.h>

#include "loader/bytes.h"

#define ONES 0x0101010101010101u
#define HIGH 0x8080808080808080u

/* ---- UTF-8 ------------------------------------------------------------------------------- */

size_t utf8_write(uint8_t *dst, uint32_t cp)
{
    if (cp < 0x80) {
        dst[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        dst[0] = (uint8_t)(0xC0 | cp >> 6);
        dst[1] = (uint8_t)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        dst[0] = (uint8_t)(0xE0 | cp >> 12);
        dst[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
        dst[2] = (uint8_t)(0x80 | (cp & 0x3F));
        return 3;
    }
    dst[0] = (uint8_t)(0xF0 | cp >> 18);
    dst[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3F));
    dst[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
    dst[3] = (uint8_t)(0x80 | (cp & 0x3F));
    return 4;
}

size_t utf8_valid_prefix(const uint8_t *p, size_t n)
{
    size_t i = 0;
    for (;;) {
        while (n - i >= 8 && (load_u64(p + i) & HIGH) == 0) i += 8;
        while (i < n && p[i] < 0x80) i++;
        while (i < n && p[i] >= 0x80) {
            uint32_t cp;
            const int len = utf8_decode(&cp, p + i, n - i);
            if (len == 0) return i;
            i += (size_t)len;
        }
        if (i == n) return n;
    }
}

static int buf_reserve(byte_buf *b, size_t more, err_ctx *err)
{
    uint64_t want;
    uint8_t *grown;
    if (more <= b->cap - b->n) return 0;
    if (!size_add(&want, b->n, more) || !size_add(&want, want, b->cap))
        return err_set(err, ERR_NOMEM, "text of %zu bytes", b->n);
    grown = mem_resize(b->ptr, want, 1);
    if (!grown) return err_set(err, ERR_NOMEM, "text buffer of %llu bytes",
                               (unsigned long long)want);
    b->ptr = grown;
    b->cap = want;
    return 0;
}

void byte_buf_free(byte_buf *b)
{
    mem_free(b->ptr);
    *b = (byte_buf){ 0 };
}

int byte_buf_append(byte_buf *b, const uint8_t *p, size_t n, err_ctx *err)
{
    const int rc = buf_reserve(b, n, err);
    if (rc < 0) return rc;
    if (n) memcpy(b->ptr + b->n, p, n);
    b->n += n;
    return 0;
}

int utf8_repair(byte_buf *out, const uint8_t *p, size_t n, err_ctx *err)
{
    for (;;) {
        const size_t good = utf8_valid_prefix(p, n);
        int rc = byte_buf_append(out, p, good, err);
        if (rc < 0 || good == n) return rc;
        rc = byte_buf_append(out, (const uint8_t *)"\xEF\xBF\xBD", 3, err);
        if (rc < 0) return rc;
        p += good + 1;
        n -= good + 1;
    }
}

/* ---- NFC --------------------------------------------------------------------------------- */

/* No code point below U+0300 changes or combines with an earlier one. All its bytes are below the
 * first byte of U+0300. */
#define FIRST_BYTE_0300 0xCC

/* Hangul syllables are (leading, vowel, trailing) in arithmetic order. */
enum {
    HANGUL = 0xAC00, JAMO_L = 0x1100, JAMO_V = 0x1161, JAMO_T = 0x11A7,
    N_JAMO_L = 19, N_JAMO_V = 21, N_JAMO_T = 28, N_HANGUL = N_JAMO_L * N_JAMO_V * N_JAMO_T
};

/* Items are a code point with its combining class in the top byte. */
#define ITEM_CP(item) ((item) & 0xFFFFFFu)
#define ITEM_CLASS(item) ((item) >> 24)

static nfc_kind kind_of(uint32_t cp)
{
    const size_t block = unicode_nfc_index[cp >> 10];
    const size_t page = unicode_nfc_blocks[block << 6 | (cp >> 4 & 63)];
    return unicode_nfc_kinds[unicode_nfc_pages[page << 4 | (cp & 15)]];
}

/* Returns the end of the run at p of bytes below FIRST_BYTE_0300. */
static const uint8_t *skip_low(const uint8_t *p, const uint8_t *end)
{
    while (end - p >= 8) {
        const uint64_t x = load_u64(p);
        /* adding 0x34 sets the high bit if the low seven bits are >= 0x4C = 0xCC - 0x80 */
        if (((x & ~HIGH) + (0x100 - FIRST_BYTE_0300) * ONES) & x & HIGH) break;
        p += 8;
    }
    while (p < end && *p < FIRST_BYTE_0300) p++;
    return p;
}

size_t nfc_prefix(const uint8_t *p, size_t n)
{
    const uint8_t *const begin = p, *const end = p + n;
    const uint8_t *cut = p;              /* the last character that starts a segment */
    unsigned last = 0;                   /* combining class of the character before p */
    while (p < end) {
        uint32_t cp;
        size_t len;
        nfc_kind k;
        if (*p < FIRST_BYTE_0300) {
            p = skip_low(p, end);
            for (cut = p - 1; (*cut & 0xC0) == 0x80; cut--) {}
            last = 0;
            continue;
        }
        len = utf8_read(&cp, p);
        k = kind_of(cp);
        if ((k.flags & NFC_LOOK) || (k.combining_class && k.combining_class < last))
            return (size_t)(cut - begin);
        if (k.combining_class == 0) cut = p;
        last = k.combining_class;
        p += len;
    }
    return n;
}

/* Allocates twice the capacity: the upper half is scratch of sort_marks. */
static int push_item(nfc_scratch *s, uint32_t cp, err_ctx *err)
{
    if (s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 256;
        uint32_t *grown = mem_resize(s->item, cap, 2 * sizeof *grown);
        if (!grown) return err_set(err, ERR_NOMEM, "normalization of %zu characters", s->n);
        s->item = grown;
        s->cap = cap;
    }
    s->item[s->n++] = cp | (uint32_t)kind_of(cp).combining_class << 24;
    return 0;
}

static int decompose(nfc_scratch *s, uint32_t cp, err_ctx *err)
{
    int lo = 0, hi = unicode_n_nfc_decomposition - 1, rc = 0;
    if (cp - HANGUL < N_HANGUL) {
        const uint32_t pos = cp - HANGUL, t = pos % N_JAMO_T;
        rc = push_item(s, JAMO_L + pos / (N_JAMO_V * N_JAMO_T), err);
        if (rc == 0) rc = push_item(s, JAMO_V + pos / N_JAMO_T % N_JAMO_V, err);
        if (rc == 0 && t) rc = push_item(s, JAMO_T + t, err);
        return rc;
    }
    if (!(kind_of(cp).flags & NFC_DECOMPOSES)) return push_item(s, cp, err);
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (unicode_nfc_decompositions[mid].cp < cp) lo = mid + 1;
        else hi = mid;
    }
    const nfc_decomposition *d = &unicode_nfc_decompositions[lo];
    for (int i = 0; i < d->n && rc == 0; i++)
        rc = push_item(s, unicode_nfc_pool[d->start + i], err);
    return rc;
}

/* Stable sort of n marks by class; tmp has n entries. */
static void sort_marks(uint32_t *item, uint32_t *tmp, size_t n)
{
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            const uint32_t moved = item[i];
            size_t j = i;
            for (; j > 0 && ITEM_CLASS(item[j - 1]) > ITEM_CLASS(moved); j--) item[j] = item[j - 1];
            item[j] = moved;
        }
        return;
    }
    size_t pos[257] = { 0 };
    for (size_t i = 0; i < n; i++) pos[ITEM_CLASS(item[i]) + 1]++;
    for (int c = 0; c < 256; c++) pos[c + 1] += pos[c];
    for (size_t i = 0; i < n; i++) tmp[pos[ITEM_CLASS(item[i])]++] = item[i];
    memcpy(item, tmp, n * sizeof *item);
}

static void order_marks(nfc_scratch *s)
{
    for (size_t i = 0; i < s->n;) {
        size_t j = i;
        while (j < s->n && ITEM_CLASS(s->item[j])) j++;
        if (j - i > 1) sort_marks(s->item + i, s->item + s->cap, j - i);
        i = j > i ? j : i + 1;
    }
}

/* Returns the composition of a and b, or 0. */
static uint32_t compose_pair(uint32_t a, uint32_t b)
{
    int lo = 0, hi = unicode_n_nfc_composition - 1;
    if (a - JAMO_L < N_JAMO_L && b - JAMO_V < N_JAMO_V)
        return HANGUL + ((a - JAMO_L) * N_JAMO_V + (b - JAMO_V)) * N_JAMO_T;
    if (a - HANGUL < N_HANGUL && (a - HANGUL) % N_JAMO_T == 0 && b - JAMO_T - 1 < N_JAMO_T - 1)
        return a + (b - JAMO_T);
    while (lo <= hi) {
        const int mid = (lo + hi) / 2;
        const nfc_composition *c = &unicode_nfc_compositions[mid];
        if (c->first == a && c->second == b) return c->composed;
        if (c->first < a || (c->first == a && c->second < b)) lo = mid + 1;
        else hi = mid - 1;
    }
    return 0;
}

/* Composes each character with the last starter if the two have a composition and no character
 * between them blocks it. */
static void compose(nfc_scratch *s)
{
    size_t starter = SIZE_MAX, n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const uint32_t item = s->item[i];
        const bool adjacent = n > 0 && starter == n - 1;
        if (starter != SIZE_MAX && (adjacent || ITEM_CLASS(s->item[n - 1]) < ITEM_CLASS(item))) {
            const uint32_t joined = compose_pair(ITEM_CP(s->item[starter]), ITEM_CP(item));
            if (joined) {
                s->item[starter] = joined;
                continue;
            }
        }
        if (ITEM_CLASS(item) == 0) starter = n;
        s->item[n++] = item;
    }
    s->n = n;
}

/* Normalizes the segment at p. Returns its length in the source, or < 0. */
static int64_t append_segment(byte_buf *out, nfc_scratch *s, const uint8_t *p, size_t n,
                              err_ctx *err)
{
    size_t i = 0;
    int rc;
    s->n = 0;
    while (i < n) {
        uint32_t cp;
        const size_t len = utf8_read(&cp, p + i);
        const nfc_kind k = kind_of(cp);
        if (i > 0 && k.combining_class == 0 && !(k.flags & NFC_LOOK)) break;
        if ((rc = decompose(s, cp, err)) < 0) return rc;
        i += len;
    }
    order_marks(s);
    compose(s);
    if ((rc = buf_reserve(out, 4 * s->n, err)) < 0) return rc;
    for (size_t k = 0; k < s->n; k++) out->n += utf8_write(out->ptr + out->n, ITEM_CP(s->item[k]));
    return (int64_t)i;
}

int nfc_append(byte_buf *out, nfc_scratch *s, const uint8_t *p, size_t n, err_ctx *err)
{
    for (;;) {
        const size_t good = nfc_prefix(p, n);
        const int rc = byte_buf_append(out, p, good, err);
        if (rc < 0 || good == n) return rc;
        p += good;
        n -= good;
        const int64_t used = append_segment(out, s, p, n, err);
        if (used < 0) return (int)used;
        p += used;
        n -= (size_t)used;
    }
}

void nfc_scratch_free(nfc_scratch *s)
{
    mem_free(s->item);
    *s = (nfc_scratch){ 0 };
}
