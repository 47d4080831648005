/* test_gpu_products.c - products of one input with matrices of all types, on the GPU.
 *
 * Up to GPU_FEW tokens against the arithmetic contract, with its bits where the matrix is so tall
 * that no row is shared by warps; more within the error of 16-bit activations; with all that can
 * come before a product (norms, gates) and after it (scale, bias, sum, convolution). There are gaps
 * between outputs, and nothing in them may change. */
#include <math.h>
#include <string.h>

#include "tests/gpu_fixture.h"

static const float eps = 1e-6f;

enum {
    TALL = 20001,                        /* rows: eight for each of more warps than chips have */
    HEAD = 100003, HEAD_COLS = 1280      /* as of a model's head: several times eight for each warp
                                          * of up to 190 multiprocessors; rows of several pieces */
};

/* ---- lists of products ----------------------------------------------------------------------- */

typedef struct item {                    /* one product of a list */
    quant_type type;
    int rows;
    bool bias, add;
    float scale;
} item;

typedef struct output {
    reference w;
    int stride;
    float *y;                            /* [n, stride] in VRAM */
    float *want;                         /* the same on the CPU; NaNs in the gaps */
} output;

static output output_make(const item *p, int cols, int n, weight_kind kind, test_rng *rng)
{
    output o = { .w = reference_make(p->type, p->rows, cols, kind, p->scale, p->bias, rng),
                 .stride = p->rows + n % 4 };
    const size_t all = (size_t)n * (size_t)o.stride;
    o.want = host_room(all, sizeof *o.want);
    memset(o.want, 0xFF, all * sizeof *o.want);
    for (int t = 0; t < n && p->add; t++)
        for (int r = 0; r < p->rows; r++)
            o.want[t * o.stride + r] = (float)((t + 3 * r) % 17) * 0.25f - 2.0f;
    o.y = vram_floats(o.want, all);
    return o;
}

static gpu_product product_of(const output *o, bool add)
{
    return (gpu_product){ .y = o->y, .y_stride = o->stride, .add = add, .w = o->w.gpu };
}

/* The rows of all tokens without the gaps. */
static float *without_gaps(const float *y, int n, int rows, int stride)
{
    float *to = host_room((size_t)n * (size_t)rows, sizeof *to);
    for (int t = 0; t < n; t++)
        memcpy(to + (size_t)t * (size_t)rows, y + (size_t)t * (size_t)stride,
               (size_t)rows * sizeof *to);
    return to;
}

static const ops *reference_for(int n) { return n <= GPU_FEW ? contract_ops() : exact_ops(); }

/* x: what the matrix is multiplied by. bound: < 0 for the same bits. */
static void check_output(const char *what, output *o, const item *p, const float *x, int n,
                         double bound)
{
    const size_t values = (size_t)n * (size_t)p->rows, all = (size_t)n * (size_t)o->stride;
    float *sums = host_room(values, sizeof *sums);
    const float *got = host_copy(o->y, all);
    size_t changed = 0;

    cpu_product(sums, reference_for(n), &o->w.cpu, x, n);
    for (int t = 0; t < n; t++) {
        float *to = o->want + (size_t)t * (size_t)o->stride;
        const float *sum = sums + (size_t)t * (size_t)p->rows;
        for (int r = 0; r < p->rows; r++) to[r] = p->add ? to[r] + sum[r] : sum[r];
        for (int r = p->rows; r < o->stride; r++)
            changed += memcmp(&got[t * o->stride + r], &to[r], sizeof *to) != 0;
    }
    expect(changed == 0, "%s: %zu values between the rows of two tokens have changed", what,
           changed);
    const float *computed = without_gaps(got, n, p->rows, o->stride);
    const float *want = without_gaps(o->want, n, p->rows, o->stride);
    if (bound < 0.0) expect_bits(what, computed, want, values);
    else expect_close(what, computed, want, values, bound);
}

static gpu_input plain_input(const float *x, int n, int cols)
{
    const size_t all = (size_t)n * (size_t)cols;
    return (gpu_input){ .kind = GPU_PLAIN, .n = n, .cols = cols, .x = vram_floats(x, all),
                        .rows = vram_room(all * sizeof(float)), .halves = vram_room(all * 2) };
}

/* With what 16 bits leave out. */
static gpu_input whole_input(const float *x, int n, int cols)
{
    gpu_input in = plain_input(x, n, cols);
    in.lows = vram_room((size_t)n * (size_t)cols * 2);
    return in;
}

/* All products of in, which is x, in one call. */
static void check_products(gpu_input *in, const float *x, const item *list, int n_item,
                           weight_kind kind, test_rng *rng)
{
    const int n = in->n;
    output out[GPU_MAX_PRODUCTS];
    gpu_product products[GPU_MAX_PRODUCTS];

    for (int i = 0; i < n_item; i++) {
        out[i] = output_make(&list[i], in->cols, n, kind, rng);
        products[i] = product_of(&out[i], list[i].add);
    }
    gpu_project(device(), in, products, n_item);
    for (int i = 0; i < n_item; i++)
        check_output(quant_name(list[i].type), &out[i], &list[i], x, n,
                     list[i].rows >= TALL ? -1.0
                     : in->lows           ? lows_bound(list[i].type, n)
                                          : product_bound(list[i].type, n));
}

