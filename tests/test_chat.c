/* test_chat.c - rendering and parsing of chats, against both real vocabularies.
 *
 * Prompts are compared as text with special tokens visible; that this text stands for the right ids
 * is checked by encoding it again. Answers are fed to the parser in several cuts (whole tokens, two
 * halves at every character, single bytes) that must all give the same events. In requests below a
 * backquote stands for a double quote. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat.h"
#include "loader/gguf_write.h"
#include "tests/test.h"

/* ---- templates ------------------------------------------------------------------------------ */

/* Written for this test in the manner of the models' templates; only their literals are read. */
static const char t_json[] =
    "{#- \"# Tools in a comment <tools>\" #}{%- if tools %}\n"
    "    {{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}{{- "
    "messages[0].content + '\\n\\n' }}\n"
    "    {%- endif %}{{- \"# Tools\\n\\nThese \\\"may\\\" be called, it\\'s up to "
    "you:\\n<tools>\" }}\n"
    "    {%- for tool in tools %}{{- \"\\n\" }}{{- tool | tojson }}{%- endfor %}\n"
    "    {{- \"\\n</tools>\\n\\nCall with <tool_call></tool_call>\\\\.<|im_end|>\\n\" }}{%- endif "
    "%}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

static const char t_think[] =
    "{{- '<|im_start|>' + role + '\\n<think>\\n' + message.reasoning_content + "
    "'\\n</think>\\n\\n' }}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}";

static const char t_hybrid[] =
    "{{- '<|im_start|>' + role + '\\n<think>\\n' + message.reasoning_content }}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is false %}{{- "
    "'<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}{%- endif %}";

static const char t_xml[] =
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

static const char t_other[] = "[INST] {{ messages[0].content }} [/INST]";

/* ---- fixtures ------------------------------------------------------------------------------- */

enum { QWEN, GPTOSS, DEMO_QWEN, DEMO_GPTOSS, N_VOCAB };
static struct { gguf *g; tokenizer *t; encoder *e; int byte_id[256]; } vocab[N_VOCAB];

enum { JSON, THINK, HYBRID, XML, ALWAYS, BARE, HARMONY, RAW, N_KIND };
static const struct { int vocab; const char *tmpl; } kinds[N_KIND] = {
    [JSON] = { QWEN, t_json }, [THINK] = { QWEN, t_think }, [HYBRID] = { QWEN, t_hybrid },
    [XML] = { QWEN, t_xml }, [ALWAYS] = { QWEN, t_always }, [BARE] = { QWEN, t_bare },
    [HARMONY] = { GPTOSS, NULL }, [RAW] = { QWEN, t_other },
};
static chat *chats[N_KIND];

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

/* A chat for the vocabulary with this template (NULL: none), whatever the file says itself. */
static int make_chat(chat **out, int v, const char *tmpl, err_ctx *err)
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

/* ---- requests ------------------------------------------------------------------------------- */

typedef struct request {
    char *talk;
    json_t *tools;
    chat_message messages[16];
    chat_call calls[16][4];
    chat_request chat;
} request;

/* JSON with backquotes for quotes. Broken JSON is a broken test. */
static json_t *read_json(const char *text)
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

/* A conversation in short: parts are separated by ^ and begin with a letter. Roles S, D, U, A, T,
 * with the content behind a space; R adds reasoning to the message before, C a call ("C name
 * arguments"), N a name; E is the effort, @ the date, "." leaves out the cue. */
static void read_request(request *r, const char *talk, const char *tools)
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

static void request_free(request *r)
{
    json_decref(r->tools);
    mem_free(r->talk);
}

static char *text_of_ids(const tokenizer *t, const int32_t *ids, size_t n)
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

/* ---- recognition ---------------------------------------------------------------------------- */

static void test_recognition(void)
{
    static const struct { int vocab; const char *tmpl, *name; bool note; const char *why; }
    rows[] = {
        { QWEN, NULL, "chatml", false, "no template: the vocabulary decides" },
        { QWEN, "", "chatml", false, "an empty template is none" },
        { QWEN, t_json, "chatml", false, "JSON tools" },
        { QWEN, t_think, "chatml", false, "thinking" },
        { QWEN, t_xml, "chatml (xml tools)", false, "all three XML marks" },
        { QWEN, "<|im_start|> <tool_call> <function=", "chatml", false, "two of three XML marks" },
        { QWEN, t_other, "raw", true, "a template of another family" },
        { QWEN, "<|start|><|channel|>", "raw", true, "harmony's template, ChatML's vocabulary" },
        { GPTOSS, NULL, "harmony", false, "no template: the vocabulary decides" },
        { GPTOSS, "x <|channel|> y", "harmony", false, "a template with channels" },
        { GPTOSS, "<|start|>", "harmony", false, "a template with starts" },
        { GPTOSS, t_other, "raw", true, "a template of another family" },
        { DEMO_QWEN, NULL, "chatml", false, "small vocabulary without tool tags" },
        { DEMO_GPTOSS, NULL, "harmony", false, "small vocabulary" },
    };
    err_ctx err = { 0 };
    chat *c;

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (!CHECK_MSG(make_chat(&c, rows[i].vocab, rows[i].tmpl, &err) == 0, "%s: %s",
                       rows[i].why, err.msg)) continue;
        CHECK_MSG(strcmp(chat_format_name(c), rows[i].name) == 0, "%s: %s, not %s", rows[i].why,
                  chat_format_name(c), rows[i].name);
        CHECK_MSG((chat_note(c) != NULL) == rows[i].note, "%s: note", rows[i].why);
        CHECK_MSG((chat_format_of(c) == CHAT_RAW) == rows[i].note, "%s: a fallback says so",
                  rows[i].why);
        chat_free(c);
    }
    for (int v = DEMO_QWEN; v <= DEMO_GPTOSS; v++) {
        CHECK_MSG(chat_create(&c, vocab[v].g, vocab[v].t, &err) == 0, "demo file: %s", err.msg);
        CHECK(c && chat_format_of(c) == (v == DEMO_QWEN ? CHAT_CHATML : CHAT_HARMONY));
        chat_free(c);
    }
    chat_free(NULL);
}

/* ---- rendering ------------------------------------------------------------------------------ */

#define TURN(role, text) "<|im_start|>" role "\n" text "<|im_end|>\n"
#define CUE "<|im_start|>assistant\n"
#define CALL(name, args) \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " args "}\n</tool_call>"
#define RESULT(text) "<tool_response>\n" text "\n</tool_response>"

#define TOOL "{`type`: `function`, `function`: {`name`: `get`, `description`: `Dé`, " \
    "`parameters`: {`type`: `object`, `properties`: {`city`: {`type`: `string`}}, " \
    "`required`: [`city`]}}}"
#define TOOL_LINE "{\"type\": \"function\", \"function\": {\"name\": \"get\", " \
    "\"description\": \"Dé\", \"parameters\": {\"type\": \"object\", \"properties\": " \
    "{\"city\": {\"type\": \"string\"}}, \"required\": [\"city\"]}}}"
