/* expert_store_internal.h - what expert_store.c, expert_store_load.c (LOADED) and
 * expert_store_cache.c (CACHED) share; for them alone. */
#ifndef MOE_EXPERT_STORE_INTERNAL_H
#define MOE_EXPERT_STORE_INTERNAL_H

#include "moe/expert_store.h"

enum { ALL_SLABS = (1 << SLAB_COUNT) - 1, UP_SLABS = 1 << SLAB_GATE | 1 << SLAB_UP };

/* What is in a place of CACHED, or being read into it. Slabs are bits. */
typedef struct store_place {
    int layer, expert;                   /* layer -1: free */
    uint8_t here, asked;                 /* slabs that are present; those and the ones being read */
    bool kept;                           /* held for its reads alone, until they are done */
    bool ahead;                          /* and nobody has wanted it yet */
    bool guessed;                        /* read early on a guess, since the last want */
    bool fresh;                          /* never wanted since it got the place */
    int wanted;                          /* how often it is in the last want */
} store_place;

typedef struct store_wish { int place; unsigned told; } store_wish;

struct expert_store {
    const expert_banks *banks;           /* borrowed */
    pool *team;
    store_kind kind;
    bool *served;                        /* [n_layer] */
    reader *r;                           /* NULL: the model is in memory, or nothing is read */
    char reader_name[64];
    char note[256];
    store_stats stats;

    uint8_t *arena;                      /* NULL: none */
    uint64_t arena_bytes, locked;        /* how many of its first bytes are page-locked */
    struct gpu *device;
    uint64_t *table;                     /* [n_layer, n_expert, SLAB_COUNT], or NULL */

    /* LOADED */
    uint8_t **loaded;                    /* [n_layer, SLAB_COUNT]: where the weight tensor begins;
                                          * NULL: */
    ram_frames *ram;                     /* NULL: experts are not moved */

    /* CACHED */
    uint64_t room_at[SLAB_COUNT];        /* of a place: where the room of a slab begins */
    uint64_t slot_bytes;
    int n_frame, n_ahead;
    expert_cache *cache;
    int last_layer;                      /* of the last want, or -1: shows when a token has
                                          * passed */
    store_place *places;
    store_wish *wishes;                  /* [n_frame]: the last want */
    int n_wish;
    int guesses[STORE_MOST_EARLY], n_guess;      /* places read early since the last want */
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

/* Sets the table's entries of an expert: addresses of those of these slabs that are page-locked,
 * else 0. NULL: all 0. */
void store_publish(expert_store *s, int layer, int expert, const expert_slabs *at);

/* Memory for the arena, rounded to whole huge pages. */
int store_map(expert_store *s, uint64_t bytes, err_ctx *err);
/* pages_touch between two offsets in the arena. */
void store_touch(expert_store *s, uint64_t from, uint64_t to);
void store_lock(expert_store *s);        /* for the device, as far as the system allows */
void store_add_note(expert_store *s, const char *text);

int store_load(expert_store *s, const store_options *o, err_ctx *err);
/* Slots that nobody is in. */
int store_make_ram_frames(expert_store *s, const int *n_in_vram, err_ctx *err);

int store_cache_create(expert_store *s, uint64_t cache_bytes, cache_policy policy, err_ctx *err);
void store_cache_free(expert_store *s);
bool store_cache_find(const expert_store *s, int layer, int expert, expert_slabs *out);
/* Where slabs lie in a place, and how large a place is, so that experts of all served layers fit;
 * served NULL: all. */
uint64_t store_slot(uint64_t room_at[SLAB_COUNT], const expert_banks *b, const bool *served);

#endif