static void check_list(const item *list, int n_item, int cols, int n, weight_kind kind,
                       bool hostile, test_rng *rng)
{
    float *x = host_floats((size_t)n * (size_t)cols, 1.0f, rng);

    for (int t = 0; t < n && hostile; t++)
        activations_make(x + (size_t)t * (size_t)cols, cols, t % 3 == 2, rng);
    gpu_input in = plain_input(x, n, cols);
    check_products(&in, x, list, n_item, kind, rng);
}

/* Lengths of a row: within what kernels take at a time, across it, with a short tail. */
static const int *lengths_of(quant_type type)
{
    static const int of_256[3] = { 256, 512, 2816 }, of_64[3] = { 64, 320, 2880 };
    static const int of_32[3] = { 96, 288, 2880 }, of_1[3] = { 33, 288, 2880 };
    switch (quant_traits_of(type)->block_elems) {
    case 256: return of_256;
    case 64: return of_64;
    case 32: return of_32;
    default: return of_1;
    }
}

/* Scale, bias and sum, in every combination as i goes on. */
static item item_of(quant_type type, int rows, int i)
{
    return (item){ .type = type, .rows = rows, .bias = i & 1, .add = i & 2,
                   .scale = i & 4 ? 0.5f : 1.0f };
}

static void check_one(quant_type type, int rows, int cols, int n, weight_kind kind, bool hostile,
                      int option, test_rng *rng)
{
    const item one = item_of(type, rows, option);
    case_begin("%s, %d rows, %d columns, %d tokens, %s%s%s%s, scale %g", quant_name(type), rows,
               cols, n, weight_kind_name(kind), hostile ? ", hostile input" : "",
               one.bias ? ", bias" : "", one.add ? ", sum" : "", (double)one.scale);
    check_list(&one, 1, cols, n, kind, hostile, rng);
    case_end();
}

static void test_few(void)
{
    static const int rows[] = { 1, 8, 9, 130 }, tokens[] = { 1, 2, 3, 8 };
    test_rng rng = { 1 };
    int option = 0;
    for (int i = 0; i < GPU_TYPE_COUNT; i++) {
        const quant_type type = gpu_types[i];
        family(quant_name(type));
        for (int c = 0; c < 3; c++)
            for (size_t r = 0; r < ARRAY_LEN(rows); r++)
                for (size_t t = 0; t < ARRAY_LEN(tokens); t++)
                    check_one(type, rows[r], lengths_of(type)[c], tokens[t], WEIGHTS_PLAUSIBLE,
                              false, option++, &rng);
        check_one(type, 2500, lengths_of(type)[0], 1, WEIGHTS_PLAUSIBLE, false, 7, &rng);
        check_one(type, 2500, lengths_of(type)[1], 5, WEIGHTS_PLAUSIBLE, false, 7, &rng);
        for (int kind = 0; kind < WEIGHT_KINDS; kind++)
            for (int n = 1; n <= GPU_FEW; n += 7)
                check_one(type, TALL, lengths_of(type)[kind % 2], n, (weight_kind)kind, true,
                          option++, &rng);
        if (quant_traits_of(type)->block_elems > 1)
            check_one(type, HEAD, HEAD_COLS, 1, WEIGHTS_PLAUSIBLE, true, option++, &rng);
    }
}

/* ---- many tokens ----------------------------------------------------------------------------- */

/* Of a matrix too large to multiply on the CPU as a whole: some rows. */
static void check_large(quant_type type, int rows, int cols, int n, bool lows, test_rng *rng)
{
    static const int firsts[] = { 0, 120, 1000, -8 };    /* runs of 8; < 0: from the end */
    const item one = item_of(type, rows, 1);
    case_begin("%s, %d rows, %d columns, %d tokens, bias%s", quant_name(type), rows, cols, n,
               lows ? ", lows" : "");
    float *x = host_floats((size_t)n * (size_t)cols, 1.0f, rng);
    gpu_input in = lows ? whole_input(x, n, cols) : plain_input(x, n, cols);
    output o = output_make(&one, cols, n, WEIGHTS_PLAUSIBLE, rng);
    const gpu_product p = product_of(&o, false);
    gpu_project(device(), &in, &p, 1);

    const float *got = host_copy(o.y, (size_t)n * (size_t)o.stride);
    size_t n_nan = 0;
    for (int t = 0; t < n; t++)
        for (int r = 0; r < rows; r++) n_nan += isnan(got[(size_t)t * (size_t)o.stride + r]) != 0;
    expect(n_nan == 0, "%zu values are NaN", n_nan);
    for (size_t i = 0; i < ARRAY_LEN(firsts); i++) {
        const int first = firsts[i] < 0 ? rows + firsts[i] : firsts[i];
        matrix some = o.w.cpu;
        some.rows = 8;
        some.data += (uint64_t)first * some.row_bytes;
        some.bias = (const float *)some.bias + first;
        float *want = host_room((size_t)n * 8, sizeof *want);
        cpu_product(want, exact_ops(), &some, x, n);
        expect_close(first == 0 ? "rows from 0 on" : "further rows",
                     without_gaps(got + first, n, 8, o.stride), want, (size_t)n * 8,
                     lows ? lows_bound(type, n) : product_bound(type, n));
    }
    case_end();
}

