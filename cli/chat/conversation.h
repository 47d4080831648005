/* conversation.h - the messages of a chat, and their JSON for a file.
 *
 * An optional system message comes first, then user and assistant alternate. The conversation is
 * open while the last question has no answer. Texts are copies, owned, and valid UTF-8. A
 * function that fails changes nothing. */
#ifndef CLI_CHAT_CONVERSATION_H
#define CLI_CHAT_CONVERSATION_H

#include "engine/session/sampler.h"
#include "engine/text/chat/chat.h"

typedef struct conversation {
    chat_message *messages;              /* read only for callers */
    int n_message, cap;
} conversation;                          /* zero: empty */

void conversation_release(conversation *c);

/* Replaces the system message; empty text removes it. */
int conversation_set_system(conversation *c, str_view text, err_ctx *err);

/* Adds a question; replaces an open one. */
int conversation_ask(conversation *c, str_view text, err_ctx *err);
/* Answers the open question. */
int conversation_answer(conversation *c, str_view content, str_view reasoning, err_ctx *err);

bool conversation_is_open(const conversation *c);
int conversation_n_question(const conversation *c);

/* Moves the last answer to *answer, for conversation_put_back, so that its question is open;
 * *answer is empty if there was none. False, with *answer empty, if there is no question. */
bool conversation_reopen(conversation *c, chat_message *answer);
/* If the question is still open and *answer is not empty, adds it again and returns true; else
 * frees it. Only conversation_answer may be called between the two. */
bool conversation_put_back(conversation *c, chat_message *answer);
/* Removes the last question with its answer. False if there is none. */
bool conversation_undo(conversation *c);
void conversation_reset(conversation *c);        /* all but the system message */

/* ---- to text and back ---- */

/* Besides the messages, for an exact continuation. */
typedef struct conversation_settings {
    chat_effort effort;
    chat_thinking thinking;
    char date[16];                       /* "2026-01-31", or empty */
    int64_t seed;                        /* 0 or more */
    int64_t n_answer;                    /* answers drawn with this seed so far; 31 bits */
    sampler_options sampling;            /* without seed and biases */
} conversation_settings;

/* As JSON. Free *out with mem_free; it is terminated, *len does not count that. */
int conversation_write(char **out, size_t *len, const conversation *c,
                       const conversation_settings *s, err_ctx *err);

/* Fills *c, which must be empty, and *s. Refuses other keys, types and roles out of turn than
 * conversation_write writes. sampler_check checks the ranges of sampling values. */
int conversation_read(conversation *c, conversation_settings *s, str_view text, err_ctx *err);

/* "2026-01-31" or "". */
bool text_is_date(const char *text);

/* True if the bytes are valid UTF-8; else *at is the first that is not. */
bool text_is_utf8(str_view text, size_t *at);

/* 0, or ERR_FORMAT with the first invalid byte and its offset. All text for a model is checked in
 * every verb, because another encoding would be read as other characters. */
int text_check_utf8(str_view text, err_ctx *err);

#endif
