/* test_variants.c - the forms in which files hold the same model: all must compute the same.
 *
 * A tiny model is written again, in memory, as other file generations have it: rows in another
 * order, tensors fused, renamed or in another type, keys in another spelling. Only exact changes
 * are made (rows are moved, powers of two taken out), so the logits have equal bits.
 * test_forward.c checks the tiny models themselves; where a key really changes the model, the
 * expected logits come from another program and are given here. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "loader/bytes.h"
#include "loader/gguf_write.h"
#include "tests/model_fixture.h"
#include "tests/numbers.h"
#include "tests/test.h"

/* More than window and DeltaNet chunk. Sanitizers make this arithmetic fifteen times slower: there
 * more than the window and half a chunk must be enough. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { COPY_PREFILL = 36 };
#else
enum { COPY_PREFILL = 70 };
#endif
enum { PREFILL = 70, DECODE = 4, ROWS = PREFILL + DECODE, COPY_ROWS = COPY_PREFILL + DECODE };

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct subject {
    const char *name;                    /* "tiny-gptoss" */
    gguf *g;
    model *m;
    int32_t ids[ROWS];
    float *logits[2];                    /* of the model as it is; [1]: exact */
} subject;

enum { QWEN, GPTOSS, N_SUBJECT };
static subject subjects[N_SUBJECT] = { { .name = "tiny-qwen3next" }, { .name = "tiny-gptoss" } };

/* For what can only go wrong if this test or its machine is broken. */
static void demand(bool ok, const char *what)
{
    if (ok) return;
    CHECK_MSG(false, "%s: cannot go on", what);
    exit(test_end());
}

static float *rows_of(const model *m)
{
    float *rows = mem_array(ROWS, (size_t)m->hp.n_vocab * sizeof *rows);
    demand(rows, "memory for logits");
    return rows;
}

/* n tokens in one call, then a few one by one; all rows of logits. */
static bool compute(float *rows, model *m, const int32_t *ids, int n, bool exact)
{
    const engine_options eo = { .threads = test_n_thread(1), .exact = exact };
    const session_options so = { .ctx = ROWS, .kv = KV_F32 };
    const size_t n_vocab = (size_t)m->hp.n_vocab;
    model_fixture f = { .m = m };
    err_ctx err = { 0 };
    bool ok = model_fixture_run(&f, &eo, &so) &&
              CHECK_MSG(session_eval(f.s, ids, n, rows, n, NULL, NULL, &err) == 0, "%s", err.msg);
    for (int t = n; t < n + DECODE && ok; t++)
        ok = CHECK_MSG(session_eval(f.s, ids + t, 1, rows + (size_t)t * n_vocab, 1, NULL, NULL,
                                    &err) == 0, "%s", err.msg);
    model_fixture_stop(&f);
    return ok;
}

static void read_ids(subject *s)
{
    char path[512];
    json_error_t at;
    json_t *j = json_load_file(test_path(path, sizeof path, "%s/models/%s.logits.json",
                                         test_golden(), s->name), 0, &at);
    const json_t *seqs = json_object_get(j, "seqs"), *longest = NULL;
    for (size_t i = 0; i < json_array_size(seqs); i++)
        if (json_array_size(json_array_get(seqs, i)) == 130) longest = json_array_get(seqs, i);
    demand(longest, path);
    for (size_t t = 0; t < ROWS; t++)
        s->ids[t] = (int32_t)json_integer_value(json_array_get(longest, t));
    json_decref(j);
}

static void subject_open(subject *s)
{
    char path[512];
    err_ctx err = { 0 };

    test_path(path, sizeof path, "%s/models/%s-f32.gguf", test_unpacked(), s->name);
    const bool ok = gguf_open(&s->g, path, &err) == 0 && model_bind(&s->m, s->g, &err) == 0;
    CHECK_MSG(ok, "%s: %s", path, err.msg);
    demand(ok, s->name);
    read_ids(s);
    for (int i = 0; i < 2; i++) {
        s->logits[i] = rows_of(s->m);
        demand(compute(s->logits[i], s->m, s->ids, COPY_PREFILL, i == 1), s->name);
    }
}

static void subject_close(subject *s)
{
    mem_free(s->logits[0]);
    mem_free(s->logits[1]);
    model_free(s->m);
    gguf_close(s->g);
}

