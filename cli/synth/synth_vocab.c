/* synth_vocab.c - an artificial vocabulary of a real model's size.
 *
 * Byte-level BPE: byte tokens and special tokens have the ids of the real vocabularies. The tokens
 * in between are all pairs of bytes, then triples of letters, the space and some signs, so that
 * ordinary text takes two to three bytes per token. As in real vocabularies ids never decrease
 * along the merge list, and the text of each token is encoded as that token.
 *
 * The other two kinds have characters instead of bytes, with U+2581 for the space, and the same
 * triples; another character becomes a token for each of its bytes. For SentencePiece a triple can
 * be joined from either pair of neighbours first. */
#include "cli/synth/synth_vocab.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/tokenizer/unicode.h"

const synth_special synth_qwen_special[SYNTH_QWEN_SPECIAL] = {
    { "<|endoftext|>", 0 }, { "<|im_start|>", 0 }, { "<|im_end|>", 0 },
    { "<|object_ref_start|>", 0 }, { "<|object_ref_end|>", 0 }, { "<|box_start|>", 0 },
    { "<|box_end|>", 0 }, { "<|quad_start|>", 0 }, { "<|quad_end|>", 0 },
    { "<|vision_start|>", 0 }, { "<|vision_end|>", 0 }, { "<|vision_pad|>", 0 },
    { "<|image_pad|>", 0 }, { "<|video_pad|>", 0 }, { "<tool_call>", TOKEN_USER },
    { "</tool_call>", TOKEN_USER }, { "<|fim_prefix|>", 0 }, { "<|fim_middle|>", 0 },
    { "<|fim_suffix|>", 0 }, { "<|fim_pad|>", 0 }, { "<|repo_name|>", 0 }, { "<|file_sep|>", 0 },
    { "<tool_response>", TOKEN_USER }, { "</tool_response>", TOKEN_USER },
    { "<think>", TOKEN_USER }, { "</think>", TOKEN_USER },
};

/* ---- triples ----------------------------------------------------------------------------- */

/* Letters by how common they are, then signs; the space is U+2581 in some vocabularies. */
static const char letters[] =
    " etaoinshrdlucmfwypvbgkqjxzETAOINSHRDLUCMFWYPVBGKQJXZ.,-'_()/:;=";
static_assert(sizeof letters == SYNTH_LETTERS + 1, "letters");

/* The first n triples, as indices of letters. They start with common letters, so that a small
 * vocabulary covers these. */
static void list_triples(uint8_t (*out)[3], int n)
{
    int done = 0;
    for (int last = 0; done < n; last++)
        for (int i = 0; i <= last; i++)
            for (int j = 0; j <= last; j++)
                for (int k = 0; k <= last; k++) {
                    if ((i != last && j != last && k != last) || done == n) continue;
                    out[done][0] = (uint8_t)i;
                    out[done][1] = (uint8_t)j;
                    out[done][2] = (uint8_t)k;
                    done++;
                }
}

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