static const struct { int n, rows, c; } batches[] = {
    { 9, 1, 0 }, { 33, 65, 1 }, { 130, 200, 2 }, { 257, 65, 0 }, { 257, 200, 1 }, { 9, 200, 2 },
    { 33, 1, 2 }, { 130, 1, 0 }, { 257, 8, 1 },
};
/* tiles of 64, 128 and 256 tokens on a chip with 132 multiprocessors */
static const struct { int n, rows; } crowds[] = { { 300, 2000 }, { 600, 2000 }, { 1024, 4096 } };

static void test_many(void)
{
    test_rng rng = { 2 };
    int option = 0;
    for (int i = 0; i < GPU_TYPE_COUNT; i++) {
        char name[64];
        const quant_type type = gpu_types[i];
        family(test_path(name, sizeof name, "%s, many tokens", quant_name(type)));
        for (size_t k = 0; k < ARRAY_LEN(batches); k++)
            check_one(type, batches[k].rows, lengths_of(type)[batches[k].c], batches[k].n,
                      WEIGHTS_PLAUSIBLE, false, option++, &rng);
        for (size_t k = 0; k < ARRAY_LEN(crowds); k++)
            check_large(type, crowds[k].rows, lengths_of(type)[0], crowds[k].n, false, &rng);
    }
}

/* Weights of 16 bits times the bits that 16 bits of an input lose; other weights in the same
 * call. */
static void test_lows(void)
{
    static const quant_type types[] = { QT_F16, QT_BF16 };
    static const item mixed[] = {
        { QT_BF16, 200, true, false, 1.0f }, { QT_Q8_0, 33, false, true, 2.0f },
        { QT_F32, 17, false, false, 1.0f }, { QT_F16, 31, false, true, 0.5f },
        { QT_BF16, 3, false, true, 1.0f },
    };
    static const int tokens[] = { 8, 9, 40, 200 };
    test_rng rng = { 10 };
    int option = 0;
    family("what 16 bits leave out");
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        for (size_t k = 0; k < ARRAY_LEN(batches); k++) {
            const item one = item_of(types[i], batches[k].rows, option++);
            const int n = batches[k].n, cols = lengths_of(types[i])[batches[k].c];
            case_begin("%s, %d rows, %d columns, %d tokens%s%s", quant_name(types[i]), one.rows,
                       cols, n, one.bias ? ", bias" : "", one.add ? ", sum" : "");
            const float *x = host_floats((size_t)n * (size_t)cols, 1.0f, &rng);
            gpu_input in = whole_input(x, n, cols);
            check_products(&in, x, &one, 1, WEIGHTS_PLAUSIBLE, &rng);
            case_end();
        }
        for (size_t k = 0; k < ARRAY_LEN(crowds); k++)
            for (int c = 0; c < 2; c++)
                check_large(types[i], crowds[k].rows, lengths_of(types[i])[c], crowds[k].n, true,
                            &rng);
    }
    for (size_t t = 0; t < ARRAY_LEN(tokens); t++) {
        case_begin("mixed types, %d tokens", tokens[t]);
        const float *x = host_floats((size_t)tokens[t] * 288, 1.0f, &rng);
        gpu_input in = whole_input(x, tokens[t], 288);
        check_products(&in, x, mixed, ARRAY_LEN(mixed), WEIGHTS_PLAUSIBLE, &rng);
        case_end();
    }
}

/* ---- F32 weights ----------------------------------------------------------------------------- */

/* All tokens at once, and some of them in batches of their own, parts[] up to a 0: the bits are the
 * same, although other tiles may be used. */
