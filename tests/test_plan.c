/* test_plan.c - the planner on made-up machines: what goes where. What it is told of real models:
 * test_planning.c; how fast it thinks that they are: test_plan_speed.c.
 *
 * Every machine of the table with every model keeps the invariants; chosen rows are worked out by
 * hand. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/plan_checks.h"

static const int vram_gb[] = { 4, 6, 8, 12, 16, 24, 80 };
static const int ram_gb[] = { 16, 32, 64, 128, 256 };

static int whole_layers(const plan *p, const plan_model *w, int *more)
{
    int n = 0;
    *more = 0;
    for (int l = 0; l < w->n_layer; l++) {
        if (p->hot[l] == w->n_expert) n++;
        else *more += p->hot[l];
    }
    return n;
}

static const char *case_name(const made_model *m, double vram, double ram)
{
    static char name[128];
    snprintf(name, sizeof name, "%s, VRAM %g GB, RAM %g GB", m->name, vram, ram);
    return name;
}

/* Every machine of the table, and what more of either does. */
static void test_table(void)
{
    static plan p;
    static made c;
    for (int k = 0; k < N_MADE_MODELS; k++) {
        double of_ram[ARRAY_LEN(vram_gb) + 1] = { 0 };
        for (size_t r = 0; r < ARRAY_LEN(ram_gb); r++) {
            double answers = 0, prompts = 0;
            for (size_t v = 0; v <= ARRAY_LEN(vram_gb); v++) {
                const int vram = v == 0 ? 0 : vram_gb[v - 1];
                const char *what = case_name(&made_models[k], vram, ram_gb[r]);
                make_case(&c, &made_models[k], (uint64_t)vram * GB, (uint64_t)ram_gb[r] * GB);
                if (!made_plan(&p, &c, what)) continue;
                check_plan(&p, &c, what);
                CHECK_MSG(p.gpu == (vram > 0), "%s: GPU", what);
                CHECK_MSG(p.decode_tok_s >= answers, "%s: %g tok/s, with less VRAM %g", what,
                          p.decode_tok_s, answers);
                CHECK_MSG(p.decode_tok_s >= of_ram[v], "%s: %g tok/s, with less RAM %g", what,
                          p.decode_tok_s, of_ram[v]);
                /* a chunk of the CPU's is not a chunk of the GPU's */
                CHECK_MSG(p.prefill_tok_s >= prompts, "%s: prompts %g, with less VRAM %g", what,
                          p.prefill_tok_s, prompts);
                answers = of_ram[v] = p.decode_tok_s;
                prompts = v == 0 ? 0 : p.prefill_tok_s;
            }
        }
    }
}

/* In small steps. Buffers that become worth having, and the table's move to VRAM, take room from
 * experts: a few percent, and only there. More RAM costs nothing. */
static void test_steps(void)
{
    static plan p;
    static made c;
    for (int k = 0; k < N_MADE_MODELS; k++)
        for (int ram = 16; ram <= 128; ram *= 2) {
            double best = 0, prompts = 0;
            int chunk = 0;
            bool seen = false;
            for (uint64_t vram = 500; vram <= 90000; vram += 61 + vram / 70) {
                make_case(&c, &made_models[k], vram * MB, (uint64_t)ram * GB);
                const char *what = case_name(&made_models[k], (double)vram * 1e-3, ram);
                if (!made_plan(&p, &c, what)) continue;
                check_plan(&p, &c, what);
                CHECK_MSG(p.gpu || !seen, "%s: no GPU, which less VRAM had", what);
                seen |= p.gpu;
                CHECK_MSG(p.decode_tok_s > 0.92 * best, "%s: %g of %g tok/s", what, p.decode_tok_s,
                          best);
                CHECK_MSG(!p.gpu || p.chunk >= chunk || p.stage_parts == 0, "%s: chunk %d of %d",
                          what, p.chunk, chunk);
                CHECK_MSG(!p.gpu || p.prefill_tok_s > 0.95 * prompts, "%s: prompts %g of %g", what,
                          p.prefill_tok_s, prompts);
                if (p.decode_tok_s > best) best = p.decode_tok_s;
                if (p.gpu) chunk = p.chunk;
                if (p.gpu && p.prefill_tok_s > prompts) prompts = p.prefill_tok_s;
            }
            CHECK(seen);
        }
    for (int k = 0; k < N_MADE_MODELS; k++)
        for (int vram = 0; vram <= 24; vram += 8) {
            double best = 0;
            for (uint64_t ram = 8000; ram <= 100000; ram += 613) {
                const char *what = case_name(&made_models[k], vram, (double)ram * 1e-3);
                make_case(&c, &made_models[k], (uint64_t)vram * GB, ram * MB);
                if (!made_plan(&p, &c, what)) continue;
                CHECK_MSG(p.decode_tok_s >= best * (1 - 1e-9), "%s: %g of %g tok/s", what,
                          p.decode_tok_s, best);
                if (p.decode_tok_s > best) best = p.decode_tok_s;
            }
        }
}

/* ---- chosen rows ----------------------------------------------------------------------------- */

