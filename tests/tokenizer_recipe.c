/* tokenizer_recipe.c - reads recipes and writes their files. */
#include "tests/tokenizer_recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/unicode.h"
#include "tests/case_file.h"
#include "tests/tokenizer_checks.h"

enum { MOST_WORDS = 16, MOST_TOKENS = 300 };
typedef struct recipe {
    char text[700];
    const char *model, *tokens[MOST_WORDS], *merges[MOST_WORDS], *words[MOST_WORDS];
    int types[MOST_WORDS], n_token, n_merge, n_word;
    float scores[MOST_WORDS];
} recipe;

static void add_token(recipe *r, char *word)
{
    char *type = strchr(word, ':'), *score = type;
    r->types[r->n_token] = type ? (int)strtol(type + 1, &score, 10) : TOKEN_NORMAL;
    r->scores[r->n_token] = score && *score ? strtof(score + 1, NULL) : 0;
    if (type) *type = '\0';
    r->tokens[r->n_token++] = word;
}

static void read_recipe(recipe *r, const char *text)
{
    memset(r, 0, sizeof *r);
    snprintf(r->text, sizeof r->text, "%s", text);
    char *next = r->text;
    r->model = strsep(&next, " ");
    for (char *word; (word = strsep(&next, " "));) {
        if (!CHECK_MSG(r->n_token + r->n_merge + r->n_word < MOST_WORDS, "%s", text)) return;
        for (char *p = word; (p = strchr(p, '~'));) *p = ' ';
        if (word[0] == '+') add_token(r, word + 1);
        else if (word[0] == '=') r->merges[r->n_merge++] = word + 1;
        else r->words[r->n_word++] = word;
    }
}

/* The value of a word KEY=VALUE, or what holds without it. */
static const char *value_of(const recipe *r, const char *key, const char *otherwise)
{
    for (int i = 0; i < r->n_word; i++)
        if (case_begins(r->words[i], key, '=')) return r->words[i] + strlen(key) + 1;
    return otherwise;
}

static bool writes(const recipe *r, const char *key)
{
    for (int i = 0; i < r->n_word; i++)
        if (r->words[i][0] == '-' && !strcmp(r->words[i] + 1, key)) return false;
    return true;
}

static bool is_itself(int c) { return (c > 0x20 && c < 0x7F) || (c > 0xA0 && c != 0xAD); }

const char *tokenizer_byte_text(char dst[8], int byte)
{
    int n = 0x100;
    for (int c = 0; c < byte; c++) n += !is_itself(c);
    dst[utf8_write((uint8_t *)dst, (uint32_t)(is_itself(byte) ? byte : n))] = '\0';
    return dst;
}

static void write_token(gguf_writer *w, const recipe *r, int i, int n_first)
{
    static const char *const first[] = { "<unk>", "<s>", "</s>" };
    const int byte = i - (n_first - 256);
    char text[8];
    if (n_first > 256) snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte & 255);
    else tokenizer_byte_text(text, byte & 255);
    gguf_write_array_str(w, str_from(byte < 0 ? first[i] : i >= n_first ? r->tokens[i - n_first] :
                                     byte == 0x41 ? value_of(r, "byte", text) : text));
}

static void write_numbers(gguf_writer *w, const recipe *r, int n_first)
{
    static const uint64_t none[MOST_TOKENS];
    const bool gpt2 = n_first == 256;
    const int n = n_first + r->n_token, n_types = n + atoi(value_of(r, "more_types", "0"));
    const int n_scores = n + atoi(value_of(r, "more_scores", "0"));
    int32_t types[MOST_TOKENS] = { TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_CONTROL };
    int64_t wide[MOST_TOKENS];
    float scores[MOST_TOKENS] = { 0 };
    for (int i = n_first - 256; i < MOST_TOKENS; i++) types[i] = gpt2 ? TOKEN_NORMAL : TOKEN_BYTE;
    for (int i = n_first; i < n; i++) {
        types[i] = r->types[i - n_first];
        scores[i] = r->scores[i - n_first];
    }
    for (int i = 0; i < MOST_TOKENS; i++) wide[i] = types[i];
    const char *as = value_of(r, "types", "i32");
    const gguf_type kind = !strcmp(as, "i64") ? GGUF_I64 : !strcmp(as, "f32") ? GGUF_F32 : GGUF_I32;
    if (!strcmp(value_of(r, "tokens", ""), "u64"))
        gguf_write_array(w, "tokenizer.ggml.tokens", GGUF_U64, none, (uint64_t)n);
    if (writes(r, "token_type"))
        gguf_write_array(w, "tokenizer.ggml.token_type", kind,
                         kind == GGUF_I64 ? (void *)wide : (void *)types, (uint64_t)n_types);
    if (!gpt2 && writes(r, "scores"))
        gguf_write_array(w, "tokenizer.ggml.scores", !strcmp(value_of(r, "scores", ""), "i32") ?
                         GGUF_I32 : GGUF_F32, scores, (uint64_t)n_scores);
}

gguf_writer *tokenizer_recipe(const char *text)
{
    gguf_writer *w = gguf_writer_create();
    recipe r;
    read_recipe(&r, text);
    const bool llama = !strcmp(r.model, "llama"), chars = llama || !strcmp(r.model, "gemma4");
    const char *pre = value_of(&r, "pre", chars ? NULL : "qwen2");
    const char *bos = value_of(&r, "bos", chars ? "1" : NULL);
    const char *eos = value_of(&r, "eos", chars ? "2" : NULL);
    const int n_first = chars ? 259 : 256, n = n_first + r.n_token;
    if (writes(&r, "model")) gguf_write_str(w, "tokenizer.ggml.model", str_from(r.model));
    if (pre && writes(&r, "pre")) gguf_write_str(w, "tokenizer.ggml.pre", str_from(pre));
    if (writes(&r, "tokens") && !value_of(&r, "tokens", NULL)) {
        gguf_write_str_array(w, "tokenizer.ggml.tokens", (uint64_t)n);
        for (int i = 0; i < n; i++) write_token(w, &r, i, n_first);
    }
    write_numbers(w, &r, n_first);
    if (!llama && writes(&r, "merges")) {
        gguf_write_str_array(w, "tokenizer.ggml.merges", (uint64_t)r.n_merge);
        for (int i = 0; i < r.n_merge; i++) gguf_write_array_str(w, str_from(r.merges[i]));
    }
    if (bos) gguf_write_kv(w, "tokenizer.ggml.bos_token_id", GGUF_I32, &(int32_t){ atoi(bos) }, 4);
    if (eos) gguf_write_kv(w, "tokenizer.ggml.eos_token_id", GGUF_I32, &(int32_t){ atoi(eos) }, 4);
    if (value_of(&r, "space", NULL)) gguf_write_bool(w, "tokenizer.ggml.add_space_prefix", false);
    if (value_of(&r, "add_bos", NULL)) gguf_write_bool(w, "tokenizer.ggml.add_bos_token", false);
    return w;
}

int tokenizer_of_recipe(tokenizer **t, const char *text, err_ctx *err)
{
    return tokenizer_from(t, tokenizer_recipe(text), err);
}
