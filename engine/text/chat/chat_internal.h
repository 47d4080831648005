/* chat_internal.h - private to the files of engine/text/chat.
 *
 * Text is built in a textbuf; prompt_flush and textbuf_check report a failed allocation. */
#ifndef ENGINE_TEXT_CHAT_CHAT_INTERNAL_H
#define ENGINE_TEXT_CHAT_CHAT_INTERNAL_H

#include "engine/text/chat/chat.h"
#include "engine/text/textbuf_json.h"

/* ---- views ---- */

bool view_has(str_view s, const char *needle);
size_t view_find(str_view s, size_t from, const char *needle);   /* SIZE_MAX if not found */
str_view view_strip(str_view s, const char *chars, bool left, bool right);
#define VIEW_SPACE " \t\n\r\v\f"
str_view view_trim(str_view s);          /* removes white space at both ends */

/* If *reasoning is empty, moves the text before </think> from *content to it: some clients send the
 * raw text of an answer as its content. */
void split_reasoning(str_view *reasoning, str_view *content);

/* ---- the file's template ---- */

/* Iterates over the template's output: string literals inside {{ }}, and text outside of all
 * tags. */
typedef struct literal_scan {
    str_view s;
    size_t pos;                          /* next byte */
    size_t found_at;                     /* start of the current literal */
    bool in_output;                      /* inside {{ }} */
} literal_scan;
bool template_next(literal_scan *k, textbuf *lit);       /* false: there are no more */

/* ---- a prompt under construction ---- */

/* Text is collected up to the next structural token and then encoded as a whole, so that merges
 * equal the reference's. Text never becomes a control token. After the first failure, stored in rc
 * and *err, all functions are no-ops. */
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
int prompt_flush(prompt *p);             /* encodes the collected text; returns rc */

/* ---- tools ---- */

/* Returns the object with name, description and parameters: "function" of the tool, or the tool. */
const json_t *tool_function(const json_t *tool);
const char *json_text(const json_t *object, const char *key);    /* NULL unless a string */

/* Returns the callable tools as an object of name -> index in req->tools, or NULL if out of
 * memory. */
json_t *request_callable(const chat_request *req);

/* Returns the arguments of a call as an object, which the caller decrefs, or NULL with p->rc <
 * 0. */
json_t *call_arguments(prompt *p, const chat_call *call, int i_message);

/* Types of a parameter, for calls without types; 0 if the schema does not say. */
enum { TYPE_STRING = 1, TYPE_NULL = 2, TYPE_OTHER = 4 };
int schema_types(const json_t *schema);

/* ---- the chat ---- */

/* A chat format. */
typedef struct chat_ops {
    chat_format format;
    const char *name;
    bool tools;                          /* supports tools, calls and results */
    /* Returns 1 with c filled if template (may be empty) and vocabulary have this format, 0 if they
     * have not, or < 0. */
    int (*setup)(chat *c, str_view template, err_ctx *err);
    void (*render)(prompt *p, const chat_request *req);
    void (*begin)(chat_parser *p, const chat_request *req);      /* sets the parser's initial state
                                                                  * from the cue; may be NULL */
    int (*push)(chat_parser *p, int id);
    int (*end)(chat_parser *p);
    int (*call)(chat_parser *p);         /* formats with tags: one step inside a call */
} chat_ops;
extern const chat_ops chatml_ops, harmony_ops, glm_ops, gemma_ops, mistral_ops, tulu_ops;

/* The tags of ChatML, GLM and Gemma. */
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
    int shown[12], n_shown;              /* tokens that count as text, even if the file declares
                                          * them CONTROL */
    int ends[4], n_end;                  /* tokens that end a turn besides the tokenizer's stops */
    bool knows_reasoning;                /* answers and history may contain reasoning */
    bool cue_thinks;                     /* the cue opens the reasoning */
    bool cue_open;                       /* the cue omits its newline; the model writes it */
    bool may_rest;                       /* the prompt can disable reasoning */
    char *tools_intro;                   /* text before the list of tools */
    char *tools_outro;                   /* text after it */

    /* ChatML */
    int im_start, im_end;
    bool xml_calls;                      /* <function=NAME>, else JSON in <tool_call> */
    bool xml_list;                       /* tools are listed as nested tags, else as JSON */
    bool xml_results;                    /* results end with a newline, as in the coder models */
    bool system_last;                    /* the system message follows the tools */
    bool trims;                          /* Qwen3.5: contents are trimmed, and every answer in
                                          * progress has a block of reasoning */
    bool one_system;                     /* only the first message may be a system message */
    bool json_values;                    /* XML calls: non-strings as JSON; else as Python */
    char *default_system;                /* the template's text for requests without a system
                                          * message, or NULL */
    bool default_always;                 /* default_system applies without tools too */

    /* harmony's tokens; the last two may be -1 */
    int h_start, h_message, h_channel, h_end, h_call, h_constrain;

    /* GLM: role tokens */
    int g_system, g_user, g_assistant, g_observation;
    const char *g_line;                  /* between parts of a turn: LF, empty from GLM-4.7 on */

    /* Gemma */
    int turn, turn_end;

    /* Mistral */
    const char *inst_lead, *answer_lead, *answer_tail;   /* a space or empty */

    /* Tulu */
    bool tulu_lines;                     /* the last answer ends with a newline too */
    const char *tulu_cue;                /* newlines after the cue */

    /* Gemma, Mistral, Tulu: the first token of a prompt, or -1 */
    int first;
};

