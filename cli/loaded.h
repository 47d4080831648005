/* loaded.h - what every verb that computes needs: file, model, tokenizer, chat format, engine.
 *
 * Opening reads only what describes the model. Its weights are read and go where the plan wants
 * them when the first session's size is known: with a progress bar on a terminal. Messages do not
 * name the file. */
#ifndef CLI_LOADED_H
#define CLI_LOADED_H

#include "cli/placing.h"
#include "engine/engine.h"
#include "engine/text/chat.h"
#include "tiers/memory_room.h"

typedef struct load_options {
    const char *path;                    /* NULL: the demo model inside the program */
    placing_options where;
    bool with_text;                      /* tokenizer and chat format, too */
} load_options;

typedef struct loaded {
    const char *path;                    /* for messages; "demo model" if built in */
    gguf *file;
    model *m;
    tokenizer *tok;                      /* these three are NULL without with_text */
    encoder *enc;
    chat *talk;
    engine *e;
    placing_options asked;
    placing *where;                      /* NULL until loaded_place */
} loaded;

/* 0, or < 0 with err filled and *out empty. */
int loaded_open(loaded *out, const load_options *o, err_ctx *err);

/* Plans for a session of these options and moves the weights; so->chunk is filled in, or made
 * smaller (with a note) where the plan has no room for it. What cannot be as planned, because
 * somebody else took the memory meanwhile, is planned again with less VRAM or less RAM. ERR_STOPPED
 * if interrupted() meanwhile. Once; loaded_session does it if nobody else has. */
int loaded_place(loaded *l, session_options *so, err_ctx *err);

/* Notes on stderr, after loaded_place: why not the GPU (that there is none: once on a machine);
 * that --vram has no effect; too many threads; with a chat format also what is odd about it,
 * and that --reasoning, if it was given, is for other models. */
void loaded_say_notes(const loaded *l, bool formatted, bool effort_given);

/* Those about the GPU alone. */
void loaded_say_gpu(const loaded *l);

/* The exit code for a failure: that of the signal if it came of one, else 1 after a line about
 * what, or about nothing in particular if NULL. */
int loaded_fail(const char *what, const err_ctx *err);

/* "avx2 kernels", with the types that have no fast one; and the names of these as JSON. */
enum { KERNELS_TEXT_CAP = 256 };
const char *loaded_kernels_text(char *text, size_t cap, const loaded *l);
json_t *loaded_slow_json(const loaded *l);

/* ", repacked head 615.3 MB" if there is a copy of it (engine.h), else "". */
const char *loaded_copy_text(char *text, size_t cap, const loaded *l);

void loaded_close(loaded *l);            /* accepts a zeroed or half-built one */

/* A session, after checking that ctx is 1 .. the model's. */
int loaded_session(session **out, loaded *l, session_options *o, err_ctx *err);

/* What loaded_session adds up. */
typedef struct loaded_bytes { uint64_t weights, session; } loaded_bytes;        /* on a GPU: VRAM */
int loaded_plan(loaded_bytes *out, const loaded *l, const session_options *o, err_ctx *err);

#endif