static const struct chosen_row {
    int model;
    int vram_mb, ram_gb;
    bool gpu, table_in_ram;
    int chunk, parts, layers, more;
    plan_place rest;
    plan_bound bound;
    const char *why;
} chosen[] = {
    { OSS20, 8000, 32, true, true, 4096, 2, 0, 358, PLAN_RAM, BOUND_CPU,
      "7600 MB less 1335, 305.7, 755.4, stage 423.0, pad 44.1: 4736.8 MB are 358 experts" },
    { OSS20, 8000, 12, true, true, 4096, 2, 11, 6, PLAN_RAM, BOUND_CPU,
      "10.2 GB of experts are too much for RAM: whole banks, and the others there" },
    { OSS20, 16000, 32, true, false, 4096, 0, 24, 0, PLAN_VRAM, BOUND_VRAM,
      "15.5 GB hold 10.2 of experts and 3.0 of the rest: no buffers for what never moves" },
    { OSS20, 13500, 32, true, true, 4096, 0, 24, 0, PLAN_VRAM, BOUND_VRAM,
      "13095 of 13164 MB: all of it but the table, which a token reads one row of" },
    { OSS20, 12800, 32, true, true, 2048, 0, 24, 0, PLAN_VRAM, BOUND_VRAM,
      "all of it with a smaller chunk, rather than the wished one without some experts" },
    { OSS20, 3400, 32, true, true, 4096, 8, 1, 2, PLAN_RAM, BOUND_CPU,
      "the table gives way before the chunk; 1/8 of a bank, so that 30% are for experts" },
    { OSS20, 2500, 32, true, true, 1024, 16, 0, 13, PLAN_RAM, BOUND_CPU,
      "then the chunk does: 2048 would need 2115 of 2100 MB" },
    { OSS20, 1950, 32, false, false, 4096, 0, 0, 0, PLAN_RAM, BOUND_CPU,
      "1550 MB: not even the smallest of it, so the CPU with all that it has" },
    { OSS20, 0, 16, false, false, 4096, 0, 0, 0, PLAN_RAM, BOUND_CPU, "no GPU: 13.2 of 14.9 GB" },
    { OSS120, 24000, 64, true, true, 4096, 8, 11, 113, PLAN_RAM, BOUND_CPU,
      "23280 MB hold 1521 experts; 25 banks of 1692 MB are in RAM" },
    { OSS120, 24000, 32, true, true, 4096, 8, 11, 113, PLAN_DISK, BOUND_DISK,
      "42.3 GB do not fit: a cache" },
    { OSS120, 80000, 16, true, false, 4096, 0, 36, 0, PLAN_VRAM, BOUND_VRAM,
      "RAM does not matter" },
    { QWEN4, 8000, 64, true, true, 4096, 4, 0, 2640, PLAN_RAM, BOUND_CPU,
      "the bus is not counted on to its limit; parts of 227 MB" },
    { QWEN4, 8000, 32, true, true, 4096, 4, 5, 80, PLAN_DISK, BOUND_DISK, "39 GB do not fit" },
    { QWEN8, 0, 128, false, false, 4096, 0, 0, 0, PLAN_RAM, BOUND_CPU, "85 GB fit without a GPU" },
    { QWEN8, 0, 64, false, false, 4096, 0, 0, 0, PLAN_DISK, BOUND_DISK, "and here they do not" },
};

static void test_chosen(void)
{
    static plan p;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(chosen); i++) {
        const struct chosen_row *r = &chosen[i];
        int more;
        make_case(&c, &made_models[r->model], (uint64_t)r->vram_mb * MB, (uint64_t)r->ram_gb * GB);
        if (!made_plan(&p, &c, r->why)) continue;
        const int layers = whole_layers(&p, &c.what, &more);
        CHECK_MSG(p.gpu == r->gpu && p.embed_in_ram == r->table_in_ram && p.chunk == r->chunk &&
                  p.stage_parts == r->parts && layers == r->layers && more == r->more &&
                  p.place[c.what.n_layer - 1] == r->rest && p.bound == r->bound,
                  "%s, VRAM %d MB, RAM %d GB: gpu %d table %d chunk %d parts %d layers %d+%d place "
                  "%d bound by %s: %s", made_models[r->model].name, r->vram_mb, r->ram_gb, p.gpu,
                  p.embed_in_ram, p.chunk, p.stage_parts, layers, more,
                  (int)p.place[c.what.n_layer - 1], plan_bound_name(p.bound), r->why);
        check_plan(&p, &c, r->why);
    }
}

/* ---- wishes and limits ----------------------------------------------------------------------- */

static void test_wishes(void)
{
    static plan p, q;
    static made c;
    static const uint64_t bounds[] = {
        0, 500 * MB, 2 * GB, 5 * GB, 7 * GB, 7600 * MB, 8 * GB, 99 * GB
    };
    for (int k = 0; k < N_MADE_MODELS; k++)
        for (size_t i = 0; i < ARRAY_LEN(bounds); i++) {
            make_case(&c, &made_models[k], 8 * GB, 100 * GB);
            c.w.vram = bounds[i];
            if (made_plan(&p, &c, "--vram")) check_plan(&p, &c, "--vram");
            CHECK_MSG(plan_vram(&p) <= bounds[i], "--vram %llu", (unsigned long long)bounds[i]);
            CHECK(bounds[i] >= GB || !p.gpu);
            CHECK(bounds[i] < 7 * GB || p.gpu);
            /* a bound of all that there is still leaves the reserve */
            CHECK(plan_vram(&p) <= 7600 * MB);
            make_case(&c, &made_models[k], 8 * GB, 100 * GB);
            c.w.ram = 6 * GB + bounds[i];
            if (made_plan(&p, &c, "--ram")) check_plan(&p, &c, "--ram");
            CHECK_MSG(plan_ram(&p) <= c.w.ram && plan_ram(&p) <= 95 * GB, "--ram");
        }
    make_case(&c, &made_models[OSS20], 80 * GB, 64 * GB);
    c.w.cpu_only = true;
    CHECK(run_case(&p, &c) == 0 && !p.gpu && plan_vram(&p) == 0);
    for (int k = 0; k < N_MADE_MODELS; k++) {     /* much VRAM, and no experts in it */
        make_case(&c, &made_models[k], 80 * GB, 256 * GB);
        c.w.no_hot = true;
        CHECK(run_case(&p, &c) == 0 && p.gpu && p.vram_experts == 0 && p.chunk == c.s.chunk[0] &&
              p.stage_parts > 0 && p.ram_experts == all_experts(&c.what));
        check_plan(&p, &c, "no experts in VRAM");
    }
    make_case(&c, &made_models[OSS20], 8 * GB, 64 * GB);
    c.w.whole_banks = true;
    CHECK(run_case(&p, &c) == 0 && !p.cache && p.hot[0] == c.what.n_expert);
    check_plan(&p, &c, "whole banks");
    c.w.no_postfetch = true;
    CHECK(run_case(&p, &c) == 0 && p.gpu && p.vram_pad == 0 && p.t_pull == 0);
    check_plan(&p, &c, "no post-fetch");
    c.w.no_postfetch = false;
    CHECK(run_case(&q, &c) == 0 && q.vram_pad == 4 * 4406400 + 2 * 13219200 && q.t_pull > 0);
    CHECK_MSG(q.decode_tok_s > 1.1 * p.decode_tok_s, "post-fetch: %g, without %g", q.decode_tok_s,
              p.decode_tok_s);
}

