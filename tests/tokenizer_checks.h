/* tokenizer_checks.h - what tests of tokenizers share. */
#ifndef TESTS_TOKENIZER_CHECKS_H
#define TESTS_TOKENIZER_CHECKS_H

#include <jansson.h>

#include "engine/text/tokenizer/bpe.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "loader/gguf_write.h"
#include "tests/test.h"

/* The tokenizer of keys that a test wrote. Frees w. */
int tokenizer_from(tokenizer **t, gguf_writer *w, err_ctx *err);

/* Encodes with an encoder of its own; the ids must be those in want, "1,2,3", of which 20 are
 * compared. Frees t. */
void tokenizer_check_ids(tokenizer *t, const char *text, bool parse, const char *want,
                         const char *why);

/* Any bytes encode as if each byte outside a valid sequence were U+FFFD. */
void tokenizer_check_bytes(const tokenizer *t, int n_round);

/* Each allocation of tokenizer, encoder and encoding fails once: ERR_NOMEM, and the encoder works
 * afterwards. Frees w. */
void tokenizer_check_no_memory(gguf_writer *w, str_view text, const char *what);

bool ids_same(const id_list *a, const id_list *b);

/* Golden cases in JSON lines: ids, or those of key if it is not NULL, and the text that comes back
 * from them. Returns their number. */
int tokenizer_check_cases(const tokenizer *t, const char *data, const char *name, const char *key);

/* Random words, spaces, marks and scripts, at most 56 bytes for each of n_part. */
size_t tokenizer_random_text(test_rng *rng, char *dst, size_t n_part);

/* Merges by the list as plainly as possible. */
size_t tokenizer_merge_plain(const bpe *b, int32_t *out, const uint8_t *p, size_t len);

/* 0, or how many of the two merge loops give other ids. */
int tokenizer_merge_differs(const bpe *b, bpe_work *work, const int32_t *want, size_t n_want,
                            const uint8_t *p, size_t len);

/* Four times the bytes take hardly more than four times the steps; quadratic would be sixteen.
 * p has 64 bytes more, in which a character may end. */
enum { TOKENIZER_WORK_BYTES = 1 << 16 };
void tokenizer_check_work(const bpe *b, const uint8_t *p, const char *what);

/* The next line of a text in JSON lines, or NULL after the last. what: name, number and beginning of
 * the line, for messages. Begin with *line NULL and *n 0. */
json_t *json_line(const char **line, int *n, const char *text, const char *name, char what[600]);

/* Id by id: each piece that comes out is valid UTF-8, all of them together are the text. */
void tokenizer_check_stream(const tokenizer *t, const id_list *ids, str_view want,
                            const char *what);

#endif
