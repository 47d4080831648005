/* test_gpu_experts.c - experts on the GPU.
 *
 * Experts of up to GPU_FEW tokens have the bits of engine/host/experts_cpu.c and of the golden
 * files; with more tokens they are compared with decoded weights and F32 activations, within the
 * error of 16-bit ones, and the same call gives the same bits twice; so do calls for a range of
 * experts each, experts that lie here and there, and a call with sums computed elsewhere. */
#include <math.h>
#include <string.h>

#include "engine/gpu/weights_gpu.h"
#include "tests/expert_batch.h"
#include "tests/ffn_golden.h"

/* ---- experts --------------------------------------------------------------------------------- */

static void check_batch(const expert_case *c, const reference_banks *bank, int n, test_rng *rng)
{
    const size_t width = (size_t)n * (size_t)c->n_embd, all = width * (size_t)c->k;
    const bool few = n <= GPU_FEW;
    expert_batch b = expert_batch_make(c, bank, n, rng);
    gpu_experts(device(), &b.in, &b.args);
    const float *y = host_copy(b.args.y, all), *x = host_copy(b.args.x, width);

    expert_batch_expect(&b, c, few ? contract_ops() : exact_ops());
    if (few) {
        expect_bits("experts", y, b.want_y, all);
        /* the shared expert may be an ordinary product; the usual gates are the device's own */
        if (c->shared_ff || (c->by_logits && expert_case_usual(c)))
            expect_close("stream", x, b.want, width, 1e-5);
        else
            expect_bits("stream", x, b.want, width);
    } else {
        expect_close("experts", y, b.want_y, all, expert_case_bound(c));
        expect_close("stream", x, b.want, width, expert_case_bound(c));
    }

    /* once more, without y: the same bits */
    b.in.has_rows = b.in.has_halves = b.in.has_blocks = false;
    b.args.y = NULL;
    vram_write(b.args.x, b.residual, width * sizeof(float));
    gpu_experts(device(), &b.in, &b.args);
    expect_bits("stream, the second time", host_copy(b.args.x, width), x, width);
}

static void check_case(const expert_case *c, int n, test_rng *rng)
{
    expert_case_begin(c, n);
    check_batch(c, reference_banks_make(c, rng), n, rng);
    case_end();
}

/* Two shapes that suit the type. */
static void set_shape(expert_case *c, quant_type type, int i)
{
    static const int of_256[2][2] = { { 512, 256 }, { 768, 512 } };
    static const int of_64[2][2] = { { 320, 192 }, { 256, 64 } };
    static const int of_32[2][2] = { { 288, 96 }, { 512, 256 } };
    static const int of_1[2][2] = { { 100, 70 }, { 288, 96 } };
    const int elems = quant_traits_of(type)->block_elems;
    const int *shape = elems == 256 ? of_256[i] : elems == 64 ? of_64[i] : elems == 32 ? of_32[i]
                                                                                      : of_1[i];
    c->up = c->down = type;
    c->n_embd = shape[0];
    c->n_ff = shape[1];
    c->n_expert = 8;
    c->k = 4;
}

/* Every activation, without biases and with them. */
static void test_types(void)
{
    static const int tokens[] = { 1, 2, 3, 8 };
    test_rng rng = { 11 };
    for (int i = 0; i < GPU_TYPE_COUNT; i++) {
        const quant_type type = gpu_types[i];
        family(test_path((char[64]){ 0 }, 64, "%s experts", quant_name(type)));
        for (int shape = 0; shape < 2; shape++)
            for (int option = 0; option < 2 * ACT_COUNT; option++) {
                expert_case c = { .act = option % ACT_COUNT, .bias = option / ACT_COUNT };
                set_shape(&c, type, shape);
                check_case(&c, tokens[(option + 2 * shape) % 4], &rng);
            }
    }
}