/* ---- copies of files ------------------------------------------------------------------------- */

enum { MAX_TENSORS = 512, MAX_KEYS = 8, MAX_LIST = 16 };

typedef struct piece {                   /* a tensor of the file to be */
    char name[TENSOR_MAX_NAME + 32];     /* "": dropped */
    quant_type type;
    int n_dims;
    uint64_t ne[3];                      /* as the file has them; 1 beyond n_dims */
    size_t bytes;
    const uint8_t *data;                 /* the original's, or own */
    uint8_t *own;
} piece;

typedef struct key_edit {                /* replaces the original's key of that name */
    const char *name;
    gguf_type type;
    bool is_array;
    uint64_t count;                      /* 0: the key is gone */
    union { int32_t ints[MAX_LIST]; uint8_t bools[MAX_LIST]; float number; } value;
} key_edit;

typedef struct copy {
    const subject *of;
    int n_block;                         /* MTP block included */
    piece pieces[MAX_TENSORS];
    int n_piece;
    key_edit keys[MAX_KEYS];
    int n_key;
    uint8_t *bytes;                      /* the finished file */
    gguf *g;
    model *m;
} copy;

typedef void edit_fn(copy *w);

static copy *copy_create(const subject *of)
{
    copy *w = mem_zalloc(sizeof *w);
    demand(w && gguf_n_tensor(of->g) <= MAX_TENSORS, "memory for a copy of the file");
    w->of = of;
    w->n_block = of->m->hp.n_layer;
    for (; w->n_piece < gguf_n_tensor(of->g); w->n_piece++) {
        const tensor *t = gguf_tensor_at(of->g, w->n_piece);
        piece *p = &w->pieces[w->n_piece];
        *p = (piece){ .type = t->type, .n_dims = t->n_dims, .ne = { t->cols, t->rows, t->slabs },
                      .bytes = (size_t)t->bytes, .data = t->data };
        snprintf(p->name, sizeof p->name, "%.*s", (int)t->name.len, t->name.ptr);
    }
    return w;
}

static void copy_free(copy *w)
{
    if (!w) return;
    for (int i = 0; i < w->n_piece; i++) mem_free(w->pieces[i].own);
    model_free(w->m);
    gguf_close(w->g);
    mem_free(w->bytes);
    mem_free(w);
}

/* Layer -1: no "blk.N." in front. NULL if it is not there. */
static piece *find(copy *w, int layer, const char *name)
{
    char full[128];
    if (layer < 0) snprintf(full, sizeof full, "%s", name);
    else snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    for (int i = 0; i < w->n_piece; i++)
        if (strcmp(w->pieces[i].name, full) == 0) return &w->pieces[i];
    return NULL;
}

static piece *need(copy *w, int layer, const char *name)
{
    piece *p = find(w, layer, name);
    demand(p, name);
    return p;
}

static void drop(piece *p) { p->name[0] = 0; }

/* Gives p bytes of its own, all 0. Its old bytes stay readable where they were. */
static uint8_t *renew(piece *p, quant_type type)
{
    const uint64_t rows = p->ne[1] * p->ne[2];
    demand(!p->own, p->name);
    p->type = type;
    p->bytes = (size_t)(quant_row_bytes(quant_traits_of(type), p->ne[0]) * rows);
    p->data = p->own = mem_zalloc(p->bytes);
    demand(p->own, p->name);
    return p->own;
}

/* A new tensor; ne of 0 end the list. */
static piece *add(copy *w, int layer, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    piece *p = &w->pieces[w->n_piece];
    demand(w->n_piece < MAX_TENSORS, name);
    w->n_piece++;
    if (layer < 0) snprintf(p->name, sizeof p->name, "%s", name);
    else snprintf(p->name, sizeof p->name, "blk.%d.%s", layer, name);
    p->n_dims = ne2 ? 3 : ne1 ? 2 : 1;
    p->ne[0] = ne0;
    p->ne[1] = ne1 ? ne1 : 1;
    p->ne[2] = ne2 ? ne2 : 1;
    renew(p, QT_F32);
    return p;
}

static void set_floats(piece *p, float v)
{
    for (size_t at = 0; at < p->bytes; at += sizeof v) memcpy(p->own + at, &v, sizeof v);
}

