/* chat.h - messages to tokens, and the model's output to reasoning, answer and tool calls.
 *
 * No template engine: each supported format is implemented in a file chat_*.c. The vocabulary and
 * tokenizer.chat_template select the format, never the architecture. An unknown template falls back
 * to CHAT_RAW, which joins the contents without markup; chat_note then has a warning. Structure is
 * emitted as token ids; contents are encoded with special tokens off, so user text cannot forge a
 * turn. */
#ifndef ENGINE_TEXT_CHAT_CHAT_H
#define ENGINE_TEXT_CHAT_CHAT_H

#include <jansson.h>

#include "engine/text/tokenizer/tokenizer.h"

typedef enum chat_format {
    CHAT_RAW,
    CHAT_CHATML,                         /* Qwen */
    CHAT_HARMONY,                        /* gpt-oss */
    CHAT_GLM,                            /* GLM-4.5 to 4.7 */
    CHAT_GEMMA,                          /* Gemma 4 */
    CHAT_MISTRAL,                        /* [INST]: Mixtral; no tools */
    CHAT_TULU                            /* <|user|>: OLMoE; no tools */
} chat_format;
typedef enum chat_role {
    CHAT_SYSTEM, CHAT_DEVELOPER, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL
} chat_role;
typedef enum chat_effort { CHAT_EFFORT_MEDIUM, CHAT_EFFORT_LOW, CHAT_EFFORT_HIGH } chat_effort;

/* For models that can answer with and without reasoning. DEFAULT is the template's default: off for
 * Gemma, on for the others. */
typedef enum chat_thinking { CHAT_THINK_DEFAULT, CHAT_THINK_ON, CHAT_THINK_OFF } chat_thinking;

const char *chat_effort_name(chat_effort e);     /* "medium", "low", "high" */

/* Effort and thinking as one word: "on", "off", or a level, which means CHAT_THINK_DEFAULT.
 * _from_name returns false and sets nothing for any other text. */
const char *chat_reasoning_name(chat_effort e, chat_thinking t);
bool chat_reasoning_from_name(chat_effort *e, chat_thinking *t, const char *name);

typedef struct chat_call {
    str_view name;                       /* of the function */
    str_view arguments;                  /* JSON text of an object */
} chat_call;

typedef struct chat_message {
    chat_role role;
    str_view content;                    /* empty is fine */
    str_view reasoning;                  /* assistant only */
    const chat_call *calls;              /* assistant only */
    int n_call;
    str_view name;                       /* tool only: the function whose result it is; empty: that
                                          * of the most recent call */
} chat_message;

/* How calls are constrained. All but FREE need a grammar from chat_grammar.h. */
typedef enum chat_calls {
    CHAT_CALLS_FREE,                     /* unconstrained */
    CHAT_CALLS_HELD,                     /* calls are optional, and only of callable tools; those of
                                          * strict tools have arguments of the tool's schema */
    CHAT_CALLS_MUST                      /* optional reasoning, then only calls, all with arguments
                                          * of their tools' schemas */
} chat_calls;

typedef struct chat_request {
    const chat_message *messages;
    int n_message;
    const json_t *tools;                 /* array as in {"type":"function","function":{...}},
                                          * or NULL */
    chat_effort effort;                  /* harmony only */
    str_view date;                       /* harmony only: "2026-01-31"; empty leaves the line out */
    chat_thinking thinking;              /* no effect on models that have no such switch */
    bool no_cue;                         /* omit the text that starts the assistant's turn */

    /* for parsing; they do not affect the prompt */
    chat_calls calls;
    const char *const *callable;         /* [n_callable] tools that may be called; 0: all */
    int n_callable;
    bool one_call;                       /* at most one call in an answer */
    bool formed;                         /* with constrained calls: the text has a schema too */
} chat_request;

typedef struct chat chat;

/* Selects the format by g's template and the vocabulary. Borrows t; g may be closed afterwards. */
int chat_create(chat **out, const gguf *g, const tokenizer *t, err_ctx *err);
void chat_free(chat *c);

