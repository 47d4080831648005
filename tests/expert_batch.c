/* expert_batch.c - a layer's experts and a batch of tokens, on the GPU and on the CPU. */
#include "tests/expert_batch.h"

#include <math.h>
#include <string.h>

#include "engine/host/experts_cpu.h"

/* ---- banks ----------------------------------------------------------------------------------- */

gpu_bank bank_on_gpu(const expert_bank *b, expert_slab s)
{
    const size_t n = (size_t)b->n_expert, bytes = (size_t)expert_slab_bytes(b, s);
    const matrix one = expert_matrix(b, s, 0);
    gpu_bank to = { .type = (int)one.type, .rows = one.rows, .cols = one.cols,
                    .row_bytes = one.row_bytes, .slab_bytes = bytes,
                    .data = vram_copy(expert_slab_data(b, s, 0), n * bytes) };
    if (b->bias[s]) to.bias = vram_copy(b->bias[s]->data, n * (size_t)one.rows * sizeof(float));
    if (b->scale[s]) to.scale = vram_copy(b->scale[s]->data, n * sizeof(float));
    return to;
}

static void set_tensor(tensor *t, quant_type type, int cols, int rows, int slabs, const void *data)
{
    const uint64_t ne[3] = { (uint64_t)cols, (uint64_t)rows, (uint64_t)slabs };
    t->name = str_from("test");
    expect(tensor_set_shape(t, type, ne, 3, NULL) == 0, "shape %d, %d, %d", cols, rows, slabs);
    t->data = data;
}

reference_banks *reference_banks_make(const expert_case *c, test_rng *rng)
{
    reference_banks *b = host_room(1, sizeof *b);
    b->cpu = (expert_bank){ .n_expert = c->n_expert, .n_embd = (uint64_t)c->n_embd,
                            .n_ff = (uint64_t)c->n_ff };
    for (int s = 0; s < SLAB_COUNT; s++) {
        const bool down = s == SLAB_DOWN;
        const quant_type type = down ? c->down : c->up;
        const int rows = down ? c->n_embd : c->n_ff, cols = down ? c->n_ff : c->n_embd;
        const size_t n_row = (size_t)rows * (size_t)c->n_expert;
        const size_t row_bytes = (size_t)quant_row_bytes(quant_traits_of(type), (uint64_t)cols);
        uint8_t *data = host_room(n_row, row_bytes);
        for (size_t r = 0; r < n_row; r++)
            weight_row_make(data + r * row_bytes, type, cols, WEIGHTS_PLAUSIBLE, rng);
        set_tensor(&b->weight[s], type, cols, rows, c->n_expert, data);
        b->cpu.weight[s] = &b->weight[s];
        if (c->bias) {
            set_tensor(&b->bias[s], QT_F32, rows, c->n_expert, 1, host_floats(n_row, 0.5f, rng));
            b->cpu.bias[s] = &b->bias[s];
        }
        float *scale = host_floats((size_t)c->n_expert, 1.0f, rng);
        for (int e = 0; e < c->n_expert; e++)
            scale[e] = (3.0f + scale[e]) * unit_scale(data, type, cols);
        set_tensor(&b->scale[s], QT_F32, c->n_expert, 1, 1, scale);
        b->cpu.scale[s] = &b->scale[s];
        b->gpu[s] = bank_on_gpu(&b->cpu, (expert_slab)s);
    }
    return b;
}

/* ---- the CPU's side -------------------------------------------------------------------------- */

/* y [n, k, n_embd] */
static void cpu_experts(float *y, const ops *o, const expert_bank *bank, gpu_activation act,
                        const float *x, const int32_t *ids, int n, int k)
{
    const int n_embd = (int)bank->n_embd;
    const model_hparams hp = { .n_embd = n_embd, .n_ff_expert = (int)bank->n_ff,
                               .n_expert = bank->n_expert, .n_expert_used = k };
    experts_cpu *e = NULL;
    worklist *w = NULL;
    acts a;
    if (!expect(experts_cpu_create(&e, o, &hp, NULL, NULL, n * k, NULL) == 0 &&
                worklist_create(&w, bank->n_expert, n * k, NULL) == 0, "no memory"))
        return;
    acts_init(&a, host_room(acts_bytes(n, n_embd), 1), n, n_embd);
    acts_set(&a, x, n, n_embd);
    worklist_fill(w, ids, n, k);
    static const expert_activation acts_of[] = {
        [GPU_SWIGLU] = ACT_SWIGLU, [GPU_SWIGLU_CLAMPED] = ACT_SWIGLU_CLAMPED,
        [GPU_GEGLU] = ACT_GEGLU,
    };
    const expert_job job = { .bank = bank, .act = acts_of[act], .x = &a, .work = w,
                             .items = w->items, .n_item = w->n_item, .y = y };
    expect(experts_cpu_run(e, &job, NULL) == 0, "run");
    experts_cpu_free(e);
    worklist_free(w);
}

