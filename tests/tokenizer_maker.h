/* tokenizer_maker.h - a tokenizer of keys that a test wrote. */
#ifndef TESTS_TOKENIZER_MAKER_H
#define TESTS_TOKENIZER_MAKER_H

#include "engine/text/tokenizer.h"
#include "loader/gguf_write.h"

/* Frees w. */
int tokenizer_from(tokenizer **t, gguf_writer *w, err_ctx *err);

#endif
