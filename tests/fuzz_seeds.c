/* fuzz_seeds.c - writes small good files for the fuzzers to damage: fuzz_seeds FOLDER
 *
 * Models in their variants, vocabularies of every kind, some with the chat templates that the
 * recognisers look for. All small: a fuzzer should spend its time on structure, not on weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer.h"
#include "loader/gguf_write.h"
#include "tests/make_model.h"
#include "tests/small_shapes.h"
#include "tests/test.h"

static const char *folder;
static int failures;

static void save(const char *name, const void *head, size_t head_bytes, const void *rest,
                 size_t rest_bytes)
{
    char path[512];
    FILE *f = fopen(test_path(path, sizeof path, "%s/%s.gguf", folder, name), "wb");
    const bool ok = f && fwrite(head, 1, head_bytes, f) == head_bytes &&
                    fwrite(rest, 1, rest_bytes, f) == rest_bytes;
    if (!ok || fclose(f) != 0) {
        fprintf(stderr, "fuzz_seeds: cannot write %s\n", path);
        failures++;
    }
}

/* ---- models -------------------------------------------------------------------------------- */

/* Small types for all that may be quantised, several of them in one file. */
static quant_type small_types(const char *name, int layer)
{
    static const char *const plain[] = { "norm", "bias", "sinks", "gate_inp", "conv1d", "ssm_a",
                                         "ssm_dt" };
    static const quant_type cycle[] = { QT_MXFP4, QT_Q4_0, QT_IQ4_NL, QT_Q5_1, QT_Q8_0 };
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        if (strstr(name, plain[i])) return QT_F32;
    return cycle[(size_t)(layer + 1) % ARRAY_LEN(cycle)];
}

static const struct {
    const char *name;
    model_arch arch;
    int n_mtp;
    unsigned variants;
} models[] = {
    { "qwen3next", ARCH_QWEN3NEXT, 0, 0 },
    { "qwen3next-legacy", ARCH_QWEN3NEXT, 0,
      MAKE_LEGACY_IN | MAKE_PLAIN_DT | MAKE_SHARED_RANK2 | MAKE_NO_INTERVAL },
    { "qwen3next-mtp", ARCH_QWEN3NEXT, 1,
      MAKE_FULL_MTP | MAKE_FUSED_EXPERTS | MAKE_KV_ARRAY | MAKE_RECURRENT_ARRAY },
    { "qwen3next-scales", ARCH_QWEN3NEXT, 0, MAKE_SCALES | MAKE_TIED },
    { "gptoss", ARCH_GPTOSS, 0, 0 },
    { "gptoss-fused", ARCH_GPTOSS, 0, MAKE_FUSED_QKV | MAKE_WEIGHT_SCALES | MAKE_HEADS_ARRAY },
};

static void write_models(void)
{
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        maker mk = maker_small(models[i].arch);
        maker_file f;
        err_ctx err;
        mk.n_embd = mk.n_ff = 32;
        mk.n_expert = 3;
        mk.n_used = 2;
        mk.n_head = 2;
        mk.n_head_kv = 1;
        mk.head_dim = 32;
        mk.rope_dim = models[i].arch == ARCH_GPTOSS ? 32 : 8;
        if (mk.n_ff_shared) {
            mk.n_ff_shared = mk.ssm_dim = 32;
            mk.n_k_head = 1;
            mk.n_v_head = 2;
        }
        mk.n_mtp = models[i].n_mtp;
        mk.variants = models[i].variants;
        mk.type_of = small_types;
        if (maker_open(&f, &mk, &err) < 0) {
            fprintf(stderr, "fuzz_seeds: %s: %s\n", models[i].name, err.msg);
            failures++;
            continue;
        }
        save(models[i].name, f.bytes, (size_t)gguf_part_bytes(f.g, 0), "", 0);
        maker_close(&f);
    }
}

