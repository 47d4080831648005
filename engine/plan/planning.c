/* planning.c - counts the sizes that the planner needs.
 *
 * Each size comes from the code that allocates or reads the bytes, so that plan and run agree.
 * tiers/plan.h decides, engine/plan/measure.h measures. */
#include "engine/plan/planning.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cuda/gpu.h"
#include "engine/cpu/kernels.h"
#include "engine/gpu/gpu_steps.h"
#include "engine/host/repack_head.h"
#include "engine/session/session_bytes.h"
#include "moe/expert_stream.h"
#include "moe/frame_table.h"
#include "tiers/available_memory.h"
#include "tiers/machine.h"
#include "tiers/page_advice.h"
#include "tiers/topology.h"

enum {
    STREAMED_CHUNK = 4096,               /* preferred on a GPU: banks are copied once a chunk */
    LONG_CHUNKS = 2,                     /* longer chunks, for experts from the drive */
    LEAST_CTX = 256,                     /* for advice */
    PROGRAM_UNIT = 256 << 10,            /* rounds, so that two plans agree */
    PROGRAM_LATER = 2 << 20,             /* code that has not run yet */
    THREAD_STACK = 768 << 10,            /* bytes that kernels touch */
    TOKEN_TEXT = 192                     /* bytes of a prompt's text and copies */
};

/* ---- the machine ----------------------------------------------------------------------------- */

static void forget_tensor(void *ctx, const tensor *t, model_use use, int layer)
{
    (void)ctx;
    (void)use;
    (void)layer;
    pages_forget(t->data, t->bytes);
}

void planning_forget(const model *m)
{
    if (gguf_n_part(m->file) > 0 && gguf_part_path(m->file, 0)[0])
        model_visit(m, forget_tensor, NULL);
}

uint64_t planning_program_bytes(void)
{
    return size_align(resident_memory_bytes() + PROGRAM_LATER, PROGRAM_UNIT);
}

int planning_machine(plan_machine *out, bool use_gpu, err_ctx *err)
{
    const char *whose;
    gpu_info info;
    int rc;
    *out = (plan_machine){ 0 };
    if ((rc = available_memory(&out->ram_available, &whose, err)) < 0) return rc;
    out->ram_program = planning_program_bytes();
    if (!use_gpu || gpu_count() == 0) return 0;
    if ((rc = gpu_describe(&info, 0, err)) < 0) return rc;
    out->gpu = true;
    out->vram_free = info.vram_free;
    return 0;
}

static int threads_of(int n_thread)
{
    int n_cpu;
    return n_thread > 0 ? n_thread : machine_cores(NULL, 0, &n_cpu);
}

int planning_key(speeds_key *out, const model *m, int n_thread, const char *isa,
                 const char *gpu_name, err_ctx *err)
{
    const kernel_set *set = kernels_named(isa, err);
    const char *path = gguf_n_part(m->file) > 0 ? gguf_part_path(m->file, 0) : NULL;
    topology here;
    struct stat st;
    if (!set) return err ? err->code : ERR_UNSUPPORTED;
    *out = (speeds_key){ .n_thread = threads_of(n_thread) };
    topology_read(&here, "");
    ESC(out->cpu, str_from(here.cpu));
    ESC(out->gpu, str_from(gpu_name));
    snprintf(out->kernels, sizeof out->kernels, "%s, %s %dx%d", set->isa,
             quant_name(model_first_bank(m)->weight[SLAB_GATE]->type), m->hp.n_embd,
             m->hp.n_ff_expert);
    if (path && stat(path, &st) == 0) out->drive = (uint64_t)st.st_dev;
    return 0;
}

/* ---- the model ------------------------------------------------------------------------------- */

enum { VRAM_ALIGN = 256 };               /* of every tensor in VRAM */
static_assert((int)PLAN_FEW_TOKENS == (int)GPU_MAIL, "tokens that are computed as one");
static_assert((int)MODEL_MOST_USED <= (int)PLAN_MOST_USED, "experts that a token may use");

/* Adds the bytes of a layer except the experts' slabs; experts' biases and scales count as
 * dense. */
static void add_dense(void *ctx, const tensor *t, model_use use, int layer)
{
    planning *to = ctx;
    const bool slab = use >= USE_EXPERT_GATE && use <= USE_EXPERT_DOWN;
    if (layer >= 0 && layer < PLAN_MAX_LAYERS && !slab)
        to->layer_dense[layer] += t->bytes + VRAM_ALIGN;
}

