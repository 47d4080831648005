/* token_trie.c - sorts the tokens by their bytes and writes the tree in that order.
 *
 * Invariant: nodes are in preorder, siblings in ascending order of their bytes. Of tokens with
 * equal bytes the first is in the tree; the others are linked to it by `same`. */
#include "engine/text/tokenizer/token_trie.h"

#include <stdlib.h>

typedef struct entry { str_view bytes; int32_t id; } entry;

static int by_bytes(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    const int c = str_compare(x->bytes, y->bytes);
    return c ? c : (x->id > y->id) - (x->id < y->id);
}

static size_t common(str_view a, str_view b)
{
    size_t n = 0;
    while (n < a.len && n < b.len && a.ptr[n] == b.ptr[n]) n++;
    return n;
}

/* open[d] is the last node at depth d. Its skip is set when a token without it follows. */
static void write_nodes(token_trie *v, const entry *list, int n, int32_t *open)
{
    size_t depth = 0;
    for (int i = 0; i < n; i++) {
        const str_view bytes = list[i].bytes;
        const size_t keep = i ? common(list[i - 1].bytes, bytes) : 0;
        v->same[list[i].id] = -1;
        if (i && keep == bytes.len && keep == list[i - 1].bytes.len) {
            v->same[list[i - 1].id] = list[i].id;
            continue;
        }
        while (depth > keep) v->nodes[open[--depth]].skip = v->n_node;
        for (; depth < bytes.len; depth++) {
            open[depth] = v->n_node;
            v->nodes[v->n_node++] = (trie_node){ .id = -1, .depth = (uint16_t)depth,
                                                 .byte = (uint8_t)bytes.ptr[depth] };
        }
        v->nodes[v->n_node - 1].id = list[i].id;
    }
    while (depth > 0) v->nodes[open[--depth]].skip = v->n_node;
}

bool token_trie_has(const token_trie *v, int id)
{
    if (id < 0 || id >= tokenizer_n_token(v->tok)) return false;
    const token_kind kind = tokenizer_kind(v->tok, id);
    return (kind == TOKEN_NORMAL || kind == TOKEN_BYTE || (v->markup && kind == TOKEN_USER)) &&
           !tokenizer_is_stop(v->tok, id) && tokenizer_bytes(v->tok, id, false).len > 0;
}

static int build(token_trie *v, entry *list, int n_token, err_ctx *err)
{
    int n = 0;
    size_t most = 0, longest = 0;
    for (int id = 0; id < n_token; id++) {
        const str_view bytes = tokenizer_bytes(v->tok, id, false);
        if (!token_trie_has(v, id)) continue;
        list[n++] = (entry){ bytes, id };
        if (bytes.len > longest) longest = bytes.len;
    }
    if (longest > UINT16_MAX)
        return err_set(err, ERR_UNSUPPORTED, "a token of %zu bytes: at most %d are supported",
                       longest, UINT16_MAX);
    v->longest = (int)longest;
    qsort(list, (size_t)n, sizeof *list, by_bytes);
    for (int i = 0; i < n; i++)
        most += list[i].bytes.len - (i ? common(list[i - 1].bytes, list[i].bytes) : 0);
    if (most > INT32_MAX) return err_set(err, ERR_RANGE, "%zu bytes of tokens", most);
    int32_t *open = mem_array(longest + 1, sizeof *open);
    v->nodes = mem_array(most + 1, sizeof *v->nodes);
    v->same = mem_array((size_t)n_token, sizeof *v->same);
    const bool ok = open && v->nodes && v->same;
    if (ok) write_nodes(v, list, n, open);
    mem_free(open);
    return ok ? 0 : err_set(err, ERR_NOMEM, "out of memory for a tree of %d tokens", n);
}

int token_trie_create(token_trie **out, const tokenizer *t, bool markup, err_ctx *err)
{
    const int n_token = tokenizer_n_token(t);
    token_trie *v = mem_zalloc(sizeof *v);
    entry *list = mem_array((size_t)n_token, sizeof *list);
    *out = NULL;
    if (v) v->tok = t, v->markup = markup;
    const int rc = v && list ? build(v, list, n_token, err)
                             : err_set(err, ERR_NOMEM, "out of memory for a tree of %d tokens",
                                       n_token);
    mem_free(list);
    if (rc < 0) token_trie_free(v);
    else *out = v;
    return rc;
}

void token_trie_free(token_trie *v)
{
    if (!v) return;
    mem_free(v->nodes);
    mem_free(v->same);
    mem_free(v);
}