static void check_cuts(quant_type type, int rows, int cols, int n, const int *parts, int option,
                       test_rng *rng)
{
    const item one = item_of(type, rows, option);
    case_begin("%s, %d rows, %d columns, %d tokens%s%s, scale %g, cut", quant_name(type), rows,
               cols, n, one.bias ? ", bias" : "", one.add ? ", sum" : "", (double)one.scale);
    float *x = host_floats((size_t)n * (size_t)cols, 1.0f, rng);
    gpu_input in = plain_input(x, n, cols);
    output o = output_make(&one, cols, n, WEIGHTS_PLAUSIBLE, rng);
    const size_t all = (size_t)n * (size_t)o.stride;
    float *cut = vram_floats(o.want, all);
    gpu_product p = product_of(&o, one.add);
    int first = 0;

    gpu_project(device(), &in, &p, 1);
    const float *whole = host_copy(o.y, all);
    for (int i = 0; parts[i] > 0 && first + parts[i] <= n; first += parts[i++]) {
        gpu_input part = plain_input(x + (size_t)first * (size_t)cols, parts[i], cols);
        p.y = cut + (size_t)first * (size_t)o.stride;
        gpu_project(device(), &part, &p, 1);
    }
    expect(first > 0, "no part fits");
    expect_bits("cut", without_gaps(host_copy(cut, all), first, rows, o.stride),
                without_gaps(whole, first, rows, o.stride), (size_t)first * (size_t)rows);
    check_output("whole", &o, &one, x, n, product_bound(type, n));
    case_end();
}

/* Up to GPU_FEW tokens: rows for fewer units than multiprocessors, for about as many, for many; the
 * last width leaves no room for all vectors in a block. */
static void test_few_cuts(void)
{
    static const int parts[] = { 1, 2, 1, 3, 1, 0 }, rows[] = { 8, 600, 1100, 1500 },
                     widths[] = { 256, 2048, 28672 };
    test_rng rng = { 12 };
    int option = 0;
    family("few tokens, cut");
    for (int i = 0; i < GPU_TYPE_COUNT; i++)
        for (size_t r = 0; r < ARRAY_LEN(rows); r++)
            check_cuts(gpu_types[i], rows[r], widths[(size_t)(i + (int)r) % ARRAY_LEN(widths)],
                       GPU_FEW, parts, option++, &rng);
}

/* Columns are divided into runs of 64, among eight groups for up to 32 rows, else among four:
 * fewer runs than groups, as many, one more for some, with a short or an odd end. Batches of half a
 * chip and more have large tiles, and batches of few rows the smallest ones until they have so many
 * tokens. */
static void test_floats(void)
{
    static const int lengths[] = { 20, 64, 250, 256, 321, 512, 516, 580, 1000, 2047 };
    static const struct { int rows, n; } shapes[] = {
        { 1, 50 }, { 8, 41 }, { 9, 64 }, { 31, 33 }, { 32, 111 }, { 33, 41 }, { 64, 65 },
        { 130, 111 },
    };
    static const struct { int rows, cols, n; } large[] = {
        { 700, 580, 650 }, { 705, 321, 641 }, { 512, 1000, 900 }, { 128, 580, 600 },
        { 100, 2047, 700 }, { 128, 2816, 512 }, { 96, 516, 2300 },
    };
    static const int parts[] = { GPU_FEW + 1, 32, 70, 129, 0 };
    test_rng rng = { 9 };
    int option = 0;
    family("F32, runs of columns");
    for (size_t c = 0; c < ARRAY_LEN(lengths); c++)
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            check_cuts(QT_F32, shapes[i].rows, lengths[c], shapes[i].n, parts, option++, &rng);
    for (size_t i = 0; i < ARRAY_LEN(large); i++)
        check_cuts(QT_F32, large[i].rows, large[i].cols, large[i].n, parts, option++, &rng);
}

static void test_lists(void)
{
    static const item mixed[] = {
        { QT_Q4_K, 130, false, false, 1.0f }, { QT_Q6_K, 9, true, false, 1.0f },
        { QT_Q4_K, 40, true, true, 0.5f }, { QT_F32, 17, false, false, 1.0f },
        { QT_Q8_0, 33, false, true, 2.0f }, { QT_MXFP4, 70, true, false, 1.0f },
    };
    static const item alike[] = {
        { QT_Q8_0, 5, false, false, 1.0f }, { QT_Q8_0, 300, true, false, 0.5f },
        { QT_Q8_0, 1, false, true, 1.0f }, { QT_Q8_0, 64, false, false, 1.0f },
    };
    static const item floats[] = {
        { QT_F16, 31, true, false, 1.0f }, { QT_BF16, 200, false, false, 0.5f },
        { QT_F32, 3, false, true, 1.0f }, { QT_BF16, 9, true, true, 1.0f },
    };
    static const struct { const item *list; int n, cols; const char *why; } lists[] = {
        { mixed, ARRAY_LEN(mixed), 512, "mixed types" },
        { alike, ARRAY_LEN(alike), 96, "one type" },
        { floats, ARRAY_LEN(floats), 264, "floats" },
        { floats, ARRAY_LEN(floats), 33, "floats, odd length" },
    };
    static const int tokens[] = { 1, 2, 8, 9, 40 };
    test_rng rng = { 3 };
    family("lists of products");
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (size_t t = 0; t < ARRAY_LEN(tokens); t++) {
            case_begin("%s, %d of %d columns, %d tokens", lists[i].why, lists[i].n, lists[i].cols,
                       tokens[t]);
            check_list(lists[i].list, lists[i].n, lists[i].cols, tokens[t], WEIGHTS_PLAUSIBLE,
                       false, &rng);
            case_end();
        }
}

