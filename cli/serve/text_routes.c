/* text_routes.c - reads a JSON body, calls tokenizer or chat format, replies with JSON. */
#include "cli/serve/text_routes.h"

#include <stdlib.h>
#include <string.h>

#include "cli/console.h"
#include "cli/serve/error_reply.h"

static void refuse(http_exchange *x, api_error_type type, const char *text)
{
    error_reply_text(x, API_CHAT, type, text);
}

/* Takes the reference to v. */
static void reply(http_exchange *x, json_t *v)
{
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    http_reply_json(x, 200, text);
    free(text);                          /* Jansson's own */
    json_decref(v);
}

static void tokenize(server_context *c, http_exchange *x, const json_t *root)
{
    const json_t *content = json_object_get(root, "content");
    const bool special = json_is_true(json_object_get(root, "parse_special"));
    const bool whole = json_is_true(json_object_get(root, "add_special"));
    id_list ids = { 0 };
    err_ctx err = { 0 };
    json_t *list = json_array();
    const str_view text = { json_string_value(content), json_string_length(content) };
    if (!json_is_string(content)) {
        refuse(x, API_BAD_REQUEST, "content must be a string");
    } else if ((whole ? encoder_encode_whole(c->enc, &ids, text, special, true, &err)
                      : encoder_encode(c->enc, &ids, text, special, &err)) < 0) {
        refuse(x, API_BAD_REQUEST, err.msg);
    } else {
        for (size_t i = 0; i < ids.n; i++) json_array_append_new(list, json_integer(ids.ids[i]));
        reply(x, json_pack("{s:O}", "tokens", list));
    }
    json_decref(list);
    ids_free(&ids);
}

/* The text of the tokens; invalid UTF-8 becomes U+FFFD. */
static void reply_text(server_context *c, http_exchange *x, const char *key, const int32_t *ids,
                       size_t n)
{
    textbuf text = { 0 };
    utf8_stream utf8 = { 0 };
    for (size_t i = 0; i <= n; i++) {
        const str_view bytes = i < n ? tokenizer_bytes_at(c->tok, ids, i) : (str_view){ 0 };
        char *dst = textbuf_room(&text, 3 * (bytes.len + 3) + 3);
        if (!dst) break;
        text.len += i < n ? utf8_stream_push(&utf8, dst, bytes) : utf8_stream_end(&utf8, dst);
    }
    reply(x, text.failed ? NULL : json_pack("{s:s%}", key, text.ptr ? text.ptr : "", text.len));
    textbuf_free(&text);
}

static void detokenize(server_context *c, http_exchange *x, const json_t *root)
{
    const json_t *list = json_object_get(root, "tokens");
    id_list ids = { 0 };
    err_ctx err = { 0 };
    bool ok = json_is_array(list);
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        ok = id >= 0 && id < tokenizer_n_token(c->tok) && ids_push(&ids, (int32_t)id, &err) == 0;
    }
    if (ok) reply_text(c, x, "content", ids.ids, ids.n);
    else refuse(x, API_BAD_REQUEST, "tokens must be a list of ids of the vocabulary");
    ids_free(&ids);
}

static void apply_template(server_context *c, http_exchange *x, str_view body)
{
    api_request *r;
    api_error error;
    id_list ids = { 0 };
    err_ctx err = { 0 };
    char date[32];
    if (api_parse(&r, API_CHAT, false, body.ptr, body.len, &error) < 0) {
        error_reply(x, API_CHAT, &error);
        return;
    }
    r->chat.date = str_from(text_today(date, sizeof date));
    if (chat_render(&ids, c->format, c->enc, &r->chat, &err) < 0)
        refuse(x, API_BAD_REQUEST, err.msg);
    else reply_text(c, x, "prompt", ids.ids, ids.n);
    ids_free(&ids);
    api_request_free(r);
}

/* Larger bodies would hold up the network thread. */
enum { MAX_TEXT_BYTES = 256 << 10 };

void text_route(server_context *c, http_exchange *x, int action)
{
    const str_view body = http_body(x);
    api_error error;
    json_t *root = NULL;
    if (body.len > MAX_TEXT_BYTES) {
        refuse(x, API_TOO_LARGE, "the body exceeds 256 KiB");
        return;
    }
    if (action == TEXT_TEMPLATE) {
        apply_template(c, x, body);
        return;
    }
    if (!(root = api_json_read(body.ptr, body.len, &error)))
        error_reply(x, API_CHAT, &error);
    else if (action == TEXT_TOKENIZE) tokenize(c, x, root);
    else detokenize(c, x, root);
    json_decref(root);
}
