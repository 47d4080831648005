/* test_model_refuse.c - small models with one thing wrong: the binder must name it. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/models/model.h"
#include "tests/case_file.h"
#include "tests/make_model.h"

static char heard[256];

static void hear(void *ctx, const char *line)
{
    (void)ctx;
    snprintf(heard, sizeof heard, "%s", line);
}

/* Tensors for pictures and sound are ignored, and one line says so. */
static void test_media(void)
{
    static const maker_edit edits[] = {
        SET_TENSOR("v.patch_embd.weight", QT_F32, 14, 14, 3, 8), SET_TENSOR("mm.0.bias", QT_F32, 8),
        SET_TENSOR("a.blk.0.attn_q.weight", QT_F32, 8, 8), SET_TENSOR("vocab.weight", QT_F32, 8),
        SET_INT("clip.vision.block_count", 27),
    };
    maker mk = maker_small(ARCH_QWEN3NEXT);
    maker_file f;
    model *m = NULL;
    err_ctx err = { 0 };
    mk.edits = edits;
    mk.n_edit = ARRAY_LEN(edits);
    if (!CHECK_MSG(maker_open(&f, &mk, &err) == 0, "%s", err.msg)) return;
    log_set_sink(hear, NULL);
    CHECK_MSG(model_bind(&m, f.g, &err) == 0, "%s", err.msg);
    log_set_sink(NULL, NULL);
    if (m) CHECK(m->n_media == 3 && m->n_bound == gguf_n_tensor(f.g) - 4);
    CHECK_MSG(strstr(heard, "3 tensors are for pictures or sound: ignored"), "'%s'", heard);
    model_free(m);
    maker_close(&f);
}

/* An integer key: missing, of another type, below and above its range. */
static void spoil_key(model_arch arch, const char *name, int64_t lo, int64_t hi, bool required)
{
    maker mk = maker_small(arch);
    char key[96], want[256];
    maker_edit e = { .name = key };
    snprintf(key, sizeof key, "%s.%s", model_arch_name(arch), name);
    mk.edits = &e;
    mk.n_edit = 1;

    snprintf(want, sizeof want, "key %s missing", key);
    e.kind = EDIT_DROP;
    if (required) maker_expect(&mk, want, "missing");
    else if (strcmp(name, "attention.head_count_kv") != 0) maker_expect(&mk, NULL, key);

    snprintf(want, sizeof want, "key %s is string, expected", key);
    e.kind = EDIT_TEXT;
    e.text = "many";
    maker_expect(&mk, want, "string in place of a number");

    e.kind = EDIT_INT;
    for (int large = 0; large <= (hi < INT_MAX); large++) {
        const int64_t number = large ? hi + 1 : lo - 1;
        e.number = (double)number;
        snprintf(want, sizeof want, "key %s = %" PRId64 " out of range %" PRId64 "..%" PRId64, key,
                 number, lo, hi);
        maker_expect(&mk, want, large ? "too large" : "too small");
    }
}

static void test_keys(void)
{
    static case_rows rows;
    if (!case_rows_read(&rows, "model_keys.txt")) return;
    for (int i = 0; i < rows.n; i++)
        for (int arch = ARCH_QWEN3NEXT; arch <= ARCH_GPTOSS; arch++) {
            char *const *cells = rows.cells[i];
            if (!strcmp(cells[0], "both") || !strcmp(cells[0], model_arch_name((model_arch)arch)))
                spoil_key((model_arch)arch, cells[1], atoll(cells[2]), atoll(cells[3]),
                          cells[4][0] != '\0');
        }
    case_rows_free(&rows);
}

