/* test_lane.c - the cold lane against the golden bits of whole experts.
 *
 * The vectors of every chosen expert must have the promised bits whatever the number of threads,
 * however the tokens are batched, and however the experts are divided among shares. */
#include <math.h>
#include <string.h>

#include "engine/lane.h"
#include "loader/bytes.h"
#include "tests/test.h"

/* ---- reading a golden file ------------------------------------------------------------------- */

typedef struct golden {
    uint8_t *bytes;
    size_t size, at;
    int kind, n_embd, n_ff, n_expert, k, n_token;
    tensor weight[SLAB_COUNT], bias[SLAB_COUNT], scale[SLAB_COUNT];
    expert_bank bank;
    const float *x, *gates, *y, *out;
    const int32_t *ids;
} golden;

static const uint8_t *take(golden *g, size_t bytes)
{
    const uint8_t *p = g->bytes + g->at;
    g->at += (bytes + 15) / 16 * 16;     /* each array begins at a multiple of 16 bytes */
    return p;
}

static const float *take_floats(golden *g, int n)
{
    return (const float *)take(g, (size_t)n * sizeof(float));
}

static void shape(tensor *t, uint32_t type, int cols, int rows, int slabs, const uint8_t *data)
{
    const uint64_t ne[3] = { (uint64_t)cols, (uint64_t)rows, (uint64_t)slabs };
    t->name = str_from("golden");
    CHECK(tensor_set_shape(t, type, ne, 3, NULL) == 0);
    t->data = data;
}

static void set_bank(golden *g, const uint32_t *types, uint32_t flags)
{
    const int n = g->n_expert;
    g->bank = (expert_bank){ .n_expert = n, .n_embd = (uint64_t)g->n_embd,
                             .n_ff = (uint64_t)g->n_ff };
    for (int s = 0; s < SLAB_COUNT; s++) {
        const int rows = s == SLAB_DOWN ? g->n_embd : g->n_ff;
        shape(&g->weight[s], types[s], s == SLAB_DOWN ? g->n_ff : g->n_embd, rows, n, NULL);
        g->weight[s].data = take(g, g->weight[s].bytes);
        g->bank.weight[s] = &g->weight[s];
    }
    for (int s = 0; flags & 1 && s < SLAB_COUNT; s++) {
        const int rows = s == SLAB_DOWN ? g->n_embd : g->n_ff;
        shape(&g->bias[s], QT_F32, rows, n, 1, take(g, (size_t)(rows * n) * sizeof(float)));
        g->bank.bias[s] = &g->bias[s];
    }
    if (!(flags & 2)) return;
    const uint8_t *scales = take(g, (size_t)(SLAB_COUNT * n) * sizeof(float));
    for (int s = 0; s < SLAB_COUNT; s++) {
        shape(&g->scale[s], QT_F32, n, 1, 1, scales + (size_t)(s * n) * sizeof(float));
        g->bank.scale[s] = &g->scale[s];
    }
}

static bool golden_read(golden *g, const char *name)
{
    char path[512];
    uint32_t head[12];
    memset(g, 0, sizeof *g);
    g->bytes = test_read_file(test_path(path, sizeof path, "%s/numerics/ffn/%s.bin", test_golden(),
                                        name), &g->size);
    if (!g->bytes || !CHECK(g->size > sizeof head)) return false;
    memcpy(head, take(g, sizeof head), sizeof head);
    if (!CHECK_MSG(head[0] == 0x3146554e, "%s: magic %08x", name, head[0])) return false;
    g->kind = (int)head[1];
    g->n_embd = (int)head[5];
    g->n_ff = (int)head[6];
    g->n_expert = (int)head[7];
    g->k = (int)head[8];
    g->n_token = (int)head[9];
    const int slots = g->n_token * g->k, x = g->n_token * g->n_embd, mid = slots * g->n_ff;
    set_bank(g, head + 2, head[10]);
    g->x = take_floats(g, x);
    g->ids = (const int32_t *)take(g, (size_t)slots * sizeof(int32_t));
    g->gates = take_floats(g, slots);
    take(g, (size_t)x);                  /* the quantised x: codes, scales, sums */
    take(g, (size_t)x / 32 * 4);
    take(g, (size_t)x / 16 * 2);
    for (int i = 0; i < 3; i++) take_floats(g, mid);     /* gate, up, activation */
    take(g, (size_t)mid);
    take(g, (size_t)mid / 32 * 4);
    take(g, (size_t)mid / 16 * 2);
    g->y = take_floats(g, slots * g->n_embd);
    g->out = take_floats(g, x);
    return CHECK_MSG(g->at == g->size, "%s: %zu of %zu bytes read", name, g->at, g->size);
}