/* The other families, as synthetic files of the least size: two layers, few tokens. */
static void write_family(const synth_shape *small)
{
    enum { WIDTH = 32, HEAD = 16, N_TOKEN = 448 };
    synth_shape s = *small;
    char name[64];
    err_ctx err = { 0 };
    synth_plan *p = NULL;
    s.n_embd = s.n_ff = WIDTH;
    s.n_expert = 3;
    s.n_used = 2;
    s.n_head = 2;
    s.n_head_kv = min_int(s.n_head_kv, 2);
    s.head_dim = HEAD;
    s.rope_dim = min_int(s.rope_dim, HEAD / 2);
    s.n_vocab = N_TOKEN;
    if (s.first_special) s.first_special = N_TOKEN - 40;
    if (s.n_ff_shared) s.n_ff_shared = WIDTH;
    if (s.n_ff_dense) s.n_ff_dense = WIDTH;
    if (s.n_head_kv_full) s.head_dim_full = 2 * HEAD;
    if (s.n_v_head) s.n_k_head = 1, s.n_v_head = 2;
    synth_options o = synth_options_of(&s);
    o.n_layer = 2;
    uint8_t *bytes = NULL;
    if (synth_plan_create(&p, &o, &err) == 0) bytes = mem_alloc(synth_plan_bytes(p));
    if (bytes) {
        synth_plan_fill(p, bytes, 0, synth_plan_bytes(p));
        snprintf(name, sizeof name, "family-%s", s.name);
        save(name, bytes, synth_plan_bytes(p), "", 0);
    } else {
        fprintf(stderr, "fuzz_seeds: %s: %s\n", s.name, err.msg);
        failures++;
    }
    mem_free(bytes);
    synth_plan_free(p);
}

/* ---- vocabularies --------------------------------------------------------------------------- */

static const char *const qwen_specials[] = {
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<think>", "</think>",
};
static const char *const harmony_specials[] = {
    "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>",
    "<|start|>", "<|end|>", "<|message|>", "<|call|>",
};

static const struct {
    const char *name, *pre;
    bool harmony;
    const char *chat_template;
} vocabs[] = {
    { "vocab-qwen", "qwen2", false, NULL },
    { "vocab-qwen35", "qwen35", false, "{{ '<|im_start|>' }}" },
    { "vocab-thinking", "qwen2", false,
      "{%- if tools %}"
      "{{- '<|im_start|>system\\n# Tools\\n\\nUse <tools></tools>:\\n<tools>' }}{%- endif %}"
      "{{- '<|im_start|>assistant\\n<think>\\n' }}" },
    { "vocab-coder", "qwen2", false,
      "{{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}"
      "<tool_call>\\n<function=a>\\n<parameter=b>" },
    { "vocab-gptoss", "gpt-4o", true, "{{- '<|start|>system<|message|>' }}<|channel|>analysis" },
    { "vocab-other", "gpt-4o", true, "{{ '[INST]' }}" },
    { "vocab-glm4", "glm4", false, NULL },
    { "vocab-llama-bpe", "llama-bpe", false, NULL },
    { "vocab-olmo", "olmo", false, NULL },
};

/* One printable character for each byte, as these vocabularies write them. */
static size_t byte_text(char *dst, int byte)
{
    static int next;
    static uint16_t map[256];
    if (!next) {
        next = 0x100;
        for (int b = 0; b < 256; b++)
            map[b] = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE
                         ? (uint16_t)b : (uint16_t)next++;
    }
    if (map[byte] < 0x80) { dst[0] = (char)map[byte]; return 1; }
    dst[0] = (char)(0xC0 | map[byte] >> 6);
    dst[1] = (char)(0x80 | (map[byte] & 0x3F));
    return 2;
}

enum { N_MERGE = 26 };                   /* "a a", "b b", ... */

