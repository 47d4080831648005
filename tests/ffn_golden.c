/* ffn_golden.c - reads the golden files of whole experts. */
#include "tests/ffn_golden.h"

#include <string.h>

#include "tests/test.h"

const char *const ffn_golden_names[] = { "qwen", "qwen-nvfp4", "gptoss", "gemma", NULL };

static const uint8_t *take(ffn_golden *g, size_t bytes)
{
    const uint8_t *p = g->bytes + g->at;
    g->at += (bytes + 15) / 16 * 16;     /* each array begins at a multiple of 16 bytes */
    return p;
}

static const float *take_floats(ffn_golden *g, int n)
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

static void set_bank(ffn_golden *g, const uint32_t *types, uint32_t flags)
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

bool ffn_golden_read(ffn_golden *g, const char *name)
{
    char path[512];
    uint32_t head[12];
    memset(g, 0, sizeof *g);
    g->bytes = test_read_file(test_path(path, sizeof path, "%s/numerics/ffn/%s.bin", test_golden(),
                                        name), &g->size);
    if (!g->bytes || !CHECK(g->size > sizeof head)) return false;
    memcpy(head, take(g, sizeof head), sizeof head);
    if (!CHECK_MSG(head[0] == 0x3146554e, "%s: magic %08x", name, head[0])) return false;
    g->act = (expert_activation)head[1];         /* in that order */
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

void ffn_golden_free(ffn_golden *g)
{
    mem_free(g->bytes);
    g->bytes = NULL;
}
