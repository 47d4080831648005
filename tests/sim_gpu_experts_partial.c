/* sim_gpu_experts_partial.c - the hot experts of many tokens, while the host computes the cold
 * ones.
 *
 * The vectors of hot experts wait in the scratch, as on a real device; those of cold ones are NaNs
 * there, which shows any other use of the scratch, or a changed map. */
#include "tests/sim_gpu_internal.h"

#include <stdlib.h>

typedef struct partial_call {
    gpu_input in;
    gpu_expert_args a;
    const int32_t *hot;
    float *sums;
    const float *cold;
    int first, n;
} partial_call;

static uint64_t vectors_bytes(const gpu_input *in, const gpu_expert_args *a)
{
    return (uint64_t)in->n * (uint64_t)a->k * (uint64_t)a->down.rows * sizeof(float);
}

static bool find_hot(gpu *g, sim_expert *one, const partial_call *c, int e)
{
    const gpu_bank *banks[3] = { &c->a.gate, &c->a.up, &c->a.down };
    matrix *slabs[3] = { &one->gate, &one->up, &one->down };
    for (int i = 0; i < 3; i++) {
        const uint8_t *at = banks[i]->data + (uint64_t)c->hot[e] * banks[i]->slab_bytes;
        if (!banks[i]->data ||
            !sim_in_vram(g, at, (uint64_t)banks[i]->rows * banks[i]->row_bytes)) {
            sim_fail(g, "partial experts: expert %d has frame %d, which is not in VRAM", e,
                     c->hot[e]);
            return false;
        }
        *slabs[i] = sim_slab(banks[i], e, at);
    }
    return true;
}

/* The vectors of all slots that chose a hot expert, expert by expert. */
static void run_begin(gpu *g, void *args)
{
    const partial_call *c = args;
    const int k = c->a.k, n_slot = c->in.n * k;
    const size_t n_embd = (size_t)c->a.down.rows;
    float *finished = sim_finished(g, &c->in), *y = c->a.scratch;
    bool ok = finished != NULL;
    if (!ok) return;
    sim_vectors x = sim_vectors_make(finished, c->in.n, c->in.cols);
    act_row *rows = sim_room((size_t)n_slot, sizeof *rows);
    float **to = sim_room((size_t)n_slot, sizeof *to);
    memset(y, 0xFF, (size_t)vectors_bytes(&c->in, &c->a));
    for (int s = 0; s < n_slot && ok; s++)
        if (c->a.ids[s] < 0 || c->a.ids[s] >= c->a.n_expert) {
            sim_fail(g, "partial experts: slot %d chose %d", s, c->a.ids[s]);
            ok = false;
        }
    for (int e = 0; e < c->a.n_expert && ok; e++) {
        sim_expert one;
        int n = 0;
        for (int s = 0; s < n_slot; s++) {
            if (c->a.ids[s] != e || c->hot[e] < 0) continue;
            rows[n] = x.a.rows[s / k];
            to[n++] = y + (size_t)s * n_embd;
        }
        if (n > 0 && (ok = find_hot(g, &one, c, e)))
            sim_expert_whole(to, &one, rows, n, c->a.act, SIM_BITS_FEW);
    }
    free(to);
    free(rows);
    sim_vectors_free(&x);
    free(finished);
}

static void run_end(gpu *g, void *args)
{
    const partial_call *c = args;
    const size_t n_embd = (size_t)c->a.down.rows, k = (size_t)c->a.k;
    const float *hot_y = c->a.scratch;
    float *y = sim_room(k * n_embd, sizeof *y);
    (void)g;
    for (size_t t = (size_t)c->first; t < (size_t)(c->first + c->n); t++) {
        float *sum = c->sums + t * n_embd;
        for (size_t r = 0; r < k; r++) {
            const size_t slot = t * k + r;
            const float *from = c->hot[c->a.ids[slot]] >= 0
                                    ? hot_y + slot * n_embd
                                    : c->cold + (slot - (size_t)c->first * k) * n_embd;
            memcpy(y + r * n_embd, from, n_embd * sizeof *y);
        }
        memset(sum, 0, n_embd * sizeof *sum);
        sim_ops()->loops->join(sum, y, c->a.gates + t * k, c->a.k, NULL, 0.0f, c->a.down.rows);
    }
    free(y);
}

static bool partial_fits(const gpu_input *in, const gpu_expert_args *a, const int32_t *hot)
{
    return in->n > GPU_FEW && a->k >= 1 && a->k <= GPU_MOST_USED && a->n_expert <= 1024 && a->ids &&
           a->gates && hot && in->cols == a->gate.cols && in->cols == a->down.rows &&
           a->gate.rows == a->down.cols && a->gate.type == a->up.type;
}

/* What neither of the two touches is left out of the claims. */
static gpu_expert_args claimed(const gpu_expert_args *a)
{
    gpu_expert_args some = *a;
    some.x = some.y = NULL;
    some.batch.sums = NULL;
    some.batch.addresses = NULL;
    some.batch.counts = NULL;
    some.shared_gate.data = NULL;
    return some;
}

void gpu_experts_partial_begin(gpu *g, gpu_input *in, const gpu_expert_args *a, const int32_t *hot)
{
    sim_call c = sim_begin(g, "partial experts");
    const gpu_expert_args some = claimed(a);
    if (!partial_fits(in, a, hot)) {
        sim_fail(g, "partial experts: arguments: %d tokens", in->n);
        return;
    }
    if (sim_failed(g)) return;
    sim_prepare_many(g, in, true, false);
    const partial_call call = { .in = *in, .a = *a, .hot = hot };
    sim_claim_experts(&c, in, &some, false);
    sim_reads(&c, "hot", hot, (uint64_t)a->n_expert * sizeof *hot);
    sim_end(&c, run_begin, &call, sizeof call);
}

void gpu_experts_partial_end(gpu *g, const gpu_input *in, const gpu_expert_args *a,
                             const int32_t *hot, float *sums, const float *cold, int first, int n)
{
    sim_call c = sim_begin(g, "sum of partial experts");
    const uint64_t row = (uint64_t)a->down.rows * sizeof(float), k = (uint64_t)a->k;
    if (!partial_fits(in, a, hot) || first < 0 || n < 1 || n > in->n - first) {
        sim_fail(g, "partial experts: %d tokens from %d on of %d", n, first, in->n);
        return;
    }
    const partial_call call = { .in = *in, .a = *a, .hot = hot, .sums = sums, .cold = cold,
                               .first = first, .n = n };
    sim_reads(&c, "vectors", a->scratch, vectors_bytes(in, a));
    sim_reads(&c, "ids", a->ids, (uint64_t)in->n * k * sizeof *a->ids);
    sim_reads(&c, "gates", a->gates, (uint64_t)in->n * k * sizeof *a->gates);
    sim_reads(&c, "hot", hot, (uint64_t)a->n_expert * sizeof *hot);
    sim_reads_any(&c, "the host's vectors", cold, (uint64_t)n * k * row);
    sim_writes(&c, "sums", sums + (size_t)first * (size_t)a->down.rows, (uint64_t)n * row);
    sim_end(&c, run_end, &call, sizeof call);
}
