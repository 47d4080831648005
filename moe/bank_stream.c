/* bank_stream.c - sends banks through two buffers in VRAM, one part ahead of the kernels that read
 * them.
 *
 * A part is a run of experts with all their slabs. From RAM it goes in one copy for each kind of
 * slab; from a cache in front of the file, expert by expert, as they come in. gpu_experts decides
 * what is computed with them, the store where experts are kept. */
#include "moe/bank_stream.h"

enum { SEND_EXPERTS = 64 };              /* read from the file together */

struct bank_stream {
    gpu *g;
    expert_banks banks;
    expert_store *store;
    const plan *p;
    gpu_stage *stage;
    int piece;                           /* parts that the chunk has used so far */
    int send_layer, send_part;           /* the next one to be sent */
};

/* ---- life ------------------------------------------------------------------------------------ */

int bank_stream_create(bank_stream **out, gpu *g, const expert_banks *banks, expert_store *store,
                       const plan *p, err_ctx *err)
{
    bank_stream *b = mem_zalloc(sizeof *b);
    *out = NULL;
    if (!b) return err_set(err, ERR_NOMEM, "streaming: %zu bytes", sizeof *b);
    *b = (bank_stream){ .g = g, .banks = *banks, .store = store, .p = p };
    const int rc = gpu_stage_create(&b->stage, g, 2, p->vram_stage / 2, err);
    if (rc < 0) {
        mem_free(b);
        return rc;
    }
    *out = b;
    return 0;
}

void bank_stream_free(bank_stream *b)
{
    if (!b) return;
    gpu_stage_free(b->g, b->stage);
    mem_free(b);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* A part of a layer's bank in a buffer of the stage: where its slabs begin, how far apart. */
typedef struct piece {
    int layer, first, count;             /* experts */
    uint64_t at[SLAB_COUNT], stride[SLAB_COUNT];
} piece;

/* Gate and up of a fused tensor stay side by side where the bank is sent whole. */
static piece piece_of(const bank_stream *b, int l, int part)
{
    const expert_bank *bank = &b->banks.of[l];
    const int parts = b->p->stage_parts, n = bank->n_expert;
    const bool paired = bank->fused && expert_store_kind(b->store) != STORE_CACHED;
    piece p = { .layer = l, .first = n * part / parts };
    uint64_t used = 0;
    p.count = n * (part + 1) / parts - p.first;
    for (int s = 0; s < SLAB_COUNT; s++) {
        const uint64_t bytes = expert_slab_bytes(bank, (expert_slab)s);
        p.stride[s] = paired && s != SLAB_DOWN ? 2 * bytes : bytes;
        p.at[s] = paired && s == SLAB_UP ? bytes : used;
        if (!(paired && s == SLAB_UP))
            used += size_align((uint64_t)p.count * p.stride[s], 256);
    }
    return p;
}

/* From banks that are in RAM as they are in the file. */
static void send_whole(bank_stream *b, const piece *p, int i)
{
    expert_slabs from = { { NULL } };
    expert_store_find(b->store, p->layer, p->first, &from);
    for (int s = 0; s < SLAB_COUNT; s++) {
        if (s == SLAB_UP && p->stride[s] > expert_slab_bytes(&b->banks.of[p->layer], s))
            continue;                    /* came with gate */
        gpu_stage_copy(b->g, b->stage, i, p->at[s], from.at[s],
                       (uint64_t)p->count * p->stride[s]);
    }
}

/* From the cache, and through it from the file. A place is free again once its copy has been
 * sent. */
static int send_cached(bank_stream *b, const piece *p, int i, err_ctx *err)
{
    const expert_bank *bank = &b->banks.of[p->layer];
    expert_store *store = b->store;
    const int most = min_int(max_int(expert_store_room(store) / 2, 1), SEND_EXPERTS);
    int ids[SEND_EXPERTS], which[SEND_EXPERTS], ahead[SEND_EXPERTS], n, rc;

    for (int done = 0; done < p->count; done += n) {
        n = min_int(p->count - done, most);
        const int n_ahead = min_int(p->count - done - n, most);
        for (int e = 0; e < n; e++) ids[e] = p->first + done + e;
        for (int e = 0; e < n_ahead; e++) ahead[e] = p->first + done + n + e;
        if ((rc = expert_store_want(store, p->layer, ids, n, err)) < 0) return rc;
        expert_store_ahead(store, p->layer, ahead, n_ahead);
        while ((rc = expert_store_next(store, which, STORE_ALL, err)) > 0) {
            for (int w = 0; w < rc; w++) {
                const uint64_t e = (uint64_t)(ids[which[w]] - p->first);
                expert_slabs from;
                expert_store_find(store, p->layer, ids[which[w]], &from);
                for (int s = 0; s < SLAB_COUNT; s++)
                    gpu_stage_copy(b->g, b->stage, i, p->at[s] + e * p->stride[s], from.at[s],
                                   expert_slab_bytes(bank, (expert_slab)s));
            }
        }
        if (rc < 0) return rc;
        rc = gpu_stage_sent(b->g, b->stage, i, err);
        expert_store_release(store);
        if (rc < 0) return rc;
    }
    return 0;
}

static void skip_to_cold(bank_stream *b)
{
    while (b->send_layer < b->banks.n_layer && b->p->hot[b->send_layer] == b->banks.n_expert)
        b->send_layer++;
}

/* Sends the next part to buffer i, if there is one. */
static int send_next(bank_stream *b, int i, err_ctx *err)
{
    int rc = 0;
    if (b->send_layer >= b->banks.n_layer) return 0;
    const piece p = piece_of(b, b->send_layer, b->send_part);
    if (expert_store_kind(b->store) == STORE_CACHED) rc = send_cached(b, &p, i, err);
    else send_whole(b, &p, i);
    if (++b->send_part == b->p->stage_parts) {
        b->send_part = 0;
        b->send_layer++;
        skip_to_cold(b);
    }
    return rc;
}

int bank_stream_begin(bank_stream *b, err_ctx *err)
{
    b->piece = b->send_layer = b->send_part = 0;
    skip_to_cold(b);
    const int rc = send_next(b, 0, err);
    return rc < 0 ? rc : send_next(b, 1, err);
}

/* ---- using ----------------------------------------------------------------------------------- */

int bank_stream_run(bank_stream *b, int layer, gpu_input *in, gpu_expert_args *a, bool in_step,
                    err_ctx *err)
{
    int rc = 0;
    for (int part = 0; part < b->p->stage_parts && rc == 0; part++) {
        const piece p = piece_of(b, layer, part);
        const int i = b->piece++ % 2;
        const uint8_t *base = gpu_stage_buffer(b->stage, i);
        gpu_bank *banks[SLAB_COUNT] = { &a->gate, &a->up, &a->down };
        for (int s = 0; s < SLAB_COUNT; s++) {
            banks[s]->data = base + p.at[s];
            banks[s]->slab_bytes = p.stride[s];
        }
        a->first = p.first;
        a->count = p.count;
        if (in_step && (rc = gpu_stage_sent(b->g, b->stage, i, err)) < 0) return rc;
        gpu_stage_ready(b->g, b->stage, i);
        gpu_experts(b->g, in, a);
        gpu_stage_done(b->g, b->stage, i);
        rc = send_next(b, i, err);
    }
    return rc;
}
