/* make_chat.c - what the chat tests share: templates written for them, vocabularies, requests. */
#include "tests/make_chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/gguf_write.h"
#include "tests/case_file.h"

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

/* Of later templates only what tells them from others, in the order in which it stands there. */
const char t_qwen3[] =
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}"
    "{{- messages[0].content + '\\n\\n' }}{%- endif %}{{- \"\1\" }}{{- tool | tojson }}"
    "{{- \"\2<|im_end|>\\n\" }}{%- endif %}{{- '<|im_start|>' + role + '\\n<think>\\n' + "
    "message.reasoning_content }}{{- '\\n</tool_response>' }}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}";

const char t_coder[] =
    "{{- \"<|im_start|>system\\n\3\" }}{{- \"\\n\\n\1\" }}{{- '\\n<parameters>' }}{{- \"\2\" }}"
    "{%- if system_message is defined %}{{- '<|im_end|>\\n' }}{%- endif %}"
    "{{- '\\n<tool_call>\\n<function=' + name + '>\\n' }}{{- '<parameter=' + key + '>\\n' }}"
    "{{- '\\n</tool_response>\\n' }}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

#define QWEN35_HEAD \
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{{- \"\1\" }}{{- \"\\n\" }}{{- \"\2\" }}" \
    "{%- if messages[0].role == 'system' %}{{- '\\n\\n' + content }}{%- endif %}" \
    "{{- '<|im_end|>\\n' }}{%- endif %}{{- raise_exception('System message must be at the " \
    "beginning.') }}{%- set content = render_content(message.content, true)|trim %}" \
    "{{- '<|im_start|>' + role + '\\n<think>\\n' + reasoning_content + '\\n</think>\\n\\n' }}" \
    "{{- '<tool_call>\\n<function=' + name + '>\\n' }}{{- '<parameter=' + key + '>\\n' }}"
#define QWEN35_TAIL \
    "{{- '\\n</tool_response>' }}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}" \
    "{%- if enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- else %}" \
    "{{- '<think>\\n' }}{%- endif %}{%- endif %}"
const char t_qwen35[] = QWEN35_HEAD QWEN35_TAIL;
const char t_qwen36[] = QWEN35_HEAD "{%- set args_value = args_value | string if args_value is "
                        "string else args_value | tojson | safe %}" QWEN35_TAIL;

#define GLM_HEAD \
    "[gMASK]<sop>\n{%- if tools -%}\n<|system|>\n\1{% for tool in tools %}\n{{ tool }}\n" \
    "{% endfor %}\n\2{%- endif -%}{%- if m.role == 'user' -%}"
const char t_glm[] = GLM_HEAD "<|user|>\n{{ m.content }}{{- '/nothink' if not enable_thinking -}}"
                     "<arg_key>{{ k }}</arg_key>\n<|assistant|>";
const char t_glm47[] = GLM_HEAD "<|user|>{{ m.content }}<arg_key>{{ k }}</arg_key><|assistant|>"
                       "{{- '</think>' if not enable_thinking else '<think>' }}";

const char t_gemma[] = "{{ bos_token }}{{ '<|turn>' + role + '<turn|>' if enable_thinking }}";

const char t_mistral[] = "{{- bos_token }}{{- ' [INST] ' + message['content'] + ' [/INST]' }}"
                         "{{- ' ' + message['content'] + eos_token}}";
const char t_mistral_old[] = "{{ bos_token }}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
                             "{{ message['content'] + eos_token}}";

const char t_olmoe[] =
    "{{ bos_token }}{{ '<|user|>\n' + message['content'] + '\n' }}"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}{{ '<|assistant|>\n' }}";
const char t_olmo[] =
    "{{ eos_token }}{% for message in messages %}\n{{ '<|user|>\n' + message['content'] }}\n"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{{ '<|assistant|>' }}\n";

/* Those of ChatML stand in string literals, GLM's do not. */
static void put_sentences(textbuf *b, const char *s, bool literal)
{
    for (; *s; s++) {
        if (literal && *s == '\n') textbuf_str(b, "\\n");
        else if (literal && strchr("\\\"", *s)) textbuf_printf(b, "\\%c", *s);
        else textbuf_put(b, (str_view){ s, 1 });
    }
}

char *fill_template(const char *tmpl, const char *intro, const char *outro, const char *system)
{
    const char *const sentences[] = { intro, outro, system };
    const bool literal = strstr(tmpl, "<|im_start|>") != NULL;
    textbuf b = { 0 };
    for (; *tmpl; tmpl++) {
        if (*tmpl <= '\3' && *tmpl > 0) put_sentences(&b, sentences[*tmpl - 1], literal);
        else textbuf_put(&b, (str_view){ tmpl, 1 });
    }
    textbuf_put(&b, (str_view){ "", 1 });
    return b.ptr;
}

/* ---- fixtures ------------------------------------------------------------------------------- */

test_vocab vocab[N_VOCAB];
chat *chats[N_KIND];
char *kind_templates[N_KIND];
const chat_kind kinds[N_KIND] = {
#define KIND(name, vocab, tmpl) [name] = { vocab, tmpl, #name }
    KIND(JSON, QWEN, t_json), KIND(THINK, QWEN, t_think), KIND(HYBRID, QWEN, t_hybrid),
    KIND(XML, QWEN, t_xml), KIND(ALWAYS, QWEN, t_always), KIND(BARE, QWEN, t_bare),
    KIND(HARMONY, GPTOSS, NULL), KIND(RAW, QWEN, t_other), KIND(QWEN35, QWEN, t_qwen35),
    KIND(GLM, GLM_TOKENS, t_glm), KIND(GLM_HARD, GLM_CONTROL, t_glm),
    KIND(GLM47, GLM_TOKENS, t_glm47), KIND(GEMMA, GEMMA_TOKENS, t_gemma),
    KIND(MISTRAL, MISTRAL_TOKENS, t_mistral), KIND(OLMOE, OLMO_TOKENS, t_olmoe),
#undef KIND
};

int chat_kind_of(const char *head, char end)
{
    int k = 0;
    while (k < N_KIND && !case_begins(head, kinds[k].name, end)) k++;
    return CHECK_MSG(k < N_KIND, "no format: %s", head) ? k : 0;
}

/* ---- vocabularies of single bytes ----------------------------------------------------------- */

enum { N_EXTRA_MAX = 24 };
typedef struct small_vocab {
    const char *extra[N_EXTRA_MAX];      /* control tokens */
    const char *user[N_EXTRA_MAX];       /* tokens that any text may hold */
    int bos, eos;                        /* places among the control tokens, or -1 */
} small_vocab;

#define GLM_ROLES "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", \
    "<|observation|>", "/nothink"
#define GLM_TAGS "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", \
    "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>"
static const small_vocab small[] = {
    [GLM_TOKENS - N_VOCAB_FILE] = { { GLM_ROLES }, { GLM_TAGS }, -1, 0 },
    [GLM_CONTROL - N_VOCAB_FILE] = { { GLM_ROLES, GLM_TAGS }, { NULL }, -1, 0 },
    [GEMMA_TOKENS - N_VOCAB_FILE] = {
        { "<bos>", "<eos>", "<|turn>", "<turn|>", "<|think|>", "<|tool>", "<tool|>" },
        { "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
          "<tool_response|>", "<|\"|>" }, 0, 1 },
    [MISTRAL_TOKENS - N_VOCAB_FILE] = { { "<s>", "</s>" }, { NULL }, 0, 1 },
    [OLMO_TOKENS - N_VOCAB_FILE] = { { "<|endoftext|>" }, { NULL }, 0, 0 },
    [CHATML_TOKENS - N_VOCAB_FILE] = {
        { "<|endoftext|>", "<|im_start|>", "<|im_end|>" },
        { "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>",
          "</think>" }, -1, 2 },
};

/* A byte as vocabularies of the usual kind write it. */
static str_view byte_text(char dst[4], int byte)
{
    int cp = byte;
    if (!token_byte_is_itself(byte)) {
        cp = 0x100;
        for (int b = 0; b < byte; b++) cp += !token_byte_is_itself(b);
    }
    if (cp < 0x80) {
        dst[0] = (char)cp;
        return (str_view){ dst, 1 };
    }
    dst[0] = (char)(0xC0 | cp >> 6);
    dst[1] = (char)(0x80 | (cp & 0x3F));
    return (str_view){ dst, 2 };
}

static int open_small(gguf **g, gguf_writer *w, const small_vocab *s, err_ctx *err)
{
    int n_control = 0, n_user = 0;
    int32_t types[256 + 2 * N_EXTRA_MAX];
    const uint8_t *head;
    size_t bytes;
    char byte[4];

    while (n_control < N_EXTRA_MAX && s->extra[n_control]) n_control++;
    while (n_user < N_EXTRA_MAX && s->user[n_user]) n_user++;
    const int n = 256 + n_control + n_user;
    for (int i = 0; i < n; i++)
        types[i] = i < 256 ? TOKEN_NORMAL : i < 256 + n_control ? TOKEN_CONTROL : TOKEN_USER;
    gguf_write_str(w, "general.architecture", str_from("test"));
    gguf_write_str(w, "tokenizer.ggml.model", str_from("gpt2"));
    gguf_write_str(w, "tokenizer.ggml.pre", str_from("qwen2"));
    gguf_write_str_array(w, "tokenizer.ggml.tokens", (uint64_t)n);
    for (int i = 0; i < 256; i++) gguf_write_array_str(w, byte_text(byte, i));
    for (int i = 0; i < n_control; i++) gguf_write_array_str(w, str_from(s->extra[i]));
    for (int i = 0; i < n_user; i++) gguf_write_array_str(w, str_from(s->user[i]));
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, (uint64_t)n);
    gguf_write_str_array(w, "tokenizer.ggml.merges", 0);
    if (s->bos >= 0) gguf_write_kv(w, "tokenizer.ggml.bos_token_id", GGUF_I32,
                                   &(int32_t){ 256 + s->bos }, 4);
    if (s->eos >= 0) gguf_write_kv(w, "tokenizer.ggml.eos_token_id", GGUF_I32,
                                   &(int32_t){ 256 + s->eos }, 4);
    const int rc = gguf_write_head(w, &head, &bytes, err);
    return rc < 0 ? rc : gguf_open_memory(g, head, bytes, err);
}

