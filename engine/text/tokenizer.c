/* tokenizer.c - reads the vocabulary out of a GGUF file; ids to bytes; special tokens by text.
 *
 * The file writes ordinary tokens and merges in an alphabet of one printable character per byte.
 * They are converted here, once, so everything after this file works on raw bytes. Nothing in the
 * arrays is trusted: counts are compared, characters, merges and ids checked, and sizes come from
 * strings that are really in the file. Text to ids is encoder.c's part. */
#include "engine/text/tokenizer_internal.h"

#include <stdlib.h>

#define KEY_MODEL "tokenizer.ggml.model"
#define KEY_PRE "tokenizer.ggml.pre"
#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define KEY_MERGES "tokenizer.ggml.merges"

enum {
    MAX_MERGE = 1 << 26,
    MAX_SPECIAL_BYTES = 64               /* bounds the work per '<' in a text; known ones have 20 */
};

/* ---- byte alphabet ----------------------------------------------------------------------- */

enum { N_ALPHABET = 0x144 };

/* Code point to byte; -1 outside the alphabet. */
static void alphabet_init(int16_t byte_of[N_ALPHABET])
{
    int next = 0x100;
    memset(byte_of, 0xFF, N_ALPHABET * sizeof *byte_of);
    for (int c = 0; c < 256; c++) byte_of[token_byte_is_itself(c) ? c : next++] = (int16_t)c;
}

/* Converts text to the bytes it stands for; dst has room for text.len. Returns how many, or -1 if
 * a character is outside the alphabet. */
static int64_t alphabet_decode(uint8_t *dst, const int16_t byte_of[N_ALPHABET], str_view text)
{
    const uint8_t *p = (const uint8_t *)text.ptr, *const end = p + text.len;
    uint8_t *const begin = dst;
    while (p < end) {
        uint32_t cp = *p++;
        if (cp >= 0x80) {                /* the alphabet ends far below U+0800: two bytes */
            if (cp < 0xC2 || cp >= 0xE0 || p == end || (*p & 0xC0) != 0x80) return -1;
            cp = (cp & 0x1F) << 6 | (*p++ & 0x3Fu);
        }
        if (cp >= N_ALPHABET || byte_of[cp] < 0) return -1;
        *dst++ = (uint8_t)byte_of[cp];
    }
    return dst - begin;
}

/* ---- reading the file -------------------------------------------------------------------- */

static int find_array(const gguf_kv **out, const gguf *g, const char *key, err_ctx *err)
{
    const gguf_kv *kv = gguf_find(g, key);
    if (!kv) return err_set(err, ERR_FORMAT, "key %s is missing", key);
    if (!kv->is_array || kv->type != GGUF_STRING)
        return err_set(err, ERR_FORMAT, "key %s is %s, expected array of string", key,
                       gguf_type_name(kv->type, kv->is_array));
    *out = kv;
    return 0;
}

static int check_model(const gguf *g, err_ctx *err)
{
    str_view model;
    char text[64];
    const int rc = gguf_get_str(&model, g, KEY_MODEL, err);
    if (rc < 0) return rc;
    if (rc == 0) return err_set(err, ERR_FORMAT, "key %s is missing", KEY_MODEL);
    if (!str_is(model, "gpt2"))
        return err_set(err, ERR_UNSUPPORTED, "unsupported tokenizer model '%s' (supported: gpt2)",
                       ESC(text, model));
    return 0;
}

/* Some published gpt-oss files do not name their pre-tokenizer; their vocabulary gives it away. */
static bool is_gptoss_vocabulary(const gguf_kv *tokens)
{
    gguf_strings it = gguf_strings_begin(tokens);
    str_view text = { 0 };
    if (tokens->count != 201088) return false;
    for (int i = 0; i <= 200008; i++)
        if (!gguf_strings_next(&it, &text)) return false;
    return str_is(text, "<|message|>");
}

