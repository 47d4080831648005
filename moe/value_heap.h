/* value_heap.h - the frame of least value among many.
 *
 * A binary heap that knows where each frame is in it: to put a frame in, to take it out or to give
 * it another value costs O(log n). Of equal values the earlier time is the lesser, then the lower
 * number: the order is total, so it does not depend on how the heap came about. Storage is the
 * caller's. */
#ifndef MOE_VALUE_HEAP_H
#define MOE_VALUE_HEAP_H

#include "loader/base.h"

typedef struct value_rank {
    double value;
    int64_t when;
    int frame;
} value_rank;

typedef struct value_heap {
    value_rank *ranks;                   /* room for all its frames; the first is the least */
    int *index;                          /* of a frame: its index in ranks, or -1. Set by the caller
                                          * to -1 for all; heaps without a frame in common may share
                                          * it */
    int n;
} value_heap;

void value_heap_put(value_heap *h, value_rank r);        /* in, or to another rank */
void value_heap_remove(value_heap *h, int frame);        /* if it is in */

/* Makes a heap again of ranks whose values or times were changed. O(n). */
void value_heap_order(value_heap *h);

#endif
