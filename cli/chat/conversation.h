/* conversation.h - who said what: the messages of a chat, and the same as text for a file.
 *
 * At most one system message stands at the front; after it user and assistant alternate, the user
 * first. The conversation is open while the last question has no answer yet. Texts are copied and
 * owned, and are valid UTF-8. Nothing here changes anything when it fails. */
#ifndef CLI_CHAT_CONVERSATION_H
#define CLI_CHAT_CONVERSATION_H

#include "engine/session/sampler.h"
#include "engine/text/chat/chat.h"

typedef struct conversation {
    chat_message *messages;              /* to be read; changed by the functions below */
    int n_message, cap;
} conversation;                          /* zero: empty */

void conversation_release(conversation *c);

/* Replaces the one there was; empty text: none from now on. */
int conversation_set_system(conversation *c, str_view text, err_ctx *err);

/* Replaces a question that is still open. */
int conversation_ask(conversation *c, str_view text, err_ctx *err);
/* Answers the open question. */
int conversation_answer(conversation *c, str_view content, str_view reasoning, err_ctx *err);

bool conversation_is_open(const conversation *c);
int conversation_n_question(const conversation *c);

/* Takes the last answer back, so that its question is open. It goes to *answer, for
 * conversation_put_back; empty if there was none. False, likewise empty, if nothing was asked. */
bool conversation_reopen(conversation *c, chat_message *answer);
/* If the question is still open, answers it with *answer again, if that is not empty, and returns
 * true. Else drops it. Between the two only conversation_answer may have been called. */
bool conversation_put_back(conversation *c, chat_message *answer);
/* Drops the last question with its answer. False if nothing was asked. */
bool conversation_undo(conversation *c);
void conversation_reset(conversation *c);        /* all but the system message */

/* ---- to text and back ---- */

/* What an exact continuation needs besides the messages. */
typedef struct conversation_settings {
    chat_effort effort;
    chat_thinking thinking;
    char date[16];                       /* "2026-01-31", or empty */
    int64_t seed;                        /* 0 or more */
    int64_t n_answer;                    /* answers drawn with this seed so far; 31 bits */
    sampler_options sampling;            /* seed and biases are not kept */
} conversation_settings;

/* As JSON. Free *out with mem_free; it is terminated, *len does not count that. */
int conversation_write(char **out, size_t *len, const conversation *c,
                       const conversation_settings *s, err_ctx *err);

/* Fills *c, which is empty, and *s. Whatever conversation_write does not write is refused: other
 * keys, types, roles out of turn. Sampling values are only checked to be numbers; their ranges are
 * sampler_check's. */
int conversation_read(conversation *c, conversation_settings *s, str_view text, err_ctx *err);

/* "2026-01-31" or "". */
bool text_is_date(const char *text);

/* True if the bytes are valid UTF-8; else *at is the first that is not. */
bool text_is_utf8(str_view text, size_t *at);

/* 0, or ERR_FORMAT with the first such byte and its place in the message. All that a model is given
 * to read passes here, in every verb: text in another encoding would be read as something else. */
int text_check_utf8(str_view text, err_ctx *err);

#endif
