/* expert_store_internal.h - for expert_store.c, expert_store_load.c (LOADED) and
 * expert_store_cache.c (CACHED) alone. */
#ifndef MOE_EXPERT_STORE_INTERNAL_H
#define MOE_EXPERT_STORE_INTERNAL_H

#include "moe/expert_store.h"

enum { ALL_SLABS = (1 << SLAB_COUNT) - 1, UP_SLABS = 1 << SLAB_GATE | 1 << SLAB_UP };

/* A frame of CACHED. Slabs are bits. */
typedef struct store_frame {
    int layer, expert;                   /* layer -1: free */
    uint8_t present, requested;          /* slabs that are complete; these and those being read */
    bool kept;                           /* held until its reads are complete, without a request */
    bool ahead;                          /* kept, read early and not yet requested */
    bool predicted;                      /* read early by prediction, since the last request */
    bool fresh;                          /* not yet requested since the expert got the frame */
    int wanted;                          /* number of times in the last request */
} store_frame;

/* An expert of the last request: its frame, and the parts that expert_store_next has reported. */
typedef struct store_want { int frame; unsigned reported; } store_want;

struct expert_store {
    const expert_banks *banks;           /* borrowed */
    pool *team;
    store_kind kind;
    bool *served;                        /* [n_layer] */
    reader *r;                           /* NULL: the model is in memory, or MAPPED */
    char reader_name[64];
    char note[256];
    store_stats stats;

    uint8_t *arena;                      /* NULL: none */
    uint64_t arena_bytes, locked;        /* the first `locked` bytes are page-locked */
    struct gpu *device;
    uint64_t *table;                     /* [n_layer, n_expert, SLAB_COUNT], or NULL */

    /* LOADED */
    uint8_t **loaded;                    /* [n_layer, SLAB_COUNT]: address of the weight tensor, if
                                          * experts are not moved */
    ram_frames *ram;                     /* if they are moved, else NULL */

    /* CACHED */
    uint64_t slab_start[SLAB_COUNT];     /* offset of a slab's pages in a frame */
    uint64_t frame_bytes;
    int n_frame, n_ahead;
    expert_cache *cache;
    int last_layer;                      /* of the last request, or -1: detects the next token */
    store_frame *frames;
    store_want *wants;                   /* [n_frame]: the last request */
    int n_want;
    int early[STORE_MOST_EARLY], n_early;        /* frames read early since the last request */
    int *list;                           /* [n_frame] scratch */
    read_job *jobs;                      /* [n_frame, SLAB_COUNT] scratch */
};

static inline const expert_bank *store_bank(const expert_store *s, int layer)
{
    return &s->banks->of[layer];
}

/* Bytes from the beginning of the weight tensor to an expert's slab in it. */
static inline uint64_t slab_offset(const expert_bank *b, expert_slab slab, int expert)
{
    return (uint64_t)(expert_slab_data(b, slab, expert) - b->weight[slab]->data);
}

/* Sets the table's entries of an expert: addresses of the slabs that are page-locked, else 0.
 * NULL: all 0. */
void store_publish(expert_store *s, int layer, int expert, const expert_slabs *at);

/* Memory for the arena, rounded to whole huge pages. */
int store_map(expert_store *s, uint64_t bytes, err_ctx *err);
/* pages_touch between two offsets in the arena. */
void store_touch(expert_store *s, uint64_t from, uint64_t to);
void store_lock(expert_store *s);        /* for the device, as far as the system allows */
void store_add_note(expert_store *s, const char *text);

int store_load(expert_store *s, const store_options *o, err_ctx *err);
/* Creates RAM frames, all free. */
int store_make_ram_frames(expert_store *s, const int *n_in_vram, err_ctx *err);

int store_cache_create(expert_store *s, uint64_t cache_bytes, cache_policy policy, err_ctx *err);
void store_cache_free(expert_store *s);
bool store_cache_find(const expert_store *s, int layer, int expert, expert_slabs *out);
/* Computes the layout of a frame that fits experts of all served layers (NULL: all layers). Returns
 * its bytes. */
uint64_t store_frame_layout(uint64_t slab_start[SLAB_COUNT], const expert_banks *b,
                            const bool *served);

#endif
