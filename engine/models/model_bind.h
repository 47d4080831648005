/* model_bind.h - tables that describe the keys and tensors of an architecture's files.
 *
 * Internal to model.c, model_bind.c and models/. An architecture is a set of tables: rows of keys
 * with their ranges, rows of tensors with their shapes. bind_rows and similar functions check every
 * row and name the first error. Every function returns 0, or < 0 with the binder's err filled. */
#ifndef ENGINE_MODELS_MODEL_BIND_H
#define ENGINE_MODELS_MODEL_BIND_H

#include "engine/models/model.h"

typedef struct binder {
    model *m;                            /* being filled */
    const gguf *file;
    const char *arch;                    /* general.architecture: prefix of the model's keys */
    err_ctx *err;
} binder;

/* The architectures. The bind of each fills hp and layers of a zeroed model. */
extern const model_family qwen3next_family, gptoss_family, qwen3moe_family, olmoe_family,
    llama_family, qwen35moe_family, glm4moe_family, gemma4_family;

/* Ranges that keys are held to. They keep every product of two of them far below 2^63. */
enum {
    MAX_BLOCKS = 1024, MAX_EXPERTS = 4096, MAX_HEADS = 4096, MAX_SIZE = 1 << 20, MAX_CONV = 64
};

/* Values in tables have short names; only the files named above see them. */
typedef enum bind_need { REQUIRED, OPTIONAL } bind_need;

/* ---- keys; names come without "<arch>." ----------------------------------------------------- */

enum { BIND_KEY_CAP = 128 };

/* "<arch>.<name>" in dst, which has BIND_KEY_CAP bytes. Returns dst. */
const char *bind_key_name(char *dst, const binder *b, const char *name);

typedef struct bind_key {
    const char *name;
    int64_t lo, hi;
    bind_need need;                      /* an absent optional key leaves *to alone */
    int *to;
} bind_key;
int bind_keys(const binder *b, const bind_key *keys, int n_key);

/* A number above 0, or from 0 on if zero_ok. Absent: *to is left alone, or an error if required. */
int bind_float(const binder *b, double *to, const char *name, bool zero_ok, bind_need need);

/* Number of blocks, the trailing MTP blocks among them, and the array of layers. */
int bind_blocks(binder *b);

int bind_no_mtp(const binder *b);        /* refuses next-token blocks */

/* The context that the model was trained with, and the width of its vectors. */
int bind_sizes(binder *b);

/* head_count, head_count_kv, key_length, value_length, epsilon, and that they fit together. Needs
 * the mixers of all layers: a head count given per block is read at the attention layers without a
 * window. lengths: OPTIONAL ones are n_embd / n_head. */
int bind_heads(binder *b, bind_need lengths);

/* Those of windowed layers, whose keys end in _swa, with their rotation: hp.windowed and
 * hp.rope_base_window. After bind_rope; the windows of all layers are set before bind_heads. */
int bind_window_heads(binder *b);

/* Base, scaling and its parameters; rope_dim must be set, and is checked. need is that of base and
 * scaling type, and of factor and original context under YaRN. */
int bind_rope(binder *b, bind_need need);

/* How many dimensions of a head turn: all, unless rope.dimension_count says otherwise; and
 * bind_rope. */
int bind_plain_rope(binder *b);

int bind_not_dense(const binder *b);     /* refuses files of the same name without experts */
int bind_no_groups(const binder *b);     /* refuses experts that are chosen by groups */

/* Number of experts, and how many are used. */
int bind_expert_counts(binder *b);

/* ---- tensors --------------------------------------------------------------------------------- */

typedef enum bind_class {
    MATRIX,                              /* any type with a decoder; may have a companion scale */
    SMALL,                               /* F32, F16 or BF16 */
    F32_ONLY
} bind_class;

typedef struct bind_row {
    const char *name;                    /* after "blk.N." in a layer */
    uint64_t ne[3];                      /* as GGUF writes it, contiguous first; 0: no dimension */
    bind_class cls;
    bind_need need;
    weight *to;
} bind_row;

enum { NO_LAYER = -1 };

/* The tensor "blk.<layer>.<name>", or just "<name>" for NO_LAYER; NULL if the file has none. */
const tensor *bind_find(const binder *b, int layer, const char *name);

int bind_rows(binder *b, int layer, const bind_row *rows, int n_row);

/* Embedding, final norm, head, and the size of the vocabulary. norm_cls is the final norm's. A head
 * that is absent and OPTIONAL is the embedding. */
int bind_globals(binder *b, bind_class norm_cls, bind_need head);

/* attn_q, attn_k and attn_v, or attn_qkv with their rows one after the other, and attn_output. The
 * first three may have biases. */
int bind_projections(binder *b, int layer, bool with_bias);

/* Norms of queries and keys: of each head, or of all together if the family says so. */
int bind_head_norms(binder *b, int layer, bind_need need);

/* All layers of a trunk with attention, experts, a norm before each, and nothing else. */
int bind_plain_layers(binder *b, bool head_norms);

/* The bank of a layer: gate, up and down, or gate and up fused, gate rows first. An architecture
 * with biases has no fused form. */
int bind_experts(binder *b, int layer, bool with_bias);

/* "missing tensor blk.N.<name>", and "(or blk.N.<other>)" after it unless other is NULL. */
int bind_missing(const binder *b, int layer, const char *name, const char *other);

#endif
