/* chat_maker.h - for the chat tests: vocabularies, chats of every kind, requests in shorthand. */
#ifndef TESTS_CHAT_MAKER_H
#define TESTS_CHAT_MAKER_H

#include "engine/text/chat.h"

enum { QWEN, GPTOSS, DEMO_QWEN, DEMO_GPTOSS, N_VOCAB };
typedef struct test_vocab { gguf *g; tokenizer *t; encoder *e; int byte_id[256]; } test_vocab;
extern test_vocab vocab[N_VOCAB];

/* Kinds of chat: ChatML with JSON tools, thinking, both, XML tools, a default system message, no
 * tools at all; harmony; a template nobody knows. */
enum { JSON, THINK, HYBRID, XML, ALWAYS, BARE, HARMONY, RAW, N_KIND };
typedef struct chat_kind { int vocab; const char *tmpl; } chat_kind;
extern const chat_kind kinds[N_KIND];
extern chat *chats[N_KIND];
extern const char t_json[], t_think[], t_xml[], t_other[];       /* some of their templates */

/* Opens all vocabularies and makes a chat of each kind; false after a failed check. */
bool chats_open(void);
void chats_close(void);

/* A chat for the vocabulary with this template (NULL: none), whatever the file says itself. */
int make_chat(chat **out, int v, const char *tmpl, err_ctx *err);

typedef struct request {
    char *talk;
    json_t *tools;
    chat_message messages[16];
    chat_call calls[16][4];
    chat_request chat;
} request;

/* JSON with backquotes for quotes. Broken JSON is a broken test. */
json_t *read_json(const char *text);

/* A conversation in short: parts are separated by ^ and begin with a letter. Roles S, D, U, A, T,
 * with the content after a space; R adds reasoning to the message before, C a call ("C name
 * arguments"), N a name; E is the effort, @ the date, "." leaves out the cue. In both texts a
 * backquote stands for a double quote. */
void read_request(request *r, const char *talk, const char *tools);
void request_free(request *r);

/* A ChatML call as the models write it; args is JSON in a C string. */
#define CALL(name, args) \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " args "}\n</tool_call>"

/* The text of ids with special tokens visible; free with mem_free. */
char *text_of_ids(const tokenizer *t, const int32_t *ids, size_t n);

#endif