/* Mixed types, shared experts, long rows. */
static const expert_case special[] = {
    { QT_Q4_K, QT_Q6_K, 512, 256, 8, 4, .act = GPU_SWIGLU },
    { QT_MXFP4, QT_Q8_0, 288, 96, 8, 4, .act = GPU_SWIGLU_CLAMPED, .bias = true },
    { QT_Q8_0, QT_F16, 96, 96, 8, 4, .bias = true },
    { QT_F16, QT_Q8_0, 100, 96, 8, 4, .act = GPU_SWIGLU },
    { QT_F32, QT_BF16, 33, 50, 8, 4, .bias = true },
    { QT_BF16, QT_F32, 64, 33, 8, 4, .act = GPU_SWIGLU_CLAMPED },
    { QT_MXFP4, QT_MXFP4, 2880, 96, 4, 4, .act = GPU_SWIGLU_CLAMPED, .bias = true },
    { QT_MXFP4, QT_MXFP4, 96, 2880, 4, 4, .act = GPU_SWIGLU_CLAMPED, .bias = true },
    { QT_Q4_K, QT_Q4_K, 1024, 256, 16, 10, .act = GPU_SWIGLU },
    { QT_Q8_0, QT_Q8_0, 64, 64, 40, 32, .act = GPU_SWIGLU },
    { QT_Q8_0, QT_Q8_0, 64, 64, 1, 1, .act = GPU_SWIGLU },
    { QT_Q4_K, QT_Q6_K, 512, 256, 8, 4, .shared_ff = 256, .shared_up = QT_Q4_K,
      .shared_down = QT_Q6_K },
    { QT_Q4_K, QT_Q4_K, 512, 256, 8, 4, .shared_ff = 256, .shared_up = QT_Q8_0,
      .shared_down = QT_F16 },
    { QT_Q4_K, QT_Q4_K, 512, 256, 8, 4, .shared_ff = 512, .shared_up = QT_Q4_K,
      .shared_down = QT_Q4_K },
    { QT_Q8_0, QT_Q8_0, 288, 96, 8, 4, .bias = true, .shared_ff = 64, .shared_up = QT_Q8_0,
      .shared_down = QT_Q8_0 },
    { QT_Q8_0, QT_Q8_0, 288, 96, 8, 4, .shared_ff = 96, .shared_up = QT_Q8_0,
      .shared_down = QT_Q8_0 },
    { QT_NVFP4, QT_NVFP4, 320, 192, 8, 4, .shared_ff = 192, .shared_up = QT_BF16,
      .shared_down = QT_BF16 },
    { QT_F32, QT_F32, 100, 70, 8, 4, .shared_ff = 70, .shared_up = QT_F32, .shared_down = QT_F32 },
    { QT_F32, QT_F32, 96, 64, 8, 4, .shared_ff = 130, .shared_up = QT_F32, .shared_down = QT_F32 },
    { QT_Q4_K, QT_Q5_1, 256, 96, 8, 4, .act = GPU_GEGLU, .shared_ff = 288, .shared_up = QT_Q8_0,
      .shared_down = QT_Q8_0 },
    { QT_Q8_0, QT_Q8_0, 288, 96, 8, 4, .act = GPU_GEGLU, .shared_ff = 96, .shared_up = QT_Q8_0,
      .shared_down = QT_Q8_0 },
    { QT_Q4_K, QT_Q5_0, 2816, 704, 8, 4, .act = GPU_GEGLU },
    /* downs of long rows: few slots and a last block that is not full, nine, many */
    { QT_F16, QT_Q4_K, 4229, 1280, 4, 2, .act = GPU_SWIGLU },
    { QT_F16, QT_Q4_K, 4229, 1280, 2, 1, .act = GPU_SWIGLU },
    { QT_Q4_K, QT_Q4_K, 256, 1280, 16, 8, .shared_ff = 1280, .shared_up = QT_Q4_K,
      .shared_down = QT_Q4_K },
    { QT_Q8_0, QT_Q8_0, 64, 1280, 40, 32, .act = GPU_SWIGLU },
    { QT_BF16, QT_BF16, 288, 96, 8, 4, .lows = true, .shared_ff = 64, .shared_up = QT_BF16,
      .shared_down = QT_BF16 },
    { QT_F16, QT_F16, 96, 288, 8, 4, .lows = true, .bias = true, .shared_ff = 96,
      .shared_up = QT_F16, .shared_down = QT_BF16 },
    { QT_BF16, QT_BF16, 101, 70, 8, 4, .lows = true, .act = GPU_SWIGLU_CLAMPED, .bias = true },
    { QT_F16, QT_BF16, 100, 51, 8, 4, .lows = true, .act = GPU_GEGLU, .shared_ff = 33,
      .shared_up = QT_F16, .shared_down = QT_F16 },
    { QT_BF16, QT_F32, 64, 40, 8, 4, .lows = true },
    { QT_F32, QT_BF16, 64, 40, 8, 4, .lows = true },
    { QT_Q8_0, QT_BF16, 96, 64, 8, 4, .lows = true, .shared_ff = 64, .shared_up = QT_BF16,
      .shared_down = QT_Q8_0 },
};

