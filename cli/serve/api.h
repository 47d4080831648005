/* api.h - request and response formats of six HTTP APIs, and one form that the engine uses.
 *
 * api_parse turns a body into an api_request, the same for every API. An api_writer turns the
 * events of chat.h into that API's response, as a stream or in one piece. Everything here is a
 * function of its arguments: no network, no engine, no clock. One thread at a time uses a request
 * or a writer.
 *
 * A bad request is normal: api_parse fills an api_error that names the field. A model's output is
 * never an error: what is not JSON where an API wants JSON is passed on as text. */
#ifndef CLI_SERVE_API_H
#define CLI_SERVE_API_H

#include "engine/session/answer.h"

typedef enum api_kind {
    API_CHAT, API_COMPLETION, API_RESPONSES, API_MESSAGES, API_OLLAMA_CHAT, API_OLLAMA_GENERATE
} api_kind;

enum { API_MAX_CHOICE = 8, API_MAX_DEPTH = 256, API_MAX_TOP = 20 };

/* ---- errors -------------------------------------------------------------------------------- */

/* In OpenAI's words; api_error_body translates. "" is null. */
typedef struct api_error {
    int status;                          /* HTTP status */
    char type[40], code[40], param[64], message[256];
} api_error;

typedef enum api_error_type {
    API_BAD_REQUEST, API_UNSUPPORTED, API_NO_KEY, API_NOT_FOUND, API_NO_MODEL, API_BAD_METHOD,
    API_TOO_LARGE, API_LOADING, API_BUSY, API_BROKEN
} api_error_type;