/* Each slab of a slot begins in a page of its own. */
static void allow_moves(made *c)
{
    uint64_t slot = c->down[0] + 4095;
    slot = 3 * (slot - slot % 4096);
    for (int l = 0; l < c->what.n_layer; l++) c->slot[l] = slot;
    c->what.slot_bytes = c->slot;
    c->what.spare_bytes = 8 * slot;
}

/* Experts are moved where RAM has room for those that are not in VRAM, but not for all. */
static void test_moved(void)
{
    static const struct { int model, vram_mb; uint64_t ram_mb; bool cache, moved;
                          int layers; const char *why; } rows[] = {
        { OSS20, 8000, 32000, true, false, 0, "all experts fit: copies" },
        { OSS20, 8000, 12000, true, true, 0, "10.2 GB do not, 5.5 do" },
        { OSS20, 8000, 7500, true, true, 0, "6304 of 6426 MB" },
        { OSS20, 8000, 6900, false, false, 11, "5826 MB are too little, for whole banks, too" },
        { OSS120, 24000, 64000, true, true, 0, "40.9 of 60.9 GB" },
        { QWEN4, 8000, 42000, true, true, 0, "38.8 of 43.5 GB" },
    };
    static plan p;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int more;
        make_case(&c, &made_models[rows[i].model], (uint64_t)rows[i].vram_mb * MB,
                  rows[i].ram_mb * MB);
        allow_moves(&c);
        if (!made_plan(&p, &c, rows[i].why)) continue;
        check_plan(&p, &c, rows[i].why);
        CHECK_MSG(p.cache == rows[i].cache && p.moved == rows[i].moved &&
                  whole_layers(&p, &c.what, &more) == rows[i].layers, "%s: cache %d, moved %d, %d "
                  "whole layers, %llu MB of RAM", rows[i].why, p.cache, p.moved,
                  whole_layers(&p, &c.what, &more), (unsigned long long)(p.ram_experts / MB));
        c.w.whole_banks = true;
        CHECK(run_case(&p, &c) == 0 && !p.cache && !p.moved);
        check_plan(&p, &c, "whole banks");
    }
    /* to the byte */
    make_case(&c, &made_models[OSS20], 8000 * MB, 12000 * MB);
    allow_moves(&c);
    CHECK(run_case(&p, &c) == 0 && p.moved);
    const uint64_t need = plan_ram(&p);
    c.w.ram = need;
    CHECK(run_case(&p, &c) == 0 && p.moved && plan_ram(&p) == need);
    c.w.ram = need - 1;
    CHECK(run_case(&p, &c) == 0 && (!p.moved || plan_ram(&p) < need));
    check_plan(&p, &c, "a byte less");
    c.what.slot_bytes = NULL;
    CHECK(run_case(&p, &c) == 0 && !p.moved && !p.cache);
}

/* The least RAM: with one byte less there is an error with both numbers in it. */
static void test_least(void)
{
    static plan p;
    static made c;
    const int last = N_CHUNKS - 1;
    for (int k = 0; k < N_MADE_MODELS; k++)
        for (int vram = 0; vram <= 8; vram += 8) {
            const made_model *m = &made_models[k];
            err_ctx err = { 0 };
            make_case(&c, m, (uint64_t)vram * GB, 200 * GB);
            for (int i = 0; i < N_CHUNKS; i++) c.s.snapshots[i] = 5 * MB;
            c.w.ram = vram ? c.s.snapshots[last] + c.s.ram_beside[last]
                           : dense_on_cpu(&c, last) + c.s.state[last] + c.s.snapshots[last] +
                             c.s.ram_work[last];
            c.machine.ram_program = 8 * MB;
            c.w.ram += c.machine.ram_program + 2 * (uint64_t)m->n_used * m->expert;
            if (made_plan(&p, &c, m->name)) check_plan(&p, &c, m->name);
            CHECK_MSG(p.chunk == 256 && p.gpu == (vram > 0), "%s: chunk %d", m->name, p.chunk);
            c.w.ram--;
            CHECK(plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err) == ERR_NOMEM);
            CHECK_MSG(strstr(err.msg, "needs ") && strstr(err.msg, "B may be used (--ram)") &&
                      strstr(err.msg, vram ? "beside the GPU" : "8192 tokens"), "%s: %s", m->name,
                      err.msg);
            CHECK(!p.gpu && p.chunk == 0 && plan_ram(&p) == 0);
        }
    /* a machine with hardly any memory still has half of it to give */
    make_case(&c, &made_models[OSS20], 0, 1200 * MB);
    c.what.n_layer = 2;
    c.what.n_expert = 8;
    c.what.dense = c.what.embed = 50 * MB;
    CHECK(run_case(&p, &c) == 0 && p.ram_experts == 2 * 8 * made_models[OSS20].expert);
    check_plan(&p, &c, "1200 MB");
    c.machine.ram_available = 10 * MB;
    err_ctx err = { 0 };
    CHECK(plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err) == ERR_NOMEM);
    CHECK_MSG(strstr(err.msg, "5.0 MB may be used (10.0 MB are available)"), "%s", err.msg);
}