/* "int KEY 3", cut up in place. */
static maker_edit parse_edit(char *text)
{
    static const char *const kinds[] = {
        [EDIT_DROP] = "drop", [EDIT_INT] = "int", [EDIT_FLOAT] = "float", [EDIT_TEXT] = "text",
        [EDIT_FALSE] = "false", [EDIT_INTS] = "ints", [EDIT_RAMP] = "ramp",
        [EDIT_TENSOR] = "tensor",
    };
    maker_edit e = { .type = -1 };
    char *kind = strsep(&text, " "), *value;
    int n = 0;
    e.name = strsep(&text, " ");
    while (n <= EDIT_TENSOR && strcmp(kind, kinds[n]) != 0) n++;
    CHECK_MSG(n <= EDIT_TENSOR && e.name, "no such edit: %s", kind);
    e.kind = (edit_kind)n;
    value = text ? text : kind + strlen(kind);
    e.text = value;
    e.number = strtod(value, NULL);
    if (e.kind == EDIT_TENSOR) {
        const char *type = strsep(&value, " ");
        for (int t = 0; t < QT_COUNT && strcmp(type, "-") != 0; t++)
            if (quant_name((uint32_t)t) && !strcmp(quant_name((uint32_t)t), type)) e.type = t;
        for (n = 0; value && n < 4; n++) e.ne[n] = (uint64_t)atoi(strsep(&value, "x"));
    }
    return e;
}

/* Everything else that a key or a tensor can do wrong: one edit, or two. */
static void test_contradictions(void)
{
    static const struct { const char *name; unsigned bit; } variants[] = {
        { "", 0 }, { "legacy_in", MAKE_LEGACY_IN }, { "plain_dt", MAKE_PLAIN_DT },
        { "fused_experts", MAKE_FUSED_EXPERTS }, { "fused_qkv", MAKE_FUSED_QKV },
        { "scales", MAKE_SCALES },
    };
    static case_rows rows;
    if (!case_rows_read(&rows, "model_refuse.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i], *second = strstr(cells[2], "; ");
        if (second) *second = '\0';
        const maker_edit e[2] = { parse_edit(cells[2]),
                                  second ? parse_edit(second + 2) : (maker_edit){ 0 } };
        maker mk = maker_small(strcmp(cells[0], "gpt-oss") ? ARCH_QWEN3NEXT : ARCH_GPTOSS);
        for (size_t v = 0; v < ARRAY_LEN(variants); v++)
            if (!strcmp(cells[1], variants[v].name)) mk.variants = variants[v].bit;
        mk.edits = e;
        mk.n_edit = second ? 2 : 1;
        maker_expect(&mk, cells[3], cells[4]);
    }
    case_rows_free(&rows);
}

/* ---- every tensor ---------------------------------------------------------------------------- */

/* Only qwen3next may tie the head to the embedding. */
static bool is_optional(const char *name, model_arch arch)
{
    if (strcmp(name, "output.weight") == 0) return arch == ARCH_QWEN3NEXT;
    return strstr(name, "scale") || strstr(name, "shared_head") || strstr(name, "embed_tokens");
}

/* Drops, bends and retypes every tensor of a small model, one at a time. */
static void spoil_tensors(const maker *good)
{
    maker_file f;
    err_ctx err = { 0 };

    if (!CHECK_MSG(maker_open(&f, good, &err) == 0, "%s", err.msg)) return;
    for (int i = 0; i < gguf_n_tensor(f.g); i++) {
        const tensor *t = gguf_tensor_at(f.g, i);
        maker mk = *good;
        char name[64], want[160];
        snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.ptr);
        maker_edit e = { .kind = EDIT_DROP, .name = name, .type = -1 };
        mk.edits = &e;
        mk.n_edit = 1;
        if (strstr(name, "input_scale")) continue;       /* never looked at */

        if (is_optional(name, good->arch)) maker_expect(&mk, NULL, name);
        else maker_expect(&mk, name, "missing");

        e.kind = EDIT_TENSOR;
        for (int dim = 0; dim < 3; dim++) {              /* one more in each dimension */
            e.ne[0] = t->cols + (dim == 0 ? 64 : 0);
            e.ne[1] = t->n_dims > 1 ? t->rows : 0;
            e.ne[2] = t->n_dims > 2 ? t->slabs : 0;
            if (dim > 0) e.ne[dim] = e.ne[dim] ? e.ne[dim] + 1 : 2;
            if (dim == 2 && e.ne[1] == 0) e.ne[1] = 1;
            maker_expect(&mk, name, "shape");
        }
        memset(e.ne, 0, sizeof e.ne);
        e.type = QT_I32;
        snprintf(want, sizeof want, "tensor %s: type I32 not supported for this tensor", name);
        maker_expect(&mk, want, "integers");
        e.type = QT_Q8_0;
        if (maker_is_small(name) && t->cols % 32 == 0)
            maker_expect(&mk, name, "small tensor quantised");
        e.type = QT_F16;
        if (maker_is_small(name) && good->arch == ARCH_GPTOSS) maker_expect(&mk, name, "not F32");
        else if (!strstr(name, "scale")) maker_expect(&mk, NULL, name);
    }
    maker_close(&f);
}

