/* plan_command.c - moe-run plan: prints the placement in memory and the expected speed.
 *
 * Loads no weight: sizes come from the file's header, speeds from cli/placement.h. */
#include "cli/commands.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cli/args/args.h"
#include "cli/args/engine_args.h"
#include "cli/args/tier_args.h"
#include "cli/console.h"
#include "cli/cost/cache_cost.h"
#include "cli/demo_model.h"
#include "cli/interrupt.h"
#include "cli/model_handle.h"
#include "cli/placement.h"
#include "cli/view/plan_view.h"

typedef struct plan_options {
    bool measure, json;
    tier_args tiers;
    engine_args engine;
} plan_options;

#define FIELD(f) offsetof(plan_options, f)
static const arg_option options[] = {
    { "measure", 0, ARG_FLAG, FIELD(measure), NULL, NULL, 0, 0,
      "Measure this machine first and store the speeds" },
    { "json", 0, ARG_FLAG, FIELD(json), NULL, NULL, 0, 0,
      "Print one JSON object with exact numbers" },
};

static const arg_group groups[] = {
    { "Model:", engine_arg_options, ENGINE_N_OPTION, FIELD(engine) },
    { "Memory:", tier_options, TIER_N_OPTION, FIELD(tiers) },
};

static const arg_spec spec = {
    .usage = "moe-run plan [[-m] FILE] [options]",
    .about = "Prints what goes into VRAM and RAM and what stays on the drive, the expected speed\n"
             "and what limits it. Loads no weights.",
    .options = options, .n_option = ARRAY_LEN(options),
    .groups = groups, .n_group = ARRAY_LEN(groups),
    .epilogue = "MOE_RAM_AVAILABLE=SIZE plans for a machine with that much free memory.",
};

enum { USUAL_CTX = 8192 };               /* without --ctx */

typedef struct plan_job {
    const char *path;                    /* for messages */
    int experts_used;                    /* 0: the model's number */
    load_options load;
    model_handle l;
    session_options so;
    placement where;
} plan_job;

/* With the tokenizer, whose memory is part of the plan. A file with a tokenizer that cannot be read
 * gets a plan without it. */
static int open_model(plan_job *j, err_ctx *err)
{
    j->load.with_text = true;
    if (model_handle_open(&j->l, &j->load, err) == 0) return 0;
    j->load.with_text = false;
    return model_handle_open(&j->l, &j->load, err);
}

static int make_plan(plan_job *j, err_ctx *err)
{
    int rc = open_model(j, err);
    if (rc == 0 && j->experts_used) rc = model_handle_use_experts(&j->l, j->experts_used, err);
    if (rc < 0) return rc;
    if (j->so.ctx == 0) j->so.ctx = min_int(USUAL_CTX, j->l.m->hp.ctx_train);
    return placement_make(&j->where, j->l.m, j->load.where.measure ? j->l.e : NULL, &j->load.where,
                        &j->so, err);
}

static void release(plan_job *j)
{
    model_handle_close(&j->l);
    mem_free(j);
}

static int report_text(const plan_job *j)
{
    const plan_view view = placement_view(&j->where);
    const plan_machine *m = &j->where.in.machine;
    const char *slash = strrchr(j->path, '/');
    char name[512], ctx[32], ram[32], vram[32];
    printf("%s: %s, context %s tokens\n", ESC(name, str_from(slash ? slash + 1 : j->path)),
           model_arch_name(j->l.m->hp.arch), text_count(ctx, sizeof ctx, (uint64_t)j->so.ctx));
    if (m->gpu) printf("%s, VRAM %s free; ", j->where.info.name,
                       text_bytes(vram, sizeof vram, m->vram_free));
    printf("RAM %s available\n\n", text_bytes(ram, sizeof ram, m->ram_available));
    plan_view_print(&view);
    if (j->where.note[0]) console_note("%s", j->where.note);
    if (j->experts_used)
        console_note(
            "--experts-used %d (the model's number: %d) changes answers; moe-run measures by "
            "how much when it runs the model",
            j->experts_used, j->l.m->own_experts_used);
    if (j->so.skip_missing) {
        const cache_cost cost = cache_cost_planned(&j->where.p);
        cache_cost_say_planned(&cost);
    }
    if (!m->gpu) tier_args_note_vram(&j->load.where.wish, j->load.where.device);
    return console_finish();
}

static int report_json(const plan_job *j)
{
    const plan_view view = placement_view(&j->where);
    const plan_machine *m = &j->where.in.machine;
    char path[4 * PATH_MAX];
    json_t *root = json_pack("{s:s, s:s, s:i, s:i, s:b, s:s, s:I, s:I, s:o}",
                             "model", ESC(path, str_from(j->path)),
                             "architecture", model_arch_name(j->l.m->hp.arch), "ctx", j->so.ctx,
                             "experts_used", j->l.m->hp.n_expert_used,
                             "skip_missing", (int)j->so.skip_missing,
                             "gpu_name", j->where.info.name,
                             "vram_free", (json_int_t)m->vram_free,
                             "ram_available", (json_int_t)m->ram_available,
                             "plan", plan_view_json(&view));
    return console_report(root, REPORT_FLAGS, " for the plan") != 0 ? 1 : console_finish();
}

int cmd_plan(int argc, char **argv)
{
    plan_options o = { 0 };
    err_ctx err = { 0 };
    int code;
    engine_args_init(&o.engine);
    tier_args_init(&o.tiers);
    code = args_parse(&spec, &o, NULL, NULL, argc, argv);
    if (code == ARGS_HELP) return console_finish();
    if (code == ARGS_BAD) return 2;
    plan_job *j = mem_zalloc(sizeof *j);
    if (!j) {
        console_error("out of memory: %zu bytes", sizeof *j);
        return 1;
    }
    j->path = o.engine.model ? o.engine.model : DEMO_MODEL_NAME;
    j->load.path = o.engine.model;
    j->experts_used = (int)o.engine.experts_used;
    placement_options *where = &j->load.where;
    code = tier_args_read(where, &o.tiers);
    if (code == 0) code = engine_args_read(where, &j->so, &o.engine);
    where->measure = o.measure;
    if (code == 0) {
        interrupt_install();
        code = make_plan(j, &err) < 0 ? model_handle_fail(j->path, &err) :
               o.json ? report_json(j) : report_text(j);
    }
    release(j);
    return code;
}
