/* plan.h - what goes where: a pure function of machine, model and wishes.
 *
 * VRAM first gets what every token needs (dense weights, state, workspace, buffers for prompts and
 * post-fetch), then experts. If all experts fit into page-locked RAM, VRAM is a cache of some of
 * every layer's; so it is if those fit there that are not in VRAM, and a few more: then experts are
 * moved. If not, it has whole banks, the last one perhaps in part; the other experts go to
 * page-locked RAM if they fit there, else RAM is a cache of experts before the file. Nothing
 * here asks the machine anything. Degrades in this order: fewer experts in VRAM, the embedding
 * table in RAM, smaller chunks of prompt, the last layers and the output matrix on the CPU, no GPU.
 * Fails only if even the CPU cannot hold what it needs. RAM is what the process will have taken at
 * its peak, with the program and mapped weights, without a GPU's driver. */
#ifndef TIERS_PLAN_H
#define TIERS_PLAN_H

#include "tiers/speeds.h"

enum { PLAN_MAX_LAYERS = 1024, PLAN_CHUNKS = 7, PLAN_MOST_USED = 32, PLAN_PAD_WHOLE = 2,
       PLAN_SPLIT_TOKENS = 2048, PLAN_FEW_TOKENS = 8, PLAN_SHARED_SLOTS = 64 };

/* Who computes those experts of a prompt of more than PLAN_FEW_TOKENS tokens that are not in VRAM. */
typedef enum prompt_strategy {
    PROMPT_CORES,                        /* the CPU */
    PROMPT_SPLIT,                        /* the GPU those that many tokens chose, after they have
                                          * crossed the bus, and the CPU the others meanwhile; up to
                                          * PLAN_SPLIT_TOKENS tokens */
    PROMPT_BUS                           /* the GPU: whole banks cross the bus */
} prompt_strategy;

typedef struct plan_machine {
    bool gpu;                            /* there is one that could be used */
    uint64_t vram_free;
    uint64_t ram_available;              /* MemAvailable, or a container's limit */
    uint64_t ram_program;                /* that this process has taken already: code, tokenizer; a
                                          * bound of RAM counts it, ram_available does not */
    speeds rate;
} plan_machine;

typedef struct plan_model {
    int n_layer, n_expert, n_used;
    const uint64_t *expert_bytes;        /* [n_layer]: one expert's three slabs; 0: no experts */
    const uint64_t *down_bytes;          /* [n_layer]: of that the down slab */
    const uint64_t *slot_bytes;          /* [n_layer]: RAM for an expert where they are moved; NULL:
                                          * they cannot be */
    uint64_t spare_bytes;                /* RAM for those on their way */
    uint64_t dense;                      /* all other weights, with the embedding table */
    const uint64_t *layer_dense;         /* [n_layer]: of that a layer's; NULL: layers are not
                                          * shared out between CPU and GPU */
    int split_most;                      /* the GPU has at most this many layers, or all of them */
    uint64_t embed;                      /* of dense the table; 0 if it is the output matrix, too */
    uint64_t table;                      /* the table in either case */
    uint64_t token_dense;                /* read for every token */
    double dense_macs, expert_macs;      /* multiply-adds for a token of a prompt: dense, experts */
    bool float_experts;                  /* weights of some are floats: a GPU has no kernels that
                                          * give their vectors in many tokens the CPU's bits */
    uint64_t file_bytes;                 /* dense and all experts */
    uint64_t least_cache;                /* RAM that the store asks for at least; 0: see
                                          * plan_least_cache */
} plan_model;

/* What a session would need that asks for less, with the smallest chunk: for advice. */
typedef struct plan_less {
    int ctx;
    bool q8;                             /* keys and values as q8_0, which they were not */
    uint64_t alone, beside;              /* RAM if the CPU does it all, and beside a GPU */
} plan_less;
enum { PLAN_MOST_LESS = 32 };

/* What the session needs, for chunks of chunk[i] tokens, descending. The first n_long are for a CPU
 * that reads experts from the drive, once for each chunk; the next one is wished for. */
typedef struct plan_session {
    int n_chunk;                         /* 1 .. PLAN_CHUNKS */
    int n_long;                          /* 0 .. n_chunk - 1; 0 with a GPU */
    int chunk[PLAN_CHUNKS];
    uint64_t vram_work[PLAN_CHUNKS];     /* workspace on the GPU */
    uint64_t vram_cold;                  /* more of it if not all experts are there */
    uint64_t ram_work[PLAN_CHUNKS];      /* workspace and lanes if the CPU does it all */
    uint64_t state[PLAN_CHUNKS];         /* KV and recurrent state: with whoever computes */
    uint64_t layer_state[PLAN_CHUNKS][PLAN_MAX_LAYERS];  /* of that a layer's */
    uint64_t snapshots[PLAN_CHUNKS];     /* of the state: always in RAM */
    uint64_t ram_beside[PLAN_CHUNKS];    /* buffers beside a GPU if not all experts are there */
    uint64_t ram_embed[PLAN_CHUNKS];     /* of the embedding table, which the CPU reads by rows */
    int ctx;
    int n_less;                          /* from the largest context on, as it is; then q8 */
    plan_less less[PLAN_MOST_LESS];
} plan_session;

