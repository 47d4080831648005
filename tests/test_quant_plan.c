/* test_quant_plan.c - what moe-quant makes of a model: plans, importance files, the conversion of
 * one matrix.
 *
 * The models are the tiny golden ones, in memory, so that any byte of them can be damaged; plans
 * are judged by the file they would write, opened again. */
#include "tests/model_fixture.h"
#include "tests/numbers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/quant/quant_convert.h"
#include "loader/bytes.h"

/* ---- a model in memory ---------------------------------------------------------------------- */

typedef struct subject {
    model_fixture f;
    uint8_t *bytes;
} subject;

static bool subject_open(subject *s, const char *name)
{
    char path[512];
    size_t n;
    *s = (subject){ 0 };
    s->bytes =
        test_read_file(test_path(path, sizeof path, "%s/models/%s", test_unpacked(), name), &n);
    return s->bytes && model_fixture_open_memory(&s->f, s->bytes, n, name);
}

static void subject_close(subject *s)
{
    model_fixture_close(&s->f);
    mem_free(s->bytes);
}

/* Element i of a tensor that is F32. */
static void poke(const subject *s, const char *name, size_t i, float v)
{
    const tensor *t = gguf_tensor(s->f.g, name);
    memcpy(s->bytes + t->offset + 4 * i, &v, 4);
}

/* ---- whole files in memory: plan, convert, open again --------------------------------------- */

typedef struct output {
    textbuf bytes;
    uint64_t old_bytes;
} output;

static int keep(void *ctx, const void *data, size_t bytes, uint64_t old_bytes, err_ctx *err)
{
    output *o = ctx;
    (void)err;
    textbuf_put(&o->bytes, (str_view){ data, bytes });
    o->old_bytes += old_bytes;
    return 0;
}

static void pad(output *o, const quant_plan *p, int next)
{
    const uint64_t to = next < p->n_out ? gguf_write_data_at(p->head, next) : p->file_bytes;
    while (o->bytes.len < to) textbuf_put(&o->bytes, (str_view){ "", 1 });
}

/* The new file's bytes, as quant_file.c puts them together. */
static int make(output *o, quant_error *error, const model *m, const quant_types *wish,
                const quant_importance *importance, int n_thread, err_ctx *err)
{
    quant_convert *c = NULL;
    quant_plan p;
    pool *team = NULL;
    float scales[64];
    int next = 0, rc = quant_plan_make(&p, m, wish, err);
    *o = (output){ .old_bytes = 0 };
    if (rc < 0) return rc;
    rc = pool_create(&team, n_thread, err);
    if (rc == 0) rc = quant_convert_create(&c, &p, importance, team, err);
    textbuf_put(&o->bytes, (str_view){ (const char *)p.head_data, p.head_bytes });
    for (int i = 0; i < p.n_item && rc == 0; i++) {
        const quant_item *it = &p.items[i];
        if (it->fate == QUANT_DROP) continue;
        if (it->fate == QUANT_COPY)
            keep(o, it->from->data, (size_t)it->from->bytes, it->from->bytes, err);
        else rc = quant_convert_run(c, it, error, scales, keep, o, err);
        pad(o, &p, ++next);
        if (rc < 0 || !it->new_scale) continue;
        keep(o, scales, (size_t)it->from->slabs * sizeof *scales, 0, err);
        pad(o, &p, ++next);
    }
    if (rc == 0) CHECK_MSG(next == p.n_out && o->bytes.len == p.file_bytes && o->old_bytes ==
                           p.read_bytes, "%d tensors of %d, %zu bytes of %llu", next, p.n_out,
                           o->bytes.len, (unsigned long long)p.file_bytes);
    quant_convert_free(c);
    pool_free(team);
    quant_plan_release(&p);
    return rc;
}

static bool same_kv(const gguf_kv *a, const gguf_kv *b)
{
    gguf_writer *w[2] = { gguf_writer_create(), gguf_writer_create() };
    const gguf_kv *kv[2] = { a, b };
    const uint8_t *head[2];
    size_t n[2];
    bool same = true;
    for (int i = 0; i < 2; i++) {
        gguf_write_copy(w[i], kv[i]);
        same = gguf_write_head(w[i], &head[i], &n[i], NULL) == 0 && same;
    }
    same = same && n[0] == n[1] && memcmp(head[0], head[1], n[0]) == 0;
    for (int i = 0; i < 2; i++) gguf_writer_free(w[i]);
    return same;
}

