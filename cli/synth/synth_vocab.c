/* synth_vocab.c - a made-up byte-level BPE vocabulary of a real model's size.
 *
 * The 256 byte tokens and the special tokens are those of the real vocabularies, at their ids; what
 * lies between is invented: first every pair of bytes, then triples of letters and the space, so
 * that ordinary text takes two to three bytes a token. It works like a real one: ids never decrease
 * along the merge list, and every token, given as text in one piece, is encoded as itself. */
#include "cli/synth/synth_vocab.h"

#include <stdio.h>
#include <string.h>

#include "engine/text/tokenizer.h"
#include "engine/text/unicode.h"

static const char *const qwen_special[] = {
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>",
    "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
};

/* NULL: <|reserved_ID|> */
static const char *const gptoss_special[] = {
    "<|startoftext|>", "<|endoftext|>", NULL, NULL, "<|return|>", "<|constrain|>", NULL,
    "<|channel|>", "<|start|>", "<|end|>", "<|message|>", NULL, NULL, NULL, "<|call|>", NULL, NULL,
    NULL, NULL, NULL, "<|endofprompt|>",
};

static const struct family {
    const char *pre;
    const char *const *special;
    int n_special, bos, eos, pad;        /* the last three counted from the first special token */
    const char *chat_template;
} families[] = {
    [SYNTH_GPTOSS] = {
        "gpt-4o", gptoss_special, ARRAY_LEN(gptoss_special), 0, 4, 1,
        "{% for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}" },
    [SYNTH_QWEN3NEXT] = {
        "qwen2", qwen_special, ARRAY_LEN(qwen_special), 0, 2, 0,
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}" },
};

/* ---- the byte alphabet ------------------------------------------------------------------- */

/* A byte token's text is one printable character, one or two bytes of UTF-8. Bytes that stand for
 * themselves come first. */
typedef struct alphabet {
    uint8_t text[256][2];                /* by token id */
    uint8_t len[256];
    uint8_t id_of[256];                  /* by byte */
} alphabet;

static void alphabet_init(alphabet *a)
{
    int id = 0, next = 0x100;
    for (int pass = 0; pass < 2; pass++)
        for (int byte = 0; byte < 256; byte++) {
            if (token_byte_is_itself(byte) != (pass == 0)) continue;
            a->id_of[byte] = (uint8_t)id;
            a->len[id] = (uint8_t)utf8_write(a->text[id], (uint32_t)(pass == 0 ? byte : next++));
            id++;
        }
}

/* ---- merged tokens ----------------------------------------------------------------------- */

/* Two or three byte tokens in a row. */
typedef struct merged {
    uint8_t part[3];
    uint8_t n;
} merged;

/* Triples grow from the front of the list, so a small vocabulary still covers common letters. */
static void list_merged(merged *out, int n, const alphabet *a)
{
    static const char letters[] = " etaoinshrdlucmfwypvbgkqjxzETAOINSHRDLUCMFWYPVBGKQJXZ";
    int done = 0;
    for (; done < n && done < 65536; done++)
        out[done] = (merged){ { (uint8_t)(done >> 8), (uint8_t)done }, 2 };
    for (int last = 0; done < n; last++)
        for (int i = 0; i <= last; i++)
            for (int j = 0; j <= last; j++)
                for (int k = 0; k <= last; k++) {
                    if ((i != last && j != last && k != last) || done == n) continue;
                    out[done].n = 3;
                    out[done].part[0] = a->id_of[(uint8_t)letters[i]];
                    out[done].part[1] = a->id_of[(uint8_t)letters[j]];
                    out[done].part[2] = a->id_of[(uint8_t)letters[k]];
                    done++;
                }
}

