/* test_planning.c - the sizes of real models for the planner, and that a plan made of it holds. */
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/gpu/expert_server.h"
#include "engine/gpu/gpu_steps.h"
#include "engine/host/weights.h"
#include "engine/plan/planning.h"
#include "engine/session/mtp.h"
#include "engine/session/state.h"
#include "moe/expert_stream.h"
#include "tests/test.h"
#include "tiers/available_memory.h"

#define GB UINT64_C(1000000000)
#define MB UINT64_C(1000000)

static uint64_t made_work(void *ctx, const model *m, int chunk, int pass)
{
    (void)pass;
    (void)m;
    ++*(int *)ctx;
    return 1000 * (uint64_t)chunk;
}

/* The copy that is planned for is the one that the engine makes. */
static void check_copy(const model *m)
{
    static const char *const isas[] = { NULL, "scalar" };
    for (int exact = 0; exact <= 1; exact++)
        for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
            const engine_options eo = { .threads = 1, .isa = isas[i], .exact = exact == 1 };
            engine *e = NULL;
            err_ctx err = { 0 };
            if (!CHECK_MSG(engine_open(&e, m, &eo, &err) == 0, "%s", err.msg)) continue;
            const uint64_t planned = planning_copy_bytes(m, isas[i], exact == 1);
            CHECK_MSG(planned == 0 || engine_repack_head(e, &err) == 0, "%s", err.msg);
            CHECK_MSG(planned == engine_repacked_bytes(e), "copy of the head, exact %d", exact);
            engine_close(e);
        }
    CHECK(planning_copy_bytes(m, "none such", false) == 0);
}

/* Few rows of a large table in a file; a small one, one in memory and one that is the output
 * matrix, too, count as a whole. */
static void test_embed_bytes(const char *path)
{
    gguf *g = NULL, *in_memory = NULL;
    model *m = NULL;
    err_ctx err = { 0 };
    size_t bytes = 0;
    uint8_t *data = test_read_file(path, &bytes);
    if (CHECK_MSG(data && gguf_open(&g, path, &err) == 0 && model_bind(&m, g, &err) == 0 &&
                  gguf_open_memory(&in_memory, data, bytes, &err) == 0, "%s", err.msg)) {
        tensor large = *m->embed.t;
        const uint64_t row = (large.row_bytes + 65535 + 65535) / 65536 * 65536;
        CHECK(weights_embed_bytes(m, 512) == large.bytes);
        large.bytes = 600 * MB;
        m->embed.t = &large;
        m->head_tied = false;
        CHECK_MSG(weights_embed_bytes(m, 512) == (512 + 255) * row, "%llu",
                  (unsigned long long)weights_embed_bytes(m, 512));
        CHECK(weights_embed_bytes(m, 9) == (9 + 255) * row);
        m->head_tied = true;
        CHECK(weights_embed_bytes(m, 9) == large.bytes);
        m->head_tied = false;
        m->file = in_memory;
        CHECK(weights_embed_bytes(m, 9) == large.bytes);
    }
    model_free(m);
    gguf_close(g);
    gguf_close(in_memory);
    mem_free(data);
}

