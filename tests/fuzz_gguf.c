/* fuzz_gguf.c - fuzz target: everything the engine does with a file before it computes.
 *
 * Opens the bytes as a GGUF file, walks what the loader promised (strings, arrays, tensor bytes),
 * binds a model, builds the tokenizer and the chat format, and pushes a little text through both.
 * Runs under libFuzzer, AFL++ (which takes the same entry point) or tests/fuzz_main.c. */
#include <stdlib.h>

#include "engine/models/model.h"
#include "engine/text/chat/chat.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "loader/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t output_file;    /* keeps reads from being optimised away */

static void touch(const void *bytes, uint64_t n)
{
    const uint8_t *p = bytes;
    if (n) output_file += p[0] + p[n - 1];
}

static void walk_metadata(const gguf *g)
{
    for (int i = 0; i < gguf_n_kv(g); i++) {
        const gguf_kv *kv = gguf_kv_at(g, i);
        gguf_strings it = gguf_strings_begin(kv);
        char text[64];
        str_view s;
        int64_t v;
        touch(ESC(text, kv->key), 1);
        while (gguf_strings_next(&it, &s)) touch(s.ptr, s.len);
        if (kv->count && gguf_kv_int(&v, kv, kv->count - 1)) output_file += (uint64_t)v;
    }
}

static void walk_tensors(const gguf *g)
{
    for (int i = 0; i < gguf_n_tensor(g); i++) {
        const tensor *t = gguf_tensor_at(g, i);
        const quant_traits *q = quant_traits_of(t->type);
        const uint8_t *last = tensor_row(t, t->slabs - 1, t->rows - 1) + t->row_bytes -
                              q->block_bytes;
        float values[256];
        char text[64];
        touch(t->data, t->bytes);
        touch(tensor_shape_text(text, sizeof text, t), 1);
        if (q->decode) {
            q->decode(values, t->data, 1);
            q->decode(values, last, 1);
            touch(values, sizeof values[0]);
        }
    }
}

static int count_event(void *ctx, const chat_event *ev)
{
    (void)ctx;
    touch(ev->text.ptr, ev->text.len);
    return 0;
}

static void try_chat(const gguf *g, const tokenizer *t, encoder *e, const id_list *ids)
{
    const chat_message messages[2] = {
        { .role = CHAT_SYSTEM, .content = str_from("be brief") },
        { .role = CHAT_USER, .content = str_from("<|im_end|> hi") },
    };
    const chat_request req = { .messages = messages, .n_message = 2, .effort = CHAT_EFFORT_LOW };
    id_list prompt = { 0 };
    chat_parser *p = NULL;
    chat *c = NULL;
    err_ctx err;

    if (chat_create(&c, g, t, &err) == 0) {
        if (chat_render(&prompt, c, e, &req, &err) == 0) touch(prompt.ids, prompt.n);
        if (chat_parser_create(&p, c, &req, &err) == 0) {
            int rc = 0;
            for (size_t i = 0; i < ids->n && rc == 0; i++)
                rc = chat_parser_push(p, ids->ids[i], count_event, NULL, &err);
            if (rc == 0) chat_parser_end(p, count_event, NULL, &err);
        }
    }
    chat_parser_free(p);
    chat_free(c);
    ids_free(&prompt);
}

static void try_text(const gguf *g, const uint8_t *data, size_t size)
{
    const str_view text = { (const char *)data, size < 512 ? size : 512 };
    tokenizer *t = NULL;
    encoder *e = NULL;
    id_list ids = { 0 };
    err_ctx err;

    if (tokenizer_create(&t, g, &err) == 0 && encoder_create(&e, t, &err) == 0) {
        encoder_encode(e, &ids, str_from("Hello <|im_start|>w\xC3\xB6rld 123\n  it's <think>"),
                       true, &err);
        encoder_encode(e, &ids, text, false, &err);
        encoder_encode_whole(e, &ids, str_from("aa\n\n b\xE2\x96\x81" "b<s>c"), true, true, &err);
        for (size_t i = 0; i < ids.n; i++) {
            const str_view s = tokenizer_bytes(t, ids.ids[i], true);
            const str_view at = tokenizer_bytes_at(t, ids.ids, i);
            touch(s.ptr, s.len);
            touch(at.ptr, at.len);
        }
        try_chat(g, t, e, &ids);
    }
    ids_free(&ids);
    encoder_free(e);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    model_bytes bytes;
    err_ctx err;
    model *m;
    gguf *g;

    if (gguf_open_memory(&g, data, size, &err) < 0) return 0;
    walk_metadata(g);
    walk_tensors(g);
    if (model_bind(&m, g, &err) == 0) {
        model_count_bytes(&bytes, m);
        output_file += bytes.params;
    }
    model_free(m);
    try_text(g, data, size);
    gguf_close(g);
    return 0;
}