static key_edit *set_key(copy *w, const char *name, gguf_type type, bool is_array, uint64_t count)
{
    key_edit *k = &w->keys[w->n_key];
    demand(w->n_key < MAX_KEYS && count <= MAX_LIST, name);
    w->n_key++;
    *k = (key_edit){ .name = name, .type = type, .is_array = is_array, .count = count };
    return k;
}

static void set_int(copy *w, const char *name, int32_t v)
{
    set_key(w, name, GGUF_I32, false, 1)->value.ints[0] = v;
}

static void copy_key(gguf_writer *to, const copy *w, const gguf_kv *kv)
{
    for (int i = 0; i < w->n_key; i++)
        if (str_is(kv->key, w->keys[i].name)) return;
    gguf_write_copy(to, kv);
}

/* Writes, opens and binds the file. False after a failed check. */
static bool copy_open(copy *w, const char *why)
{
    gguf_writer *to = gguf_writer_create();
    err_ctx err = { 0 };
    const uint8_t *head;
    size_t head_bytes;

    demand(to, why);
    for (int i = 0; i < gguf_n_kv(w->of->g); i++) copy_key(to, w, gguf_kv_at(w->of->g, i));
    for (int i = 0; i < w->n_key; i++) {
        const key_edit *k = &w->keys[i];
        if (k->is_array) gguf_write_array(to, k->name, k->type, &k->value, k->count);
        else if (k->count) gguf_write_kv(to, k->name, k->type, &k->value, sizeof(int32_t));
    }
    for (int i = 0; i < w->n_piece; i++) {
        const piece *p = &w->pieces[i];
        if (p->name[0]) gguf_write_tensor(to, p->name, p->type, p->ne, p->n_dims);
    }
    demand(gguf_write_head(to, &head, &head_bytes, &err) == 0, why);
    const size_t size = (size_t)gguf_write_file_bytes(to);
    w->bytes = mem_zalloc(size);
    demand(w->bytes, why);
    memcpy(w->bytes, head, head_bytes);
    for (int i = 0, n = 0; i < w->n_piece; i++) {
        const piece *p = &w->pieces[i];
        if (!p->name[0]) continue;
        demand(gguf_write_data_bytes(to, n) == p->bytes, p->name);
        memcpy(w->bytes + gguf_write_data_at(to, n++), p->data, p->bytes);
    }
    gguf_writer_free(to);
    return CHECK_MSG(gguf_open_memory(&w->g, w->bytes, size, &err) == 0 &&
                     model_bind(&w->m, w->g, &err) == 0, "%s, %s: %s", w->of->name, why, err.msg);
}

/* ---- edits: Qwen3-Next ----------------------------------------------------------------------- */

/* Before 2026: q, k, v and z in one matrix. For each key head: its q, its k, v of its value heads,
 * z of its value heads. */
static void legacy_in(copy *w)
{
    const model_hparams *hp = &w->of->m->hp;
    const size_t n_k = (size_t)hp->ssm_n_k_head, dim = (size_t)hp->ssm_head_dim;
    const size_t wide = (size_t)hp->ssm_n_v_head / n_k * dim;    /* value heads of a key head */
    for (int l = 0; l < w->n_block; l++) {
        piece *qkv = find(w, l, "attn_qkv.weight"), *gate = find(w, l, "attn_gate.weight");
        if (!qkv || !gate) continue;
        const size_t row = qkv->bytes / qkv->ne[1], keys = n_k * dim;
        piece *in = add(w, l, "ssm_in.weight", qkv->ne[0], qkv->ne[1] + gate->ne[1], 0);
        uint8_t *to = in->own;
        for (size_t h = 0; h < n_k; h++) {
            const struct { const uint8_t *from; size_t rows; } runs[] = {
                { qkv->data + h * dim * row, dim },
                { qkv->data + (keys + h * dim) * row, dim },
                { qkv->data + (2 * keys + h * wide) * row, wide },
                { gate->data + h * wide * row, wide },
            };
            for (size_t i = 0; i < ARRAY_LEN(runs); to += runs[i++].rows * row)
                memcpy(to, runs[i].from, runs[i].rows * row);
        }
        CHECK(to == in->own + in->bytes);
        drop(qkv);
        drop(gate);
    }
}