int planning_model(planning *to, const model *m, err_ctx *err)
{
    const model_hparams *hp = &m->hp;
    const uint64_t used = (uint64_t)hp->n_expert_used;
    uint64_t slabs = 0, expert_elems = 0;
    bool floats = false;
    model_bytes sum;

    if (hp->n_layer > PLAN_MAX_LAYERS)
        return err_set(err, ERR_UNSUPPORTED, "a model of %d layers: at most %d can be planned for",
                       hp->n_layer, PLAN_MAX_LAYERS);
    model_count_bytes(&sum, m);
    memset(to->layer_dense, 0, sizeof to->layer_dense);
    model_visit(m, add_dense, to);
    for (int l = 0; l < hp->n_layer; l++) {
        const expert_bank *b = m->layers[l].experts;
        to->down_bytes[l] = expert_slab_bytes(b, SLAB_DOWN);
        to->expert_bytes[l] = expert_slabs_bytes(b);
        to->cached_bytes[l] = frame_table_frame_bytes(b);
        to->frame_bytes[l] = ram_frames_frame_bytes(&m->experts, l);
        slabs += (uint64_t)b->n_expert * to->expert_bytes[l];
        expert_elems += used * 3 * b->n_embd * b->n_ff;          /* none: both are 0 */
        floats |= expert_bank_has_floats(b);
    }
    const uint64_t small = sum.experts - slabs, head = m->head.t->elems;
    const uint64_t spares = ram_frames_spare_bytes(&m->experts);
    const uint64_t others = sum.params_active - expert_elems;
    const uint64_t mtp = hp->uses_mtp ? sum.mtp : 0;     /* with its bank, where the head is */
    to->model = (plan_model){
        .n_layer = hp->n_layer, .n_expert = hp->n_expert, .n_used = hp->n_expert_used,
        .expert_bytes = to->expert_bytes, .down_bytes = to->down_bytes,
        .cached_bytes = to->cached_bytes,
        .frame_bytes = spares > 0 ? to->frame_bytes : NULL, .spare_bytes = spares,
        .dense = sum.dense + small + mtp + VRAM_ALIGN * (uint64_t)m->n_bound,
        .layer_dense = to->layer_dense, .split_most = model_split_most(m),
        .embed = m->head_tied ? 0 : sum.embed, .table = sum.embed, .token_dense = sum.token_dense,
        /* of a prompt only the last token needs the output matrix */
        .dense_macs = (double)(others > head ? others - head : 0),
        .expert_macs = (double)expert_elems, .float_experts = floats,
        .file_bytes = sum.dense + sum.experts + mtp, .least_cache = expert_store_least(&m->experts),
    };
    return 0;
}

uint64_t planning_copy_bytes(const model *m, const char *isa, bool exact)
{
    const tensor *t = m->head.t;
    const kernel_set *set = exact ? kernels_exact() : kernels_named(isa, NULL);
    const matrix head = { .type = t->type, .rows = (int)t->rows, .cols = (int)t->cols,
                          .data = t->data, .row_bytes = t->row_bytes };
    return set ? repack_head_bytes(&head, set) : 0;
}

/* ---- the session ----------------------------------------------------------------------------- */

/* Lists the preferred chunk and smaller ones, after the longer ones for experts from the drive. */
static void choose_chunks(plan_session *s, const session_options *o, bool with_gpu)
{
    static const int on_gpu[] = { 2048, 1024, 512, 256 }, on_cpu[] = { 256, 128, 64, 32 };
    const int *smaller = with_gpu ? on_gpu : on_cpu;
    int wished = o->chunk > 0 ? o->chunk : with_gpu ? STREAMED_CHUNK : SESSION_CHUNK;
    wished = min_int(wished, o->ctx);
    s->n_chunk = s->n_long = 0;
    for (int n = STREAMED_CHUNK; n > wished && !with_gpu && o->chunk == 0; n /= 2) {
        if (n / 2 >= o->ctx || s->n_long == LONG_CHUNKS) continue;
        s->chunk[s->n_long++].tokens = min_int(n, o->ctx);
    }
    s->n_chunk = s->n_long;
    s->chunk[s->n_chunk++].tokens = wished;
    for (size_t i = 0; i < ARRAY_LEN(on_gpu) && s->n_chunk < PLAN_CHUNKS; i++)
        if (smaller[i] < wished) s->chunk[s->n_chunk++].tokens = smaller[i];
}

/* Positions, of all sessions together, whose memory experts never have: short conversations take no
 * frames. */
enum { OWN_CONTEXT = 1024 };

/* Counts the session's bytes for c->tokens. Returns false on overflow. ram_work is for the CPU
 * alone; ram_with_gpu is for vectors that cross the bus and the CPU's work on them. layers gets the
 * state of each layer, unless it is NULL. */