/* ---- inputs ---------------------------------------------------------------------------------- */

typedef struct shaped {                  /* an input, and what it becomes */
    gpu_input in;
    float *finished;
} shaped;

/* Gates lie as Qwen's queries have them, after the values of every head, or alone. */
static shaped shaped_make(gpu_input_kind kind, int n, int cols, int head_dim, test_rng *rng)
{
    const loops *f = contract_ops()->loops;
    const size_t all = (size_t)n * (size_t)cols;
    const int n_head = head_dim ? cols / head_dim : 0, apart = kind == GPU_GATED ? 2 : 1;
    const int first = kind == GPU_GATED ? head_dim : 0;
    float *x = host_floats(all, 2.0f, rng);
    float *gain = host_floats((size_t)(head_dim ? head_dim : cols), 1.5f, rng);
    float *gate = host_floats(all * (size_t)apart, 4.0f, rng);
    shaped s = { .in = whole_input(x, n, cols), .finished = host_room(all, sizeof(float)) };

    s.in.kind = kind;
    s.in.eps = eps;
    if (kind != GPU_GATED)
        s.in.weight = vram_floats(gain, (size_t)(head_dim ? head_dim : cols));
    if (kind != GPU_NORM) {
        s.in.gate = vram_floats(gate, all * (size_t)apart) + first;
        s.in.head_dim = head_dim;
        s.in.head_stride = apart * head_dim;
        s.in.gate_stride = apart * cols;
    }
    memcpy(s.finished, x, all * sizeof *x);
    if (kind == GPU_NORM)
        ops_rmsnorm(contract_ops(), s.finished, x, gain, n, cols, (size_t)cols, eps);
    for (int h = 0; h < n * n_head; h++) {
        float *head = s.finished + (size_t)h * (size_t)head_dim;
        const float *z = gate + (size_t)h * (size_t)(apart * head_dim) + first;
        if (kind == GPU_GATED) f->gate(head, head, z, head_dim);
        else f->delta_gated_norm(head, z, gain, head_dim, eps);
    }
    return s;
}

/* Two calls with one input: the second finds it as the first left it. */
static void check_input(gpu_input_kind kind, int n, int cols, int head_dim, test_rng *rng)
{
    const bool blocks = cols % 32 == 0;
    const item list[] = { { QT_F32, 70, true, false, 1.0f }, { QT_BF16, 24, false, false, 1.0f },
                          { QT_Q8_0, 40, false, false, 1.0f } };
    shaped s = shaped_make(kind, n, cols, head_dim, rng);
    for (int call = 0; call < 2; call++) {
        output out[3];
        gpu_product products[3];
        for (int i = 0; i < 3; i++) {
            if (i == 2 && !blocks) continue;
            out[i] = output_make(&list[i], cols, n, WEIGHTS_PLAUSIBLE, rng);
            products[i] = product_of(&out[i], false);
        }
        gpu_project(device(), &s.in, products, blocks ? 3 : 2);
        check_output("F32", &out[0], &list[0], s.finished, n, 1e-5);
        check_output("BF16", &out[1], &list[1], s.finished, n, lows_bound(QT_BF16, n));
        /* a value on the edge between two int8 codes may have got the other one */
        if (blocks) check_output("Q8_0", &out[2], &list[2], s.finished, n, 8e-3);
    }
}

static void test_inputs(void)
{
    static const struct { gpu_input_kind kind; int cols, head_dim; const char *name; } inputs[] = {
        { GPU_NORM, 33, 0, "norm" }, { GPU_NORM, 96, 0, "norm" }, { GPU_NORM, 512, 0, "norm" },
        { GPU_NORM, 2880, 0, "norm" }, { GPU_NORM, 5120, 0, "norm" },
        { GPU_GATED, 96, 32, "gate" }, { GPU_GATED, 512, 64, "gate" },
        { GPU_GATED, 1024, 128, "gate" }, { GPU_GATED, 4096, 256, "gate" },
        { GPU_GATED, 5120, 256, "gate" },
        { GPU_GATED_NORM, 96, 32, "gated norm" }, { GPU_GATED_NORM, 256, 64, "gated norm" },
        { GPU_GATED_NORM, 512, 128, "gated norm" }, { GPU_GATED_NORM, 4096, 128, "gated norm" },
        { GPU_GATED_NORM, 4224, 128, "gated norm" },
    };
    static const int tokens[] = { 1, 8, 9, 40 };
    test_rng rng = { 4 };
    family("inputs");
    for (size_t i = 0; i < ARRAY_LEN(inputs); i++)
        for (size_t t = 0; t < ARRAY_LEN(tokens); t++) {
            case_begin("%s, %d columns, heads of %d, %d tokens", inputs[i].name, inputs[i].cols,
                       inputs[i].head_dim, tokens[t]);
            check_input(inputs[i].kind, tokens[t], inputs[i].cols, inputs[i].head_dim, &rng);
            case_end();
        }
}

