/* value_heap.h - the place of least value among many.
 *
 * A binary heap that knows where each place is in it: to put a place in, to take it out or to give
 * it another value costs O(log n). Of equal values the earlier time is the lesser, then the lower
 * number: the order is total, so it does not depend on how the heap came about. Storage is the
 * caller's. */
#ifndef MOE_VALUE_HEAP_H
#define MOE_VALUE_HEAP_H

#include "loader/base.h"

typedef struct value_rank {
    double value;
    int64_t when;
    int place;
} value_rank;

typedef struct value_heap {
    value_rank *ranks;                   /* room for all its places; the first is the least */
    int *at;                             /* of a place: its index in ranks, or -1. Set by the caller
                                          * to -1 for all; heaps without a place in common may share
                                          * it */
    int n;
} value_heap;

void value_heap_put(value_heap *h, value_rank r);        /* in, or to another rank */
void value_heap_remove(value_heap *h, int place);        /* if it is in */

/* Makes a heap again of ranks whose values or times were changed. O(n). */
void value_heap_order(value_heap *h);

#endif