static bool count_chunk(plan_chunk *c, uint64_t *layers, const model *m, const session_options *o,
                        int n_thread)
{
    const state_options so = { .ctx = o->ctx, .slack = c->tokens, .kv = o->kv,
                               .n_snapshot = o->n_snapshot };
    const int threads = threads_of(n_thread);
    const session_bytes b = session_bytes_of(m, &so, o, threads);
    const uint64_t both = b.ids + b.logits;
    const batch_sizes most = { c->tokens, session_pass_tokens(o) };
    const uint64_t alone = size_plus(b.spare, (uint64_t)threads * THREAD_STACK +
                                                  (uint64_t)o->ctx * TOKEN_TEXT);
    *c = (plan_chunk){
        .tokens = c->tokens, .vram_work = b.recordings, .snapshots = b.snapshots,
        .state = b.state == UINT64_MAX ? b.state : b.state - b.snapshots,
        .ram_work = size_plus(size_plus(b.host_work, both), alone),
        .ram_with_gpu = size_plus(size_plus(gpu_steps_host_bytes(m, most), both),
                                  expert_server_ram_bytes(m)),
        .ram_embed = weights_embed_bytes(m, c->tokens), .layer_state = layers,
    };
    for (int l = 0; layers && l < m->hp.n_layer; l++)
        layers[l] = session_bytes_layer(m, &so, o, l);
    return b.state != UINT64_MAX && c->ram_work != UINT64_MAX && c->ram_with_gpu != UINT64_MAX;
}

/* Smaller sessions, for advice if this one does not fit. */
static void count_less(plan_session *s, const model *m, const session_options *o, int n_thread)
{
    session_options less = *o;
    for (int q8 = 0; q8 <= (o->kv != KV_Q8_0); q8++)
        for (less.ctx = q8 ? o->ctx : o->ctx / 2; less.ctx >= LEAST_CTX; less.ctx /= 2) {
            plan_chunk c = { .tokens = s->chunk[s->n_chunk - 1].tokens };
            if (q8) less.kv = KV_Q8_0;
            if (s->n_less == PLAN_MOST_LESS || !count_chunk(&c, NULL, m, &less, n_thread)) continue;
            s->less[s->n_less++] = (plan_less){
                .ctx = less.ctx, .q8 = q8 == 1, .ram_cpu = c.state + c.snapshots + c.ram_work,
                .ram_gpu = c.snapshots + c.ram_with_gpu,
            };
        }
}

int planning_session(planning *to, const model *m, const session_options *o, int n_thread,
                     planning_work *work, void *ctx, err_ctx *err)
{
    plan_session *out = &to->session;
    const int rc = session_check(m, o, err);
    if (rc < 0) return rc;
    *out = (plan_session){ .ctx = o->ctx };
    /* a chunk that is interrupted, or a read that fails, needs a copy of the state */
    if (work)
        out->vram_cold = expert_server_vram_bytes(m) + recurrent_bytes(m) +
                         expert_stream_bytes(&m->experts);
    const int n_layer = hparams_layers(&m->hp);
    out->page_bytes = kv_page_bytes(m, o->kv, 0, n_layer);
    out->n_page = (1 + (uint64_t)o->n_sharing) * kv_n_page(m, o->ctx, 0, n_layer);
    out->n_page_own = kv_n_page(m, min_int(o->ctx, OWN_CONTEXT), 0, n_layer);
    choose_chunks(out, o, work != NULL);
    for (int i = 0; i < out->n_chunk; i++) {
        plan_chunk *c = &out->chunk[i];
        if (!count_chunk(c, to->layer_state[i], m, o, n_thread))
            return err_set(err, ERR_RANGE, "a session of %d tokens is too large to count", o->ctx);
        c->vram_work = work ? c->vram_work + work(ctx, m, c->tokens, session_pass_tokens(o)) : 0;
    }
    count_less(out, m, o, n_thread);
    return 0;
}

/* In less VRAM for experts than so many times its size the block costs hits. */
enum { MTP_PART = 8 };

bool planning_has_mtp_room(const planning *of, const plan *p, const model *m)
{
    model_bytes sum;
    model_count_bytes(&sum, m);
    if (of->machine.gpu != p->gpu || plan_uses_drive(p, m->hp.n_layer)) return false;
    if (!p->gpu || p->ram.experts == 0) return !p->gpu || p->head == PLAN_VRAM;
    return p->head == PLAN_VRAM && sum.mtp <= p->vram.experts / MTP_PART;
}

uint64_t planning_gpu_work(void *device, const model *m, int chunk, int pass)
{
    return gpu_steps_bytes(device, m, (batch_sizes){ chunk, pass });
}

int planning_make(plan *out, planning *to, const model *m, const session_options *o, int n_thread,
                  planning_work *work, void *ctx, const plan_wish *w, err_ctx *err)
{
    plan_wish wish = *w;
    int rc = planning_model(to, m, err);
    if (rc < 0) return rc;
    if (work && to->machine.gpu && !w->cpu_only) {
        rc = planning_session(to, m, o, n_thread, work, ctx, err);
        if (rc < 0) return rc;
        rc = plan_make(out, &to->machine, &to->model, &to->session, w, err);
        if (rc < 0 && rc != ERR_NOMEM) return rc;
        if (rc == 0 && out->gpu) return 0;
    }
    wish.cpu_only = true;                /* with chunks that suit it */
    rc = planning_session(to, m, o, n_thread, NULL, NULL, err);
    return rc < 0 ? rc : plan_make(out, &to->machine, &to->model, &to->session, &wish, err);
}
