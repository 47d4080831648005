/* model.c - the supported architectures, and sums over the tensors of a bound model.
 *
 * model_bind calls the bind function of the file's architecture; the resulting model is complete
 * and checked. engine/models/ has the tables of keys and tensors; model_bind.c applies them. */
#include "engine/models/model.h"

#include <stdio.h>
#include <string.h>

#include "engine/models/model_bind.h"

/* ---- architectures -------------------------------------------------------------------------- */

static const model_family *const families[] = {
    [ARCH_QWEN3NEXT] = &qwen3next_family, [ARCH_GPTOSS] = &gptoss_family,
    [ARCH_QWEN3MOE] = &qwen3moe_family, [ARCH_OLMOE] = &olmoe_family,
    [ARCH_LLAMA] = &llama_family, [ARCH_QWEN35MOE] = &qwen35moe_family,
    [ARCH_GLM4MOE] = &glm4moe_family, [ARCH_GEMMA4] = &gemma4_family,
};

/* Unsupported architectures whose message has a hint. */
static const struct { const char *name, *hint; } relatives[] = {
    { "gptoss", GGUF_OLLAMA_HINT },
    { "qwen35", "the dense relative of qwen35moe" },
    { "gemma4-assistant", "a drafter for gemma4, not a model of its own" },
    { "clip", "an encoder of images or sound (mmproj), not a language model; name the file of the "
              "model itself" },
};

const model_family *model_family_of(model_arch a) { return families[a]; }

const char *model_arch_name(model_arch a) { return families[a]->name; }

static int unsupported(str_view name, err_ctx *err)
{
    char text[96], list[160] = "";
    const char *hint = NULL;

    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
                 families[i]->name);
    for (size_t i = 0; i < ARRAY_LEN(relatives); i++)
        if (str_is(name, relatives[i].name)) hint = relatives[i].hint;
    return err_set(err, ERR_UNSUPPORTED, "unsupported architecture '%s' (supported: %s)%s%s",
                   ESC(text, name), list, hint ? ": " : "", hint ? hint : "");
}

static int find_architecture(model_arch *out, const gguf *g, err_ctx *err)
{
    const char *key = "general.architecture";
    str_view name;
    const int rc = gguf_get_str(&name, g, key, err);

    if (rc < 0) return rc;
    if (rc == 0) return err_set(err, ERR_FORMAT, "key %s missing", key);
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (str_is(name, families[i]->name)) {
            *out = (model_arch)i;
            return 0;
        }
    return unsupported(name, err);
}

/* ---- unused tensors -------------------------------------------------------------------------- */

typedef struct usage {
    const tensor *first;                 /* the tensors of a file are one array */
    bool *used;
} usage;

static void mark_used(void *ctx, const tensor *t, model_use use, int layer)
{
    usage *u = ctx;
    (void)use;
    (void)layer;
    u->used[t - u->first] = true;
}

int model_block_of(str_view name)
{
    size_t at = 4;
    int block = 0;
    if (!str_starts(name, "blk.")) return -1;
    for (; at < name.len && at < 12 && name.ptr[at] >= '0' && name.ptr[at] <= '9'; at++)
        block = block * 10 + (name.ptr[at] - '0');
    return at > 4 && at < name.len && name.ptr[at] == '.' ? block : -1;
}

/* Returns true for key and value tensors of a layer that shares those of an earlier layer. */
static bool is_unused_kv(const model_layer *y, str_view name)
{
    return y->kv_back > 0 &&
           (str_ends(name, ".attn_k.weight") || str_ends(name, ".attn_v.weight") ||
            str_ends(name, ".attn_k_norm.weight"));
}

/* Logs a warning about unknown tensors of layers, which are ignored. An input_scale does not change
 * results and is no reason for a warning. */
static void tell_unknown(const model *m)
{
    const int n = gguf_n_tensor(m->file);
    const tensor *first = NULL;
    int n_unknown = 0;
    char name[128];
    if (n == m->n_bound) return;
    usage u = { gguf_tensor_at(m->file, 0), mem_zalloc((size_t)n) };
    if (!u.used) return;
    model_visit(m, mark_used, &u);
    for (int i = 0; i < n; i++) {
        const tensor *t = gguf_tensor_at(m->file, i);
        const int block = model_block_of(t->name);
        if (u.used[i] || block < 0 || block >= m->hp.n_layer || str_ends(t->name, ".input_scale") ||
            is_unused_kv(&m->layers[block], t->name))
            continue;
        if (n_unknown++ == 0) first = t;
    }
    mem_free(u.used);
    if (n_unknown)
        log_line("%s%s: %d unknown tensors of layers for architecture %s are ignored; answers may "
                 "be wrong", ESC(name, first->name), n_unknown > 1 ? " and others" : "", n_unknown,
                 m->family->name);
}

