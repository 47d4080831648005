/* make_chat.h - for the chat tests: vocabularies, chats of every kind, requests in shorthand. */
#ifndef TESTS_MAKE_CHAT_H
#define TESTS_MAKE_CHAT_H

#include "engine/text/chat/chat.h"

/* The first four are real; the others have single bytes and the tokens of their family's chat. In
 * GLM_CONTROL the tags of reasoning and calls are control tokens. */
enum { QWEN, GPTOSS, DEMO_QWEN, DEMO_GPTOSS, N_VOCAB_FILE, GLM_TOKENS = N_VOCAB_FILE, GLM_CONTROL,
       GEMMA_TOKENS, MISTRAL_TOKENS, OLMO_TOKENS, CHATML_TOKENS, N_VOCAB };
typedef struct test_vocab { gguf *g; tokenizer *t; encoder *e; int byte_id[256]; } test_vocab;
extern test_vocab vocab[N_VOCAB];

/* Kinds of chat: ChatML with JSON tools, thinking, both, XML tools, a default system message, no
 * tools at all; harmony; an unknown template; Qwen3.5; GLM-4.5, also with control tokens, and
 * 4.7; Gemma; Mistral; OLMoE. */
enum { JSON, THINK, HYBRID, XML, ALWAYS, BARE, HARMONY, RAW, QWEN35, GLM, GLM_HARD, GLM47, GEMMA,
       MISTRAL, OLMOE, N_KIND };
typedef struct chat_kind { int vocab; const char *tmpl, *name; } chat_kind;
extern const chat_kind kinds[N_KIND];
int chat_kind_of(const char *head, char end);    /* the kind whose name the text begins with */
extern char *kind_templates[N_KIND];             /* with their sentences; NULL: none */
extern chat *chats[N_KIND];
/* Templates with places for sentences: \1 before the list of tools, \2 after it, \3 what the system
 * says by itself. */
extern const char t_qwen3[], t_coder[], t_qwen35[], t_qwen36[], t_glm[], t_glm47[];
extern const char t_gemma[], t_mistral[], t_mistral_old[], t_olmoe[], t_olmo[];

/* What the kinds of chat have there. */
#define SENTENCE_BEFORE "# Tools\n\nThese:\n<tools>"
#define SENTENCE_AFTER "</tools>\n\nCall \"them\" so\\."

/* Fills the places; free with mem_free. */
char *fill_template(const char *tmpl, const char *intro, const char *outro, const char *system);
extern const char t_json[], t_think[], t_xml[], t_other[];       /* some of their templates */

/* Opens all vocabularies and makes a chat of each kind; false after a failed check. */
bool chats_open(void);
void chats_close(void);

/* The small vocabularies alone, which need no files, and chats of the kinds from GLM on. */
bool chats_open_small(void);

/* A chat for the vocabulary with this template (NULL: none), whatever the file says itself. */
int make_chat(chat **out, int v, const char *tmpl, err_ctx *err);

typedef struct request {
    char *format;
    json_t *tools;
    chat_message messages[16];
    chat_call calls[16][4];
    chat_request chat;
} request;

/* JSON with backquotes for quotes. Broken JSON is a broken test. */
json_t *read_json(const char *text);

/* A conversation in short: parts are separated by ^ and begin with a letter. Roles S, D, U, A, T,
 * with the content after a space; R adds reasoning to the message before, C a call ("C name
 * arguments"), N a name; E is the effort, @ the date, "." leaves out the cue, "+" and "-" switch
 * reasoning on and off. In both texts a
 * backquote stands for a double quote. */
void read_request(request *r, const char *format, const char *tools);
void request_free(request *r);

/* A ChatML call as the models write it; args is JSON in a C string. */
#define CALL(name, args) \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " args "}\n</tool_call>"

/* The text of ids with special tokens visible; free with mem_free. */
char *text_of_ids(const tokenizer *t, const int32_t *ids, size_t n);

#endif
