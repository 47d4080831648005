/* test_family_refuse.c - tiny models of the families with one thing wrong: the binder must name it.
 *
 * The files are those of test_families.c; what is wrong is put into a copy of them. The two
 * families that files can be made to order of are in test_model_refuse.c. */
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

#include "engine/models/rope.h"
#include "tests/make_model.h"

static gguf *open_tiny(const char *name)
{
    char path[512];
    err_ctx err = { 0 };
    gguf *g = NULL;
    test_path(path, sizeof path, "%s/families/tiny-%s-bf16.gguf", test_unpacked(), name);
    CHECK_MSG(gguf_open(&g, path, &err) == 0, "%s: %s", path, err.msg);
    return g;
}

/* ---- every tensor ---------------------------------------------------------------------------- */

static const char *const tiny[] = {
    "qwen3moe", "qwen35moe", "llama", "olmoe", "glm4moe", "gemma4",
};

typedef struct search { const char *name; bool found; } search;

static void compare(void *ctx, const tensor *t, model_use use, int layer)
{
    search *s = ctx;
    (void)use;
    (void)layer;
    s->found |= str_is(t->name, s->name);
}

/* Does the model use the tensor? GLM's files have a block that no step reads. */
static bool is_bound(const model *m, const char *name)
{
    search s = { name, false };
    model_visit(m, compare, &s);
    return s.found;
}

/* What a file of the family may lack. Full layers of gemma4 have no values of their own. */
static bool is_optional(const model *m, const char *name)
{
    static const char *const any[] = { "exp_probs_b", "layer_output_scale", "_exps.scale",
                                       "nextn.embed_tokens", "nextn.shared_head" };
    const bool tied = strcmp(model_arch_name(m->hp.arch), "olmoe") != 0;
    if (strcmp(name, "output.weight") == 0) return tied;
    for (size_t i = 0; i < ARRAY_LEN(any); i++)
        if (strstr(name, any[i])) return true;
    return false;
}

/* Drops, bends and retypes a tensor. */
static void spoil_tensor(const gguf *g, const model *m, const tensor *t)
{
    char name[64], want[160];
    snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.ptr);
    maker_edit e = { .kind = EDIT_DROP, .name = name, .type = -1 };
    if (!is_bound(m, name)) {
        maker_expect_copy(g, &e, 1, NULL, name);
        return;
    }
    maker_expect_copy(g, &e, 1, is_optional(m, name) ? NULL : name, name);
    e.kind = EDIT_TENSOR;
    for (int dim = 0; dim < 3; dim++) {  /* more in each dimension */
        e.ne[0] = t->cols + (dim == 0 ? 64 : 0);
        e.ne[1] = t->n_dims > 1 ? t->rows : dim == 2;
        e.ne[2] = t->n_dims > 2 ? t->slabs : 0;
        if (dim > 0) e.ne[dim] = e.ne[dim] ? e.ne[dim] + 1 : 2;
        maker_expect_copy(g, &e, 1, name, "shape");
    }
    memset(e.ne, 0, sizeof e.ne);
    e.type = QT_I32;
    snprintf(want, sizeof want, "tensor %s: type I32 not supported for this tensor", name);
    maker_expect_copy(g, &e, 1, want, "integers");
    e.type = QT_Q8_0;
    if (t->n_dims == 1 && t->cols % 32 == 0)
        maker_expect_copy(g, &e, 1, name, "a vector quantised");
}

static void test_tensors(const gguf *g, const model *m)
{
    for (int i = 0; i < gguf_n_tensor(g); i++) spoil_tensor(g, m, gguf_tensor_at(g, i));
}

/* ---- every key ------------------------------------------------------------------------------- */

/* Keys of the family that nothing depends on here. */
static bool is_label(const char *name)
{
    static const char *const labels[] = {
        "vocab_size", "rope.dimension_sections", "expert_group_used_count",
    };
    for (size_t i = 0; i < ARRAY_LEN(labels); i++)
        if (strcmp(name, labels[i]) == 0) return true;
    return false;
}

/* A text in place of each value is refused by the key's name; numbers that no model has are
 * refused, or taken where they may mean something, and never do worse. */
static void spoil_key(const gguf *g, const char *key, const char *name)
{
    static const int numbers[] = { 0, -1, 1, 3, 7, INT32_MAX, INT32_MIN };
    maker_edit e = SET_TEXT(key, "many");
    char want[160];
    snprintf(want, sizeof want, "key %s is string, expected", key);
    maker_expect_copy(g, &e, 1, is_label(name) ? NULL : want, key);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        maker_file f;
        err_ctx err = { 0 };
        model *m = NULL;
        e = (maker_edit)SET_INT(key, numbers[i]);
        if (!CHECK(maker_open_copy(&f, g, &e, 1, &err) == 0)) continue;
        CHECK_MSG((model_bind(&m, f.g, &err) == 0) == (m != NULL), "%s = %d", key, numbers[i]);
        model_free(m);
        maker_close(&f);
    }
    e = (maker_edit)SET_INTS(key, 2);
    maker_expect_copy(g, &e, 1, is_label(name) ? NULL : name, "a list of two");
}

static void test_keys(const gguf *g, const char *arch)
{
    for (int i = 0; i < gguf_n_kv(g); i++) {
        const str_view key = gguf_kv_at(g, i)->key;
        char text[128];
        snprintf(text, sizeof text, "%.*s", (int)key.len, key.ptr);
        if (strncmp(text, arch, strlen(arch)) == 0 && text[strlen(arch)] == '.')
            spoil_key(g, text, text + strlen(arch) + 1);
    }
}