/* What the process has already counts against --ram, not against what is available. */
static void test_program(void)
{
    static plan p, q;
    static made c;
    make_case(&c, &made_models[OSS20], 0, 16 * GB);
    c.w.ram = 14 * GB;
    CHECK(run_case(&p, &c) == 0 && p.place[0] == PLAN_RAM);
    c.machine.ram_program = 4 * GB;
    CHECK(run_case(&q, &c) == 0 && q.place[0] == PLAN_DISK && q.ram_program == 4 * GB);
    check_plan(&q, &c, "--ram counts the program");
    c.w.ram = 18 * GB;
    CHECK(run_case(&q, &c) == 0 && q.place[0] == PLAN_RAM && plan_ram(&q) == plan_ram(&p) + 4 * GB);
    c.w.ram = UINT64_MAX;
    CHECK(run_case(&q, &c) == 0 && q.place[0] == PLAN_RAM);
    check_plan(&q, &c, "what is available does not");
    c.w.ram = 1 * GB;                    /* less than the program alone */
    CHECK(run_case(&q, &c) == ERR_NOMEM);
}

/* The repacked head is the last to get room, and only the CPU needs it. */
static void test_copy(void)
{
    static plan p;
    static made c;
    make_case(&c, &made_models[OSS20], 0, 64 * GB);
    c.machine.ram_program = 30 * MB;
    CHECK(run_case(&p, &c) == 0 && p.ram_copy == 0);
    const uint64_t without = plan_ram(&p);
    c.w.ram_copy = 615 * MB;
    for (int lacks = 0; lacks <= 1; lacks++) {
        c.w.ram = without + c.w.ram_copy - (uint64_t)lacks;
        CHECK_MSG(run_case(&p, &c) == 0 && p.ram_copy == (lacks ? 0 : 615 * MB) &&
                  plan_ram(&p) == without + p.ram_copy, "%d bytes are missing", lacks);
        check_plan(&p, &c, "a repacked head");
    }
    c.w.ram = UINT64_MAX;
    c.machine.gpu = true;
    c.machine.vram_free = 8 * GB;
    CHECK(run_case(&p, &c) == 0 && p.gpu && p.ram_copy == 0);
}

/* Of the table the rows that are read, but never more than the table. */
static void test_embed(void)
{
    static plan p;
    static made c;
    make_case(&c, &made_models[OSS20], 0, 64 * GB);
    for (int i = 0; i < N_CHUNKS; i++) c.s.ram_embed[i] = 33 * MB;
    CHECK(run_case(&p, &c) == 0);
    const uint64_t few = p.ram_other;
    for (int i = 0; i < N_CHUNKS; i++) c.s.ram_embed[i] = 616 * MB;
    CHECK(run_case(&p, &c) == 0 && p.ram_other == few + (615 - 33) * MB);
    c.what.embed = 0;                    /* it is the output matrix, too: read whole */
    CHECK(run_case(&p, &c) == 0 && p.ram_other == few + (615 - 33) * MB);
    make_case(&c, &made_models[OSS20], 3400 * MB, 64 * GB);   /* page-locked: whole */
    for (int i = 0; i < N_CHUNKS; i++) c.s.ram_embed[i] = 33 * MB;
    CHECK(run_case(&p, &c) == 0 && p.embed_in_ram && p.ram_other >= 615 * MB);
}

/* ---- advice ---------------------------------------------------------------------------------- */

/* Sessions that are halved, with so many bytes for each token, and with half as many. */
static void add_less(made *c, uint64_t fixed, uint64_t each)
{
    c->s.n_less = 0;
    for (int q8 = 0; q8 <= 1; q8++)
        for (int ctx = q8 ? 8192 : 4096; ctx >= 256; ctx /= 2) {
            const uint64_t bytes = fixed + (uint64_t)ctx * each / (q8 ? 2 : 1);
            c->s.less[c->s.n_less++] = (plan_less){ ctx, q8 == 1, bytes, bytes / 4 };
        }
    for (int i = 0; i < N_CHUNKS; i++) {
        c->s.state[i] = fixed + 8192 * each;
        c->s.ram_work[i] = c->s.snapshots[i] = 0;
    }
}