static void write_vocab(const char *name, const char *pre, bool harmony, const char *chat_template)
{
    const char *const *specials = harmony ? harmony_specials : qwen_specials;
    const int n_special = harmony ? (int)ARRAY_LEN(harmony_specials)
                                  : (int)ARRAY_LEN(qwen_specials);
    const int n = 256 + N_MERGE + n_special;
    gguf_writer *w = gguf_writer_create();
    int32_t types[512];
    const uint8_t *head;
    size_t head_bytes;
    char text[8];
    err_ctx err;

    if (!w) exit(1);
    gguf_write_str(w, "general.architecture", str_from(harmony ? "gpt-oss" : "qwen3next"));
    gguf_write_str(w, "tokenizer.ggml.model", str_from("gpt2"));
    gguf_write_str(w, "tokenizer.ggml.pre", str_from(pre));
    gguf_write_str_array(w, "tokenizer.ggml.tokens", (uint64_t)n);
    for (int b = 0; b < 256; b++) gguf_write_array_str(w, (str_view){ text, byte_text(text, b) });
    for (int i = 0; i < N_MERGE; i++) {
        text[0] = text[1] = (char)('a' + i);
        gguf_write_array_str(w, (str_view){ text, 2 });
    }
    for (int i = 0; i < n_special; i++) gguf_write_array_str(w, str_from(specials[i]));
    for (int i = 0; i < n; i++)
        types[i] = i < 256 + N_MERGE ? TOKEN_NORMAL
                   : specials[i - 256 - N_MERGE][1] == '|' ? TOKEN_CONTROL : TOKEN_USER;
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, (uint64_t)n);
    gguf_write_str_array(w, "tokenizer.ggml.merges", N_MERGE);
    for (int i = 0; i < N_MERGE; i++) {
        text[0] = text[2] = (char)('a' + i);
        text[1] = ' ';
        gguf_write_array_str(w, (str_view){ text, 3 });
    }
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)(256 + N_MERGE + 2));
    if (chat_template) gguf_write_str(w, "tokenizer.chat_template", str_from(chat_template));
    if (gguf_write_head(w, &head, &head_bytes, &err) < 0) failures++;
    else save(name, head, head_bytes, "", 0);
    gguf_writer_free(w);
}

/* Characters, bytes by name, and scores or merges: "aa" and " a", "bb" and " b", ... */
static void write_char_vocab(const char *name, const char *kind)
{
    static const char *const specials[] = { "<unk>", "<s>", "</s>", "<turn|>", "<|tool_response>" };
    enum { N_SPECIAL = ARRAY_LEN(specials), N_LETTER = 27, N_MADE = 52,
           N = N_SPECIAL + 256 + N_LETTER + N_MADE };
    gguf_writer *w = gguf_writer_create();
    int32_t types[N];
    float scores[N] = { 0 };
    const uint8_t *head;
    size_t head_bytes;
    err_ctx err;
    char text[16];

    if (!w) exit(1);
    gguf_write_str(w, "general.architecture", str_from("llama"));
    gguf_write_str(w, "tokenizer.ggml.model", str_from(kind));
    gguf_write_str_array(w, "tokenizer.ggml.tokens", N);
    for (int i = 0; i < N; i++) {
        const int letter = i - N_SPECIAL - 256, made = letter - N_LETTER;
        types[i] = i == 0 ? TOKEN_UNKNOWN : i < N_SPECIAL ? TOKEN_CONTROL
                   : letter < 0 ? TOKEN_BYTE : TOKEN_NORMAL;
        scores[i] = (float)-i;
        if (i < N_SPECIAL) snprintf(text, sizeof text, "%s", specials[i]);
        else if (letter < 0)
            snprintf(text, sizeof text, "<0x%02X>", (unsigned)(i - N_SPECIAL) & 255);
        else if (made < 0) snprintf(text, sizeof text, letter ? "%c" : "\u2581", 'a' + letter - 1);
        else if (made < 26) snprintf(text, sizeof text, "%c%c", 'a' + made, 'a' + made);
        else snprintf(text, sizeof text, "\u2581%c", 'a' + made - 26);
        gguf_write_array_str(w, str_from(text));
    }
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, N);
    gguf_write_array(w, "tokenizer.ggml.scores", GGUF_F32, scores, N);
    gguf_write_str_array(w, "tokenizer.ggml.merges", N_MADE);
    for (int i = 0; i < N_MADE; i++) {
        if (i < 26) snprintf(text, sizeof text, "%c %c", 'a' + i, 'a' + i);
        else snprintf(text, sizeof text, "\u2581 %c", 'a' + i - 26);
        gguf_write_array_str(w, str_from(text));
    }
    gguf_write_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", 2);
    if (gguf_write_head(w, &head, &head_bytes, &err) < 0) failures++;
    else save(name, head, head_bytes, "", 0);
    gguf_writer_free(w);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
        return 2;
    }
    folder = argv[1];
    write_models();
    for (int i = 0; i < N_SMALL_SHAPES; i++) write_family(&small_shapes[i]);
    for (size_t i = 0; i < ARRAY_LEN(vocabs); i++)
        write_vocab(vocabs[i].name, vocabs[i].pre, vocabs[i].harmony, vocabs[i].chat_template);
    write_char_vocab("vocab-sentencepiece", "llama");
    write_char_vocab("vocab-gemma4", "gemma4");
    return failures ? 1 : 0;
}
