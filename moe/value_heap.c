/* value_heap.c - sifting up and down; ranks[i] is never greater than ranks[2 * i + 1] and
 * ranks[2 * i + 2]. Values lie in the heap itself: a sift reads nothing else. */
#include "moe/value_heap.h"

static bool is_less(const value_rank *a, const value_rank *b)
{
    if (a->value != b->value) return a->value < b->value;
    return a->when != b->when ? a->when < b->when : a->frame < b->frame;
}

static void set(value_heap *h, int i, value_rank r)
{
    h->ranks[i] = r;
    h->index[r.frame] = i;
}

/* Puts r where ranks[i] is a gap, or above it. */
static void sift_up(value_heap *h, int i, value_rank r)
{
    while (i > 0 && is_less(&r, &h->ranks[(i - 1) / 2])) {
        set(h, i, h->ranks[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    set(h, i, r);
}

/* ... or below it. */
static void sift_down(value_heap *h, int i, value_rank r)
{
    for (int child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && is_less(&h->ranks[child + 1], &h->ranks[child])) child++;
        if (!is_less(&h->ranks[child], &r)) break;
        set(h, i, h->ranks[child]);
    }
    set(h, i, r);
}

static void sift(value_heap *h, int i, value_rank r)
{
    if (i > 0 && is_less(&r, &h->ranks[(i - 1) / 2])) sift_up(h, i, r);
    else sift_down(h, i, r);
}

void value_heap_put(value_heap *h, value_rank r)
{
    if (h->index[r.frame] >= 0) sift(h, h->index[r.frame], r);
    else sift_up(h, h->n++, r);
}

void value_heap_remove(value_heap *h, int frame)
{
    const int i = h->index[frame];
    if (i < 0) return;
    h->index[frame] = -1;
    h->n--;
    if (i < h->n) sift(h, i, h->ranks[h->n]);    /* the last one fills the gap */
}

void value_heap_order(value_heap *h)
{
    for (int i = h->n / 2 - 1; i >= 0; i--) sift_down(h, i, h->ranks[i]);
}
