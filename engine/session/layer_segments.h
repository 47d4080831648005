/* layer_segments.h - in which memory the layers of a session are: runs of layers, each in a space
 * of its own. */
#ifndef ENGINE_SESSION_LAYER_SEGMENTS_H
#define ENGINE_SESSION_LAYER_SEGMENTS_H

#include "tiers/mem_space.h"

enum { SEGMENTS_MOST = 8 };

typedef struct layer_segments {
    int n;
    struct layer_segment {
        int end;                         /* layers from the end of the one before, up to end - 1 */
        mem_space *where;                /* borrowed */
        struct page_pool *pages;         /* gives pages to layers that keep every position, as a
                                          * session grows; NULL: each session has all of its own.
                                          * Borrowed */
    } of[SEGMENTS_MOST];
} layer_segments;

/* Appends a segment unless it would be empty. */
static inline void segments_add(layer_segments *s, int end, mem_space *where)
{
    if (end <= (s->n > 0 ? s->of[s->n - 1].end : 0)) return;
    s->of[s->n++] = (struct layer_segment){ end, where, NULL };
}

/* The segments, or if there are none, all layers in RAM. */
static inline layer_segments segments_or_ram(const layer_segments *s, int n_layer)
{
    layer_segments all = *s;
    if (all.n == 0) segments_add(&all, n_layer, mem_space_ram());
    return all;
}

static inline int segment_first(const layer_segments *s, int i)
{
    return i > 0 ? s->of[i - 1].end : 0;
}

static inline int segment_of(const layer_segments *s, int layer)
{
    int i = 0;
    while (i < s->n - 1 && layer >= s->of[i].end) i++;
    return i;
}

#endif
