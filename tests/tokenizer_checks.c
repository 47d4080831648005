/* tokenizer_checks.c - what tests of tokenizers share. */
#include "tests/tokenizer_checks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer/token_bytes.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/unicode.h"

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

/* ---- golden cases ---------------------------------------------------------------------------- */

/* What decoding gives back: NFC where the vocabulary has that, and spaces for U+2581. */
static str_view decoded(byte_buf *out, const tokenizer *t, str_view text)
{
    nfc_scratch scratch = { 0 };
    const uint8_t *const p = (const uint8_t *)text.ptr;
    if (pretokenizer_wants_nfc(t->pre)) CHECK(nfc_append(out, &scratch, p, text.len, NULL) == 0);
    else CHECK(byte_buf_append(out, p, text.len, NULL) == 0);
    if (t->model->by_char && out->n) out->n = token_bytes_spaces(out->ptr, out->n);
    nfc_scratch_free(&scratch);
    return (str_view){ (char *)out->ptr, out->n };
}

static void check_case(encoder *e, const tokenizer *t, const json_t *row, const json_t *want,
                       const char *what)
{
    const json_t *s = json_object_get(row, "text");
    const bool parse = json_is_true(json_object_get(row, "special"));
    const str_view text = { json_string_value(s), json_string_length(s) };
    id_list ids = { 0 };
    byte_buf back = { 0 };
    err_ctx err = { 0 };
    char *shown = json_dumps(want, JSON_COMPACT);
    CHECK_MSG(encoder_encode(e, &ids, text, parse, &err) == 0, "%s: %s", what, err.msg);
    bool same = ids.n == json_array_size(want);
    for (size_t i = 0; same && i < ids.n; i++)
        same = ids.ids[i] == json_integer_value(json_array_get(want, i));
    CHECK_MSG(same, "%s: %zu ids, from %d, expected %.200s", what, ids.n,
              ids.n ? (int)ids.ids[0] : -1, shown);
    for (size_t i = 0; i < ids.n && !t->model->by_char; i++)
        CHECK_MSG(str_eq(tokenizer_bytes(t, ids.ids[i], true), tokenizer_bytes_at(t, ids.ids, i)),
                  "%s: bytes of id %zu", what, i);
    /* around special tokens NFC of the parts is not NFC of the whole */
    if (!pretokenizer_wants_nfc(t->pre) ||
        strcmp(json_string_value(json_object_get(row, "cat")), "special-nfc") != 0)
        tokenizer_check_stream(t, &ids, decoded(&back, t, text), what);
    free(shown);
    byte_buf_free(&back);
    ids_free(&ids);
}

int tokenizer_check_cases(const tokenizer *t, const char *data, const char *name, const char *key)
{
    char what[600];
    const char *line = NULL;
    int n = 0, n_line = 0;
    json_t *row;
    encoder *e = NULL;
    CHECK(encoder_create(&e, t, NULL) == 0);
    while (e && (row = json_line(&line, &n_line, data, name, what))) {
        const json_t *ids = json_object_get(row, "ids");
        const json_t *want = key ? json_object_get(ids, key) : ids;
        if (want) check_case(e, t, row, want, what);
        n += want != NULL;
        json_decref(row);
    }
    encoder_free(e);
    return n;
}

/* ---- merging --------------------------------------------------------------------------------- */

size_t tokenizer_random_text(test_rng *rng, char *dst, size_t n_part)
{
    static const char *const parts[] = {
        "hello", " World", "  ", "\n", "\n\n", "\r\n", "'s", "'LL", "e\u0301", "\u0301",
        "\u4e2d\u6587", "123", " 7", "...", "/", "<", "<|im_end", "|>", "the", " the", " expert",
        "es", "ing", "\u1100\u1161", "\U0001f600", "\u3000", "A", "zz", "\u0939\u093f", "\xC2\x85",
        "(", "\t", "\u0416", "   ", "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz",
    };
    size_t used = 0;
    while (n_part-- > 0) {
        const char *s = parts[test_below(rng, ARRAY_LEN(parts))];
        memcpy(dst + used, s, strlen(s));
        used += strlen(s);
    }
    return used;
}

size_t tokenizer_merge_plain(const bpe *b, int32_t *out, const uint8_t *p, size_t len)
{
    size_t n = 0;
    for (size_t i = 0, size = 1; i < len; i += size) {
        uint32_t cp;
        if (b->by_char) size = utf8_read(&cp, p + i);
        const bool find = b->by_char && size <= b->longest;
        const int id = find ? bpe_find(b, p + i, size, bpe_hash(p + i, size)) : -1;
        if (id >= 0) out[n++] = id;
        for (size_t k = 0; id < 0 && k < size; k++) out[n++] = b->byte_id[p[i + k]];
    }
    for (;;) {
        uint64_t best = BPE_NO_PAIR;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const uint64_t pair = bpe_pair(b, (uint32_t)out[i], (uint32_t)out[i + 1]);
            if (pair >> 32 < best >> 32) best = pair, at = i;
        }
        if (best == BPE_NO_PAIR) return n;
        out[at] = (int32_t)(uint32_t)best;
        n--;
        memmove(out + at + 1, out + at + 2, (n - at - 1) * sizeof *out);
    }
}

int tokenizer_merge_differs(const bpe *b, bpe_work *work, const int32_t *want, size_t n_want,
                            const uint8_t *p, size_t len)
{
    int32_t got[2048];
    int64_t n = bpe_merge_long(b, work, got, p, len, NULL);
    int differs = n != (int64_t)n_want || memcmp(want, got, n_want * sizeof *want) != 0;
    if (len > BPE_SHORT_PIECE) return differs;
    n = (int64_t)bpe_merge_short(b, got, p, len);
    return differs + (n != (int64_t)n_want || memcmp(want, got, n_want * sizeof *want) != 0);
}

void tokenizer_check_work(const bpe *b, const uint8_t *p, const char *what)
{
    enum { ALL = TOKENIZER_WORK_BYTES };
    int32_t *out = test_alloc(ALL + 64, sizeof *out);
    uint64_t steps[2];
    for (int big = 0; big < 2; big++) {
        bpe_work work = { 0 };
        size_t len = big ? ALL : ALL / 4;
        while ((p[len] & 0xC0) == 0x80) len++;           /* to the end of a character */
        CHECK(bpe_merge_long(b, &work, out, p, len, NULL) > 0);
        steps[big] = work.steps;
        bpe_work_free(&work);
    }
    CHECK_MSG(steps[1] < 5 * steps[0] && steps[1] < 16 * ALL, "'%s': %llu steps for %d bytes, %llu "
              "for four times as many", what, (unsigned long long)steps[0], ALL / 4,
              (unsigned long long)steps[1]);
    mem_free(out);
}