static int choose_pre(tokenizer *t, const gguf *g, const gguf_kv *tokens, err_ctx *err)
{
    str_view name;
    char text[64];
    const int rc = gguf_get_str(&name, g, KEY_PRE, err);
    if (rc < 0) return rc;
    if (rc == 0) {
        if (!is_gptoss_vocabulary(tokens))
            return err_set(err, ERR_FORMAT, "key %s is missing, and the vocabulary of %llu tokens "
                           "is not one that can do without", KEY_PRE,
                           (unsigned long long)tokens->count);
        t->pre = PRE_GPT4O;
        return 0;
    }
    if (pretokenizer_find(&t->pre, name)) return 0;
    return err_set(err, ERR_UNSUPPORTED, "unsupported pre-tokenizer '%s' (supported: %s, %s, %s)",
                   ESC(text, name), pretokenizer_name(PRE_QWEN2), pretokenizer_name(PRE_GPT4O),
                   pretokenizer_name(PRE_QWEN35));
}

static int read_kinds(tokenizer *t, const gguf *g, uint64_t n_token, err_ctx *err)
{
    const gguf_kv *kv = gguf_find(g, KEY_TYPES);
    if (!kv) return err_set(err, ERR_FORMAT, "key %s is missing", KEY_TYPES);
    if (!kv->is_array) return err_set(err, ERR_FORMAT, "key %s is %s, expected an array", KEY_TYPES,
                                      gguf_type_name(kv->type, false));
    if (kv->count != n_token)
        return err_set(err, ERR_FORMAT, "%s has %llu entries, %s has %llu", KEY_TYPES,
                       (unsigned long long)kv->count, KEY_TOKENS, (unsigned long long)n_token);
    t->kind = mem_alloc(n_token);
    if (!t->kind) return err_set(err, ERR_NOMEM, "%llu token types", (unsigned long long)n_token);
    for (uint64_t i = 0; i < n_token; i++) {
        int64_t v;
        if (kv->type == GGUF_BOOL || !gguf_kv_int(&v, kv, i))
            return err_set(err, ERR_FORMAT, "key %s is %s, expected array of i32", KEY_TYPES,
                           gguf_type_name(kv->type, true));
        if (v < TOKEN_NORMAL || v > TOKEN_UNUSED)
            return err_set(err, ERR_FORMAT, "token %llu has type %lld, byte-level vocabularies use "
                           "%d to %d", (unsigned long long)i, (long long)v, TOKEN_NORMAL,
                           TOKEN_UNUSED);
        t->kind[i] = (uint8_t)v;
    }
    return 0;
}

static int read_token(tokenizer *t, const int16_t *byte_of, uint8_t *scratch, str_view text,
                      err_ctx *err)
{
    const int id = t->vocab.n_added;
    char shown[64];
    int64_t n;
    switch (t->kind[id]) {
    case TOKEN_NORMAL:
        n = alphabet_decode(scratch, byte_of, text);
        if (n < 0)
            return err_set(err, ERR_FORMAT,
                           "token %d '%s' has a character outside the byte alphabet",
                           id, ESC(shown, text));
        bpe_add_token(&t->vocab, (str_view){ (char *)scratch, (size_t)n }, true);
        return 0;
    case TOKEN_CONTROL:
    case TOKEN_USER:
        if (text.len > MAX_SPECIAL_BYTES)
            return err_set(err, ERR_FORMAT,
                           "special token %d has %zu bytes, at most %d are allowed",
                           id, text.len, MAX_SPECIAL_BYTES);
        if (text.len) t->n_special++;
        bpe_add_token(&t->vocab, text, false);
        return 0;
    default:                             /* padding rows: no text */
        bpe_add_token(&t->vocab, (str_view){ "", 0 }, false);
        return 0;
    }
}

static int read_tokens(tokenizer *t, const gguf_kv *tokens, uint32_t n_merge,
                       const int16_t *byte_of, err_ctx *err)
{
    gguf_strings it = gguf_strings_begin(tokens);
    uint64_t all = 0, longest = 0;
    str_view text;
    int rc;
    while (gguf_strings_next(&it, &text)) {
        all += text.len;                 /* disjoint parts of one file: cannot overflow */
        if (text.len > longest) longest = text.len;
    }
    if ((rc = bpe_init(&t->vocab, (int)tokens->count, n_merge, all, err)) < 0) return rc;
    uint8_t *scratch = mem_alloc(longest);
    if (!scratch) return err_set(err, ERR_NOMEM, "token of %llu bytes",
                                 (unsigned long long)longest);
    for (it = gguf_strings_begin(tokens); rc == 0 && gguf_strings_next(&it, &text);)
        rc = read_token(t, byte_of, scratch, text, err);
    mem_free(scratch);
    return rc < 0 ? rc : bpe_seal(&t->vocab, err);
}