/* Counts the tensors of encoders for images (v., mm.) and sound (a.), which some files contain. */
static int count_media(const gguf *g)
{
    int n = 0;
    for (int i = 0; i < gguf_n_tensor(g); i++) {
        const str_view name = gguf_tensor_at(g, i)->name;
        n += str_starts(name, "v.") || str_starts(name, "mm.") || str_starts(name, "a.");
    }
    return n;
}

int model_bind(model **out, const gguf *g, err_ctx *err)
{
    model_arch arch = ARCH_QWEN3NEXT;
    int rc = find_architecture(&arch, g, err);

    *out = NULL;
    if (rc < 0) return rc;
    model *m = mem_zalloc(sizeof *m);
    if (!m) return err_set(err, ERR_NOMEM, "out of memory for a model");
    m->file = g;
    m->hp.arch = arch;
    m->family = families[arch];
    binder b = { .m = m, .file = g, .arch = m->family->name, .err = err };
    if ((rc = m->family->bind(&b)) < 0) {
        model_free(m);
        return rc;
    }
    m->own_experts_used = m->hp.n_expert_used;
    if ((m->n_media = count_media(g)) > 0)
        log_line("%d tensors are for pictures or sound: ignored, only text is read", m->n_media);
    tell_unknown(m);
    *out = m;
    return 0;
}

int model_check_experts(const model *m, int n, err_ctx *err)
{
    const int most = min_int(m->hp.n_expert, MODEL_MOST_USED);
    if (n == m->own_experts_used || (n >= 1 && n <= most)) return 0;
    return err_set(err, ERR_RANGE, "%d experts for a token: of this model's %d, 1 to %d can be "
                   "used", n, m->hp.n_expert, most);
}

int model_use_experts(model *m, int n, err_ctx *err)
{
    const int rc = model_check_experts(m, n, err);
    if (rc == 0) m->hp.n_expert_used = m->experts.n_used = n;
    return rc;
}

void model_use_mtp(model *m, bool used)
{
    const tensor *t = m->hp.n_mtp > 0 ? m->layers[m->hp.n_layer].mtp.eh_proj.t : NULL;
    /* a GPU has the halves of its rows apart */
    m->hp.uses_mtp = used && t && m->hp.n_embd % quant_traits_of(t->type)->block_elems == 0;
}

const expert_bank *model_first_bank(const model *m)
{
    int l = 0;
    while (l < m->hp.n_layer - 1 && m->layers[l].experts->n_expert == 0) l++;
    return m->layers[l].experts;
}

int model_split_most(const model *m)
{
    int most = m->hp.n_layer;
    for (int l = 0; l < m->hp.n_layer; l++)
        if (m->layers[l].kv_back > 0) most = min_int(most, model_kv_layer(m, l));
    return most;
}

void model_free(model *m)
{
    if (!m) return;
    mem_free(m->experts.of);
    mem_free(m->layers);
    mem_free(m);
}

/* ---- every tensor, by use -------------------------------------------------------------------- */

const char *model_use_name(model_use u)
{
    static const char *const names[USE_COUNT] = {
        [USE_EMBED] = "embedding", [USE_HEAD] = "head", [USE_NORM] = "norms",
        [USE_ATTENTION] = "attention", [USE_DELTANET] = "DeltaNet", [USE_ROUTER] = "router",
        [USE_SHARED] = "shared expert", [USE_EXPERT_GATE] = "experts gate",
        [USE_EXPERT_UP] = "experts up", [USE_EXPERT_GATE_UP] = "experts gate+up",
        [USE_EXPERT_DOWN] = "experts down", [USE_EXPERT_SMALL] = "experts bias, scale",
        [USE_MTP] = "next-token block",
    };
    return names[u];
}

/* Every weight of a layer. A field that is missing here is missing from all sums; test_model.c
 * compares the number of visited tensors with n_bound. */