enum { NO_BOUND = 1 << 20 };
static const struct {
    int ram_mb;                          /* --ram, beyond the dense weights, experts and program;
                                          * < 0: --ram 0; NO_BOUND: none */
    int there_mb;                        /* of the machine, the same */
    const char *want;
    const char *not;                     /* must not be said */
    const char *why;
} advice[] = {
    /* 819 MB at f16, 410 at q8_0; with 4096 tokens 410 and 205; advice leaves 67 MB
     * more if it can */
    { 818, 9000, "; use --ram 2265M or more, or --ctx 4096 or less, or --kv q8_0", NULL,
      "each of three would do" },
    { 476, 9000, "; use --ram 2265M or more, or --ctx 2048 or less", "q8_0",
      "half of it is not enough" },
    { 13, 9000, "; use --ram 2265M or more, or --ctx 256 or less and --kv q8_0", NULL,
      "only both together, and hardly" },
    { 12, 9000, "; use --ram 2265M or more", "--ctx", "no context is small enough" },
    { -1, 9000, "; use --ram 2265M or more", "--ctx", "--ram 0" },
    { 818, 850, "; use --ram 2231M or more, or --ctx 4096 or less, or --kv q8_0", NULL,
      "all that the machine has" },
    { 818, 818, "; use --ctx 4096 or less, or --kv q8_0", "--ram 2", "the machine has no more" },
    { NO_BOUND, 818, "; use --ctx 4096 or less, or --kv q8_0", "--ram 2", "no bound" },
    { NO_BOUND, 476, "; use --ctx 2048 or less", "q8_0", "no bound, less room" },
    { NO_BOUND, 13, "; use --ctx 256 or less and --kv q8_0", NULL, "no bound, hardly any room" },
    { NO_BOUND, 12, "; no smaller context would do: end other programs, or use a smaller model or "
      "quantisation", "--ctx", "nothing helps" },
};

static void test_advice(void)
{
    static plan p;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(advice); i++) {
        err_ctx err = { 0 };
        make_case(&c, &made_models[OSS20], 0, 0);
        add_less(&c, 0, 100000);
        c.machine.ram_program = 30 * MB;
        const uint64_t base = dense_on_cpu(&c, N_CHUNKS - 1) + 8 * made_models[OSS20].expert;
        const uint64_t all = base + c.machine.ram_program;
        /* a GiB is the system's */
        c.machine.ram_available = base + (uint64_t)advice[i].there_mb * MB + (UINT64_C(1) << 30);
        if (advice[i].there_mb > 5000) c.machine.ram_available += 2 * GB;
        if (advice[i].ram_mb < NO_BOUND)
            c.w.ram = advice[i].ram_mb < 0 ? 0 : all + (uint64_t)advice[i].ram_mb * MB;
        const int rc = plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err);
        CHECK_MSG(rc == ERR_NOMEM && strstr(err.msg, advice[i].want) &&
                  strlen(strstr(err.msg, advice[i].want)) == strlen(advice[i].want) &&
                  !(advice[i].not && strstr(err.msg, advice[i].not)), "%s: %d, '%s'",
                  advice[i].why, rc, err.msg);
    }
    /* what is needed at least does, and not one less */
    make_case(&c, &made_models[OSS20], 0, 64 * GB);
    add_less(&c, 0, 100000);
    c.machine.ram_program = 30 * MB;
    c.w.ram = UINT64_C(2201) << 20;
    CHECK(run_case(&p, &c) == 0);
    c.w.ram -= UINT64_C(1) << 20;
    CHECK(run_case(&p, &c) == ERR_NOMEM);
    /* beside a GPU it is its own sum */
    err_ctx err = { 0 };
    make_case(&c, &made_models[OSS20], 8 * GB, 64 * GB);
    add_less(&c, 400 * MB, 100000);
    for (int k = 0; k < N_CHUNKS; k++) c.s.ram_beside[k] = 300 * MB;
    c.w.ram = 8 * made_models[OSS20].expert + 220 * MB;
    CHECK(plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err) == ERR_NOMEM);
    CHECK_MSG(strstr(err.msg, "beside the GPU") && strstr(err.msg, "; use --ram 404M or more, or "
              "--ctx 4096 or less, or --kv q8_0"), "%s", err.msg);
}

/* The program takes more in the next run, by two huge pages in different places: whoever did what
 * the first one said is not refused again. */
static void test_advice_holds(void)
{
    static const uint64_t programs[] = { 8 * MB, 17 * MB, 150 * MB, 4 * GB };
    static plan p;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(programs); i++)
        for (int gpu = 0; gpu <= 1; gpu++) {
            err_ctx err = { 0 };
            unsigned long long mib = 0;
            make_case(&c, &made_models[OSS20], gpu ? 8 * GB : 0, 64 * GB);
            add_less(&c, 0, 1000);
            c.machine.ram_program = programs[i];
            c.w.ram = 0;
            CHECK(plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err) == ERR_NOMEM);
            const char *at = strstr(err.msg, "; use --ram ");
            CHECK_MSG(at && sscanf(at, "; use --ram %lluM", &mib) == 1, "%s", err.msg);
            c.w.ram = (uint64_t)mib << 20;
            c.machine.ram_program += 4 << 20;
            CHECK_MSG(plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err) == 0, "--ram %lluM: %s",
                      mib, err.msg);
        }
}

