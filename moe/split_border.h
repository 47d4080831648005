/* split_border.h - which of a layer's experts cross the bus for a prompt, which the cores compute.
 *
 * An expert that many tokens chose is worth a copy to VRAM: the copy costs the same for one token
 * as for a thousand. One that few chose is computed by the cores meanwhile. One that nobody chose
 * is left alone. In the order of how many chose them, one border divides the two; it is where both
 * sides end together, by the speeds that were measured, in the plan and then layer by layer. Pure:
 * no memory, no clock, no thread of its own. */
#ifndef MOE_SPLIT_BORDER_H
#define MOE_SPLIT_BORDER_H

#include "loader/base.h"

/* What both sides can do; 0: there is no such side. */
typedef struct split_speeds {
    double bus;                          /* bytes/s to VRAM while the cores compute */
    double read;                         /* bytes/s of experts through the cores, one token, */
    double many;                         /* and multiply-adds/s of theirs: the two add up */
    double gpu;                          /* multiply-adds/s of the GPU's products */
} split_speeds;

typedef struct split_layer {
    double bytes;                        /* of one expert */
    double macs;                         /* multiply-adds of one slot */
    double there;                        /* slots of experts that are in VRAM already */
    int64_t most_slots;                  /* that the cores have room for */
} split_layer;

/* Seconds that either side takes for its experts of the layer. */
double split_border_cores_s(const split_layer *l, const split_speeds *r, int n, double slots);
double split_border_device_s(const split_layer *l, const split_speeds *r, int n, double slots);

/* The used experts that have no place in VRAM, those with most slots first, the lower number first
 * of equals. counts [n_expert]: slots; there [n_expert]. Returns how many. */
int split_border_sort(int32_t *list, const int32_t *counts, const bool *there, int n_expert);

/* How many of these n experts cross the bus: the first so many; the others are the cores'. The
 * least of all borders at which the later side ends soonest. Without cores all cross; without a bus
 * none does, and most_slots is the caller's trouble. */
int split_border_of(const split_layer *l, const split_speeds *r, const int32_t *list,
                    const int32_t *counts, int n);

/* ---- what a layer taught --------------------------------------------------------------------- */

/* The cores took s seconds for n experts and their slots. */
void split_border_saw_cores(split_speeds *r, const split_layer *l, int n, double slots, double s);

/* The bus had carried this many bytes s seconds after it began; exact: and not before. If not, it
 * was done before somebody looked, and the next layer sends a little more. */
void split_border_saw_bus(split_speeds *r, double bytes, double s, bool exact);

/* A side that had nothing to do showed nothing: its speed goes back towards the plan's, so that one
 * that was slow for a while is tried again. */
void split_border_rested(split_speeds *r, const split_speeds *plan, bool bus, bool cores);

#endif