/* One tensor in place of n: in each slab the rows of the first, then of the second, ... */
static void fuse(copy *w, int l, const char *name, const char *const *names, int n)
{
    piece *from[3], *to;
    uint64_t rows = 0;
    for (int i = 0; i < n; i++) {
        from[i] = need(w, l, names[i]);
        rows += from[i]->n_dims == 1 ? from[i]->ne[0] : from[i]->ne[1];
    }
    const uint64_t slabs = from[0]->n_dims == 3 ? from[0]->ne[2] : 0;
    to = from[0]->n_dims == 1 ? add(w, l, name, rows, 0, 0)
                              : add(w, l, name, from[0]->ne[0], rows, slabs);
    uint8_t *at = to->own;
    for (uint64_t s = 0; s < to->ne[2]; s++)
        for (int i = 0; i < n; i++) {
            const size_t bytes = from[i]->bytes / to->ne[2];
            memcpy(at, from[i]->data + s * bytes, bytes);
            at += bytes;
        }
    CHECK(at == to->own + to->bytes);
    for (int i = 0; i < n; i++) drop(from[i]);
}

static void fuse_experts(copy *w)
{
    static const char *const names[] = { "ffn_gate_exps.weight", "ffn_up_exps.weight" };
    for (int l = 0; l < w->n_block; l++) fuse(w, l, "ffn_gate_up_exps.weight", names, 2);
}

/* As one converter calls the bias. */
static void plain_dt(copy *w)
{
    for (int l = 0; l < w->n_block; l++) {
        piece *p = find(w, l, "ssm_dt.bias");
        if (p) *strrchr(p->name, '.') = 0;
    }
}

static void shared_gate_rank1(copy *w)
{
    for (int l = 0; l < w->n_block; l++) {
        piece *p = need(w, l, "ffn_gate_inp_shexp.weight");
        CHECK(p->n_dims == 2 && p->ne[1] == 1);
        p->n_dims = 1;
    }
}

/* A next-token block after the trunk: it is for drafting and does not affect the logits. */
static void append_mtp(copy *w)
{
    const uint64_t embd = (uint64_t)w->of->m->hp.n_embd;
    const int last = w->n_block - 1, n = w->n_piece;
    char prefix[24];

    snprintf(prefix, sizeof prefix, "blk.%d.", last);
    for (int i = 0; i < n; i++) {
        const piece *p = &w->pieces[i];
        if (strncmp(p->name, prefix, strlen(prefix)) != 0) continue;
        piece *block = add(w, w->n_block, p->name + strlen(prefix), p->ne[0], p->ne[1], p->ne[2]);
        block->n_dims = p->n_dims;
        memcpy(block->own, p->data, p->bytes);
    }
    set_floats(add(w, w->n_block, "nextn.eh_proj.weight", 2 * embd, embd, 0), 0.125f);
    set_floats(add(w, w->n_block, "nextn.enorm.weight", embd, 0, 0), 1.0f);
    set_floats(add(w, w->n_block, "nextn.hnorm.weight", embd, 0, 0), 1.0f);
    set_floats(add(w, w->n_block, "nextn.shared_head_norm.weight", embd, 0, 0), 1.0f);
    w->n_block++;
    set_int(w, "qwen3next.block_count", w->n_block);
    set_int(w, "qwen3next.nextn_predict_layers", 1);
}

/* Recurrent layers by list, and an interval that differs. An MTP block is not looked up. */
static void list_mixers(copy *w, gguf_type type)
{
    key_edit *k = set_key(w, "qwen3next.attention.recurrent_layers", type, true,
                          (uint64_t)w->n_block);
    for (int l = 0; l < w->n_block; l++) {
        const bool attention = l < w->of->m->hp.n_layer &&
                               w->of->m->layers[l].mixer == MIX_ATTENTION;
        if (type == GGUF_BOOL) k->value.bools[l] = !attention;
        else k->value.ints[l] = !attention;
    }
    set_int(w, "qwen3next.full_attention_interval", 3);
}

static void list_mixers_int(copy *w) { list_mixers(w, GGUF_I32); }
static void list_mixers_bool(copy *w) { list_mixers(w, GGUF_BOOL); }

