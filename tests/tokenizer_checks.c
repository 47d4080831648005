/* tokenizer_checks.c - what tests of tokenizers share. */
#include "tests/tokenizer_checks.h"

#include <stdio.h>
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

bool ids_same(const id_list *a, const id_list *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0);
}

void tokenizer_check_ids(tokenizer *t, const char *text, bool parse, const char *want,
                         const char *why)
{
    encoder *e = NULL;
    id_list ids = { 0 };
    char got[200] = "";
    size_t used = 0;
    CHECK(encoder_create(&e, t, NULL) == 0 &&
          encoder_encode(e, &ids, str_from(text), parse, NULL) == 0);
    for (size_t i = 0; i < ids.n && i < 20; i++)
        used += (size_t)snprintf(got + used, sizeof got - used, i ? ",%d" : "%d", (int)ids.ids[i]);
    CHECK_MSG(strcmp(got, want) == 0, "'%s' gives %s, expected %s: %s", text, got, want, why);
    ids_free(&ids);
    encoder_free(e);
    tokenizer_free(t);
}

void tokenizer_check_bytes(const tokenizer *t, int n_round)
{
    static const char frequent[] = "\xC2\xE0\xED\xF0\xF4\xF5\x80\x8F\x9F\xA0\xBF\xC0 a<\xFF";
    test_rng rng = { 13 };
    encoder *e = NULL;
    int bad = 0;
    CHECK(encoder_create(&e, t, NULL) == 0);
    for (int round = 0; round < n_round && e; round++) {
        char raw[128], fixed[3 * sizeof raw];
        const size_t n = test_below(&rng, sizeof raw);
        size_t used = 0;
        id_list a = { 0 }, b = { 0 };
        for (size_t i = 0; i < n; i++)
            raw[i] = round % 2 ? frequent[test_below(&rng, sizeof frequent)]
                               : (char)test_below(&rng, 256);
        for (size_t i = 0; i < n;) {
            uint32_t cp;
            const int len = utf8_decode(&cp, (uint8_t *)raw + i, n - i);
            memcpy(fixed + used, len ? raw + i : "\uFFFD", len ? (size_t)len : 3);
            used += len ? (size_t)len : 3;
            i += len ? (size_t)len : 1;
        }
        CHECK(encoder_encode(e, &a, (str_view){ raw, n }, true, NULL) == 0 &&
              encoder_encode(e, &b, (str_view){ fixed, used }, true, NULL) == 0);
        bad += !ids_same(&a, &b);
        ids_free(&a);
        ids_free(&b);
    }
    CHECK_MSG(bad == 0, "%s: %d of %d byte strings encode otherwise than repaired",
              tokenizer_pre_name(t), bad, n_round);
    encoder_free(e);
}

/* One attempt; nth 0: no allocation fails. */
static int encode_whole(id_list *ids, const gguf *g, str_view text, long nth)
{
    tokenizer *t = NULL;
    encoder *e = NULL;
    id_list after = { 0 };
    err_ctx err = { 0 };
    mem_fail_after(nth);
    int rc = tokenizer_create(&t, g, &err);
    if (rc == 0) rc = encoder_create(&e, t, &err);
    if (rc == 0) rc = encoder_encode_whole(e, nth ? &after : ids, text, true, true, &err);
    mem_fail_after(0);
    CHECK_MSG(rc == 0 || (rc == ERR_NOMEM && err.code == rc), "allocation %ld: %d", nth, rc);
    after.n = 0;
    if (nth && e)
        CHECK_MSG(encoder_encode_whole(e, &after, text, true, true, &err) == 0 &&
                  ids_same(&after, ids), "after failure %ld: %zu ids, %s", nth, after.n, err.msg);
    ids_free(&after);
    encoder_free(e);
    tokenizer_free(t);
    return rc;
}

void tokenizer_check_no_memory(gguf_writer *w, str_view text, const char *what)
{
    const uint8_t *head;
    size_t bytes;
    gguf *g = NULL;
    id_list ids = { 0 };
    long n = 1;
    if (CHECK(gguf_write_head(w, &head, &bytes, NULL) == 0 &&
              gguf_open_memory(&g, head, bytes, NULL) == 0) &&
        CHECK(encode_whole(&ids, g, text, 0) == 0)) {
        while (n < 1000 && encode_whole(&ids, g, text, n) < 0) n++;
        CHECK_MSG(n > 15 && n < 1000, "%s: %ld allocations", what, n - 1);
    }
    ids_free(&ids);
    gguf_close(g);
    gguf_writer_free(w);
}

json_t *json_line(const char **line, int *n, const char *text, const char *name, char what[600])
{
    const char *begin = *n == 0 ? text : *line;
    json_error_t err;
    if (!begin || !*begin) return NULL;
    const size_t len = strcspn(begin, "\n");
    json_t *row = json_loadb(begin, len, JSON_ALLOW_NUL, &err);
    snprintf(what, 600, "%s:%d %.80s", name, ++*n, begin);
    CHECK_MSG(row, "%s: %s", what, err.text);
    *line = begin + len + (begin[len] == '\n');
    return row;
}