/* A store that asks for more than all that is cold: it gets that, or there is no such plan. */
static void test_least_cache(void)
{
    static plan p;
    static made c;
    const made_model *m = &made_models[OSS20];
    const int last = N_CHUNKS - 1;
    make_case(&c, m, 0, 64 * GB);
    c.machine.gpu = true;
    c.machine.vram_free = 80 * GB;
    c.s.n_chunk = 1;                     /* nothing to give way with */
    c.what.embed = 0;
    c.w.vram = c.what.dense + c.s.state[0] + c.s.vram_work[0] + all_experts(&c.what) + 100 * MB;
    if (made_plan(&p, &c, "all in VRAM")) check_plan(&p, &c, "all in VRAM");
    CHECK(p.vram_experts == all_experts(&c.what));
    /* room for two experts less, and a stage: two banks are not whole */
    c.what.least_cache = 50 * m->expert;
    c.w.no_postfetch = true;
    c.s.vram_work[0] += 100 * MB + 2 * m->expert;
    for (int spare = 0; spare <= 14; spare++) {
        c.w.ram = c.s.ram_beside[0] + c.what.least_cache + (uint64_t)spare * m->expert;
        if (made_plan(&p, &c, "a large least cache")) check_plan(&p, &c, "a large least cache");
        const uint64_t outside = all_experts(&c.what) - p.vram_experts;
        CHECK_MSG(p.gpu && outside == 35 * m->expert, "%llu bytes are cold",
                  (unsigned long long)outside);
        CHECK_MSG(p.place[23] == (spare < 14 ? PLAN_DISK : PLAN_RAM) && p.disk_experts == 0 &&
                  p.ram_experts == (spare < 14 ? 50 : 64) * m->expert && p.t_disk == 0,
                  "%d more: a cache of %llu", spare, (unsigned long long)p.ram_experts);
    }
    /* less than that will not do: with a smaller stage it is one bank, for which there is room */
    c.w.ram = c.s.ram_beside[0] + c.what.least_cache - 1;
    if (made_plan(&p, &c, "one bank")) check_plan(&p, &c, "one bank");
    CHECK(p.gpu && p.place[23] == PLAN_RAM && p.ram_experts == 32 * m->expert);
    c.w.ram = c.s.ram_beside[0] + 32 * m->expert - 1;
    CHECK(run_case(&p, &c) == ERR_NOMEM);
    /* without a GPU all of it is the other way to have room */
    make_case(&c, m, 0, 64 * GB);
    c.what.n_layer = 1;
    c.what.least_cache = 100 * m->expert;
    c.w.ram = dense_on_cpu(&c, last) + c.s.state[last] + c.s.ram_work[last] + 32 * m->expert;
    CHECK(run_case(&p, &c) == 0 && p.place[0] == PLAN_RAM && p.ram_experts == 32 * m->expert);
    c.w.ram--;
    CHECK(run_case(&p, &c) == ERR_NOMEM);
}

/* VRAM that only cold experts need. */
static void test_vram_beside(void)
{
    static plan p, q;
    static made c;
    for (int k = 0; k < N_MADE_MODELS; k++)
        for (uint64_t vram = 2500; vram <= 70000; vram += 200 + vram / 20)
            for (uint64_t ram = 16; ram <= 64; ram *= 4) {
                const char *what = case_name(&made_models[k], (double)vram * 1e-3, (double)ram);
                make_case(&c, &made_models[k], vram * MB, ram * GB);
                const bool before = made_plan(&q, &c, what);
                c.s.vram_cold = 50 * MB;
                if (!before || !made_plan(&p, &c, what)) continue;
                check_plan(&p, &c, what);
                CHECK_MSG(p.gpu <= q.gpu && (!p.gpu || p.vram_experts <= q.vram_experts ||
                          p.chunk < q.chunk || p.stage_parts != q.stage_parts), "%s: more of it",
                          what);
                CHECK_MSG(q.vram_experts < all_experts(&c.what) || p.vram_experts ==
                          q.vram_experts, "%s: resident experts need none of it", what);
            }
    make_case(&c, &made_models[OSS20], 8 * GB, 64 * GB); /* what cannot be counted does not fit */
    c.s.vram_cold = UINT64_MAX;
    CHECK(run_case(&p, &c) == 0 && !p.gpu);
}

static void test_refused(void)
{
    static plan p;
    static made c;
    make_case(&c, &made_models[OSS20], 8 * GB, 64 * GB);
    c.what.n_layer = PLAN_MAX_LAYERS + 1;
    CHECK(run_case(&p, &c) == ERR_UNSUPPORTED);
    make_case(&c, &made_models[OSS20], 8 * GB, 64 * GB);
    c.what.n_used = 33;
    CHECK(run_case(&p, &c) == ERR_RANGE);     /* of 32 */
    c.what.n_used = 4;
    c.s.n_chunk = 0;
    CHECK(run_case(&p, &c) == ERR_RANGE);
    c.s.n_chunk = N_CHUNKS;
    c.down[3] = c.expert[3] + 1;
    CHECK(run_case(&p, &c) == ERR_RANGE);
    c.down[3] = 1;
    c.expert[7] = UINT64_MAX / 32;
    CHECK(run_case(&p, &c) == ERR_RANGE);
    /* what cannot be counted does not fit */
    make_case(&c, &made_models[OSS20], 8 * GB, 64 * GB);
    for (int i = 0; i < N_CHUNKS; i++) c.s.vram_work[i] = UINT64_MAX;
    CHECK(run_case(&p, &c) == 0 && !p.gpu);
    for (int i = 0; i < N_CHUNKS; i++) c.s.ram_work[i] = UINT64_MAX - 1;
    CHECK(run_case(&p, &c) == ERR_NOMEM);
}

/* Files of mixed types: layers differ, and so may the down slab's share. */
static void test_mixed(void)
{
    static plan p;
    static made c;
    for (uint64_t vram = 3; vram <= 40; vram++)
        for (uint64_t ram = 8; ram <= 64; ram *= 2) {
            make_case(&c, &made_models[QWEN4], vram * GB, ram * GB);
            for (int l = 0; l < c.what.n_layer; l++) {
                if (l % 3 == 1) continue;
                c.down[l] = 860160;
                c.expert[l] = 2 * 589824 + 860160;
            }
            if (made_plan(&p, &c, "mixed layers")) check_plan(&p, &c, "mixed layers");
        }
}