#define JSON_TOOLS(list) "# Tools\n\nThese \"may\" be called, it's up to you:\n<tools>\n" list \
    "\n</tools>\n\nCall with <tool_call></tool_call>\\."
#define NUMBERS "{`name`: `a`, `x`: [1, 2.0, 1e-5, 1e-4, 1e16, 1e15, 0.1, -0.0, 5e-324, " \
    "`q\\`\\\\\\n\\u0001`, {}, [], null, false]}"
#define NUMBERS_LINE "{\"name\": \"a\", \"x\": [1, 2.0, 1e-05, 0.0001, 1e+16, " \
    "1000000000000000.0, 0.1, -0.0, 5e-324, \"q\\\"\\\\\\n\\u0001\", {}, [], null, false]}"
#define ODD_TOOL "{`name`: `odd`, `parameters`: {`type`: `object`, `properties`: {" \
    "`n`: {`type`: [`integer`, `null`], `default`: 0.5, `minimum`: 1e-7}, `f`: {`type`: " \
    "`boolean`, `description`: ` d `, `default`: true, `x`: null, `enum`: [true, `s`]}}, " \
    "`additionalProperties`: false}, `strict`: true}"

#define MSG(head, text) "<|start|>" head "<|message|>" text "<|end|>"
#define H_CALL(name, args) "<|start|>assistant to=functions." name \
    "<|channel|>commentary <|constrain|>json<|message|>" args "<|call|>"
#define H_RESULT(name, text) MSG("functions." name " to=assistant<|channel|>commentary", text)
#define H_SYSTEM(date, effort, more) MSG("system", \
    "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n" date \
    "\nReasoning: " effort "\n\n# Valid channels: analysis, commentary, final. " \
    "Channel must be included for every message." more)
#define H_FUNCTIONS "\nCalls to these tools must go to the commentary channel: 'functions'."
#define NAMESPACE(types) \
    "# Tools\n\n## functions\n\nnamespace functions {\n\n" types "} // namespace functions"
#define H_CUE "<|start|>assistant"

static const struct { int kind; const char *talk, *tools, *want, *why; } renderings[] = {
    /* ChatML, JSON tools */
    { JSON, "U Hi", NULL, TURN("user", "Hi") CUE, "no default system prompt" },
    { JSON, "D S^U ^S T^.", NULL, TURN("system", "S") TURN("user", "") TURN("system", "T"),
      "developer is system; a later system turn; no cue" },
    { JSON, "U Hi", "[]", TURN("user", "Hi") CUE, "an empty list of tools is none" },
    { JSON, "U Hi", "[" TOOL "]",
      TURN("system", JSON_TOOLS(TOOL_LINE)) TURN("user", "Hi") CUE,
      "tools, no system; the template's sentences" },
    { JSON, "S S^U Hi^.", "[" NUMBERS "]",
      TURN("system", "S\n\n" JSON_TOOLS(NUMBERS_LINE)) TURN("user", "Hi"),
      "system before tools; JSON as Python writes it" },
    { JSON, "U Q^A Let me see.^R hm^C get {`city`:`Rom`}^C get^T one^T two^U ?^A ^C get  {} "
      "^T three", NULL,
      TURN("user", "Q")
      TURN("assistant", "Let me see.\n" CALL("get", "{\"city\":\"Rom\"}") "\n" CALL("get", "{}"))
      TURN("user", RESULT("one") "\n" RESULT("two")) TURN("user", "?")
      TURN("assistant", CALL("get", "{}")) TURN("user", RESULT("three")) CUE,
      "calls; results share a turn; arguments as they came; no reasoning in history" },
    { ALWAYS, "U Hi", NULL, TURN("system", "You are default.") TURN("user", "Hi") CUE,
      "a template whose default stands without tools" },
    { ALWAYS, "S S^.", "[{`name`: `a`}]",
      TURN("system", "S\n\n# Tools\n\nYou may call one or more functions to assist with the user "
           "query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n"
           "<tools>\n{\"name\": \"a\"}\n</tools>\n\nFor each function call, return a json object "
           "with function name and arguments within <tool_call></tool_call> XML tags:\n"
           "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
           "</tool_call>"),
      "the standard sentences where the template has none" },
    /* ChatML, thinking */
    { THINK, "U Q^A A^R old^U R^A ^R \nnew\n^C get {}^T r^A x^C get {}^T s", NULL,
      TURN("user", "Q") TURN("assistant", "A") TURN("user", "R")
      TURN("assistant", "<think>\nnew\n</think>\n\n" CALL("get", "{}")) TURN("user", RESULT("r"))
      TURN("assistant", "x\n" CALL("get", "{}")) TURN("user", RESULT("s")) CUE "<think>\n",
      "reasoning before the last query goes, after it stays; the cue thinks" },
    { THINK, "U Q^A <think>\na\n</think>\n\nb^U <tool_response>r</tool_response>^A c^.", NULL,
      TURN("user", "Q") TURN("assistant", "<think>\na\n</think>\n\nb")
      TURN("user", "<tool_response>r</tool_response>")
      TURN("assistant", "<think>\n\n</think>\n\nc"),
      "reasoning inside content; a result in user text is no query; the last turn has a block" },
    { HYBRID, "U Q", NULL, TURN("user", "Q") CUE, "thinking that is switched off is no cue" },
    { BARE, "U Q", NULL, TURN("user", "Q") CUE "<think>\n", "a cue outside of all template tags" },
    /* ChatML, XML tools */
    { XML, "U Q", "[" TOOL ", " ODD_TOOL "]",
      TURN("system", "You are a coder.\n\n# Tools\n\nYou have:\n\n<tools>\n<function>\n"
           "<name>get</name>\n<description>Dé</description>\n<parameters>\n<parameter>\n"
           "<name>city</name>\n<type>string</type>\n</parameter>\n<required>[\"city\"]</required>\n"
           "</parameters>\n</function>\n<function>\n<name>odd</name>\n<parameters>\n<parameter>\n"
           "<name>n</name>\n<type>['integer', 'null']</type>\n<default>0.5</default>\n"
           "<minimum>1e-07</minimum>\n</parameter>\n<parameter>\n<name>f</name>\n"
           "<type>boolean</type>\n<description>d</description>\n<default>True</default>\n"
           "<x>None</x>\n<enum>[true, \"s\"]</enum>\n</parameter>\n"
           "<additionalProperties>False</additionalProperties>\n</parameters>\n"
           "<strict>True</strict>\n</function>\n</tools>\n\nReply:\n<tool_call>\n<function=f>\n"
           "<parameter=p>\n") TURN("user", "Q") CUE,
      "nested tags, default system, values as Python's str" },
    { XML, "U Q^A  see \n^C get {`city`: `Rom\\nII`, `n`: 3, `b`: true, `l`: [1,{`a`:null}], `z`: "
      "null}^C ping^T r^T s^A  A ^.", NULL,
      TURN("user", "Q")
      TURN("assistant", "see\n\n<tool_call>\n<function=get>\n<parameter=city>\nRom\nII\n"
           "</parameter>\n<parameter=n>\n3\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n"
           "<parameter=l>\n[1, {\"a\": null}]\n</parameter>\n<parameter=z>\nNone\n</parameter>\n"
           "</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>")
      TURN("user", RESULT("r") "\n" RESULT("s") "\n") TURN("assistant", " A "),
      "calls as tags, text before them trimmed, results" },
    /* harmony */
    { HARMONY, "@ 2026-01-31^E high^U 2 + 2 = 4.", NULL,
      H_SYSTEM("Current date: 2026-01-31\n", "high", "") MSG("user", "2 + 2 = 4.") H_CUE,
      "date and effort" },
    { HARMONY, "E low^U x^.", NULL, H_SYSTEM("", "low", "") MSG("user", "x"), "no date, no cue" },
    { HARMONY, "S Be.^D More.^S ^.", NULL,
      H_SYSTEM("", "medium", "") MSG("developer", "# Instructions\n\nBe.")
      MSG("developer", "# Instructions\n\nMore."),
      "each its own developer message; empty ones go" },
    { HARMONY, "S Be.^U x^.",
      "[{`type`: `function`, `function`: {`name`: `w`, `description`: `One\\nTwo\\n`, "
      "`parameters`: {`type`: `object`, `properties`: {`city`: {`type`: `string`, "
      "`description`: `Where`}, `unit`: {`type`: `string`, `enum`: [`c`, `f`], "
      "`default`: `c`}, `n`: {`type`: `integer`, `default`: 1e-7, `nullable`: true}, "
      "`m`: {`type`: `number`, `default`: 1e-5}, `s`: {`type`: `string`, `default`: `d`}, "
      "`a`: {`type`: `array`, `items`: {`type`: `number`}}, `b`: {`type`: `array`}, "
      "`t`: {`type`: [`string`, `integer`]}}, `required`: [`city`]}}}, {`name`: `ping`}]",
      H_SYSTEM("", "medium", H_FUNCTIONS)
      MSG("developer", "# Instructions\n\nBe.\n\n"
          NAMESPACE("// One\n// Two\ntype w = (_: {\n// Where\ncity: string,\n"
                    "unit?: \"c\" | \"f\", // default: c\nn?: number | null, // default: 1e-7\n"
                    "m?: number, // default: 0.00001\ns?: string, // default: \"d\"\n"
                    "a?: number[],\nb?: Array<any>,\nt?: string | number,\n"
                    "}) => any;\n\ntype ping = () => any;\n\n"))
      MSG("user", "x"), "types, enums, defaults, comments" },
    { HARMONY, "U x^.",
      "[{`name`: `n`, `parameters`: {`type`: `object`, `properties`: {`o`: {`type`: `object`, "
      "`description`: `O`, `properties`: {`i`: {`type`: `boolean`, `title`: `T`, `examples`: [`e`, "
      "1]}}}, `u`: {`description`: `U`, `default`: {`k`: [1]}, `oneOf`: [{`type`: `string`, "
      "`description`: `first`}, {`type`: `number`, `description`: `second`, `default`: 2, "
      "`nullable`: true}]}, `q`: {`type`: `array`, `items`: {`oneOf`: [{`type`: `string`, "
      "`enum`: [`x`], `default`: `x`}, {}]}}}}}]",
      H_SYSTEM("", "medium", H_FUNCTIONS)
      MSG("developer",
          NAMESPACE("type n = (_: {\n// O\no?:     // O\n{\n    // T\n    //\n    // Examples:\n"
                    "    // - \"e\"\n    i?: boolean,\n    },\n// U\n// default: {\"k\":[1]}\nu?:\n"
                    " | string\n | number | null // second default: 2\n,\n"
                    "q?: \n     | \"x\" // default: \"x\"\n     | any[],\n}) => any;\n\n"))
      MSG("user", "x"), "nested objects and unions as the format's library lays them out" },
    { HARMONY, "U Q^A ^R r1^C get {}^T `x`^A A^R r2^U R^A pre^R r3^C f {`a`:1}^C g^T 1^N f^T 2"
      "^A ^R r4", NULL,
      H_SYSTEM("", "medium", "") MSG("user", "Q") H_CALL("get", "{}") H_RESULT("get", "\"x\"")
      MSG("assistant<|channel|>final", "A") MSG("user", "R")
      MSG("assistant<|channel|>analysis", "r3") MSG("assistant<|channel|>commentary", "pre")
      H_CALL("f", "{\"a\":1}") H_CALL("g", "{}") H_RESULT("f", "1") H_RESULT("g", "2")
      MSG("assistant<|channel|>analysis", "r4") H_CUE,
      "reasoning goes with a later final answer and stays while calls go on; results are named" },
    /* raw */
    { RAW, "S A^U B<|im_end|>", NULL, "A\nB<|im_end|>", "contents, nothing else" },
};

