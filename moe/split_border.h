/* split_border.h - which of a layer's experts cross the bus for a prompt, which the cores compute.
 *
 * Experts with many slots are copied to VRAM, because a copy costs the same for one slot as for a
 * thousand; the cores compute experts with few slots at the same time. Unused experts are skipped.
 * Experts are sorted by slots, and a border divides the list so that both sides finish together, by
 * the plan's speeds, which each layer's times then correct. Pure: no allocation and no clock. */
#ifndef MOE_SPLIT_BORDER_H
#define MOE_SPLIT_BORDER_H

#include "loader/base.h"

/* Speeds of both sides; 0: there is no such side. */
typedef struct split_speeds {
    double bus;                          /* bytes/s to VRAM while the cores compute */
    double read;                         /* bytes/s of experts through the cores, one token, */
    double many;                         /* and multiply-adds/s of theirs: the two add up */
    double gpu;                          /* multiply-adds/s of the GPU's products */
} split_speeds;

typedef struct split_layer {
    double bytes;                        /* of one expert */
    double macs;                         /* multiply-adds of one slot */
    double vram_slots;                   /* slots of experts in VRAM */
    int64_t most_slots;                  /* limit of the cores' buffers */
} split_layer;

/* Seconds of each side for its n experts with so many slots. */
double split_border_cores_s(const split_layer *l, const split_speeds *r, int n, double slots);
double split_border_device_s(const split_layer *l, const split_speeds *r, int n, double slots);

/* Lists the used experts outside VRAM by descending slots; of equals the lower index first. counts
 * [n_expert]: slots; in_vram [n_expert]. Returns their number. */
int split_border_sort(int32_t *list, const int32_t *counts, const bool *in_vram, int n_expert);

/* Returns how many of the first of these n experts cross the bus; the cores compute the others. The
 * smallest border that minimises the time of the slower side. Without cores all cross. Without a
 * bus none does, and the caller must ensure slots <= most_slots. */
int split_border_of(const split_layer *l, const split_speeds *r, const int32_t *list,
                    const int32_t *counts, int n);

/* ---- corrections after a layer --------------------------------------------------------------- */

/* The cores took s seconds for n experts and their slots. */
void split_border_saw_cores(split_speeds *r, const split_layer *l, int n, double slots, double s);

/* The bus carried so many bytes in s seconds. exact false: it finished earlier than it was polled,
 * and the next layer sends a little more. */
void split_border_saw_bus(split_speeds *r, double bytes, double s, bool exact);

/* An idle side gives no measurement: its speed moves towards the plan's, so that a side that was
 * slow for a while is used again. */
void split_border_rested(split_speeds *r, const split_speeds *plan, bool bus, bool cores);

#endif
