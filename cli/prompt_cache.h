/* prompt_cache.h - run and chat store the state of long prompts on the drive, for the next process
 * whose prompt begins with the same tokens. moe-serve uses the same folder.
 *
 * The files are those of engine/session/prefix_cache.h; RAM has no copy. While a prompt is
 * evaluated, snapshots are taken, which the plan counts; after the answer they are written. No
 * function fails: if a state cannot be stored, a line says why, and the next process recomputes it.
 *
 * Prompts of fewer than PROMPT_CACHE_LEAST tokens are not stored. Others are always cut at the same
 * positions, so that the answer does not depend on whether a stored state was used. */
#ifndef CLI_PROMPT_CACHE_H
#define CLI_PROMPT_CACHE_H

#include "cli/model_handle.h"
#include "engine/session/answer.h"
#include "engine/session/prefix_cache.h"

#define PROMPT_CACHE_OPTION "prompt-cache-drive"
#define PROMPT_CACHE_ENV "MOE_PROMPT_CACHE_DRIVE"
#define PROMPT_CACHE_BYTES ((uint64_t)16 << 30)

enum {
    PROMPT_CACHE_LEAST = 512,            /* tokens that are worth a file */
    PROMPT_CACHE_SNAPSHOTS = 8           /* of a program with one prompt */
};

typedef struct prompt_cache {
    uint64_t drive_bytes;                /* 0: nothing is stored */
    uint64_t most_bytes;                 /* of one state; 0: no RAM to write one */
    int n_snapshot;                      /* of the session */
    prefix_cache *kept;                  /* NULL: not open yet, or opening failed */
    bool tried;                          /* to open it */
    int cuts[1];                         /* of the prompt: after the system message */
} prompt_cache;

/* The folder, created if missing; "": none. */
void prompt_cache_folder(char *path, size_t cap);

/* model_handle_place for a session that stores prompts of up to n_prompt tokens: sets
 * so->n_snapshot and p, and reserves RAM to write a state. If RAM does not suffice, the plan is
 * made without this and nothing is stored. p is zero except drive_bytes. */
int prompt_cache_place(prompt_cache *p, model_handle *l, session_options *so, int n_prompt,
                       int n_snapshot, err_ctx *err);

/* Lengths in tokens; 0: not known. */
typedef struct prompt_parts {
    int n_prompt, n_system;              /* all; the system message */
    int n_stable;                        /* shared with the conversation's next prompt */
} prompt_parts;

/* Before answer_run on s: fills cache, cuts, cut_every and n_stable of o, which borrows p. */
void prompt_cache_begin(prompt_cache *p, answer_options *o, session *s, const session_options *so,
                        const prompt_parts *parts);

/* After the answer: writes the snapshots, and the state at the prompt's end if that saves
 * `least` tokens. */
void prompt_cache_end(prompt_cache *p, session *s, int least);

void prompt_cache_close(prompt_cache *p);

/* The number of tokens of the first n messages of a request, without a cue, if they are a proper
 * prefix of the prompt; else 0. */
int prompt_cache_tokens(const id_list *prompt, const chat *format, encoder *enc,
                        const chat_request *all, int n);

/* The number of tokens with which the next turn's prompt will certainly begin: all messages and the
 * beginning of the cue. Less than the prompt, whose last token is always evaluated for its logits.
 * 0: not known. */
int prompt_cache_stable(const id_list *prompt, const chat *format, encoder *enc,
                        const chat_request *all);

#endif