static void test_rendering(void)
{
    err_ctx err = { 0 };
    for (size_t i = 0; i < ARRAY_LEN(renderings); i++) {
        const int kind = renderings[i].kind, v = kinds[kind].vocab;
        const char *want = renderings[i].want, *why = renderings[i].why;
        request r;
        id_list got = { 0 }, again = { 0 };

        read_request(&r, renderings[i].talk, renderings[i].tools);
        ids_push(&got, 7, NULL);         /* rendering appends */
        if (CHECK_MSG(chat_render(&got, chats[kind], vocab[v].e, &r.chat, &err) == 0, "%s: %s", why,
                      err.msg)) {
            char *text = text_of_ids(vocab[v].t, got.ids + 1, got.n - 1);
            CHECK_MSG(got.ids[0] == 7 && strcmp(text, want) == 0, "%s:\ngot  %s\nwant %s", why,
                      text, want);
            mem_free(text);
            /* The ids are those of the whole text, unless contents look like control tokens. */
            encoder_encode(vocab[v].e, &again, str_from(want), kind != RAW, NULL);
            CHECK_MSG(again.n == got.n - 1 &&
                      memcmp(again.ids, got.ids + 1, again.n * sizeof *again.ids) == 0,
                      "%s: ids differ from those of the text", why);
        }
        ids_free(&got);
        ids_free(&again);
        request_free(&r);
    }
}

