/* token_trie.h - prefix tree of the bytes of all ordinary tokens, for grammar_mask.c.
 *
 * Immutable after token_trie_create; may be shared by threads. CONTROL and UNUSED tokens are not in
 * it. USER tokens (tags like <tool_call>) are in it only if it was created with markup. */
#ifndef ENGINE_TEXT_TOKENIZER_TOKEN_TRIE_H
#define ENGINE_TEXT_TOKENIZER_TOKEN_TRIE_H

#include "engine/text/tokenizer/tokenizer.h"

/* One byte after those of its parent. Nodes are in preorder; skip is the index of the first node
 * after this subtree. */
typedef struct trie_node {
    int32_t skip;
    int32_t id;                          /* the first token that ends here; -1: none */
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
bool token_trie_has(const token_trie *v, int id);        /* false for an id out of range */
void token_trie_free(token_trie *v);     /* NULL is fine */

#endif
