/* chat_maker.c - what the chat tests share: templates written for them, vocabularies, requests. */
#include "tests/chat_maker.h"

#include <stdlib.h>
#include <string.h>

#include "loader/gguf_write.h"
#include "tests/test.h"

/* ---- templates ------------------------------------------------------------------------------ */

/* Written for this test in the manner of the models' templates; only their literals are read. */
const char t_json[] =
    "{#- \"# Tools in a comment <tools>\" #}{%- if tools %}\n"
    "    {{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}{{- "
    "messages[0].content + '\\n\\n' }}\n"
    "    {%- endif %}{{- \"# Tools\\n\\nThese \\\"may\\\" be called, it\\'s up to "
    "you:\\n<tools>\" }}\n"
    "    {%- for tool in tools %}{{- \"\\n\" }}{{- tool | tojson }}{%- endfor %}\n"
    "    {{- \"\\n</tools>\\n\\nCall with <tool_call></tool_call>\\\\.<|im_end|>\\n\" }}{%- endif "
    "%}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

const char t_think[] =
    "{{- '<|im_start|>' + role + '\\n<think>\\n' + message.reasoning_content + "
    "'\\n</think>\\n\\n' }}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}";

static const char t_hybrid[] =
    "{{- '<|im_start|>' + role + '\\n<think>\\n' + message.reasoning_content }}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is false %}{{- "
    "'<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}{%- endif %}";

const char t_xml[] =
    "{{- \"<|im_start|>system\\nYou are a coder.\" }}{{- \"\\n\\n# Tools\\n\\nYou have:\\n\\n\" "
    "}}{{- \"<tools>\" }}"
    "{{- '\\n<parameters>' }}{{- \"\\n</tools>\" }}"
    "{{- '\\n\\nReply:\\n<tool_call>\\n<function=f>\\n<parameter=p>\\n' }}{{- '<|im_end|>\\n' }}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

static const char t_always[] =
    "{{- '<|im_start|>system\\nYou are default.<|im_end|>\\n' }}{{- '<|im_start|>assistant\\n' }}";

static const char t_bare[] = "{% for m in messages %}<|im_start|>{{ m }}{% endfor %}"
                             "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% "
                             "endif %}";

const char t_other[] = "[INST] {{ messages[0].content }} [/INST]";

/* ---- fixtures ------------------------------------------------------------------------------- */

test_vocab vocab[N_VOCAB];
chat *chats[N_KIND];
const chat_kind kinds[N_KIND] = {
    [JSON] = { QWEN, t_json }, [THINK] = { QWEN, t_think }, [HYBRID] = { QWEN, t_hybrid },
    [XML] = { QWEN, t_xml }, [ALWAYS] = { QWEN, t_always }, [BARE] = { QWEN, t_bare },
    [HARMONY] = { GPTOSS, NULL }, [RAW] = { QWEN, t_other },
};

static bool open_vocab(int v)
{
    static const char *const names[] = {
        "tokenizer/qwen3-vocab", "tokenizer/gptoss-vocab", "/../models/demo-qwen3next-Q4_K_M",
        "/../models/demo-gptoss-MXFP4",
    };
    char path[512];
    err_ctx err = { 0 };
    int rc;

    test_path(path, sizeof path, "%s/%s.gguf", v <= GPTOSS ? test_unpacked() : test_golden(),
              names[v]);
    rc = gguf_open(&vocab[v].g, path, &err);
    if (rc == 0) rc = tokenizer_create(&vocab[v].t, vocab[v].g, &err);
    if (rc == 0) rc = encoder_create(&vocab[v].e, vocab[v].t, &err);
    if (!CHECK_MSG(rc == 0, "%s: %s", path, err.msg)) return false;
    for (int id = 0; id < 256; id++) {
        const str_view s = tokenizer_bytes(vocab[v].t, id, true);
        if (s.len == 1) vocab[v].byte_id[(unsigned char)s.ptr[0]] = id;
    }
    return true;
}

static void close_vocabs(void)
{
    for (int v = 0; v < N_VOCAB; v++) {
        encoder_free(vocab[v].e);
        tokenizer_free(vocab[v].t);
        gguf_close(vocab[v].g);
    }
}

