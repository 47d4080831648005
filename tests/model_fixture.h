/* model_fixture.h - a model file and what computes with it, opened part by part.
 *
 *   model_fixture f;
 *   if (model_fixture_open(&f, path) && model_fixture_run(&f, &eo, &so)) session_eval(f.s, ...);
 *   model_fixture_close(&f);
 *
 * Functions that open are false after a failed check, which names the file. */
#ifndef TESTS_MODEL_FIXTURE_H
#define TESTS_MODEL_FIXTURE_H

#include "engine/engine.h"
#include "engine/text/chat/chat.h"

typedef struct model_fixture {
    gguf *g;
    model *m;
    tokenizer *t;
    encoder *enc;
    chat *c;
    engine *e;
    session *s;
} model_fixture;

bool model_fixture_open(model_fixture *f, const char *path);     /* the file and the model */
bool model_fixture_open_memory(model_fixture *f, const void *bytes, size_t n, const char *name);
bool model_fixture_chat(model_fixture *f);                       /* tokenizer, encoder, chat */
bool model_fixture_engine(model_fixture *f, const engine_options *eo);
bool model_fixture_session(model_fixture *f, const session_options *so);
bool model_fixture_run(model_fixture *f, const engine_options *eo, const session_options *so);
void model_fixture_stop(model_fixture *f);                       /* frees session and engine */
void model_fixture_close(model_fixture *f);                      /* frees whatever was opened */

#endif