/* y [n, n_embd] */
static void cpu_shared(float *y, const ops *o, const shared_expert *s, gpu_activation act,
                       const float *x, int n)
{
    const size_t mid = (size_t)n * (size_t)s->gate.cpu.rows;
    float *g = host_room(mid, sizeof *g), *u = host_room(mid, sizeof *u);
    cpu_product(g, o, &s->gate.cpu, x, n);
    cpu_product(u, o, &s->up.cpu, x, n);
    cpu_activate(g, u, (int)mid, o, act);
    cpu_product(y, o, &s->down.cpu, g, n);
}

/* The router's choice, from logits with a few equal ones; alike: most are equal, and some are not
 * numbers. */
static void choose_by_logits(int32_t *ids, float *gates, float *logits, int n, int k, int n_expert,
                             bool alike, const router_rule *rule)
{
    for (int t = 0; t < n; t++) {
        float *own = logits + (size_t)t * (size_t)n_expert;
        for (int i = 0; alike && i < n_expert; i++)
            own[i] = i % 7 == 3 && i >= 2 * k ? NAN : rintf(own[i]);
        own[n_expert / 2] = own[n_expert / 3] = own[n_expert - 1];
        router_select(ids + t * k, gates + t * k, own, n_expert, k, rule);
    }
}

/* What is compared: the scores with the bias, each of which a choice of one tells. */
static float *choice_keys(const float *logits, size_t n_logit, const float *bias, size_t n_expert)
{
    const router_rule sigmoid = { .score = ROUTER_SIGMOID, .as_scored = true };
    float *keys = host_room(n_logit, sizeof *keys);
    int32_t id;
    for (size_t i = 0; i < n_logit; i++) {
        router_select(&id, &keys[i], &logits[i], 1, 1, &sigmoid);
        keys[i] += bias[i % n_expert];
    }
    return keys;
}

/* k different experts for each token. */
static int32_t *choose(int n, int k, int n_expert, bool alike, test_rng *rng)
{
    int32_t *ids = host_room((size_t)(n * k), sizeof *ids);
    for (int t = 0; t < n; t++)
        for (int r = 0; r < k; r++) {
            int32_t *own = ids + t * k;
            bool again = true;
            while (again) {
                own[r] = alike && t > 0 ? ids[r] : (int32_t)test_below(rng, (uint32_t)n_expert);
                again = false;
                for (int i = 0; i < r; i++) again = again || own[i] == own[r];
            }
        }
    return ids;
}

/* ---- batches --------------------------------------------------------------------------------- */

static reference shared_reference(quant_type type, int rows, int cols, test_rng *rng)
{
    reference t = reference_make(type, rows, cols, WEIGHTS_PLAUSIBLE, 1.0f, false, rng);
    t.cpu.scale = t.gpu.scale = 3.0f * unit_scale(t.cpu.data, type, cols);
    return t;
}

