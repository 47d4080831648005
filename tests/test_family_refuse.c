/* test_family_refuse.c - tiny models of the families with one thing wrong: the binder must name it.
 *
 * The files are those of test_families.c; what is wrong is put into a copy of them. The two
 * families that files can be made to order of are in test_model_refuse.c. */
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

#include "engine/models/model.h"
#include "tests/model_maker.h"

static gguf *open_tiny(const char *name)
{
    char path[512];
    err_ctx err = { 0 };
    gguf *g = NULL;
    test_path(path, sizeof path, "%s/families/tiny-%s-bf16.gguf", test_unpacked(), name);
    CHECK_MSG(gguf_open(&g, path, &err) == 0, "%s: %s", path, err.msg);
    return g;
}

/* Binds a copy with these edits. want NULL: it must be taken. */
static void expect(const gguf *g, const maker_edit *edits, int n_edit, const char *want,
                   const char *why)
{
    maker_file f;
    err_ctx err = { 0 };
    model *m = NULL;
    if (!CHECK_MSG(maker_open_copy(&f, g, edits, n_edit, &err) == 0, "%s: %s", why, err.msg))
        return;
    const int rc = model_bind(&m, f.g, &err);
    if (!want) CHECK_MSG(rc == 0 && m, "%s: %s", why, err.msg);
    else if (CHECK_MSG(rc < 0 && !m, "%s: accepted", why))
        CHECK_MSG(strstr(err.msg, want), "%s: message is '%s', want '%s'", why, err.msg, want);
    model_free(m);
    maker_close(&f);
}

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
    expect(g, edits, ARRAY_LEN(edits), "tensor blk.0.ffn_gate.0.weight: every expert is a tensor "
           "of its own, as in files from before April 2024, which this program does not read; find "
           "a newer conversion of the model", "experts apart");
    expect(g, edits, 3, "missing tensor blk.0.ffn_gate_exps.weight", "no experts at all");
    gguf_close(g);
}

int main(int argc, char **argv)
{
    test_begin("family_refuse", argc, argv);
    test_old_mixtral();
    return test_end();
}