static void no_interval(copy *w)
{
    set_key(w, "qwen3next.full_attention_interval", GGUF_I32, false, 0);
}

/* Key heads per block, 0 where a layer is recurrent. */
static void list_kv_heads(copy *w)
{
    const model *m = w->of->m;
    key_edit *k = set_key(w, "qwen3next.attention.head_count_kv", GGUF_I32, true,
                          (uint64_t)w->n_block);
    for (int l = 0; l < w->n_block; l++)
        k->value.ints[l] = l >= m->hp.n_layer || m->layers[l].mixer == MIX_ATTENTION
                               ? m->hp.n_head_kv : 0;
}

/* ---- edits: gpt-oss -------------------------------------------------------------------------- */

static void fuse_qkv(copy *w)
{
    static const char *const weights[] = { "attn_q.weight", "attn_k.weight", "attn_v.weight" };
    static const char *const biases[] = { "attn_q.bias", "attn_k.bias", "attn_v.bias" };
    for (int l = 0; l < w->n_block; l++) {
        fuse(w, l, "attn_qkv.weight", weights, 3);
        fuse(w, l, "attn_qkv.bias", biases, 3);
    }
}

static void window_period(copy *w, int period)
{
    set_int(w, "gpt-oss.attention.sliding_window_pattern", period);
}

static void window_base(copy *w, float base)
{
    set_key(w, "gpt-oss.rope.freq_base_swa", GGUF_F32, false, 1)->value.number = base;
}

static void default_period(copy *w) { window_period(w, 2); }
static void default_base(copy *w) { window_base(w, (float)w->of->m->hp.rope_base); }

/* ---- edits: both ----------------------------------------------------------------------------- */

static bool is_matrix(const piece *p)
{
    static const char *const small[] = { "norm", "sinks", "gate_inp", "conv1d", "ssm_dt", "ssm_a" };
    for (size_t i = 0; i < ARRAY_LEN(small); i++)
        if (strstr(p->name, small[i])) return false;
    return p->name[0] && str_ends(str_from(p->name), ".weight");
}

/* Takes a power of two out of every matrix, another one out of every expert, and stores it in
 * a companion. A plain head has no companion. */
static void take_scales(copy *w, bool long_name)
{
    const int n = w->n_piece;
    for (int i = 0; i < n; i++) {
        piece *p = &w->pieces[i];
        char name[TENSOR_MAX_NAME + 16];
        if (!is_matrix(p) || strcmp(p->name, "output.weight") == 0) continue;
        const int stem = (int)strlen(p->name) - (long_name ? 0 : (int)sizeof ".weight" - 1);
        const size_t slab = p->bytes / p->ne[2] / sizeof(float);
        uint8_t *own = mem_array(p->bytes, 1);
        snprintf(name, sizeof name, "%.*s.scale", stem, p->name);
        piece *scale = add(w, -1, name, p->ne[2], 0, 0);
        demand(own, p->name);
        for (size_t e = 0; e < p->ne[2]; e++) {
            const float factor = (float)(2 << ((size_t)i + e) % 3);
            memcpy(scale->own + e * sizeof factor, &factor, sizeof factor);
            for (size_t k = e * slab; k < (e + 1) * slab; k++) {
                const float v = load_f32(p->data + k * sizeof v) / factor;
                memcpy(own + k * sizeof v, &v, sizeof v);
            }
        }
        mem_free(p->own);
        p->data = p->own = own;
    }
}

static void scales(copy *w) { take_scales(w, false); }
static void scales_long_name(copy *w) { take_scales(w, true); }

/* One float as F16 or BF16; false if it is not exact. */
static bool halve(uint16_t *to, float v, quant_type type)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, exponent = bits >> 23 & 255;
    if (type == QT_BF16) *to = (uint16_t)(bits >> 16);
    else if (exponent > 142) return false;
    else if (exponent > 112) *to = (uint16_t)(sign | ((bits >> 13 & 0x3FFFFu) - (112u << 10)));
    else *to = (uint16_t)(sign | (uint32_t)(fabsf(v) * 0x1p24f));
    const float back = type == QT_BF16 ? bf16_to_f32(*to) : f16_to_f32(*to);
    return memcmp(&back, &v, sizeof v) == 0;
}

