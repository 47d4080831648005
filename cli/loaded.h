/* loaded.h - what every verb that computes needs: file, model, tokenizer, chat format, engine.
 *
 * Opening reads only what describes the model. Its weights are read when the first session is made,
 * after the check that weights and session fit in memory: with a progress bar on a terminal, and
 * only what is not in the page cache yet. Messages do not name the file. */
#ifndef CLI_LOADED_H
#define CLI_LOADED_H

#include "engine/engine.h"
#include "engine/text/chat.h"
#include "tiers/memory_room.h"

typedef struct load_options {
    const char *path;                    /* NULL: the demo model inside the program */
    engine_options engine;
    bool try_gpu;                        /* the GPU if a session like fit has room there, too */
    session_options fit;                 /* ctx 0: of a common size */
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
    char device_note[800];               /* why it is the CPU after all; "": nothing to say */
} loaded;

/* 0, or < 0 with err filled and *out empty. */
int loaded_open(loaded *out, const load_options *o, err_ctx *err);

/* Notes on stderr: why not the GPU; too many threads; with a chat format also what is odd about it,
 * and that --reasoning, if it was given, is for other models. */
void loaded_say_notes(const loaded *l, bool formatted, bool effort_given);

/* The exit code for a failure: that of the signal if it came of one, else 1 after a line about
 * what, or about nothing in particular if NULL. */
int loaded_fail(const char *what, const err_ctx *err);

/* "avx2 kernels", with the types that have no fast one; and the names of these as JSON. */
enum { KERNELS_TEXT_CAP = 256 };
const char *loaded_kernels_text(char *text, size_t cap, const loaded *l);
json_t *loaded_slow_json(const loaded *l);

/* ", output matrix again 615.3 MB" if there is a copy of it (engine.h), else "". */
const char *loaded_copy_text(char *text, size_t cap, const loaded *l);

void loaded_close(loaded *l);            /* accepts a zeroed or half-built one */

/* A session, after checking that ctx is 1 .. the model's and that weights and session fit in
 * memory: "needs 52.1 GB (weights 48.5 GB, context of 8192 tokens 3.6 GB), but 31.0 GB are
 * available (...); ...". ERR_STOPPED if interrupted() while weights are read. */
int loaded_session(session **out, const loaded *l, const session_options *o, err_ctx *err);

/* What loaded_session adds up. */
typedef struct loaded_bytes { uint64_t weights, session; } loaded_bytes;        /* on a GPU: VRAM */
int loaded_plan(loaded_bytes *out, const loaded *l, const session_options *o, err_ctx *err);

#endif
