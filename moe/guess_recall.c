/* guess_recall.c - one waiting guess and k + 2 counts for each layer. */
#include "moe/guess_recall.h"

#include <string.h>

typedef struct layer_counts {
    uint64_t tokens, in_vram;
    bool waits;
    int n_vram;                          /* of the guess that waits */
} layer_counts;

struct guess_recall {
    int n_layer, k;
    layer_counts *layers;                /* [n_layer] */
    uint64_t *right;                     /* [n_layer, k] */
    int32_t *guesses;                    /* [n_layer, k] */
};

int guess_recall_create(guess_recall **out, int n_layer, int k, err_ctx *err)
{
    const size_t n = (size_t)n_layer, all = n * (size_t)k;
    guess_recall *g = mem_zalloc(sizeof *g);
    *out = NULL;
    if (g) {
        *g = (guess_recall){ .n_layer = n_layer, .k = k };
        g->layers = mem_zalloc(n * sizeof *g->layers);
        g->right = mem_zalloc(all * sizeof *g->right);
        g->guesses = mem_zalloc(all * sizeof *g->guesses);
    }
    if (!g || !g->layers || !g->right || !g->guesses) {
        guess_recall_free(g);
        return err_set(err, ERR_NOMEM, "recall of guesses: %d layers", n_layer);
    }
    *out = g;
    return 0;
}

void guess_recall_free(guess_recall *g)
{
    if (!g) return;
    mem_free(g->layers);
    mem_free(g->right);
    mem_free(g->guesses);
    mem_free(g);
}

static size_t row_of(const guess_recall *g, int layer) { return (size_t)layer * (size_t)g->k; }

void guess_recall_guess(guess_recall *g, int layer, const int32_t *experts, int n_vram)
{
    memcpy(g->guesses + row_of(g, layer), experts, (size_t)g->k * sizeof *experts);
    g->layers[layer].n_vram = n_vram;
    g->layers[layer].waits = true;
}

void guess_recall_chosen(guess_recall *g, int layer, const int32_t *chosen)
{
    layer_counts *l = &g->layers[layer];
    const int32_t *guess = g->guesses + row_of(g, layer);
    uint64_t *right = g->right + row_of(g, layer);
    if (!l->waits) return;
    for (int r = 0; r < g->k; r++)
        for (int i = 0; i < g->k; i++) right[r] += guess[r] == chosen[i];
    l->tokens++;
    l->in_vram += (uint64_t)l->n_vram;
    l->waits = false;
}

void guess_recall_forget(guess_recall *g)
{
    for (int l = 0; l < g->n_layer; l++) g->layers[l].waits = false;
}

recall_layer guess_recall_counts(const guess_recall *g, int layer)
{
    const layer_counts *l = &g->layers[layer];
    return (recall_layer){ l->tokens, g->right + row_of(g, layer), l->in_vram };
}

int guess_recall_layers(const guess_recall *g) { return g->n_layer; }
int guess_recall_ranks(const guess_recall *g) { return g->k; }
