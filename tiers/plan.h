/* plan.h - which bytes go to which tier: a pure function of machine, model, session and request.
 *
 * VRAM first gets what every token needs: dense weights, state, workspace, buffers for prompts and
 * post-fetch. The rest of it is for experts, in one of three forms:
 *   cache   page-locked RAM holds all experts; VRAM holds copies of some of each layer
 *   moved   RAM holds the experts that VRAM does not hold; they are exchanged
 *   banks   VRAM holds whole banks, the last one perhaps in part. The other experts are in
 *           page-locked RAM, or RAM is a cache of experts before the file
 * Where memory is short the plan gives up, in this order: experts in VRAM, the embedding table in
 * VRAM, large chunks of prompts, the last layers and the head on the GPU, the GPU. It fails only if
 * the CPU alone lacks RAM. RAM is counted as the peak of the process, with the program and mapped
 * weights, without a GPU's driver. All sizes are bytes. Any thread. */
#ifndef TIERS_PLAN_H
#define TIERS_PLAN_H

#include "tiers/speeds.h"

enum { PLAN_MAX_LAYERS = 1024, PLAN_CHUNKS = 7, PLAN_MOST_USED = 32, PLAN_PAD_WHOLE = 2,
       PLAN_SPLIT_TOKENS = 2048, PLAN_FEW_TOKENS = 8, PLAN_SHARED_SLOTS = 64 };

/* What computes the experts outside VRAM for a prompt of more than PLAN_FEW_TOKENS tokens. */
typedef enum prompt_strategy {
    PROMPT_CORES,                        /* the CPU */
    PROMPT_SPLIT,                        /* the GPU, after a copy, experts with many slots; the CPU
                                          * the others; up to PLAN_SPLIT_TOKENS tokens */
    PROMPT_BUS                           /* the GPU: whole banks are copied */
} prompt_strategy;

typedef struct plan_machine {
    bool gpu;                            /* the machine has a usable GPU */
    uint64_t vram_free;
    uint64_t ram_available;              /* MemAvailable, or a container's limit */
    uint64_t ram_program;                /* RAM already used by this process (code, tokenizer): part
                                          * of plan_wish.ram, not of ram_available */
    speeds rate;
} plan_machine;

typedef struct plan_model {
    int n_layer, n_expert, n_used;
    const uint64_t *expert_bytes;        /* [n_layer]: one expert's three slabs; 0: no experts */
    const uint64_t *down_bytes;          /* [n_layer]: its down slab alone */
    const uint64_t *cached_bytes;        /* [n_layer]: a frame of the cache in VRAM */
    const uint64_t *frame_bytes;         /* [n_layer]: a RAM frame where experts are moved; NULL:
                                          * they cannot be moved */
    uint64_t spare_bytes;                /* RAM frames for experts that are being moved */
    uint64_t dense;                      /* all dense weights, with the embedding table */
    const uint64_t *layer_dense;         /* [n_layer]: a layer's dense weights; NULL: all layers are
                                          * on one processor */
    int split_most;                      /* the GPU has at most this many layers, or all of them */
    uint64_t embed;                      /* the embedding table; 0 if it is also the head */
    uint64_t table;                      /* the embedding table in both cases */
    uint64_t token_dense;                /* dense bytes read for each token */
    double dense_macs, expert_macs;      /* multiply-adds for a token of a prompt */
    bool float_experts;                  /* some experts are floats: for many tokens the GPU has no
                                          * kernels with the CPU's bits */
    uint64_t file_bytes;                 /* dense weights and all experts */
    uint64_t least_cache;                /* the store's smallest cache in RAM; 0: the default of
                                          * plan_least_cache */
} plan_model;

/* A session that needs less memory, with the smallest chunk, for error messages. */
typedef struct plan_less {
    int ctx;
    bool q8;                             /* keys and values become q8_0 */
    uint64_t ram_cpu, ram_gpu;           /* RAM if the CPU computes all, and with a GPU */
} plan_less;
enum { PLAN_MOST_LESS = 32 };

