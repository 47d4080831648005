/* chat_internal.h - what chat.c and the chat_*.c files share; no other file includes it.
 *
 * Text is built in a textbuf, which remembers an allocation that failed; prompt_flush and
 * textbuf_check report it. */
#ifndef ENGINE_TEXT_CHAT_CHAT_INTERNAL_H
#define ENGINE_TEXT_CHAT_CHAT_INTERNAL_H

#include "engine/text/chat/chat.h"
#include "engine/text/textbuf_json.h"

/* ---- views ---- */

bool view_has(str_view s, const char *needle);
size_t view_find(str_view s, size_t from, const char *needle);   /* SIZE_MAX if it is not there */
str_view view_strip(str_view s, const char *chars, bool left, bool right);
#define VIEW_SPACE " \t\n\r\v\f"
str_view view_trim(str_view s);          /* less the white space at both ends */

/* Reasoning may come in its own field or, from clients that keep the raw text, before </think>: if
 * there is none yet, takes it out of the content. */
void split_reasoning(str_view *reasoning, str_view *content);

/* ---- the file's template ---- */

/* Walks the template's output: string literals inside {{ }}, and text outside of all tags. */
typedef struct literal_scan {
    str_view s;
    size_t pos;                           /* next byte to look at */
    size_t found_at;                     /* where the current literal began */
    bool in_output;                      /* inside {{ }} */
} literal_scan;
bool template_next(literal_scan *k, textbuf *lit);       /* false: there are no more */

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
void prompt_tag(prompt *p, const char *s);       /* as its token, or as text if there is none */
int prompt_flush(prompt *p);             /* encodes what is gathered; returns rc */

/* ---- tools ---- */

/* The object with name, description and parameters: a tool's "function", or the tool itself. */
const json_t *tool_function(const json_t *tool);
const char *json_text(const json_t *object, const char *key);    /* NULL unless a string */

/* The tools that may be called: name -> place in the list. NULL: no memory. */
json_t *request_callable(const chat_request *req);

/* The arguments of a call as an object, to be decref'd; NULL, and p->rc < 0, if they are none. */
json_t *call_arguments(prompt *p, const chat_call *call, int i_message);

/* Types of a parameter, as the reader of untyped calls sees them; 0: its schema does not say. */
enum { TYPE_STRING = 1, TYPE_NULL = 2, TYPE_OTHER = 4 };
int schema_types(const json_t *schema);

/* ---- the chat ---- */

/* A format, as chat.c sees it; each has a file of its own. */
typedef struct chat_ops {
    chat_format format;
    const char *name;
    bool tools;                          /* knows tools, calls and results */
    /* 1: the template (empty: none) and the vocabulary are of this format, and c is filled; 0: they
     * are not; < 0: an error. */
    int (*setup)(chat *c, str_view template, err_ctx *err);
    void (*render)(prompt *p, const chat_request *req);
    void (*begin)(chat_parser *p, const chat_request *req);      /* how the answer begins; may be
                                                                  * NULL. req: not NULL */
    int (*push)(chat_parser *p, int id);
    int (*end)(chat_parser *p);
    int (*call)(chat_parser *p);         /* with tags: a step within a call */
} chat_ops;
extern const chat_ops chatml_ops, harmony_ops, glm_ops, gemma_ops, mistral_ops, tulu_ops;

/* The tags of formats whose answers are text with tags in it. */
typedef struct chat_tags {
    const char *think, *think_end;
    const char *think_name;              /* a word after think that is part of the tag, or NULL */
    const char *call, *call_end;
} chat_tags;

struct chat {
    const chat_ops *ops;
    const tokenizer *t;
    const char *note;                    /* static text or NULL */

    /* formats with tags */
    const chat_tags *tags;               /* NULL: the format has none */
    int shown[12], n_shown;              /* tokens that count as text, even where the file calls
                                          * them control tokens */
    int ends[4], n_end;                 /* tokens that end a turn besides the tokenizer's
                                         * stop_strings */
    bool knows_reasoning;                /* answers may have reasoning, and history shows it */
    bool cue_thinks;                     /* the cue opens the reasoning */
    bool cue_open;                       /* the newline after the cue is left to the model */
    bool may_rest;                       /* reasoning can be switched off, by the prompt */
    char *tools_intro;                   /* up to the list of tools */
    char *tools_outro;                   /* after it */

    /* ChatML */
    int im_start, im_end;
    bool xml_calls;                      /* <function=NAME>, else JSON in <tool_call> */
    bool xml_list;                       /* tools are listed as nested tags, else as JSON */
    bool xml_results;                    /* results end with a newline, as in the coder models */
    bool system_last;                    /* the system message stands after the tools */
    bool trims;                          /* Qwen3.5: contents are trimmed, and every answer in
                                          * progress has a block of reasoning */
    bool one_system;                     /* a system message comes first or not at all */
    bool json_values;                    /* XML calls: all but strings as JSON; else as Python */
    char *default_system;               /* system text of the template, used if the request has
                                         * none; or NULL */
    bool default_always;                 /* even without tools */

    /* harmony; the last two may be -1 */
    int h_start, h_message, h_channel, h_end, h_call, h_constrain;

    /* GLM: role tokens; what stands between the parts of a turn */
    int g_system, g_user, g_assistant, g_observation;
    const char *g_line;                  /* LF, or nothing from GLM-4.7 on */

