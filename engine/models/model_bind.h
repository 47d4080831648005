/* model_bind.h - functions with which an architecture declares the content of its files.
 *
 * Private to engine/models. An architecture has tables: rows of keys with their ranges, rows of
 * tensors with their shapes. bind_keys and bind_rows check every row; messages name the key or
 * tensor. Every function returns 0, or < 0 with the binder's err filled. */
#ifndef ENGINE_MODELS_MODEL_BIND_H
#define ENGINE_MODELS_MODEL_BIND_H

#include "engine/models/model.h"

typedef struct binder {
    model *m;                            /* the result */
    const gguf *file;
    const char *arch;                    /* general.architecture: prefix of the model's keys */
    err_ctx *err;
} binder;

/* The bind function of each architecture fills hp and layers of a zeroed model. */
extern const model_family qwen3next_family, gptoss_family, qwen3moe_family, olmoe_family,
    llama_family, qwen35moe_family, glm4moe_family, gemma4_family;

/* Upper limits of keys. The product of any two is far below 2^63. */
enum {
    MAX_BLOCKS = 1024, MAX_EXPERTS = 4096, MAX_HEADS = 4096, MAX_SIZE = 1 << 20, MAX_CONV = 64
};

/* Short names, for tables. */
typedef enum bind_need { REQUIRED, OPTIONAL } bind_need;

/* ---- keys; names come without "<arch>." ----------------------------------------------------- */

enum { BIND_KEY_CAP = 128 };

/* Writes "<arch>.<name>" to dst, which has BIND_KEY_CAP bytes. Returns dst. */
const char *bind_key_name(char *dst, const binder *b, const char *name);

typedef struct bind_key {
    const char *name;
    int64_t lo, hi;
    bind_need need;                      /* if an OPTIONAL key is absent, *to is unchanged */
    int *to;
} bind_key;
int bind_keys(const binder *b, const bind_key *keys, int n_key);

/* Reads a number > 0, or >= 0 if zero_ok. If the key is absent, *to is unchanged; REQUIRED:
 * error. */
int bind_float(const binder *b, double *to, const char *name, bool zero_ok, bind_need need);

/* Reads the numbers of layers and of trailing MTP blocks, and allocates the array of layers. */
int bind_blocks(binder *b);

int bind_no_mtp(const binder *b);        /* refuses next-token blocks */

/* Reads ctx_train and n_embd. */
int bind_sizes(binder *b);

/* Reads head_count, head_count_kv, key_length, value_length and epsilon, and checks that they are
 * consistent. Call it after the mixers and windows of all layers are set: a head count per block is
 * read at full attention layers. If lengths is OPTIONAL their default is n_embd / n_head. */
int bind_heads(binder *b, bind_need lengths);

/* Reads heads and rotation of windowed layers, from keys that end in _swa, to hp.windowed and
 * hp.rope_base_window. Call it after bind_rope. */
int bind_window_heads(binder *b);

/* Reads rope base, scaling and its parameters; checks rope_dim, which must be set. need applies to
 * base and scaling type, and with YaRN to factor and original context. */
int bind_rope(binder *b, bind_need need);

/* Sets rope_dim to rope.dimension_count, by default the whole head, and calls bind_rope. */
int bind_plain_rope(binder *b);

int bind_not_dense(const binder *b);     /* refuses files of the same name without experts */
int bind_no_groups(const binder *b);     /* refuses routing by groups of experts */

/* Reads n_expert and n_expert_used. */
int bind_expert_counts(binder *b);

/* ---- tensors --------------------------------------------------------------------------------- */

typedef enum bind_class {
    MATRIX,                              /* any type with a decoder; may have a companion scale */
    SMALL,                               /* F32, F16 or BF16 */
    F32_ONLY
} bind_class;

typedef struct bind_row {
    const char *name;                    /* after "blk.N." in a layer */
    uint64_t ne[3];                      /* in GGUF order, contiguous first; 0: no dimension */
    bind_class cls;
    bind_need need;
    weight *to;
} bind_row;

enum { NO_LAYER = -1 };

/* Returns the tensor "blk.<layer>.<name>", or "<name>" for NO_LAYER; NULL if absent. */
const tensor *bind_find(const binder *b, int layer, const char *name);

int bind_rows(binder *b, int layer, const bind_row *rows, int n_row);

/* Binds embedding, final norm (of class norm_cls) and head, and reads the size of the vocabulary.
 * If the head is OPTIONAL and absent, it is the embedding. */
int bind_globals(binder *b, bind_class norm_cls, bind_need head);

/* Binds attn_q, attn_k and attn_v, or attn_qkv with the rows of all three, and attn_output;
 * with_bias: also their biases. */
int bind_projections(binder *b, int layer, bool with_bias);

/* Binds the norms of queries and keys: per head, or of all heads if attn_norm_whole. */
int bind_head_norms(binder *b, int layer, bind_need need);

/* Binds all layers of a trunk that has only attention, experts and a norm before each. */
int bind_plain_layers(binder *b, bool head_norms);

/* Binds the bank of a layer: gate, up and down; or gate and up fused, gate rows first, which
 * architectures with biases do not have. */
int bind_experts(binder *b, int layer, bool with_bias);

/* Binds gate, up and down of the shared expert, or of a dense network, of that width. */
int bind_shared(binder *b, int layer, bool expert, int width);

/* Sets n_mtp to 0 if the file lacks its next-token block: some have the key alone. */
void bind_absent_mtp(binder *b);

/* Binds the tensors that only a next-token block has. A missing embedding, norm before the head or
 * head is the trunk's. */
int bind_mtp(binder *b, int layer);

/* Fails with "missing tensor blk.N.<name> (or blk.N.<other>)"; other may be NULL. */
int bind_missing(const binder *b, int layer, const char *name, const char *other);

#endif