expert_batch expert_batch_make(const expert_case *c, const reference_banks *bank, int n,
                               test_rng *rng)
{
    const size_t width = (size_t)n * (size_t)c->n_embd, slots = (size_t)(n * c->k);
    const size_t n_logit = (size_t)(n * c->n_expert);
    const int wider = max_int(c->n_ff, c->shared_ff);
    expert_batch b = { .n = n, .bank = bank, .x = host_floats(width, 1.0f, rng),
                .residual = host_floats(width, 1.0f, rng), .gates = host_floats(slots, 1.0f, rng),
                .sigma = host_floats((size_t)n, 1.0f, rng),
                .logits = host_floats(n_logit, 3.0f, rng),
                .ids = choose(n, c->k, c->n_expert, c->alike, rng) };
    b.in = (gpu_input){
        .kind = GPU_PLAIN, .n = n, .cols = c->n_embd, .x = vram_floats(b.x, width),
        .rows = vram_room(width * sizeof(float)), .halves = vram_room(width * 2),
        .lows = c->lows ? vram_room(width * 2) : NULL,
        .blocks = n <= GPU_FEW ? vram_room((size_t)n * gpu_blocks_bytes(c->n_embd)) : NULL,
    };
    b.args = (gpu_expert_args){
        .x = vram_floats(b.residual, width), .gate = bank->gpu[SLAB_GATE],
        .up = bank->gpu[SLAB_UP], .down = bank->gpu[SLAB_DOWN], .act = c->act,
        .n_expert = c->n_expert, .k = c->k,
        .scratch = vram_room(gpu_expert_scratch(device(), n, c->k, c->n_expert, wider, c->n_embd)),
        .y = vram_room(slots * (size_t)c->n_embd * sizeof(float)),
    };
    if (c->by_logits) {
        const size_t n_expert = (size_t)c->n_expert;
        router_rule rule = c->rule;
        if (c->choice_bias) rule.bias = host_floats(n_expert, 0.2f, rng);
        choose_by_logits(b.ids, b.gates, b.logits, n, c->k, c->n_expert, c->alike, &rule);
        b.args.logits = vram_floats(b.logits, n_logit);
        b.args.rule = (gpu_router_rule){ .sigmoid = rule.score == ROUTER_SIGMOID,
                                         .as_scored = rule.as_scored, .factor = rule.factor };
        if (c->choice_bias) {
            b.args.rule.bias = vram_floats(rule.bias, n_expert);
            b.args.keys = vram_floats(choice_keys(b.logits, n_logit, rule.bias, n_expert), n_logit);
        }
    } else {
        b.args.ids = vram_copy(b.ids, slots * sizeof *b.ids);
        b.args.gates = vram_floats(b.gates, slots);
    }
    if (c->shared_ff) {
        b.shared.gate = shared_reference(c->shared_up, c->shared_ff, c->n_embd, rng);
        b.shared.up = shared_reference(c->shared_up, c->shared_ff, c->n_embd, rng);
        b.shared.down = shared_reference(c->shared_down, c->n_embd, c->shared_ff, rng);
        b.args.shared_gate = b.shared.gate.gpu;
        b.args.shared_up = b.shared.up.gpu;
        b.args.shared_down = b.shared.down.gpu;
        b.args.sigma = vram_floats(b.sigma, (size_t)n);
    }
    return b;
}

void expert_batch_expect(expert_batch *b, const expert_case *c, const ops *o)
{
    const size_t n_embd = (size_t)c->n_embd, k = (size_t)c->k;
    float *shared = NULL;
    b->want_y = host_room((size_t)b->n * k * n_embd, sizeof *b->want_y);
    b->want = host_room((size_t)b->n * n_embd, sizeof *b->want);
    cpu_experts(b->want_y, o, &b->bank->cpu, c->act, b->x, b->ids, b->n, c->k);
    if (c->shared_ff) {
        shared = host_room((size_t)b->n * n_embd, sizeof *shared);
        cpu_shared(shared, o, &b->shared, c->act, b->x, b->n);
    }
    memcpy(b->want, b->residual, (size_t)b->n * n_embd * sizeof *b->want);
    for (size_t t = 0; t < (size_t)b->n; t++)
        o->loops->join(b->want + t * n_embd, b->want_y + t * k * n_embd, b->gates + t * k, c->k,
                       shared ? shared + t * n_embd : NULL, b->sigma[t], c->n_embd);
}

/* Of an expert. What is between the products is rounded, but for F32 downs, or where all are of 16
 * bits. */
static double expert_bound(quant_type up, quant_type down, bool lows)
{
    const bool up_half = up == QT_F16 || up == QT_BF16;
    const bool down_float = quant_traits_of(down)->block_elems == 1;
    if (up == QT_F32 && down == QT_F32) return 1e-5;
    return lows && up_half && down_float ? LOWS_BOUND : 1.5e-2;
}

double expert_case_bound(const expert_case *c)
{
    const double routed = expert_bound(c->up, c->down, c->lows);
    return c->shared_ff ? fmax(routed, expert_bound(c->shared_up, c->shared_down, c->lows))
                        : routed;
}

bool expert_case_usual(const expert_case *c)
{
    return c->rule.score == ROUTER_SOFTMAX && !c->rule.as_scored && !(c->rule.factor > 0.0f);
}

void expert_case_begin(const expert_case *c, int n)
{
    shared_text text;
    const char *shared = shared_name(text, c->shared_up, c->shared_down, c->shared_ff);
    case_begin("%s/%s, n_embd %d, n_ff %d, %d of %d experts, %d tokens%s%s%s%s%s%s%s",
               quant_name(c->up), quant_name(c->down), c->n_embd, c->n_ff, c->k, c->n_expert, n,
               act_name(c->act), c->lows ? ", lows" : "", c->bias ? ", biases" : "",
               c->alike ? ", all alike" : "", c->by_logits ? ", by logits" : "",
               expert_case_usual(c) ? "" : ", a rule", shared);
}