static void test_special(void)
{
    static const int tokens[] = { 1, 2, 3, 8 };
    test_rng rng = { 12 };
    family("special experts");
    for (size_t i = 0; i < ARRAY_LEN(special); i++)
        for (size_t t = 0; t < ARRAY_LEN(tokens); t++) check_case(&special[i], tokens[t], &rng);
}

/* Few tokens, whose experts are chosen where they are needed. */
static void test_by_logits(void)
{
    static const expert_case cases[] = {
        { QT_Q4_K, QT_Q6_K, 512, 256, 8, 4, .shared_ff = 256, .shared_up = QT_Q4_K,
          .shared_down = QT_Q6_K },
        { QT_MXFP4, QT_MXFP4, 288, 96, 32, 4, .act = GPU_SWIGLU_CLAMPED, .bias = true },
        { QT_Q8_0, QT_Q8_0, 64, 64, 128, 8, .act = GPU_SWIGLU },
        { QT_Q8_0, QT_Q8_0, 64, 64, 512, 10, .shared_ff = 32, .shared_up = QT_Q8_0,
          .shared_down = QT_Q8_0 },
        { QT_Q8_0, QT_Q8_0, 64, 64, 1000, 32, .act = GPU_SWIGLU },
        { QT_Q8_0, QT_Q8_0, 64, 64, 40, 32, .act = GPU_SWIGLU },
        { QT_Q8_0, QT_Q8_0, 64, 64, 4, 4, .act = GPU_SWIGLU },
        { QT_F32, QT_F32, 100, 70, 8, 4, .shared_ff = 70, .shared_up = QT_F32,
          .shared_down = QT_F32 },
        { QT_F16, QT_BF16, 96, 64, 33, 5, .act = GPU_SWIGLU },
        { QT_Q8_0, QT_Q8_0, 64, 64, 32, 4, .act = GPU_SWIGLU, .alike = true },
        { QT_Q8_0, QT_Q8_0, 64, 64, 64, 8, .act = GPU_SWIGLU, .alike = true },
        { QT_Q8_0, QT_Q8_0, 64, 64, 512, 10, .act = GPU_SWIGLU, .alike = true },
        { QT_F32, QT_F32, 100, 70, 1000, 10, .act = GPU_SWIGLU, .alike = true },
        /* other rules than the usual one */
        { QT_Q4_K, QT_Q5_0, 512, 96, 128, 8, .rule = { .score = ROUTER_SIGMOID },
          .choice_bias = true, .shared_ff = 96, .shared_up = QT_Q4_K, .shared_down = QT_Q5_0 },
        { QT_Q8_0, QT_Q8_0, 64, 64, 160, 8, .rule = { .score = ROUTER_SIGMOID, .factor = 2.5f },
          .choice_bias = true },
        { QT_Q8_0, QT_Q8_0, 64, 64, 64, 8, .rule = { .as_scored = true } },
        { QT_Q8_0, QT_Q8_0, 64, 64, 600, 12, .rule = { .as_scored = true, .factor = 0.5f } },
        { QT_F32, QT_F32, 100, 70, 8, 2, .rule = { .score = ROUTER_SIGMOID, .as_scored = true } },
    };
    static const int tokens[] = { 1, 2, 8 };
    test_rng rng = { 16 };
    family("experts by logits");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (size_t t = 0; t < ARRAY_LEN(tokens); t++) {
            expert_case c = cases[i];
            c.by_logits = true;
            check_case(&c, tokens[t], &rng);
        }
}

