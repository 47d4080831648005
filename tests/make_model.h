/* make_model.h - GGUF files of two architectures, made to order for tests, and spoilt copies of
 * files of any.
 *
 * A maker holds dimensions, switches for the variants that files come in, and edits that spoil one
 * thing. Small models live in memory with all weights 0; models of real size are sparse files, so
 * that the real shapes of 12 to 160 GB can be opened without writing them. */
#ifndef TESTS_MAKE_MODEL_H
#define TESTS_MAKE_MODEL_H

#include "engine/models/model.h"

/* Variants; those of the other architecture have no effect. */
enum {
    MAKE_LEGACY_IN = 1 << 0,             /* ssm_in in place of attn_qkv and attn_gate */
    MAKE_PLAIN_DT = 1 << 1,              /* ssm_dt without .bias */
    MAKE_SHARED_RANK2 = 1 << 2,          /* ffn_gate_inp_shexp {n, 1} */
    MAKE_FUSED_EXPERTS = 1 << 3,         /* ffn_gate_up_exps */
    MAKE_SCALES = 1 << 4,                /* .scale and .input_scale of every matrix */
    MAKE_WEIGHT_SCALES = 1 << 5,         /* .weight.scale in their place */
    MAKE_KV_ARRAY = 1 << 6,              /* head_count_kv per block, 0 in recurrent layers */
    MAKE_RECURRENT_ARRAY = 1 << 7,       /* attention.recurrent_layers, and a misleading interval */
    MAKE_NO_INTERVAL = 1 << 8,           /* full_attention_interval absent: 4 */
    MAKE_TIED = 1 << 9,                  /* no output.weight */
    MAKE_FULL_MTP = 1 << 10,             /* the optional tensors of MTP blocks too */
    MAKE_FUSED_QKV = 1 << 11,            /* gpt-oss: attn_qkv */
    MAKE_HEADS_ARRAY = 1 << 12,          /* head_count per block */
};

/* Spoils, replaces or adds one key or tensor, by full name. */
typedef enum edit_kind {
    EDIT_DROP,
    EDIT_INT,                            /* key = i32 number */
    EDIT_FLOAT,                          /* key = f32 number */
    EDIT_TEXT,                           /* key = string text */
    EDIT_FALSE,                          /* key = bool false */
    EDIT_INTS,                           /* key = array of number u32, all 1 */
    EDIT_RAMP,                           /* the same, 1, 2, 3, .. */
    EDIT_TENSOR                          /* tensor of this type and shape; ne[0] 0 keeps the shape,
                                          * type -1 the type */
} edit_kind;
typedef struct maker_edit {
    edit_kind kind;
    const char *name;
    double number;
    const char *text;
    int type;
    uint64_t ne[4];
} maker_edit;

#define DROP(n) { .kind = EDIT_DROP, .name = n }
#define SET_INT(n, v) { .kind = EDIT_INT, .name = n, .number = v }
#define SET_FLOAT(n, v) { .kind = EDIT_FLOAT, .name = n, .number = v }
#define SET_TEXT(n, v) { .kind = EDIT_TEXT, .name = n, .text = v }
#define SET_FALSE(n) { .kind = EDIT_FALSE, .name = n }
#define SET_INTS(n, count) { .kind = EDIT_INTS, .name = n, .number = count }
#define SET_RAMP(n, count) { .kind = EDIT_RAMP, .name = n, .number = count }
#define SET_TENSOR(n, t, ...) { .kind = EDIT_TENSOR, .name = n, .type = t, .ne = { __VA_ARGS__ } }

/* Tensors that converters keep in F32 and quantizers leave alone, by any part of the name. */
bool maker_is_small(const char *name);

/* The type of a tensor: name is what follows "blk.N.", layer -1 for globals. */
typedef quant_type maker_type_fn(const char *name, int layer);

/* Types by kind of tensor; all 0: F32. */
typedef struct maker_types {
    quant_type small, dense, experts;
    bool plain_head;                     /* output.weight is F32 */
} maker_types;

typedef struct maker {
    model_arch arch;
    int n_layer, n_mtp, n_vocab, n_embd, n_head, n_head_kv, head_dim, rope_dim;
    int n_expert, n_used, n_ff, n_ff_shared, window;
    int conv, ssm_dim, n_k_head, n_v_head;       /* qwen3next; layers 3, 7, .. have attention */
    maker_types types;
    maker_type_fn *type_of;              /* instead of types; NULL: these */
    unsigned variants;
    const maker_edit *edits;
    int n_edit;
} maker;

maker maker_small(model_arch arch);      /* all dimensions different, a few hundred KB */
maker maker_qwen3next_80b(void);
maker maker_gptoss(bool large);          /* 20b, or 120b */

typedef struct maker_file {
    gguf *g;
    uint8_t *bytes;                      /* NULL if it is a file, which no longer has a name */
} maker_file;

/* All return 0, or what gguf_open returned; on failure nothing is left behind. */
int maker_open(maker_file *out, const maker *mk, err_ctx *err);
int maker_open_sparse(maker_file *out, const maker *mk, err_ctx *err);

/* Opens and binds it. want NULL: it must be bound; else it must be refused with these words. */
void maker_expect(const maker *mk, const char *want, const char *why);
void maker_expect_copy(const gguf *of, const maker_edit *edits, int n_edit, const char *want,
                       const char *why);

/* A copy of another file with edits, at most MAKER_MOST_EDITS; all weights are 0. */
enum { MAKER_MOST_EDITS = 8 };
int maker_open_copy(maker_file *out, const gguf *of, const maker_edit *edits, int n_edit,
                    err_ctx *err);
void maker_close(maker_file *f);

#endif