int make_chat(chat **out, int v, const char *tmpl, err_ctx *err)
{
    gguf_writer *w = gguf_writer_create();
    const uint8_t *head;
    size_t bytes;
    gguf *g = NULL;
    int rc = ERR_NOMEM;

    *out = NULL;
    if (w) {
        gguf_write_str(w, "general.architecture", str_from("test"));
        if (tmpl) gguf_write_str(w, "tokenizer.chat_template", str_from(tmpl));
        rc = gguf_write_head(w, &head, &bytes, err);
        if (rc == 0) rc = gguf_open_memory(&g, head, bytes, err);
        if (rc == 0) rc = chat_create(out, g, vocab[v].t, err);
    }
    gguf_close(g);
    gguf_writer_free(w);
    return rc;
}

bool chats_open(void)
{
    err_ctx err = { 0 };
    bool ready = true;
    for (int v = 0; v < N_VOCAB; v++) ready &= open_vocab(v);
    for (int k = 0; ready && k < N_KIND; k++)
        ready = CHECK_MSG(make_chat(&chats[k], kinds[k].vocab, kinds[k].tmpl, &err) == 0,
                          "kind %d: %s", k, err.msg);
    return ready;
}

void chats_close(void)
{
    for (int k = 0; k < N_KIND; k++) chat_free(chats[k]);
    close_vocabs();
}

/* ---- requests ------------------------------------------------------------------------------- */

json_t *read_json(const char *text)
{
    char *copy = mem_strdup_n(text, strlen(text));
    json_error_t why;
    json_t *v;
    for (char *p = copy; *p; p++) if (*p == '`') *p = '"';
    v = json_loads(copy, 0, &why);
    if (!CHECK_MSG(v != NULL, "%s: %s", text, why.text)) exit(1);
    mem_free(copy);
    return v;
}

void read_request(request *r, const char *talk, const char *tools)
{
    static const char roles[] = "SDUAT";
    chat_message *m = NULL;
    chat_request *q = &r->chat;

    memset(r, 0, sizeof *r);
    r->talk = mem_strdup_n(talk, strlen(talk));
    r->tools = tools ? read_json(tools) : NULL;
    *q = (chat_request){ .messages = r->messages, .tools = r->tools, .effort = CHAT_EFFORT_MEDIUM };
    for (char *p = r->talk; *p; p++) if (*p == '`') *p = '"';
    for (char *part = r->talk, *end; part; part = end) {
        const char kind = *part;
        end = strchr(part, '^');
        if (end) *end++ = '\0';
        if (!kind) continue;
        const str_view text = str_from(kind != '.' && part[1] ? part + 2 : "");
        const char *role = strchr(roles, kind);
        if (role) {
            m = &r->messages[q->n_message++];
            *m = (chat_message){ .role = (chat_role)(role - roles), .content = text };
            m->calls = r->calls[m - r->messages];
        } else if (kind == 'C') {
            const size_t n = strcspn(text.ptr, " ");
            const char *args = text.ptr + n + (text.ptr[n] == ' ');
            r->calls[m - r->messages][m->n_call++] = (chat_call){ { text.ptr, n }, str_from(args) };
        } else if (kind == 'R') {
            m->reasoning = text;
        } else if (kind == 'N') {
            m->name = text;
        } else if (kind == 'E') {
            q->effort = str_is(text, "low") ? CHAT_EFFORT_LOW : CHAT_EFFORT_HIGH;
        } else if (kind == '@') {
            q->date = text;
        } else {
            q->no_cue = CHECK_MSG(kind == '.', "conversation \"%s\"", talk);
        }
    }
}

void request_free(request *r)
{
    json_decref(r->tools);
    mem_free(r->talk);
}

char *text_of_ids(const tokenizer *t, const int32_t *ids, size_t n)
{
    size_t len = 0;
    char *s, *p;
    for (size_t i = 0; i < n; i++) len += tokenizer_bytes(t, ids[i], true).len;
    p = s = mem_alloc(len + 1);
    for (size_t i = 0; i < n; i++) {
        const str_view b = tokenizer_bytes(t, ids[i], true);
        memcpy(p, b.ptr, b.len);
        p += b.len;
    }
    *p = '\0';
    return s;
}