/* ---- convolutions ---------------------------------------------------------------------------- */

typedef struct conv_case {
    quant_type type;
    int channels, cols, n_tap;
    int batches[6];                      /* tokens of successive calls; 0: no more */
} conv_case;

static const conv_case conv_cases[] = {
    { QT_Q8_0, 65, 96, 4, { 1, 3, 1, 8, 2, 1 } }, { QT_F32, 200, 33, 4, { 2, 1, 1, 1, 8, 5 } },
    { QT_Q4_K, 300, 256, 4, { 1, 1, 1, 1, 1, 4 } }, { QT_MXFP4, 9, 288, 2, { 1, 8, 2, 1 } },
    { QT_Q8_0, 40, 96, 8, { 1, 3, 8, 1, 2, 1 } }, { QT_Q6_K, 33, 512, 3, { 5, 1, 2 } },
    { QT_Q8_0, 200, 96, 4, { 9, 1, 33, 2, 130, 1 } },
    { QT_F32, 65, 96, 4, { 1, 9, 40, 3, 10, 70 } },
    { QT_Q4_K, 130, 256, 4, { 33, 257, 8, 1, 9, 32 } }, { QT_F32, 129, 64, 8, { 3, 9, 1, 33 } },
    { QT_F32, 30, 64, 2, { 9, 1, 64, 1, 65 } },
};

/* One product with a convolution after it and one without, call after call. */
static void check_conv(const conv_case *c, test_rng *rng)
{
    const item list[] = { { c->type, c->channels, true, false, 0.5f },
                          { c->type, 20, false, false, 1.0f } };
    enum { AT = 8 };                     /* floats of a version before the window */
    const size_t channels = (size_t)c->channels, n_old = (size_t)c->n_tap - 1;
    float *taps = host_floats(channels * (size_t)c->n_tap, 1.0f, rng);
    float *window = host_floats(channels * n_old, 1.0f, rng);
    float *on_gpu = vram_room((AT + channels * n_old) * sizeof *on_gpu);
    float *next = vram_room((AT + channels * n_old) * sizeof *next);
    double bound = 0.0;
    vram_write(on_gpu + AT, window, channels * n_old * sizeof *window);
    gpu_cursor versions = { .recurrent = (uint8_t *)on_gpu, .recurrent_next = (uint8_t *)next };
    gpu_cursor *at = vram_copy(&versions, sizeof versions);
    gpu_conv conv = { .taps = vram_floats(taps, channels * (size_t)c->n_tap), .cursor = at,
                      .window = AT * sizeof *on_gpu, .n_tap = c->n_tap };

    output plain = { 0 }, convolved = { 0 };
    for (int i = 0; i < 6 && c->batches[i]; i++) {
        const int n = c->batches[i];
        const ops *ref = reference_for(n);
        const size_t values = (size_t)n * channels;
        float *x = host_floats((size_t)n * (size_t)c->cols, 1.0f, rng);
        float *raw = host_room(values, sizeof *raw), *want = host_room(values, sizeof *want);
        char what[64];

        convolved = output_make(&list[0], c->cols, n, WEIGHTS_PLAUSIBLE, rng);
        plain = output_make(&list[1], c->cols, n, WEIGHTS_PLAUSIBLE, rng);
        gpu_input in = plain_input(x, n, c->cols);
        gpu_product products[2] = { product_of(&convolved, false), product_of(&plain, false) };
        conv.raw = vram_room(values * sizeof *raw);
        products[0].conv = conv;
        const float *after = i % 2 ? on_gpu : next;
        gpu_project(device(), &in, products, 2);
        const float *made = host_copy(after + AT, channels * n_old);
        gpu_conv_window(device(), &conv, c->channels, n);
        expect_bits("the window alone", host_copy(after + AT, channels * n_old), made,
                    channels * n_old);
        gpu_advance(device(), at, n);

        bound = fmax(bound, product_bound(c->type, n));          /* the window remembers */
        cpu_product(raw, ref, &convolved.w.cpu, x, n);
        ref->loops->delta_conv(want, raw, n, c->channels, 0, c->channels, taps, c->n_tap, window);
        const float *got = host_copy(convolved.y, (size_t)n * (size_t)convolved.stride);
        expect_close(test_path(what, sizeof what, "call %d, %d tokens", i, n),
                     without_gaps(got, n, c->channels, convolved.stride), want, values, bound);
        expect_close(test_path(what, sizeof what, "window after call %d, %d tokens", i, n),
                     made, window, channels * n_old, bound);
        expect_close("before convolution", host_copy(conv.raw, values), raw, values, bound);
        check_output("the other product", &plain, &list[1], x, n, product_bound(c->type, n));
    }
}

