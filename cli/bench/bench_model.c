/* bench_model.c - opens a model for measurement.
 *
 * Options are checked before the file is opened, so that a typing error costs no loading time. */
#include "cli/bench/bench_model.h"

#include <limits.h>

#include "cli/console.h"
#include "cli/expert_cache_files.h"
#include "cli/interrupt.h"

#define FIELD(f) offsetof(bench_model_args, f)
const arg_option bench_model_options[BENCH_MODEL_N_OPTION] = {
    { "threads", 't', ARG_THREADS, FIELD(engine.threads), "N", "MOE_THREADS", 0, 0,
      "Threads of the CPU. Default: one per physical core" },
    { "device", 0, ARG_TEXT, FIELD(engine.device), "NAME", "MOE_DEVICE", 0, 0,
      "cpu, cuda, or auto: the GPU if there is one. Default: auto, or cpu for "
      "logits" },
    { "ctx", 'c', ARG_INT, FIELD(engine.ctx), "N", NULL, 1, INT_MAX,
      "Context in tokens, at most the model's. Default: as many as it takes" },
    { "chunk", 0, ARG_INT, FIELD(engine.chunk), "N", NULL, 1, SESSION_MAX_CHUNK,
      "Most tokens computed at a time. Default: 512; up to 4096 on a GPU, and where "
      "experts come from the drive" },
    { "isa", 0, ARG_TEXT, FIELD(engine.isa), "NAME", "MOE_ISA", 0, 0,
      "Instruction set of the CPU's kernels; scalar: plain C. Default: fastest" },
    { "exact", 0, ARG_FLAG, FIELD(engine.exact), NULL, NULL, 0, 0,
      "F32 activations instead of int8: slower, to judge rounding" },
    { "yarn-rounded", 0, ARG_FLAG, FIELD(engine.yarn_rounded), NULL, NULL, 0, 0,
      "gpt-oss: llama.cpp's rounded YaRN range, to compare with it" },
};

int bench_model_open(bench_model *b, const bench_model_args *a)
{
    load_options load = { .path = a->model, .with_text = a->with_text };
    err_ctx err;
    int rc;

    *b = (bench_model){ 0 };
    if ((rc = engine_args_read(&load.where, &b->so, &a->engine)) != 0 ||
        (rc = tier_args_read(&load.where, &a->tiers)) != 0)
        return rc;
    if (model_handle_open(&b->l, &load, &err) < 0)
        return console_fail(a->model ? a->model : "demo model", &err);
    b->ctx_limit = b->so.ctx ? b->so.ctx : b->l.m->hp.ctx_train;
    interrupt_install();
    return 0;
}

void bench_model_close(bench_model *b)
{
    expert_cache_files_keep(b->l.e, &b->l.asked, b->l.m);
    model_handle_close(&b->l);
}

int bench_model_session(session **out, bench_model *b, int ctx)
{
    err_ctx err;
    int rc;
    if (b->so.ctx == 0) b->so.ctx = ctx;
    rc = model_handle_session(out, &b->l, &b->so, &err);
    if (rc == 0) model_handle_say_gpu(&b->l);
    return rc < 0 ? bench_model_fail(b->l.path, rc, &err) : 0;
}

int bench_model_fail(const char *name, int rc, const err_ctx *err)
{
    if (rc != ERR_STOPPED || !interrupted()) return console_fail(name, err);
    console_error("%s: interrupted", name);
    return interrupt_exit_code();
}

void bench_model_prompt(int32_t *ids, int number, int n, int n_vocab)
{
    const int below = n_vocab < 100000 ? n_vocab - n_vocab / 16 : 100000;
    for (int t = 0; t < n; t++)
        ids[t] = (int32_t)((random_word(1 + (uint64_t)number, (uint64_t)t) >> 32) *
                           (uint64_t)below >> 32);
}