/* The first layers have no experts: nothing of theirs is placed, and some must have some. */
static void test_dense_layers(void)
{
    static const uint64_t vram[] = { 0, 6, 12, 24, 80 };
    static plan p;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(vram); i++)
        for (uint64_t ram = 8; ram <= 128; ram *= 2) {
            make_case(&c, &made_models[QWEN4], vram[i] * GB, ram * GB);
            for (int l = 0; l < 3; l++) c.expert[l] = c.down[l] = 0;
            if (made_plan(&p, &c, "dense layers")) check_plan(&p, &c, "dense layers");
            CHECK((vram[i] == 80) == (p.place[c.what.n_layer - 1] == PLAN_VRAM));
            CHECK(plan_first_bank(&c.what) == 3 && plan_n_bank(&c.what) == c.what.n_layer - 3);
        }
    /* a token chooses in the others: the table of post-fetch is as without these layers */
    static plan all;
    make_case(&c, &made_models[QWEN4], 6 * GB, 128 * GB);
    made_plan(&all, &c, "no dense layers");
    for (int l = 0; l < 3; l++) c.expert[l] = c.down[l] = 0;
    made_plan(&p, &c, "dense layers");
    CHECK(memcmp(p.fetch_down, all.fetch_down, sizeof p.fetch_down) == 0 &&
          memcmp(p.fetch_all, all.fetch_all, sizeof p.fetch_all) == 0 && p.cache && all.cache);
    memset(c.expert, 0, sizeof c.expert);
    memset(c.down, 0, sizeof c.down);
    CHECK(run_case(&p, &c) == ERR_RANGE);
}

/* ---- some layers on the GPU ------------------------------------------------------------------ */

/* As make_case, with the dense weights by layers. */
static void make_layered(made *c, const made_model *m, uint64_t vram, uint64_t ram)
{
    make_case(c, m, vram, ram);
    for (int l = 0; l < m->n_layer; l++) {
        c->layer_dense[l] = (m->dense - 2 * m->embed) / (uint64_t)m->n_layer;
        for (int i = 0; i < N_CHUNKS; i++)
            c->s.layer_state[i][l] = c->s.state[i] / (uint64_t)m->n_layer;
    }
    c->what.layer_dense = c->layer_dense;
    c->what.split_most = m->n_layer;
    c->what.table = m->embed;
}

/* Budgets below the dense weights: more VRAM, more layers; all faster than the CPU alone. */
static void test_some_layers(void)
{
    static made c;
    static plan p, cpu;
    for (int i = 0; i < N_MADE_MODELS; i++) {
        int before = INT_MAX, shared = 0;
        make_layered(&c, &made_models[i], 80 * GB, 256 * GB);
        c.w.cpu_only = true;
        if (!made_plan(&cpu, &c, "the CPU alone")) continue;
        c.w.cpu_only = false;
        for (uint64_t mb = 100; mb <= 4000; mb += 100) {
            const char *name = case_name(&made_models[i], (double)mb / 1000, 256);
            c.w.vram = mb * MB;
            if (!made_plan(&p, &c, name)) continue;
            check_plan(&p, &c, name);
            if (!p.gpu) {
                CHECK_MSG(before == INT_MAX, "%s: no GPU with more VRAM", name);
                continue;
            }
            /* another chunk, or room for streaming, may cost a few layers */
            CHECK_MSG(p.cpu_layers <= before || p.cpu_layers - before <= c.what.n_layer / 8,
                      "%s: %d layers on the CPU, %d with less VRAM", name, p.cpu_layers, before);
            CHECK_MSG(p.decode_tok_s > cpu.decode_tok_s, "%s: %g tok/s, the CPU alone %g", name,
                      p.decode_tok_s, cpu.decode_tok_s);
            before = p.cpu_layers;
            shared += p.head_in_ram;
        }
        CHECK_MSG(before == 0 && shared >= 5, "%s: %d budgets with layers on both",
                  made_models[i].name, shared);
    }
}

/* No plan splits the layers after more than split_most, whatever VRAM has room for. */
static void test_split_most(void)
{
    static made c;
    static plan p;
    int n_bound = 0, n_free = 0;
    make_layered(&c, &made_models[OSS20], 80 * GB, 256 * GB);
    const int n_layer = c.what.n_layer, most = n_layer / 2;
    for (uint64_t mb = 100; mb <= 4000; mb += 50) {
        c.w.vram = mb * MB;
        c.what.split_most = n_layer;
        if (!made_plan(&p, &c, "any split") || !p.gpu) continue;
        const int n = n_layer - p.cpu_layers;
        c.what.split_most = most;
        if (!made_plan(&p, &c, "half at most") || !p.gpu) continue;
        check_plan(&p, &c, "half at most");
        CHECK_MSG(p.cpu_layers == 0 || n_layer - p.cpu_layers <= most, "%llu MB: %d on the CPU",
                  (unsigned long long)mb, p.cpu_layers);
        n_bound += n > most && n < n_layer;
        n_free += n <= most;
    }
    CHECK_MSG(n_bound > 0 && n_free > 0, "%d, %d", n_bound, n_free);
}

/* Long chunks are for experts that come from the drive, and for a tenth of RAM at most. */
static void test_long_chunks(void)
{
    static made c;
    static plan p;
    make_case(&c, &made_models[QWEN4], 0, 64 * GB);
    c.s.n_long = 2;
    if (made_plan(&p, &c, "all in RAM")) CHECK(p.chunk == c.s.chunk[2]);
    c.w.ram = 16 * GB;
    for (int i = 0; i < N_CHUNKS; i++) c.s.ram_work[i] = (uint64_t)c.s.chunk[i] * 300000;
    if (made_plan(&p, &c, "16 GB")) CHECK(p.chunk == c.s.chunk[0]);
    c.w.ram = 8 * GB;
    if (made_plan(&p, &c, "8 GB")) CHECK(p.chunk == c.s.chunk[1]);
    c.w.ram = 5 * GB;
    if (made_plan(&p, &c, "5 GB")) CHECK(p.chunk == c.s.chunk[2]);
    c.s.n_long = 0;
    if (made_plan(&p, &c, "as long as any")) CHECK(p.chunk == c.s.chunk[0]);
}