#define AT(field, use) { offsetof(model_layer, field), use, false }
#define MATRIX_AT(field, use) { offsetof(model_layer, field), use, true }
static const struct { size_t at; model_use use; bool is_matrix; } layer_weights[] = {
    AT(attn_norm, USE_NORM), AT(post_attn_norm, USE_NORM), AT(router_norm, USE_NORM),
    AT(experts_norm, USE_NORM), AT(mix_out_norm, USE_NORM), AT(experts_out_norm, USE_NORM),
    AT(shared_out_norm, USE_NORM), AT(ffn_out_norm, USE_NORM), AT(out_scale, USE_NORM),
    MATRIX_AT(attn.q, USE_ATTENTION),
    MATRIX_AT(attn.k, USE_ATTENTION), MATRIX_AT(attn.v, USE_ATTENTION),
    MATRIX_AT(attn.out, USE_ATTENTION), AT(attn.q_bias, USE_ATTENTION),
    AT(attn.k_bias, USE_ATTENTION), AT(attn.v_bias, USE_ATTENTION),
    AT(attn.out_bias, USE_ATTENTION), AT(attn.sinks, USE_ATTENTION), AT(attn.q_norm, USE_NORM),
    AT(attn.k_norm, USE_NORM), MATRIX_AT(attn.qkv, USE_ATTENTION), AT(attn.qkv_bias, USE_ATTENTION),
    MATRIX_AT(delta.qkv, USE_DELTANET), MATRIX_AT(delta.gate, USE_DELTANET),
    MATRIX_AT(delta.in, USE_DELTANET), MATRIX_AT(delta.ba, USE_DELTANET),
    MATRIX_AT(delta.beta, USE_DELTANET), MATRIX_AT(delta.alpha, USE_DELTANET),
    AT(delta.conv, USE_DELTANET), AT(delta.dt_bias, USE_DELTANET), AT(delta.a, USE_DELTANET),
    AT(delta.norm, USE_NORM), MATRIX_AT(delta.out, USE_DELTANET), AT(router, USE_ROUTER),
    AT(router_bias, USE_ROUTER), AT(choice_bias, USE_ROUTER), AT(shared_gate_inp, USE_SHARED),
    MATRIX_AT(shared_gate, USE_SHARED), MATRIX_AT(shared_up, USE_SHARED),
    MATRIX_AT(shared_down, USE_SHARED), MATRIX_AT(mtp.eh_proj, USE_MTP), AT(mtp.enorm, USE_MTP),
    AT(mtp.hnorm, USE_MTP), AT(mtp.head_norm, USE_MTP), MATRIX_AT(mtp.embed, USE_MTP),
    MATRIX_AT(mtp.head, USE_MTP),
};
#undef MATRIX_AT
#undef AT

static void visit_weight(const weight *w, model_use use, int layer, model_visit_fn *fn, void *ctx)
{
    if (w->t) fn(ctx, w->t, use, layer);
    if (w->scale) fn(ctx, w->scale, use, layer);
}

static model_use expert_use(const expert_bank *bank, int s)
{
    static const model_use uses[SLAB_COUNT] = { USE_EXPERT_GATE, USE_EXPERT_UP, USE_EXPERT_DOWN };
    return bank->fused && s == SLAB_GATE ? USE_EXPERT_GATE_UP : uses[s];
}

static void visit_experts(const expert_bank *bank, int layer, model_visit_fn *fn, void *ctx)
{
    for (int s = 0; s < SLAB_COUNT && bank->n_expert > 0; s++) {
        const bool seen = bank->fused && s == SLAB_UP;
        if (!seen) fn(ctx, bank->weight[s], expert_use(bank, s), layer);
        if (!seen && bank->scale[s]) fn(ctx, bank->scale[s], USE_EXPERT_SMALL, layer);
        if (bank->bias[s]) fn(ctx, bank->bias[s], USE_EXPERT_SMALL, layer);
    }
}

void model_visit(const model *m, model_visit_fn *fn, void *ctx)
{
    visit_weight(&m->embed, USE_EMBED, NO_LAYER, fn, ctx);
    visit_weight(&m->out_norm, USE_NORM, NO_LAYER, fn, ctx);
    visit_weight(&m->rope_factors, USE_ATTENTION, NO_LAYER, fn, ctx);
    if (!m->head_tied) visit_weight(&m->head, USE_HEAD, NO_LAYER, fn, ctx);
    for (int l = 0; l < m->hp.n_layer + m->hp.n_mtp; l++) {
        const char *layer = (const char *)&m->layers[l];
        for (size_t i = 0; i < ARRAY_LEN(layer_weights); i++)
            visit_weight((const weight *)(layer + layer_weights[i].at), layer_weights[i].use, l, fn,
                         ctx);
        visit_experts(m->layers[l].experts, l, fn, ctx);
    }
}

