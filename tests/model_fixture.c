/* model_fixture.c - opens the parts of a model one after the other. */
#include "tests/model_fixture.h"

#include "tests/test.h"

static bool bound(model_fixture *f, int rc, const char *name, err_ctx *err)
{
    if (rc == 0) rc = model_bind(&f->m, f->g, err);
    return CHECK_MSG(rc == 0, "%s: %s", name, err->msg);
}

bool model_fixture_open(model_fixture *f, const char *path)
{
    err_ctx err = { 0 };
    *f = (model_fixture){ 0 };
    return bound(f, gguf_open(&f->g, path, &err), path, &err);
}

bool model_fixture_open_memory(model_fixture *f, const void *bytes, size_t n, const char *name)
{
    err_ctx err = { 0 };
    *f = (model_fixture){ 0 };
    return bound(f, gguf_open_memory(&f->g, bytes, n, &err), name, &err);
}

bool model_fixture_chat(model_fixture *f)
{
    err_ctx err = { 0 };
    return CHECK_MSG(tokenizer_create(&f->t, f->g, &err) == 0 &&
                     encoder_create(&f->enc, f->t, &err) == 0 &&
                     chat_create(&f->c, f->g, f->t, &err) == 0, "chat: %s", err.msg);
}

bool model_fixture_engine(model_fixture *f, const engine_options *eo)
{
    err_ctx err = { 0 };
    return CHECK_MSG(engine_open(&f->e, f->m, eo, &err) == 0, "engine: %s", err.msg);
}

bool model_fixture_session(model_fixture *f, const session_options *so)
{
    err_ctx err = { 0 };
    return CHECK_MSG(session_create(&f->s, f->e, so, &err) == 0, "session: %s", err.msg);
}

bool model_fixture_run(model_fixture *f, const engine_options *eo, const session_options *so)
{
    return model_fixture_engine(f, eo) && model_fixture_session(f, so);
}

void model_fixture_stop(model_fixture *f)
{
    session_free(f->s);
    engine_close(f->e);
    f->s = NULL;
    f->e = NULL;
}

void model_fixture_close(model_fixture *f)
{
    model_fixture_stop(f);
    chat_free(f->c);
    encoder_free(f->enc);
    tokenizer_free(f->t);
    model_free(f->m);
    gguf_close(f->g);
    *f = (model_fixture){ 0 };
}
