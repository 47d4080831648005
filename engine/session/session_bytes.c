/* session_bytes.c - adds up sizes that the allocating modules report. */
#include "engine/session/session_bytes.h"

#include "engine/gpu/gpu_steps.h"
#include "engine/host/host_steps.h"
#include "engine/session/kept_inputs.h"
#include "engine/session/mtp.h"
#include "engine/session/runner.h"

int session_pass_tokens(const session_options *o)
{
    return max_int(GPU_FEW, min_int(GPU_RECORDED, 1 + o->n_sharing));
}

int session_inner_tokens(const session_options *o)
{
    return o->n_sharing > 0 ? RUNNER_MOST_ROWS : 0;
}

/* Of layer l. */
static uint64_t versions_bytes(const model *m, int n_version, int l)
{
    return size_plus(size_times(recurrent_layer_bytes(m, l), (uint64_t)n_version),
                     n_version > 0 ? kept_inputs_layer_bytes(m, l) : 0);
}

session_bytes session_bytes_of(const model *m, const state_options *so, const session_options *o,
                               int n_thread)
{
    const uint64_t n = 1 + (uint64_t)o->n_sharing;
    uint64_t sum = size_times(size_plus(state_bytes(m, so), mtp_vector_bytes(m)), n);
    for (int l = 0; l < hparams_layers(&m->hp); l++)
        sum = size_plus(sum, versions_bytes(m, o->n_version, l));
    return (session_bytes){
        .state = sum,
        .snapshots = size_times(state_snapshot_bytes(m, so), n),
        .ids = n * (uint64_t)so->ctx * sizeof(int32_t),
        .recordings = gpu_steps_recordings_bytes(m, session_pass_tokens(o)),
        .logits = (uint64_t)m->hp.n_vocab * sizeof(float), .spare = recurrent_bytes(m),
        .host_work = host_steps_bytes(m, n_thread, so->slack, session_inner_tokens(o)),
    };
}

uint64_t session_bytes_layer(const model *m, const state_options *so, const session_options *o,
                             int l)
{
    const uint64_t vectors = l == m->hp.n_layer ? mtp_vector_bytes(m) : 0;
    return size_plus(size_times(size_plus(state_layer_bytes(m, so, l), vectors),
                                1 + (uint64_t)o->n_sharing),
                     versions_bytes(m, o->n_version, l));
}
