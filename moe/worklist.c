/* worklist.c - groups a layer's slots by expert with one counting sort. */
#include "moe/worklist.h"

#include <assert.h>
#include <string.h>

int worklist_create(worklist **out, int n_expert, int max_slot, err_ctx *err)
{
    worklist *w = mem_zalloc(sizeof *w);
    *out = NULL;
    if (!w) return err_set(err, ERR_NOMEM, "worklist: %zu bytes", sizeof *w);
    const int most = n_expert < max_slot ? n_expert : max_slot;
    w->n_expert = n_expert;
    w->cap_slot = max_slot;
    w->items = mem_array((size_t)most, sizeof *w->items);
    w->slots = mem_array((size_t)max_slot, sizeof *w->slots);
    w->count = mem_array((size_t)n_expert, sizeof *w->count);
    if (!w->items || !w->slots || !w->count) {
        worklist_free(w);
        return err_set(err, ERR_NOMEM, "worklist: %d slots, %d experts", max_slot, n_expert);
    }
    *out = w;
    return 0;
}

void worklist_free(worklist *w)
{
    if (!w) return;
    mem_free(w->items);
    mem_free(w->slots);
    mem_free(w->count);
    mem_free(w);
}

void worklist_fill_some(worklist *w, const int32_t *ids, int n_token, int k, const bool *wanted)
{
    const int n = n_token * k;
    memset(w->count, 0, (size_t)w->n_expert * sizeof *w->count);
    for (int i = 0; i < n; i++) w->count[ids[i]]++;
    w->n_item = 0;
    int first = 0;
    for (int e = 0; e < w->n_expert; e++) {
        if (w->count[e] == 0 || (wanted && !wanted[e])) continue;
        w->items[w->n_item++] = (work_item){ .expert = e, .first = first, .n = w->count[e] };
        first += w->count[e];
        w->count[e] = first - w->count[e];       /* from now on: where its next slot goes */
    }
    assert(first <= w->cap_slot);
    for (int i = 0; i < n; i++)
        if (!wanted || wanted[ids[i]]) w->slots[w->count[ids[i]]++] = i;
    w->n_slot = first;
    w->k = k;
}

void worklist_fill(worklist *w, const int32_t *ids, int n_token, int k)
{
    worklist_fill_some(w, ids, n_token, k, NULL);
}