/* Text of m, with a space after part cut - 1 if 0 < cut. */
static str_view merged_text(char *dst, const merged *m, int cut, const alphabet *a)
{
    size_t n = 0;
    for (int p = 0; p < m->n; p++) {
        if (p && p == cut) dst[n++] = ' ';
        memcpy(dst + n, a->text[m->part[p]], a->len[m->part[p]]);
        n += a->len[m->part[p]];
    }
    return (str_view){ dst, n };
}

/* Where BPE, which joins the pair with the lowest id first and the left one of two equal pairs,
 * arrives at m: pairs have ids in the order of their parts. */
static int merged_cut(const merged *m)
{
    const int left = m->part[0] << 8 | m->part[1], right = m->part[1] << 8 | m->part[2];
    return m->n == 2 || left > right ? 1 : 2;
}

/* ---- the keys ---------------------------------------------------------------------------- */

static str_view special_text(char *dst, size_t cap, const struct family *f, int id,
                             int first_special)
{
    const int i = id - first_special;
    int n;
    if (i >= f->n_special) n = snprintf(dst, cap, "[PAD%d]", id);
    else if (!f->special[i]) n = snprintf(dst, cap, "<|reserved_%d|>", id);
    else return str_from(f->special[i]);
    return (str_view){ dst, (size_t)n };
}

static int kind_of(const struct family *f, int id, int first_special)
{
    const int i = id - first_special;
    if (i < 0) return TOKEN_NORMAL;
    if (i >= f->n_special) return TOKEN_UNUSED;
    return f->special[i] && f->special[i][1] != '|' ? TOKEN_USER : TOKEN_CONTROL;
}

int synth_vocab_n_special(synth_family family)
{
    return families[family].n_special;
}

int synth_vocab_write(gguf_writer *w, synth_family family, int n_vocab, int first_special,
                      err_ctx *err)
{
    const struct family *f = &families[family];
    const int n_merged = first_special - 256;
    merged *list = NULL;
    int32_t *kinds = NULL;
    alphabet a;
    char text[32];
    int rc = 0;

    if (n_merged < 0 || n_merged > SYNTH_MERGED_MAX || n_vocab - f->n_special < first_special)
        return err_set(err, ERR_RANGE, "vocabulary: %d tokens with special ones from %d", n_vocab,
                       first_special);
    list = mem_array((size_t)n_merged + 1, sizeof *list);
    kinds = mem_array((size_t)n_vocab, sizeof *kinds);
    if (!list || !kinds) {
        rc = err_set(err, ERR_NOMEM, "vocabulary: out of memory for %d tokens", n_vocab);
        goto done;
    }
    alphabet_init(&a);
    list_merged(list, n_merged, &a);

    gguf_write_str(w, "tokenizer.ggml.model", str_from("gpt2"));
    gguf_write_str(w, "tokenizer.ggml.pre", str_from(f->pre));
    gguf_write_str_array(w, "tokenizer.ggml.tokens", (uint64_t)n_vocab);
    for (int id = 0; id < n_vocab; id++) {
        kinds[id] = kind_of(f, id, first_special);
        gguf_write_array_str(w, id < 256 ? (str_view){ (const char *)a.text[id], a.len[id] }
                              : id < first_special ? merged_text(text, &list[id - 256], 0, &a)
                              : special_text(text, sizeof text, f, id, first_special));
    }
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, kinds, (uint64_t)n_vocab);
    gguf_write_str_array(w, "tokenizer.ggml.merges", (uint64_t)n_merged);
    for (int i = 0; i < n_merged; i++)
        gguf_write_array_str(w, merged_text(text, &list[i], merged_cut(&list[i]), &a));
    gguf_write_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)(first_special + f->bos));
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)(first_special + f->eos));
    gguf_write_u32(w, "tokenizer.ggml.padding_token_id", (uint32_t)(first_special + f->pad));
    gguf_write_bool(w, "tokenizer.ggml.add_bos_token", false);
    gguf_write_str(w, "tokenizer.chat_template", str_from(f->chat_template));
done:
    mem_free(kinds);
    mem_free(list);
    return rc;
}