/* What the session needs for chunks of so many tokens. */
typedef struct plan_chunk {
    int tokens;
    uint64_t vram_work;                  /* workspace on the GPU */
    uint64_t ram_work;                   /* workspace if the CPU computes layers */
    uint64_t ram_with_gpu;               /* buffers in RAM with a GPU if some experts are cold */
    uint64_t ram_embed;                  /* rows of the embedding table that the CPU reads */
    uint64_t state;                      /* KV and recurrent state, next to their processor */
    const uint64_t *layer_state;         /* [n_layer]; NULL: with plan_model.layer_dense NULL */
    uint64_t snapshots;                  /* of the state: always in RAM */
} plan_chunk;

/* No chunk needs less than the next one. The first n_long are for a CPU that reads the experts from
 * the drive once for each chunk; the next one is preferred. */
typedef struct plan_session {
    int n_chunk;                         /* 1 .. PLAN_CHUNKS, by descending tokens */
    int n_long;                          /* 0 .. n_chunk - 1; 0 with a GPU */
    plan_chunk chunk[PLAN_CHUNKS];
    uint64_t vram_cold;                  /* more workspace on the GPU if some experts are cold */
    uint64_t page_bytes, n_page, n_page_own;     /* of the state, pages that contexts take as they
                                          * grow; so many are theirs from the start. 0: none */
    int ctx;
    int n_less;                          /* smaller contexts, descending; then those with q8_0 */
    plan_less less[PLAN_MOST_LESS];
} plan_session;

typedef struct plan_wish {
    uint64_t vram, ram;                  /* limits; UINT64_MAX: all available memory */
    bool cpu_only;
    bool gpu_wanted;                     /* even if the CPU alone would be faster */
    bool no_postfetch;
    uint64_t ram_copy;                   /* of the repacked head: if the CPU computes it and RAM is
                                          * left */
    uint64_t hot_most;                   /* limit of experts in VRAM; UINT64_MAX: all that fit */
    bool no_hot;                         /* no experts in VRAM, but all dense weights: a GPU that
                                          * cannot hold these is not used */
    bool whole_banks;                    /* whole banks in VRAM, never exchanged */
    bool fixed;                          /* results do not depend on measured speeds: prompts are
                                          * streamed if possible */
    bool strategy_wanted;                /* prompts have `strategy` if possible; fixed overrides
                                          * it */
    prompt_strategy strategy;
} plan_wish;

typedef enum plan_tier { PLAN_VRAM, PLAN_RAM, PLAN_DISK } plan_tier;

/* A memory: what may be taken of it, and what is taken. */
typedef struct plan_pool {
    uint64_t budget;                     /* with the program; of the drive: no limit */
    double rate, latency;                /* of experts: bytes per s, and s for a layer */
    uint64_t program;                    /* plan_machine.ram_program */
    uint64_t dense, state;               /* state: in RAM with the snapshots */
    uint64_t work;                       /* buffers for prompts, and for cold experts */
    uint64_t stage;                      /* both buffers that banks are streamed through */
    uint64_t pad;                        /* post-fetched slabs: n_used down slabs of the largest
                                          * layer, and PLAN_PAD_WHOLE whole experts */
    uint64_t experts;                    /* RAM: page-locked with a GPU; if some are on the drive, a
                                          * cache. Drive: those that are only in the file */
    uint64_t copy;                       /* plan_wish.ram_copy, or 0 */
} plan_pool;

/* Where the parts of a layer are. The number of its experts in VRAM is plan.hot. */
typedef struct plan_place {
    plan_tier dense;                     /* dense weights and state */
    plan_tier cold;                      /* experts outside VRAM; PLAN_VRAM: none */
} plan_place;

/* What takes most of a token's time. */
typedef enum plan_bound {
    BOUND_VRAM, BOUND_CPU, BOUND_PULL, BOUND_DISK, BOUND_LATENCY
} plan_bound;
const char *plan_bound_name(plan_bound b);       /* "CPU memory" */