/* Merges are converted a few at a time and then entered, so that the look-ups of a batch wait for
 * memory together. */
typedef struct merge_batch {
    uint8_t *bytes;                      /* sides of the entries, back to back */
    size_t used, cap;
    struct { size_t at, left, right; } entry[16];
    int n;
    uint32_t n_before;                   /* entries of earlier batches */
} merge_batch;

/* One entry, "left right": a space inside a token is written otherwise, so the separator is the
 * only one. A byte takes at most two in the file, and no token has more than vocab.longest. */
static int read_merge(merge_batch *m, const tokenizer *t, const int16_t *byte_of, str_view text,
                      err_ctx *err)
{
    const char *const space = text.len ? memchr(text.ptr, ' ', text.len) : NULL;
    const uint32_t index = m->n_before + (uint32_t)m->n;
    uint8_t *const dst = m->bytes + m->used;
    char shown[100];
    if (!space || memchr(space + 1, ' ', text.len - 1 - (size_t)(space - text.ptr)))
        return err_set(err, ERR_FORMAT, "merge %u '%s' is not two tokens with a space between",
                       index, ESC(shown, text));
    if (text.len - 1 > 2 * t->vocab.longest)
        return err_set(err, ERR_FORMAT,
                       "merge %u '%s' makes more than the longest token, %zu bytes",
                       index, ESC(shown, text), t->vocab.longest);
    const str_view left = { text.ptr, (size_t)(space - text.ptr) };
    const str_view right = { space + 1, text.len - left.len - 1 };
    const int64_t n_left = alphabet_decode(dst, byte_of, left);
    const int64_t n_right = n_left < 0 ? -1 : alphabet_decode(dst + n_left, byte_of, right);
    if (n_right < 0)
        return err_set(err, ERR_FORMAT, "merge %u '%s' has a character outside the byte alphabet",
                       index, ESC(shown, text));
    bpe_prefetch(&t->vocab, dst, (size_t)n_left);
    bpe_prefetch(&t->vocab, dst + n_left, (size_t)n_right);
    m->entry[m->n].at = m->used;
    m->entry[m->n].left = (size_t)n_left;
    m->entry[m->n].right = (size_t)n_right;
    m->n++;
    m->used += (size_t)(n_left + n_right);
    return 0;
}

static int enter_merges(tokenizer *t, merge_batch *m, err_ctx *err)
{
    for (int i = 0; i < m->n; i++) {
        const int rc = bpe_add_merge(&t->vocab, m->bytes + m->entry[i].at, m->entry[i].left,
                                     m->entry[i].right, err);
        if (rc < 0) return rc;
    }
    m->n_before += (uint32_t)m->n;
    m->n = 0;
    m->used = 0;
    return 0;
}

static int read_merges(tokenizer *t, const gguf_kv *merges, const int16_t *byte_of, err_ctx *err)
{
    const size_t most = 2 * t->vocab.longest;
    merge_batch m = { .cap = most + 4096 };
    gguf_strings it = gguf_strings_begin(merges);
    str_view text;
    int rc = 0;
    m.bytes = mem_alloc(m.cap);
    if (!m.bytes) return err_set(err, ERR_NOMEM, "merges of up to %zu bytes", most);
    while (rc == 0 && gguf_strings_next(&it, &text)) {
        rc = read_merge(&m, t, byte_of, text, err);
        if (rc == 0 && (m.n == (int)ARRAY_LEN(m.entry) || m.cap - m.used < most))
            rc = enter_merges(t, &m, err);
    }
    if (rc == 0) rc = enter_merges(t, &m, err);
    mem_free(m.bytes);
    return rc < 0 ? rc : bpe_seal_merges(&t->vocab, t->pre == PRE_GPT4O, err);
}

/* ---- special tokens ---------------------------------------------------------------------- */

