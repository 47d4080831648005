/* api.h - what clients send and what they are told: five HTTP APIs and one form in between.
 *
 * A body becomes an api_request, which holds what the engine needs in the same words for every API;
 * the events of chat.h become that API's answer again, as a stream or in one piece. No network, no
 * engine, no clock: everything here is a function of its arguments, and what comes out goes to a
 * sink. A request or a writer is used by one thread at a time; different ones by any.
 *
 * Bad requests are normal: api_parse fills an api_error that names the field, and nothing leaks. A
 * model's output is never an error: what cannot be read as JSON where an API wants JSON is passed
 * on as text. */
#ifndef CLI_SERVE_API_H
#define CLI_SERVE_API_H

#include "engine/session/answer.h"

typedef enum api_kind {
    API_CHAT, API_COMPLETION, API_RESPONSES, API_MESSAGES, API_OLLAMA_CHAT, API_OLLAMA_GENERATE
} api_kind;

enum { API_MAX_CHOICE = 8, API_MAX_DEPTH = 256, API_MAX_TOP = 20 };

/* ---- errors -------------------------------------------------------------------------------- */

/* In OpenAI's words; api_error_body translates for the others. "" is null. */
typedef struct api_error {
    int status;                          /* of HTTP */
    char type[40], code[40], param[64], message[256];
} api_error;

typedef enum api_error_type {
    API_BAD_REQUEST, API_UNSUPPORTED, API_NO_KEY, API_NOT_FOUND, API_NO_MODEL, API_BAD_METHOD,
    API_TOO_LARGE, API_LOADING, API_BUSY, API_BROKEN
} api_error_type;