static void test_tensors(void)
{
    maker mk = maker_small(ARCH_QWEN3NEXT);
    mk.n_mtp = 1;
    mk.variants = MAKE_FULL_MTP;
    spoil_tensors(&mk);
    mk = maker_small(ARCH_QWEN3NEXT);
    mk.n_layer = 1;
    mk.variants = MAKE_LEGACY_IN | MAKE_FUSED_EXPERTS | MAKE_SCALES;
    mk.types = (maker_types){ QT_F32, QT_NVFP4, QT_NVFP4, false };
    spoil_tensors(&mk);
    mk = maker_small(ARCH_GPTOSS);
    mk.n_layer = 2;
    spoil_tensors(&mk);
    mk.n_layer = 1;
    mk.variants = MAKE_FUSED_QKV;
    spoil_tensors(&mk);
}

/* A file that holds only the draft block of a model. */
static void test_draft_only(void)
{
    maker mk = maker_small(ARCH_QWEN3NEXT);
    const maker_edit e[] = {
        SET_INT("qwen3next.block_count", 49), SET_INT("qwen3next.nextn_predict_layers", 1),
    };
    mk.edits = e;
    mk.n_edit = 2;
    maker_expect(&mk, "missing tensor blk.4.attn_norm.weight", "trunk blocks absent");
}

/* Three layers, none with attention: a count per layer then says nothing, a plain one is fine. */
static void test_no_attention(void)
{
    maker mk = maker_small(ARCH_QWEN3NEXT);
    mk.n_layer = 3;
    maker_expect(&mk, NULL, "DeltaNet only");
    mk.variants = MAKE_KV_ARRAY;
    maker_expect(&mk, "head_count_kv is an array, but no layer has attention", "DeltaNet only");
}

/* Four dimensions are refused, even if the bytes would do. */
static void test_four_dimensions(void)
{
    maker mk = maker_small(ARCH_QWEN3NEXT);
    const uint64_t embd = (uint64_t)mk.n_embd, ff = (uint64_t)mk.n_ff;
    maker_edit e = { .kind = EDIT_TENSOR, .name = "blk.0.ffn_gate_exps.weight", .type = -1 };
    mk.n_expert = 6;
    mk.edits = &e;
    mk.n_edit = 1;
    e.ne[0] = embd;
    e.ne[1] = ff;
    e.ne[2] = 2;
    e.ne[3] = 3;
    maker_expect(&mk, "tensor blk.0.ffn_gate_exps.weight has shape [", "experts in two dimensions");
    e.ne[2] = 6;
    e.ne[3] = 1;
    maker_expect(&mk, NULL, "a fourth dimension of 1");
}

/* A file that announces a next-token block and holds no tensor of it is bound without it. */
static void test_absent_mtp(void)
{
    const maker_edit edits[] = {
        { .kind = EDIT_INT, .name = "qwen3next.block_count", .number = 5 },
        { .kind = EDIT_INT, .name = "qwen3next.nextn_predict_layers", .number = 1 },
    };
    maker mk = maker_small(ARCH_QWEN3NEXT);
    maker_file f;
    err_ctx err = { 0 };
    model *m = NULL;

    mk.edits = edits;
    mk.n_edit = ARRAY_LEN(edits);
    if (!CHECK_MSG(maker_open(&f, &mk, &err) == 0, "%s", err.msg)) return;
    CHECK_MSG(model_bind(&m, f.g, &err) == 0, "%s", err.msg);
    CHECK(m && m->hp.n_layer == 4 && m->hp.n_mtp == 0);
    model_free(m);
    maker_close(&f);
}

int main(int argc, char **argv)
{
    test_begin("model_refuse", argc, argv);
    test_media();
    test_keys();
    test_contradictions();
    test_tensors();
    test_draft_only();
    test_no_attention();
    test_four_dimensions();
    test_absent_mtp();
    return test_end();
}
