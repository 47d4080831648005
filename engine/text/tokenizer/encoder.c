/* encoder.c - text to ids: special tokens, repair, NFC or plain spaces, pieces, merges.
 *
 * Each stretch of text between special tokens is encoded on its own: for the cutters' look-ahead
 * the text ends there. Pieces are cut and hashed in batches, so the loads of their cache lines
 * overlap. The cache of recent pieces is direct mapped and holds all ids of a piece; it affects
 * only speed. */
#include "engine/text/tokenizer/token_bytes.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/unicode.h"

enum {
    CACHE_BITS = 15,
    CACHE_IDS = 7,
    BATCH = 32
};

/* One cache line: the piece, zero padded, and its ids. len 0 is empty. */
typedef struct cache_entry {
    uint64_t w[BPE_KEY_BYTES / 8];
    int32_t ids[CACHE_IDS];
    uint8_t len, n, pad[2];
} cache_entry;
_Static_assert(sizeof(cache_entry) == 64, "one cache line");

struct encoder {
    const tokenizer *t;
    void *cache_memory;
    cache_entry *cache;                  /* [1 << CACHE_BITS], on a line boundary in cache_memory */
    byte_buf repaired, normal;           /* copies of the current stretch, if it had to change */
    nfc_scratch nfc;
    bpe_work work;
};

/* ---- id lists ---------------------------------------------------------------------------- */

static int ids_reserve(id_list *l, size_t more, err_ctx *err)
{
    uint64_t want;
    int32_t *grown;
    if (more <= l->cap - l->n) return 0;
    if (!size_add(&want, l->n, more) || !size_add(&want, want, l->cap))
        return err_set(err, ERR_NOMEM, "list of %zu ids", l->n);
    grown = mem_resize(l->ids, want, sizeof *grown);
    if (!grown) return err_set(err, ERR_NOMEM, "list of %llu ids", (unsigned long long)want);
    l->ids = grown;
    l->cap = want;
    return 0;
}

int ids_push(id_list *l, int32_t id, err_ctx *err)
{
    const int rc = ids_reserve(l, 1, err);
    if (rc < 0) return rc;
    l->ids[l->n++] = id;
    return 0;
}

void ids_free(id_list *l)
{
    mem_free(l->ids);
    *l = (id_list){ 0 };
}

/* ---- encoder ----------------------------------------------------------------------------- */

int encoder_create(encoder **out, const tokenizer *t, err_ctx *err)
{
    const size_t line = sizeof(cache_entry), bytes = (line << CACHE_BITS) + line;
    encoder *e = mem_zalloc(sizeof *e);
    *out = NULL;
    if (e) e->cache_memory = mem_zalloc(bytes);
    if (!e || !e->cache_memory) {
        mem_free(e);
        return err_set(err, ERR_NOMEM, "encoder: %zu bytes", bytes);
    }
    e->t = t;
    e->cache = (cache_entry *)(((uintptr_t)e->cache_memory + line - 1) & ~(uintptr_t)(line - 1));
    *out = e;
    return 0;
}

void encoder_free(encoder *e)
{
    if (!e) return;
    byte_buf_free(&e->repaired);
    byte_buf_free(&e->normal);
    nfc_scratch_free(&e->nfc);
    bpe_work_free(&e->work);
    mem_free(e->cache_memory);
    mem_free(e);
}

/* ---- pieces ------------------------------------------------------------------------------ */

/* Appends the ids of one piece; the caller has reserved len entries in *out. */
static int encode_piece(encoder *e, id_list *out, const uint8_t *p, size_t len, uint64_t hash,
                        err_ctx *err)
{
    const bpe *b = &e->t->vocab;
    const bool may_be_whole = !b->by_char || (*p == '\n' && e->t->model->newlines_whole);
    const int32_t id = may_be_whole && len <= b->longest ? bpe_find(b, p, len, hash) : -1;
    if (id >= 0 && !(b->unmade && b->unmade[id])) {
        out->ids[out->n++] = id;
        return 0;
    }
    const int64_t n = bpe_merge(b, &e->work, out->ids + out->n, p, len, err);
    if (n < 0) return (int)n;
    out->n += (size_t)n;
    return 0;
}

static inline bool entry_is(const cache_entry *c, const bpe_key *k)
{
    return c->len == k->len && c->w[0] == k->w[0] && c->w[1] == k->w[1] &&
           (k->len <= 16 || (c->w[2] == k->w[2] && c->w[3] == k->w[3]));
}

static void remember(cache_entry *c, const bpe_key *k, const int32_t *ids, size_t n)
{
    if (n > CACHE_IDS) return;
    memcpy(c->w, k->w, sizeof c->w);
    memcpy(c->ids, ids, n * sizeof *ids);
    c->len = (uint8_t)k->len;
    c->n = (uint8_t)n;
}

/* Encodes the n_piece pieces at p. The caller has reserved CACHE_IDS extra entries in *out, because
 * a cache entry is copied whole and only the ids of the piece are counted. */
