/* synth_checks.c - what tests of synthetic files share. */
#include "tests/synth_checks.h"

#include <stdio.h>
#include <string.h>

#include "tests/test.h"

uint8_t *synth_fill_all(const synth_options *o, size_t *bytes)
{
    synth_plan *p;
    err_ctx err = { 0, "" };
    uint8_t *data = NULL;
    if (!CHECK_MSG(synth_plan_create(&p, o, &err) == 0, "%s: %s", o->shape->name, err.msg))
        return NULL;
    *bytes = (size_t)synth_plan_bytes(p);
    if (CHECK((data = mem_alloc(*bytes)) != NULL)) synth_plan_fill(p, data, 0, *bytes);
    synth_plan_free(p);
    return data;
}

void synth_check_no_memory(const synth_options *o)
{
    long n = 1;
    int rc = -1;
    for (; n < 1000 && rc < 0; n += test_rounds(1, 3)) {
        synth_plan *p = NULL;
        err_ctx err = { 0, "" };
        mem_fail_after(n);
        rc = synth_plan_create(&p, o, &err);
        mem_fail_after(0);
        CHECK_MSG(rc == 0 || (rc == ERR_NOMEM && err.msg[0] && !p), "%s: allocation %ld: %d, %s",
                  o->shape->name, n, rc, err.msg);
        synth_plan_free(p);
    }
    CHECK_MSG(rc == 0 && n > 10, "%s: %d after %ld allocations", o->shape->name, rc, n);
}

bool synth_in_block(const tensor *t, int l)
{
    char start[32];
    const int n = snprintf(start, sizeof start, "blk.%d.", l);
    return t->name.len > (size_t)n && !memcmp(t->name.ptr, start, (size_t)n);
}

void synth_check_used(const model *m, const gguf *g, const synth_shape *s, int n_layer)
{
    int n_mtp = 0;
    for (int i = 0; i < gguf_n_tensor(g) && s->n_mtp; i++)
        n_mtp += synth_in_block(gguf_tensor_at(g, i), n_layer);
    CHECK_MSG(m->n_bound == gguf_n_tensor(g) || m->n_bound == gguf_n_tensor(g) - n_mtp,
              "%s: %d of %d tensors in use", s->name, m->n_bound, gguf_n_tensor(g));
}

bool synth_bind(model **m, const gguf *g, const char *what)
{
    err_ctx err = { 0, "" };
    const int rc = model_bind(m, g, &err);
    if (rc == ERR_UNSUPPORTED && strstr(err.msg, "unsupported architecture")) {
        test_skip("a family that the engine does not know yet");
        return false;
    }
    return CHECK_MSG(rc == 0, "%s: %s", what, err.msg);
}
