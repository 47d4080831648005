/* text_routes.c - text to ids and back, and messages to the text of a prompt. */
#include "cli/serve/text_routes.h"

#include <stdlib.h>
#include <string.h>

#include "cli/console.h"

static void refuse_text(http_exchange *x, const char *text)
{
    api_error why;
    api_error_make(&why, API_BAD_REQUEST, API_CHAT, "%s", text);
    route_refuse(x, API_CHAT, &why);
}

/* Takes the value. */
static void reply(http_exchange *x, json_t *v)
{
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    http_reply(x, text ? 200 : 500, "application/json", text ? text : "", text ? strlen(text) : 0);
    free(text);                          /* Jansson's own */
    json_decref(v);
}

static void tokenize(front *f, http_exchange *x, const json_t *root)
{
    const json_t *content = json_object_get(root, "content");
    const bool special = json_is_true(json_object_get(root, "parse_special"));
    const bool whole = json_is_true(json_object_get(root, "add_special"));
    id_list ids = { 0 };
    err_ctx err = { 0 };
    json_t *list = json_array();
    const str_view text = { json_string_value(content), json_string_length(content) };
    if (!json_is_string(content)) {
        refuse_text(x, "content has to be a text");
    } else if ((whole ? encoder_encode_whole(f->enc, &ids, text, special, true, &err)
                      : encoder_encode(f->enc, &ids, text, special, &err)) < 0) {
        refuse_text(x, err.msg);
    } else {
        for (size_t i = 0; i < ids.n; i++) json_array_append_new(list, json_integer(ids.ids[i]));
        reply(x, json_pack("{s:O}", "tokens", list));
    }
    json_decref(list);
    ids_free(&ids);
}

/* Bytes of the tokens, with what is no character replaced. */
static void reply_text(front *f, http_exchange *x, const char *key, const int32_t *ids, size_t n)
{
    textbuf text = { 0 };
    utf8_stream utf8 = { 0 };
    for (size_t i = 0; i <= n; i++) {
        const str_view bytes = i < n ? tokenizer_bytes_at(f->tok, ids, i) : (str_view){ 0 };
        char *to = textbuf_room(&text, 3 * (bytes.len + 3) + 3);
        if (!to) break;
        text.len += i < n ? utf8_stream_push(&utf8, to, bytes) : utf8_stream_end(&utf8, to);
    }
    reply(x, text.failed ? NULL : json_pack("{s:s%}", key, text.ptr ? text.ptr : "", text.len));
    textbuf_free(&text);
}

static void detokenize(front *f, http_exchange *x, const json_t *root)
{
    const json_t *list = json_object_get(root, "tokens");
    id_list ids = { 0 };
    err_ctx err = { 0 };
    bool ok = json_is_array(list);
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        ok = id >= 0 && id < tokenizer_n_token(f->tok) && ids_push(&ids, (int32_t)id, &err) == 0;
    }
    if (ok) reply_text(f, x, "content", ids.ids, ids.n);
    else refuse_text(x, "tokens has to be a list of ids of the vocabulary");
    ids_free(&ids);
}

static void apply_template(front *f, http_exchange *x, str_view body)
{
    api_request *r;
    api_error why;
    id_list ids = { 0 };
    err_ctx err = { 0 };
    char date[32];
    if (api_parse(&r, API_CHAT, body.ptr ? body.ptr : "", body.len, &why) < 0) {
        route_refuse(x, API_CHAT, &why);
        return;
    }
    r->chat.date = str_from(text_today(date, sizeof date));
    if (chat_render(&ids, f->talk, f->enc, &r->chat, &err) < 0) refuse_text(x, err.msg);
    else reply_text(f, x, "prompt", ids.ids, ids.n);
    ids_free(&ids);
    api_request_free(r);
}

/* On the network's thread: what takes long is refused. */
enum { MOST_TEXT = 256 << 10 };

void text_route(front *f, http_exchange *x, int which)
{
    const str_view body = http_body(x);
    api_error why;
    json_t *root = NULL;
    if (body.len > MOST_TEXT) {
        api_error_make(&why, API_TOO_LARGE, API_CHAT, "at most 256 KiB of text here");
        route_refuse(x, API_CHAT, &why);
        return;
    }
    if (which == TEXT_TEMPLATE) {
        apply_template(f, x, body);
        return;
    }
    if (!(root = api_json_read(body.ptr ? body.ptr : "", body.len, &why)))
        route_refuse(x, API_CHAT, &why);
    else if (which == TEXT_TOKENIZE) tokenize(f, x, root);
    else detokenize(f, x, root);
    json_decref(root);
}
