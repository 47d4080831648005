/* prompt_cache.h - what run and chat keep of long prompts on the drive, for the next program that
 * begins with the same tokens; and the folder, which is moe-serve's, too.
 *
 * What is kept is in engine/session/prefix_cache.h's files; RAM has no copy of it. While a prompt
 * is taken in, snapshots are taken, which the plan counts; after the answer they are written, one
 * after the other. Nothing here fails: what cannot be kept is computed again, and a line says why.
 *
 * Prompts of fewer than PROMPT_CACHE_LEAST tokens are left alone. Others are cut at marks, whether
 * anything is kept or not, so that an answer does not show where its prompt came from. */
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
    uint64_t drive_bytes;                /* 0: nothing is kept */
    uint64_t most_bytes;                 /* of one state; 0: there is no room for any */
    int n_snapshot;                      /* of the session */
    prefix_cache *kept;                  /* NULL: not open yet, or not to be had */
    bool tried;                          /* to open it */
    int marks[1];                        /* of the prompt: after the system message */
} prompt_cache;

/* The folder, made if need be; "": there is none. */
void prompt_cache_folder(char *path, size_t cap);

/* model_handle_place for a session that keeps prompts of up to n_prompt tokens: sets so->n_snapshot
 * and p, and leaves room in RAM for the writing of a state. Where the plan has no room for that, it
 * is made without, and nothing is kept. p is zero but for drive_bytes. */
int prompt_cache_place(prompt_cache *p, model_handle *l, session_options *so, int n_prompt,
                       int n_snapshot, err_ctx *err);

/* What a prompt consists of, in tokens; 0: not known. */
typedef struct prompt_parts {
    int n_prompt, n_system, n_stable;    /* all; system message; all that the next prompt of the
                                          * conversation begins with, too */
} prompt_parts;

/* Before answer_run on s: fills cache, marks, mark_every and n_stable of o, which borrows p. */
void prompt_cache_begin(prompt_cache *p, answer_options *o, session *s, const session_options *so,
                        const prompt_parts *parts);

/* When nobody waits any more: writes what is worth it; the end of the prompt if that saves `least`
 * tokens. */
void prompt_cache_end(prompt_cache *p, session *s, int least);

void prompt_cache_close(prompt_cache *p);

/* How many tokens the first n messages of a request make, without a cue, if the prompt begins with
 * them and goes on after them; else 0. */
int prompt_cache_tokens(const id_list *prompt, const chat *format, encoder *enc,
                        const chat_request *all, int n);

/* How much of a request's prompt the next turn will begin with for certain, too: all messages and
 * the beginning of the cue, but never all of it: logits of its last token are wanted. 0: not
 * known. */
int prompt_cache_stable(const id_list *prompt, const chat *format, encoder *enc,
                        const chat_request *all);

#endif