/* Marks the token with this text as text in answers. */
void chat_show(chat *c, const char *text);
bool chat_ends_turn(const chat *c, int id);
int chat_keep(char **out, str_view s, err_ctx *err);     /* copies s, unless *out is set already */

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

/* During a harmony header, held has its text, with these bytes for the tokens <|channel|> and
 * <|constrain|>. Control characters in the header's text become spaces. */
#define MARK_CHANNEL '\1'
#define MARK_CONSTRAIN '\2'

typedef enum tags_where {
    TAGS_ANSWER, TAGS_REASONING,
    TAGS_CALL,                           /* after the opening tag of a call: ops->call parses */
    TAGS_AFTER                           /* after a complete call: its closing tag may follow */
} tags_where;

/* State of the parser for formats with tags. held always begins at the first byte not yet
 * emitted. */
typedef struct tags_state {
    tags_where where;
    bool started;                        /* the current text has produced an event */
    bool after_call;                     /* only white space since a call */
    bool strip;                          /* newlines at the start of the text are structure */
    size_t tag_at;                       /* in a call: its start in held */
    size_t scan;                         /* in a call: first byte of held not yet scanned */
    enum { BODY_OPEN, BODY_JSON, BODY_XML } body;        /* ChatML: notation of the call */
    int depth;                           /* open brackets */
    bool in_string, escaped;
    /* parameters between tags, as offsets into held */
    enum { PARAMS_NAME, PARAMS_BETWEEN, PARAMS_VALUE } phase;
    size_t name_at, name_len, value_at;
    struct call_param { size_t key_at, key_len, value_at, value_len; } *params;
    int n_param, cap_param;
} tags_state;

typedef struct harmony_state {
    enum { ROUTE_HEADER, ROUTE_REASONING, ROUTE_ANSWER, ROUTE_CALL } route;
    bool in_header_role;                 /* after <|start|>: the header begins with a role */
    bool said[2];                        /* reasoning, answer: an earlier message had text */
    bool fresh;                          /* the current message has no text yet */
    bool ended;                          /* a message is complete */
    uint8_t key[3];                      /* chat_parser_key of the current message */
} harmony_state;

/* First byte of harmony's keys: text, or a call, followed by the tool's index in two bytes. */
enum { KEY_TEXT = 't', KEY_CALL = 'c' };

struct chat_parser {
    const chat *c;
    json_t *tools;                       /* owned copy, or NULL */
    bool calls;                          /* tool calls are parsed */
    chat_calls hold;                     /* req->calls */
    bool formed;
    json_t *callable;                    /* name -> index; NULL if calls are free */
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

/* All return 0, or < 0 on an error or if the callback returned < 0. */
int parser_emit(chat_parser *p, chat_event_kind kind, str_view text);    /* empty text: no event */
int parser_call(chat_parser *p, str_view name);
/* Appends the bytes of a token, converted to valid UTF-8, to *dst. */
int parser_decode(chat_parser *p, textbuf *dst, str_view bytes);
int parser_decode_end(chat_parser *p, textbuf *dst);     /* appends an incomplete tail as U+FFFD */

/* ---- text without any tags ---- */

int plain_push(chat_parser *p, int id);
int plain_end(chat_parser *p);

/* ---- text with tags ---- */

/* Most bytes of a name in a tag, and of white space buffered before a tag. They bound
 * rescanning. */
enum { NAME_MAX_BYTES = 256, SPACE_MAX_BYTES = 64 };

enum { MORE = 0, AGAIN = 1 };            /* results of a step: needs text, continue; or < 0 */

typedef enum match { MATCH_NO, MATCH_MAYBE, MATCH_YES } match;

/* Matches tag at pos. MAYBE: s ends inside the tag. */
match match_at(str_view s, size_t pos, const char *tag);
/* Returns the best match of several tags after white space; MAYBE if s ends in the white space. */
match match_any(str_view s, size_t pos, const char *const *tags, size_t n);
size_t skip_space(str_view s, size_t pos);
/* Returns the length of the longest suffix of s that is a proper prefix of tag. */
size_t partial_tag(str_view s, const char *tag);

int tags_push(chat_parser *p, int id);
int tags_end(chat_parser *p);
str_view tags_bytes(const chat *c, int id);      /* bytes of a token, including `shown` ones */

/* Emits the first n bytes of held, an invalid call, as answer text. */
int tags_give_up(chat_parser *p, size_t n);
/* Reports a call that takes the first call_bytes of held. */
int tags_report(chat_parser *p, str_view name, str_view args, size_t call_bytes);

/* ---- calls with parameters between tags ---- */

int params_add(chat_parser *p, size_t key_at, size_t key_len);
/* Inside a value: searches for `close` followed by one of next, then stores the value and sets the
 * phase to PARAMS_BETWEEN. */
int params_value(chat_parser *p, const char *close, const char *const *next, size_t n_next);
/* Builds one object of the parameters, typed by the tool's schema, and reports the call. lines: a
 * newline at either end of a value is structure. */
int params_report(chat_parser *p, bool lines, size_t call_bytes);
/* Returns false for keys with U+0000, which most JSON readers refuse; such calls are text. */
bool is_json_key(str_view s);

/* ---- calls of ChatML ---- */

int chatml_call(chat_parser *p);

/* For calls without <tool_call>: returns the position before pos at which a function of an offered
 * tool begins or may begin, else pos. *sure: it certainly begins there. */
size_t chatml_bare_call(const chat_parser *p, size_t pos, bool *sure);

#endif
