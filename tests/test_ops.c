/* test_ops.c - products as the engine asks for them: lists of matrices, cut for a team.
 *
 * However a list is cut, every value is the reference kernel's, finished by one fma. The same holds
 * with many tokens, where pieces are taller and tokens come in batches, and with a matrix that has
 * a repacked copy. */
#include <math.h>
#include <string.h>

#include "engine/host/repack_head.h"
#include "loader/bytes.h"
#include "tests/test.h"

enum { MAX_TOKENS = 150, N_PRODUCT = 4 };

/* Random blocks with scales of about 2^-8; bias for every second matrix. */
static matrix matrix_make(quant_type type, int rows, int cols, test_rng *rng)
{
    const quant_traits *t = quant_traits_of(type);
    matrix m = { .type = type, .rows = rows, .cols = cols, .scale = 1.0f,
                 .row_bytes = quant_row_bytes(t, (uint64_t)cols) };
    const size_t bytes = (size_t)rows * (size_t)m.row_bytes;
    uint8_t *data = test_alloc(bytes, 1);
    test_fill(rng, data, bytes);
    for (size_t i = 0; i < bytes; i += (size_t)t->block_bytes) {
        if (type == QT_MXFP4) data[i] = (uint8_t)(115 + test_below(rng, 8));
        else if (type == QT_F32) store_u32(data + i, 0x3C000000 + test_below(rng, 1 << 24));
        else store_u16(data + i, (uint16_t)(0x1C00 + test_below(rng, 0x400)));
    }
    if (rows % 2) {
        float *bias = test_alloc((size_t)rows, sizeof *bias);
        for (int r = 0; r < rows; r++) bias[r] = (float)r * 0.25f;
        m.bias = bias;
        m.scale = 0.5f;
    }
    m.data = data;
    return m;
}

static void matrix_drop(matrix *m)
{
    repack_head_free(m);
    mem_free((void *)m->data);
    mem_free((void *)m->bias);
}

static void check_product(const char *what, const float *y, const matrix *w, acts *x)
{
    const kernel *ref = &kernels_contract()->of[w->type];
    float *sums = test_alloc((size_t)w->rows * (size_t)x->n, sizeof *sums);
    int bad = 0;
    ref->dot(sums, w->data, w->row_bytes, w->rows, x->rows, x->n, w->cols);
    for (int t = 0; t < x->n; t++)
        for (int r = 0; r < w->rows; r++) {
            const float bias = w->bias ? ((const float *)w->bias)[r] : 0.0f;
            const float want = fmaf(ref->factor * w->scale, sums[t * w->rows + r], bias);
            bad += memcmp(&y[t * w->rows + r], &want, sizeof want) != 0;
        }
    CHECK_MSG(bad == 0, "%s, %s of %d rows, %d tokens: %d of %d wrong", what, quant_name(w->type),
              w->rows, x->n, bad, w->rows * x->n);
    mem_free(sums);
}

static void test_list(const ops *o, int cols, int n_token, test_rng *rng)
{
    matrix w[N_PRODUCT] = {
        matrix_make(QT_Q8_0, 301, cols, rng), matrix_make(QT_MXFP4, 33, cols, rng),
        matrix_make(QT_F32, 1, cols, rng), matrix_make(QT_Q8_0, 128, cols, rng),
    };
    product list[N_PRODUCT];
    float *x = test_alloc((size_t)n_token * (size_t)cols, sizeof *x);
    void *storage = test_alloc(acts_bytes(n_token, cols), 1);
    err_ctx err = { 0 };
    acts a;

    for (int i = 0; i < n_token * cols; i++) x[i] = (float)test_below(rng, 2001) * 0.001f - 1.0f;
    acts_init(&a, storage, n_token, cols);
    acts_set(&a, x, n_token, cols);
    for (int k = 0; k < N_PRODUCT; k++) {
        const size_t n = (size_t)w[k].rows * (size_t)n_token;
        list[k] = (product){ test_alloc(n, sizeof(float)), &w[k] };
        memset(list[k].y, 0x55, n * sizeof(float));
    }
    ops_matmuls(o, list, N_PRODUCT, &a);
    for (int k = 0; k < N_PRODUCT; k++) check_product("list", list[k].y, &w[k], &a);

    CHECK(repack_head(&w[0], o, &err) == 0);
    CHECK(!w[0].repacked == (repack_head_bytes(&w[0], o->kernels) == 0));
    memset(list[0].y, 0x55, (size_t)w[0].rows * (size_t)n_token * sizeof(float));
    ops_matmul(o, list[0].y, &w[0], &a);
    check_product("repacked", list[0].y, &w[0], &a);

    for (int k = 0; k < N_PRODUCT; k++) {
        mem_free(list[k].y);
        matrix_drop(&w[k]);
    }
    mem_free(storage);
    mem_free(x);
}

static void test_largest(const ops *o, int n, test_rng *rng)
{
    float *x = test_alloc((size_t)n, sizeof *x);
    const int at = (int)test_below(rng, (uint32_t)n), again = at + (n - at) / 2;
    for (int i = 0; i < n; i++) x[i] = -1.0f - (float)test_below(rng, 1000);
    x[at] = x[again] = -0.5f;            /* the first of equals */
    for (int i = 0; i < at; i++)
        if (test_below(rng, 3) == 0) x[i] = NAN;
    CHECK_MSG(ops_largest(o, x, n) == at, "the largest of %d: %d instead of %d", n,
              ops_largest(o, x, n), at);
    mem_free(x);
}

int main(int argc, char **argv)
{
    static const int tokens[] = { 1, 2, 7, 8, 64, 65, MAX_TOKENS }, threads[] = { 1, 3 };
    const kernel_set *sets[KERNELS_MAX_SETS];
    const int n_set = kernels_here(sets);
    test_rng rng = { 7 };
    err_ctx err = { 0 };

    test_begin("ops", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
        pool *team;
        if (!CHECK(pool_create(&team, threads[i], &err) == 0)) break;
        for (int s = 0; s < n_set; s++) {
            const ops o = { team, sets[s], loops_for(sets[s]->isa) };
            for (size_t t = test_is_long() ? 0 : (i + (size_t)s) % 2; t < ARRAY_LEN(tokens);
                 t += (size_t)test_rounds(1, 2))
                test_list(&o, t % 2 ? 96 : 544, tokens[t], &rng);
            const bool large = test_is_long() || (size_t)s % ARRAY_LEN(threads) == i;
            if (large && (s < 2 || test_is_long())) {
                test_list(&o, 3584, 65, &rng);   /* tokens that are packed in two chunks */
                test_list(&o, 12800, 9, &rng);   /* ... that are too long to be kept packed */
            }
            for (int n = 1; n < 300; n += 1 + n / 4) test_largest(&o, n, &rng);
        }
        pool_free(team);
    }
    return test_end();
}
