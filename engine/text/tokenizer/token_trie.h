/* token_trie.h - the bytes of all ordinary tokens as one tree, so that tokens that begin alike are
 * looked at together.
 *
 * Built once for a tokenizer, immutable after that, may be shared by threads. Special tokens
 * (CONTROL) and unused ones are not in it; those of USER kind (tags like <tool_call>) only where
 * markup is meant. */
#ifndef ENGINE_TEXT_TOKENIZER_TOKEN_TRIE_H
#define ENGINE_TEXT_TOKENIZER_TOKEN_TRIE_H

#include "engine/text/tokenizer/tokenizer.h"

/* A byte after those of its parent. Children follow their parent, the first right away; skip is the
 * node after all that are below this one. */
typedef struct trie_node {
    int32_t skip;
    int32_t id;                          /* a token that ends here; -1: none */
    uint16_t depth;                      /* bytes before this one */
    uint8_t byte;
} trie_node;

typedef struct token_trie {
    const tokenizer *tok;                /* borrowed */
    bool markup;                         /* with USER tokens */
    trie_node *nodes;
    int n_node;
    int longest;                         /* bytes of the longest token */
    int32_t *same;                       /* [n_token] the next token with the same bytes, or -1 */
} token_trie;

/* Borrows t. Refuses tokens of 65,536 bytes and more. */
int token_trie_create(token_trie **out, const tokenizer *t, bool markup, err_ctx *err);
bool token_trie_has(const token_trie *v, int id);        /* id may be any */
void token_trie_free(token_trie *v);     /* NULL is fine */

#endif