/* ---- running the lane ------------------------------------------------------------------------ */

static int differing(const float *a, const float *b, int n)
{
    int bad = 0;
    for (int i = 0; i < n; i++)
        bad += memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]));
    return bad;
}

/* Tokens first .. first+n-1 with the experts cut into two shares before item cut. */
static void run(golden *g, const ops *o, lane *cold, acts *x, worklist *w, float *y, int first,
                int n, int cut)
{
    acts_set(x, g->x + first * g->n_embd, n, g->n_embd);
    worklist_fill(w, g->ids + first * g->k, n, g->k);
    if (cut > w->n_item) cut = w->n_item;
    lane_share share = {
        .bank = &g->bank, .act = g->kind ? ACT_SWIGLU_CLAMPED : ACT_SWIGLU, .x = x, .work = w,
        .items = w->items, .n_item = cut, .y = y,
    };
    (void)o;
    mem_guard(true);
    cold->launch(cold, &share);
    cold->finish(cold);
    share.items += cut;
    share.n_item = w->n_item - cut;
    cold->launch(cold, &share);
    cold->finish(cold);
    mem_guard(false);
}

static void check_lane(golden *g, const char *name, const loops *f, int n_thread)
{
    const model_hparams hp = { .n_embd = g->n_embd, .n_ff_expert = g->n_ff,
                               .n_expert = g->n_expert, .n_expert_used = g->k };
    const int slots = g->n_token * g->k;
    float *y = mem_array((size_t)(slots * g->n_embd), sizeof *y);
    void *storage = mem_zalloc(acts_bytes(g->n_token, g->n_embd));
    ops o = { .kernels = kernels_contract(), .loops = f };
    lane *cold = NULL;
    worklist *w = NULL;
    acts x;

    if (!CHECK(y && storage && pool_create(&o.team, n_thread, NULL) == 0 &&
               lane_cpu_create(&cold, &o, &hp, slots, NULL) == 0 &&
               worklist_create(&w, g->n_expert, slots, NULL) == 0))
        return;
    acts_init(&x, storage, g->n_token, g->n_embd);
    for (int cut = 0; cut <= 3; cut++) {
        memset(y, 0xAA, (size_t)(slots * g->n_embd) * sizeof *y);
        run(g, &o, cold, &x, w, y, 0, g->n_token, cut);
        const int bad = differing(y, g->y, slots * g->n_embd);
        CHECK_MSG(bad == 0, "%s, %s, %d threads, cut at %d: %d of %d values differ", name, f->isa,
                  n_thread, cut, bad, slots * g->n_embd);
    }
    for (int t = 0; t < g->n_token; t++) {
        const int n = g->k * g->n_embd;
        run(g, &o, cold, &x, w, y, t, 1, 1);
        const int bad = differing(y, g->y + t * n, n);
        CHECK_MSG(bad == 0, "%s, %s, token %d alone: %d values differ", name, f->isa, t, bad);
    }
    worklist_free(w);
    cold->free(cold);
    pool_free(o.team);
    mem_free(storage);
    mem_free(y);
}

static void check_failures(const golden *g)
{
    const model_hparams hp = { .n_embd = g->n_embd, .n_ff_expert = g->n_ff,
                               .n_expert = g->n_expert, .n_expert_used = g->k };
    const ops o = { .kernels = kernels_contract(), .loops = loops_for("scalar") };
    for (long fail = 1; fail < 10; fail++) {
        lane *cold = NULL;
        mem_fail_after(fail);
        const int rc = lane_cpu_create(&cold, &o, &hp, 8, NULL);
        mem_fail_after(0);
        CHECK((rc == 0) == (cold != NULL));
        if (!cold) continue;
        cold->free(cold);
        break;
    }
}

int main(int argc, char **argv)
{
    static const char *const names[] = { "qwen", "qwen-nvfp4", "gptoss" };
    const loops *sets[LOOPS_MAX_SETS];
    const int n_set = loops_here(sets);
    test_begin("lane", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        golden g;
        if (!golden_read(&g, names[i])) continue;
        for (int k = 0; k < n_set; k++)
            for (int n_thread = 1; n_thread <= 3; n_thread++)
                check_lane(&g, names[i], sets[k], n_thread);
        check_failures(&g);
        mem_free(g.bytes);
    }
    return test_end();
}