/* Fills in status, type and code for the API's clients (a full queue is 529 for API_MESSAGES). */
void api_error_make(api_error *error, api_error_type type, api_kind kind, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* The error object as terminated JSON; free with mem_free. NULL: no memory. request_id may be
 * NULL. */
char *api_error_body(const api_error *error, api_kind kind, const char *request_id);

/* ---- requests ------------------------------------------------------------------------------ */

typedef struct api_prompt {              /* of /v1/completions */
    const char *text;                    /* NULL: ids are given instead */
    size_t n_text;
    const int32_t *ids;
    int n_ids;
} api_prompt;

typedef struct api_bias {
    int32_t id;                          /* >= 0; the caller checks it against the vocabulary */
    float value;
} api_bias;

/* Names of a tool of the Responses API. */
typedef struct api_tool {
    const char *full_name;               /* in chat.tools: namespace and name in one */
    const char *name, *space;            /* as the client knows them; space NULL: none */
    bool custom;                         /* its only argument is the text "input" */
} api_tool;

/* Owns all that it points to, until api_request_free. Numbers that the client did not give are NAN
 * (float) or -1 (int): the defaults of the model family apply. */
typedef struct api_request {
    api_kind kind;
    bool stream, include_usage;
    bool load_only;                      /* Ollama without a prompt: compute nothing, call
                                          * api_writer_end */
    chat_request chat;                   /* messages (none with raw), tools, effort, thinking; the
                                          * caller sets date */
    bool show_reasoning;                 /* false: the writer drops reasoning */

    /* With raw there is no chat format; choice i answers prompt i / n. With echo the caller sends
     * each prompt as CHAT_ANSWER first. */
    bool raw, echo;
    const api_prompt *prompts;           /* of raw; none with load_only */
    int n_prompts;
    const char *suffix;                  /* text after the gap, for fill-in-the-middle; NULL:
                                          * none */

    int max_tokens;                      /* -1: up to the context size; 0: compute the prompt only
                                          * (completions with echo, and API_MESSAGES) */
    float temperature, top_p, min_p, frequency_penalty, presence_penalty, repeat_penalty;
    int top_k;
    bool has_seed;
    uint64_t seed;
    bool ignore_eos;
    const char **stop;
    int n_stop;
    int n;                               /* choices for each prompt */
    int logprobs;                        /* -1: none; else the number of top tokens besides the
                                          * drawn one */
    api_bias *bias;
    int n_bias;

    enum { CHOICE_AUTO, CHOICE_NONE, CHOICE_REQUIRED, CHOICE_NAMED } tool_choice;
                                         /* none: chat.tools stay in the prompt; the parser gets
                                          * none */
    const char *tool_name;               /* of CHOICE_NAMED, as in chat.tools */
    const char **allowed;                /* [n_allowed]: tools that may be called; 0: all */
    int n_allowed;
    bool parallel_calls;                 /* false: the answer ends after its first call */
    enum { FORM_TEXT, FORM_JSON, FORM_SCHEMA } form;
    const json_t *schema;                /* of FORM_SCHEMA: an object */
    bool strict;

    const api_tool *tools;               /* [n_tool], Responses: names of chat.tools */
    int n_tool;
    bool include_encrypted;              /* Responses: send reasoning as encrypted_content, too */

    json_t *root;                        /* private, as all below */
    json_t *built;
    struct api_block *arena;
} api_request;

/* Returns 0, or -1 with *error filled and *out NULL. count: for /v1/messages/count_tokens, where
 * max_tokens may be absent. */
int api_parse(api_request **out, api_kind kind, bool count, const char *body, size_t n,
              api_error *error);
void api_request_free(api_request *r);   /* NULL is fine */

/* Reads any other body as strictly: at most 256 levels, nothing after the value. Integers beyond 64
 * bits become reals. NULL: *error is filled. */
json_t *api_json_read(const char *text, size_t n, api_error *error);

/* Fills in *error in the words by which the API's clients recognise a prompt that is too long.
 * True: send status 200, api_writer_begin and api_writer_fail, since the client looks into the
 * stream only. False: send the error's status and body. */
bool api_error_overflow(api_error *error, const api_request *r, int n_prompt, int n_ctx);

/* ---- answers ------------------------------------------------------------------------------- */

/* Gets whole events, all of one call of the writer. A result < 0 is returned to that call's
 * caller. */
typedef int api_sink(void *ctx, const char *bytes, size_t n);

typedef struct api_names {
    const char *model;                   /* that clients see */
    const char *id;                      /* of the request, without prefix */
    int64_t created;                     /* seconds since 1970 */
} api_names;

typedef struct api_usage {
    int n_prompt, n_cached;              /* n_cached is part of n_prompt */
    int n_answer, n_reasoning;           /* n_reasoning is part of n_answer; sums of all choices */
    uint64_t prompt_ns, answer_ns, total_ns;
} api_usage;

typedef struct api_top { str_view bytes; float logprob; } api_top;
typedef struct api_token {
    str_view bytes;                      /* of the token; not always UTF-8 */
    float logprob;                       /* NAN: null, for the first token of an echoed prompt */
    const api_top *top;
    int n_top;
} api_token;

typedef struct api_writer api_writer;

const char *api_content_type(const api_request *r);

/* Borrows r and copies the names. All functions return 0 or < 0: no memory, or the result of the
 * sink. After a failure only api_writer_free is allowed. Order: begin, any number of the others,
 * then end or fail once. */
int api_writer_create(api_writer **out, const api_request *r, const api_names *names,
                      api_sink *sink, void *ctx);
void api_writer_free(api_writer *w);     /* NULL is fine */

int api_writer_begin(api_writer *w, const api_usage *u);   /* stream: the first events */
int api_writer_event(api_writer *w, const chat_event *ev);
int api_writer_idle(api_writer *w);      /* stream: the keep-alive event */
int api_writer_end(api_writer *w, answer_end end, const char *stop_text, const api_usage *u);
/* In the stream; without one, the body for the error's status. */
int api_writer_fail(api_writer *w, const api_error *error);

/* The next calls are about this choice, 0 .. n_choice - 1; the first is 0. */
int api_writer_n_choice(const api_request *r);
void api_writer_choice(api_writer *w, int choice);
/* Sets how the current choice ended; api_writer_end sets it for those without. */
void api_writer_finish(api_writer *w, answer_end end, const char *stop_text);
/* A row of logprobs, before the event with the token's text. Ignored unless the API has them. */
int api_writer_token(api_writer *w, const api_token *t);

/* ---- bodies about the model ---------------------------------------------------------------- */

typedef struct api_model {
    const char *name;                    /* that clients see */
    const char *const *aliases;
    int n_alias;
    const char *path, *arch, *quant;     /* "qwen3next", "Q4_K_M" */
    const char *build;                   /* may be NULL */
    int64_t created;                     /* time of the file, seconds since 1970 */
    int64_t expires;                     /* for /api/ps */
    int64_t n_params, size_bytes, vram_bytes;
    int n_ctx, n_ctx_train, n_vocab, n_slot;
    bool thinks;
} api_model;

/* Terminated JSON, to be freed with mem_free. NULL: no memory. */
char *api_count_body(int n_tokens);
char *api_models_body(const api_model *m);
/* Also NULL if api_model_is(m, id) is false. */
char *api_model_body(const api_model *m, const char *id);
bool api_model_is(const api_model *m, const char *id);
char *api_tags_body(const api_model *m);
char *api_ps_body(const api_model *m);
char *api_show_body(const api_model *m);
char *api_props_body(const api_model *m);
char *api_version_body(void);

#endif