/* A batch of several conversations, each with a window of its own; rows: their tokens. */
static void check_conv_rows(const conv_case *c, const int *rows, int n_row, test_rng *rng)
{
    const item one = { c->type, c->channels, true, false, 0.5f };
    const size_t channels = (size_t)c->channels, n_old = (size_t)c->n_tap - 1;
    const size_t window = channels * n_old;
    gpu_cursor list[GPU_FEW];
    float *windows[GPU_FEW];
    int n = 0;
    for (int i = 0; i < n_row; i++) {
        windows[i] = host_floats(window, 1.0f, rng);
        list[i] = (gpu_cursor){ .n = i + 1 < n_row ? rows[i] : 0,
                                .recurrent = (uint8_t *)vram_floats(windows[i], window),
                                .recurrent_next = vram_room(window * sizeof(float)) };
        n += rows[i];
    }
    const ops *ref = reference_for(n);
    const size_t values = (size_t)n * channels;
    const double bound = product_bound(c->type, n);
    float *taps = host_floats(channels * (size_t)c->n_tap, 1.0f, rng);
    float *x = host_floats((size_t)n * (size_t)c->cols, 1.0f, rng);
    float *raw = host_room(values, sizeof *raw), *want = host_room(values, sizeof *want);
    output out = output_make(&one, c->cols, n, WEIGHTS_PLAUSIBLE, rng);
    gpu_input in = plain_input(x, n, c->cols);
    gpu_product p = product_of(&out, false);
    p.conv = (gpu_conv){ .taps = vram_floats(taps, channels * (size_t)c->n_tap),
                         .cursor = vram_copy(list, sizeof list), .n_tap = c->n_tap,
                         .raw = vram_room(values * sizeof *raw) };
    gpu_project(device(), &in, &p, 1);
    cpu_product(raw, ref, &out.w.cpu, x, n);
    for (int i = 0, first = 0; i < n_row; first += rows[i++]) {
        const size_t at = (size_t)first * channels;
        ref->loops->delta_conv(want + at, raw + at, rows[i], c->channels, 0, c->channels, taps,
                               c->n_tap, windows[i]);
        expect_close("a window", host_copy((float *)(void *)list[i].recurrent_next, window),
                     windows[i], window, bound);
    }
    const float *got = host_copy(out.y, (size_t)n * (size_t)out.stride);
    expect_close("convolved", without_gaps(got, n, c->channels, out.stride), want, values, bound);
    expect_close("before convolution", host_copy(p.conv.raw, values), raw, values, bound);
}

static void test_conv_rows(void)
{
    /* vectors of 8192 floats need several launches */
    static const conv_case cases[] = {
        { QT_Q8_0, 65, 96, 4, { 0 } }, { QT_Q4_K, 130, 256, 3, { 0 } },
        { QT_F32, 40, 64, 8, { 0 } }, { QT_F32, 33, 8192, 4, { 0 } },
    };
    static const int rows[][GPU_FEW] = { { 1, 1 }, { 3, 5 }, { 4, 4 }, { 1, 2, 1, 3, 1 },
                                         { 1, 1, 1, 1, 1, 1, 1, 1 } };
    test_rng rng = { 6 };
    family("convolutions of several conversations");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (size_t k = 0; k < ARRAY_LEN(rows); k++) {
            int n_row = 0;
            while (n_row < GPU_FEW && rows[k][n_row] > 0) n_row++;
            case_begin("%s, %d columns, %d conversations", quant_name(cases[i].type),
                       cases[i].cols, n_row);
            check_conv_rows(&cases[i], rows[k], n_row, &rng);
            case_end();
        }
}

static void test_convolutions(void)
{
    test_rng rng = { 5 };
    family("convolutions");
    for (size_t i = 0; i < ARRAY_LEN(conv_cases); i++) {
        const conv_case *c = &conv_cases[i];
        case_begin("%s, %d channels, %d columns, %d taps", quant_name(c->type), c->channels,
                   c->cols, c->n_tap);
        check_conv(c, &rng);
        case_end();
    }
}

/* ---- other ways ------------------------------------------------------------------------------ */

static void use_way(gpu_gemm_use use, int from)
{
    const gpu_gemm how = { .use = use, .from = from };
    gpu_gemm_set(device(), &how);
}

static float *project_again(gpu_input *in, const output *o, const float *first, bool add, int n)
{
    const size_t all = (size_t)n * (size_t)o->stride;
    gpu_product p = product_of(o, add);
    p.y = vram_floats(first, all);
    in->has_rows = in->has_halves = in->has_blocks = false;
    gpu_project(device(), in, &p, 1);
    return host_copy(p.y, all);
}

/* The library against our kernel: the same 16-bit numbers on both sides, except for weights that
 * are as near to one as to the next. */
static const double VENDOR_BOUND = 1e-3;

