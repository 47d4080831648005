/* kept_inputs.c - raw, mixed and gates of each DeltaNet layer. */
#include "engine/session/kept_inputs.h"

#include <assert.h>

#include "engine/session/layer_blocks.h"

struct kept_inputs {
    layer_blocks memory;                 /* a layer's begins with raw */
    size_t channels, gates;              /* of a token */
};

uint64_t kept_inputs_layer_bytes(const model *m, int l)
{
    if (m->layers[l].mixer != MIX_DELTANET) return 0;
    const uint64_t token = 2 * (hparams_channels(&m->hp) + (uint64_t)m->hp.ssm_n_v_head);
    return size_times(token, KEPT_TOKENS * sizeof(float));
}

int kept_inputs_create(kept_inputs **out, const model *m, const layer_segments *in, err_ctx *err)
{
    kept_inputs *k = mem_zalloc(sizeof *k);
    *out = NULL;
    if (!k) return err_set(err, ERR_NOMEM, "inputs to go back: %zu bytes", sizeof *k);
    k->channels = (size_t)hparams_channels(&m->hp);
    k->gates = 2 * (size_t)m->hp.ssm_n_v_head;
    const int rc = layer_blocks_init(&k->memory, m, in, kept_inputs_layer_bytes,
                                     "inputs to go back", err);
    if (rc == 0) *out = k;
    else kept_inputs_free(k);
    return rc;
}

void kept_inputs_free(kept_inputs *k)
{
    if (!k) return;
    layer_blocks_release(&k->memory);
    mem_free(k);
}

layer_inputs kept_inputs_of(const kept_inputs *k, int layer, int first)
{
    float *raw = k->memory.layers[layer], *mixed = raw + KEPT_TOKENS * k->channels;
    float *gates = mixed + KEPT_TOKENS * k->channels;
    const size_t t = (size_t)first;
    assert(raw && first < KEPT_TOKENS);
    return (layer_inputs){ raw + t * k->channels, mixed + t * k->channels, gates + t * k->gates };
}
