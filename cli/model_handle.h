/* model_handle.h - file, model, tokenizer, chat format and engine of a verb that computes.
 *
 * Opening reads metadata alone. When the size of the first session is known, model_handle_place
 * reads the weights and places them by the plan, with a progress bar. Messages do not name the
 * file. */
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

/* Plans for a session of these options and moves the weights. Fills in so->chunk, or lowers it
 * with a note if it does not fit. Plans again with less VRAM or RAM if another program takes the
 * memory meanwhile. ERR_STOPPED if interrupted(). Call it once; else model_handle_session does. */
int model_handle_place(model_handle *l, session_options *so, err_ctx *err);

/* Notes on stderr, after model_handle_place: why the GPU is not used (that there is none: once per
 * machine); that --vram has no effect; that the next-token block has no memory; too many
 * threads; with a chat format its note, and that --reasoning has no effect. */
void model_handle_say_notes(const model_handle *l, bool formatted, bool effort_given);

/* The notes about the GPU alone. */
void model_handle_say_gpu(const model_handle *l);

/* The exit code for a failure: the signal's if one caused it, else 1 after a line that begins with
 * what, unless that is NULL. */
int model_handle_fail(const char *what, const err_ctx *err);

/* "avx2 kernels", with the types that have no fast kernel; the same types as JSON. */
enum { KERNELS_TEXT_CAP = 256 };
const char *model_handle_kernels_text(char *text, size_t cap, const model_handle *l);
json_t *model_handle_slow_json(const model_handle *l);

/* ", repacked head 615.3 MB" if the head has a copy (engine.h), else "". */
const char *model_handle_copy_text(char *text, size_t cap, const model_handle *l);

/* Uses n experts per token from now on (model_use_experts). Releases the placement; sessions
 * must be closed. After a failure only model_handle_close may be called. */
int model_handle_use_experts(model_handle *l, int n, err_ctx *err);

void model_handle_close(model_handle *l);            /* accepts a zeroed or half-built one */

/* Creates a session; o->ctx must be 1 .. the model's. */
int model_handle_session(session **out, model_handle *l, session_options *o, err_ctx *err);

/* Bytes that model_handle_session would take. */
typedef struct model_handle_bytes {
    uint64_t weights, session;           /* on a GPU: VRAM */
} model_handle_bytes;
int model_handle_plan(model_handle_bytes *out, const model_handle *l, const session_options *o,
                      err_ctx *err);

#endif