/* All keys of a are in b, but for those that describe types. */
static void check_keys(const gguf *a, const gguf *b)
{
    for (int i = 0; i < gguf_n_kv(a); i++) {
        const gguf_kv *kv = gguf_kv_at(a, i);
        char key[128];
        if (str_is(kv->key, "general.file_type")) continue;
        const gguf_kv *other = gguf_find(b, ESC(key, kv->key));
        CHECK_MSG(other && same_kv(kv, other), "key %s changed", key);
    }
}

/* Whether an expert's matrix can have the type. */
static bool changes(const tensor *t, quant_type type)
{
    return t->slabs > 1 && t->cols % (uint64_t)quant_traits_of((uint32_t)type)->block_elems == 0;
}

static void test_file(const char *name, quant_type type, int file_type)
{
    const quant_types wish = { .experts = &type };
    subject s;
    output o = { .old_bytes = 0 };
    quant_error error = { { 0 }, { 0 } };
    model_fixture made = { 0 };
    int64_t said = -1;
    err_ctx err;
    if (!subject_open(&s, name)) return;
    if (!CHECK_MSG(make(&o, &error, s.f.m, &wish, NULL, test_n_thread(2), &err) == 0,
                   "%s to %s: %s", name, quant_name((uint32_t)type), err.msg) ||
        !model_fixture_open_memory(&made, o.bytes.ptr, o.bytes.len, name))
        goto end;
    check_keys(s.f.g, made.g);
    gguf_need_int(&said, made.g, "general.file_type", 0, 99, &err);
    CHECK_MSG(said == file_type, "general.file_type is %d, expected %d", (int)said, file_type);
    for (int i = 0; i < gguf_n_tensor(s.f.g); i++) {
        const tensor *t = gguf_tensor_at(s.f.g, i);
        char shown[128];
        const tensor *u = gguf_tensor(made.g, ESC(shown, t->name));
        if (!CHECK_MSG(u && u->rows == t->rows && u->cols == t->cols && u->slabs == t->slabs,
                       "%s is gone or has another shape", shown)) continue;
        if (changes(t, type)) CHECK_MSG(u->type == type, "%s is %s", shown, quant_name(u->type));
        else CHECK_MSG(u->type == t->type && memcmp(u->data, t->data, (size_t)t->bytes) == 0,
                       "%s changed", shown);
        char scale[QUANT_NAME_CAP];
        const tensor *v = gguf_tensor(made.g, quant_scale_name(scale, t));
        CHECK_MSG((v != NULL) == (changes(t, type) && type == QT_NVFP4), "companion of %s", shown);
        if (v) CHECK_MSG(v->type == QT_F32 && v->elems == t->slabs, "%s: its shape", scale);
    }
    CHECK_MSG(quant_error_relative(&error, false) < 0.13, "%s to %s: error %g", name,
              quant_name((uint32_t)type), quant_error_relative(&error, false));
end:
    model_fixture_close(&made);
    textbuf_free(&o.bytes);
    subject_close(&s);
}