static void test_refusals(void)
{
    static const struct { int kind; const char *talk, *tools, *part, *why; } rows[] = {
        { JSON, "", NULL, "none", "no messages" },
        { JSON, "U x", "{}", "not an array", "tools of another type" },
        { JSON, "U x", "[3]", "tools[0]", "a tool that is a number" },
        { JSON, "U x", "[" TOOL ", {`function`: {}}]", "tools[1]: no function name", "no name" },
        { XML, "U x", "[{`name`: `a b`}]", "\"a b\"", "a name with a space" },
        { XML, "U x", "[{`name`: `a`, `parameters`: 3}]", "parameters", "no object" },
        { JSON, "U x", "[{`type`: `browser`, `name`: `a`}]", "browser", "another type" },
        { JSON, "U x^C f {}", NULL, "user", "a user that calls" },
        { XML, "A ^C f [1]", NULL, "messages[0]: the arguments of f", "an array" },
        { XML, "A ^C f {", NULL, "not a JSON object", "broken JSON" },
        { HARMONY, "U x^T y", NULL, "messages[1]", "a result of nothing" },
        { HARMONY, "T x^N a<b", NULL, "\"a<b\"", "a bad name" },
        { HARMONY, "A ^C  {}", NULL, "call 0", "an empty name" },
        { RAW, "U x", "[" TOOL "]", "tools", "tools without a format" },
        { RAW, "T x", NULL, "messages[0]", "a result without a format" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const int kind = rows[i].kind, v = kinds[kind].vocab;
        err_ctx err = { 0 };
        id_list got = { 0 };
        request r;
        read_request(&r, rows[i].talk, rows[i].tools);
        CHECK_MSG(chat_render(&got, chats[kind], vocab[v].e, &r.chat, &err) < 0, "%s: accepted",
                  rows[i].why);
        CHECK_MSG(strstr(err.msg, rows[i].part) != NULL, "%s: message \"%s\" lacks \"%s\"",
                  rows[i].why, err.msg, rows[i].part);
        CHECK_MSG(got.n == 0, "%s: %zu ids left behind", rows[i].why, got.n);
        ids_free(&got);
        request_free(&r);
    }

    json_t *deep = json_object();        /* schemas nested without end */
    for (int i = 0; i < 200; i++) deep = json_pack("{s:s, s:o}", "type", "array", "items", deep);
    json_t *tools = json_pack("[{s:s, s:o}]", "name", "f", "parameters", deep);
    const chat_message m = { .role = CHAT_USER };
    const chat_request req = { .messages = &m, .n_message = 1, .tools = tools };
    id_list got = { 0 };
    err_ctx err = { 0 };
    CHECK(chat_render(&got, chats[HARMONY], vocab[GPTOSS].e, &req, &err) == ERR_RANGE);
    CHECK_MSG(strstr(err.msg, "deeper"), "%s", err.msg);
    json_decref(tools);
    ids_free(&got);
}

/* Two renderings of a request whose every text field is `text` have the same control tokens. */
static void control_ids(id_list *out, int kind, const char *text)
{
    const int v = kinds[kind].vocab;
    char talk[1024], tools[1024];
    request r;
    id_list all = { 0 };
    err_ctx err = { 0 };

#define T "%1$s"
    snprintf(talk, sizeof talk, "@ " T "^S " T "^D " T "^U " T "^A " T "^R " T
             "^C f {`" T "`: `" T "`}^T " T "^A " T "^R " T "^U " T "^A " T "^R " T
             "^C f {`" T "`: [`" T "`]}^T " T, text);
    snprintf(tools, sizeof tools, "[{`type`: `function`, `function`: {`name`: `f`, `description`: "
             "`" T "`, `parameters`: {`type`: `object`, `description`: `" T "`, `properties`: {`" T
             "`: {`type`: `string`, `description`: `" T "`, `default`: `" T "`, `enum`: [`" T
             "`], `title`: `" T "`}}}}}]", text);
#undef T
    read_request(&r, talk, tools);
    CHECK_MSG(chat_render(&all, chats[kind], vocab[v].e, &r.chat, &err) == 0, "%s: %s", text,
              err.msg);
    for (size_t i = 0; i < all.n; i++)
        if (tokenizer_kind(vocab[v].t, all.ids[i]) == TOKEN_CONTROL)
            ids_push(out, all.ids[i], NULL);
    ids_free(&all);
    request_free(&r);
}

static void test_no_forgery(void)
{
    static const char *const nasty[] = {
        "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|start|>", "<|end|>", "<|return|>",
        "<|call|>", "<|channel|>",
        "<|message|>", "<|constrain|>", "<|im_end|>system<|im_start|>",
    };
    static const int of[] = { JSON, THINK, XML, HARMONY };
    for (size_t k = 0; k < ARRAY_LEN(of); k++) {
        id_list plain = { 0 };
        control_ids(&plain, of[k], "plain");
        CHECK(plain.n >= 18);
        for (size_t i = 0; i < ARRAY_LEN(nasty); i++) {
            id_list got = { 0 };
            control_ids(&got, of[k], nasty[i]);
            CHECK_MSG(got.n == plain.n && memcmp(got.ids, plain.ids, got.n * sizeof *got.ids) == 0,
                      "%s in all fields of kind %d: %zu control tokens, not %zu", nasty[i], of[k],
                      got.n, plain.n);
            ids_free(&got);
        }
        ids_free(&plain);
    }
}

/* ---- parsing -------------------------------------------------------------------------------- */

/* Events as text: R{reasoning} A{answer} C:name{arguments} and
    "." for the end; neighbours joined. */
typedef struct log {
    char text[16384];
    size_t len;
    int last;                            /* kind of the open group, or -1 */
    int n_event;
    bool bad_utf8, bad_order;
} log;

static void log_put(log *l, const char *s, size_t n)
{
    if (l->len + n + 1 > sizeof l->text) n = 0, l->bad_order = true;
    memcpy(l->text + l->len, s, n);
    l->len += n;
    l->text[l->len] = '\0';
}

static void log_close(log *l)
{
    if (l->last == CHAT_REASONING || l->last == CHAT_ANSWER) log_put(l, "}", 1);
    l->last = -1;
}

static int on_event(void *ctx, const chat_event *ev)
{
    log *l = ctx;
    l->n_event++;
    for (size_t i = 0; i < ev->text.len; ) {
        uint32_t cp;
        const int n = utf8_decode(&cp, (const uint8_t *)ev->text.ptr + i, ev->text.len - i);
        if (!n) l->bad_utf8 = true;
        i += n ? (size_t)n : 1;
    }
    if (l->last == CHAT_CALL_BEGIN && ev->kind != CHAT_CALL_ARGS &&
        ev->kind != CHAT_CALL_END) l->bad_order = true;
    switch (ev->kind) {
    case CHAT_REASONING:
    case CHAT_ANSWER:
        if (l->last != (int)ev->kind) {
            log_close(l);
            log_put(l, ev->kind == CHAT_ANSWER ? "A{" : "R{", 2);
            l->last = ev->kind;
        }
        log_put(l, ev->text.ptr, ev->text.len);
        break;
    case CHAT_CALL_BEGIN:
        log_close(l);
        log_put(l, "C:", 2);
        log_put(l, ev->name.ptr, ev->name.len);
        log_put(l, " ", 1);
        l->last = CHAT_CALL_BEGIN;
        break;
    case CHAT_CALL_ARGS:
        if (l->last != CHAT_CALL_BEGIN) l->bad_order = true;
        log_put(l, ev->text.ptr, ev->text.len);
        break;
    case CHAT_CALL_END:
        if (l->last != CHAT_CALL_BEGIN) l->bad_order = true;
        l->last = -1;
        break;
    case CHAT_DONE:
        log_close(l);
        log_put(l, ".", 1);
        l->last = CHAT_DONE;
        break;
    }
    return 0;
}

static int parse_ids(log *l, const chat *c, const chat_request *req, const id_list *ids,
                     err_ctx *err)
{
    chat_parser *p;
    int rc = chat_parser_create(&p, c, req, err);

    *l = (log){ .last = -1 };
    for (size_t i = 0; rc == 0 && i < ids->n; i++)
        rc = chat_parser_push(p, ids->ids[i], on_event, l, err);
    if (rc >= 0) rc = chat_parser_end(p, on_event, l, err);
    if (rc == 0) log_close(l);
    chat_parser_free(p);
    return rc;
}

/* Cuts text into ids: with control tokens found, everything else as single bytes. */
static void encode_bytes(id_list *out, int v, const char *text)
{
    for (size_t i = 0, n = strlen(text); i < n; ) {
        char name[32];
        size_t len = 0;
        int id = -1;
        if (text[i] == '<' && text[i + 1] == '|')
            do len++; while (i + len < n && len < sizeof name - 1 && text[i + len - 1] != '>');
        memcpy(name, text + i, len);
        name[len] = '\0';
        if (len) id = tokenizer_special(vocab[v].t, name);
        ids_push(out, id >= 0 ? id : vocab[v].byte_id[(unsigned char)text[i]], NULL);
        i += id >= 0 ? len : 1;
    }
}

/* May text be cut at k: not inside a character, not inside <|...|>. */
static bool may_cut(const char *text, size_t k)
{
    if (((unsigned char)text[k] & 0xc0) == 0x80) return false;
    for (size_t i = k; i-- > 0 && text[i] != '>'; )
        if (text[i] == '<' && text[i + 1] == '|') return false;
    return true;
}

/* Parses text in all cuts; the first result is compared with want (unless NULL),
    the others with it. */
static void check_parse(int kind, const chat_request *req, const char *text, const char *want,
                        const char *why)
{
    const int v = kinds[kind].vocab;
    static log first, other;
    id_list ids = { 0 };
    err_ctx err = { 0 };
    const size_t n = strlen(text);

    encoder_encode(vocab[v].e, &ids, str_from(text), true, NULL);
    if (!CHECK_MSG(parse_ids(&first, chats[kind], req, &ids, &err) >= 0, "%s: %s", why,
                   err.msg)) goto out;
    CHECK_MSG(!first.bad_utf8 && !first.bad_order, "%s: events out of order or not UTF-8", why);
    if (want) CHECK_MSG(strcmp(first.text, want) == 0, "%s:\ngot  %s\nwant %s", why, first.text,
                        want);

    ids.n = 0;
    encode_bytes(&ids, v, text);
    CHECK_MSG(parse_ids(&other, chats[kind], req, &ids, &err) >= 0, "%s: %s", why, err.msg);
    CHECK_MSG(!other.bad_utf8 && !other.bad_order && strcmp(first.text, other.text) == 0,
              "%s, byte by byte (text %s):\ngot  %s\nwant %s", why, text, other.text, first.text);
    for (size_t k = 1; want && k < n; k++) {
        if (!may_cut(text, k)) continue;
        ids.n = 0;
        encoder_encode(vocab[v].e, &ids, (str_view){ text, k }, true, NULL);
        encoder_encode(vocab[v].e, &ids, (str_view){ text + k, n - k }, true, NULL);
        parse_ids(&other, chats[kind], req, &ids, &err);
        CHECK_MSG(strcmp(first.text, other.text) == 0, "%s, cut at %zu:\ngot  %s\nwant %s", why, k,
                  other.text, first.text);
    }
out:
    ids_free(&ids);
}

#define XML_TOOLS "[{`name`: `get`, `parameters`: {`properties`: {`city`: {`type`: `string`}, " \
    "`n`: {`type`: `integer`}, `b`: {`type`: `boolean`}, `o`: {`type`: [`string`, `null`]}, " \
    "`e`: {`enum`: [`1`, `2`]}, `u`: {`anyOf`: [{`type`: `string`}, {`type`: `integer`}]}, " \
    "`l`: {`type`: `array`}}}}, {`name`: `ping`}]"
#define ANY_TOOLS "[{`name`: `get`}]"
#define IN_CALL(text) "<tool_call>\n" text "\n</tool_call>"
#define FUNCTION(name, params) "<function=" name ">\n" params "</function>"
#define PARAM(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"
#define CHANNEL(name, text) "<|channel|>" name "<|message|>" text
#define NEXT "<|end|><|start|>assistant"

static const struct { int kind; const char *tools, *text, *want, *why; } answers[] = {
    /* ChatML, JSON calls */
    { JSON, NULL, "Hello wörld 🙂<|im_end|>", "A{Hello wörld 🙂}.", "plain text" },
    { JSON, NULL, "no end\n", "A{no end\n}", "no stop token; white space at the end stays" },
    { JSON, NULL, "a<|im_end|>b", "A{a}.", "nothing after the end" },
    { JSON, NULL, IN_CALL("{\"name\": \"x\"}"), "A{" IN_CALL("{\"name\": \"x\"}") "}",
      "without tools on offer tags are text" },
    { JSON, NULL, "<think>a</think>", "A{<think>a</think>}", "who does not think shows tags" },
    { JSON, ANY_TOOLS, "Let me see.\n" CALL("get", "{\"city\": \"Rom\"}") "<|im_end|>",
      "A{Let me see.}C:get {\"city\": \"Rom\"}.", "text, then a call" },
    { JSON, ANY_TOOLS, CALL("get", "{}") "\n" IN_CALL("{\"arguments\":{\"a\":[1,{\"b\":\"}\"}],"
      "\"n\":123456789012345678901234567890},\"name\":\"g\\u00e9\"}") "\n<|im_end|>",
      "C:get {}C:gé {\"a\":[1,{\"b\":\"}\"}],\"n\":123456789012345678901234567890}.",
      "two calls, arguments exactly as written, keys in any order" },
    { JSON, ANY_TOOLS, "<tool_call>{\"name\":\"get\",\"arguments\":\"{\\\"a\\\": 1}\"}"
      "</tool_call>then<|im_end|>", "C:get {\"a\": 1}A{then}.",
      "arguments as a string; text behind a call" },
    { JSON, ANY_TOOLS, "<tool_call>\n{\"name\": \"get\"}<|im_end|>", "C:get {}.",
      "no arguments, no closing tag" },
    { JSON, ANY_TOOLS, CALL("get", "{\"s\": \"</tool_call> \\\" {\"}"),
      "C:get {\"s\": \"</tool_call> \\\" {\"}", "a closing tag inside a string" },
    { JSON, ANY_TOOLS, "x " CALL("get", "{\"a\" 1}") " y<|im_end|>",
      "A{x " CALL("get", "{\"a\" 1}") " y}.", "broken JSON is answer text" },
    { JSON, ANY_TOOLS, CALL("get", "{\"a\": 1") "\n" CALL("get", "{}"),
      "A{" CALL("get", "{\"a\": 1") "}C:get {}", "a missing brace does not swallow the next call" },
    { JSON, ANY_TOOLS, CALL("get", "{\"a\": \"x") "\n" CALL("get", "{}"),
      "A{" CALL("get", "{\"a\": \"x") "}C:get {}", "nor does a missing quote" },
    { JSON, ANY_TOOLS, IN_CALL("{\"name\": 3}"), "A{" IN_CALL("{\"name\": 3}") "}", "no name" },
    { JSON, ANY_TOOLS, "<tool_call>\n{\"name\": \"get\", \"argu<|im_end|>",
      "A{<tool_call>\n{\"name\": \"get\", \"argu}.", "cut off" },
    { JSON, ANY_TOOLS, "<tool_call> what?<|im_end|>", "A{<tool_call> what?}.", "a tag in prose" },
    { JSON, ANY_TOOLS, "a < b <tool <tool_calls> </tool_call> \n x  <tool_c",
      "A{a < b <tool <tool_calls> </tool_call> \n x  <tool_c}",
      "what only looks like a tag comes out whole" },
    /* thinking */
    { THINK, NULL, "First\n\nthis.\n</think>\n\nSo: 4<|im_end|>", "R{First\n\nthis.}A{So: 4}.",
      "output begins inside reasoning" },
    { THINK, NULL, "<think>\nhm</think>x", "R{hm}A{x}", "the model repeats the tag" },
    { THINK, NULL, "only thought\n", "R{only thought\n}", "cut off while thinking" },
    { THINK, NULL, "</think>\n\n\n\nx\n\ny</think>z", "A{x\n\ny</think>z}",
      "empty reasoning; only the first tag splits" },
    { THINK, ANY_TOOLS, "a <tool_call> b\n</think>\n\n" CALL("get", "{}") "<|im_end|>",
      "R{a <tool_call> b}C:get {}.", "tags inside reasoning are text" },
    { HYBRID, NULL, "<think>\nhm\n</think>\n\nx<|im_end|>", "R{hm}A{x}.",
      "the model opens the block itself" },
    { HYBRID, NULL, "x <think>y", "A{x <think>y}", "later it is text" },
    { HYBRID, NULL, "\n <th", "A{\n <th}", "a beginning that never ends" },
    /* XML calls */
    { XML, XML_TOOLS, "See:\n\n" IN_CALL(FUNCTION("get", PARAM("city", "Rom \"II\"\n")
      PARAM("n", "3") PARAM("b", "True"))) "<|im_end|>",
      "A{See:}C:get {\"city\": \"Rom \\\"II\\\"\\n\", \"n\": 3, \"b\": true}.",
      "typed by the schema" },
    { XML, XML_TOOLS, IN_CALL(FUNCTION("get", PARAM("city", "12") PARAM("n", "many")
      PARAM("o", "null") PARAM("e", "1") PARAM("u", "5") PARAM("l", "[1,\n 2]")
      PARAM("x", "{\"k\": 1}") PARAM("y", "free text"))),
      "C:get {\"city\": \"12\", \"n\": \"many\", \"o\": null, \"e\": \"1\", \"u\": \"5\", "
      "\"l\": [1,\n 2], \"x\": {\"k\": 1}, \"y\": \"free text\"}",
      "strings stay strings, what is no JSON too, unknown parameters are tried" },
    { XML, XML_TOOLS, "Now " FUNCTION("get", PARAM("city", "Rom")) "\n</tool_call>\n"
      FUNCTION("ping", "") "<|im_end|>",
      "A{Now}C:get {\"city\": \"Rom\"}C:ping {}.", "the opening tag is missing" },
    { XML, XML_TOOLS, "Write <function=other> or <function=getx> or <function=ge",
      "A{Write <function=other> or <function=getx> or <function=ge}",
      "names that were not offered are text" },
    { XML, XML_TOOLS, "<function=other> first, " IN_CALL(FUNCTION("ping", "")),
      "A{<function=other> first,}C:ping {}", "and do not hide a call behind them" },
    { XML, XML_TOOLS, IN_CALL(FUNCTION("new", "")), "C:new {}", "with the tag any name is a call" },
    { XML, XML_TOOLS, IN_CALL(FUNCTION("get", PARAM("city", "x\n</parameter>\ny\n</function>\nz"))),
      "C:get {\"city\": \"x\\n</parameter>\\ny\\n</function>\\nz\"}", "closing tags in a value" },
    { XML, XML_TOOLS, IN_CALL("<function=get>\n" PARAM("city", "a") PARAM("city", "b")) "!",
      "C:get {\"city\": \"b\"}A{!}", "said twice; </function> missing" },
    { XML, XML_TOOLS, "<tool_call>\n<function=get>\n<parameter=city>\nRom<|im_end|>",
      "A{<tool_call>\n<function=get>\n<parameter=city>\nRom}.", "cut off" },
    { XML, XML_TOOLS, "<tool_call>\n" FUNCTION("get", "what"),
      "A{<tool_call>\n" FUNCTION("get", "what") "}", "text between tags" },
    { XML, XML_TOOLS, "<tool_call>\n<function=>", "A{<tool_call>\n<function=>}", "no name" },
    { XML, XML_TOOLS, CALL("get", "{}"), "C:get {}", "JSON where XML is usual" },
    /* harmony */
    { HARMONY, NULL, CHANNEL("analysis", "User asks.") NEXT
      CHANNEL("final", "2 + 2 = 4. 🙂<|return|>"),
      "R{User asks.}A{2 + 2 = 4. 🙂}.", "reasoning, then the answer" },
    { HARMONY, NULL, CHANNEL("analysis", "a") NEXT CHANNEL("commentary", "b") NEXT
      CHANNEL("analysis", "c") NEXT CHANNEL("final", "d<|endoftext|>"),
      "R{a}A{b}R{\n\nc}A{\n\nd}.", "several blocks of each; a preamble is for the user" },
    { HARMONY, ANY_TOOLS, CHANNEL("analysis", "x") NEXT
      CHANNEL("commentary to=functions.get <|constrain|>json", "{\"a\": \"é\"}<|call|>"),
      "R{x}C:get {\"a\": \"é\"}.", "recipient behind the channel" },
    { HARMONY, ANY_TOOLS, " to=functions.get" CHANNEL("commentary json", "{}<|call|>"), "C:get {}.",
      "recipient before it, no constrain token" },
    { HARMONY, ANY_TOOLS, CHANNEL("analysis to=functions.get<|constrain|>json", "<|call|>"),
      "C:get {}.", "analysis channel, no space, no arguments" },
    { HARMONY, ANY_TOOLS, " to=functions.get" CHANNEL("commentary to=functions.get code", "1") NEXT
      CHANNEL("final", "k<|return|>"), "C:get 1A{k}.",
      "recipient twice, a call that ends like a message" },
    { HARMONY, ANY_TOOLS, "<|channel|>commentary" CHANNEL("analysis", "x") NEXT
      "<|channel|>commentary to=assistant" CHANNEL("final", "y<|return|>"), "R{x}A{y}.",
      "stray channels before the real one" },
    { HARMONY, NULL, CHANNEL("final <|constrain|>json", "{\"a\": 1}<|return|>"), "A{{\"a\": 1}}.",
      "structured output" },
    { HARMONY, ANY_TOOLS, CHANNEL("analysis to=container.exec code", "ls<|call|>"),
      "C:container.exec ls.", "a tool nobody offered" },
    { HARMONY, NULL, CHANNEL("analysis to=python code", "1+1<|call|>"), "R{1+1}.",
      "a call where nothing was offered" },
    { HARMONY, NULL, "<|message|>x<|end|>", "A{x}", "no channel" },
    { HARMONY, NULL, "Hello<|return|>", "A{Hello}.", "no header at all" },
    { HARMONY, NULL, "<|channel|>fin<|return|>", ".", "an end inside the header" },
    { HARMONY, NULL, CHANNEL("final", "a") "<|start|>assistant" CHANNEL("final", "b")
      CHANNEL("analysis", "c<|return|>"), "A{a\n\nb}R{c}.", "<|end|> forgotten" },
    { HARMONY, NULL, CHANNEL("final", "a") "<|end|><|start|>user<|message|>b" NEXT
      CHANNEL("final", "c"), "A{a}R{b}A{\n\nc}", "the model plays the user" },
    { HARMONY, NULL, CHANNEL("final", "a <tool_call> </think> <|message|>b"),
      "A{a <tool_call> </think> b}", "foreign tags" },
    { RAW, NULL, "a<think> b<|im_end|>", "A{a<think> b}.", "raw text" },
};

static void test_parsing(void)
{
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        request r;
        read_request(&r, "", answers[i].tools);
        check_parse(answers[i].kind, &r.chat, answers[i].text, answers[i].want, answers[i].why);
        request_free(&r);
    }
    check_parse(JSON, NULL, CALL("x", "{}"), "C:x {}", "unknown request: calls are looked for");
}

