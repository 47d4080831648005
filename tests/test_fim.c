/* test_fim.c - prompts with a gap, for vocabularies that have tokens for it and others. */
#include <string.h>

#include "engine/text/chat/fim.h"
#include "tests/make_chat.h"
#include "tests/test.h"

static void check_wrap(const char *before, const char *after, const char *right)
{
    const test_vocab *v = &vocab[QWEN];
    id_list ids = { 0 };
    err_ctx err = { 0 };
    CHECK(encoder_encode(v->e, &ids, str_from(before), false, &err) == 0);
    CHECK_MSG(fim_wrap(&ids, v->t, v->e, str_from(after), &err) == 0, "%s", err.msg);
    char *text = text_of_ids(v->t, ids.ids, ids.n);
    CHECK_MSG(strcmp(text, right) == 0, "%s, not %s", text, right);
    mem_free(text);
    ids_free(&ids);
}

int main(int argc, char **argv)
{
    test_begin("fim", argc, argv);
    if (chats_open()) {
        CHECK(fim_is_known(vocab[QWEN].t) && !fim_is_known(vocab[GPTOSS].t));
        check_wrap(
            "def f(x):\n    return ", "\n\nprint(f(1))",
            "<|fim_prefix|>def f(x):\n    return <|fim_suffix|>\n\nprint(f(1))<|fim_middle|>");
        check_wrap("", "b", "<|fim_prefix|><|fim_suffix|>b<|fim_middle|>");
        id_list ids = { 0 };
        err_ctx err = { 0 };
        CHECK(ids_push(&ids, 7, &err) == 0);
        CHECK(fim_wrap(&ids, vocab[GPTOSS].t, vocab[GPTOSS].e, str_from("x"), &err) ==
              ERR_UNSUPPORTED);
        CHECK(ids.n == 1 && ids.ids[0] == 7 && strstr(err.msg, "fill in the middle"));
        ids_free(&ids);
    }
    chats_close();
    return test_end();
}