typedef struct plan_wish {
    uint64_t vram, ram;                  /* bounds; UINT64_MAX: what there is */
    bool cpu_only;
    bool gpu_wanted;                     /* even where the CPU alone would be faster */
    bool no_postfetch;
    uint64_t ram_copy;                   /* of the head, repacked: if the CPU computes it, and RAM
                                          * is left */
    uint64_t hot_most;                   /* bytes of experts in VRAM, at most; UINT64_MAX: as many
                                          * as there is room for */
    bool no_hot;                         /* none, and all dense weights: a GPU that has no room for
                                          * these is not used */
    bool whole_banks;                    /* whole banks in VRAM, for good: no expert makes room */
    bool fixed;                          /* speeds decide nothing that shows in results: prompts
                                          * are streamed wherever they can be */
    bool way_wanted;                     /* prompts go this way, as far as they can, whatever is */
    prompt_strategy way;                 /* fastest; fixed goes first */
} plan_wish;

typedef enum plan_place { PLAN_VRAM, PLAN_RAM, PLAN_DISK } plan_place;

/* What takes most of a token's time. */
typedef enum plan_bound {
    BOUND_VRAM, BOUND_CPU, BOUND_PULL, BOUND_DISK, BOUND_LATENCY
} plan_bound;
const char *plan_bound_name(plan_bound b);       /* "CPU memory" */

typedef struct plan {
    bool gpu;
    bool embed_in_ram;                   /* the table; read row by row over the bus */
    int cpu_layers;                      /* so many of the last layers have their dense part, their
                                          * state and their experts on the CPU */
    bool head_in_ram;                    /* the output matrix, too; so it is with any cpu_layers */
    int chunk;
    bool cache;                          /* experts in VRAM make room for others: all experts are in
                                          * page-locked RAM, too, unless they are */
    bool moved;                          /* between VRAM and RAM: then each is in one of both */
    int hot[PLAN_MAX_LAYERS];            /* experts of the layer in VRAM: the first ones, to begin
                                          * with; n_expert of one without any: nothing is missing */
    plan_place place[PLAN_MAX_LAYERS];   /* of the others; PLAN_VRAM if there are none */
    /* bytes */
    uint64_t vram_dense, vram_state, vram_experts;
    uint64_t vram_work;                  /* with vram_cold where it applies */
    uint64_t vram_stage;                 /* both buffers that banks are streamed through */
    int stage_parts;                     /* a bank passes in so many parts; 0: no streaming */
    uint64_t vram_pad;                   /* where post-fetched slabs go: n_used downs of the largest
                                          * layer, and PLAN_PAD_WHOLE whole experts */
    uint64_t ram_experts;                /* whole banks, if only some of it is in VRAM, too; or
                                          * the cache: at least plan_least_cache. Page-locked
                                          * with a GPU */
    uint64_t ram_other;                  /* dense weights and state of the CPU, or buffers */
    uint64_t ram_program;                /* as the machine says */
    uint64_t ram_copy;                   /* as wished for, or 0 */
    uint64_t disk_experts;               /* bytes of experts that have no place but the file */
    /* post-fetch: of m cold experts fetch the down slabs of fetch_down[m], and all of fetch_all[m]
     * others */
    uint8_t fetch_down[PLAN_MOST_USED + 1], fetch_all[PLAN_MOST_USED + 1];
    /* prompts of this many tokens and more are streamed, those below with split_from and more are
     * split; below, the CPU computes their experts */
    int stream_from, split_from;
    /* of those with up to so many tokens, the GPU computes experts by the arithmetic contract, too,
     * so that it does not show who computed which: sizes and wishes decide, never a speed. 0: all
     * experts are in VRAM; INT_MAX: always */
    int contract_to;
    /* expectation, at an even choice of experts */
    double decode_tok_s, prefill_tok_s;  /* prefill: of one whole chunk */
    double t_dense, t_hot, t_cpu, t_pull, t_disk, t_hop;         /* s per token; the first is alone,
                                          * the next four overlap */
    double limit_tok_s;                  /* what the links alone would allow: the formula of the
                                          * design without latencies */
    plan_bound bound;
    speeds rate;                         /* what it was made with */
} plan;

/* ERR_NOMEM says what is needed, what there is, and what would help. */
int plan_make(plan *out, const plan_machine *m, const plan_model *what, const plan_session *s,
              const plan_wish *w, err_ctx *err);

prompt_strategy plan_prompt_way(const plan *p, int n);   /* of a batch of n tokens */

/* The rule for prompts, by shapes alone: the most tokens of a batch in which, unless somebody asks
 * for it, the CPU computes experts of the GPU's layers at all, PLAN_SHARED_SLOTS for each expert.
 * Up to here every way has the same bits, so speeds may choose among them; above it only one is
 * gone, and its kernels may be the fastest. */
int plan_most_shared(int n_used, int n_expert);
#define PLAN_CONTRACT_SPEED 0.4          /* of the GPU's speed with experts, if the contract binds
                                          * it: measured */

/* The first layer that has experts, and how many have. */
int plan_first_bank(const plan_model *what);
int plan_n_bank(const plan_model *what);

int plan_gpu_layers(const plan *p, int n_layer);         /* whose dense part is on the GPU: the
                                                          * first ones */
uint64_t plan_all_experts(const plan_model *what);       /* bytes */
uint64_t plan_vram(const plan *p);       /* all that is taken of either */
uint64_t plan_ram(const plan *p);
bool plan_uses_drive(const plan *p, int n_layer);        /* experts of some layer are read when they
                                                          * are wanted */

/* The least cache of experts that can work: those of a token in one layer twice. */
uint64_t plan_least_cache(const plan_model *what);

/* How many of m cold experts to fetch, by the measured speeds: the share pull / (pull + cpu) of
 * their bytes, first downs, then whole experts, PLAN_PAD_WHOLE of these at most. */
void plan_fetch(int *n_down, int *n_all, int m, uint64_t expert_bytes, uint64_t down_bytes,
                const speeds *rate);
#define PLAN_PULL_MARGIN 0.85            /* of the bus is counted on: what comes late was in vain */

#endif