chat_format chat_format_of(const chat *c);
const char *chat_format_name(const chat *c);     /* "chatml", "chatml (xml tools)", "harmony",
                                                  * "glm", "gemma", "mistral", "tulu", "raw" */
bool chat_reasons(const chat *c);                /* answers may begin with reasoning */
bool chat_has_switch(const chat *c);             /* chat_request.thinking has an effect */
const char *chat_note(const chat *c);            /* one sentence for the user if the format is a
                                                  * fallback, else NULL */

/* Appends the whole prompt to *out. Fails, with a message that names them, on roles or tools that
 * the format cannot express. */
int chat_render(id_list *out, const chat *c, encoder *e, const chat_request *req, err_ctx *err);

/* ---- parsing ---- */

typedef enum chat_event_kind {
    CHAT_REASONING,                      /* text: more of the reasoning */
    CHAT_ANSWER,                         /* text: more of the answer */
    CHAT_CALL_BEGIN,                     /* name: of the function */
    CHAT_CALL_ARGS,                      /* text: more of the arguments (JSON text) */
    CHAT_CALL_END,
    CHAT_DONE                            /* a stop token: the last event */
} chat_event_kind;

typedef struct chat_event {
    chat_event_kind kind;
    str_view text;                       /* UTF-8, valid during the callback */
    str_view name;
} chat_event;

typedef int chat_event_fn(void *ctx, const chat_event *ev);      /* < 0 stops the parser */

typedef struct chat_parser chat_parser;

/* Creates a parser for one answer to a prompt that chat_render made from req. Copies what it needs
 * from req: its tools give the types of untyped arguments, its cue says how the answer begins, and
 * without tools calls are not parsed. If req is NULL calls are parsed. Borrows c. */
int chat_parser_create(chat_parser **out, const chat *c, const chat_request *req, err_ctx *err);
void chat_parser_free(chat_parser *p);

/* Feeds one generated id and calls fn for each event that it completes. Returns 1 after a stop
 * token, 0 to continue, or < 0 on an error or if fn returned < 0. */
int chat_parser_push(chat_parser *p, int id, chat_event_fn *fn, void *ctx, err_ctx *err);

/* Ends a generation without a stop token: emits buffered text and closes an open call. */
int chat_parser_end(chat_parser *p, chat_event_fn *fn, void *ctx, err_ctx *err);

/* Returns true if the next token may be part of the answer's text. That includes an incomplete call
 * between tags, because an invalid call becomes text. */
bool chat_parser_in_text(const chat_parser *p);

/* ---- answers with a grammar ---- */

/* Returns true if the grammar applies to the next token: the answer's text, or a constrained call.
 * Otherwise the next token is reasoning, markup, or unconstrained. */
bool chat_parser_in_answer(const chat_parser *p);

/* Returns the bytes that select the part of chat_grammar's grammar for the text that begins here;
 * often none. */
str_view chat_parser_key(const chat_parser *p);

/* Before the first token under the grammar: returns a token that begins reasoning instead, or
 * -1. */
int chat_parser_think(const chat_parser *p);

/* Under the grammar: clears in bits (bit id % 64 of word id / 64) the stop tokens that are wrong
 * for the current part. */
void chat_parser_trim(const chat_parser *p, uint64_t *bits, int n_vocab);

/* Outside the grammar: returns true if any token may come. */
bool chat_parser_is_free(const chat_parser *p);

/* Outside the grammar, if not free: sets the bits, initially 0, of the tokens below n_vocab that
 * may come. Reasoning may be any text, but it must not end the turn, and no token may reach into
 * the answer. Markup must lead to an answer or a call, after at most one message of reasoning; it
 * is unconstrained if the request has tools and calls are free. */
void chat_parser_fill(const chat_parser *p, uint64_t *bits, int n_vocab);

/* A key of the bits that chat_parser_fill would set now: equal keys other than 0 mean equal
 * bits. */
int chat_parser_mask_key(const chat_parser *p);

#endif
