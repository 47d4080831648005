/* tokenizer.c - reads the vocabulary of a GGUF file; ids to bytes; special tokens by text.
 *
 * Ordinary tokens and merges are converted to raw bytes here, once (token_bytes.h). Nothing in the
 * arrays is trusted: counts are compared; characters, merges and ids are checked; allocations are
 * sized by strings that exist in the file. encoder.c converts text to ids. */
#include "engine/text/tokenizer/tokenizer_internal.h"

#include <stdlib.h>

#include "engine/text/tokenizer/sentencepiece_scores.h"
#include "engine/text/tokenizer/token_bytes.h"

#define KEY_MODEL "tokenizer.ggml.model"
#define KEY_PRE "tokenizer.ggml.pre"
#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define KEY_MERGES "tokenizer.ggml.merges"

enum {
    MAX_MERGE = 1 << 26,
    MAX_SPECIAL_BYTES = 128              /* bounds the work per '<' in a text; largest known: 31 */
};

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

/* add_bos and space_prefix are defaults; the file may override them. */
static const vocabulary_model models[] = {
    { .name = "gpt2" },
    { .name = "llama", .by_char = true, .by_score = true, .add_bos = true, .space_prefix = true },
    { .name = "gemma4", .by_char = true, .always_bos = true, .newlines_whole = true },
};

static int choose_model(tokenizer *t, const gguf *g, err_ctx *err)
{
    str_view name;
    char text[64];
    const int rc = gguf_get_str(&name, g, KEY_MODEL, err);
    if (rc < 0) return rc;
    if (rc == 0) return err_set(err, ERR_FORMAT, "key %s is missing", KEY_MODEL);
    for (size_t i = 0; i < ARRAY_LEN(models); i++)
        if (str_is(name, models[i].name)) t->model = &models[i];
    if (t->model) return 0;
    return err_set(err, ERR_UNSUPPORTED, "unsupported tokenizer model '%s' (supported: %s, %s, %s)",
                   ESC(text, name), models[0].name, models[1].name, models[2].name);
}

/* Some published gpt-oss files do not name their pre-tokenizer; the vocabulary identifies it. */
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
    char text[64], names_text[256];
    const int rc = gguf_get_str(&name, g, KEY_PRE, err);
    if (rc < 0) return rc;
    if (t->model->by_char) {             /* choose_cuts sets t->pre later, by the tokens */
        if (rc == 0 || str_is(name, "default") || str_is(name, t->model->name)) return 0;
        return err_set(err, ERR_UNSUPPORTED, "unsupported pre-tokenizer '%s' for tokenizer model "
                       "%s (supported: default)", ESC(text, name), t->model->name);
    }
    if (rc == 0) {
        if (!is_gptoss_vocabulary(tokens))
            return err_set(err, ERR_FORMAT, "key %s is missing, and the vocabulary of %llu tokens "
                           "is not one that can do without", KEY_PRE,
                           (unsigned long long)tokens->count);
        t->pre = PRE_GPT4O;
        return 0;
    }
    if (pretokenizer_find(&t->pre, name)) return 0;
    return err_set(err, ERR_UNSUPPORTED, "unsupported pre-tokenizer '%s' (supported: %s)",
                   ESC(text, name), pretokenizer_names(names_text, sizeof names_text));
}

static int read_kinds(tokenizer *t, const gguf *g, uint64_t n_token, err_ctx *err)
{
    const gguf_kv *kv = gguf_find(g, KEY_TYPES);
    const int last = t->model->by_char ? TOKEN_BYTE : TOKEN_UNUSED;
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
        if (v < TOKEN_NORMAL || v > last)
            return err_set(err, ERR_FORMAT, "token %llu has type %lld, vocabularies of model %s "
                           "use %d to %d", (unsigned long long)i, (long long)v, t->model->name,
                           TOKEN_NORMAL, last);
        t->kind[i] = (uint8_t)v;
    }
    return 0;
}

static bool is_special(int kind)
{
    return kind == TOKEN_CONTROL || kind == TOKEN_USER || kind == TOKEN_UNKNOWN;
}

