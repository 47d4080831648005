/* sim_gpu_network.c - one dense network for all tokens of a batch: the CPU's bits for any number
 * of them, as all dense products have here. */
#include "tests/sim_gpu_internal.h"

#include <stdlib.h>

size_t gpu_network_scratch(int n, int n_ff, int n_embd)
{
    return (size_t)n * (size_t)(n_ff + n_embd) * sizeof(float);
}

typedef struct network_call {
    gpu_input in;
    gpu_network_args a;
} network_call;

static void run_network(gpu *g, void *args)
{
    const network_call *c = args;
    const gpu_network_args *a = &c->a;
    const sim_expert e = { sim_matrix(&a->gate), sim_matrix(&a->up), sim_matrix(&a->down) };
    const int n = c->in.n, n_embd = a->down.rows;
    float *rows = sim_finished(g, &c->in);
    if (!rows) return;
    sim_vectors x = sim_vectors_make(rows, n, c->in.cols);
    float *y = sim_room((size_t)n * (size_t)n_embd, sizeof *y);
    float **at = sim_room((size_t)n, sizeof *at);
    for (int t = 0; t < n; t++) at[t] = y + (size_t)t * (size_t)n_embd;
    sim_expert_whole(at, &e, x.a.rows, n, a->act, SIM_BITS_FEW);
    for (int t = 0; t < n; t++)
        for (int i = 0; i < n_embd; i++) {
            float *to = a->y + (size_t)t * (size_t)n_embd + (size_t)i;
            const float v = a->sigma ? a->sigma[t] * at[t][i] : at[t][i];
            *to = a->add ? *to + v : v;
        }
    sim_clobber(a->scratch, gpu_network_scratch(n, a->gate.rows, n_embd));
    free(at);
    free(y);
    sim_vectors_free(&x);
    free(rows);
}

static bool fits(const gpu_input *in, const gpu_network_args *a)
{
    return in->n >= 1 && gpu_type_fits(a->gate.type) &&
           a->gate.type == a->up.type && gpu_type_fits(a->down.type) &&
           a->gate.cols == in->cols && a->up.cols == in->cols && a->gate.rows == a->up.rows &&
           a->gate.rows == a->down.cols && (!gpu_is_few(in->n, in->in_pass) || in->blocks) &&
           (sim_is_float(a->down.type) || a->down.cols % 32 == 0);
}

void gpu_network(gpu *g, gpu_input *in, const gpu_network_args *a)
{
    sim_call c = sim_begin(g, in->name ? in->name : "dense");
    if (!fits(in, a)) {
        sim_fail(g, "network: [%d, %d] for %d vectors of %d", a->gate.rows, a->gate.cols, in->n,
                 in->cols);
        return;
    }
    if (!gpu_is_few(in->n, in->in_pass)) {
        const bool floats = a->gate.type == QT_F32;
        sim_prepare_many(g, in, floats, !floats);
    } else {
        sim_prepare_few(g, in);
    }
    const network_call call = { *in, *a };
    const uint64_t n = (uint64_t)in->n;
    sim_claim_input(&c, in);
    sim_claim_matrix(&c, "gate", &a->gate);
    sim_claim_matrix(&c, "up", &a->up);
    sim_claim_matrix(&c, "down", &a->down);
    sim_reads(&c, "sigma", a->sigma, n * sizeof *a->sigma);
    sim_writes(&c, "y", a->y, n * (uint64_t)a->down.rows * sizeof *a->y);
    sim_writes(&c, "scratch", a->scratch,
               gpu_network_scratch(in->n, a->gate.rows, a->down.rows));
    sim_end(&c, run_network, &call, sizeof call);
}