/* Stores as half floats whatever loses nothing. gpt-oss keeps all but matrices in F32. */
static int store_halves(copy *w, quant_type type)
{
    int n_matrix = 0;
    for (int i = 0; i < w->n_piece; i++) {
        piece *p = &w->pieces[i], half = *p;
        const bool may = is_matrix(p) || (w->of->m->hp.arch == ARCH_QWEN3NEXT && p->name[0] &&
                                          !str_ends(str_from(p->name), ".scale"));
        bool exact = may;
        if (!may || p->type != QT_F32) continue;
        half.own = NULL;
        renew(&half, type);
        for (size_t k = 0; exact && k < p->bytes / sizeof(float); k++) {
            uint16_t v;
            exact = halve(&v, load_f32(p->data + k * sizeof(float)), type);
            if (exact) memcpy(half.own + k * sizeof v, &v, sizeof v);
        }
        if (exact) {
            n_matrix += is_matrix(p);
            mem_free(p->own);
            *p = half;
        } else {
            mem_free(half.own);
        }
    }
    return n_matrix;
}

static void as_bf16(copy *w)
{
    const int n = store_halves(w, QT_BF16);
    int n_all = 0;
    for (int i = 0; i < w->n_piece; i++) n_all += is_matrix(&w->pieces[i]);
    CHECK_MSG(n == n_all, "%s: %d of %d matrices are bfloat16", w->of->name, n, n_all);
}

static void as_f16(copy *w)
{
    const int n = store_halves(w, QT_F16);
    CHECK_MSG(n > 8, "%s: %d matrices are F16", w->of->name, n);
}

/* Head and embedding the same, in full. */
static void double_head(copy *w)
{
    const piece *embed = need(w, -1, "token_embd.weight");
    piece *head = need(w, -1, "output.weight");
    memcpy(renew(head, QT_F32), embed->data, embed->bytes);
}

static void tie_head(copy *w) { drop(need(w, -1, "output.weight")); }

static void add_head_scale(copy *w, float v)
{
    set_floats(add(w, -1, "output.scale", 1, 0, 0), v);
}
static void idle_head_scale(copy *w) { add_head_scale(w, 3.0f); }

/* Any NVFP4 head will do: 36 bytes for 64 weights, the first four of them scales, in E4M3. Less 8
 * is half as much. */
static void nvfp4_head(copy *w, uint8_t less)
{
    test_rng rng = { 4 };
    piece *head = need(w, -1, "output.weight");
    uint8_t *to = renew(head, QT_NVFP4);
    for (size_t i = 0; i < head->bytes; i++) {
        const uint8_t byte = (uint8_t)test_rand(&rng);
        to[i] = i % 36 < 4 ? (uint8_t)(0x30 - less + (byte & 7)) : byte;
    }
}

static void nvfp4_head_plain(copy *w) { nvfp4_head(w, 0); }
static void nvfp4_head_scaled(copy *w)
{
    nvfp4_head(w, 8);
    add_head_scale(w, 2.0f);
}

/* ---- equal bits ------------------------------------------------------------------------------ */

typedef struct variant {
    int subject;
    bool exact;                          /* kernels */
    edit_fn *base, *edits[8];            /* compared: the model after base, and after all edits */
    const char *bound;                   /* a tensor that must be in use, or NULL */
    const char *why;
} variant;