static void test_many(void)
{
    static const int tokens[] = { 9, 40, 60 };
    test_rng rng = { 13 };
    for (int i = 0; i < GPU_TYPE_COUNT; i++) {
        const quant_type type = gpu_types[i];
        family(test_path((char[64]){ 0 }, 64, "%s experts, many tokens", quant_name(type)));
        for (int option = 0; option < 6; option++) {
            expert_case c = { .act = (option + option / 3) % ACT_COUNT, .bias = option % 3 == 1 };
            set_shape(&c, type, option % 2);
            check_case(&c, tokens[option % 3], &rng);
        }
        expert_case c = { .bias = true, .alike = true };
        set_shape(&c, type, 0);
        check_case(&c, 200, &rng);
        c.alike = false;
        check_case(&c, 200, &rng);
    }
    family("special experts, many tokens");
    for (size_t i = 0; i < ARRAY_LEN(special); i++) {
        check_case(&special[i], 9, &rng);
        check_case(&special[i], 40, &rng);
    }
    /* the longest tiles */
    const expert_case crowd = { QT_Q8_0, QT_Q8_0, 96, 64, 8, 4, .bias = true };
    check_case(&crowd, 1600, &rng);
    const expert_case floats = { QT_F32, QT_F32, 40, 36, 8, 4, .act = GPU_SWIGLU_CLAMPED };
    check_case(&floats, 1600, &rng);
    const expert_case whole = { QT_BF16, QT_BF16, 96, 64, 8, 4, .lows = true, .bias = true };
    check_case(&whole, 1600, &rng);
    /* many columns, divided within a block: two matrices in one tile of 32 rows and in several, odd
     * rows, and rows of down that are short or long */
    static const expert_case wide[] = {
        { QT_F32, QT_F32, 1000, 16, 8, 4, .bias = true, .shared_ff = 13, .shared_up = QT_F32,
          .shared_down = QT_F32 },
        { QT_F32, QT_F32, 581, 9, 8, 4, .shared_ff = 17, .shared_up = QT_F32,
          .shared_down = QT_F32 },
        { QT_F32, QT_F32, 580, 70, 8, 4, .bias = true, .shared_ff = 33, .shared_up = QT_F32,
          .shared_down = QT_F32 },
        { QT_F32, QT_F32, 30, 645, 8, 4, .bias = true, .shared_ff = 1000,
          .shared_up = QT_F32, .shared_down = QT_F32 },
    };
    for (size_t i = 0; i < ARRAY_LEN(wide); i++) {
        check_case(&wide[i], 9, &rng);
        check_case(&wide[i], 40, &rng);
        check_case(&wide[i], 200, &rng);
    }
}

/* ---- ranges and sums ------------------------------------------------------------------------- */

/* Experts of the range and no others. */
static gpu_bank part_of(const reference_banks *b, expert_slab s, int first, int count)
{
    gpu_bank part = b->gpu[s];
    part.data = vram_copy(expert_slab_data(&b->cpu, s, first), (size_t)count * part.slab_bytes);
    return part;
}

/* The batch as it was before the experts; scratch is full of NaNs again. */
static void rewind_batch(expert_batch *b, const expert_case *c)
{
    const size_t width = (size_t)b->n * (size_t)c->n_embd;
    b->in.has_rows = b->in.has_halves = b->in.has_blocks = false;
    vram_write(b->args.x, b->residual, width * sizeof(float));
    b->args.scratch = vram_room(gpu_expert_scratch(device(), b->n, c->k, c->n_expert,
                                                   max_int(c->n_ff, c->shared_ff), c->n_embd));
}

/* A layer in ranges of some size gives the bits of a whole layer. */
static void check_ranges(const expert_case *c, int n, int size, bool with_y, test_rng *rng)
{
    const size_t width = (size_t)n * (size_t)c->n_embd, all = width * (size_t)c->k;
    const reference_banks *bank = reference_banks_make(c, rng);
    expert_batch b = expert_batch_make(c, bank, n, rng);
    gpu_experts(device(), &b.in, &b.args);
    const float *y = host_copy(b.args.y, all), *x = host_copy(b.args.x, width);

    rewind_batch(&b, c);
    b.args.y = with_y ? vram_room(all * sizeof(float)) : NULL;
    for (int first = 0; first < c->n_expert; first += size) {
        b.args.batch.first = first;
        b.args.batch.count = min_int(size, c->n_expert - first);
        b.args.gate = part_of(bank, SLAB_GATE, first, b.args.batch.count);
        b.args.up = part_of(bank, SLAB_UP, first, b.args.batch.count);
        b.args.down = part_of(bank, SLAB_DOWN, first, b.args.batch.count);
        if (first + size >= c->n_expert)
            expect_bits("stream, before the last range", host_copy(b.args.x, width), b.residual,
                        width);
        gpu_experts(device(), &b.in, &b.args);
    }
    expect_bits("stream", host_copy(b.args.x, width), x, width);
    if (with_y) expect_bits("experts", host_copy(b.args.y, all), y, all);
}