static int encode_batch(encoder *e, id_list *out, const uint8_t *p, const uint8_t *end,
                        const size_t *lens, size_t n_piece, err_ctx *err)
{
    bpe_key keys[BATCH];
    const uint8_t *q = p;
    for (size_t i = 0; i < n_piece; q += lens[i++]) {
        if (lens[i] > BPE_KEY_BYTES) continue;
        bpe_key_load(&keys[i], q, lens[i], (size_t)(end - q));
        __builtin_prefetch(&e->cache[keys[i].hash >> (64 - CACHE_BITS)]);
    }
    for (size_t i = 0; i < n_piece; p += lens[i++]) {
        const bool is_short = lens[i] <= BPE_KEY_BYTES;
        cache_entry *const c = is_short ? &e->cache[keys[i].hash >> (64 - CACHE_BITS)] : NULL;
        if (is_short && entry_is(c, &keys[i])) {
            memcpy(out->ids + out->n, c->ids, sizeof c->ids);
            out->n += c->n;
            continue;
        }
        const size_t before = out->n;
        const uint64_t hash = is_short ? keys[i].hash
                              : lens[i] <= e->t->vocab.longest ? bpe_hash(p, lens[i]) : 0;
        const int rc = encode_piece(e, out, p, lens[i], hash, err);
        if (rc < 0) return rc;
        if (is_short) remember(c, &keys[i], out->ids + before, out->n - before);
    }
    return 0;
}

/* Vocabularies of characters treat U+2581 in text as a space. */
static int append_plain(byte_buf *out, const uint8_t *p, size_t n, bool space_before, err_ctx *err)
{
    int rc;
    if (space_before && (rc = byte_buf_append(out, (const uint8_t *)" ", 1, err)) < 0) return rc;
    if ((rc = byte_buf_append(out, p, n, err)) < 0) return rc;
    out->n = token_bytes_spaces(out->ptr, out->n);
    return 0;
}

/* Encodes text without special tokens. */
static int encode_stretch(encoder *e, id_list *out, const uint8_t *p, size_t n, err_ctx *err)
{
    size_t lens[BATCH];
    int rc;
    if (n == 0) return 0;
    if (utf8_valid_prefix(p, n) != n) {
        e->repaired.n = 0;
        if ((rc = utf8_repair(&e->repaired, p, n, err)) < 0) return rc;
        p = e->repaired.ptr;
        n = e->repaired.n;
    }
    const bool to_nfc = pretokenizer_wants_nfc(e->t->pre) && nfc_prefix(p, n) != n;
    const bool to_plain =
        e->t->space_prefix || (e->t->model->by_char && memmem(p, n, SPACE_SIGN, 3));
    if (to_nfc || to_plain) {            /* no vocabulary needs both */
        e->normal.n = 0;
        rc = to_plain ? append_plain(&e->normal, p, n, e->t->space_prefix, err)
                      : nfc_append(&e->normal, &e->nfc, p, n, err);
        if (rc < 0) return rc;
        p = e->normal.ptr;
        n = e->normal.n;
    }
    const uint8_t *const end = p + n;
    while (p < end) {
        const size_t n_piece = pretokenize(e->t->pre, lens, BATCH, p, (size_t)(end - p));
        size_t bytes = 0;
        for (size_t i = 0; i < n_piece; i++) bytes += lens[i];
        if ((rc = ids_reserve(out, bytes + CACHE_IDS, err)) < 0) return rc;
        if ((rc = encode_batch(e, out, p, end, lens, n_piece, err)) < 0) return rc;
        p += bytes;
    }
    return 0;
}

/* Returns the next address at or after p where a special token may start, or end. */
static const uint8_t *next_candidate(const tokenizer *t, const uint8_t *p, const uint8_t *end)
{
    const uint8_t *hit;
    if (t->n_special == 0 || p == end) return end;
    if (t->first_byte >= 0) {
        hit = memchr(p, t->first_byte, (size_t)(end - p));
        return hit ? hit : end;
    }
    while (p < end && t->first[*p] == t->first[*p + 1]) p++;
    return p;
}

int encoder_encode(encoder *e, id_list *out, str_view text, bool parse_special, err_ctx *err)
{
    const uint8_t *p = (const uint8_t *)text.ptr;        /* start of the current stretch */
    int rc;
    if (text.len == 0) return 0;
    const uint8_t *const end = p + text.len;
    for (const uint8_t *q = p;;) {
        q = next_candidate(e->t, q, end);
        const special_token *s =
            q < end ? tokenizer_match(e->t, q, (size_t)(end - q), parse_special) : NULL;
        if (q < end && !s) {
            q++;
            continue;
        }
        if ((rc = encode_stretch(e, out, p, (size_t)(q - p), err)) < 0) return rc;
        if (!s) return 0;
        if ((rc = ids_push(out, s->id, err)) < 0) return rc;
        p = q += s->text.len;
    }
}

int encoder_encode_whole(encoder *e, id_list *out, str_view text, bool parse_special,
                         bool is_complete, err_ctx *err)
{
    const tokenizer *const t = e->t;
    const size_t before = out->n;
    int rc;
    if (t->add_bos && (rc = ids_push(out, t->bos, err)) < 0) return rc;
    const size_t from = out->n;
    if ((rc = encoder_encode(e, out, text, parse_special, err)) < 0) return rc;
    if (from > before && out->n > from && out->ids[from] == t->bos) {    /* the text had BOS */
        memmove(out->ids + before, out->ids + from, (out->n - from) * sizeof *out->ids);
        out->n--;
    }
    return is_complete && t->add_eos ? ids_push(out, t->eos, err) : 0;
}