static int compare_specials(const void *a, const void *b)
{
    const special_token *x = a, *y = b;
    const int c = str_compare(x->text, y->text);
    if (c) return c;
    return x->user != y->user ? x->user - y->user : (x->id > y->id) - (x->id < y->id);
}

/* Of specials with one text, the lowest id of each kind stays. */
static int collect_specials(tokenizer *t, err_ctx *err)
{
    int n = 0, kept = 0;
    t->first_byte = -1;
    t->specials = mem_array((size_t)t->n_special, sizeof *t->specials);
    if (!t->specials) return err_set(err, ERR_NOMEM, "%d special tokens", t->n_special);
    for (int id = 0; id < t->vocab.n_token; id++) {
        const str_view text = bpe_bytes(&t->vocab, id);
        if ((t->kind[id] == TOKEN_CONTROL || t->kind[id] == TOKEN_USER) && text.len)
            t->specials[n++] = (special_token){ text, id, t->kind[id] == TOKEN_USER };
    }
    qsort(t->specials, (size_t)n, sizeof *t->specials, compare_specials);
    for (int i = 0; i < n; i++) {
        const special_token *s = &t->specials[i], *prev = kept ? &t->specials[kept - 1] : NULL;
        if (prev && prev->user == s->user && str_eq(prev->text, s->text)) continue;
        t->specials[kept++] = *s;
    }
    t->n_special = kept;
    for (int c = 0, i = 0; c <= 256; c++) {
        while (i < kept && (uint8_t)t->specials[i].text.ptr[0] < c) i++;
        t->first[c] = i;
    }
    for (int c = 0; c < 256; c++)
        if (kept && t->first[c] == 0 && t->first[c + 1] == kept) t->first_byte = c;
    return 0;
}

/* Narrows the sorted list byte by byte. At each depth the entries that end there come first. */
const special_token *tokenizer_match(const tokenizer *t, const uint8_t *p, size_t n,
                                     bool with_control)
{
    const special_token *found = NULL;
    int lo = t->first[p[0]], hi = t->first[p[0] + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        for (; lo < hi && t->specials[lo].text.len == depth; lo++)
            if (with_control || t->specials[lo].user) found = &t->specials[lo];
        if (depth == n) break;
        if (lo < hi && (uint8_t)t->specials[lo].text.ptr[depth] == p[depth] &&
            (uint8_t)t->specials[hi - 1].text.ptr[depth] == p[depth])
            continue;                    /* they all go on alike: nothing to search */
        int a = lo, b = hi;              /* first entry whose next byte is not below p[depth] */
        while (a < b) {
            const int mid = (a + b) / 2;
            if ((uint8_t)t->specials[mid].text.ptr[depth] < p[depth]) a = mid + 1;
            else b = mid;
        }
        lo = a;
        for (b = hi; a < b;) {           /* first entry whose next byte is above it */
            const int mid = (a + b) / 2;
            if ((uint8_t)t->specials[mid].text.ptr[depth] <= p[depth]) a = mid + 1;
            else b = mid;
        }
        hi = a;
    }
    return found;
}

int tokenizer_special(const tokenizer *t, const char *text)
{
    const str_view want = str_from(text);
    int lo = 0, hi = t->n_special;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (str_compare(t->specials[mid].text, want) < 0) lo = mid + 1;
        else hi = mid;
    }
    return lo < t->n_special && str_eq(t->specials[lo].text, want) ? t->specials[lo].id : -1;
}

static void add_stop(tokenizer *t, int id)
{
    if (id >= 0 && t->kind[id] == TOKEN_CONTROL && !tokenizer_is_stop(t, id) &&
        t->n_stop < N_STOP_MAX)
        t->stops[t->n_stop++] = id;
}

/* The file's eos_token_id gives one stop at most, and in some files the wrong one. */
static void find_stops(tokenizer *t)
{
    static const char *const texts[] = { "<|im_end|>", "<|return|>", "<|call|>", "<|endoftext|>" };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) add_stop(t, tokenizer_special(t, texts[i]));
    if (t->eos >= 0 && !str_is(bpe_bytes(&t->vocab, t->eos), "<|end|>")) add_stop(t, t->eos);
}