static void check_vendor(quant_type type, int rows, int cols, int n, int option, bool lows,
                         uint64_t bytes, test_rng *rng)
{
    const item one = item_of(type, rows, option);
    case_begin("%s, %d rows, %d columns, %d tokens%s%s%s, by the library", quant_name(type), rows,
               cols, n, one.bias ? ", bias" : "", one.add ? ", sum" : "", lows ? ", lows" : "");
    float *x = host_floats((size_t)n * (size_t)cols, 1.0f, rng);
    gpu_input in = lows ? whole_input(x, n, cols) : plain_input(x, n, cols);
    output o = output_make(&one, cols, n, WEIGHTS_PLAUSIBLE, rng);
    uint8_t *scratch = vram_room(bytes);
    uint32_t start = 0;

    use_way(GPU_GEMM_OWN, 0);
    const float *own = project_again(&in, &o, o.want, one.add, n);
    use_way(GPU_GEMM_VENDOR, 0);
    gpu_gemm_lend(device(), scratch);
    const float *vendor = project_again(&in, &o, o.want, one.add, n);
    use_way(GPU_GEMM_OWN, 0);
    vram_read(&start, scratch, sizeof start);
    if (type != QT_BF16) expect(start != UINT32_MAX, "it was not used");
    size_t changed = 0;
    for (int t = 0; t < n; t++)
        for (int r = rows; r < o.stride; r++) {
            const size_t at = (size_t)t * (size_t)o.stride + (size_t)r;
            changed += memcmp(&vendor[at], &o.want[at], sizeof *vendor) != 0;
        }
    expect(changed == 0, "%zu values between the rows of two tokens have changed", changed);
    expect_close("against ours", without_gaps(vendor, n, rows, o.stride),
                 without_gaps(own, n, rows, o.stride), (size_t)n * (size_t)rows,
                 lows ? LOWS_BOUND : VENDOR_BOUND);
    case_end();
}

static void test_vendor(void)
{
    /* whole matrices; one that takes two slices of the scratch, the last of a few rows */
    static const struct { int n, rows, c; } shapes[] = {
        { 12, 4, 0 }, { 64, 200, 1 }, { 256, 128, 2 }, { 1000, 260, 2 }, { 16, 12004, 2 },
    };
    test_rng rng = { 7 };
    int option = 0;
    use_way(GPU_GEMM_VENDOR, 0);
    const uint64_t bytes = gpu_gemm_scratch(device(), 1024);
    use_way(GPU_GEMM_OWN, 0);
    if (bytes == 0) {
        test_skip("the vendor's library is not here");
        return;
    }
    family("the vendor's library");
    for (int i = 0; i < GPU_TYPE_COUNT; i++) {
        if (gpu_types[i] == QT_F32) continue;
        const int *cols = lengths_of(gpu_types[i]);
        for (size_t k = 0; k < ARRAY_LEN(shapes); k++)
            if (cols[shapes[k].c] % 8 == 0)       /* else it is ours */
                check_vendor(gpu_types[i], shapes[k].rows, cols[shapes[k].c], shapes[k].n, option++,
                             false, bytes, &rng);
    }
    for (size_t k = 1; k < ARRAY_LEN(shapes); k++)
        for (int i = 0; i < 4; i++)      /* bias and sum: for the first product, once */
            check_vendor(QT_BF16, shapes[k].rows, lengths_of(QT_BF16)[shapes[k].c], shapes[k].n, i,
                         true, bytes, &rng);
}

/* Below MOE_FP4_PREFILL_M a batch has the bits of its tokens in several small ones. */
static void test_threshold(void)
{
    enum { N = 21, COLS = 512 };
    test_rng rng = { 8 };
    family("below the threshold");
    for (int i = 0; i < GPU_TYPE_COUNT; i++) {
        const item one = item_of(gpu_types[i], 300, i);
        case_begin("%s, %d tokens", quant_name(one.type), N);
        float *x = host_floats(N * COLS, 1.0f, &rng);
        gpu_input in = plain_input(x, N, COLS);
        output o = output_make(&one, COLS, N, WEIGHTS_PLAUSIBLE, &rng);
        use_way(GPU_GEMM_OWN, N + 1);
        const float *got = project_again(&in, &o, o.want, one.add, N);
        use_way(GPU_GEMM_OWN, 0);
        for (int t = 0; t < N; t += GPU_FEW) {
            const int n = N - t < GPU_FEW ? N - t : GPU_FEW;
            gpu_input few = plain_input(x + t * COLS, n, COLS);
            gpu_product p = product_of(&o, one.add);
            p.y += t * o.stride;
            gpu_project(device(), &few, &p, 1);
        }
        expect_bits("y", without_gaps(got, N, one.rows, o.stride),
                    without_gaps(host_copy(o.y, (size_t)N * (size_t)o.stride), N, one.rows,
                                 o.stride), (size_t)N * (size_t)one.rows);
        case_end();
    }
}

int main(int argc, char **argv)
{
    test_begin("gpu products", argc, argv);
    if (device_open()) {
        test_few();
        test_lists();
        test_inputs();
        test_convolutions();
        test_conv_rows();
        test_many();
        test_lows();
        test_few_cuts();
        test_floats();
        test_vendor();
        test_threshold();
        device_close();
    }
    return test_end();
}
