/* tokenizer_checks.h - what tests of tokenizers share. */
#ifndef TESTS_TOKENIZER_CHECKS_H
#define TESTS_TOKENIZER_CHECKS_H

#include "engine/text/tokenizer/tokenizer.h"
#include "loader/gguf_write.h"

/* The tokenizer of keys that a test wrote. Frees w. */
int tokenizer_from(tokenizer **t, gguf_writer *w, err_ctx *err);

/* Id by id: each piece that comes out is valid UTF-8, all of them together are the text. */
void tokenizer_check_stream(const tokenizer *t, const id_list *ids, str_view want,
                            const char *what);

#endif