static int read_token(tokenizer *t, const token_bytes *spelling, uint8_t *scratch, str_view text,
                      err_ctx *err)
{
    const int id = t->vocab.n_added;
    char shown[64];
    int64_t n;
    switch (t->kind[id]) {
    case TOKEN_NORMAL:
        n = token_bytes_read(scratch, spelling, text);
        if (n < 0)
            return err_set(err, ERR_FORMAT, "token %d '%s' %s", id, ESC(shown, text),
                           token_bytes_fault(spelling));
        bpe_add_token(&t->vocab, (str_view){ (char *)scratch, (size_t)n }, true);
        return 0;
    case TOKEN_BYTE:
        n = token_bytes_byte(text);
        if (n < 0)
            return err_set(err, ERR_FORMAT, "token %d '%s' is no byte, <0x00> to <0xFF>", id,
                           ESC(shown, text));
        scratch[0] = (uint8_t)n;
        bpe_add_token(&t->vocab, (str_view){ (char *)scratch, 1 }, false);
        bpe_set_byte(&t->vocab, scratch[0], id);
        return 0;
    case TOKEN_UNKNOWN:
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

/* n_merge: merges in the file. Without a list every byte boundary of a token may become a merge. */
static int read_tokens(tokenizer *t, const gguf_kv *tokens, uint32_t n_merge,
                       const token_bytes *spelling, err_ctx *err)
{
    gguf_strings it = gguf_strings_begin(tokens);
    const bool by_char = t->model->by_char;
    uint64_t all = 0, longest = 0;
    str_view text;
    int rc;
    while (gguf_strings_next(&it, &text)) {
        all += text.len;                 /* disjoint parts of one file: cannot overflow */
        if (text.len > longest) longest = text.len;
    }
    if (t->model->by_score) {
        if (all > MAX_MERGE)
            return err_set(err, ERR_UNSUPPORTED, "tokens hold %llu bytes, at most %d are supported",
                           (unsigned long long)all, MAX_MERGE);
        n_merge = (uint32_t)all;
    }
    if ((rc = bpe_init(&t->vocab, by_char, (int)tokens->count, n_merge, all, err)) < 0) return rc;
    uint8_t *scratch = mem_alloc(longest);
    if (!scratch) return err_set(err, ERR_NOMEM, "token of %llu bytes",
                                 (unsigned long long)longest);
    for (it = gguf_strings_begin(tokens); rc == 0 && gguf_strings_next(&it, &text);)
        rc = read_token(t, spelling, scratch, text, err);
    mem_free(scratch);
    return rc < 0 ? rc : bpe_seal(&t->vocab, err);
}

/* Merges are converted and entered in batches, so that the cache misses of a batch overlap. */
typedef struct merge_batch {
    uint8_t *bytes;                      /* both sides of all entries, contiguous */
    size_t used, cap;
    struct { size_t pos, left, right; } entry[16];
    int n;
    uint32_t n_before;                   /* entries of earlier batches */
} merge_batch;

/* Reads one entry, "left right". Spaces inside tokens are encoded, so the separator is the only
 * space; but in vocabularies of characters the left side may start with a plain space. A byte takes
 * at most spelling->widest bytes in the file, and no token has more than vocab.longest. */
static int read_merge(merge_batch *m, const tokenizer *t, const token_bytes *spelling,
                      str_view text,
                      err_ctx *err)
{
    const size_t from = spelling->by_char ? 1 : 0;
    const char *const space =
        text.len > from ? memchr(text.ptr + from, ' ', text.len - from) : NULL;
    const uint32_t index = m->n_before + (uint32_t)m->n;
    uint8_t *const dst = m->bytes + m->used;
    char shown[100];
    if (!space || (!spelling->by_char &&
                   memchr(space + 1, ' ', text.len - 1 - (size_t)(space - text.ptr))))
        return err_set(err, ERR_FORMAT, "merge %u '%s' is not two tokens with a space between",
                       index, ESC(shown, text));
    if (text.len - 1 > (size_t)spelling->widest * t->vocab.longest)
        return err_set(err, ERR_FORMAT,
                       "merge %u '%s' makes more than the longest token, %zu bytes",
                       index, ESC(shown, text), t->vocab.longest);
    const str_view left = { text.ptr, (size_t)(space - text.ptr) };
    const str_view right = { space + 1, text.len - left.len - 1 };
    const int64_t n_left = token_bytes_read(dst, spelling, left);
    const int64_t n_right = n_left < 0 ? -1 : token_bytes_read(dst + n_left, spelling, right);
    if (n_right < 0)
        return err_set(err, ERR_FORMAT, "merge %u '%s' %s", index, ESC(shown, text),
                       token_bytes_fault(spelling));
    bpe_prefetch(&t->vocab, dst, (size_t)n_left);
    bpe_prefetch(&t->vocab, dst + n_left, (size_t)n_right);
    m->entry[m->n].pos = m->used;
    m->entry[m->n].left = (size_t)n_left;
    m->entry[m->n].right = (size_t)n_right;
    m->n++;
    m->used += (size_t)(n_left + n_right);
    return 0;
}

static int enter_merges(tokenizer *t, merge_batch *m, err_ctx *err)
{
    for (int i = 0; i < m->n; i++) {
        const int rc = bpe_add_merge(&t->vocab, m->bytes + m->entry[i].pos, m->entry[i].left,
                                     m->entry[i].right, err);
        if (rc < 0) return rc;
    }
    m->n_before += (uint32_t)m->n;
    m->n = 0;
    m->used = 0;
    return 0;
}

static int read_merges(tokenizer *t, const gguf_kv *merges, const token_bytes *spelling,
                       err_ctx *err)
{
    const size_t most = (size_t)spelling->widest * t->vocab.longest;
    merge_batch m = { .cap = most + 4096 };
    gguf_strings it = gguf_strings_begin(merges);
    str_view text;
    int rc = 0;
    m.bytes = mem_alloc(m.cap);
    if (!m.bytes) return err_set(err, ERR_NOMEM, "merges of up to %zu bytes", most);
    while (rc == 0 && gguf_strings_next(&it, &text)) {
        rc = read_merge(&m, t, spelling, text, err);
        if (rc == 0 && (m.n == (int)ARRAY_LEN(m.entry) || m.cap - m.used < most))
            rc = enter_merges(t, &m, err);
    }
    if (rc == 0) rc = enter_merges(t, &m, err);
    mem_free(m.bytes);
    if (rc < 0) return rc;
    const bool whole = t->model->by_char || pretokenizer_takes_whole(t->pre);
    return bpe_seal_merges(&t->vocab, whole, NULL, err);
}

/* Chooses the cuts of a vocabulary of characters, whose text is one piece, or one for each line. If
 * no token has a space after another character, or a newline next to one, no merge crosses these
 * boundaries, and words can be merged one by one. */
static void choose_cuts(tokenizer *t)
{
    t->pre = PRE_WORDS;
    for (int id = 0; id < t->vocab.n_token; id++) {
        const str_view s = bpe_bytes(&t->vocab, id);
        bool apart = true;
        if (t->kind[id] != TOKEN_NORMAL) continue;
        for (size_t i = 1; i < s.len; i++)
            apart = apart && (s.ptr[i] != ' ' || s.ptr[i - 1] == ' ') &&
                    (s.ptr[i] == '\n') == (s.ptr[i - 1] == '\n');
        if (!apart) t->pre = t->model->by_score ? PRE_WHOLE : PRE_LINES;
    }
}

/* ---- special tokens ---------------------------------------------------------------------- */

static int compare_specials(const void *a, const void *b)
{
    const special_token *x = a, *y = b;
    const int c = str_compare(x->text, y->text);
    if (c) return c;
    return x->user != y->user ? x->user - y->user : (x->id > y->id) - (x->id < y->id);
}

/* Of special tokens with equal texts it keeps the lowest id of each kind. */
static int collect_specials(tokenizer *t, err_ctx *err)
{
    int n = 0, kept = 0;
    t->first_byte = -1;
    t->specials = mem_array((size_t)t->n_special, sizeof *t->specials);
    if (!t->specials) return err_set(err, ERR_NOMEM, "%d special tokens", t->n_special);
    for (int id = 0; id < t->vocab.n_token; id++) {
        const str_view text = bpe_bytes(&t->vocab, id);
        if (is_special(t->kind[id]) && text.len)
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

/* Narrows the sorted list byte by byte. At each depth the entries that end there sort first. */
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
            continue;                    /* all have the same next byte: nothing to search */
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

/* Reads a token id. An id outside the vocabulary counts as absent (-1). */
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

static void add_stop(tokenizer *t, int id)
{
    if (id >= 0 && !tokenizer_is_stop(t, id) && t->n_stop < N_STOP_MAX) t->stops[t->n_stop++] = id;
}

/* Stop tokens by text, because the file's eos_token_id is only one of them, and wrong in some
 * files. GLM ends a turn with the role token of the next. Gemma ends with <|tool_response> before a
 * tool's result; some files declare it a USER token. In other vocabularies these texts are no
 * stops, so an entry counts only if the vocabulary has the token `requires`. */
static const struct { const char *text, *requires; } stop_texts[] = {
    { "<|im_end|>", NULL },
    { "<|return|>", NULL },
    { "<|call|>", NULL },
    { "<|endoftext|>", NULL },
    { "<|eot_id|>", NULL },
    { "<|end_of_text|>", NULL },
    { "<turn|>", NULL },
    { "<eos>", NULL },
    { "<|tool_response>", "<turn|>" },
    { "<|user|>", "[gMASK]" },
    { "<|observation|>", "[gMASK]" },
};

static int find_stops(tokenizer *t, const gguf *g, err_ctx *err)
{
    static const char *const keys[] = { "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id" };
    int ids[1 + ARRAY_LEN(keys)] = { t->eos };
    for (size_t i = 0; i < ARRAY_LEN(stop_texts); i++) {
        const char *const requires = stop_texts[i].requires;
        const int id = tokenizer_special(t, stop_texts[i].text);
        if (id < 0 || (requires ? tokenizer_special(t, requires) < 0
                       : t->kind[id] != TOKEN_CONTROL))
            continue;
        add_stop(t, id);
    }
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const int rc = read_id(&ids[1 + i], t, g, keys[i], err);
        if (rc < 0) return rc;
    }
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        if (ids[i] >= 0 && t->kind[ids[i]] == TOKEN_CONTROL &&
            !str_is(bpe_bytes(&t->vocab, ids[i]), "<|end|>"))
            add_stop(t, ids[i]);
    return 0;
}

/* Reads whether BOS, EOS and a leading space are added; see encoder_encode_whole. */
static int read_additions(tokenizer *t, const gguf *g, err_ctx *err)
{
    int rc;
    t->add_bos = t->model->add_bos || pretokenizer_wants_bos(t->pre);
    t->space_prefix = t->model->space_prefix;
    if ((rc = gguf_get_bool(&t->add_bos, g, "tokenizer.ggml.add_bos_token", err)) < 0) return rc;
    if ((rc = gguf_get_bool(&t->add_eos, g, "tokenizer.ggml.add_eos_token", err)) < 0) return rc;
    if (t->model->space_prefix) {
        rc = gguf_get_bool(&t->space_prefix, g, "tokenizer.ggml.add_space_prefix", err);
        if (rc < 0) return rc;
    }
    t->add_bos = (t->add_bos || t->model->always_bos) && t->bos >= 0 &&
                 !pretokenizer_forbids_bos(t->pre);
    t->add_eos = t->add_eos && t->eos >= 0;
    return 0;
}

/* ---- public ------------------------------------------------------------------------------ */

static int load(tokenizer *t, const gguf *g, err_ctx *err)
{
    const gguf_kv *tokens, *merges = NULL;
    token_bytes spelling;
    int rc;
    if ((rc = choose_model(t, g, err)) < 0) return rc;
    token_bytes_init(&spelling, t->model->by_char);
    if ((rc = find_array(&tokens, g, KEY_TOKENS, err)) < 0) return rc;
    if (!t->model->by_score && (rc = find_array(&merges, g, KEY_MERGES, err)) < 0) return rc;
    const uint64_t n_merge = merges ? merges->count : 0;
    if (tokens->count > BPE_MAX_TOKEN || n_merge > MAX_MERGE)
        return err_set(err, ERR_UNSUPPORTED, "%llu tokens and %llu merges, at most %d and %d are "
                       "supported", (unsigned long long)tokens->count,
                       (unsigned long long)n_merge, BPE_MAX_TOKEN, MAX_MERGE);
    if ((rc = choose_pre(t, g, tokens, err)) < 0) return rc;
    if ((rc = read_kinds(t, g, tokens->count, err)) < 0) return rc;
    if ((rc = read_tokens(t, tokens, (uint32_t)n_merge, &spelling, err)) < 0) return rc;
    if (t->model->by_char) choose_cuts(t);
    rc = merges ? read_merges(t, merges, &spelling, err) : sentencepiece_scores_read(&t->vocab, g,
            err);
    if (rc < 0) return rc;
    if ((rc = collect_specials(t, err)) < 0) return rc;
    if ((rc = read_id(&t->bos, t, g, "tokenizer.ggml.bos_token_id", err)) < 0) return rc;
    if ((rc = read_id(&t->eos, t, g, "tokenizer.ggml.eos_token_id", err)) < 0) return rc;
    if ((rc = read_additions(t, g, err)) < 0) return rc;
    return find_stops(t, g, err);
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

int tokenizer_n_token(const tokenizer *t) { return t->vocab.n_token; }

int tokenizer_n_merge(const tokenizer *t) { return (int)t->vocab.n_merge; }

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

int tokenizer_bos(const tokenizer *t) { return t->bos; }

int tokenizer_eos(const tokenizer *t) { return t->eos; }

bool tokenizer_adds_bos(const tokenizer *t) { return t->add_bos; }

bool tokenizer_adds_eos(const tokenizer *t) { return t->add_eos; }

bool tokenizer_adds_space(const tokenizer *t) { return t->space_prefix; }

str_view tokenizer_bytes(const tokenizer *t, int id, bool with_special)
{
    const bool hidden = t->kind[id] == TOKEN_CONTROL || t->kind[id] == TOKEN_UNKNOWN;
    if (hidden && !with_special) return (str_view){ "", 0 };
    return bpe_bytes(&t->vocab, id);
}

str_view tokenizer_bytes_at(const tokenizer *t, const int32_t *ids, size_t i)
{
    str_view s = bpe_bytes(&t->vocab, ids[i]);
    const bool starts = i == 0 || is_special(t->kind[ids[i - 1]]);
    if (t->space_prefix && starts && t->kind[ids[i]] == TOKEN_NORMAL && s.len && *s.ptr == ' ')
        s = (str_view){ s.ptr + 1, s.len - 1 };
    return s;
}