static const variant variants[] = {
    { QWEN, false, NULL, { NULL }, NULL, "written again as it is" },
    { QWEN, false, NULL, { legacy_in }, "blk.6.ssm_in.weight", "legacy projection" },
    { QWEN, false, NULL, { plain_dt }, "blk.6.ssm_dt", "other name of the bias" },
    { QWEN, false, NULL, { fuse_experts }, "blk.7.ffn_gate_up_exps.weight", "gate and up fused" },
    { QWEN, false, NULL, { shared_gate_rank1 }, NULL, "shared gate as a vector" },
    { QWEN, false, NULL, { append_mtp }, "blk.8.nextn.eh_proj.weight", "next-token block" },
    { QWEN, false, NULL, { list_mixers_int }, NULL, "recurrent layers by list" },
    { QWEN, false, NULL, { no_interval }, NULL, "default interval" },
    { QWEN, false, NULL, { list_kv_heads }, NULL, "key heads by list" },
    { QWEN, false, double_head, { tie_head }, NULL, "tied head" },
    { QWEN, false, double_head, { tie_head, scales }, "token_embd.scale", "tied, scaled head" },
    { QWEN, false, NULL, { scales }, "blk.0.attn_qkv.scale", "companion scales" },
    { QWEN, true, NULL, { scales_long_name }, "blk.7.ffn_up_exps.weight.scale",
      "companion scales, the other name, exact" },
    { QWEN, false, NULL, { idle_head_scale }, NULL, "scale of a plain head: not heeded" },
    { QWEN, false, nvfp4_head_plain, { nvfp4_head_scaled }, "output.scale", "NVFP4 head" },
    { QWEN, true, nvfp4_head_plain, { nvfp4_head_scaled }, "output.scale", "NVFP4 head, exact" },
    { QWEN, false, NULL, { as_bf16 }, NULL, "BF16" },
    { QWEN, true, NULL, { as_bf16 }, NULL, "BF16, exact" },
    { QWEN, false, NULL, { as_f16 }, NULL, "F16" },
    { QWEN, true, NULL, { as_f16 }, NULL, "F16, exact" },
    { QWEN, false, NULL,
      { append_mtp, legacy_in, plain_dt, fuse_experts, list_mixers_bool, list_kv_heads, scales,
        as_bf16 }, "blk.8.ffn_gate_up_exps.scale", "all at once" },
    { GPTOSS, false, NULL, { fuse_qkv }, "blk.3.attn_qkv.bias", "q, k, v fused" },
    { GPTOSS, false, NULL, { default_period }, NULL, "default period as a key" },
    { GPTOSS, false, NULL, { default_base }, NULL, "default base of windows as a key" },
    { GPTOSS, false, NULL, { scales }, "blk.0.ffn_down_exps.scale", "companion scales" },
    { GPTOSS, false, NULL, { as_bf16 }, NULL, "BF16" },
    { GPTOSS, true, NULL, { as_f16 }, NULL, "F16, exact" },
    { GPTOSS, true, NULL, { fuse_qkv, default_period, scales_long_name, as_bf16 },
      "blk.2.attn_qkv.weight.scale", "all at once, exact" },
};

typedef struct search { const char *name; bool found; } search;

static void see_name(void *ctx, const tensor *t, model_use use, int layer)
{
    search *s = ctx;
    (void)use;
    (void)layer;
    s->found = s->found || str_is(t->name, s->name);
}

/* Logits of the model after some edits, to be freed; NULL after a failed check. */
static float *edited(const subject *of, edit_fn *const *edits, int n, bool exact, const char *bound,
                     const char *why)
{
    copy *w = copy_create(of);
    float *rows = rows_of(of->m);
    search look = { bound, !bound };

    for (int i = 0; i < n && edits[i]; i++) edits[i](w);
    bool ok = copy_open(w, why);
    if (ok) model_visit(w->m, see_name, &look);
    ok = ok && CHECK_MSG(look.found, "%s, %s: %s is not used", of->name, why, bound) &&
         compute(rows, w->m, of->ids, COPY_PREFILL, exact);
    copy_free(w);
    if (ok) return rows;
    mem_free(rows);
    return NULL;
}

/* Equal bits of rows that are not trivial. */
static void see_equal(const float *got, const float *want, int n_vocab, const char *name,
                      const char *why)
{
    for (int t = 0; t < COPY_ROWS; t++, got += n_vocab, want += n_vocab) {
        double sum = 0;
        for (int c = 0; c < n_vocab; c++) sum += fabs((double)want[c]);
        if (!CHECK_MSG(sum > 0 && isfinite(sum), "%s, %s: nothing to compare", name, why)) return;
        if (!CHECK_MSG(memcmp(got, want, (size_t)n_vocab * sizeof *got) == 0,
                       "%s, %s: token %d (%s) differs: %.9g, expected %.9g", name, why, t,
                       t < COPY_PREFILL ? "prefill" : "decode", got[0], want[0])) return;
    }
}

