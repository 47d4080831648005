/* fuzz_seeds.c - writes small good files for the fuzzers to damage: fuzz_seeds FOLDER
 *
 * Models of both architectures in their variants, and vocabularies with the chat templates that the
 * recognisers look for. All small: a fuzzer should spend its time on structure, not on weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer.h"
#include "loader/gguf_write.h"
#include "tests/model_maker.h"
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

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
        return 2;
    }
    folder = argv[1];
    write_models();
    for (size_t i = 0; i < ARRAY_LEN(vocabs); i++)
        write_vocab(vocabs[i].name, vocabs[i].pre, vocabs[i].harmony, vocabs[i].chat_template);
    return failures ? 1 : 0;
}
