/* chat_mistral.c - Mixtral's [INST] format: messages to tokens.
 *
 * [INST] USER [/INST] ANSWER EOS. There is no system role: system text precedes the first user
 * text. Turns alternate, and there are no tools. The spaces around the parts are read from the
 * template. Templates of later models, which have tools or a system role, are not supported. */
#include "engine/text/chat/chat_internal.h"

static int mistral_setup(chat *c, str_view template, err_ctx *err)
{
    static const char *const others[] = {
        "<<SYS>>", "[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[SYSTEM_PROMPT]",
    };
    literal_scan k = { .s = template };
    textbuf lit = { 0 };
    bool lead = false, space = false;
    int rc = 0;

    if (!view_has(template, "[INST] ") || !view_has(template, " [/INST]") ||
        !view_has(template, "eos_token") || tokenizer_eos(c->t) < 0) return 0;
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (view_has(template, others[i])) return 0;
    while (rc == 0 && template_next(&k, &lit)) {
        rc = textbuf_check(&lit, err);
        if (str_starts(textbuf_view(&lit), " [INST]")) lead = true;
        if (str_is(textbuf_view(&lit), " ")) space = true;
    }
    textbuf_free(&lit);
    const bool tail = view_has(template, "eos_token + ' '") || view_has(template,
                                                                        "eos_token + \" \"");
    c->inst_lead = lead ? " " : "";
    c->answer_lead = space && !tail ? " " : "";
    c->answer_tail = tail ? " " : "";
    c->first = view_has(template, "bos_token") ? tokenizer_bos(c->t) : -1;
    return rc < 0 ? rc : 1;
}

static void mistral_render(prompt *p, const chat_request *req)
{
    const chat *c = p->c;
    const chat_message *ms = req->messages;
    const int n = req->n_message;
    const bool system = n > 0 && (ms[0].role == CHAT_SYSTEM || ms[0].role == CHAT_DEVELOPER);

    if (c->first >= 0) prompt_token(p, c->first);
    for (int i = system; i < n && p->rc == 0; i++) {
        const bool user = (i - system) % 2 == 0;
        if (ms[i].role != (user ? CHAT_USER : CHAT_ASSISTANT)) {
            p->rc = err_set(p->err, ERR_UNSUPPORTED, "messages[%d]: in this model's chat format "
                            "user and assistant take turns, after at most one system message", i);
        } else if (user) {
            prompt_text(p, c->inst_lead);
            prompt_tag(p, "[INST]");
            prompt_text(p, " ");
            if (system && i == 1) {
                prompt_view(p, ms[0].content);
                prompt_text(p, "\n\n");
            }
            prompt_view(p, ms[i].content);
            prompt_text(p, " ");
            prompt_tag(p, "[/INST]");
        } else {
            prompt_text(p, c->answer_lead);
            prompt_view(p, ms[i].content);
            prompt_token(p, tokenizer_eos(c->t));
            prompt_text(p, c->answer_tail);
        }
    }
}

const chat_ops mistral_ops = {
    .format = CHAT_MISTRAL, .name = "mistral", .setup = mistral_setup, .render = mistral_render,
    .push = plain_push, .end = plain_end,
};