/* The routed experts' sums from the host have the bits of the device's own; banks are absent. */
static void check_sums(const expert_case *c, int n, test_rng *rng)
{
    const size_t n_embd = (size_t)c->n_embd, width = (size_t)n * n_embd, k = (size_t)c->k;
    expert_batch b = expert_batch_make(c, reference_banks_make(c, rng), n, rng);
    gpu_experts(device(), &b.in, &b.args);
    const float *y = host_copy(b.args.y, width * k), *x = host_copy(b.args.x, width);
    float *sums = host_room(width, sizeof *sums);
    for (size_t i = 0; i < width; i++)
        for (size_t r = 0; r < k; r++) {
            const size_t slot = i / n_embd * k + r;
            sums[i] = fmaf(b.gates[slot], y[slot * n_embd + i % n_embd], sums[i]);
        }

    rewind_batch(&b, c);
    const gpu_expert_args args = {
        .x = b.args.x, .shared_gate = b.args.shared_gate, .shared_up = b.args.shared_up,
        .shared_down = b.args.shared_down, .act = b.args.act, .sigma = b.args.sigma,
        .scratch = b.args.scratch, .batch.sums = vram_floats(sums, width),
    };
    gpu_experts(device(), &b.in, &args);
    expect_bits("stream", host_copy(b.args.x, width), x, width);
}

static void test_ranges(void)
{
    static const expert_case crowded[] = {
        { QT_Q8_0, QT_Q8_0, 96, 64, 8, 4, .bias = true, .alike = true },         /* empty ranges */
        { QT_MXFP4, QT_MXFP4, 96, 64, 32, 4, .act = GPU_SWIGLU_CLAMPED, .bias = true },
        { QT_F32, QT_F32, 40, 36, 40, 10, .shared_ff = 50, .shared_up = QT_F32,
          .shared_down = QT_F32 },
    };
    static const int tokens[] = { 9, 40, 300 };
    test_rng rng = { 17 };
    int option = 0;
    family("ranges of experts");
    for (size_t i = 0; i < ARRAY_LEN(special); i++, option++) {
        const expert_case *c = &special[i];
        const int sizes[] = { 1, (c->n_expert + 1) / 2, max_int(c->n_expert - 1, 1) };
        const int size = sizes[option % 3];
        expert_case_begin(c, 40);
        check_ranges(c, 40, size, option % 2, &rng);
        case_end();
    }
    for (size_t i = 0; i < ARRAY_LEN(crowded); i++)
        for (size_t t = 0; t < ARRAY_LEN(tokens); t++)
            for (int size = 1; size <= crowded[i].n_expert; size = 2 * size + 1, option++) {
                expert_case_begin(&crowded[i], tokens[t]);
                check_ranges(&crowded[i], tokens[t], size, option % 2, &rng);
                case_end();
            }
}

static void test_sums(void)
{
    test_rng rng = { 18 };
    family("sums from elsewhere");
    for (size_t i = 0; i < ARRAY_LEN(special); i++) {
        const int n = i % 2 ? 9 : 40;
        expert_case_begin(&special[i], n);
        check_sums(&special[i], n, &rng);
        case_end();
    }
}

/* ---- experts here and there ------------------------------------------------------------------ */