static void test_sizes(const char *path)
{
    static planning in;
    static plan p;
    gguf *g = NULL;
    model *m = NULL;
    model_bytes sum;
    static planning sized, smaller;
    const plan_session *const s = &sized.session;
    err_ctx err = { 0 };
    int asked = 0;

    if (!CHECK_MSG(gguf_open(&g, path, &err) == 0 && model_bind(&m, g, &err) == 0, "%s: %s", path,
                   err.msg)) {
        gguf_close(g);
        return;
    }
    model_use_mtp(m, true);
    model_count_bytes(&sum, m);
    CHECK(planning_model(&in, m, &err) == 0);
    const uint64_t experts = plan_all_experts(&in.model), padding = 256 * (uint64_t)m->n_bound;
    CHECK((sum.mtp > 0) == m->hp.uses_mtp);
    CHECK_MSG(in.model.dense + experts == sum.dense + sum.experts + sum.mtp + padding, "%s: sum",
              path);
    CHECK(experts <= sum.experts &&
          in.model.file_bytes == sum.dense + sum.experts + sum.mtp);
    CHECK(in.model.embed == (m->head_tied ? 0 : sum.embed) && in.model.embed < in.model.dense);
    CHECK(in.model.token_dense == sum.token_dense && in.model.n_used == m->hp.n_expert_used);
    CHECK(in.model.dense_macs > 0 && in.model.expert_macs == 3.0 * m->hp.n_layer * in.model.n_used *
          m->hp.n_embd * m->hp.n_ff_expert);
    uint64_t layers = 0;
    for (int l = 0; l < m->hp.n_layer; l++) layers += in.model.layer_dense[l];
    CHECK_MSG(layers > 0 && layers + sum.embed + (m->head_tied ? 0 : sum.head) <= in.model.dense &&
              in.model.table == sum.embed, "%s: dense weights by layers", path);
    for (int l = 0; l < m->hp.n_layer; l++)
        CHECK(in.down_bytes[l] > 0 && in.down_bytes[l] < in.expert_bytes[l] &&
              in.expert_bytes[l] <= expert_bytes(m->layers[l].experts));

    expert_bank *last = &m->experts.of[m->hp.n_layer - 1];       /* one slab of floats counts */
    const tensor *down = last->weight[SLAB_DOWN];
    tensor floats = *down;
    floats.type = QT_BF16;
    CHECK(!in.model.float_experts);
    last->weight[SLAB_DOWN] = &floats;
    CHECK(planning_model(&in, m, &err) == 0 && in.model.float_experts);
    last->weight[SLAB_DOWN] = down;

    m->head_tied = !m->head_tied;        /* a table that is read for every token stays in VRAM */
    CHECK(planning_model(&in, m, &err) == 0 && (in.model.embed == 0) == m->head_tied);
    m->head_tied = !m->head_tied;

    const int ctx = min_int(m->hp.ctx_train, 300);
    session_options o = { .ctx = ctx, .kv = KV_F16, .n_snapshot = 2 };
    CHECK(planning_session(&sized, m, &o, 2, made_work, &asked, &err) == 0);
    CHECK_MSG(s->chunk[0].tokens == ctx && s->n_chunk == (ctx > 256 ? 2 : 1) && asked == s->n_chunk,
              "%d chunks from %d", s->n_chunk, s->chunk[0].tokens);
    for (int i = 0; i < s->n_chunk; i++) {
        const plan_chunk *c = &s->chunk[i];
        const state_options so = { .ctx = ctx, .slack = c->tokens, .kv = KV_F16, .n_snapshot = 2 };
        const uint64_t vectors = mtp_vector_bytes(m);
        CHECK(c->state + c->snapshots == state_bytes(m, &so) + vectors);
        uint64_t by_layer = m->hp.uses_mtp ? state_layer_bytes(m, &so, m->hp.n_layer) + vectors : 0;
        for (int l = 0; l < m->hp.n_layer; l++) by_layer += c->layer_state[l];
        CHECK(by_layer == c->state);
        CHECK((c->snapshots > 0) == (m->hp.ssm_n_v_head > 0)); /* windows have room for all */
        CHECK(c->vram_work == 1000 * (uint64_t)c->tokens + gpu_steps_recordings_bytes(m, GPU_FEW));
        CHECK(c->ram_work > 0 && c->ram_with_gpu == gpu_steps_host_bytes(m, (batch_sizes){ c->tokens, GPU_FEW }) +
                                                        expert_server_ram_bytes(m) +
                                                        (uint64_t)ctx * sizeof(int32_t) +
                                                        (uint64_t)m->hp.n_vocab * 4);
    }
    CHECK(s->vram_cold == expert_server_vram_bytes(m) + recurrent_bytes(m) +
                              expert_stream_bytes(&m->experts));
    o.chunk = 40;
    CHECK(planning_session(&sized, m, &o, 0, NULL, NULL, &err) == 0);
    CHECK(s->n_chunk == 2 && s->chunk[0].tokens == 40 && s->chunk[1].tokens == 32);
    CHECK(s->chunk[0].vram_work == 0 && s->vram_cold == 0);
    CHECK(s->n_long == 0);                /* it was asked for */
    static const struct { int ctx, n_long, first, wished; } chunks[] = {
        { 8192, 2, 4096, SESSION_CHUNK }, { 3000, 2, 3000, SESSION_CHUNK },
        { 600, 1, 600, SESSION_CHUNK }, { 512, 0, 512, 512 },
    };
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        o = (session_options){ .ctx = chunks[i].ctx, .kv = KV_F16 };
        if (o.ctx > m->hp.ctx_train) continue;
        CHECK(planning_session(&sized, m, &o, 0, NULL, NULL, &err) == 0);
        CHECK_MSG(s->n_long == chunks[i].n_long && s->chunk[0].tokens == chunks[i].first &&
                  s->chunk[s->n_long].tokens == chunks[i].wished &&
                  s->chunk[s->n_chunk - 1].tokens == 32,
                  "context of %d: %d long chunks from %d", o.ctx, s->n_long, s->chunk[0].tokens);
        for (int k = 1; k < s->n_chunk; k++) CHECK(s->chunk[k].tokens < s->chunk[k - 1].tokens);
        CHECK(planning_session(&sized, m, &o, 0, made_work, &asked, &err) == 0 && s->n_long == 0);
    }
    o.chunk = SESSION_MAX_CHUNK + 1;
    CHECK(planning_session(&sized, m, &o, 0, NULL, NULL, &err) == ERR_RANGE);
    o = (session_options){ .ctx = m->hp.ctx_train + 1 };
    CHECK(planning_session(&sized, m, &o, 0, NULL, NULL, &err) == ERR_RANGE);
    o.ctx = 0;
    CHECK(planning_session(&sized, m, &o, 0, NULL, NULL, &err) == ERR_RANGE);

    /* what could be asked for instead: the sums that such a session would have */
    o = (session_options){ .ctx = min_int(m->hp.ctx_train, 4096), .kv = KV_F16 };
    CHECK(planning_session(&sized, m, &o, 2, NULL, NULL, &err) == 0 && s->n_less > 2);
    for (int i = 0; i < s->n_less; i++) {
        const plan_less *less = &s->less[i];
        session_options lo = { .ctx = less->ctx, .kv = less->q8 ? KV_Q8_0 : KV_F16 };
        lo.chunk = s->chunk[s->n_chunk - 1].tokens;
        CHECK(planning_session(&smaller, m, &lo, 2, NULL, NULL, &err) == 0);
        const plan_chunk *c = smaller.session.chunk;
        CHECK_MSG(less->ram_cpu == c->state + c->snapshots + c->ram_work &&
                  less->ram_gpu == c->snapshots + c->ram_with_gpu && less->ctx >= 256 &&
                  (less->q8 ? less->ctx <= o.ctx : less->ctx < o.ctx), "less %d: context %d", i,
                  less->ctx);
        CHECK(i == 0 || s->less[i - 1].q8 < less->q8 || s->less[i - 1].ctx > less->ctx);
    }
    o.kv = KV_Q8_0;
    CHECK(planning_session(&sized, m, &o, 2, NULL, NULL, &err) == 0);
    for (int i = 0; i < s->n_less; i++) CHECK(!s->less[i].q8);     /* it is already */
    for (const plan_chunk *c = s->chunk; c < s->chunk + s->n_chunk; c++)
        CHECK(c->ram_embed == weights_embed_bytes(m, c->tokens) && c->ram_embed > 0 &&
              c->ram_embed <= sum.embed);
    check_copy(m);

    /* a GPU for all of it, for none of it, and one that is not asked */
    const plan_wish any = { .vram = UINT64_MAX, .ram = UINT64_MAX, .hot_most = UINT64_MAX };
    o = (session_options){ .ctx = ctx, .kv = KV_F16 };
    in.machine = (plan_machine){ .gpu = true, .vram_free = 8 * GB, .ram_available = 8 * GB };
    CHECK(planning_make(&p, &in, m, &o, 2, made_work, &asked, &any, &err) == 0 && p.gpu);
    CHECK(p.vram.experts == experts && p.chunk == ctx);
    in.machine.vram_free = 1000;
    CHECK(planning_make(&p, &in, m, &o, 2, made_work, &asked, &any, &err) == 0 && !p.gpu);
    CHECK(p.ram.experts == experts && in.session.chunk[in.session.n_chunk - 1].tokens == 32);
    in.machine.vram_free = 8 * GB;
    CHECK(planning_make(&p, &in, m, &o, 2, NULL, NULL, &any, &err) == 0 && !p.gpu);

    speeds_key key;
    struct stat st;
    CHECK(planning_key(&key, m, 3, "", "gpu", &err) == 0 && key.n_thread == 3 && key.kernels[0]);
    CHECK(stat(path, &st) == 0 && key.drive == (uint64_t)st.st_dev && !strcmp(key.gpu, "gpu"));
    CHECK(planning_key(&key, m, 0, NULL, "", &err) == 0 && key.n_thread >= 1 && !key.gpu[0]);
    CHECK(planning_key(&key, m, 0, "none such", "", &err) < 0);
    CHECK(planning_machine(&in.machine, false, &err) == 0 && !in.machine.gpu &&
          in.machine.ram_available > 0);
    CHECK(in.machine.ram_program > MB && in.machine.ram_program < 4 * GB);
    const uint64_t before = model_fingerprint(m), held = resident_memory_bytes();
    planning_forget(m);                  /* memory goes, weights do not */
    CHECK_MSG(resident_memory_bytes() + m->embed.t->bytes / 2 < held, "nothing was forgotten");
    CHECK(model_fingerprint(m) == before);
    model_free(m);
    gguf_close(g);
}

int main(int argc, char **argv)
{
    test_begin("planning", argc, argv);
    test_sizes("tests/models/demo-qwen3next-mtp.gguf");
    test_sizes("tests/models/demo-gptoss-MXFP4.gguf");
    test_embed_bytes("tests/models/demo-gptoss-MXFP4.gguf");
    return test_end();
}