/* The same bytes, whatever the number of threads; and there and back through NVFP4's companions. */
static void test_threads_and_back(void)
{
    const quant_type nvfp4 = QT_NVFP4, mxfp4 = QT_MXFP4;
    const quant_types wish = { .experts = &nvfp4, .dense = &nvfp4 }, there = { .experts = &mxfp4 };
    quant_error error = { { 0 }, { 0 } }, first = error, back = error;
    output a = { .old_bytes = 0 }, b = a, c = a, d = a;
    subject s;
    model_fixture t;
    err_ctx err;
    if (!subject_open(&s, "tiny-gptoss-f32.gguf")) return;
    CHECK(make(&a, &error, s.f.m, &wish, NULL, 1, &err) == 0);
    CHECK(make(&b, &first, s.f.m, &wish, NULL, 3, &err) == 0);
    CHECK_MSG(a.bytes.len == b.bytes.len && memcmp(a.bytes.ptr, b.bytes.ptr, a.bytes.len) == 0,
              "1 and 3 threads write different files");
    CHECK_MSG(memcmp(&error, &first, sizeof error) == 0, "... and find different errors");

    /* MXFP4, then NVFP4: nothing is lost; and its companions go when it becomes MXFP4 again */
    memset(&error, 0, sizeof error);
    CHECK(make(&c, &error, s.f.m, &there, NULL, 2, &err) == 0);
    memset(&error, 0, sizeof error);
    if (model_fixture_open_memory(&t, c.bytes.ptr, c.bytes.len, "MXFP4")) {
        const quant_types experts = { .experts = &nvfp4 };
        CHECK(make(&d, &error, t.m, &experts, NULL, 2, &err) == 0);
        CHECK_MSG(error.diff[0] == 0 && error.norm[0] > 0, "MXFP4 to NVFP4 costs %g",
                  error.diff[0]);
    }
    model_fixture_close(&t);
    if (model_fixture_open_memory(&t, d.bytes.ptr, d.bytes.len, "NVFP4")) {
        output e = { .old_bytes = 0 };
        CHECK(make(&e, &back, t.m, &there, NULL, 2, &err) == 0);
        CHECK_MSG(back.diff[0] == 0 && back.norm[0] == error.norm[0], "NVFP4 to MXFP4 costs %g",
                  back.diff[0]);
        CHECK_MSG(e.bytes.len == c.bytes.len && memcmp(e.bytes.ptr, c.bytes.ptr, c.bytes.len) == 0,
                  "MXFP4, NVFP4, MXFP4: another file");
        textbuf_free(&e.bytes);
    }
    model_fixture_close(&t);
    textbuf_free(&a.bytes);
    textbuf_free(&b.bytes);
    textbuf_free(&c.bytes);
    textbuf_free(&d.bytes);
    subject_close(&s);
}

/* The model's own factor for each expert stays when its weights get another type. */
static void test_own_scale(void)
{
    static const char down[] = "blk.0.ffn_down_exps.weight", scale[] = "blk.0.ffn_down_exps.scale";
    const quant_type q8_0 = QT_Q8_0;
    const quant_types wish = { .experts = &q8_0 };
    quant_error error = { { 0 }, { 0 } };
    output o = { .old_bytes = 0 };
    subject s;
    model_fixture t = { 0 };
    err_ctx err = { 0 };
    if (!subject_open(&s, "../families/tiny-gemma4-bf16.gguf")) return;
    if (CHECK_MSG(make(&o, &error, s.f.m, &wish, NULL, 2, &err) == 0, "%s", err.msg) &&
        model_fixture_open_memory(&t, o.bytes.ptr, o.bytes.len, "Q8_0")) {
        const tensor *was = gguf_tensor(s.f.g, scale), *is = gguf_tensor(t.g, scale);
        const tensor *w = gguf_tensor(s.f.g, down), *q = gguf_tensor(t.g, down);
        float a[32], b[32], most = 0;
        CHECK(was && is && is->bytes == was->bytes && memcmp(is->data, was->data, was->bytes) == 0);
        CHECK(w && q && q->type == QT_Q8_0);
        CHECK(load_f32(was->data) != 1.0f);
        quant_traits_of(w->type)->decode(a, w->data, 32);
        quant_traits_of(q->type)->decode(b, q->data, 1);
        for (int i = 0; i < 32; i++) most = fmaxf(most, fabsf(a[i]));
        for (int i = 0; i < 32; i++)
            CHECK_MSG(fabsf(a[i] - b[i]) <= most / 250, "value %d: %g, was %g", i, b[i], a[i]);
        CHECK(gguf_n_tensor(t.g) == gguf_n_tensor(s.f.g));
    }
    model_fixture_close(&t);
    textbuf_free(&o.bytes);
    subject_close(&s);
}

/* ---- plans ---------------------------------------------------------------------------------- */

