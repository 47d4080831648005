/* chat.h - messages to tokens, and the model's stream back to reasoning, answer and tool calls.
 *
 * No template engine: the formats of the supported models are written out, each in a file chat_*.c.
 * Which one it is, the vocabulary and tokenizer.chat_template say, never the architecture; a
 * template of none of them falls back to CHAT_RAW, which joins the contents without any markup, and
 * chat_note says so. Structure is emitted as token ids; contents are encoded with special tokens
 * off, so no user text can forge a turn. */
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

/* For models that can answer with and without reasoning. DEFAULT is the template's own choice:
 * Gemma does not reason, the others do. */
typedef enum chat_thinking { CHAT_THINK_DEFAULT, CHAT_THINK_ON, CHAT_THINK_OFF } chat_thinking;

const char *chat_effort_name(chat_effort e);     /* "medium", "low", "high" */

/* The two in one word: "on", "off", or a level, which leaves the choice to the template. False, and
 * nothing set, for any other text. */
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
    str_view name;                       /* tool only: the function that answers; empty: the most
                                          * recent call's */
} chat_message;

/* How calls are held; other than FREE, the answer needs the form of chat_grammar.h. */
typedef enum chat_calls {
    CHAT_CALLS_FREE,                     /* as the model likes */
    CHAT_CALLS_HELD,                     /* when one comes, it is of a tool that may be called, and
                                          * strict ones get arguments of their schema */
    CHAT_CALLS_MUST                      /* nothing but calls, after reasoning at most, all with
                                          * arguments of their tools' schemas */
} chat_calls;

typedef struct chat_request {
    const chat_message *messages;
    int n_message;
    const json_t *tools;                 /* array as in {"type":"function","function":{...}},
                                          * or NULL */
    chat_effort effort;                  /* harmony only */
    str_view date;                       /* harmony only: "2026-01-31"; empty leaves the line out */
    chat_thinking thinking;              /* no effect on models that have no such switch */
    bool no_cue;                         /* leave out the cue that makes the assistant speak */

    /* for the parser of the answer; not in the prompt */
    chat_calls calls;
    const char *const *callable;         /* [n_callable] tools that may be called; 0: all */
    int n_callable;
    bool one_call;                       /* not several in one answer */
    bool formed;                         /* with calls held: the text has a form as well */
} chat_request;

typedef struct chat chat;

/* Looks at the file's template and the vocabulary. Borrows t and copies the rest. */
int chat_create(chat **out, const gguf *g, const tokenizer *t, err_ctx *err);
void chat_free(chat *c);

chat_format chat_format_of(const chat *c);
const char *chat_format_name(const chat *c);     /* "chatml", "chatml (xml tools)", "harmony",
                                                  * "glm", "gemma", "mistral", "tulu", "raw" */
bool chat_reasons(const chat *c);                /* answers may begin with reasoning */
bool chat_has_switch(const chat *c);             /* chat_request.thinking has an effect */
const char *chat_note(const chat *c);            /* one sentence for people if the format is a
                                                  * fallback, else NULL */

/* Appends the whole prompt to *out. Fails on roles or tools the format cannot express, naming
 * them. */
int chat_render(id_list *out, const chat *c, encoder *e, const chat_request *req, err_ctx *err);

/* ---- parsing the answer ---- */

typedef enum chat_event_kind {
    CHAT_REASONING,                      /* text: more of the reasoning */
    CHAT_ANSWER,                         /* text: more of the answer */
    CHAT_CALL_BEGIN,                     /* name: of the function */
    CHAT_CALL_ARGS,                      /* text: more of the arguments (JSON text) */
    CHAT_CALL_END,
    CHAT_DONE                            /* a stop token came; nothing follows */
} chat_event_kind;

typedef struct chat_event {
    chat_event_kind kind;
    str_view text;                       /* valid UTF-8, good during the callback */
    str_view name;
} chat_event;

typedef int chat_event_fn(void *ctx, const chat_event *ev);      /* < 0 stops the parser */

typedef struct chat_parser chat_parser;

/* A parser for one answer to a prompt that chat_render made from req, which is read only here. With
 * tools the parser looks for calls and reads untyped arguments by the tools' schemas; the cue tells
 * how the answer begins. req NULL: unknown; the parser looks for calls. Borrows c. */
int chat_parser_create(chat_parser **out, const chat *c, const chat_request *req, err_ctx *err);
void chat_parser_free(chat_parser *p);

/* Feeds one generated id; calls fn for each event it completes, in order. Returns 1 if the answer
 * is complete (a stop token), 0 if it is not, < 0 on error or the result of fn. */
int chat_parser_push(chat_parser *p, int id, chat_event_fn *fn, void *ctx, err_ctx *err);

/* The generation ended without a stop token: flushes the text held back, closes an open call. */
int chat_parser_end(chat_parser *p, chat_event_fn *fn, void *ctx, err_ctx *err);

/* Whether the next token may be part of the answer's text. True also in a call between tags, which
 * may turn out to be text. */
bool chat_parser_in_text(const chat_parser *p);

/* ---- answers with a grammar ---- */

/* Whether the grammar governs the next token: in the answer's text, or in a call that is held.
 * Other tokens are reasoning, markup, or free. */
bool chat_parser_in_answer(const chat_parser *p);

/* At the beginning of such a text: the bytes that select a part of chat_grammar's grammar; often
 * none. */
str_view chat_parser_key(const chat_parser *p);

/* Before the first token of such a text: the token that begins reasoning instead, or -1. */
int chat_parser_think(const chat_parser *p);

/* Within it: takes out of bits (bit id % 64 of word id / 64) the tokens that would end the turn
 * where another is meant to. */
void chat_parser_trim(const chat_parser *p, uint64_t *bits, int n_vocab);

/* Outside of it: may any token come? */
bool chat_parser_is_free(const chat_parser *p);

/* Outside of it, if not: sets the bits, which are 0, of the tokens below n_vocab that may come on
 * the way to it. Reasoning is free, but it does not end the turn, and no token reaches into the
 * answer. Markup is that of an answer or of a call, after at most one message of reasoning; with
 * tools on offer and calls free it is free. */
void chat_parser_fill(const chat_parser *p, uint64_t *bits, int n_vocab);

/* A key of the bits that chat_parser_fill would set now: equal keys other than 0 mean equal
 * bits. */
int chat_parser_mask_key(const chat_parser *p);

#endif