typedef struct plan {
    bool gpu;
    int chunk;
    plan_pool vram, ram, drive;
    plan_place place[PLAN_MAX_LAYERS];   /* the first layers are on the GPU, the others not */
    plan_tier head, embed;               /* the head is in RAM if any layer's dense part is; a GPU
                                          * reads rows of a table in RAM over the bus */
    int hot[PLAN_MAX_LAYERS];            /* experts of the layer in VRAM at first: 0 .. hot - 1;
                                          * n_expert for a layer without experts */
    bool cache;                          /* experts in VRAM are exchanged for others; page-locked
                                          * RAM has all experts, or with `moved` those outside
                                          * VRAM */
    bool moved;
    uint64_t vram_lent;                  /* of the experts in VRAM, with a cache: frames that it
                                          * gives up to contexts as they grow */
    uint64_t pages_own;                  /* with vram_lent: pages that contexts have anyway */
    int stage_ranges;                    /* a bank is streamed in so many ranges; 0: no streaming */
    /* post-fetch: of m cold experts the down slabs of fetch_down[m], and fetch_all[m] other experts
     * whole */
    uint8_t fetch_down[PLAN_MOST_USED + 1], fetch_all[PLAN_MOST_USED + 1];
    /* prompts of stream_from tokens or more are streamed; shorter ones of split_from or more are
     * split; the CPU computes the experts of the others */
    int stream_from, split_from;
    /* up to this many tokens, the GPU too computes experts by the contract, so that results do not
     * depend on the strategy; never decided by a speed. 0: all experts are in VRAM; INT_MAX:
     * always */
    int contract_to;
    /* prediction, if all experts are chosen equally often */
    double decode_tok_s, prefill_tok_s;  /* prefill: of one whole chunk */
    double t_dense, t_hot, t_cpu, t_pull, t_disk, t_hop; /* seconds per token: dense alone, the next
                                          * four overlap */
    double limit_tok_s;                  /* the links' bytes alone, without latencies */
    plan_bound bound;
    speeds rate;                         /* the speeds that the plan was made with */
} plan;

/* Returns 0, or < 0 with *err filled and *out zeroed. ERR_NOMEM says what is needed, what is
 * available and what would help; ERR_RANGE and ERR_UNSUPPORTED: impossible sizes. */
int plan_make(plan *out, const plan_machine *m, const plan_model *model, const plan_session *s,
              const plan_wish *w, err_ctx *err);

prompt_strategy plan_prompt_strategy(const plan *p, int n);      /* of a batch of n tokens */

/* The longest batch whose experts the CPU may compute for the GPU's layers, unless the request sets
 * a strategy: PLAN_SHARED_SLOTS slots for each expert. Up to this length all strategies give the
 * same bits, so speeds may choose; longer batches have one strategy and faster kernels. */
int plan_most_shared(int n_used, int n_expert);
#define PLAN_CONTRACT_SPEED 0.4          /* speed of the GPU's experts under the contract, relative
                                          * to without: measured */

int plan_n_bank(const plan_model *model);        /* layers with experts */
int plan_gpu_layers(const plan *p, int n_layer); /* first layers, with the dense part on the GPU */
uint64_t plan_all_experts(const plan_model *model);
uint64_t plan_vram(const plan *p);       /* all that is taken of its pool */
uint64_t plan_ram(const plan *p);
bool plan_uses_drive(const plan *p, int n_layer);        /* some layer has PLAN_DISK */

/* The smallest cache of experts that works: those of one token in one layer, twice. */
uint64_t plan_least_cache(const plan_model *model);

/* The number of m cold experts to fetch at these speeds: the fraction pull / (pull + cpu) of their
 * bytes, first down slabs, then at most PLAN_PAD_WHOLE whole experts. */
void plan_fetch(int *n_down, int *n_all, int m, uint64_t expert_bytes, uint64_t down_bytes,
                const speeds *rate);
#define PLAN_PULL_MARGIN 0.85            /* of the bus is planned for: late slabs are wasted */

#endif