static void test_kept(void)
{
    const quant_type q4_k = QT_Q4_K, nvfp4 = QT_NVFP4, mxfp4 = QT_MXFP4;
    const quant_types columns = { .experts = &q4_k }, embed = { .dense = &nvfp4 };
    const quant_types head = { .head = &mxfp4 };
    quant_plan p;
    subject s;
    err_ctx err;
    if (!subject_open(&s, "tiny-gptoss-f32.gguf")) return;
    CHECK(quant_plan_make(&p, s.f.m, &columns, &err) == 0);
    CHECK(p.n_rewrite == 0 && p.n_out == p.n_item);
    CHECK(p.kept[USE_EXPERT_GATE][KEPT_COLUMNS].n == 4);
    CHECK(p.kept[USE_EXPERT_DOWN][KEPT_COLUMNS].n == 4);
    quant_plan_release(&p);
    CHECK(quant_plan_make(&p, s.f.m, &embed, &err) == 0);
    CHECK(p.kept[USE_EMBED][KEPT_EMBEDDING].n == 1);
    for (int i = 0; i < p.n_item; i++)
        if (p.items[i].fate == QUANT_REWRITE)
            CHECK_MSG(p.items[i].use == USE_ATTENTION && p.items[i].from->rows > 1,
                      "%.*s would be rewritten", (int)p.items[i].from->name.len,
                      p.items[i].from->name.ptr);
    quant_plan_release(&p);
    CHECK(quant_plan_make(&p, s.f.m, &head, &err) == 0);
    CHECK_MSG(p.n_rewrite == 1, "--head alone rewrites %d", p.n_rewrite);
    quant_plan_release(&p);
    subject_close(&s);
}

/* ---- values that cannot be ------------------------------------------------------------------ */