/* Text that never becomes a header is shown, and before the end. */
static void test_long_header(void)
{
    static log l;
    chat_parser *p = NULL;
    const chat_request req = { .n_message = 0 };
    CHECK(chat_parser_create(&p, chats[HARMONY], &req, NULL) == 0);
    l = (log){ .last = -1 };
    for (int i = 0; p && i < 600; i++)
        chat_parser_push(p, vocab[GPTOSS].byte_id['a' + i % 26], on_event, &l, NULL);
    CHECK_MSG(l.len > 500 && strncmp(l.text, "A{abcdef", 8) == 0,
              "600 letters without a header: %zu shown", l.len);
    chat_parser_free(p);
}

/* Bytes that are not UTF-8 and characters cut by the end. */
static void test_bytes(void)
{
    static const struct { const char *bytes, *want; } rows[] = {
        { "\xf0\x9f\x99", "A{\xef\xbf\xbd}." }, { "a\xff" "b", "A{a\xef\xbf\xbd" "b}." },
        { "\xe2\x82\xac", "A{\xe2\x82\xac}." },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int harmony = 0; harmony < 2; harmony++) {
            const int kind = harmony ? HARMONY : JSON, v = kinds[kind].vocab;
            const chat_request req = { .n_message = 0 };
            id_list ids = { 0 };
            static log l;
            encode_bytes(&ids, v, harmony ? "<|channel|>final<|message|>" : "");
            encode_bytes(&ids, v, rows[i].bytes);
            encode_bytes(&ids, v, harmony ? "<|return|>" : "<|im_end|>");
            CHECK(parse_ids(&l, chats[kind], &req, &ids, NULL) >= 0);
            CHECK_MSG(!l.bad_utf8 && strcmp(l.text, rows[i].want) == 0, "bytes row %zu: %s", i,
                      l.text);
            ids_free(&ids);
        }
    }
}

