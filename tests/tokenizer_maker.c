/* tokenizer_maker.c - a tokenizer of keys that a test wrote. */
#include "tests/tokenizer_maker.h"

int tokenizer_from(tokenizer **t, gguf_writer *w, err_ctx *err)
{
    const uint8_t *head;
    size_t bytes;
    gguf *g = NULL;
    *t = NULL;
    int rc = gguf_write_head(w, &head, &bytes, err);
    if (rc == 0) rc = gguf_open_memory(&g, head, bytes, err);
    if (rc == 0) rc = tokenizer_create(t, g, err);
    gguf_close(g);
    gguf_writer_free(w);
    return rc;
}
