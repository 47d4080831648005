/* session_bytes.c - adds up sizes that the allocating modules report. */
#include "engine/session/session_bytes.h"

#include "engine/gpu/gpu_steps.h"
#include "engine/host/host_steps.h"

session_bytes session_bytes_of(const model *m, const state_options *so, int n_sharing, int n_thread)
{
    const uint64_t n = 1 + (uint64_t)n_sharing;
    return (session_bytes){
        .state = size_times(state_bytes(m, so), n),
        .snapshots = size_times(state_snapshot_bytes(m, so), n),
        .ids = n * (uint64_t)so->ctx * sizeof(int32_t),
        .recordings = gpu_steps_recordings_bytes(m),
        .logits = (uint64_t)m->hp.n_vocab * sizeof(float), .spare = recurrent_bytes(m),
        .host_work = host_steps_bytes(m, n_thread, so->slack),
    };
}

uint64_t session_bytes_layer(const model *m, const state_options *so, int n_sharing, int l)
{
    return size_times(state_layer_bytes(m, so, l), 1 + (uint64_t)n_sharing);
}

uint64_t session_bytes_sum(const uint64_t *parts, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        if (!size_add(&sum, sum, parts[i])) return UINT64_MAX;
    return sum;
}
