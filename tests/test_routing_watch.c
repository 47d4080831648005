/* test_routing_watch.c - what a session tells about its routing: every layer with experts of every
 * token once, in order, the same however the tokens are cut and wherever experts are; nothing once
 * nobody asks; a refusal where the GPU chooses. */
#include "tests/places.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

#include "cuda/gpu.h"
#include "engine/instruments.h"

/* Fewer than the length from which DeltaNet is computed in chunks, which round differently. */
enum { N_TOKEN = 30, MAX_IDS = N_TOKEN * 8 * 16 };

typedef struct notes {
    const model *m;
    const model_hparams *hp;
    int32_t ids[MAX_IDS];                /* [N_TOKEN, n_layer, k] */
    int seen[N_TOKEN * 8];               /* [N_TOKEN, n_layer]: how often */
    int n_call, next_layer;
    bool in_order, sane;
} notes;

static bool has_experts(const model *m, int l) { return m->layers[l].experts->n_expert > 0; }

/* The next layer with experts, from l on; after the last one the first. */
static int layer_from(const model *m, int l)
{
    while (!has_experts(m, l % m->hp.n_layer)) l++;
    return l % m->hp.n_layer;
}

static int n_bank(const model *m)
{
    int n = 0;
    for (int l = 0; l < m->hp.n_layer; l++) n += has_experts(m, l);
    return n;
}

static void note(void *ctx, int layer, int pos, int n_token, const int32_t *ids, int k)
{
    notes *n = ctx;
    const model_hparams *hp = n->hp;
    n->n_call++;
    n->in_order &= layer == n->next_layer && k == hp->n_expert_used;
    n->next_layer = layer_from(n->m, layer + 1);
    for (int t = 0; t < n_token; t++) {
        const int at = (pos + t) * hp->n_layer + layer;
        if (pos + t >= N_TOKEN || layer >= hp->n_layer) {
            n->sane = false;
            return;
        }
        n->seen[at]++;
        for (int i = 0; i < k; i++) {
            const int32_t e = ids[t * k + i];
            n->sane &= e >= 0 && e < hp->n_expert;
            for (int j = 0; j < i; j++) n->sane &= ids[t * k + j] != e;
            n->ids[at * k + i] = e;
        }
    }
}

static void notes_begin(notes *n, const model *m)
{
    memset(n, 0, sizeof *n);
    n->m = m;
    n->hp = &m->hp;
    n->next_layer = layer_from(m, 0);
    n->in_order = n->sane = true;
}

/* All tokens, in pieces. The likeliest token after them, or -1. */
static int32_t feed(session *s, int piece, const char *why)
{
    static float logits[8192];
    err_ctx err = { 0 };
    int32_t ids[N_TOKEN];
    for (int t = 0; t < N_TOKEN; t++)
        ids[t] = 7 + 61 * t % min_int(1000, session_vocab(s) - 7);
    session_rewind(s, 0);
    for (int t = 0; t < N_TOKEN; t += piece) {
        const int n = min_int(piece, N_TOKEN - t);
        const int rc = session_eval(s, ids + t, n, logits, t + n == N_TOKEN, NULL, NULL, &err);
        if (!CHECK_MSG(rc == 0, "%s: %s", why, err.msg)) return -1;
    }
    return session_likeliest(s, logits);
}

static void see_whole(const notes *n, int n_piece, const char *why)
{
    int wrong = 0;
    for (int i = 0; i < N_TOKEN * n->hp->n_layer; i++)
        wrong += n->seen[i] != has_experts(n->m, i % n->hp->n_layer);
    CHECK_MSG(wrong == 0, "%s: %d layers of a token not told once", why, wrong);
    CHECK_MSG(n->in_order && n->sane, "%s: in order %d, sane %d", why, n->in_order, n->sane);
    CHECK_MSG(n->n_call == n_piece * n_bank(n->m), "%s: %d calls", why, n->n_call);
}

static void see_place(const model *m, const place *p, notes *first)
{
    static notes whole, single;
    const engine_options eo = { .threads = test_n_thread(2) };
    const session_options so = { .ctx = N_TOKEN, .kv = KV_F16 };
    engine *e = NULL;
    session *s = NULL;
    err_ctx err = { 0 };
    notes_begin(&whole, m);
    notes_begin(&single, m);
    if (CHECK(engine_open(&e, m, &eo, &err) == 0) && place_engine(e, m, p) &&
        CHECK_MSG(session_create(&s, e, &so, &err) == 0, "%s: %s", p->name, err.msg)) {
        const int rc = session_watch_routing(s, note, &whole, &err);
        if (p->gpu) {
            CHECK_MSG(rc == ERR_UNSUPPORTED && strstr(err.msg, "--device cpu"), "%s: %d", p->name,
                      rc);
            CHECK(session_watch_routing(s, NULL, NULL, &err) == 0);
        } else if (CHECK(rc == 0)) {
            const int32_t next = feed(s, N_TOKEN, p->name);
            see_whole(&whole, 1, p->name);
            CHECK(session_watch_routing(s, note, &single, &err) == 0);
            feed(s, 1, p->name);
            see_whole(&single, N_TOKEN, p->name);
            CHECK(session_watch_routing(s, NULL, NULL, &err) == 0);
            CHECK_MSG(feed(s, N_TOKEN, p->name) == next, "%s: watching changes tokens", p->name);
            CHECK_MSG(whole.n_call == n_bank(m), "%s: told after all", p->name);
            CHECK_MSG(memcmp(whole.ids, single.ids, sizeof whole.ids) == 0, "%s: one by one",
                      p->name);
            if (!first->hp) *first = whole;
            CHECK_MSG(memcmp(whole.ids, first->ids, sizeof whole.ids) == 0, "%s: as elsewhere",
                      p->name);
        }
    }
    session_free(s);
    engine_close(e);
}

int main(int argc, char **argv)
{
    char glm[512];
    const char *models[] = { "tests/models/demo-qwen3next-Q4_K_M.gguf",
                             "tests/models/demo-gptoss-MXFP4.gguf", glm };
    test_begin("routing_watch", argc, argv);
    test_path(glm, sizeof glm, "%s/families/tiny-glm4moe-bf16.gguf", test_unpacked());
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        static notes first;
        gguf *g = NULL;
        model *m = NULL;
        err_ctx err = { 0 };
        first.hp = NULL;
        if (CHECK_MSG(gguf_open(&g, models[i], &err) == 0 && model_bind(&m, g, &err) == 0, "%s: %s",
                      models[i], err.msg))
            for (int p = 0; p < N_PLACES; p++)
                if (!places[p].gpu || gpu_count() > 0) see_place(m, &places[p], &first);
        model_free(m);
        gguf_close(g);
    }
    return test_end();
}