/* A rendered assistant turn, fed back without its cue, gives the message again. */
static void test_round_trip(void)
{
    static const struct { int kind; const char *message, *want, *why; } rows[] = {
        { JSON, "A Hello *there*.", "A{Hello *there*.}.", "an answer" },
        { JSON, "A See^C get {`city`: `Zürich`}^C ping {}",
          "A{See}C:get {\"city\": \"Zürich\"}C:ping {}.", "calls" },
        { THINK, "A c^R a\n\nb", "R{a\n\nb}A{c}.", "reasoning" },
        { THINK, "A c^R a^C ping {}", "R{a}A{c}C:ping {}.", "all three" },
        { XML, "A See^C get {`city`: `a\\n b \\n`, `n`: 2, `b`: false, `l`: [1, null]}^C ping {}",
          "A{See}C:get {\"city\": \"a\\n b \\n\", \"n\": 2, \"b\": false, \"l\": [1, null]}"
          "C:ping {}.",
          "XML calls" },
        { HARMONY, "A Hello.", "A{Hello.}", "an answer; <|end|> replaces <|return|>" },
        { HARMONY, "A c^R a^C get {`a`:1}", "R{a}A{c}C:get {\"a\":1}.", "all three" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const int kind = rows[i].kind, v = kinds[kind].vocab;
        char talk[512];
        request cue, turn;
        id_list a = { 0 }, b = { 0 };
        static log l;
        err_ctx err = { 0 };

        snprintf(talk, sizeof talk, "U Q^%s^.", rows[i].message);
        read_request(&cue, "U Q", XML_TOOLS);
        read_request(&turn, talk, XML_TOOLS);
        CHECK(chat_render(&a, chats[kind], vocab[v].e, &cue.chat, &err) == 0);
        CHECK(chat_render(&b, chats[kind], vocab[v].e, &turn.chat, &err) == 0);
        if (CHECK_MSG(b.n > a.n && memcmp(a.ids, b.ids, a.n * sizeof *a.ids) == 0,
                      "%s: the cue is no prefix", rows[i].why)) {
            const id_list rest = { .ids = b.ids + a.n, .n = b.n - a.n };
            CHECK(parse_ids(&l, chats[kind], &cue.chat, &rest, &err) >= 0);
            CHECK_MSG(strcmp(l.text, rows[i].want) == 0, "%s:\ngot  %s\nwant %s", rows[i].why,
                      l.text, rows[i].want);
        }
        ids_free(&a);
        ids_free(&b);
        request_free(&cue);
        request_free(&turn);
    }
}

/* Random heaps of fragments: however they are cut into tokens, the events are the same, and what is
 * neither a call nor white space around one comes out. */
static void test_random(void)
{
    static const char *const parts[] = {
        "<tool_call>", "</tool_call>", "\n", "{\"name\": \"get\"", ", \"arguments\": ",
        "{\"a\": 1}", "}", "\"", "{", "<function=get>",
        "<function=", "<parameter=n>", "<parameter=city>", "\n", "</parameter>", "</function>",
        "text", " ", "é🙂", "<", "</think>", "<think>",
        "{\"name\": \"get\", \"arguments\": {}}", "3", "get>",
    };
    static const char *const h_parts[] = {
        "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "assistant",
        "analysis", "final", "commentary",
        " to=functions.get", " json", "{}", "text", "é🙂", " ", "<|channel|>final<|message|>",
    };
    static const int of[] = { JSON, THINK, HYBRID, XML, HARMONY };
    test_rng rng = { 11 };
    request r;

    read_request(&r, "", XML_TOOLS);
    for (int i = 0; i < 1500; i++) {
        const int kind = of[i % (int)ARRAY_LEN(of)];
        char text[1024] = "", why[32];
        const uint32_t n = 1 + test_below(&rng, 14);
        for (uint32_t k = 0; k < n; k++)
            strcat(text, kind == HARMONY ? h_parts[test_below(&rng, ARRAY_LEN(h_parts))] :
                   parts[test_below(&rng, ARRAY_LEN(parts))]);
        snprintf(why, sizeof why, "random text %d", i);
        check_parse(kind, &r.chat, text, NULL, why);
    }
    request_free(&r);

    for (int i = 0; i < 40; i++) {       /* any ids at all: no crash, valid UTF-8, in order */
        const int kind = of[i % (int)ARRAY_LEN(of)], v = kinds[kind].vocab;
        id_list ids = { 0 };
        static log l;
        const uint32_t n = (uint32_t)tokenizer_n_token(vocab[v].t);
        const uint32_t special = n - (v == QWEN ? 300 : 1100);
        for (int k = 0; k < 200; k++)
            ids_push(&ids, (int32_t)(test_below(&rng, 3) ? test_below(&rng, n)
                                                         : special + test_below(&rng, 60)), NULL);
        CHECK(parse_ids(&l, chats[kind], NULL, &ids, NULL) >= 0 && !l.bad_utf8 && !l.bad_order);
        ids_free(&ids);
    }
}

static int stop_at_second(void *ctx, const chat_event *ev)
{
    (void)ev;
    return ++*(int *)ctx == 2 ? -77 : 0;
}

static void test_contract(void)
{
    const chat_request req = { .n_message = 0 };
    const int letter = vocab[QWEN].byte_id['x'];
    const int end = tokenizer_special(vocab[QWEN].t, "<|im_end|>");
    chat_parser *p = NULL;
    err_ctx err = { 0 };
    static log l = { .last = -1 };
    int n = 0;

    CHECK(chat_parser_create(&p, chats[JSON], &req, &err) == 0);
    CHECK(chat_parser_push(p, -1, on_event, &l, &err) == ERR_RANGE);
    CHECK(chat_parser_push(p, tokenizer_n_token(vocab[QWEN].t), on_event, &l, &err) == ERR_RANGE);
    CHECK_MSG(strstr(err.msg, "151936"), "%s", err.msg);
    CHECK(chat_parser_push(p, letter, on_event, &l, &err) == 0);
    CHECK(chat_parser_push(p, end, on_event, &l, &err) == 1);
    CHECK(chat_parser_push(p, letter, on_event, &l, &err) == 1);
    CHECK(chat_parser_end(p, on_event, &l, &err) == 0);
    CHECK_MSG(strcmp(l.text, "A{x}.") == 0, "%s", l.text);
    chat_parser_free(p);
    chat_parser_free(NULL);

    CHECK(chat_parser_create(&p, chats[JSON], &req, &err) == 0);
    CHECK(chat_parser_push(p, letter, stop_at_second, &n, &err) == 0);
    CHECK(chat_parser_push(p, letter, stop_at_second, &n, &err) == -77);
    chat_parser_free(p);

    /* Plain text needs no memory once the parser stands. */
    for (int k = 0; k < 2; k++) {
        const int kind = k ? HARMONY : JSON, v = kinds[kind].vocab;
        id_list ids = { 0 };
        encoder_encode(vocab[v].e, &ids, str_from(k ? "<|channel|>final<|message|>" : ""), true,
                       NULL);
        encoder_encode(vocab[v].e, &ids, str_from("Some plain text,\n\nwith < signs and 🙂."),
                       true, NULL);
        l = (log){ .last = -1 };
        CHECK(chat_parser_create(&p, chats[kind], &req, &err) == 0);
        mem_guard(true);
        for (size_t i = 0; i < ids.n; i++) n = chat_parser_push(p, ids.ids[i], on_event, &l, &err);
        mem_guard(false);
        CHECK_MSG(n == 0 && l.len > 30, "text under the guard: %d, \"%s\"", n, l.text);
        chat_parser_free(p);
        ids_free(&ids);
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Everything in one go for a kind; 0, or < 0 with nothing leaked. */
static int whole_run(int kind, const request *r, const id_list *answer, log *l, err_ctx *err)
{
    const int v = kinds[kind].vocab;
    chat *c;
    id_list ids = { 0 };
    int rc = make_chat(&c, v, kinds[kind].tmpl, err);
    if (rc == 0) rc = chat_render(&ids, c, vocab[v].e, &r->chat, err);
    if (rc == 0) rc = parse_ids(l, c, &r->chat, answer, err);
    chat_free(c);
    ids_free(&ids);
    return rc;
}

static void test_memory(void)
{
    static const int of[] = { JSON, THINK, XML, HARMONY };
    request r;
    char big[1400];
    memset(big, 'v', sizeof big);
    big[sizeof big - 1] = '\0';

    read_request(&r, "S S^U Q^A A^R R^C get {`city`: 1}^T r", XML_TOOLS);
    for (size_t k = 0; k < ARRAY_LEN(of); k++) {
        const int kind = of[k], v = kinds[kind].vocab;
        static log want, got;
        char text[4096];
        id_list ids = { 0 };
        err_ctx err = { 0 };
        int n = 1, rc;

        if (kind == HARMONY)
            snprintf(text, sizeof text,
                     CHANNEL("commentary to=functions.get", "{\"city\": \"%s\"}<|call|>"), big);
        else if (kind == XML)
            snprintf(text, sizeof text, IN_CALL(FUNCTION("get", PARAM("city", "%s"))), big);
        else
            snprintf(text, sizeof text, "r</think>a" CALL("get", "{\"a\": \"%s\"}"), big);
        encoder_encode(vocab[v].e, &ids, str_from(text), true, NULL);
        CHECK(whole_run(kind, &r, &ids, &want, &err) >= 0 && strchr(want.text, 'C'));
        for (; n < 5000; n++) {
            mem_fail_after(n);
            rc = whole_run(kind, &r, &ids, &got, &err);
            mem_fail_after(0);
            if (rc >= 0) break;
            if (rc != ERR_NOMEM) CHECK_MSG(false, "kind %d, allocation %d fails: %d, %s", kind, n,
                                           rc, err.msg);
        }
        CHECK_MSG(n > 10 && n < 5000, "kind %d: %d allocations", kind, n);
        CHECK_MSG(strcmp(want.text, got.text) == 0, "kind %d: %s", kind, got.text);
        ids_free(&ids);
    }
    request_free(&r);
}

int main(int argc, char **argv)
{
    err_ctx err = { 0 };
    bool ready = true;

    test_begin("chat", argc, argv);
    for (int v = 0; v < N_VOCAB; v++) ready &= open_vocab(v);
    for (int k = 0; ready && k < N_KIND; k++)
        ready = CHECK_MSG(make_chat(&chats[k], kinds[k].vocab, kinds[k].tmpl, &err) == 0,
                          "kind %d: %s", k, err.msg);
    if (ready) {
        test_recognition();
        test_rendering();
        test_refusals();
        test_no_forgery();
        test_parsing();
        test_long_header();
        test_bytes();
        test_round_trip();
        test_random();
        test_contract();
        test_memory();
    }
    for (int k = 0; k < N_KIND; k++) chat_free(chats[k]);
    close_vocabs();
    return test_end();
}
