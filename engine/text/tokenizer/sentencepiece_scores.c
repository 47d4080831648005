/* sentencepiece_scores.c - ranks tokens by score and adds a merge for every split of a token.
 *
 * Tokens with equal scores have the same rank, so the leftmost pair merges first. Each split costs
 * one look-up; MAX_TOKEN_BYTES bounds that work. */
#include "engine/text/tokenizer/sentencepiece_scores.h"

#include <math.h>
#include <stdlib.h>

#define KEY_SCORES "tokenizer.ggml.scores"

enum { MAX_TOKEN_BYTES = 256 };          /* the longest in published files have 48 */

typedef struct scored { float score; int id; } scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static int find_scores(const gguf_kv **out, const gguf *g, int n_token, err_ctx *err)
{
    const gguf_kv *kv = gguf_find(g, KEY_SCORES);
    if (!kv) return err_set(err, ERR_FORMAT, "key %s is missing", KEY_SCORES);
    if (!kv->is_array || kv->type != GGUF_F32)
        return err_set(err, ERR_FORMAT, "key %s is %s, expected array of f32", KEY_SCORES,
                       gguf_type_name(kv->type, kv->is_array));
    if (kv->count != (uint64_t)n_token)
        return err_set(err, ERR_FORMAT, "%s has %llu entries for %d tokens", KEY_SCORES,
                       (unsigned long long)kv->count, n_token);
    for (int id = 0; id < n_token; id++)
        if (!isfinite(load_f32(kv->data + 4 * (size_t)id)))
            return err_set(err, ERR_FORMAT, "the score of token %d is not a finite number", id);
    *out = kv;
    return 0;
}

static void rank_tokens(uint32_t *rank, scored *list, const gguf_kv *scores, int n_token)
{
    for (int id = 0; id < n_token; id++)
        list[id] = (scored){ load_f32(scores->data + 4 * (size_t)id), id };
    qsort(list, (size_t)n_token, sizeof *list, by_score);
    for (int i = 0; i < n_token; i++) {
        const bool same = i > 0 && list[i].score == list[i - 1].score;
        rank[list[i].id] = same ? rank[list[i - 1].id] : (uint32_t)i;
    }
}

int sentencepiece_scores_read(bpe *b, const gguf *g, err_ctx *err)
{
    const gguf_kv *scores = NULL;
    int rc = find_scores(&scores, g, b->n_token, err);
    if (rc < 0) return rc;
    if (b->longest > MAX_TOKEN_BYTES)
        return err_set(err, ERR_UNSUPPORTED, "a token has %zu bytes, at most %d are supported",
                       b->longest, MAX_TOKEN_BYTES);
    uint32_t *const rank = mem_array((size_t)b->n_token, sizeof *rank);
    scored *const list = mem_array((size_t)b->n_token, sizeof *list);
    if (!rank || !list) rc = err_set(err, ERR_NOMEM, "scores of %d tokens", b->n_token);
    if (rc == 0) rank_tokens(rank, list, scores, b->n_token);
    for (int id = 0; id < b->n_token && rc == 0; id++) rc = bpe_add_splits(b, id, err);
    if (rc == 0) rc = bpe_seal_merges(b, true, rank, err);
    mem_free(rank);
    mem_free(list);
    return rc;
}