static void test_rewritten(void)
{
    for (size_t i = 0; i < ARRAY_LEN(variants); i++) {
        const variant *v = &variants[i];
        const subject *s = &subjects[v->subject];
        float *base = v->base ? edited(s, &v->base, 1, v->exact, NULL, v->why) : NULL;
        float *got = edited(s, v->edits, ARRAY_LEN(v->edits), v->exact, v->bound, v->why);
        const float *want = v->base ? base : s->logits[v->exact];
        if (got && want) see_equal(got, want, s->m->hp.n_vocab, s->name, v->why);
        mem_free(base);
        mem_free(got);
    }
}

/* ---- other logits ---------------------------------------------------------------------------- */

/* Keys that change the model. The logits, of every 64th token after PREFILL tokens, are those of a
 * program in numpy, float64, that was written from a description of the architecture and gives the
 * golden logits of the whole 130 tokens to 8e-7; windowed layers were given their own base, the
 * period was set. */
static const struct {
    float base;                          /* 0: no such key */
    int period;
    double want[8];
    const char *why;
} changes[] = {
    { 0, 0, { -0.257112732, 0.302866727, -0.939051047, -0.50652335, 0.605666579, -0.686281875,
              0.618114984, 0.542002735 }, "nothing changed" },
    { 10000, 0, { -0.391573563, 0.358085741, -0.925737524, -0.671133787, 0.83370201, -0.813805553,
                  0.551907558, 0.681483275 }, "other base in windows" },
    { 0, 4, { -0.234331339, 0.33055747, -0.879249412, -0.467012881, 0.596966119, -0.647453769,
              0.659829492, 0.494376457 }, "three windowed layers of four" },
    { 10000, 4, { -0.364573685, 0.443231688, -0.817269737, -0.639590045, 0.79627047, -0.770309677,
                  0.644364583, 0.594566557 }, "both" },
};

static void test_changes(void)
{
    const subject *s = &subjects[GPTOSS];
    float *rows = rows_of(s->m), got[8];
    for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
        copy *w = copy_create(s);
        if (changes[i].base > 0) window_base(w, changes[i].base);
        if (changes[i].period) window_period(w, changes[i].period);
        if (copy_open(w, changes[i].why) && compute(rows, w->m, s->ids, PREFILL, false)) {
            const float *last = rows + (size_t)(PREFILL - 1) * (size_t)s->m->hp.n_vocab;
            for (int k = 0; k < 8; k++) got[k] = last[64 * k];
            const double e = rel_error(got, changes[i].want, 8);
            CHECK_MSG(e < 2e-5, "%s, %s: error %.2e", s->name, changes[i].why, e);
        }
        copy_free(w);
    }
    mem_free(rows);
}

/* ---- widths ---------------------------------------------------------------------------------- */

/* A width that would not fit all through the engine is refused, one that just does is not. */
static void test_widths(void)
{
    static const struct { size_t field; int most; const char *word; } rows[] = {
        { offsetof(model_hparams, n_head), 1 << 20, "attention heads" },         /* of 2 * 32 */
        { offsetof(model_hparams, head_dim), 1 << 23, "attention heads" },       /* 2 * 4 heads */
        { offsetof(model_hparams, ssm_n_v_head), 1 << 21, "DeltaNet values" },   /* of 32 */
        { offsetof(model_hparams, ssm_n_k_head), 1 << 21, "DeltaNet keys" },
        { offsetof(model_hparams, n_vocab), 1 << 26, "vocabulary" },
    };
    const engine_options eo = { .threads = test_n_thread(1) };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (int over = 0; over < 2; over++) {
            model m = *subjects[QWEN].m;
            const int width = rows[i].most + over;
            engine *e = NULL;
            err_ctx err = { 0 };
            memcpy((char *)&m.hp + rows[i].field, &width, sizeof width);
            const int rc = engine_open(&e, &m, &eo, &err);
            CHECK_MSG(over ? rc == ERR_UNSUPPORTED && !e && strstr(err.msg, rows[i].word) : rc == 0,
                      "%s, %d: %d, %s", rows[i].word, width, rc, err.msg);
            engine_close(e);
        }
}

int main(int argc, char **argv)
{
    test_begin("variants", argc, argv);
    for (int i = 0; i < N_SUBJECT; i++) subject_open(&subjects[i]);
    test_rewritten();
    test_changes();
    test_widths();
    for (int i = 0; i < N_SUBJECT; i++) subject_close(&subjects[i]);
    return test_end();
}