static void test_family(const char *name)
{
    err_ctx err = { 0 };
    model *m = NULL;
    gguf *g = open_tiny(name);
    if (g && CHECK_MSG(model_bind(&m, g, &err) == 0, "%s: %s", name, err.msg)) {
        test_tensors(g, m);
        test_keys(g, name);
    }
    model_free(m);
    gguf_close(g);
}

/* ---- one thing wrong ------------------------------------------------------------------------- */

/* Mixtral's files from before experts were stacked. */
static void test_old_mixtral(void)
{
    static const maker_edit edits[] = {
        DROP("blk.0.ffn_gate_exps.weight"), DROP("blk.0.ffn_up_exps.weight"),
        DROP("blk.0.ffn_down_exps.weight"),
        SET_TENSOR("blk.0.ffn_gate.0.weight", QT_F32, 32, 32),
        SET_TENSOR("blk.0.ffn_up.0.weight", QT_F32, 32, 32),
        SET_TENSOR("blk.0.ffn_down.0.weight", QT_F32, 32, 32),
    };
    gguf *g = open_tiny("llama");
    if (!g) return;
    maker_expect_copy(g, edits, ARRAY_LEN(edits), "tensor blk.0.ffn_gate.0.weight: every expert is "
                      "a tensor of its own, as in files from before April 2024, which this program "
                      "does not read; find a newer conversion of the model", "experts apart");
    maker_expect_copy(g, edits, 3, "missing tensor blk.0.ffn_gate_exps.weight", "no experts");
    gguf_close(g);
}

/* A layer that the keys call a guess of the token after the next would be left out. */
static void test_false_guess(void)
{
    static const maker_edit drop[] = {
        DROP("blk.3.nextn.eh_proj.weight"), DROP("blk.3.attn_norm.weight"),
    };
    gguf *g = open_tiny("glm4moe");
    if (!g) return;
    maker_expect_copy(g, drop, 1, "missing tensor blk.3.nextn.eh_proj.weight",
                      "a layer called a guess");
    maker_expect_copy(g, drop, 2, NULL, "the block is absent");
    gguf_close(g);
}

/* No description says how: rotation scaled where there are windows. */
static void test_gemma_scaling(void)
{
    static const maker_edit edits[] = {
        SET_TEXT("gemma4.rope.scaling.type", "linear"), SET_FLOAT("gemma4.rope.scaling.factor", 8),
    };
    gguf *g = open_tiny("gemma4");
    if (!g) return;
    maker_expect_copy(g, edits, 1, NULL, "by 1");
    maker_expect_copy(g, edits, 2, "key gemma4.rope.scaling.type: not supported", "by 8");
    gguf_close(g);
}

static char heard[256];
static int n_heard;

static void hear(void *ctx, const char *line)
{
    (void)ctx;
    snprintf(heard, sizeof heard, "%s", line);
    n_heard++;
}

/* One line names tensors of layers that no family knows; scales of inputs are not among them. */
static void test_unknown(void)
{
    static const maker_edit edits[] = {
        SET_TENSOR("blk.0.ffn_up_exps.input_scale", QT_F32, 4),
        SET_TENSOR("blk.0.attn_q.bias", QT_F32, 64), SET_TENSOR("blk.1.attn_q.bias", QT_F32, 64),
        SET_TENSOR("blk.99.attn_q.bias", QT_F32, 64), SET_TENSOR("blk.x.bias", QT_F32, 64),
    };
    gguf *g = open_tiny("llama");
    if (!g) return;
    log_set_sink(hear, NULL);
    maker_expect_copy(g, edits, 1, NULL, "input_scale");
    CHECK(n_heard == 0);
    maker_expect_copy(g, edits, ARRAY_LEN(edits), NULL, "biases");
    log_set_sink(NULL, NULL);
    CHECK_MSG(n_heard == 1 && strcmp(heard, "blk.0.attn_q.bias and others: 2 unknown tensors of "
              "layers for architecture llama are ignored; answers may be wrong") == 0, "'%s'", heard);
    gguf_close(g);
}

/* Factors of the rotation, as models made of Llama 3.1 have them, divide the frequencies. */
static void test_llama_factors(void)
{
    const maker_edit e[] = { SET_TENSOR("rope_freqs.weight", QT_F32, 8) };
    maker_file f = { NULL, NULL };
    model *m = NULL, *plain = NULL;
    rope_tables t = { 0 }, u = { 0 };
    err_ctx err = { 0 };
    gguf *g = open_tiny("llama");
    if (g && CHECK_MSG(model_bind(&plain, g, &err) == 0 && plain->hp.rope_dim == 16 &&
                       maker_open_copy(&f, g, e, 1, &err) == 0, "%s", err.msg)) {
        const tensor *factors = gguf_tensor(f.g, "rope_freqs.weight");
        for (int i = 0; i < 8; i++) {
            const float v = 1.0f + (float)i;
            memcpy(f.bytes + factors->offset + 4 * (size_t)i, &v, 4);
        }
        if (CHECK_MSG(model_bind(&m, f.g, &err) == 0 && rope_tables_init(&t, m, false, &err) == 0 &&
                      rope_tables_init(&u, plain, false, &err) == 0, "%s", err.msg))
            for (int i = 0; i < 8; i++)
                CHECK_MSG(t.freq[0][i] == u.freq[0][i] / (1.0 + i), "pair %d: %g, plain %g", i,
                          t.freq[0][i], u.freq[0][i]);
    }
    rope_tables_release(&t);
    rope_tables_release(&u);
    model_free(m);
    model_free(plain);
    maker_close(&f);
    gguf_close(g);
}

int main(int argc, char **argv)
{
    test_begin("family_refuse", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(tiny); i++) test_family(tiny[i]);
    test_old_mixtral();
    test_false_guess();
    test_gemma_scaling();
    test_unknown();
    test_llama_factors();
    return test_end();
}