    /* Gemma */
    int turn, turn_end;

    /* Mistral */
    const char *inst_lead, *answer_lead, *answer_tail;   /* a space or nothing */

    /* Tulu */
    bool tulu_lines;                     /* a newline after the last answer, too */
    const char *tulu_cue;                /* newlines after the cue */

    /* Gemma, Mistral, Tulu: the token before everything, or -1 */
    int first;
};

/* Notes that the token of this text counts as text in answers. */
void chat_show(chat *c, const char *text);
bool chat_ends_turn(const chat *c, int id);
int chat_keep(char **out, str_view s, err_ctx *err);     /* a copy, unless *out has one already */

/* ---- the parser ---- */

#define TAG_CALL "<tool_call>"
#define TAG_CALL_END "</tool_call>"
#define TAG_FUNCTION "<function="
#define TAG_FUNCTION_END "</function>"
#define TAG_PARAM "<parameter="
#define TAG_PARAM_END "</parameter>"
#define TAG_KEY "<arg_key>"
#define TAG_KEY_END "</arg_key>"
#define TAG_VALUE "<arg_value>"
#define TAG_VALUE_END "</arg_value>"
#define GEMMA_CALL_WORD "call:"
extern const chat_tags think_tags;       /* <think> and <tool_call>: ChatML, GLM */

/* While a harmony header comes in, held has its text, and these bytes for the two tokens inside
 * it. Real control characters in a header become spaces. */
#define MARK_CHANNEL '\1'
#define MARK_CONSTRAIN '\2'

typedef enum tags_where {
    TAGS_ANSWER, TAGS_REASONING,
    TAGS_CALL,                           /* the tag of a call came: the format reads on */
    TAGS_AFTER                           /* a call is complete; its closing tag may follow */
} tags_where;

/* The parser is in one of these places; held always begins at the first byte not yet emitted. */
typedef struct tags_state {
    tags_where where;
    bool started;                        /* the current text has produced an event */
    bool after_call;                     /* nothing but white space since a call */
    bool strip;                          /* newlines at the start of the text are structure */
    size_t tag_at;                       /* in a call: where in held it begins */
    size_t scan;                         /* in a call: everything before was looked at */
    enum { BODY_OPEN, BODY_JSON, BODY_XML } body;        /* ChatML: what the call is written in */
    int depth;                           /* of brackets */
    bool in_string, escaped;
    /* parameters between tags: slices are offsets into held */
    enum { PARAMS_NAME, PARAMS_BETWEEN, PARAMS_VALUE } phase;
    size_t name_at, name_len, value_at;
    struct call_param { size_t key_at, key_len, value_at, value_len; } *params;
    size_t n_param, cap_param;
} tags_state;

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
    textbuf args;                        /* scratch: arguments of a call; text of a token */
    tags_state tags;
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
int parser_decode(chat_parser *p, textbuf *dst, str_view bytes);
int parser_decode_end(chat_parser *p, textbuf *dst);      /* a tail that never completed */

/* ---- text without any tags ---- */

int plain_push(chat_parser *p, int id);
int plain_end(chat_parser *p);

/* ---- text with tags ---- */

/* A name in a tag, white space that waits for a tag: not longer. Bounds the rescanning. */
enum { NAME_MAX_BYTES = 256, SPACE_MAX_BYTES = 64 };

enum { MORE = 0, AGAIN = 1 };            /* steps return: wait for text, go on, or < 0 */

typedef enum match { MATCH_NO, MATCH_MAYBE, MATCH_YES } match;

/* Does tag stand at `at`? MAYBE: the text ends within it. */
match match_at(str_view s, size_t pos, const char *tag);
/* The same for the best of several, after white space; MAYBE if there is only that. */
match match_any(str_view s, size_t pos, const char *const *tags, size_t n);
size_t skip_space(str_view s, size_t pos);
/* Length of the longest end of s that begins tag without completing it. */
size_t partial_tag(str_view s, const char *tag);

int tags_push(chat_parser *p, int id);
int tags_end(chat_parser *p);
str_view tags_bytes(const chat *c, int id);      /* of a token, with what counts as text */

/* What looked like a call is none: the first n bytes of held are answer text. */
int tags_give_up(chat_parser *p, size_t n);
/* A call that ends after so many bytes of held. */
int tags_report(chat_parser *p, str_view name, str_view args, size_t call_bytes);

/* ---- calls whose parameters stand between tags ---- */

int params_add(chat_parser *p, size_t key_at, size_t key_len);
/* Within a value: looks for the closing tag that one of the others follows, and then notes the
 * value; the phase is BETWEEN then. */
int params_value(chat_parser *p, const char *close, const char *const *next, size_t n_next);
/* Makes one object of the parameters, typed by the tool's schema, and reports the call. lines: a
 * newline at either end of a value is structure. */
int params_report(chat_parser *p, bool lines, size_t call_bytes);
/* Many readers of JSON, ours among them, take no zero character in a key: such calls are text. */
bool is_json_key(str_view s);

/* ---- calls of ChatML ---- */

int chatml_call(chat_parser *p);

/* For calls without <tool_call>: where before `at` a function of an offered tool begins or may
 * begin, else at. */
size_t chatml_bare_call(const chat_parser *p, size_t pos, bool *sure);

#endif
