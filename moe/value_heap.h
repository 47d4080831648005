/* value_heap.h - the frame of least value among many.
 *
 * A binary heap with an index of frames: adding, removing or changing a frame costs O(log n). Of
 * equal values the earlier time is less, then the lower number: the order is total, so it does not
 * depend on the heap's history. The caller owns the storage. */
#ifndef MOE_VALUE_HEAP_H
#define MOE_VALUE_HEAP_H

#include "loader/base.h"

typedef struct value_rank {
    double value;
    int64_t when;
    int frame;
} value_rank;

typedef struct value_heap {
    value_rank *ranks;                   /* capacity for all its frames; the first is the least */
    int *index;                          /* of a frame: its index in ranks, or -1. Set by the caller
                                          * to -1 for all; heaps without a frame in common may share
                                          * it */
    int n;
} value_heap;

void value_heap_put(value_heap *h, value_rank r);        /* adds a frame, or changes its rank */
void value_heap_remove(value_heap *h, int frame);        /* no effect if it is not in the heap */

/* Restores the heap after values or times were changed. O(n). */
void value_heap_order(value_heap *h);

#endif
