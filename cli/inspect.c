/* inspect.c - moe-run inspect: what a GGUF file holds, for people or as JSON.
 *
 * Everything is collected first (container, bound model, tokenizer, chat format), so a file that is
 * wrong anywhere gives one error line and no half report. Text from the file is escaped wherever it
 * is printed. No weight is read. */
#include "cli/commands.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/args/args.h"
#include "cli/console.h"
#include "cli/model_name.h"
#include "engine/models/model.h"
#include "engine/text/chat/chat.h"

typedef struct inspect_options {
    const char *model;
    bool json, tensors;
} inspect_options;

static const arg_option options[] = {
    { "model", 'm', ARG_NEEDED_TEXT, offsetof(inspect_options, model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file, or the first part of a split one" },
    { "json", 0, ARG_FLAG, offsetof(inspect_options, json), NULL, NULL, 0, 0,
      "One JSON object with exact numbers" },
    { "tensors", 0, ARG_FLAG, offsetof(inspect_options, tensors), NULL, NULL, 0, 0,
      "List every tensor: name, type, shape, bytes, part, offset" },
};

static const arg_spec spec = {
    .usage = "moe-run inspect [-m] FILE [options]",
    .about = "Shows what a GGUF file holds: model, parameters, bytes per token, types, tokenizer.",
    .options = options, .n_option = ARRAY_LEN(options), .operands = "FILE",
};

/* ---- facts ----------------------------------------------------------------------------------- */

typedef struct type_sum { int n; uint64_t bytes; } type_sum;

typedef struct facts {
    gguf *g;
    tokenizer *tok;
    chat *format;
    model *m;                            /* NULL: the file has no tensors */
    model_bytes sum;
    type_sum types[USE_COUNT][QT_COUNT]; /* everything in MTP blocks counts as USE_MTP */
    uint64_t file_bytes, template_bytes;
    uint64_t expert_smallest, bank_smallest;
    int n_deltanet, n_windowed, n_dense;
    int stops[64], n_stop;               /* the first 64, should there be more */
    str_view name, tok_model;            /* empty: not given */
} facts;

static void count_type(void *ctx, const tensor *t, model_use use, int layer)
{
    facts *f = ctx;
    type_sum *s = &f->types[layer >= f->m->hp.n_layer ? USE_MTP : use][t->type];
    s->n++;
    s->bytes += t->bytes;
}

static void sum_model(facts *f)
{
    const model *m = f->m;
    model_count_bytes(&f->sum, m);
    model_visit(m, count_type, f);
    f->expert_smallest = f->sum.expert_largest;
    f->bank_smallest = f->sum.bank_largest;
    for (int l = 0; l < m->hp.n_layer; l++) {
        const uint64_t one = expert_bytes(m->layers[l].experts);
        const uint64_t bank = expert_bank_bytes(m->layers[l].experts);
        if (one > 0 && one < f->expert_smallest) f->expert_smallest = one;
        if (bank > 0 && bank < f->bank_smallest) f->bank_smallest = bank;
        f->n_deltanet += m->layers[l].mixer == MIX_DELTANET;
        f->n_windowed += m->layers[l].window > 0;
        f->n_dense += m->layers[l].experts->n_expert == 0;
    }
}

/* A label: absent if it is not a string. */
static str_view label(const gguf *g, const char *key)
{
    str_view v = { "", 0 };
    return gguf_get_str(&v, g, key, NULL) > 0 ? v : (str_view){ "", 0 };
}

static int collect(facts *f, const char *path, err_ctx *err)
{
    int rc;
    if ((rc = model_name_open(&f->g, path, err)) < 0) return rc;
    for (int i = 0; i < gguf_n_part(f->g); i++) f->file_bytes += gguf_part_bytes(f->g, i);
    if (gguf_n_tensor(f->g) > 0) {
        if ((rc = model_bind(&f->m, f->g, err)) < 0) return rc;
        sum_model(f);
    }
    if ((rc = tokenizer_create(&f->tok, f->g, err)) < 0) return rc;
    if ((rc = chat_create(&f->format, f->g, f->tok, err)) < 0) return rc;
    f->n_stop = tokenizer_stops(f->tok, f->stops, ARRAY_LEN(f->stops));
    if (f->n_stop > (int)ARRAY_LEN(f->stops)) f->n_stop = ARRAY_LEN(f->stops);
    f->name = label(f->g, "general.name");
    f->tok_model = label(f->g, "tokenizer.ggml.model");
    f->template_bytes = label(f->g, "tokenizer.chat_template").len;
    return 0;
}

static void release(facts *f)
{
    chat_free(f->format);
    tokenizer_free(f->tok);
    model_free(f->m);
    gguf_close(f->g);
}

/* ---- for people ------------------------------------------------------------------------------ */

static void row(const char *what, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void row(const char *what, const char *fmt, ...)
{
    va_list ap;
    printf("  %-19s ", what);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

/* "1,769,472 (1.8 MB)", or the range if the layers differ. */
static void byte_row(const char *what, uint64_t lo, uint64_t hi)
{
    char least[32], most[32], about[32];
    text_count(least, sizeof least, lo);
    text_count(most, sizeof most, hi);
    text_bytes(about, sizeof about, hi);
    if (lo != hi) row(what, "%s to %s B (up to %s)", least, most, about);
    else if (hi < 1000) row(what, "%s B", most);
    else row(what, "%s B (%s)", most, about);
}

static void print_file(const facts *f)
{
    char text[512], n[32];
    printf("file\n");
    for (int i = 0; i < gguf_n_part(f->g); i++)
        row(i ? "" : "path", "%s", ESC(text, str_from(gguf_part_path(f->g, i))));
    row("format", "GGUF version %" PRIu32 ", %d part%s", gguf_version(f->g), gguf_n_part(f->g),
        gguf_n_part(f->g) == 1 ? "" : "s");
    byte_row("size", f->file_bytes, f->file_bytes);
    if (!f->m) row("tensors", "no tensors: vocabulary only");
    else if (f->m->n_bound == gguf_n_tensor(f->g))
        row("tensors", "%s", text_count(n, sizeof n, (uint64_t)f->m->n_bound));
    else row("tensors", "%d, of which %d are used", gguf_n_tensor(f->g), f->m->n_bound);
    if (f->m && f->m->n_media)
        row("", "%d are for pictures or sound, which this program does not read", f->m->n_media);
}

static const char *mtp_text(char dst[48], int n_mtp)
{
    dst[0] = '\0';
    if (n_mtp) snprintf(dst, 48, ", and %d next-token block%s", n_mtp, n_mtp == 1 ? "" : "s");
    return dst;
}

/* Norms and gates of attention, or an empty text. */
static const char *attention_text(char *dst, size_t cap, const model *m)
{
    const char *what = m->family->attn_norm_values ? "queries, keys and values"
                                                   : "queries and keys";
    bool normed = false;
    for (int l = 0; l < m->hp.n_layer; l++) normed |= m->layers[l].attn.q_norm.t != NULL;
    snprintf(dst, cap, "%s%s%s%s", normed ? what : "",
             !normed ? "" : m->family->attn_norm_whole ? " normed over all heads"
                                                       : " normed head by head",
             normed && m->family->attn_gated ? ", " : "",
             m->family->attn_gated ? "outputs gated" : "");
    return dst;
}

/* "64 of 256 dimensions", "all 128 dimensions in pairs of neighbours" */
static const char *turn_text(char *dst, size_t cap, const model *m, bool windowed)
{
    const attn_shape heads = hparams_attn(&m->hp, windowed);
    const char *more = m->family->rope_neighbours ? " in pairs of neighbours"
                     : m->rope_factors.t && !windowed ? ", each pair by a factor of its own" : "";
    if (heads.rope_dim == heads.head_dim)
        snprintf(dst, cap, "all %d dimensions%s", heads.rope_dim, more);
    else snprintf(dst, cap, "%d of %d dimensions%s", heads.rope_dim, heads.head_dim, more);
    return dst;
}

/* How experts are chosen and weighed; empty: by the usual softmax over those chosen. */
static const char *router_text(char *dst, size_t cap, const model *m)
{
    const router_rule *rule = &m->hp.router;
    const bool sigmoid = rule->score == ROUTER_SIGMOID;
    const bool scaled = rule->factor > 0.0f && rule->factor != 1.0f;
    bool corrected = false;
    char times[32] = "";
    for (int l = 0; l < m->hp.n_layer; l++) corrected |= m->layers[l].choice_bias.t != NULL;
    if (scaled) snprintf(times, sizeof times, ", times %g", (double)rule->factor);
    dst[0] = '\0';
    if (sigmoid || rule->as_scored || corrected || scaled)
        snprintf(dst, cap, "%s%s, weights %s%s", sigmoid ? "sigmoids" : "softmax over all experts",
                 corrected ? ", corrected for the choice" : "",
                 rule->as_scored ? "as they are" : "divided by their sum", times);
    return dst;
}

static void print_rope(const facts *f)
{
    static const char *const scaling[] = { "plain", "linear", "YaRN" };
    const model_hparams *hp = &f->m->hp;
    char text[256];
    turn_text(text, sizeof text, f->m, false);
    if (hp->rope_scaling == ROPE_PLAIN) row("rope", "%s, base %.10g", text, hp->rope_base);
    else
        row("rope", "%s, base %.10g, %s by %g from %d tokens", text, hp->rope_base,
            scaling[hp->rope_scaling], hp->rope_factor, hp->rope_ctx_orig);
    if (hp->rope_base_window != hp->rope_base || hp->windowed.n_head)
        row("", "with a window: %s, base %.10g", turn_text(text, sizeof text, f->m, true),
            hp->rope_base_window);
}

static void print_experts(const facts *f)
{
    const model_hparams *hp = &f->m->hp;
    char text[256];
    if (hp->n_ff_shared)
        row("experts", "%d, %d used, width %d + shared %d", hp->n_expert, hp->n_expert_used,
            hp->n_ff_expert, hp->n_ff_shared);
    else row("experts", "%d, %d used, width %d", hp->n_expert, hp->n_expert_used, hp->n_ff_expert);
    if (router_text(text, sizeof text, f->m)[0]) row("router", "%s", text);
    if (f->n_dense == 1) row("dense layer", "the first, width %d, no experts", hp->n_ff_dense);
    if (f->n_dense > 1)
        row("dense layers", "the first %d, width %d, no experts", f->n_dense, hp->n_ff_dense);
}

static void print_model(const facts *f)
{
    const model_hparams *hp = &f->m->hp;
    const int n_attention = hp->n_layer - f->n_deltanet;
    char text[256], n[32], more[48];

    printf("\nmodel\n");
    row("name", "%s", f->name.len ? ESC(text, f->name) : "(none)");
    row("architecture", "%s", model_arch_name(hp->arch));
    mtp_text(more, hp->n_mtp);
    if (f->n_deltanet)
        row("layers", "%d (%d DeltaNet, %d attention)%s", hp->n_layer, f->n_deltanet, n_attention,
            more);
    else if (f->n_windowed)
        row("layers", "%d (%d windowed, %d full attention)%s", hp->n_layer, f->n_windowed,
            n_attention - f->n_windowed, more);
    else row("layers", "%d (full attention)%s", hp->n_layer, more);
    row("hidden size", "%s", text_count(n, sizeof n, (uint64_t)hp->n_embd));
    row("attention", "%d heads of %d, %d for keys and values", hp->n_head, hp->head_dim,
        hp->n_head_kv);
    if (hp->windowed.n_head)
        row("", "with a window: %d heads of %d, %d for keys and values", hp->windowed.n_head,
            hp->windowed.head_dim, hp->windowed.n_head_kv);
    if (attention_text(text, sizeof text, f->m)[0]) row("", "%s", text);
    if (hp->window) row("window", "%s tokens", text_count(n, sizeof n, (uint64_t)hp->window));
    if (f->n_deltanet)
        row("DeltaNet", "%d key and %d value heads of %d, convolution over %d", hp->ssm_n_k_head,
            hp->ssm_n_v_head, hp->ssm_head_dim, hp->ssm_conv);
    print_experts(f);
    row("context", "%s tokens", text_count(n, sizeof n, (uint64_t)hp->ctx_train));
    print_rope(f);
    row("vocabulary", "%s", text_count(n, sizeof n, (uint64_t)hp->n_vocab));
    if (hp->logit_cap > 0.0f) row("logits", "capped at %g", (double)hp->logit_cap);
}

static void print_sizes(const facts *f)
{
    const model_bytes *s = &f->sum;
    const uint64_t token = s->token_experts + s->token_dense;
    char n[32];

    printf("\nparameters\n");
    row("total", "%s", text_count(n, sizeof n, s->params));
    row("active per token", "%s", text_count(n, sizeof n, s->params_active));
    printf("\nbytes\n");
    byte_row("dense", s->dense, s->dense);
    byte_row("  embedding", s->embed, s->embed);
    if (f->m->head_tied) row("  head", "the embedding (tied)");
    else byte_row("  head", s->head, s->head);
    byte_row("experts", s->experts, s->experts);
    byte_row("  one expert", f->expert_smallest, s->expert_largest);
    byte_row("  one layer", f->bank_smallest, s->bank_largest);
    if (f->m->hp.n_mtp) byte_row("next-token block", s->mtp, s->mtp);
    byte_row("read per token", token, token);
    byte_row("  experts", s->token_experts, s->token_experts);
    byte_row("  dense", s->token_dense, s->token_dense);
    byte_row("    head of it", f->m->head.t->bytes, f->m->head.t->bytes);
}

static void print_types(const facts *f)
{
    printf("\ntypes\n");
    for (int u = 0; u < USE_COUNT; u++) {
        const char *what = u == USE_SHARED && f->n_dense ? "shared, dense"
                                                         : model_use_name((model_use)u);
        for (int t = 0; t < QT_COUNT; t++) {
            const type_sum *s = &f->types[u][t];
            char n[32], b[32];
            if (s->n == 0) continue;
            row(what, "%5d %-8s %18s B  %9s", s->n, quant_name((uint32_t)t),
                text_count(n, sizeof n, s->bytes), text_bytes(b, sizeof b, s->bytes));
            what = "";
        }
    }
}

static void token_row(const char *what, const facts *f, int id)
{
    char text[128];
    if (id >= 0) row(what, "%d %s", id, ESC(text, tokenizer_bytes(f->tok, id, true)));
}

static void print_text_facts(const facts *f)
{
    char text[128], n[32];

    printf("\ntokenizer\n");
    const bool scores = str_is(f->tok_model, "llama"), chars = str_is(f->tok_model, "gemma4");
    if (scores || chars)
        row("model", "%s (%s)", ESC(text, f->tok_model),
            scores ? "SentencePiece by scores" : "merges of characters");
    else row("model", "%s, pre-tokenizer %s", ESC(text, f->tok_model), tokenizer_pre_name(f->tok));
    row("tokens", "%s", text_count(n, sizeof n, (uint64_t)tokenizer_n_token(f->tok)));
    if (!scores) row("merges", "%s", text_count(n, sizeof n, (uint64_t)tokenizer_n_merge(f->tok)));
    token_row("begin", f, tokenizer_bos(f->tok));
    token_row("end", f, tokenizer_eos(f->tok));
    for (int i = 0; i < f->n_stop; i++) token_row(i ? "" : "stops at", f, f->stops[i]);
    printf("\ntemplate\n");
    row("format", "%s", chat_format_name(f->format));
    if (chat_note(f->format)) row("note", "%s", chat_note(f->format));
    if (f->template_bytes) row("length", "%s bytes", text_count(n, sizeof n, f->template_bytes));
    else row("length", "no template in the file");
}

static void print_tensors(const facts *f)
{
    printf("\ntensors (name, type, shape, bytes, part, offset)\n");
    for (int i = 0; i < gguf_n_tensor(f->g); i++) {
        const tensor *t = gguf_tensor_at(f->g, i);
        char name[128], shape[96];
        tensor_shape_text(shape, sizeof shape, t);
        printf("  %-36s %-8s %-20s %12" PRIu64 "  %d  %" PRIu64 "\n", ESC(name, t->name),
               quant_name(t->type), shape, t->bytes, t->part + 1, t->offset);
    }
}

static int report_text(const facts *f, bool tensors)
{
    print_file(f);
    if (f->m) {
        print_model(f);
        print_sizes(f);
        print_types(f);
    }
    print_text_facts(f);
    if (tensors) print_tensors(f);
    return console_finish();
}

/* ---- as JSON --------------------------------------------------------------------------------- */

/* A value that could not be made is NULL, and json_pack makes NULL of whatever it was meant for:
 * so only the end has to look. */
#define INT(v) ((json_int_t)(v))

static json_t *json_label(str_view s)
{
    char text[512];
    return s.len ? json_string(ESC(text, s)) : json_null();
}

/* Whole, so that a script can use it; only a path that is no UTF-8 is escaped. */
static json_t *json_path(const char *path)
{
    json_t *s = json_string(path);
    return s ? s : json_label(str_from(path));
}

static json_t *json_file(const facts *f)
{
    json_t *paths = json_array();
    for (int i = 0; i < gguf_n_part(f->g); i++)
        paths = console_append(paths, json_path(gguf_part_path(f->g, i)));
    return json_pack("{s:o, s:I, s:i, s:I, s:i, s:i, s:i, s:i}",
                     "paths", paths,
                     "gguf_version", INT(gguf_version(f->g)),
                     "n_part", gguf_n_part(f->g),
                     "bytes", INT(f->file_bytes),
                     "n_key", gguf_n_kv(f->g),
                     "n_tensor", gguf_n_tensor(f->g),
                     "n_tensor_used", f->m ? f->m->n_bound : 0,
                     "n_tensor_media", f->m ? f->m->n_media : 0);
}

static json_t *json_model(const facts *f)
{
    static const char *const scaling[] = { "none", "linear", "yarn" };
    const model_hparams *hp = &f->m->hp;
    json_t *rope = json_pack("{s:i, s:f, s:f, s:s, s:f, s:i, s:f}",
                             "dimensions", hp->rope_dim,
                             "base", hp->rope_base,
                             "base_window", hp->rope_base_window,
                             "scaling", scaling[hp->rope_scaling],
                             "factor", hp->rope_factor,
                             "original_context", hp->rope_ctx_orig,
                             "attention_factor", hp->rope_attn_factor);
    json_t *delta = json_pack("{s:i, s:i, s:i, s:i}",
                              "n_key_head", hp->ssm_n_k_head,
                              "n_value_head", hp->ssm_n_v_head,
                              "head_dim", hp->ssm_head_dim,
                              "conv_kernel", hp->ssm_conv);
    json_t *experts = json_pack("{s:i, s:i, s:i, s:i}",
                                "n_expert", hp->n_expert,
                                "n_used", hp->n_expert_used,
                                "width", hp->n_ff_expert,
                                "shared_width", hp->n_ff_shared);
    json_t *layers = json_pack("{s:i, s:i, s:i, s:i, s:i}",
                               "total", hp->n_layer,
                               "deltanet", f->n_deltanet,
                               "attention", hp->n_layer - f->n_deltanet,
                               "windowed", f->n_windowed,
                               "next_token_blocks", hp->n_mtp);
    return json_pack("{s:o, s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:i, s:o, s:i, s:f, s:b}",
                     "name", json_label(f->name),
                     "architecture", model_arch_name(hp->arch),
                     "layers", layers,
                     "n_embd", hp->n_embd,
                     "n_head", hp->n_head,
                     "n_head_kv", hp->n_head_kv,
                     "head_dim", hp->head_dim,
                     "window", hp->window,
                     "deltanet", delta,
                     "experts", experts,
                     "context_length", hp->ctx_train,
                     "rope", rope,
                     "n_vocab", hp->n_vocab,
                     "rms_epsilon", (double)hp->rms_eps,
                     "head_tied", (int)f->m->head_tied);
}

static json_t *json_parameters(const facts *f)
{
    return json_pack("{s:I, s:I}",
                     "total", INT(f->sum.params),
                     "active", INT(f->sum.params_active));
}

static json_t *json_sizes(const facts *f)
{
    const model_bytes *s = &f->sum;
    /* total leaves out the one row of the embedding table that is looked up */
    json_t *token = json_pack("{s:I, s:I, s:I, s:I, s:I}",
                              "experts", INT(s->token_experts),
                              "dense", INT(s->token_dense),
                              "dense_without_head", INT(s->token_dense - f->m->head.t->bytes),
                              "embedding_row", INT(f->m->embed.t->row_bytes),
                              "total", INT(s->token_experts + s->token_dense));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
                     "total", INT(s->dense + s->experts + s->mtp),
                     "dense", INT(s->dense),
                     "embedding", INT(s->embed),
                     "head", INT(s->head),
                     "experts", INT(s->experts),
                     "expert_smallest", INT(f->expert_smallest),
                     "expert_largest", INT(s->expert_largest),
                     "layer_experts_smallest", INT(f->bank_smallest),
                     "layer_experts_largest", INT(s->bank_largest),
                     "next_token_blocks", INT(s->mtp),
                     "per_token", token);
}

static json_t *json_types(const facts *f)
{
    json_t *list = json_array();
    for (int u = 0; u < USE_COUNT; u++)
        for (int t = 0; t < QT_COUNT; t++) {
            const type_sum *s = &f->types[u][t];
            if (s->n == 0) continue;
            list = console_append(list, json_pack("{s:s, s:s, s:i, s:I}",
                                                  "use", model_use_name((model_use)u),
                                                  "type", quant_name((uint32_t)t),
                                                  "n_tensor", s->n,
                                                  "bytes", INT(s->bytes)));
        }
    return list;
}

static json_t *json_token(const facts *f, int id)
{
    char text[256];
    if (id < 0) return json_null();
    return json_pack("{s:i, s:s}", "id", id, "text", ESC(text, tokenizer_bytes(f->tok, id, true)));
}

static json_t *json_tokenizer(const facts *f)
{
    json_t *stops = json_array();
    for (int i = 0; i < f->n_stop; i++) stops = console_append(stops, json_token(f, f->stops[i]));
    return json_pack("{s:o, s:s, s:i, s:i, s:o, s:o, s:o}",
                     "model", json_label(f->tok_model),
                     "pre", tokenizer_pre_name(f->tok),
                     "n_token", tokenizer_n_token(f->tok),
                     "n_merge", tokenizer_n_merge(f->tok),
                     "bos", json_token(f, tokenizer_bos(f->tok)),
                     "eos", json_token(f, tokenizer_eos(f->tok)),
                     "stops", stops);
}

static json_t *json_template(const facts *f)
{
    return json_pack("{s:s, s:s?, s:I}",
                     "format", chat_format_name(f->format),
                     "note", chat_note(f->format),
                     "bytes", INT(f->template_bytes));
}

static json_t *json_tensors(const facts *f)
{
    json_t *list = json_array();
    for (int i = 0; i < gguf_n_tensor(f->g); i++) {
        const tensor *t = gguf_tensor_at(f->g, i);
        const uint64_t dim[] = { t->cols, t->rows, t->slabs };
        json_t *shape = json_array();
        for (int k = 0; k < t->n_dims && k < 3; k++)
            shape = console_append(shape, json_integer(INT(dim[k])));
        list = console_append(list, json_pack("{s:o, s:s, s:o, s:I, s:i, s:I}",
                                              "name", json_label(t->name),
                                              "type", quant_name(t->type),
                                              "shape", shape,
                                              "bytes", INT(t->bytes),
                                              "part", t->part + 1,
                                              "offset", INT(t->offset)));
    }
    return list;
}

static int report_json(const facts *f, bool tensors)
{
    json_t *root = json_pack("{s:o}", "file", json_file(f));
    int bad = root == NULL;

    if (f->m) {
        bad |= json_object_set_new(root, "model", json_model(f));
        bad |= json_object_set_new(root, "parameters", json_parameters(f));
        bad |= json_object_set_new(root, "bytes", json_sizes(f));
        bad |= json_object_set_new(root, "types", json_types(f));
    } else {
        bad |= json_object_set_new(root, "note", json_string("no tensors: vocabulary only"));
    }
    bad |= json_object_set_new(root, "tokenizer", json_tokenizer(f));
    bad |= json_object_set_new(root, "template", json_template(f));
    if (tensors) bad |= json_object_set_new(root, "tensors", json_tensors(f));
    if (bad) json_decref(root);
    const int rc = console_report(bad ? NULL : root, JSON_INDENT(2), " for the report");
    return rc != 0 ? rc : console_finish();
}

int cmd_inspect(int argc, char **argv)
{
    inspect_options o = { NULL, false, false };
    facts f = { 0 };
    err_ctx err = { 0 };

    const int parsed = args_parse(&spec, &o, NULL, NULL, argc, argv);
    if (parsed != ARGS_RUN) return parsed == ARGS_HELP ? console_finish() : 2;
    int rc = collect(&f, o.model, &err);
    if (rc < 0) rc = console_fail(o.model, &err);
    else rc = o.json ? report_json(&f, o.tensors) : report_text(&f, o.tensors);
    release(&f);
    return rc;
}