static void list_merged(merged *out, int n, const alphabet *a, uint8_t (*triples)[3])
{
    int done = 0;
    for (; done < n && done < 65536; done++)
        out[done] = (merged){ { (uint8_t)(done >> 8), (uint8_t)done }, 2 };
    list_triples(triples, n - done);
    for (int i = 0; done < n; i++, done++) {
        out[done].n = 3;
        for (int p = 0; p < 3; p++)
            out[done].part[p] = a->id_of[(uint8_t)letters[triples[i][p]]];
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

/* The last join by which BPE makes m. BPE joins the pair with the lowest id first, and the left one
 * of two equal pairs; pairs have ids in the order of their bytes. */
static int merged_cut(const merged *m)
{
    const int left = m->part[0] << 8 | m->part[1], right = m->part[1] << 8 | m->part[2];
    return m->n == 2 || left > right ? 1 : 2;
}

/* ---- special tokens ----------------------------------------------------------------------- */

static str_view special_text(char *dst, size_t cap, const synth_vocab *v, int id, int first_special)
{
    const int i = id - first_special;
    int n;
    if (i >= v->n_special) n = snprintf(dst, cap, "[PAD%d]", id);
    else if (!v->special[i].text) n = snprintf(dst, cap, "<|reserved_%d|>", id);
    else return str_from(v->special[i].text);
    return (str_view){ dst, (size_t)n };
}

static int kind_of(const synth_vocab *v, int id, int first_special)
{
    const int i = id - first_special;
    if (i < 0) return TOKEN_NORMAL;
    if (i >= v->n_special) return TOKEN_UNUSED;
    return v->special[i].kind ? v->special[i].kind : TOKEN_CONTROL;
}

static void write_ids(gguf_writer *w, const synth_vocab *v, int first_special)
{
    const struct { const char *key; int i; } ids[] = {
        { "tokenizer.ggml.bos_token_id", v->bos }, { "tokenizer.ggml.eos_token_id", v->eos },
        { "tokenizer.ggml.padding_token_id", v->pad }, { "tokenizer.ggml.eot_token_id", v->eot },
        { "tokenizer.ggml.eom_token_id", v->eom },
        { "tokenizer.ggml.unknown_token_id", v->unknown },
    };
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        if (ids[i].i >= 0) gguf_write_u32(w, ids[i].key, (uint32_t)(first_special + ids[i].i));
    gguf_write_bool(w, "tokenizer.ggml.add_bos_token", v->add_bos);
    gguf_write_str(w, "tokenizer.chat_template", str_from(v->chat_template));
}

static int refuse_room(int n_vocab, int first_special, err_ctx *err)
{
    return err_set(err, ERR_RANGE, "vocabulary: %d tokens with special ones from %d", n_vocab,
                   first_special);
}

static int refuse_memory(int n_vocab, err_ctx *err)
{
    return err_set(err, ERR_NOMEM, "vocabulary: out of memory for %d tokens", n_vocab);
}

/* ---- a vocabulary of bytes ---------------------------------------------------------------- */

static int write_bytes(gguf_writer *w, const synth_vocab *v, int n_vocab, int first_special,
                       err_ctx *err)
{
    const int n_merged = first_special - 256;
    merged *list = NULL;
    uint8_t (*triples)[3] = NULL;
    int32_t *kinds = NULL;
    alphabet a;
    char text[32];
    int rc = 0;

    if (n_merged < 0 || n_merged > SYNTH_MERGED_MAX || n_vocab - v->n_special < first_special)
        return refuse_room(n_vocab, first_special, err);
    list = mem_array((size_t)n_merged + 1, sizeof *list);
    triples = mem_array((size_t)n_merged + 1, sizeof *triples);
    kinds = mem_array((size_t)n_vocab, sizeof *kinds);
    if (!list || !triples || !kinds) {
        rc = refuse_memory(n_vocab, err);
        goto done;
    }
    alphabet_init(&a);
    list_merged(list, n_merged, &a, triples);

    gguf_write_str(w, "tokenizer.ggml.model", str_from("gpt2"));
    gguf_write_str(w, "tokenizer.ggml.pre", str_from(v->pre));
    gguf_write_str_array(w, "tokenizer.ggml.tokens", (uint64_t)n_vocab);
    for (int id = 0; id < n_vocab; id++) {
        kinds[id] = kind_of(v, id, first_special);
        gguf_write_array_str(w, id < 256 ? (str_view){ (const char *)a.text[id], a.len[id] }
                              : id < first_special ? merged_text(text, &list[id - 256], 0, &a)
                              : special_text(text, sizeof text, v, id, first_special));
    }
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, kinds, (uint64_t)n_vocab);
    gguf_write_str_array(w, "tokenizer.ggml.merges", (uint64_t)n_merged);
    for (int i = 0; i < n_merged; i++)
        gguf_write_array_str(w, merged_text(text, &list[i], merged_cut(&list[i]), &a));
    write_ids(w, v, first_special);
done:
    mem_free(kinds);
    mem_free(triples);
    mem_free(list);
    return rc;
}

/* ---- a vocabulary of characters ----------------------------------------------------------- */

typedef struct pieces {
    char single[SYNTH_SINGLES];          /* letters, then the rest of ASCII; ' ' is U+2581 */
    uint8_t (*triples)[3];
    int n;                               /* pairs and triples */
} pieces;

static void list_singles(char *out)
{
    int n = SYNTH_LETTERS;
    memcpy(out, letters, SYNTH_LETTERS);
    for (char c = '!'; c <= '~'; c++)
        if (!memchr(letters, c, SYNTH_LETTERS)) out[n++] = c;
}

/* Writes the indices in single[] of merged token i; returns their number. */
static int piece_parts(int part[3], const pieces *p, int i)
{
    const int n_pair = SYNTH_SINGLES * SYNTH_SINGLES;
    if (i < n_pair) {
        part[0] = i / SYNTH_SINGLES;
        part[1] = i % SYNTH_SINGLES;
        return 2;
    }
    for (int k = 0; k < 3; k++) part[k] = p->triples[i - n_pair][k];
    return 3;
}

/* Text of n parts, with a space after part cut - 1 if 0 < cut. */
static str_view piece_text(char *dst, const pieces *p, const int *part, int n_part, int cut)
{
    size_t n = 0;
    for (int k = 0; k < n_part; k++) {
        const char c = p->single[part[k]];
        if (k && k == cut) dst[n++] = ' ';
        n += (size_t)utf8_write((uint8_t *)dst + n, c == ' ' ? 0x2581 : (uint32_t)c);
    }
    return (str_view){ dst, n };
}

/* The same rule as merged_cut: pairs have their ranks in the order of their characters. */
static void write_piece_merges(gguf_writer *w, const pieces *p)
{
    char text[32];
    gguf_write_str_array(w, "tokenizer.ggml.merges", (uint64_t)p->n);
    for (int i = 0; i < p->n; i++) {
        int part[3];
        const int n = piece_parts(part, p, i);
        const bool right = n == 3 && part[0] * SYNTH_SINGLES + part[1] >
                                     part[1] * SYNTH_SINGLES + part[2];
        gguf_write_array_str(w, piece_text(text, p, part, n, n == 2 || right ? 1 : 2));
    }
}

static void write_piece_tokens(gguf_writer *w, const synth_vocab *v, const pieces *p, int n_vocab,
                               float *scores, int32_t *kinds)
{
    const int first_byte = v->n_special, first_piece = first_byte + 256;
    const int first_single = first_piece + p->n;
    char text[32];

    gguf_write_str_array(w, "tokenizer.ggml.tokens", (uint64_t)n_vocab);
    for (int id = 0; id < n_vocab; id++) {
        int part[3], n = 0;
        scores[id] = id < first_piece ? 0.0f : (float)(first_piece - id);
        kinds[id] = id < first_byte ? kind_of(v, id, 0) : id < first_piece ? TOKEN_BYTE
                                                                           : TOKEN_NORMAL;
        if (id < first_byte) {
            gguf_write_array_str(w, special_text(text, sizeof text, v, id, 0));
            continue;
        }
        if (id < first_piece) {
            snprintf(text, sizeof text, "<0x%02X>", id - first_byte);
            gguf_write_array_str(w, str_from(text));
            continue;
        }
        if (id < first_single) n = piece_parts(part, p, id - first_piece);
        else part[n++] = id - first_single;
        gguf_write_array_str(w, piece_text(text, p, part, n, 0));
    }
}

static int write_pieces(gguf_writer *w, const synth_vocab *v, int n_vocab, int first_special,
                        err_ctx *err)
{
    pieces p = { .n = n_vocab - v->n_special - 256 - SYNTH_SINGLES };
    float *scores = NULL;
    int32_t *kinds = NULL;
    int rc = 0;

    if (p.n < 0 || p.n > SYNTH_PIECES_MAX || first_special != 0)
        return refuse_room(n_vocab, first_special, err);
    const int n_triple = max_int(p.n - SYNTH_SINGLES * SYNTH_SINGLES, 0);
    p.triples = mem_array((size_t)n_triple + 1, sizeof *p.triples);
    scores = mem_array((size_t)n_vocab, sizeof *scores);
    kinds = mem_array((size_t)n_vocab, sizeof *kinds);
    if (!p.triples || !scores || !kinds) {
        rc = refuse_memory(n_vocab, err);
        goto done;
    }
    list_singles(p.single);
    list_triples(p.triples, n_triple);
    gguf_write_str(w, "tokenizer.ggml.model",
                   str_from(v->kind == SYNTH_SCORES ? "llama" : "gemma4"));
    if (v->pre) gguf_write_str(w, "tokenizer.ggml.pre", str_from(v->pre));
    write_piece_tokens(w, v, &p, n_vocab, scores, kinds);
    gguf_write_array(w, "tokenizer.ggml.scores", GGUF_F32, scores, (uint64_t)n_vocab);
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, kinds, (uint64_t)n_vocab);
    if (v->kind == SYNTH_RANKS) {
        write_piece_merges(w, &p);
        gguf_write_bool(w, "tokenizer.ggml.add_space_prefix", false);
    }
    write_ids(w, v, 0);
done:
    mem_free(kinds);
    mem_free(scores);
    mem_free(p.triples);
    return rc;
}

int synth_vocab_write(gguf_writer *w, const synth_vocab *v, int n_vocab, int first_special,
                      err_ctx *err)
{
    return v->kind == SYNTH_BYTES ? write_bytes(w, v, n_vocab, first_special, err)
                                  : write_pieces(w, v, n_vocab, first_special, err);
}
