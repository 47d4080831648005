/* test_synth_tables.c - synthetic files of the families after gpt-oss and qwen3next: keys and
 * tensors of the real shapes against tests/cases/synth_shapes.txt, and sizes. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/synth/synth.h"
#include "loader/bytes.h"
#include "tests/case_file.h"
#include "tests/synth_checks.h"
#include "tests/test.h"

#define GIB 1073741824.0

/* ---- tables ------------------------------------------------------------------------------ */

typedef struct shape_row {
    char shape[32], tokenizer[16], pre[16];
    int n_tensor, interval;
    double params, expert, routed, resident, embed;
} shape_row;

static shape_row read_row(const test_case *c)
{
    shape_row r;
    CHECK_MSG(sscanf(c->head, "%31s %d %d %lf %lf %lf %lf %lf %15s %15s", r.shape, &r.n_tensor,
                     &r.interval, &r.params, &r.expert, &r.routed, &r.resident, &r.embed,
                     r.tokenizer, r.pre) == 10, "%s", c->head);
    return r;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : "";
}

/* ---- files of real shapes ---------------------------------------------------------------- */

static char folder[400];

/* The whole file without the contents of its tensors: a hole on the disk. */
static gguf *open_hollow(const synth_options *o)
{
    char path[512];
    synth_plan *p = NULL;
    gguf *g = NULL;
    err_ctx err = { 0, "" };
    if (!CHECK_MSG(synth_plan_create(&p, o, &err) == 0, "%s: %s", o->shape->name, err.msg))
        return NULL;
    const size_t head = 32 << 20;        /* more than any: what follows costs little */
    uint8_t *data = test_alloc(head, 1);
    const int fd = open(test_path(path, sizeof path, "%s/hollow", folder),
                        O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    synth_plan_fill(p, data, 0, head);
    if (CHECK(fd >= 0 && write(fd, data, head) == (ssize_t)head &&
              ftruncate(fd, (off_t)synth_plan_bytes(p)) == 0))
        CHECK_MSG(gguf_open(&g, path, &err) == 0, "%s: %s", o->shape->name, err.msg);
    if (fd >= 0) close(fd);
    unlink(path);
    mem_free(data);
    synth_plan_free(p);
    return g;
}

/* A line with name, type, value and perhaps the last value. */
static void check_key(const gguf *g, const char *arch, const char *line)
{
    const gguf_type types[128] = { ['u'] = GGUF_U32, ['f'] = GGUF_F32, ['b'] = GGUF_BOOL,
                                   ['i'] = GGUF_I32, ['B'] = GGUF_BOOL };
    char key[64], name[96], type = 0;
    double value = 0, final = 0;
    int64_t v = 0, last = 0;
    CHECK_MSG(sscanf(line, "%63s %c %lf %lf", key, &type, &value, &final) >= 3, "%.60s", line);
    const bool is_array = type == 'i' || type == 'B';
    snprintf(name, sizeof name, "%s.%s", arch, key);
    const gguf_kv *kv = gguf_find(g, name);
    if (!CHECK_MSG(kv, "no key %s", name)) return;
    if (!CHECK_MSG(kv->type == types[(int)type] && kv->is_array == is_array, "%s is %s", name,
                   gguf_type_name(kv->type, kv->is_array))) return;
    if (type == 'f') {
        const float f = load_f32(kv->data);
        CHECK_MSG(f == (float)value, "%s is %g, not %g", name, (double)f, value);
        return;
    }
    CHECK(gguf_kv_int(&v, kv, 0) && gguf_kv_int(&last, kv, kv->count - 1));
    CHECK_MSG(v == (int64_t)value && (!is_array || last == (int64_t)final), "%s is %lld, %lld",
              name, (long long)v, (long long)last);
}

static void check_keys(const gguf *g, const char *arch, const shape_row *r, const char *keys)
{
    int n_own = 0, n_key = 0;
    for (const char *k = keys; *k; k = next_line(k), n_key++) check_key(g, arch, k);
    for (int i = 0; i < gguf_n_kv(g); i++) {
        const str_view key = gguf_kv_at(g, i)->key;
        n_own += key.len > strlen(arch) && !memcmp(key.ptr, arch, strlen(arch)) &&
                 key.ptr[strlen(arch)] == '.';
    }
    CHECK_MSG(n_own == n_key, "%s: %d keys of its own, not %d", arch, n_own, n_key);
    str_view kind = { "", 0 }, pre = { "", 0 };
    CHECK(gguf_get_str(&kind, g, "tokenizer.ggml.model", NULL) == 1 && str_is(kind, r->tokenizer));
    const int has_pre = gguf_get_str(&pre, g, "tokenizer.ggml.pre", NULL);
    CHECK_MSG(str_is(has_pre ? pre : str_from("-"), r->pre), "%s: pre", arch);
}

static bool is_in_layer(char where, const shape_row *r, const synth_shape *s, int l)
{
    const bool full = (l + 1) % r->interval == 0, mtp = l >= s->n_layer;
    switch (where) {
    case '-': return l < 0;
    case 'a': return l >= 0;
    case 'f': return l >= 0 && full;
    case 'r':
    case 'w': return l >= 0 && !full;
    case 'd': return l >= 0 && l < s->n_dense;
    case 'm': return l >= s->n_dense;
    case 'n': return mtp;
    default: return false;
    }
}

/* A line with where, name, type and shape. */
static void check_tensors(const gguf *g, const shape_row *r, const synth_shape *s, const char *rows)
{
    int found = 0;
    for (int l = -1; l < s->n_layer + s->n_mtp; l++)
        for (const char *row = rows; *row; row = next_line(row)) {
            char stem[48], name[TENSOR_MAX_NAME + 1], type[16], shape[96], where;
            int ne[3] = { 1, 1, 1 };
            CHECK_MSG(sscanf(row, "%c %47s %15s %dx%dx%d", &where, stem, type, &ne[0], &ne[1],
                             &ne[2]) >= 4, "%.60s", row);
            if (!is_in_layer(where, r, s, l)) continue;
            if (l < 0) snprintf(name, sizeof name, "%s", stem);
            else snprintf(name, sizeof name, "blk.%d.%s", l, stem);
            const tensor *t = gguf_tensor(g, name);
            if (!CHECK_MSG(t, "%s: no tensor %s", s->name, name)) continue;
            found++;
            CHECK_MSG(t->cols == (uint64_t)ne[0] && t->rows == (uint64_t)ne[1] &&
                      t->slabs == (uint64_t)ne[2] && strcmp(quant_name(t->type), type) == 0,
                      "%s: %s is %s %s", s->name, name, quant_name(t->type),
                      tensor_shape_text(shape, sizeof shape, t));
        }
    CHECK_MSG(found == r->n_tensor && gguf_n_tensor(g) == r->n_tensor,
              "%s: %d tensors of the table and %d in the file, not %d", s->name, found,
              gguf_n_tensor(g), r->n_tensor);
}

static void check_near(const char *shape, const char *what, double got, double want)
{
    CHECK_MSG(fabs(got - want) < 0.0051, "%s: %s %.3f, published %.2f", shape, what, got, want);
}

static void check_sizes(const gguf *g, const shape_row *r, const synth_shape *s)
{
    double params = 0, routed = 0, resident = 0, embed = 0;
    for (int i = 0; i < gguf_n_tensor(g); i++) {
        const tensor *t = gguf_tensor_at(g, i);
        if (s->n_mtp && synth_in_block(t, s->n_layer)) continue;
        params += (double)t->elems;
        if (str_ends(t->name, "_exps.weight")) routed += (double)t->bytes;
        else if (str_is(t->name, "token_embd.weight") && r->embed > 0) embed += (double)t->bytes;
        else if (t->rows > 1) resident += (double)t->bytes;      /* vectors were not counted */
    }
    check_near(s->name, "parameters", params / 1e9, r->params);
    check_near(s->name, "one expert", routed / (s->n_layer - s->n_dense) / s->n_expert / 1048576,
               r->expert);
    check_near(s->name, "routed experts", routed / GIB, r->routed);
    check_near(s->name, "resident", resident / GIB, r->resident);
    check_near(s->name, "embedding", embed / GIB, r->embed);
}

static void test_real_shapes(void)
{
    static case_file file;
    const bool ok = case_file_read(&file, "synth_shapes.txt");
    for (int i = 0; i < file.n && ok; i++) {
        const test_case *c = &file.cases[i];
        const shape_row r = read_row(c);
        const synth_shape *s = synth_shape_find(r.shape);
        if (!CHECK_MSG(s, "no shape %s", r.shape)) continue;
        const synth_options o = synth_options_of(s);
        gguf *g = open_hollow(&o);
        model *m = NULL;
        if (!g) continue;
        check_keys(g, s->family->arch, &r, c->body);
        check_tensors(g, &r, s, c->want);
        check_sizes(g, &r, s);
        if (synth_bind(&m, g, s->name)) {
            const model_hparams *hp = &m->hp;
            CHECK_MSG(hp->n_layer == s->n_layer && hp->n_expert == s->n_expert &&
                      hp->n_expert_used == s->n_used && hp->n_ff_expert == s->n_ff &&
                      hp->n_vocab == s->n_vocab, "%s: read otherwise", s->name);
            synth_check_used(m, g, s, s->n_layer);
        }
        model_free(m);
        gguf_close(g);
    }
    case_file_free(&file);
}

/* ---- types, refusals ---------------------------------------------------------------------- */

static void test_types(void)
{
    static const struct { quant_type experts, down; } fits[] = {
        { QT_Q4_K, QT_Q5_0 }, { QT_Q5_K, QT_Q5_1 }, { QT_Q6_K, QT_Q8_0 }, { QT_Q2_K, QT_Q4_0 },
        { QT_Q3_K, QT_Q4_0 }, { QT_IQ4_XS, QT_IQ4_NL }, { QT_IQ2_S, QT_IQ4_NL },
        { QT_Q8_0, QT_Q8_0 }, { QT_MXFP4, QT_MXFP4 },
    };
    for (size_t i = 0; i < ARRAY_LEN(fits); i += (size_t)test_rounds(1, 3)) {
        synth_options o = synth_options_of(synth_shape_find("gemma-4-26b-a4b"));
        o.experts = fits[i].experts;
        o.n_layer = 1;
        gguf *g = open_hollow(&o);
        const tensor *up = g ? gguf_tensor(g, "blk.0.ffn_gate_up_exps.weight") : NULL;
        const tensor *down = g ? gguf_tensor(g, "blk.0.ffn_down_exps.weight") : NULL;
        CHECK_MSG(up && down && up->type == fits[i].experts && down->type == fits[i].down,
                  "%s: rows of 704 are %s", quant_name(fits[i].experts),
                  down ? quant_name(down->type) : "absent");
        gguf_close(g);
    }
}

static void test_refusals(void)
{
    synth_options o = synth_options_of(synth_shape_find("glm-4.5-air"));
    synth_plan *p = NULL;
    err_ctx err = { 0, "" };
    o.n_layer = 1;
    CHECK_MSG(synth_plan_create(&p, &o, &err) == ERR_RANGE && strstr(err.msg, "2 or more"), "%s",
              err.msg);
    o.n_layer = 47;
    CHECK_MSG(synth_plan_create(&p, &o, &err) == ERR_RANGE && strstr(err.msg, "46 layers, not 47"),
              "%s", err.msg);
    o.n_layer = 46;
    o.experts = QT_Q1_0;
    CHECK_MSG(synth_plan_create(&p, &o, &err) == 0 || strstr(err.msg, "1408"), "%s", err.msg);
    synth_plan_free(p);
    CHECK(!synth_shape_find("glm-4.5") && !synth_shape_at(1000));
}

int main(int argc, char **argv)
{
    test_begin("synth_tables", argc, argv);
    if (!CHECK(mkdtemp(test_temp(folder, sizeof folder)) != NULL)) return test_end();
    test_real_shapes();
    test_types();
    test_refusals();
    CHECK_MSG(rmdir(folder) == 0, "%s is not empty", folder);
    return test_end();
}
