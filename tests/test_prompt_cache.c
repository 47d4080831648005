/* test_prompt_cache.c - how much of a prompt the next turn begins with: prompt_cache_stable.
 *
 * Conversations continue with an answer and a question, or with calls and their results, in every
 * chat format, with vocabularies that have tokens for tags such as <think> and with some that have
 * not. The next prompt begins with what was said to be stable, whatever the answer begins with.
 * After a plain answer it has one token more in common, and no other. */
#include "tests/test.h"

#include <stdio.h>

#include "cli/prompt_cache.h"
#include "tests/make_chat.h"

static const char tools[] = "[{`type`:`function`,`function`:{`name`:`look`,`parameters`:"
                            "{`type`:`object`,`properties`:{`at`:{`type`:`string`}}}}}]";
#define LOOK "^C look {`at`: `it`}"

/* What is asked, and how it goes on. */
static const struct format { const char *before, *after; bool tools, plain; } talks[] = {
    { "U Hello", "^A Hi.^U And now?", false, true },
    { "U Hello", "^A Hi.^R Hm.^U And now?", false, true },
    { "S Be kind.^U Hello", "^A Hi.^U And now?", true, true },
    { "U Hello^A Hi.^U Why?", "^A So.^U And now?", false, true },
    { "U Hello", "^A ^U And now?", false, false },
    { "U Hello", "^A \nHi.^U And now?", false, false },
    { "U Hello", "^A \n\n\nHi.^U And now?", false, false },
    { "U Hello", "^A  Hi.^U And now?", false, false },
    { "U Hello", "^A <b>Hi.</b>^U And now?", false, false },
    { "U Hello", "^A " LOOK "^T There.", true, false },
    { "U Hello", "^A I look." LOOK "^T There.", true, false },
    { "U Hello", "^A I look.^R Hm." LOOK "^T There.", true, false },
    { "U Hello", "^A ^R Hm." LOOK "^T There.^A So.^U And now?", true, false },
    { "U Hello^A " LOOK "^T There.", "^A So.^U And now?", true, false },
    { "U Hello^A " LOOK "^T There.", "^A " LOOK "^T Here.", true, false },
};

static void go_on(const chat *c, int k, int v, const struct format *t)
{
    request now, next;
    char all[400];
    id_list a = { 0 }, b = { 0 };
    err_ctx err = { 0 };
    snprintf(all, sizeof all, "%s%s", t->before, t->after);
    read_request(&now, t->before, t->tools ? tools : NULL);
    read_request(&next, all, t->tools ? tools : NULL);
    if (CHECK_MSG(chat_render(&a, c, vocab[v].e, &now.chat, &err) == 0 &&
                  chat_render(&b, c, vocab[v].e, &next.chat, &err) == 0,
                  "kind %d, vocabulary %d, %s: %s", k, v, all, err.msg)) {
        const int n = prompt_cache_stable(&a, c, vocab[v].e, &now.chat);
        int same = 0;
        while (same < (int)a.n && same < (int)b.n && a.ids[same] == b.ids[same]) same++;
        CHECK_MSG(n <= same && n < (int)a.n && (!t->plain || n == (k == RAW ? 0 : same - 1)),
                  "kind %d, vocabulary %d, %s: %d of %zu tokens, the next begins with %d", k, v,
                  all, n, a.n, same);
    }
    ids_free(&a);
    ids_free(&b);
    request_free(&now);
    request_free(&next);
}

static void test_kind(int k, int v)
{
    chat *c;
    err_ctx err = { 0 };
    const bool no_tools = k == RAW || k == MISTRAL || k == OLMOE;
    if (CHECK_MSG(make_chat(&c, v, kind_templates[k], &err) == 0, "kind %d: %s", k, err.msg))
        for (size_t i = 0; i < ARRAY_LEN(talks); i++)
            if (!no_tools || !talks[i].tools) go_on(c, k, v, &talks[i]);
    chat_free(c);
}

int main(int argc, char **argv)
{
    test_begin("prompt_cache", argc, argv);
    if (chats_open())
        for (int k = 0; k < N_KIND; k++) {
            test_kind(k, kinds[k].vocab);
            if (kinds[k].vocab < N_VOCAB_FILE) test_kind(k, k == HARMONY ? DEMO_GPTOSS : DEMO_QWEN);
        }
    chats_close();
    return test_end();
}
