/* model_handle.h - what every verb that computes needs: file, model, tokenizer, chat format,
 * engine.
 *
 * Opening reads only what describes the model. Once the first session's size is known, the weights
 * are read and go where the plan wants them, with a progress bar on a terminal. Messages do not
 * name the file. */
#ifndef CLI_MODEL_HANDLE_H
#define CLI_MODEL_HANDLE_H

#include "cli/placement.h"
#include "engine/engine.h"
#include "engine/text/chat/chat.h"
#include "tiers/available_memory.h"

typedef struct load_options {
    const char *path;                    /* NULL: the demo model inside the program */
    placement_options where;
    bool with_text;                      /* tokenizer and chat format, too */
} load_options;

typedef struct model_handle {
    const char *path;                    /* for messages; "demo model" if built in */
    gguf *file;
    model *m;
    tokenizer *tok;                      /* these three are NULL without with_text */
    encoder *enc;
    chat *format;
    engine *e;
    placement_options asked;
    placement *where;                    /* NULL until model_handle_place */
} model_handle;

/* 0, or < 0 with err filled and *out empty. */
int model_handle_open(model_handle *out, const load_options *o, err_ctx *err);

/* Plans for a session of these options and moves the weights; so->chunk is filled in, or made
 * smaller (with a note) where the plan has no room for it. If another program has taken the memory
 * meanwhile, plans again with less VRAM or less RAM. ERR_STOPPED if interrupted() meanwhile. Call
 * it once; model_handle_session does so if nobody has. */
int model_handle_place(model_handle *l, session_options *so, err_ctx *err);

/* Notes on stderr, after model_handle_place: why not the GPU (that there is none: once per
 * machine); that --vram has no effect; too many threads; with a chat format also what is odd about
 * it, and that --reasoning, if it was given, is for other models. */
void model_handle_say_notes(const model_handle *l, bool formatted, bool effort_given);

/* Those about the GPU alone. */
void model_handle_say_gpu(const model_handle *l);

/* The exit code for a failure: that of the signal if one caused it, else 1 after a line about
 * `what`, or about nothing in particular if that is NULL. */
int model_handle_fail(const char *what, const err_ctx *err);

/* "avx2 kernels", with the types that have no fast one; and the names of these as JSON. */
enum { KERNELS_TEXT_CAP = 256 };
const char *model_handle_kernels_text(char *text, size_t cap, const model_handle *l);
json_t *model_handle_slow_json(const model_handle *l);

/* ", repacked head 615.3 MB" if there is a copy of it (engine.h), else "". */
const char *model_handle_copy_text(char *text, size_t cap, const model_handle *l);

/* Goes on with n experts for each token (model_use_experts). What was placed is given up; sessions
 * must have been closed. On failure only model_handle_close is left. */
int model_handle_use_experts(model_handle *l, int n, err_ctx *err);

void model_handle_close(model_handle *l);            /* accepts a zeroed or half-built one */

/* A session, after checking that ctx is 1 .. the model's. */
int model_handle_session(session **out, model_handle *l, session_options *o, err_ctx *err);

/* What model_handle_session adds up. */
typedef struct model_handle_bytes {
    uint64_t weights, session;           /* on a GPU: VRAM */
} model_handle_bytes;
int model_handle_plan(model_handle_bytes *out, const model_handle *l, const session_options *o,
                      err_ctx *err);

#endif