/* RAM for the CPU alone, but not for page-locked experts beside it: none of them goes to the drive.
 * With so little that some must, layers are shared all the same. */
static void test_some_layers_short(void)
{
    static made c;
    static plan p;
    int n_cpu = 0;
    make_layered(&c, &made_models[0], 80 * GB, 64 * GB);
    c.w.vram = 450 * MB;
    for (c.w.ram = 11 * GB; c.w.ram <= 14 * GB; c.w.ram += 20 * MB) {
        c.w.cpu_only = true;
        if (!made_plan(&p, &c, "the CPU alone")) return;
        const bool drive = plan_uses_drive(&p, c.what.n_layer);
        c.w.cpu_only = false;
        if (!made_plan(&p, &c, "RAM for the CPU")) return;
        CHECK(drive || !plan_uses_drive(&p, c.what.n_layer));
        n_cpu += !p.gpu;
        c.w.gpu_wanted = true;
        if (made_plan(&p, &c, "a GPU is asked for")) CHECK(p.gpu);
        c.w.gpu_wanted = false;
    }
    CHECK_MSG(n_cpu > 0, "%d plans for the CPU alone", n_cpu);
    c.w.ram = 8 * GB;
    if (made_plan(&p, &c, "less RAM"))
        CHECK(p.gpu && p.head_in_ram && plan_uses_drive(&p, c.what.n_layer));
    c.w.no_hot = true;                   /* asks for all dense weights in VRAM */
    if (made_plan(&p, &c, "no experts in VRAM")) CHECK(!p.gpu);
    c.w.no_hot = false;
    c.what.layer_dense = NULL;
    if (made_plan(&p, &c, "layers unknown")) CHECK(!p.gpu);
}

static bool same_plan(const plan *p, const plan *q)
{
    return p->gpu == q->gpu && p->chunk == q->chunk && p->stage_parts == q->stage_parts &&
           p->cpu_layers == q->cpu_layers && p->embed_in_ram == q->embed_in_ram &&
           plan_vram(p) == plan_vram(q) && plan_ram(p) == plan_ram(q) &&
           memcmp(p->hot, q->hot, sizeof p->hot) == 0 && p->decode_tok_s == q->decode_tok_s;
}

/* A bound for the bytes of experts in VRAM: kept to the expert, and nothing else is bounded. */
static void test_hot_most(void)
{
    static plan p, q;
    static made c;
    for (int k = 0; k < N_MADE_MODELS; k++) {
        const made_model *m = &made_models[k];
        const uint64_t one = m->expert, all = one * (uint64_t)(m->n_layer * m->n_expert);
        const struct { uint64_t most, want; const char *why; } rows[] = {
            { 0, 0, "none" },
            { one - 1, 0, "less than one" },
            { one, one, "one" },
            { 3 * one + one / 2, 3 * one, "whole experts alone" },
            { (uint64_t)m->n_expert * one, (uint64_t)m->n_expert * one, "a layer" },
            { (uint64_t)(m->n_expert + 2) * one, (uint64_t)(m->n_expert + 2) * one, "some of two" },
            { all - 1, all - (uint64_t)m->n_layer * one, "all but one of each layer" },
            { all, all, "all" },
        };
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            make_case(&c, m, 140 * GB, 256 * GB);
            c.w.hot_most = rows[i].most;
            if (!made_plan(&p, &c, rows[i].why)) continue;
            check_plan(&p, &c, rows[i].why);
            CHECK_MSG(p.gpu && p.vram_experts == rows[i].want && p.chunk == c.s.chunk[0],
                      "%s, %s: %llu bytes", m->name, rows[i].why,
                      (unsigned long long)p.vram_experts);
            CHECK_MSG((p.stage_parts > 0) == (rows[i].want < all), "%s, %s: streaming", m->name,
                      rows[i].why);
        }
        make_case(&c, m, 8 * GB, 256 * GB);              /* a bound above what there is room for */
        CHECK(run_case(&p, &c) == 0 && p.vram_experts > 2 * one && p.vram_experts < all);
        c.w.hot_most = p.vram_experts;
        CHECK(run_case(&q, &c) == 0 && same_plan(&p, &q));
        c.w.hot_most--;
        CHECK(run_case(&q, &c) == 0 && q.vram_experts == p.vram_experts - one);
        c.w.hot_most = 0;                                /* none: as no_hot, ... */
        CHECK(run_case(&p, &c) == 0 && p.gpu);
        c.w.no_hot = true;
        CHECK(run_case(&q, &c) == 0 && same_plan(&p, &q));
    }
    make_layered(&c, &made_models[OSS20], 80 * GB, 64 * GB);
    c.w.vram = 450 * MB;
    c.w.hot_most = 0;                    /* ... but the dense weights may be shared out */
    CHECK(run_case(&p, &c) == 0 && p.gpu && p.cpu_layers > 0);
    c.w.hot_most = UINT64_MAX;
    CHECK(run_case(&q, &c) == 0 && same_plan(&p, &q));
}

int main(int argc, char **argv)
{
    test_begin("plan", argc, argv);
    test_table();
    test_steps();
    test_chosen();
    test_wishes();
    test_least();
    test_program();
    test_copy();
    test_embed();
    test_advice();
    test_advice_holds();
    test_least_cache();
    test_moved();
    test_vram_beside();
    test_refused();
    test_mixed();
    test_dense_layers();
    test_some_layers();
    test_split_most();
    test_some_layers_short();
    test_hot_most();
    test_long_chunks();
    return test_end();
}
