/* tokenizer_checks.c - what tests of tokenizers share. */
#include "tests/tokenizer_checks.h"

#include <string.h>

#include "engine/text/tokenizer/unicode.h"
#include "tests/test.h"

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

void tokenizer_check_stream(const tokenizer *t, const id_list *ids, str_view want, const char *what)
{
    utf8_stream stream = { 0 };
    char *all = test_alloc(3 * want.len + 64, 1), piece[1024];
    size_t used = 0;
    bool valid = true, fits = true;
    for (size_t i = 0; i <= ids->n && fits; i++) {
        const size_t n = i < ids->n ? utf8_stream_push(&stream, piece,
                                                       tokenizer_bytes_at(t, ids->ids, i))
                                    : utf8_stream_end(&stream, piece);
        valid = valid && utf8_valid_prefix((const uint8_t *)piece, n) == n;
        fits = used + n <= want.len;
        if (fits) memcpy(all + used, piece, n);
        used += n;
    }
    CHECK_MSG(valid, "%s: a streamed piece is not valid UTF-8", what);
    CHECK_MSG(fits && str_eq((str_view){ all, used }, want), "%s: decoded text differs", what);
    mem_free(all);
}