static int32_t *random_order(int n, test_rng *rng)
{
    int32_t *order = host_room((size_t)n, sizeof *order);
    for (int i = 0; i < n; i++) {
        const int other = (int)test_below(rng, (uint32_t)i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    return order;
}

/* The bank's slabs in any order, gate, up and down among each other, with gaps between them. All of
 * it is NaNs but for those slabs; at [n_expert, 3] gets their addresses, *nowhere that of a slab of
 * NaNs. */
static void scatter(uint64_t *at, uint64_t *nowhere, const reference_banks *b, test_rng *rng)
{
    const int n_slab = SLAB_COUNT * b->cpu.n_expert;
    const int32_t *place = random_order(n_slab, rng);
    uint64_t room = GPU_SLAB_ALIGN;
    for (int s = 0; s < SLAB_COUNT; s++)
        while (room < b->gpu[s].slab_bytes) room += GPU_SLAB_ALIGN;
    room += GPU_SLAB_ALIGN;
    uint8_t *vram = vram_room((size_t)(room * (uint64_t)(n_slab + 1)));
    for (int i = 0; i < n_slab; i++) {
        const expert_slab s = (expert_slab)(i % SLAB_COUNT);
        uint8_t *to = vram + room * (uint64_t)place[i] + GPU_SLAB_ALIGN * test_below(rng, 2);
        vram_write(to, expert_slab_data(&b->cpu, s, i / SLAB_COUNT), b->gpu[s].slab_bytes);
        at[i] = (uint64_t)(uintptr_t)to;
    }
    *nowhere = (uint64_t)(uintptr_t)(vram + room * (uint64_t)n_slab);
}

static void check_counts(const int32_t *counts, const expert_batch *b, const expert_case *c)
{
    int32_t *want = host_room((size_t)c->n_expert, sizeof *want);
    for (int i = 0; i < b->n * c->k; i++) want[b->ids[i]]++;
    expect_bytes("counts", counts, want, (size_t)c->n_expert * sizeof *want);
}

/* In an order of their own, and in ranges of it, they give the bits of a bank. While a range is
 * computed, all other experts are nowhere. */
static void check_scattered(const expert_case *c, int n, int size, test_rng *rng)
{
    const size_t width = (size_t)n * (size_t)c->n_embd, all = width * (size_t)c->k;
    const size_t n_expert = (size_t)c->n_expert, n_at = SLAB_COUNT * n_expert;
    const reference_banks *bank = reference_banks_make(c, rng);
    expert_batch b = expert_batch_make(c, bank, n, rng);
    uint64_t *at = host_room(n_at, sizeof *at), *now = host_room(n_at, sizeof *now), nowhere;
    int32_t *order = random_order(c->n_expert, rng), *rank = host_room(n_expert, sizeof *rank);
    err_ctx err = { 0 };
    gpu_experts(device(), &b.in, &b.args);
    const float *y = host_copy(b.args.y, all), *x = host_copy(b.args.x, width);

    rewind_batch(&b, c);
    scatter(at, &nowhere, bank, rng);
    for (int i = 0; i < c->n_expert; i++) rank[order[i]] = i;
    int32_t *counts = gpu_alloc_host(device(), n_expert * sizeof *counts, &err);
    if (!expect(counts != NULL, "%s", err.msg)) return;
    memset(counts, 0xFF, n_expert * sizeof *counts);
    b.args.y = vram_room(all * sizeof(float));
    b.args.gate.data = b.args.up.data = b.args.down.data = NULL;
    b.args.batch.addresses = vram_room(n_at * sizeof *at);
    b.args.batch.order = vram_copy(order, n_expert * sizeof *order);
    b.args.batch.rank = vram_copy(rank, n_expert * sizeof *rank);
    b.args.batch.counts = counts;
    for (int first = 0; first < c->n_expert; first += size) {
        b.args.batch.first = first;
        b.args.batch.count = min_int(size, c->n_expert - first);
        for (size_t i = 0; i < n_at; i++) {
            const int own = rank[i / SLAB_COUNT];
            now[i] = own >= first && own < first + size ? at[i] : nowhere;
        }
        vram_write((void *)b.args.batch.addresses, now, n_at * sizeof *now);
        gpu_experts(device(), &b.in, &b.args);
        if (first > 0) continue;
        expect(gpu_wait(device(), &err) == 0, "%s", err.msg);
        check_counts(counts, &b, c);
    }
    expect_bits("stream", host_copy(b.args.x, width), x, width);
    expect_bits("experts", host_copy(b.args.y, all), y, all);
    gpu_free_host(device(), counts);
}

/* Experts from some rank on are the host's: with their vectors in page-locked RAM, in any order of
 * rows, the sum has the bits of a layer that the device computes alone. What the calls left in the
 * place of these slots is not read. */
static void check_joined(const expert_case *c, int n, int here, bool with_y, test_rng *rng)
{
    const size_t n_embd = (size_t)c->n_embd, width = (size_t)n * n_embd, k = (size_t)c->k;
    const size_t n_expert = (size_t)c->n_expert, n_at = SLAB_COUNT * n_expert;
    const int n_slot = n * c->k, half = (here + 1) / 2;
    const reference_banks *bank = reference_banks_make(c, rng);
    expert_batch b = expert_batch_make(c, bank, n, rng);
    uint64_t *at = host_room(n_at, sizeof *at), nowhere;
    int32_t *order = random_order(c->n_expert, rng), *rank = host_room(n_expert, sizeof *rank);
    const int32_t *turn = random_order(n_slot, rng);
    err_ctx err = { 0 };
    gpu_experts(device(), &b.in, &b.args);
    const float *y = host_copy(b.args.y, width * k), *x = host_copy(b.args.x, width);

    rewind_batch(&b, c);
    scatter(at, &nowhere, bank, rng);
    for (int i = 0; i < c->n_expert; i++) rank[order[i]] = i;
    for (size_t i = 0; i < n_at; i++)
        if (rank[i / SLAB_COUNT] >= here) at[i] = nowhere;
    int32_t *row = gpu_alloc_host(device(), (uint64_t)n_slot * sizeof *row, &err);
    float *cold = gpu_alloc_host(device(), width * k * sizeof *cold, &err);
    if (expect(row && cold, "%s", err.msg)) {
        int n_row = 0;
        memset(cold, 0xFF, width * k * sizeof *cold);
        for (int i = 0; i < n_slot; i++) {
            const int s = turn[i];
            row[s] = rank[b.ids[s]] >= here ? n_row++ : -1;
            if (row[s] >= 0)
                memcpy(cold + (size_t)row[s] * n_embd, y + (size_t)s * n_embd,
                       n_embd * sizeof *cold);
        }
        b.args.y = with_y ? vram_room(width * k * sizeof(float)) : NULL;
        b.args.gate.data = b.args.up.data = b.args.down.data = NULL;
        b.args.batch.addresses = vram_copy(at, n_at * sizeof *at);
        b.args.batch.order = vram_copy(order, n_expert * sizeof *order);
        b.args.batch.rank = vram_copy(rank, n_expert * sizeof *rank);
        for (int first = 0; first < here; first += half) {
            b.args.batch.first = first;
            b.args.batch.count = min_int(half, here - first);
            gpu_experts(device(), &b.in, &b.args);
        }
        expect_bits("stream, before the sum", host_copy(b.args.x, width), b.residual, width);
        gpu_experts_join(device(), &b.in, &b.args, cold, row);
        expect_bits("stream", host_copy(b.args.x, width), x, width);
    }
    gpu_free_host(device(), cold);
    gpu_free_host(device(), row);
}

static void test_joined(void)
{
    static const int tokens[] = { 9, 40, 150 };
    test_rng rng = { 29 };
    family("experts of the host's among them");
    for (size_t i = 0; i < ARRAY_LEN(special); i++)
        for (int part = 1; part <= 3; part++) {
            const expert_case *c = &special[i];
            const int n = tokens[(i + (size_t)part) % 3];
            const int here = part == 3 ? c->n_expert - 1 : max_int(c->n_expert * part / 4, 1);
            if (c->n_expert < 2) continue;
            expert_case_begin(c, n);
            check_joined(c, n, here, part % 2, &rng);
            case_end();
        }
}

static void test_scattered(void)
{
    static const expert_case more[] = {
        { QT_F32, QT_F32, 40, 36, 40, 10, .shared_ff = 50, .shared_up = QT_F32,
          .shared_down = QT_F32 },
        { QT_F32, QT_F32, 100, 70, 8, 4, .bias = true, .alike = true },  /* experts without slots */
        { QT_MXFP4, QT_MXFP4, 96, 64, 32, 4, .act = GPU_SWIGLU_CLAMPED, .bias = true },
    };
    static const int tokens[] = { 9, 40, 150 };
    test_rng rng = { 19 };
    int option = 0;
    family("experts here and there");
    for (size_t i = 0; i < ARRAY_LEN(special); i++, option++) {
        const expert_case *c = &special[i];
        const int sizes[] = { c->n_expert, (c->n_expert + 1) / 2, max_int(c->n_expert / 3, 1) };
        expert_case_begin(c, tokens[option % 2]);
        check_scattered(c, tokens[option % 2], sizes[option % 3], &rng);
        case_end();
    }
    for (size_t i = 0; i < ARRAY_LEN(more); i++)
        for (size_t t = 0; t < ARRAY_LEN(tokens); t++, option++) {
            const int size = option % 2 ? more[i].n_expert : 5;
            expert_case_begin(&more[i], tokens[t]);
            check_scattered(&more[i], tokens[t], size, &rng);
            case_end();
        }
}

/* What makes no sense is refused before anything is read. */
static void test_range_refused(void)
{
    static const struct { int first, count; } bad[] = {
        { -1, 2 }, { 0, 9 }, { 7, 2 }, { 8, 1 }, { 3, 0 }, { 0, -1 },
    };
    family("no such range");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        gpu *other = NULL;
        err_ctx err = { 0 };
        gpu_input in = { .n = GPU_FEW + 1, .cols = 64 };
        const gpu_expert_args a = { .n_expert = 8, .k = 2, .batch.first = bad[i].first,
                                    .batch.count = bad[i].count };
        case_begin("%d from %d on, of 8", bad[i].count, bad[i].first);
        if (expect(gpu_open(&other, 0, &err) == 0, "%s", err.msg)) {
            gpu_experts(other, &in, &a);
            expect(gpu_wait(other, &err) < 0, "not refused");
            gpu_close(other);
        }
        case_end();
    }
}

/* ---- golden experts -------------------------------------------------------------------------- */

static void check_golden(const ffn_golden *g, const gpu_bank *bank, int n)
{
    const size_t n_embd = (size_t)g->n_embd, k = (size_t)g->k, width = (size_t)n * n_embd;
    const size_t slots = (size_t)n * k;
    float *x = host_room(width, sizeof *x), *gates = host_room(slots, sizeof *gates);
    float *y = host_room(slots * n_embd, sizeof *y), *out = host_room(width, sizeof *out);
    float *zeros = host_room(width, sizeof *zeros);
    int32_t *ids = host_room(slots, sizeof *ids);
    for (size_t t = 0; t < (size_t)n; t++) {             /* the file's tokens in turn */
        const size_t from = t % (size_t)g->n_token;
        memcpy(x + t * n_embd, g->x + from * n_embd, n_embd * sizeof *x);
        memcpy(gates + t * k, g->gates + from * k, k * sizeof *gates);
        memcpy(ids + t * k, g->ids + from * k, k * sizeof *ids);
        memcpy(y + t * k * n_embd, g->y + from * k * n_embd, k * n_embd * sizeof *y);
        memcpy(out + t * n_embd, g->out + from * n_embd, n_embd * sizeof *out);
    }
    gpu_input in = { .kind = GPU_PLAIN, .n = n, .cols = g->n_embd, .x = vram_floats(x, width),
                     .rows = vram_room(width * sizeof *x),
                     .blocks = vram_room((size_t)n * gpu_blocks_bytes(g->n_embd)) };
    const gpu_expert_args a = {
        .x = vram_floats(zeros, width), .gate = bank[SLAB_GATE], .up = bank[SLAB_UP],
        .down = bank[SLAB_DOWN], .act = weights_gpu_act(g->act),
        .ids = vram_copy(ids, slots * sizeof *ids), .gates = vram_floats(gates, slots),
        .n_expert = g->n_expert, .k = g->k,
        .scratch = vram_room(gpu_expert_scratch(device(), n, g->k, g->n_expert, g->n_ff,
                                                g->n_embd)),
        .y = vram_room(slots * n_embd * sizeof *y),
    };
    gpu_experts(device(), &in, &a);
    expect_bits("experts", host_copy(a.y, slots * n_embd), y, slots * n_embd);
    expect_bits("sum", host_copy(a.x, width), out, width);
}

static void test_golden_experts(void)
{
    static const int tokens[] = { 1, 2, 3, 8 };
    int n_file = 0;
    family("golden experts");
    for (const char *const *name = ffn_golden_names; *name; name++) {
        ffn_golden g;
        const bool good = ffn_golden_read(&g, *name);
        const bool fits = good &&
                          g.weight[SLAB_GATE].type == g.weight[SLAB_UP].type &&
                          gpu_type_fits((int)g.weight[SLAB_GATE].type) &&
                          gpu_type_fits((int)g.weight[SLAB_DOWN].type);
        for (size_t t = 0; fits && t < ARRAY_LEN(tokens); t++) {
            gpu_bank bank[SLAB_COUNT];
            case_begin("%s, n_embd %d, n_ff %d, %d of %d experts, %d tokens", *name, g.n_embd,
                       g.n_ff, g.k, g.n_expert, tokens[t]);
            for (int s = 0; s < SLAB_COUNT; s++) bank[s] = bank_on_gpu(&g.bank, (expert_slab)s);
            check_golden(&g, bank, tokens[t]);
            case_end();
        }
        n_file += fits;
        ffn_golden_free(&g);
    }
    case_begin("files");
    expect(n_file == 4, "%d of 4 files were of use", n_file);
    case_end();
}

int main(int argc, char **argv)
{
    test_begin("gpu experts", argc, argv);
    if (device_open()) {
        test_golden_experts();
        test_types();
        test_special();
        test_by_logits();
        test_many();
        test_ranges();
        test_scattered();
        test_joined();
        test_sums();
        test_range_refused();
        device_close();
    }
    return test_end();
}