static gguf_writer *writers[N_VOCAB - N_VOCAB_FILE];     /* own the files in memory */

static bool open_vocab(int v)
{
    static const char *const names[] = {
        "tokenizer/qwen3-vocab", "tokenizer/gptoss-vocab", "/../models/demo-qwen3next-mtp",
        "/../models/demo-gptoss-MXFP4",
    };
    char path[512];
    err_ctx err = { 0 };
    int rc;

    if (v < N_VOCAB_FILE) {
        test_path(path, sizeof path, "%s/%s.gguf", v <= GPTOSS ? test_unpacked() : test_golden(),
                  names[v]);
        rc = gguf_open(&vocab[v].g, path, &err);
    } else {
        snprintf(path, sizeof path, "small vocabulary %d", v - N_VOCAB_FILE);
        writers[v - N_VOCAB_FILE] = gguf_writer_create();
        rc = open_small(&vocab[v].g, writers[v - N_VOCAB_FILE], &small[v - N_VOCAB_FILE], &err);
    }
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
    for (size_t i = 0; i < ARRAY_LEN(writers); i++) gguf_writer_free(writers[i]);
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

static bool open_from(int first_vocab, int first_kind)
{
    err_ctx err = { 0 };
    bool ready = true;
    for (int v = first_vocab; v < N_VOCAB; v++) ready &= open_vocab(v);
    for (int k = first_kind; ready && k < N_KIND; k++) {
        if (kinds[k].tmpl)
            kind_templates[k] = kinds[k].vocab == QWEN
                ? fill_template(kinds[k].tmpl, SENTENCE_BEFORE, "\n" SENTENCE_AFTER, "")
                : fill_template(kinds[k].tmpl, SENTENCE_BEFORE "\n", SENTENCE_AFTER, "");
        ready = CHECK_MSG(make_chat(&chats[k], kinds[k].vocab, kind_templates[k], &err) == 0,
                          "kind %d: %s", k, err.msg);
    }
    return ready;
}

bool chats_open(void) { return open_from(0, 0); }

bool chats_open_small(void) { return open_from(N_VOCAB_FILE, GLM); }

void chats_close(void)
{
    for (int k = 0; k < N_KIND; k++) {
        chat_free(chats[k]);
        mem_free(kind_templates[k]);
    }
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

void read_request(request *r, const char *format, const char *tools)
{
    static const char roles[] = "SDUAT";
    chat_message *m = NULL;
    chat_request *q = &r->chat;

    memset(r, 0, sizeof *r);
    r->format = mem_strdup_n(format, strlen(format));
    r->tools = tools ? read_json(tools) : NULL;
    *q = (chat_request){ .messages = r->messages, .tools = r->tools, .effort = CHAT_EFFORT_MEDIUM };
    for (char *p = r->format; *p; p++) if (*p == '`') *p = '"';
    for (char *part = r->format, *end; part; part = end) {
        const char kind = *part;
        end = strchr(part, '^');
        if (end) *end++ = '\0';
        if (!kind) continue;
        const str_view text = str_from(!strchr(".+-", kind) && part[1] ? part + 2 : "");
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
            if (kind == '+') q->thinking = CHAT_THINK_ON;
            else if (kind == '-') q->thinking = CHAT_THINK_OFF;
            else q->no_cue = CHECK_MSG(kind == '.', "conversation \"%s\"", format);
        }
    }
}

void request_free(request *r)
{
    json_decref(r->tools);
    mem_free(r->format);
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
