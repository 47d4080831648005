/* test_model.c - what the binder makes of good files: made by others, of real size, of every
 * variant. Bad ones are in test_model_refuse.c. */
#include "tests/test.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/models/model.h"
#include "tests/make_model.h"

/* ---- files that others made ------------------------------------------------------------------ */

static void test_files(void)
{
    static const struct {
        const char *file;
        int unpacked;
        model_hparams hp;
        int n_attention, n_tensor;
        uint64_t params;                 /* 0: not stated */
    } rows[] = {
        { "models/tiny-qwen3next-f32.gguf", 1,
          { .arch = ARCH_QWEN3NEXT, .n_layer = 8, .n_vocab = 512, .ctx_train = 4096, .n_embd = 64,
            .n_head = 4, .n_head_kv = 2, .head_dim = 32, .rms_eps = 1e-6f, .rope_dim = 8,
            .rope_base = 10000, .rope_factor = 1, .n_expert = 16, .n_expert_used = 4,
            .n_ff_expert = 32, .n_ff_shared = 32, .ssm_conv = 4, .ssm_head_dim = 32,
            .ssm_n_k_head = 2, .ssm_n_v_head = 4 }, 2, 143, 0 },
        { "models/tiny-gptoss-f32.gguf", 1,
          { .arch = ARCH_GPTOSS, .n_layer = 4, .n_vocab = 512, .ctx_train = 131072, .n_embd = 96,
            .n_head = 4, .n_head_kv = 2, .head_dim = 32, .rms_eps = 1e-5f, .rope_dim = 32,
            .rope_base = 150000, .rope_scaling = ROPE_YARN, .rope_factor = 32, .n_expert = 8,
            .n_expert_used = 4, .n_ff_expert = 64, .window = 32 }, 4, 79, 0 },
        { "tests/models/demo-qwen3next-mtp.gguf", 0,
          { .arch = ARCH_QWEN3NEXT, .n_layer = 4, .n_vocab = 4096, .ctx_train = 4096, .n_embd = 256,
            .n_head = 8, .n_head_kv = 2, .head_dim = 64, .rms_eps = 1e-6f, .rope_dim = 16,
            .rope_base = 10000, .rope_factor = 1, .n_expert = 24, .n_expert_used = 4,
            .n_ff_expert = 256, .n_ff_shared = 256, .ssm_conv = 4, .ssm_head_dim = 64,
            .ssm_n_k_head = 2, .ssm_n_v_head = 4, .n_mtp = 1 }, 1, 93, 23000000 },
        { "tests/models/demo-gptoss-MXFP4.gguf", 0,
          { .arch = ARCH_GPTOSS, .n_layer = 4, .n_vocab = 4096, .ctx_train = 131072, .n_embd = 192,
            .n_head = 8, .n_head_kv = 2, .head_dim = 32, .rms_eps = 1e-5f, .rope_dim = 32,
            .rope_base = 150000, .rope_scaling = ROPE_YARN, .rope_factor = 32, .n_expert = 16,
            .n_expert_used = 4, .n_ff_expert = 192, .window = 64 }, 4, 79, 9200000 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        model_hparams want = rows[i].hp;
        model_bytes sum;
        err_ctx err = { 0 };
        gguf *g = NULL;
        model *m = NULL;
        char path[512];
        int n_attention = 0;

        if (rows[i].unpacked) test_path(path, sizeof path, "%s/%s", test_unpacked(), rows[i].file);
        else test_path(path, sizeof path, "%s", rows[i].file);
        CHECK_MSG(gguf_open(&g, path, &err) == 0, "%s: %s", path, err.msg);
        if (!g) continue;
        CHECK_MSG(model_bind(&m, g, &err) == 0, "%s: %s", path, err.msg);
        if (m) {
            want.rope_attn_factor = 1;   /* the same in all four */
            want.rope_base_window = want.rope_base;
            want.rope_ctx_orig = 4096;
#define SAME(f) CHECK_MSG(m->hp.f == want.f, "%s: " #f " is %g", path, (double)m->hp.f)
            SAME(arch); SAME(n_layer); SAME(n_mtp); SAME(n_vocab); SAME(ctx_train); SAME(n_embd);
            SAME(n_head); SAME(n_head_kv); SAME(head_dim); SAME(rms_eps); SAME(rope_dim);
            SAME(rope_base); SAME(rope_base_window); SAME(rope_scaling); SAME(rope_factor);
            SAME(rope_ctx_orig); SAME(rope_attn_factor); SAME(n_expert); SAME(n_expert_used);
            SAME(n_ff_expert); SAME(n_ff_shared); SAME(window); SAME(ssm_conv); SAME(ssm_head_dim);
            SAME(ssm_n_k_head); SAME(ssm_n_v_head);
#undef SAME
            for (int l = 0; l < m->hp.n_layer; l++) {
                const bool windowed = want.arch == ARCH_GPTOSS && l % 2 == 0;
                n_attention += m->layers[l].mixer == MIX_ATTENTION;
                CHECK_MSG(m->layers[l].window == (windowed ? want.window : 0),
                          "%s: layer %d has window %d", path, l, m->layers[l].window);
            }
            CHECK_MSG(n_attention == rows[i].n_attention, "%s: %d attention layers", path,
                      n_attention);
            CHECK_MSG(gguf_n_tensor(g) == rows[i].n_tensor && m->n_bound == rows[i].n_tensor,
                      "%s: %d tensors, %d bound", path, gguf_n_tensor(g), m->n_bound);
            model_count_bytes(&sum, m);
            CHECK_MSG(!rows[i].params || (sum.params + 50000) / 100000 == rows[i].params / 100000,
                      "%s: %" PRIu64 " parameters", path, sum.params);
        }
        model_free(m);
        gguf_close(g);
    }
}

/* A number of experts other than the file's: within bounds, seen in all sums, and taken back. */
static void test_experts_used(void)
{
    static const struct { const char *file; int n, want; const char *why; } rows[] = {
        { "tests/models/demo-qwen3next-mtp.gguf", 1, 1, "one" },
        { "tests/models/demo-qwen3next-mtp.gguf", 4, 4, "its own" },
        { "tests/models/demo-qwen3next-mtp.gguf", 24, 24, "all" },
        { "tests/models/demo-qwen3next-mtp.gguf", 25, 0, "more than all" },
        { "tests/models/demo-qwen3next-mtp.gguf", 0, 0, "none" },
        { "tests/models/demo-gptoss-MXFP4.gguf", -1, 0, "fewer than none" },
        { "tests/models/demo-gptoss-MXFP4.gguf", 16, 16, "all" },
        { "tests/models/demo-gptoss-MXFP4.gguf", INT_MAX, 0, "a large number" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        model_bytes own, now;
        err_ctx err = { 0 };
        gguf *g = NULL;
        model *m = NULL;
        if (!CHECK(gguf_open(&g, rows[i].file, &err) == 0 && model_bind(&m, g, &err) == 0)) {
            gguf_close(g);
            continue;
        }
        model_count_bytes(&own, m);
        const int rc = model_use_experts(m, rows[i].n, &err), n = m->hp.n_expert_used;
        const int want = rows[i].want ? rows[i].want : 4;
        model_count_bytes(&now, m);
        CHECK_MSG((rc == 0) == (rows[i].want > 0) && n == want && m->experts.n_used == want &&
                  m->own_experts_used == 4, "%s: %d, %d experts", rows[i].why, rc, n);
        CHECK_MSG(rc == 0 || (err.code == ERR_RANGE && strstr(err.msg, "can be used")), "%s: %s",
                  rows[i].why, err.msg);
        CHECK_MSG(now.token_experts * 4 == own.token_experts * (uint64_t)want &&
                  now.experts == own.experts && now.dense == own.dense, "%s: bytes", rows[i].why);
        CHECK(model_use_experts(m, 4, &err) == 0 && m->hp.n_expert_used == 4);
        model_free(m);
        gguf_close(g);
    }
}

/* ---- real sizes ------------------------------------------------------------------------------ */

/* The recipe of a Q4_K_M: which layers get more bits for which matrices. */
static quant_type q4_k_m(const char *name, int l)
{
    const bool more = l <= 5 || l >= 42 || (l >= 8 && (l - 8) % 3 == 0);
    const bool more_v = l == 3 || l == 11 || l == 23 || l == 35 || l == 43 || l == 47;
    const quant_type base = maker_is_small(name) ? QT_F32 : QT_Q4_K;
    if (strcmp(name, "output.weight") == 0) return QT_Q6_K;
    if (l < 0) return base;
    if (more && strncmp(name, "ffn_down", 8) == 0) return QT_Q6_K;
    if (more && strncmp(name, "attn_qkv", 8) == 0) return QT_Q6_K;
    return more_v && strncmp(name, "attn_v", 6) == 0 ? QT_Q6_K : base;
}

typedef struct visited { int n, n_mtp; uint64_t bytes, mtp_elems; const model *m; } visited;

static void count_visit(void *ctx, const tensor *t, model_use use, int layer)
{
    visited *v = ctx;
    (void)use;
    v->n++;
    v->bytes += t->bytes;
    if (layer < v->m->hp.n_layer) return;
    v->n_mtp++;
    v->mtp_elems += t->elems;
}

/* Sums that must agree with each other, whatever the model. */
static void check_sums(const char *what, const model *m, const model_bytes *sum)
{
    visited v = { .m = m };
    uint64_t banks = 0, largest = 0;
    for (int l = 0; l < m->hp.n_layer; l++) {
        const uint64_t bank = expert_bank_bytes(m->layers[l].experts);
        banks += bank;
        if (bank > largest) largest = bank;
    }
    model_visit(m, count_visit, &v);
    CHECK_MSG(v.n == m->n_bound, "%s: %d tensors visited, %d bound", what, v.n, m->n_bound);
    CHECK_MSG(banks == sum->experts, "%s: banks %" PRIu64 ", experts %" PRIu64, what, banks,
              sum->experts);
    CHECK_MSG(largest == sum->bank_largest, "%s: largest bank %" PRIu64, what, sum->bank_largest);
    CHECK_MSG(v.bytes == sum->dense + sum->experts + sum->mtp, "%s: visited %" PRIu64 " bytes",
              what, v.bytes);
}

static void check_number(const char *what, const char *which, uint64_t have, uint64_t want)
{
    CHECK_MSG(have == want, "%s: %s is %" PRIu64 ", want %" PRIu64, what, which, have, want);
}

static void check_real(const char *what, const maker *mk, int n_tensor, const model_bytes *want)
{
    maker_file f;
    err_ctx err = { 0 };
    model *m = NULL;
    model_bytes sum;

    const int rc = maker_open_sparse(&f, mk, &err);
    if (rc < 0 && test_map_refused(&err)) return;
    if (!CHECK_MSG(rc == 0, "%s: %s", what, err.msg)) return;
    CHECK_MSG(gguf_n_tensor(f.g) == n_tensor, "%s: %d tensors", what, gguf_n_tensor(f.g));
    if (CHECK_MSG(model_bind(&m, f.g, &err) == 0, "%s: %s", what, err.msg)) {
        model_count_bytes(&sum, m);
        check_sums(what, m, &sum);
        CHECK_MSG(m->n_bound == n_tensor, "%s: %d bound", what, m->n_bound);
        check_number(what, "params", sum.params, want->params);
        check_number(what, "params_active", sum.params_active, want->params_active);
        check_number(what, "experts", sum.experts, want->experts);
        check_number(what, "dense", sum.dense, want->dense);
        check_number(what, "embed", sum.embed, want->embed);
        check_number(what, "head", sum.head, want->head);
        check_number(what, "expert_largest", sum.expert_largest, want->expert_largest);
        check_number(what, "bank_largest", sum.bank_largest, want->bank_largest);
        check_number(what, "token_experts", sum.token_experts, want->token_experts);
        check_number(what, "token_dense", sum.token_dense, want->token_dense);
        check_number(what, "mtp", sum.mtp, want->mtp);
    }
    model_free(m);
    maker_close(&f);
}

#define QWEN_PARAMS UINT64_C(79674391296), UINT64_C(3563764480)

/* Files as llama-quantize makes them: bytes of all tensors, of experts, and read per token. */
static void test_qwen3next_files(void)
{
    static const struct {
        const char *what;
        quant_type type, experts_type;
        maker_type_fn *type_of;
        uint64_t experts, dense, token, embed, head, expert, token_experts;
    } rows[] = {
        { "BF16", QT_BF16, QT_BF16, NULL, 154618822656, 4833602560, 7231171584, 622329856,
          622329856, 6291456, 3019898880 },
        { "Q8_0", QT_Q8_0, QT_Q8_0, NULL, 82141249536, 2665016320, 3938724864, 330612736,
          330612736, 3342336, 1604321280 },
        { "Q6_K", QT_Q6_K, QT_Q6_K, NULL, 63417876480, 2104798208, 3088176128, 255252480,
          255252480, 2580480, 1238630400 },
        { "Q4_K_M", QT_F32, QT_F32, q4_k_m, 46808432640, 1674626048, 2413822976, 175030272,
          255252480, 589824 * 2 + 860160, 480 * 1179648 + 240 * (589824 + 860160) },
        { "MXFP4_MOE", QT_Q8_0, QT_MXFP4, NULL, 41070624768, 2665016320, 3136564224, 330612736,
          330612736, 1671168, 802160640 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        maker mk = maker_qwen3next_80b();
        const model_bytes want = {
            QWEN_PARAMS, rows[i].experts, rows[i].dense, rows[i].embed, rows[i].head,
            rows[i].expert, rows[i].expert * 512, rows[i].token_experts,
            rows[i].token - rows[i].token_experts, 0,
        };
        mk.types = (maker_types){ QT_F32, rows[i].type, rows[i].experts_type, false };
        mk.type_of = rows[i].type_of;
        check_real(rows[i].what, &mk, 843, &want);
    }
}

/* Bytes of one expert of each type; a layer has 512, of which a token takes 10, and 48 layers. */
static void test_qwen3next_experts(void)
{
    static const struct { quant_type type; uint64_t one; } rows[] = {
        { QT_BF16, 6291456 }, { QT_Q8_0, 3342336 }, { QT_Q6_K, 2580480 }, { QT_Q5_K, 2162688 },
        { QT_Q4_K, 1769472 }, { QT_IQ4_XS, 1671168 }, { QT_Q3_K, 1351680 },
        { QT_IQ3_XXS, 1204224 }, { QT_Q2_K, 1032192 }, { QT_IQ2_XXS, 811008 },
        { QT_IQ1_S, 614400 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *what = quant_name(rows[i].type);
        const uint64_t one = rows[i].one;
        maker mk = maker_qwen3next_80b();
        maker_file f;
        err_ctx err = { 0 };
        model *m = NULL;
        model_bytes sum;
        mk.types = (maker_types){ QT_F32, rows[i].type, rows[i].type, false };
        mk.n_vocab = 10;
        const int rc = maker_open_sparse(&f, &mk, &err);
        if (rc < 0 && test_map_refused(&err)) continue;
        if (!CHECK_MSG(rc == 0, "%s: %s", what, err.msg)) continue;
        if (CHECK_MSG(model_bind(&m, f.g, &err) == 0, "%s: %s", what, err.msg)) {
            model_count_bytes(&sum, m);
            check_number(what, "one expert", sum.expert_largest, one);
            check_number(what, "one bank", sum.bank_largest, 512 * one);
            check_number(what, "all experts", sum.experts, 48 * 512 * one);
            check_number(what, "per token", sum.token_experts, 48 * 10 * one);
        }
        model_free(m);
        maker_close(&f);
    }
}

/* The other generations have other numbers of tensors, and the same weights in them. */
static void test_qwen3next_generations(void)
{
    static const struct { unsigned variants; int n_mtp, n_tensor; const char *why; } rows[] = {
        { MAKE_LEGACY_IN, 0, 807, "ssm_in" },
        { MAKE_FUSED_EXPERTS, 0, 795, "fused experts" },
        { 0, 1, 863, "MTP block" },
        { MAKE_FUSED_EXPERTS, 1, 814, "fused experts and MTP block" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        maker mk = maker_qwen3next_80b();
        model_bytes want = {
            QWEN_PARAMS, 154618822656, 4833602560, 622329856, 622329856, 6291456, 3221225472,
            3019898880, 7231171584 - 3019898880, 0,
        };
        mk.types = (maker_types){ QT_F32, QT_BF16, QT_BF16, false };
        mk.variants = rows[i].variants;
        mk.n_mtp = rows[i].n_mtp;
        /* An MTP block has 1,650,471,424 weights; router, shared gate and norms of it are F32. */
        if (mk.n_mtp) want.mtp = 2 * UINT64_C(1650471424) + 2 * (1048576 + 2048 + 4608 + 3 * 2048);
        check_real(rows[i].why, &mk, rows[i].n_tensor, &want);
    }
}

static void test_gptoss_real(void)
{
    static const struct {
        const char *what;
        bool large;
        quant_type dense_type;
        int n_tensor;
        uint64_t params, active, experts, dense, table, layers;
    } rows[] = {
        { "20b Q8_0", false, QT_Q8_0, 459, 20914757184, 3608307264, 10178887680, 1917670656,
          615329280, 687000576 },
        { "20b BF16", false, QT_BF16, 459, 20914757184, 3608307264, 10178887680, 3600742656,
          1158266880, 1284197376 },
        { "120b Q8_0", true, QT_Q8_0, 687, 116829156672, 5132849472, 61073326080, 2300997888,
          615329280, 1070327808 },
        { "120b BF16", true, QT_BF16, 687, 116829156672, 5132849472, 61073326080, 4282668288,
          1158266880, 1966123008 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        maker mk = maker_gptoss(rows[i].large);
        const model_bytes want = {
            rows[i].params, rows[i].active, rows[i].experts, rows[i].dense, rows[i].table,
            rows[i].table, 13253760, 13253760 * UINT64_C(32) * (rows[i].large ? 4 : 1),
            rows[i].large ? 1908541440 : 1272360960, rows[i].layers + rows[i].table + 11520, 0,
        };
        mk.types = (maker_types){ QT_F32, rows[i].dense_type, QT_MXFP4, false };
        check_real(rows[i].what, &mk, rows[i].n_tensor, &want);
    }
}

/* ---- variants -------------------------------------------------------------------------------- */

static quant_type shared_gate_f16(const char *name, int layer)
{
    (void)layer;
    return strstr(name, "inp_shexp") ? QT_F16 : QT_F32;
}

/* Binds the small model of mk and hands it to fn. */
typedef void bound_fn(const model *m, const char *why);
static void with_bound(const maker *mk, const char *why, bound_fn *fn)
{
    maker_file f;
    err_ctx err = { 0 };
    model *m = NULL;
    model_bytes sum;

    if (!CHECK_MSG(maker_open(&f, mk, &err) == 0, "%s: %s", why, err.msg)) return;
    if (CHECK_MSG(model_bind(&m, f.g, &err) == 0, "%s: %s", why, err.msg)) {
        model_count_bytes(&sum, m);
        check_sums(why, m, &sum);
        if (fn) fn(m, why);
    }
    model_free(m);
    maker_close(&f);
}

/* ---- where things went ----------------------------------------------------------------------- */

/* For the functions that look at a bound model. */
#define SEE(cond) CHECK_MSG(cond, "%s: %s", why, #cond)

static bool is_named(const tensor *t, const char *name) { return t && str_is(t->name, name); }

static void see_legacy(const model *m, const char *why)
{
    SEE(is_named(m->layers[0].delta.in.t, "blk.0.ssm_in.weight"));
    SEE(!m->layers[0].delta.qkv.t && !m->layers[0].delta.gate.t);
    SEE(is_named(m->layers[0].delta.dt_bias.t, "blk.0.ssm_dt"));
    SEE(m->layers[3].mixer == MIX_ATTENTION && m->layers[3].delta.in.t == NULL);
}

static void see_split(const model *m, const char *why)
{
    const model_layer *y = &m->layers[2];
    SEE(is_named(y->delta.qkv.t, "blk.2.attn_qkv.weight") && !y->delta.in.t);
    SEE(is_named(y->delta.gate.t, "blk.2.attn_gate.weight"));
    SEE(is_named(y->delta.a.t, "blk.2.ssm_a"));
    SEE(is_named(y->delta.dt_bias.t, "blk.2.ssm_dt.bias"));
    SEE(is_named(y->post_attn_norm.t, "blk.2.post_attention_norm.weight"));
    SEE(is_named(y->shared_up.t, "blk.2.ffn_up_shexp.weight"));
    SEE(is_named(y->experts->weight[SLAB_UP], "blk.2.ffn_up_exps.weight"));
    SEE(is_named(m->layers[3].attn.k_norm.t, "blk.3.attn_k_norm.weight"));
    SEE(m->hp.n_head == 10 && m->hp.n_head_kv == 5 && !m->head_tied);
    SEE(m->embed.t != m->head.t && m->hp.rope_scaling == ROPE_PLAIN);
}

static void see_mtp(const model *m, const char *why)
{
    const model_layer *y = &m->layers[4];
    SEE(m->hp.n_layer == 4 && m->hp.n_mtp == 2 && y->mixer == MIX_ATTENTION);
    SEE(is_named(y->mtp.eh_proj.t, "blk.4.nextn.eh_proj.weight"));
    SEE(is_named(y->mtp.head_norm.t, "blk.4.nextn.shared_head_norm.weight"));
    SEE(is_named(m->layers[5].mtp.head.t, "blk.5.nextn.shared_head_head.weight"));
    SEE(!m->layers[3].mtp.eh_proj.t);
}

static void see_scales(const model *m, const char *why)
{
    const model_layer *y = &m->layers[3];
    SEE(is_named(y->attn.q.scale, "blk.3.attn_q.scale"));
    SEE(is_named(y->experts->scale[SLAB_DOWN], "blk.3.ffn_down_exps.scale"));
    SEE(y->experts->scale[SLAB_DOWN]->elems == 7);
    SEE(is_named(m->layers[0].delta.ba.scale, "blk.0.ssm_ba.scale"));
    CHECK_MSG(m->head.scale == NULL, "%s: output.scale counts for an NVFP4 head only", why);
    SEE(!y->router.scale && !y->attn_norm.scale);
    /* 8192 weights in 36-byte blocks of 64, three slabs, a scale each */
    CHECK_MSG(expert_bytes(y->experts) == 3 * (8192 / 64 * 36 + 4), "%s: %" PRIu64, why,
              expert_bytes(y->experts));
}

static void see_weight_scales(const model *m, const char *why)
{
    SEE(is_named(m->layers[3].attn.q.scale, "blk.3.attn_q.weight.scale"));
    SEE(is_named(m->layers[3].experts->scale[SLAB_UP], "blk.3.ffn_up_exps.weight.scale"));
    SEE(is_named(m->head.scale, "output.weight.scale"));
}

static void see_tied(const model *m, const char *why)
{
    model_bytes sum;
    model_count_bytes(&sum, m);
    SEE(m->head_tied && m->head.t == m->embed.t);
    SEE(sum.head == 0 && sum.embed == 128 * 10 * 4);
    CHECK_MSG(sum.token_dense == sum.dense, "%s: the table is read as head", why);
}

static void see_apart(const model *m, const char *why)
{
    const expert_bank *k = m->layers[1].experts;
    SEE(!k->fused && k->n_expert == 7 && k->n_ff == 64 && k->n_embd == 128);
    SEE(expert_slab_rows(k, SLAB_UP) == 64 && expert_slab_rows(k, SLAB_DOWN) == 128);
    for (int s = 0; s < SLAB_COUNT; s++) {
        SEE(expert_slab_bytes(k, (expert_slab)s) == 64 * 128 * 4);
        SEE(expert_slab_data(k, (expert_slab)s, 6) == k->weight[s]->data + 6 * 32768);
    }
    SEE(expert_bytes(k) == 3 * 32768);
}

static void see_fused(const model *m, const char *why)
{
    const expert_bank *k = m->layers[1].experts;
    SEE(k->fused && k->weight[SLAB_UP] == k->weight[SLAB_GATE]);
    SEE(expert_slab_data(k, SLAB_GATE, 6) == k->weight[SLAB_GATE]->data + 6 * 65536);
    SEE(expert_slab_data(k, SLAB_UP, 6) == k->weight[SLAB_GATE]->data + 6 * 65536 + 32768);
    SEE(expert_slab_data(k, SLAB_DOWN, 6) == k->weight[SLAB_DOWN]->data + 6 * 32768);
    SEE(expert_bytes(k) == 3 * 32768);
}

static void see_gptoss(const model *m, const char *why)
{
    const model_layer *y = &m->layers[1];
    SEE(is_named(y->attn.sinks.t, "blk.1.attn_sinks.weight"));
    SEE(is_named(y->attn.v_bias.t, "blk.1.attn_v.bias") && !y->attn.qkv.t);
    SEE(is_named(y->router_bias.t, "blk.1.ffn_gate_inp.bias"));
    SEE(is_named(y->experts->bias[SLAB_UP], "blk.1.ffn_up_exps.bias"));
    SEE(is_named(y->experts->bias[SLAB_DOWN], "blk.1.ffn_down_exps.bias"));
    SEE(expert_bytes(y->experts) == 3 * 32768 + (64 + 64 + 128) * 4);
    SEE(m->layers[0].window == 16 && y->window == 0 && m->layers[2].window == 16);
    SEE(m->hp.rope_dim == 64 && m->hp.rope_scaling == ROPE_YARN);
}

static void see_fused_qkv(const model *m, const char *why)
{
    const model_layer *y = &m->layers[3];
    SEE(is_named(y->attn.qkv.t, "blk.3.attn_qkv.weight") && !y->attn.q.t && !y->attn.k.t);
    SEE(is_named(y->attn.qkv_bias.t, "blk.3.attn_qkv.bias") && !y->attn.q_bias.t);
}

static void test_variants(void)
{
#define ALL(type) { type, type, type, false }
#define NVFP4 { QT_F32, QT_NVFP4, QT_NVFP4, true }
#define NVFP4_HEAD { QT_F32, QT_NVFP4, QT_NVFP4, false }
    static const struct {
        model_arch arch;
        unsigned variants;
        int n_mtp;
        maker_types types;
        bound_fn *see;
        const char *why;
    } rows[] = {
        { ARCH_QWEN3NEXT, 0, 0, { 0 }, see_split, "plain, split projections" },
        { ARCH_QWEN3NEXT, 0, 0, { 0 }, see_apart, "slabs in three tensors" },
        { ARCH_QWEN3NEXT, MAKE_LEGACY_IN, 0, { 0 }, NULL, "legacy ssm_in" },
        { ARCH_QWEN3NEXT, MAKE_PLAIN_DT, 0, { 0 }, NULL, "ssm_dt without suffix" },
        { ARCH_QWEN3NEXT, MAKE_LEGACY_IN | MAKE_PLAIN_DT, 0, { 0 }, see_legacy, "legacy names" },
        { ARCH_QWEN3NEXT, MAKE_SHARED_RANK2, 0, { 0 }, NULL, "shared gate of rank 2" },
        { ARCH_QWEN3NEXT, MAKE_FUSED_EXPERTS, 0, { 0 }, see_fused, "gate and up in one tensor" },
        { ARCH_QWEN3NEXT, MAKE_KV_ARRAY, 0, { 0 }, NULL, "head_count_kv per layer" },
        { ARCH_QWEN3NEXT, MAKE_KV_ARRAY | MAKE_HEADS_ARRAY, 1, { 0 }, NULL, "both head counts" },
        { ARCH_QWEN3NEXT, MAKE_RECURRENT_ARRAY, 1, { 0 }, NULL, "recurrent_layers, interval" },
        { ARCH_QWEN3NEXT, MAKE_NO_INTERVAL, 0, { 0 }, NULL, "no interval" },
        { ARCH_QWEN3NEXT, MAKE_TIED, 0, { 0 }, see_tied, "tied head" },
        { ARCH_QWEN3NEXT, 0, 1, { 0 }, NULL, "MTP block" },
        { ARCH_QWEN3NEXT, MAKE_FULL_MTP, 2, { 0 }, see_mtp, "two MTP blocks with all tensors" },
        { ARCH_QWEN3NEXT, MAKE_SCALES, 0, NVFP4, see_scales, "NVFP4, .scale" },
        { ARCH_QWEN3NEXT, MAKE_SCALES, 1, NVFP4, NULL, "NVFP4 with scales and MTP block" },
        { ARCH_QWEN3NEXT, MAKE_SCALES | MAKE_FUSED_EXPERTS, 0, NVFP4, NULL, "NVFP4 fused" },
        { ARCH_QWEN3NEXT, MAKE_WEIGHT_SCALES | MAKE_LEGACY_IN, 0, NVFP4, NULL, ".weight.scale" },
        { ARCH_QWEN3NEXT, MAKE_WEIGHT_SCALES, 0, NVFP4_HEAD, see_weight_scales, "the head's" },
        { ARCH_QWEN3NEXT, MAKE_SCALES | MAKE_TIED, 0, NVFP4_HEAD, NULL, "NVFP4, tied" },
        { ARCH_QWEN3NEXT, 0, 0, ALL(QT_F16), NULL, "everything F16" },
        { ARCH_QWEN3NEXT, 0, 1, { QT_BF16, QT_Q8_0, QT_Q8_0, false }, NULL, "small tensors BF16" },
        { ARCH_GPTOSS, 0, 0, { 0 }, see_gptoss, "gpt-oss" },
        { ARCH_GPTOSS, 0, 0, { QT_F32, QT_Q8_0, QT_MXFP4, false }, NULL, "gpt-oss, MXFP4, Q8_0" },
        { ARCH_GPTOSS, MAKE_FUSED_QKV, 0, { 0 }, see_fused_qkv, "gpt-oss, fused q, k, v" },
        { ARCH_GPTOSS, MAKE_KV_ARRAY | MAKE_HEADS_ARRAY, 0, { 0 }, NULL, "heads per layer" },
        { ARCH_GPTOSS, MAKE_SCALES | MAKE_FUSED_QKV, 0, NVFP4, NULL, "gpt-oss, NVFP4" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        maker mk = maker_small(rows[i].arch);
        mk.variants = rows[i].variants;
        mk.n_mtp = rows[i].n_mtp;
        mk.types = rows[i].types;
        with_bound(&mk, rows[i].why, rows[i].see);
    }
    maker mk = maker_small(ARCH_QWEN3NEXT);
    mk.variants = MAKE_SHARED_RANK2;
    mk.type_of = shared_gate_f16;
    with_bound(&mk, "shared gate F16", NULL);
}

/* ---- defaults -------------------------------------------------------------------------------- */

#define Q "qwen3next."
#define G "gpt-oss."

/* Edits that are fine, and what they lead to. */
static void see_yarn(const model *m, const char *why)
{
    SEE(m->hp.rope_scaling == ROPE_YARN && m->hp.rope_factor == 1 && m->hp.rope_ctx_orig == 4096);
}
static void see_linear(const model *m, const char *why)
{
    SEE(m->hp.rope_scaling == ROPE_LINEAR && m->hp.rope_factor == 4);
}
static void see_no_scaling(const model *m, const char *why)
{
    SEE(m->hp.rope_scaling == ROPE_PLAIN && m->hp.rope_factor == 1);
}
static void see_default_base(const model *m, const char *why)
{
    SEE(m->hp.rope_base == 10000 && m->hp.rope_base_window == 10000);
}
static void see_widths(const model *m, const char *why)
{
    SEE(m->hp.n_ff_expert == 64 && m->hp.n_ff_shared == 192);
}
static void see_period_4(const model *m, const char *why)
{
    SEE(m->layers[0].window && m->layers[1].window && m->layers[2].window);
    SEE(!m->layers[3].window);
}
static void see_period_2(const model *m, const char *why)
{
    SEE(m->layers[0].window && !m->layers[1].window);
    SEE(m->layers[2].window && !m->layers[3].window);
}
static void see_window_base(const model *m, const char *why)
{
    SEE(m->hp.rope_base == 150000 && m->hp.rope_base_window == 10000);
}

static void test_defaults(void)
{
    static const struct {
        model_arch arch;
        unsigned variants;
        maker_edit e[2];
        bound_fn *see;
        const char *why;
    } rows[] = {
        { ARCH_QWEN3NEXT, 0, { DROP(Q "rope.freq_base") }, see_default_base, "default base" },
        { ARCH_QWEN3NEXT, 0, { SET_TEXT(Q "rope.scaling.type", "yarn") }, see_yarn,
          "YaRN without parameters" },
        { ARCH_QWEN3NEXT, 0, { SET_FLOAT(Q "rope.scaling.factor", 4) }, see_linear,
          "linear is the default type" },
        { ARCH_QWEN3NEXT, 0, { SET_FLOAT(Q "rope.scale_linear", 4) }, see_linear, "old alias" },
        { ARCH_QWEN3NEXT, 0, { SET_TEXT(Q "rope.scaling.type", "none"),
                               SET_FLOAT(Q "rope.scaling.factor", 4) }, see_no_scaling,
          "none beats the factor" },
        { ARCH_QWEN3NEXT, 0, { DROP(Q "expert_feed_forward_length") }, see_widths,
          "feed_forward_length / experts used" },
        { ARCH_QWEN3NEXT, 0, { DROP(Q "expert_shared_feed_forward_length") }, see_widths,
          "shared width from its tensor" },
        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "expert_group_count", 1) }, NULL, "one group is none" },
        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "some.unknown.key", 1) }, NULL, "unknown key" },
        { ARCH_QWEN3NEXT, 0, { SET_TENSOR("blk.0.unknown.weight", QT_I32, 5) },
          see_split, "unknown tensor" },
        { ARCH_GPTOSS, 0, { SET_INT(G "attention.sliding_window_pattern", 4) }, see_period_4,
          "three windowed, one full" },
        { ARCH_GPTOSS, 0, { SET_INTS(G "attention.sliding_window_pattern", 4) }, see_period_2,
          "an array is not heeded" },
        { ARCH_GPTOSS, 0, { SET_FLOAT(G "rope.freq_base_swa", 10000) }, see_window_base,
          "another base for windowed layers" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        maker mk = maker_small(rows[i].arch);
        mk.variants = rows[i].variants;
        mk.edits = rows[i].e;
        mk.n_edit = rows[i].e[1].name ? 2 : 1;
        with_bound(&mk, rows[i].why, rows[i].see);
    }
}

static void test_out_of_memory(void)
{
    for (int arch = ARCH_QWEN3NEXT; arch <= ARCH_GPTOSS; arch++) {
        const maker mk = maker_small((model_arch)arch);
        maker_file f;
        err_ctx err = { 0 };
        model *m = NULL;
        int rc = -1, n;
        if (!CHECK_MSG(maker_open(&f, &mk, &err) == 0, "%s", err.msg)) continue;
        for (n = 1; n < 100 && rc < 0; n++) {
            mem_fail_after(n);
            rc = model_bind(&m, f.g, &err);
            mem_fail_after(0);
            CHECK_MSG(rc == 0 || (rc == ERR_NOMEM && !m), "allocation %d: %d, %s", n, rc, err.msg);
        }
        CHECK_MSG(rc == 0 && n == 5, "three allocations, but %d tries", n);
        model_free(m);
        maker_close(&f);
    }
}

int main(int argc, char **argv)
{
    test_begin("model", argc, argv);
    test_files();
    test_experts_used();
    test_qwen3next_files();
    test_qwen3next_experts();
    test_qwen3next_generations();
    test_gptoss_real();
    test_variants();
    test_defaults();
    test_out_of_memory();
    model_free(NULL);
    return test_end();
}
