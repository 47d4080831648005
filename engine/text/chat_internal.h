/* chat_internal.h - what chat.c and the chat_*.c files share; nobody else includes it.
 *
 * Text is built in a textbuf, which remembers an allocation that failed; prompt_flush and
 * textbuf_check report it. */
#ifndef ENGINE_TEXT_CHAT_INTERNAL_H
#define ENGINE_TEXT_CHAT_INTERNAL_H

#include "engine/text/chat.h"

/* ---- text under construction ---- */

int textbuf_check(const textbuf *b, err_ctx *err);       /* ERR_NOMEM if it failed, else 0 */

/* JSON as text on one line. The two styles are those of the programs that wrote the training data:
 * Python ("a": 1, "b": 1e-05) and Rust's serde ("a":1,"b":1e-5). Key order and non-ASCII stay. */
typedef enum json_style { JSON_SPACED, JSON_TIGHT } json_style;
void textbuf_json(textbuf *b, const json_t *v, json_style style);
void textbuf_json_string(textbuf *b, str_view s);        /* with the quotes */

/* ---- views ---- */

bool view_has(str_view s, const char *needle);
size_t view_find(str_view s, size_t from, const char *needle);   /* SIZE_MAX if it is not there */
str_view view_strip(str_view s, const char *chars, bool left, bool right);
#define VIEW_SPACE " \t\n\r\v\f"

/* ---- a prompt under construction ---- */

/* Text gathers until a structural token comes and is then encoded in one piece, so merges see the
 * same stretch as in the reference. Text never becomes a control token. The first failure stays in
 * rc and *err and makes the rest a no-op. */
typedef struct prompt {
    const chat *c;
    encoder *e;
    id_list *out;
    textbuf text;
    int rc;
    err_ctx *err;
} prompt;

void prompt_text(prompt *p, const char *s);
void prompt_view(prompt *p, str_view s);
void prompt_token(prompt *p, int id);    /* id -1: the vocabulary lacks it, an error */
int prompt_flush(prompt *p);             /* encodes what is gathered; returns rc */

/* ---- tools ---- */

/* The object with name, description and parameters: a tool's "function", or the tool itself. */
const json_t *tool_function(const json_t *tool);
const char *json_text(const json_t *object, const char *key);    /* NULL unless a string */

/* The tools that may be called: name -> place in the list. NULL: no memory. */
json_t *request_callable(const chat_request *req);

/* Types of a parameter, as the reader of XML calls sees them; 0: its schema does not say. */
enum { TYPE_STRING = 1, TYPE_NULL = 2, TYPE_OTHER = 4 };
int schema_types(const json_t *schema);

/* ---- the chat ---- */

struct chat {
    chat_format format;
    const tokenizer *t;
    const char *note;                    /* static text or NULL */

    /* ChatML */
    int im_start, im_end;
    bool xml_calls;                      /* <function=NAME>, else JSON in <tool_call> */
    bool xml_list;                       /* tools are listed as nested tags, else as JSON */
    bool cue_thinks;                     /* the cue ends with <think> LF */
    bool knows_reasoning;                /* the template puts reasoning into history */
    char *tools_intro;                   /* up to and including <tools> */
    char *tools_outro;                   /* from LF </tools> to the end of the turn */
    char *default_system;                /* what the template says if nobody else does, or NULL */
    bool default_always;                 /* even without tools */

    /* harmony; the last two may be -1 */
    int h_start, h_message, h_channel, h_end, h_call, h_constrain;
};

/* Reads ChatML's variable parts out of the template (empty: none). */
int chatml_setup(chat *c, str_view template, err_ctx *err);
void chatml_render(prompt *p, const chat_request *req);
void harmony_render(prompt *p, const chat_request *req);

/* ---- the parser ---- */

#define CHATML_THINK "<think>"
#define CHATML_THINK_END "</think>"
#define TAG_CALL "<tool_call>"
#define TAG_CALL_END "</tool_call>"
#define TAG_FUNCTION "<function="
#define TAG_FUNCTION_END "</function>"
#define TAG_PARAM "<parameter="
#define TAG_PARAM_END "</parameter>"

/* While a harmony header comes in, held has its text, and these bytes for the two tokens inside
 * it. Real control characters in a header become spaces. */
#define MARK_CHANNEL '\1'
#define MARK_CONSTRAIN '\2'

typedef enum chatml_where {
    CHATML_ANSWER, CHATML_REASONING,
    CHATML_CALL,                         /* <tool_call> came; JSON or XML is not clear yet */
    CHATML_JSON, CHATML_XML,
    CHATML_AFTER                         /* a call is complete; </tool_call> may follow */
} chatml_where;

/* The parser is in one of these places; held always begins at the first byte not yet emitted. */
typedef struct chatml_state {
    chatml_where where;
    bool started;                        /* the current text has produced an event */
    bool after_call;                     /* nothing but white space since a call */
    bool strip;                          /* newlines at the start of the text are structure */
    size_t tag_at;                       /* in a call: where in held it begins */
    size_t scan;                         /* in a call: everything before was looked at */
    /* JSON call */
    int depth;
    bool in_string, escaped;
    /* XML call: slices are offsets into held */
    enum { XML_NAME, XML_BETWEEN, XML_VALUE } phase;
    size_t name_at, name_len, value_at;
    struct xml_param { size_t key_at, key_len, value_at, value_len; } *params;
    size_t n_param, cap_param;
} chatml_state;

typedef struct harmony_state {
    enum { ROUTE_HEADER, ROUTE_REASONING, ROUTE_ANSWER, ROUTE_CALL } route;
    bool in_header_role;                 /* after <|start|>: the header begins with a role */
    bool said[2];                        /* reasoning, answer: an earlier message had text */
    bool fresh;                          /* the current message has had no text yet */
    bool ended;                          /* a message is complete */
    uint8_t key[3];                      /* of the part of the grammar that holds the message */
} harmony_state;

/* Keys of harmony's messages: the text, or a call of tool i, its place in two bytes. */
enum { KEY_TEXT = 't', KEY_CALL = 'c' };

struct chat_parser {
    const chat *c;
    json_t *tools;                       /* our copy, or NULL */
    bool calls;                          /* tool calls are looked for */
    chat_calls hold;                     /* as the request says */
    bool formed;
    json_t *callable;                    /* name -> place; NULL unless calls are held */
    bool done;
    utf8_stream utf8;
    textbuf held;                        /* valid UTF-8 not yet emitted (harmony: the header) */
    textbuf args;                        /* scratch: arguments of an XML call; text of a token */
    chatml_state chatml;
    harmony_state harmony;
    /* during push and end only */
    chat_event_fn *fn;
    void *ctx;
    err_ctx *err;
};

/* All return 0, < 0 on error or what the callback returned. */
int parser_emit(chat_parser *p, chat_event_kind kind, str_view text);    /* empty text: no event */
int parser_call(chat_parser *p, str_view name);
/* Appends the bytes of a token, made valid UTF-8, to *to. */
int parser_decode(chat_parser *p, textbuf *to, str_view bytes);
int parser_decode_end(chat_parser *p, textbuf *to);      /* a tail that never completed */

int chatml_push(chat_parser *p, int id);
int chatml_end(chat_parser *p);
int harmony_push(chat_parser *p, int id);
int harmony_end(chat_parser *p);

#endif
