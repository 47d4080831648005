/* place_heap.h - the place of least value among many.
 *
 * A binary heap that knows where each place is in it: to put a place in, to take it out or to give
 * it another value costs O(log n). Of equal values the earlier time is the lesser, then the lower
 * number: the order is total, so it does not depend on how the heap came about. Storage is the
 * caller's. */
#ifndef MOE_PLACE_HEAP_H
#define MOE_PLACE_HEAP_H

#include "loader/base.h"

typedef struct place_rank {
    double value;
    int64_t when;
    int place;
} place_rank;

typedef struct place_heap {
    place_rank *ranks;                   /* room for all its places; the first is the least */
    int *at;                             /* of a place: its index in ranks, or -1. Set by the caller
                                          * to -1 for all; heaps without a place in common may share
                                          * it */
    int n;
} place_heap;

void place_heap_put(place_heap *h, place_rank r);        /* in, or to another rank */
void place_heap_remove(place_heap *h, int place);        /* if it is in */

/* Makes a heap again of ranks whose values or times were changed. O(n). */
void place_heap_order(place_heap *h);

#endif