static void visit_matrix(const weight *w, model_use use, model_matrix_fn *fn, void *ctx)
{
    if (w->t) fn(ctx, w->t, w->scale, use);
}

void model_visit_matrices(const model *m, model_matrix_fn *fn, void *ctx)
{
    visit_matrix(&m->embed, USE_EMBED, fn, ctx);
    if (!m->head_tied) visit_matrix(&m->head, USE_HEAD, fn, ctx);
    for (int l = 0; l < m->hp.n_layer + m->hp.n_mtp; l++) {
        const char *layer = (const char *)&m->layers[l];
        const expert_bank *bank = m->layers[l].experts;
        for (size_t i = 0; i < ARRAY_LEN(layer_weights); i++)
            if (layer_weights[i].is_matrix)
                visit_matrix((const weight *)(layer + layer_weights[i].at), layer_weights[i].use,
                             fn, ctx);
        for (int s = 0; s < SLAB_COUNT && bank->n_expert > 0; s++)
            if (!(bank->fused && s == SLAB_UP))
                fn(ctx, bank->weight[s], bank->scale[s], expert_use(bank, s));
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

typedef struct tally { model_bytes *sum; const model *m; } tally;

static void count_tensor(void *ctx, const tensor *t, model_use use, int layer)
{
    model_bytes *s = ((tally *)ctx)->sum;
    const model *m = ((tally *)ctx)->m;
    const bool expert = use >= USE_EXPERT_GATE && use <= USE_EXPERT_SMALL;

    if (layer >= m->hp.n_layer) {
        s->mtp += t->bytes;
        return;
    }
    s->params += t->elems;
    if (expert) {                        /* all experts of a tensor have the same size */
        s->experts += t->bytes;
        s->params_active += t->elems / (uint64_t)m->hp.n_expert * (uint64_t)m->hp.n_expert_used;
        return;
    }
    s->dense += t->bytes;
    if (use == USE_EMBED) s->embed += t->bytes;
    if (use == USE_HEAD) s->head += t->bytes;
    if (use == USE_EMBED && !m->head_tied) return;
    s->params_active += t->elems;
    s->token_dense += t->bytes;
}

void model_count_bytes(model_bytes *out, const model *m)
{
    tally ctx = { out, m };
    *out = (model_bytes){ 0 };
    model_visit(m, count_tensor, &ctx);
    for (int l = 0; l < m->hp.n_layer; l++) {
        const uint64_t one = expert_bytes(m->layers[l].experts);
        const uint64_t bank = expert_bank_bytes(m->layers[l].experts);
        if (one > out->expert_largest) out->expert_largest = one;
        if (bank > out->bank_largest) out->bank_largest = bank;
        out->token_experts += one * (uint64_t)m->hp.n_expert_used;
    }
}

/* ---- fingerprint ----------------------------------------------------------------------------- */

static void mix_in(uint64_t *h, uint64_t v)
{
    *h = (*h ^ v) * 0x9E3779B97F4A7C15u;
    *h ^= *h >> 29;
}

/* Mixes in name, type, shape, and some bytes at the start, in the middle and at the end. */
static void print_tensor(void *ctx, const tensor *t, model_use use, int layer)
{
    enum { SAMPLE = 64 };
    const uint64_t n = t->bytes < SAMPLE ? t->bytes : SAMPLE;
    const uint64_t places[] = { 0, (t->bytes - n) / 2, t->bytes - n };
    uint64_t *h = ctx;
    (void)use;
    (void)layer;
    mix_in(h, str_hash(t->name));
    mix_in(h, t->type);
    mix_in(h, t->cols);
    mix_in(h, t->rows);
    mix_in(h, t->slabs);
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        mix_in(h, str_hash((str_view){ (const char *)t->data + places[i], (size_t)n }));
}

uint64_t model_fingerprint(const model *m)
{
    uint64_t h = (uint64_t)m->hp.arch + 1;
    model_visit(m, print_tensor, &h);
    return h;
}