/* An id outside the vocabulary counts as absent: nobody may use it as an index. */
static int read_id(int *out, const tokenizer *t, const gguf *g, const char *key, err_ctx *err)
{
    const gguf_kv *kv = gguf_find(g, key);
    int64_t v;
    *out = -1;
    if (!kv) return 0;
    if (kv->is_array || kv->type == GGUF_BOOL || kv->type == GGUF_STRING || kv->type == GGUF_F32 ||
        kv->type == GGUF_F64)
        return err_set(err, ERR_FORMAT, "key %s is %s, expected u32", key,
                       gguf_type_name(kv->type, kv->is_array));
    if (gguf_kv_int(&v, kv, 0) && v >= 0 && v < t->vocab.n_token) *out = (int)v;
    else log_line("%s is no id of the %d tokens: ignored", key, t->vocab.n_token);
    return 0;
}

/* ---- public ------------------------------------------------------------------------------ */

static int load(tokenizer *t, const gguf *g, err_ctx *err)
{
    const gguf_kv *tokens, *merges;
    int16_t byte_of[N_ALPHABET];
    int rc;
    alphabet_init(byte_of);
    if ((rc = check_model(g, err)) < 0) return rc;
    if ((rc = find_array(&tokens, g, KEY_TOKENS, err)) < 0) return rc;
    if ((rc = find_array(&merges, g, KEY_MERGES, err)) < 0) return rc;
    if (tokens->count > BPE_MAX_TOKEN || merges->count > MAX_MERGE)
        return err_set(err, ERR_UNSUPPORTED, "%llu tokens and %llu merges, at most %d and %d are "
                       "supported", (unsigned long long)tokens->count,
                       (unsigned long long)merges->count, BPE_MAX_TOKEN, MAX_MERGE);
    if ((rc = choose_pre(t, g, tokens, err)) < 0) return rc;
    if ((rc = read_kinds(t, g, tokens->count, err)) < 0) return rc;
    if ((rc = read_tokens(t, tokens, (uint32_t)merges->count, byte_of, err)) < 0) return rc;
    if ((rc = read_merges(t, merges, byte_of, err)) < 0) return rc;
    if ((rc = collect_specials(t, err)) < 0) return rc;
    if ((rc = read_id(&t->bos, t, g, "tokenizer.ggml.bos_token_id", err)) < 0) return rc;
    if ((rc = read_id(&t->eos, t, g, "tokenizer.ggml.eos_token_id", err)) < 0) return rc;
    find_stops(t);
    return 0;
}

int tokenizer_create(tokenizer **out, const gguf *g, err_ctx *err)
{
    tokenizer *t = mem_zalloc(sizeof *t);
    int rc;
    *out = NULL;
    if (!t) return err_set(err, ERR_NOMEM, "tokenizer: %zu bytes", sizeof *t);
    if ((rc = load(t, g, err)) < 0) {
        tokenizer_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void tokenizer_free(tokenizer *t)
{
    if (!t) return;
    bpe_free(&t->vocab);
    mem_free(t->kind);
    mem_free(t->specials);
    mem_free(t);
}

int tokenizer_n_token(const tokenizer *t)
{
    return t->vocab.n_token;
}

int tokenizer_n_merge(const tokenizer *t)
{
    return (int)t->vocab.n_merge;
}

const char *tokenizer_pre_name(const tokenizer *t)
{
    return pretokenizer_name(t->pre);
}

token_kind tokenizer_kind(const tokenizer *t, int id)
{
    return (token_kind)t->kind[id];
}

bool tokenizer_is_stop(const tokenizer *t, int id)
{
    for (int i = 0; i < t->n_stop; i++)
        if (t->stops[i] == id) return true;
    return false;
}

int tokenizer_stops(const tokenizer *t, int *ids, int cap)
{
    for (int i = 0; i < t->n_stop && i < cap; i++) ids[i] = t->stops[i];
    return t->n_stop;
}

int tokenizer_bos(const tokenizer *t)
{
    return t->bos;
}

int tokenizer_eos(const tokenizer *t)
{
    return t->eos;
}

str_view tokenizer_bytes(const tokenizer *t, int id, bool with_special)
{
    if (t->kind[id] == TOKEN_CONTROL && !with_special) return (str_view){ "", 0 };
    return bpe_bytes(&t->vocab, id);
}