/* Status, type and code as the kind's clients want them (a full queue is 529 for API_MESSAGES). */
void api_error_make(api_error *error, api_error_type type, api_kind kind, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* The error object, terminated; free it with mem_free. NULL: no memory. request_id may be NULL. */
char *api_error_body(const api_error *error, api_kind kind, const char *request_id);

/* ---- requests ------------------------------------------------------------------------------ */

typedef struct api_prompt {              /* one of /v1/completions: text, or ids if there is none */
    const char *text;                    /* NULL: ids */
    size_t n_text;
    const int32_t *ids;
    int n_ids;
} api_prompt;

typedef struct api_bias {
    int32_t id;                          /* 0 or more; the vocabulary's end is not known here */
    float value;
} api_bias;

/* A tool of the Responses API, and how the model knows it. */
typedef struct api_tool {
    const char *full_name;                   /* the name in chat.tools: namespace and name in one */
    const char *name, *space;            /* as the client knows it; space NULL: none */
    bool custom;                         /* its only argument is the text "input" */
} api_tool;

/* Everything that it points to is its own and good until api_request_free. Numbers that the client
 * did not give are NAN (float) or -1 (int): the family's defaults apply. */
typedef struct api_request {
    api_kind kind;
    bool stream, include_usage;
    bool load_only;                      /* Ollama without a prompt: nothing to compute; just
                                          * api_writer_end */
    chat_request chat;                   /* messages, tools, effort, thinking; date left empty.
                                          * With raw no messages */
    bool has_effort;                     /* the client chose chat.effort */
    bool show_reasoning;                 /* false: the writer drops it */

    /* Completions and generate with raw: no chat format. The first prompt, and all of them; choice
     * i answers prompt i / n. With echo the caller sends each prompt as CHAT_ANSWER first. */
    bool raw, echo;
    const char *prompt;
    size_t n_prompt;
    const int32_t *prompt_ids;
    int n_prompt_ids;
    const api_prompt *prompts;
    int n_prompts;
    const char *suffix;                  /* fill in the middle; NULL: no */

    int max_tokens;                      /* -1: what fits. 0 only computes the prompt: for
                                          * completions with echo, and for API_MESSAGES */
    float temperature, top_p, min_p, frequency_penalty, presence_penalty, repeat_penalty;
    int top_k;
    bool has_seed;
    uint64_t seed;
    bool ignore_eos;
    const char **stop;
    int n_stop;
    int n;                               /* choices for each prompt */
    int logprobs;                        /* -1: none, else how many top ones beside the token's */
    api_bias *bias;
    int n_bias;

    enum { CHOICE_AUTO, CHOICE_NONE, CHOICE_REQUIRED, CHOICE_NAMED } tool_choice;
                                         /* none: chat.tools stay, but give the parser no tools */
    const char *tool_name;               /* named: as in chat.tools */
    const char **allowed;                /* only these may be called; n_allowed 0: all */
    int n_allowed;
    bool parallel_calls;                 /* false: the answer ends after the first call */
    enum { FORM_TEXT, FORM_JSON, FORM_SCHEMA } form;
    const json_t *schema;                /* an object; FORM_SCHEMA only */
    bool strict;
    const char *cache_key;               /* a hint for the prefix cache, or NULL */

    const api_tool *tools;               /* Responses: the names of chat.tools */
    int n_tool;
    bool include_encrypted;              /* Responses: reasoning also as encrypted_content */

    json_t *root;                        /* the rest is private */
    json_t *built;
    struct api_block *arena;
} api_request;

/* Returns 0, or -1 with *why filled and *out NULL. */
int api_parse(api_request **out, api_kind kind, const char *body, size_t n, api_error *error);
/* The same for /v1/messages/count_tokens: max_tokens may be absent. */
int api_parse_count(api_request **out, const char *body, size_t n, api_error *error);
void api_request_free(api_request *r);   /* NULL is fine */

/* Any other body, read as strictly as requests are: depth limit, nothing after the value; integers
 * beyond 64 bits become reals. NULL with *why filled. */
json_t *api_json_read(const char *text, size_t n, api_error *error);

/* Fills *why with the words by which the API's clients recognise a prompt that does not fit. True:
 * the answer is status 200, api_writer_begin and api_writer_fail, because the client looks for it
 * in the stream only; false: the error's status and body. */
bool api_error_overflow(api_error *error, const api_request *r, int n_prompt, int n_ctx);

/* ---- answers ------------------------------------------------------------------------------- */

/* Gets whole events, all that one call of the writer has to say at once. < 0 is handed back to
 * whoever called the writer. */
typedef int api_sink(void *ctx, const char *bytes, size_t n);

typedef struct api_names {
    const char *model;                   /* the name we serve */
    const char *id;                      /* of the request, without a prefix */
    int64_t created;                     /* seconds since 1970 */
} api_names;

typedef struct api_usage {
    int n_prompt, n_cached;              /* n_cached of n_prompt */
    int n_answer, n_reasoning;           /* n_reasoning of n_answer; sums over all choices */
    uint64_t prompt_ns, answer_ns, total_ns;
} api_usage;

typedef struct api_top { str_view bytes; float logprob; } api_top;
typedef struct api_token {
    str_view bytes;                      /* of the token: any bytes */
    float logprob;                       /* NAN: null, the first token of an echoed prompt */
    const api_top *top;
    int n_top;
} api_token;

typedef struct api_writer api_writer;

const char *api_content_type(const api_request *r);

/* Borrows r and copies the names. All functions return 0, < 0 for no memory or what the sink said;
 * after that only api_writer_free may be called. The order: begin, any number of the others, then
 * end or fail, once. */
int api_writer_create(api_writer **out, const api_request *r, const api_names *names,
                      api_sink *sink, void *ctx);
void api_writer_free(api_writer *w);     /* NULL is fine */

int api_writer_begin(api_writer *w, const api_usage *u);   /* stream: first events; else nothing */
int api_writer_event(api_writer *w, const chat_event *ev);
int api_writer_idle(api_writer *w);      /* stream: the API's own keep-alive event; else nothing */
int api_writer_end(api_writer *w, answer_end end, const char *stop_text, const api_usage *u);
/* In the stream, or, without one, the body for the error's status. */
int api_writer_fail(api_writer *w, const api_error *error);

/* What follows belongs to choice 0 .. n_choice - 1; it begins with 0. */
int api_writer_n_choice(const api_request *r);
void api_writer_choice(api_writer *w, int choice);
/* How the choice ended, where there are several; api_writer_end then says so for those left. */
void api_writer_finish(api_writer *w, answer_end end, const char *stop_text);
/* A row of logprobs, before the event with the token's text. Chat and completions only. */
int api_writer_token(api_writer *w, const api_token *t);

/* ---- bodies about the model ---------------------------------------------------------------- */

typedef struct api_model {
    const char *name;                    /* that we serve */
    const char *const *aliases;
    int n_alias;
    const char *path, *arch, *quant;     /* "qwen3next", "Q4_K_M" */
    const char *template, *build;        /* may be NULL */
    int64_t created;                     /* time of the file, seconds since 1970 */
    int64_t expires;                     /* for /api/ps */
    int64_t n_params, size_bytes, vram_bytes;
    int n_ctx, n_ctx_train, n_vocab, n_slot;
    bool thinks;
} api_model;

/* Terminated JSON, mem_free; NULL: no memory. */
char *api_count_body(int n_tokens);
char *api_models_body(const api_model *m);
/* Also NULL for a name that is neither the model's nor an alias: ask api_model_is first. */
char *api_model_body(const api_model *m, const char *id);
bool api_model_is(const api_model *m, const char *id);
char *api_tags_body(const api_model *m);
char *api_ps_body(const api_model *m);
char *api_show_body(const api_model *m);
char *api_props_body(const api_model *m);
char *api_version_body(void);

#endif