static void test_bad_values(void)
{
    static const struct { quant_type type; float v; int code; const char *says; } rows[] = {
        { QT_NVFP4, NAN, ERR_FORMAT, "blk.1.ffn_down_exps.weight: expert 0, row 1, column 4 is "
          "not a number" },
        { QT_MXFP4, NAN, ERR_FORMAT, "not a number" },
        { QT_Q8_0, -INFINITY, ERR_FORMAT, "blk.1.ffn_down_exps.weight: expert 0, row 1, column 4 "
          "is infinite" },
        { QT_BF16, INFINITY, ERR_FORMAT, "infinite" },
        { QT_Q8_0, 1e9f, ERR_RANGE, "is 1e+09, and Q8_0 ends at 8.319" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const quant_types wish = { .experts = &rows[i].type };
        quant_error error = { { 0 }, { 0 } };
        output o;
        subject s;
        err_ctx err = { 0 };
        if (!subject_open(&s, "tiny-gptoss-f32.gguf")) return;
        const tensor *t = gguf_tensor(s.f.g, "blk.1.ffn_down_exps.weight");
        poke(&s, "blk.1.ffn_down_exps.weight", (size_t)t->cols + 4, rows[i].v);
        poke(&s, "blk.1.ffn_down_exps.weight", 3 * (size_t)t->cols + 1, rows[i].v);
        const int rc = make(&o, &error, s.f.m, &wish, NULL, test_n_thread(2), &err);
        CHECK_MSG(rc == rows[i].code && strstr(err.msg, rows[i].says), "%s of %g: %d, %s",
                  quant_name((uint32_t)rows[i].type), (double)rows[i].v, rc, err.msg);
        textbuf_free(&o.bytes);
        subject_close(&s);
    }
}

/* An expert of zeros, and one of denormals: they load, with scales that are numbers. */
static void test_empty_expert(void)
{
    const quant_type type = QT_NVFP4;
    const quant_types wish = { .experts = &type };
    quant_error error = { { 0 }, { 0 } };
    output o;
    subject s;
    err_ctx err = { 0 };
    gguf *made;
    if (!subject_open(&s, "tiny-gptoss-f32.gguf")) return;
    const tensor *t = gguf_tensor(s.f.g, "blk.0.ffn_down_exps.weight");
    for (size_t i = 0; i < 2 * t->rows * t->cols; i++)
        poke(&s, "blk.0.ffn_down_exps.weight", i, i < t->rows * t->cols ? 0.0f : 1e-42f);
    CHECK(make(&o, &error, s.f.m, &wish, NULL, 1, &err) == 0);
    if (CHECK(gguf_open_memory(&made, o.bytes.ptr, o.bytes.len, &err) == 0)) {
        const tensor *scale = gguf_tensor(made, "blk.0.ffn_down_exps.scale");
        CHECK(load_f32(scale->data) == 1.0f);
        CHECK(load_f32(scale->data + 4) > 0.0f && load_f32(scale->data + 4) < 1e-30f);
        gguf_close(made);
    }
    textbuf_free(&o.bytes);
    subject_close(&s);
}

/* Memory that runs out at any point is one error, and nothing is lost. */
static void test_no_memory(void)
{
    const quant_type type = QT_MXFP4;
    const quant_types wish = { .experts = &type };
    subject s;
    int n = 0, rc;
    if (!subject_open(&s, "tiny-gptoss-f32.gguf")) return;
    do {
        quant_convert *c = NULL;
        quant_plan p = { .n_item = 0 };
        pool *team;
        err_ctx err = { 0 };
        if (!CHECK(pool_create(&team, 1, &err) == 0)) break;
        mem_fail_after(++n);
        rc = quant_plan_make(&p, s.f.m, &wish, &err);
        if (rc == 0) rc = quant_convert_create(&c, &p, NULL, team, &err);
        mem_fail_after(0);
        CHECK_MSG(rc == 0 || (rc == ERR_NOMEM && err.msg[0] && !c), "allocation %d: %d, %s", n, rc,
                  err.msg);
        quant_convert_free(c);
        quant_plan_release(&p);
        pool_free(team);
    } while (rc < 0 && n < 1000);
    CHECK_MSG(n > 10, "only %d allocations", n);
    subject_close(&s);
}

/* ---- importance files ----------------------------------------------------------------------- */

enum { COLS = 96, EXPERTS = 8 };         /* of tiny-gptoss */

typedef struct damage {
    const char *type;                    /* general.type */
    const char *first, *second;          /* names of the tensors */
    uint64_t cols, experts, counts;
    float value;                         /* of one sum */
    quant_type kind;
    const char *says;                    /* NULL: it is taken */
} damage;

#define NAME "blk.0.ffn_gate_exps.weight"
static const damage damages[] = {
    { "imatrix", NAME ".in_sum2", NAME ".counts", COLS, EXPERTS, EXPERTS, 1, QT_F32, NULL },
    { NULL, NAME ".in_sum2", NAME ".counts", COLS, EXPERTS, EXPERTS, 1, QT_F32, "general.type" },
    { "model", NAME ".in_sum2", NAME ".counts", COLS, EXPERTS, EXPERTS, 1, QT_F32, "is 'model'" },
    { "imatrix", NAME ".in_sum2", NAME ".extra", COLS, EXPERTS, EXPERTS, 1, QT_F32, "its .counts" },
    { "imatrix", NAME ".counts", NAME ".other", COLS, EXPERTS, EXPERTS, 1, QT_F32, "in_sum2" },
    { "imatrix", NAME ".in_sum2", NAME ".counts", COLS, EXPERTS, 3, 1, QT_F32, "and 3 counts" },
    { "imatrix", NAME ".in_sum2", NAME ".counts", COLS, EXPERTS, EXPERTS, NAN, QT_F32, "is nan" },
    { "imatrix", NAME ".in_sum2", NAME ".counts", COLS, EXPERTS, EXPERTS, -1, QT_F32, "is -1" },
    { "imatrix", NAME ".in_sum2", NAME ".counts", COLS, EXPERTS, EXPERTS, 1, QT_F16, "is F16" },
    { "imatrix", NAME ".in_sum2", NAME ".counts", 64, EXPERTS, EXPERTS, 1, QT_F32, "64 columns" },
    { "imatrix", NAME ".in_sum2", NAME ".counts", COLS, 4, 4, 1, QT_F32, "another model" },
};

/* Column c counts 1 + c % 5; no token chose the last expert. */
static bool write_importance(const char *path, const damage *d)
{
    const uint64_t sums[2] = { d->cols, d->experts }, counts[2] = { 1, d->counts };
    gguf_writer *w = gguf_writer_create();
    const uint8_t *head;
    size_t n;
    FILE *f = fopen(path, "wb");
    if (d->type) gguf_write_str(w, "general.type", str_from(d->type));
    gguf_write_tensor(w, d->first, d->kind, sums, 2);
    gguf_write_tensor(w, d->second, QT_F32, counts, 2);
    bool ok = f && gguf_write_head(w, &head, &n, NULL) == 0 && fwrite(head, 1, n, f) == n;
    for (uint64_t e = 0; ok && e < d->experts; e++)
        for (uint64_t c = 0; c < d->cols; c++) {
            const float v = e == 1 && c == 7 ? d->value : (float)(1 + c % 5);
            ok = fwrite(&v, d->kind == QT_F32 ? 4 : 2, 1, f) == 1;
        }
    for (uint64_t e = 0; ok && e < d->counts; e++) {
        const float v = e + 1 < d->counts ? 100.0f : 0.0f;
        ok = fwrite(&v, 4, 1, f) == 1;
    }
    if (f) ok = fclose(f) == 0 && ok;
    gguf_writer_free(w);
    return CHECK_MSG(ok, "%s: cannot be written", path);
}

static void test_importance(void)
{
    char folder[256], path[300];
    subject s;
    if (!subject_open(&s, "tiny-gptoss-f32.gguf")) return;
    if (!CHECK(mkdtemp(test_temp(folder, sizeof folder)) != NULL)) return;
    snprintf(path, sizeof path, "%s/i.gguf", folder);
    const tensor *t = gguf_tensor(s.f.g, NAME);
    CHECK(t->cols == COLS && t->slabs == EXPERTS);
    for (size_t i = 0; i < ARRAY_LEN(damages); i++) {
        const damage *d = &damages[i];
        quant_importance *q = NULL;
        err_ctx err = { 0 };
        if (!write_importance(path, d)) continue;
        int rc = quant_importance_open(&q, path, &err);
        if (rc == 0) rc = quant_importance_has(q, t, &err);
        CHECK_MSG(d->says ? rc < 0 && strstr(err.msg, d->says) != NULL : rc == 1,
                  "importance file %zu: %d, %s", i, rc, err.msg);
        if (q && !d->says) {
            float w[COLS];
            double sum = 0;
            CHECK(quant_importance_row(w, q, t, 0));
            for (int c = 0; c < COLS; c++) sum += (double)w[c];
            CHECK_MSG(fabs(sum / COLS - 1) < 1e-5 && fabsf(w[4] / w[0] - 5) < 1e-5f, "mean %g",
                      sum / COLS);
            CHECK(!quant_importance_row(w, q, t, EXPERTS - 1));
            CHECK(!quant_importance_row(w, q, gguf_tensor(s.f.g, "output.weight"), 0));
            CHECK(quant_importance_has(q, gguf_tensor(s.f.g, "output.weight"), &err) == 0);

            /* what it is for: less weighted error, more of the other */
            const quant_type type = QT_Q8_0;
            const quant_types wish = { .experts = &type };
            quant_error plain = { { 0 }, { 0 } }, with = plain;
            output a, b;
            CHECK(make(&a, &plain, s.f.m, &wish, NULL, 2, &err) == 0);
            CHECK(make(&b, &with, s.f.m, &wish, q, 2, &err) == 0);
            CHECK_MSG(with.diff[0] > plain.diff[0] && with.diff[1] != with.diff[0] &&
                      a.bytes.len == b.bytes.len, "importance changes nothing");
            textbuf_free(&a.bytes);
            textbuf_free(&b.bytes);
        }
        quant_importance_close(q);
    }
    test_remove(folder);
    subject_close(&s);
}

int main(int argc, char **argv)
{
    test_begin("quant_plan", argc, argv);
    test_file("tiny-gptoss-f32.gguf", QT_MXFP4, 38);
    test_file("tiny-gptoss-f32.gguf", QT_NVFP4, 0);      /* rows of 96: most of it stays F32 */
    test_file("tiny-qwen3next-f32.gguf", QT_NVFP4, 0);
    test_file("tiny-gptoss-f32.gguf", QT_Q8_0, 7);
    test_file("tiny-qwen3next-f32.gguf", QT_BF16, 32);
    test_file("tiny-qwen3next-f32.gguf", QT_MXFP4, 38);
    test_kept();
    test_own_scale();
    test_threads_and_back();
    test_bad_values();
    test_empty_expert();
    test_no_memory();
    test_importance();
    return test_end();
}
