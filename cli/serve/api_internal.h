/* api_internal.h - what the api_*.c files share; no other file includes it.
 *
 * Readers return 0, or -1 with *error filled. An optional field that is null counts as absent. A
 * param is the path that the client would write, such as "messages[3].content". */
#ifndef CLI_SERVE_API_INTERNAL_H
#define CLI_SERVE_API_INTERNAL_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/serve/api.h"
#include "engine/text/textbuf_json.h"

/* ---- api_fields.c: JSON, memory, fields ---- */

typedef struct api_path { char text[64]; } api_path;
api_path api_path_of(const char *fmt, ...) PRINTF_LIKE(1, 2);
api_path api_path_in(const char *path, const char *key);         /* path "": key alone */

int api_refuse(api_error *error, const char *param, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The same for a field of the object at path ("": the body). */
int api_refuse_field(api_error *error, const char *path, const char *key, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
int api_no_support(api_error *error, const char *param, const char *fmt, ...) PRINTF_LIKE(3, 4);
int api_no_memory(api_error *error);

void *api_alloc(api_request *r, size_t n, size_t size);          /* zeroed; freed with r */
int api_keep(str_view *out, api_request *r, const textbuf *b, api_error *error);

const json_t *api_field(const json_t *object, const char *key);  /* NULL if absent or null */

/* Each reads one field of the object at path ("": the body). An absent field leaves *out as it
 * is. */
int api_bool(bool *out, const json_t *o, const char *path, const char *key, api_error *error);
int api_float(float *out, const json_t *o, const char *path, const char *key, double min,
              double max, api_error *error);
int api_int(int64_t *out, bool *given, const json_t *o, const char *path, const char *key,
            int64_t min, int64_t max, api_error *error);
int api_text(const char **out, const json_t *o, const char *path, const char *key,
             api_error *error);                            /* refuses a zero byte */
int api_string(const char **out, const json_t *v, const char *param, api_error *error);  /* of v */
int api_list(const json_t **out, const json_t *o, const char *path, const char *key,
             api_error *error);
int api_object(const json_t **out, const json_t *o, const char *path, const char *key,
               api_error *error);

/* Fields of several APIs. */
int api_sampling(api_request *r, const json_t *o, const char *path, api_error *error);
int api_stops(api_request *r, const json_t *o, const char *path, const char *key,
              api_error *error);
/* key: max_tokens or its other names. zero: 0 is allowed. */
int api_max_tokens(api_request *r, const json_t *o, const char *path, const char *key, bool zero,
                   api_error *error);
int api_effort(api_request *r, const json_t *o, const char *path, const char *key,
               api_error *error);
/* OpenAI's response_format. flat: as in the Responses API. */
int api_form(api_request *r, const json_t *format, const char *param, bool flat, api_error *error);

/* ---- api_build.c: messages ---- */

/* Collects text, reasoning and calls of the open message until another one is opened. */
typedef struct api_build {
    api_request *r;
    api_error *error;
    chat_message *list;
    int n, cap;
    bool open;
    chat_role role;
    textbuf content, reasoning;
    chat_call *calls;
    int n_call, cap_call;
    str_view name;                       /* of CHAT_TOOL: the function's */
    json_t *names;                       /* from call id to function name */
    str_view last_name;                  /* of the latest call */
} api_build;

int api_build_init(api_build *b, api_request *r, api_error *error);
/* Closes the open message and opens another. Leading system messages are merged. */
int api_build_open(api_build *b, chat_role role);
/* Opens a tool message for the call with this id (NULL: unknown). name is used if no call has the
 * id. */
int api_build_result(api_build *b, const char *id, const char *name);
/* Opens an assistant message unless one is open. */
int api_build_turn(api_build *b);
/* Adds a call to the open message. arguments: text or an object; any other value is wrapped in
 * one. */
int api_build_call(api_build *b, const char *id, str_view name, const json_t *arguments,
                   const char *param);
/* Appends the text of content, a string or an array of parts, to *out. Parts of other kinds are
 * refused, or with note become a sentence. sep goes between parts. */
int api_build_text(api_build *b, textbuf *out, const json_t *content, const char *sep, bool note,
                   const char *param);
int api_build_done(api_build *b);        /* r->chat.messages is the list then */
void api_build_release(api_build *b);    /* after each api_build_init */

/* ---- api_tools.c: tools and which may be called ---- */

/* Checks and takes tools of the form {"type":"function","function":{...}} for r->chat.tools. */
int api_tool_add(api_request *r, str_view name, const json_t *description, const json_t *parameters,
                 const json_t *strict, api_error *error);
int api_tools_chat(api_request *r, const json_t *tools, const char *param, api_error *error);
int api_check_choice(api_request *r, const char *param, api_error *error);
/* OpenAI's tool_choice, nested ("function": {"name"}) or flat. */
int api_tool_choice(api_request *r, const json_t *choice, bool flat, api_error *error);
/* Namespace and name in one, as the model sees them; in r's memory. NULL: no memory. */
const char *api_full_name(api_request *r, const char *space, const char *name);

/* ---- one for each API ---- */

/* Fields of chat completions that other APIs have, too. */
int api_chat_messages(api_request *r, const json_t *root, api_error *error);
int api_chat_bias(api_request *r, const json_t *root, api_error *error);
int api_chat_stream(api_request *r, const json_t *root, api_error *error);
int api_chat_n(api_request *r, const json_t *root, api_error *error);

int api_parse_chat(api_request *r, const json_t *root, api_error *error);
int api_parse_completion(api_request *r, const json_t *root, api_error *error);
int api_parse_responses(api_request *r, const json_t *root, api_error *error);
int api_parse_messages(api_request *r, const json_t *root, bool count, api_error *error);
int api_parse_ollama(api_request *r, const json_t *root, api_error *error);

/* ---- api_text.c: JSON as text, base64, dates ---- */

void api_put_text(textbuf *b, const char *s);            /* with the quotes; NULL: null */
/* head, such as ",\"model\":", and the text after it. */
void api_put_field(textbuf *b, const char *head, const char *s);
void api_put_string(textbuf *b, const char *head, str_view s);
void api_put_json(textbuf *b, const json_t *v);          /* NULL: null */
void api_put_float(textbuf *b, double v);                /* NAN: null */
void api_put_lossy(textbuf *b, str_view bytes);          /* as a string; invalid UTF-8 becomes
                                                          * U+FFFD */
/* The text as a JSON object on one line; other text becomes {"arguments": text}. */
void api_put_object(textbuf *b, str_view text);
void api_put_date(textbuf *b, int64_t seconds);          /* RFC 3339, with the quotes */
void api_base64(textbuf *b, str_view bytes);
bool api_base64_read(textbuf *out, str_view text);       /* false: not base64 of UTF-8 */
char *api_take(textbuf *b);              /* terminated, for mem_free; NULL if b failed. Empties b */

/* ---- writers ---- */

typedef enum part_kind { PART_REASONING, PART_TEXT, PART_CALL } part_kind;

/* Consecutive output of one kind: a block of Anthropic's API, an item of Responses. */
typedef struct api_part {
    part_kind kind;
    int index;                           /* index in the choice */
    int call;                            /* index among calls of the choice */
    int number;                          /* index in the whole answer, for ids */
    char *name;                          /* of the function */
    const api_tool *tool;                /* Responses: the tool; NULL: unknown */
    textbuf text;                        /* all text so far, if the API needs it; always for
                                          * calls */
    textbuf rows;                        /* Responses: logprobs of the text */
    bool done;
} api_part;

typedef struct api_answer {
    api_part *parts;
    int n_part, cap_part, n_call;
    bool is_open;                        /* the last part is open */
    bool finished;
    answer_end end;
    char *stop_text;
    /* logprobs as JSON rows with commas; chat has one list, completions four */
    textbuf rows, row_logprobs, row_tops, row_offsets;
    size_t n_char;                       /* completions: characters so far */
} api_answer;

/* An API's output functions. They write to w->out; it is sent when the writer's function returns.
 * begin, open and close may be NULL: this API writes nothing there. */
typedef struct api_style {
    bool keep_text;                      /* keep part.text in a stream, too */
    void (*begin)(api_writer *w);
    void (*open)(api_writer *w, api_part *p);
    void (*delta)(api_writer *w, api_part *p, str_view text);
    void (*close)(api_writer *w, api_part *p);
    void (*idle)(api_writer *w);
    void (*end)(api_writer *w);
    void (*fail)(api_writer *w, const api_error *error);
    void (*whole)(api_writer *w);        /* the body of a response without stream */
} api_style;

struct api_writer {
    const api_request *r;
    char *model, *id;
    int64_t created;
    api_sink *sink;
    void *ctx;
    const api_style *style;
    textbuf out;                         /* for the sink */
    api_answer choices[API_MAX_CHOICE];
    int n_choice, current;
    int n_number;
    int n_event;                         /* Responses: sequence_number */
    bool begun;
    api_usage usage;
    textbuf echo;                        /* Responses: fields of the request */
};

extern const api_style api_style_chat, api_style_completion, api_style_responses,
                       api_style_messages, api_style_ollama;

/* ---- api_answer.c ---- */

void api_close_event(api_writer *w);     /* ends an event of a stream, and the object in it */
void api_put_failure(api_writer *w, const api_error *error);     /* the last event of a stream */
/* Appends the choice's text of this kind. */
void api_put_joined(textbuf *b, const api_answer *c, part_kind kind);
const char *api_finish_reason(const api_writer *w, const api_answer *c);     /* in OpenAI's words */
void api_put_usage(textbuf *b, const api_usage *u);                      /* OpenAI's chat */
void api_put_timings(textbuf *b, const api_usage *u);
void api_put_error(textbuf *b, const api_error *error, api_kind kind, const char *request_id);

#endif
