/* test_plan.c - the planner on made-up machines: which bytes go where. The sizes of real models:
 * test_planning.c; the predicted speed: test_plan_speed.c.
 *
 * Random machines, models and wishes keep the invariants of check_plan(); what more memory changes
 * is stated at test_more_memory(). */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "tests/plan_checks.h"

static bool same_plan(const plan *p, const plan *q)
{
    return p->gpu == q->gpu && p->chunk == q->chunk && p->stage_ranges == q->stage_ranges &&
           memcmp(p->place, q->place, sizeof p->place) == 0 && p->embed == q->embed &&
           plan_vram(p) == plan_vram(q) && plan_ram(p) == plan_ram(q) &&
           memcmp(p->hot, q->hot, sizeof p->hot) == 0 && p->decode_tok_s == q->decode_tok_s;
}

/* ---- any machine, model and wishes ----------------------------------------------------------- */

/* How often the random cases had each kind of plan. */
typedef struct kinds {
    int refused, cpu, drive, cache, moved, banks, resident, some_layers, table_in_ram, copy, lent;
} kinds;

static void count_kind(kinds *n, const plan *p, const plan_model *w)
{
    n->cpu += !p->gpu;
    n->drive += plan_uses_drive(p, w->n_layer);
    n->cache += p->cache && !p->moved;
    n->moved += p->moved;
    n->resident += p->gpu && p->vram.experts == plan_all_experts(w);
    n->banks += p->gpu && !p->cache && p->vram.experts > 0 && p->vram.experts < plan_all_experts(w);
    n->some_layers += plan_gpu_layers(p, w->n_layer) % w->n_layer > 0;
    n->table_in_ram += p->gpu && p->embed == PLAN_RAM;
    n->copy += p->ram.copy > 0;
    n->lent += p->vram_lent > 0;
}

/* The same plan again, with exactly its RAM, and with a larger program and that much more --ram. */
static void check_ram(const plan *p, made *c, const char *what)
{
    static plan q;
    const plan_machine machine = c->machine;
    const plan_wish w = c->w;
    CHECK_MSG(run_case(&q, c) == 0 && same_plan(p, &q) && p->prefill_tok_s == q.prefill_tok_s,
              "%s: once more", what);
    if (p->gpu) {
        c->w.ram = plan_ram(p);
        CHECK_MSG(run_case(&q, c) == 0 && same_plan(p, &q), "%s: with its own RAM as --ram", what);
        c->w = w;
    }
    c->machine.ram_program += 100 * MB;
    if (c->w.ram != UINT64_MAX) c->w.ram += 100 * MB;
    CHECK_MSG(run_case(&q, c) == 0 && plan_ram(&q) == plan_ram(p) + 100 * MB &&
              q.chunk == p->chunk && plan_vram(&q) == plan_vram(p), "%s: a larger program", what);
    c->machine = machine;
    c->w = w;
}

/* Layers are shared with the GPU only where no expert goes to the drive that the CPU alone would
 * have in RAM, or where a GPU is asked for. */
static void check_layers_or_drive(const plan *p, made *c, const char *what)
{
    static plan cpu;
    if (!p->gpu || p->head == PLAN_VRAM || c->w.gpu_wanted || !plan_uses_drive(p, c->model.n_layer))
        return;
    c->w.cpu_only = true;
    CHECK_MSG(run_case(&cpu, c) != 0 || plan_uses_drive(&cpu, c->model.n_layer),
              "%s: experts on the drive that RAM would hold", what);
    c->w.cpu_only = false;
}

static void test_random(void)
{
    static plan p;
    static made c;
    test_rng rng = { 11 };
    kinds n = { 0 };
    const int rounds = test_rounds(20000, 3000);
    for (int i = 0; i < rounds; i++) {
        char what[32];
        err_ctx err = { 0 };
        snprintf(what, sizeof what, "random case %d", i);
        random_case(&c, &rng);
        const int rc = plan_make(&p, &c.machine, &c.model, &c.s, &c.w, &err);
        if (rc == 0) {
            count_kind(&n, &p, &c.model);
            check_plan(&p, &c, what);
            check_ram(&p, &c, what);
            check_layers_or_drive(&p, &c, what);
            continue;
        }
        n.refused++;
        CHECK_MSG(rc == ERR_NOMEM && strstr(err.msg, "needs ") &&
                      strstr(err.msg, " may be used (") && plan_ram(&p) == 0,
                  "%s: %d, %s", what, rc, err.msg);
        c.w.ram = UINT64_MAX;
        c.machine.ram_available = 300 * GB;
        CHECK_MSG(run_case(&p, &c) == 0, "%s: refused with 300 GB", what);
    }
    const int count[] = { n.refused, n.cpu, n.drive, n.cache, 4 * n.moved, n.banks, n.resident,
                          n.some_layers, n.table_in_ram, n.copy, 2 * n.lent };
    for (size_t i = 0; i < ARRAY_LEN(count); i++)
        CHECK_MSG(count[i] >= rounds / 200, "kind %d: %d of %d plans", (int)i, count[i], rounds);
}

/* ---- more memory ----------------------------------------------------------------------------- */

/* Both plans are the same candidate of the search, with other numbers of experts and layers. */
static bool same_shape(const plan *p, const plan *q)
{
    return p->gpu == q->gpu && p->chunk == q->chunk && p->head == q->head &&
           p->embed == q->embed && p->stage_ranges == q->stage_ranges && p->cache == q->cache &&
           p->moved == q->moved && (p->vram.pad > 0) == (q->vram.pad > 0);
}

static bool has_some(const plan *p) { return p->gpu && p->head == PLAN_RAM; }

/* More memory makes no plan of the same shape slower, but for VRAM that takes experts from a CPU
 * which has time to spare: up to 5%. Another shape may cost speed: a larger chunk, larger ranges or
 * the table in RAM are preferred to more experts in VRAM or RAM. Layers that are all on the GPU
 * stay there. If it has some, buffers that begin to pay may leave VRAM for too few, and RAM that
 * holds all experts is for the CPU alone. */
static void test_more_memory(void)
{
    static plan p, q;
    static made c;
    test_rng rng = { 5 };
    int n[2] = { 0, 0 }, n_slower = 0;
    const int rounds = test_rounds(20000, 3000);
    for (int i = 0; i < rounds; i++) {
        const bool ram = i % 2;
        random_case(&c, &rng);
        const uint64_t more = (1 + test_below(&rng, 20000)) * MB / (1 + test_below(&rng, 50));
        uint64_t *const limit = ram ? &c.w.ram : &c.w.vram;
        if (run_case(&p, &c) < 0 || (!ram && !c.machine.gpu)) continue;
        *(ram ? &c.machine.ram_available : &c.machine.vram_free) += 2 * more;
        if (*limit != UINT64_MAX) *limit += more;
        if (run_case(&q, &c) < 0) {
            CHECK_MSG(!ram && has_some(&p), "case %d: refused with more memory", i);
            continue;
        }
        const double decode = q.decode_tok_s / p.decode_tok_s;
        const double prompts = q.prefill_tok_s / p.prefill_tok_s;
        const bool same = same_shape(&p, &q);
        CHECK_MSG(!same || (decode >= (ram ? 1 : 0.95) - 1e-9 && prompts >= 1 - 1e-9),
                  "case %d, more %s: %g of the speed, prompts %g", i, ram ? "RAM" : "VRAM", decode,
                  prompts);
        CHECK_MSG(decode > 0.6, "case %d, another shape: %g", i, decode);
        CHECK_MSG(!p.gpu || q.gpu || has_some(&p), "case %d: no GPU any more", i);
        CHECK_MSG(!p.gpu || p.head == PLAN_RAM || q.head == PLAN_VRAM,
                  "case %d: layers leave the GPU", i);
        n[same]++;
        n_slower += decode < 1 - 1e-9;
    }
    CHECK_MSG(n[0] > rounds / 50 && n[1] > rounds / 4 && n_slower < rounds / 20,
              "%d cases with another shape, %d with the same, %d slower", n[0], n[1], n_slower);
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
            const char *name = made_models[i].name;
            c.w.vram = mb * MB;
            if (!made_plan(&p, &c, name)) continue;
            check_plan(&p, &c, name);
            CHECK_MSG(p.gpu || before == INT_MAX, "%s: no GPU with more VRAM", name);
            if (!p.gpu) continue;
            /* another chunk, or room for streaming, may cost a few layers */
            const int n = c.model.n_layer - plan_gpu_layers(&p, c.model.n_layer);
            CHECK_MSG(n <= before || n - before <= c.model.n_layer / 8,
                      "%s: %d layers on the CPU, %d with less VRAM", name, n, before);
            CHECK_MSG(p.decode_tok_s > cpu.decode_tok_s, "%s: %g tok/s, the CPU alone %g", name,
                      p.decode_tok_s, cpu.decode_tok_s);
            before = n;
            shared += p.head == PLAN_RAM;
        }
        CHECK_MSG(before == 0 && shared >= 5, "%s: %d budgets with layers on both",
                  made_models[i].name, shared);
    }
}

/* RAM for the CPU alone, but not for page-locked experts besides: the CPU computes. Where
 * experts go to the drive in any case, or a GPU is asked for, it has some layers. */
static void test_some_layers_short(void)
{
    static made c;
    static plan p;
    int n_cpu = 0, n_drive = 0;
    make_layered(&c, &made_models[OSS20], 80 * GB, 64 * GB);
    c.w.vram = 450 * MB;
    for (c.w.ram = 8 * GB; c.w.ram <= 14 * GB; c.w.ram += 50 * MB) {
        if (!made_plan(&p, &c, "RAM for the CPU")) return;
        n_cpu += !p.gpu;
        n_drive += plan_uses_drive(&p, c.model.n_layer);
        CHECK(p.gpu || !plan_uses_drive(&p, c.model.n_layer));
        c.w.gpu_wanted = true;
        if (made_plan(&p, &c, "a GPU is asked for")) CHECK(p.gpu && p.head == PLAN_RAM);
        c.w.gpu_wanted = false;
    }
    CHECK_MSG(n_cpu > 0 && n_drive > 0, "%d plans for the CPU alone, %d with the drive", n_cpu,
              n_drive);
}

/* A limit for the bytes of experts in VRAM is kept to the expert and changes nothing else. */
static void test_hot_most(void)
{
    static plan p, q;
    static made c;
    for (int k = 0; k < N_MADE_MODELS; k++) {
        const made_model *m = &made_models[k];
        const uint64_t one = m->expert, all = one * (uint64_t)(m->n_layer * m->n_expert);
        const uint64_t limits[] = { 0, one - 1, one, 3 * one + one / 2,
                                    (uint64_t)(m->n_expert + 2) * one, all };
        for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
            make_case(&c, m, 140 * GB, 256 * GB);
            c.w.hot_most = limits[i];
            if (!made_plan(&p, &c, m->name)) continue;
            check_plan(&p, &c, m->name);
            c.s.page_bytes = 64 * 1024;  /* contexts that could lend to experts change nothing */
            c.s.n_page = c.s.chunk[0].state / c.s.page_bytes;
            CHECK_MSG(run_case(&q, &c) == 0 && same_plan(&p, &q), "%s: pages", m->name);
            const uint64_t each = p.cache ? c.cached[0] : one;
            CHECK_MSG(p.gpu && p.vram.experts == limits[i] / each * each &&
                          p.chunk == c.s.chunk[0].tokens &&
                          (p.stage_ranges > 0) == (limits[i] < all),
                      "%s, limit %d: %llu bytes", m->name, (int)i,
                      (unsigned long long)p.vram.experts);
        }
        make_case(&c, m, 8 * GB, 256 * GB);
        CHECK(run_case(&p, &c) == 0 && p.vram.experts > 2 * one && p.vram.experts < all);
        c.w.hot_most = p.vram.experts;
        CHECK(run_case(&q, &c) == 0 && same_plan(&p, &q));
        c.w.hot_most--;
        CHECK(run_case(&q, &c) == 0 && p.cache && q.vram.experts == p.vram.experts - c.cached[0]);
    }
}

/* Post-fetch takes VRAM for its slabs and pays. */
static void test_postfetch(void)
{
    static plan p, q;
    static made c;
    make_case(&c, &made_models[OSS20], 8 * GB, 64 * GB);
    c.w.whole_banks = true;
    CHECK(run_case(&q, &c) == 0 && q.vram.pad > 0 && q.t_pull > 0);
    c.w.no_postfetch = true;
    CHECK(run_case(&p, &c) == 0 && p.vram.pad == 0 && p.t_pull == 0);
    CHECK_MSG(q.decode_tok_s > 1.1 * p.decode_tok_s, "post-fetch: %g, without %g", q.decode_tok_s,
              p.decode_tok_s);
}

/* ---- refusals -------------------------------------------------------------------------------- */

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
        c->s.chunk[i].state = fixed + 8192 * each;
        c->s.chunk[i].ram_work = c->s.chunk[i].snapshots = 0;
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
    {818, 9000, "; use --ram 2265M or more, or --ctx 4096 or less, or --kv q8_0", NULL,
     "each of three would do"},
    {13, 9000, "; use --ram 2265M or more, or --ctx 256 or less and --kv q8_0", NULL,
     "only both together, and hardly"},
    {12, 9000, "; use --ram 2265M or more", "--ctx", "no context is small enough"},
    {818, 818, "; use --ctx 4096 or less, or --kv q8_0", "--ram 2", "the machine has no more"},
    {NO_BOUND, 476, "; use --ctx 2048 or less", "q8_0", "no bound, less room"},
    {NO_BOUND, 12,
     "; no smaller context would help: end other programs, or use a smaller model or "
     "quantisation",
     "--ctx", "nothing helps"},
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
        const int rc = plan_make(&p, &c.machine, &c.model, &c.s, &c.w, &err);
        CHECK_MSG(rc == ERR_NOMEM && strstr(err.msg, advice[i].want) &&
                  strlen(strstr(err.msg, advice[i].want)) == strlen(advice[i].want) &&
                  !(advice[i].not && strstr(err.msg, advice[i].not)), "%s: %d, '%s'",
                  advice[i].why, rc, err.msg);
    }
}

/* Advice leaves slack: a program that takes two huge pages more in its next run, with the --ram of
 * the advice, is not refused again. */
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
            CHECK(plan_make(&p, &c.machine, &c.model, &c.s, &c.w, &err) == ERR_NOMEM);
            const char *text = strstr(err.msg, "; use --ram ");
            CHECK_MSG(text && sscanf(text, "; use --ram %lluM", &mib) == 1, "%s", err.msg);
            c.w.ram = (uint64_t)mib << 20;
            c.machine.ram_program += 4 << 20;
            CHECK_MSG(plan_make(&p, &c.machine, &c.model, &c.s, &c.w, &err) == 0, "--ram %lluM: %s",
                      mib, err.msg);
        }
}

static void test_refused(void)
{
    static plan p;
    static made c;
    make_case(&c, &made_models[OSS20], 8 * GB, 64 * GB);
    c.model.n_layer = PLAN_MAX_LAYERS + 1;
    CHECK(run_case(&p, &c) == ERR_UNSUPPORTED);
    make_case(&c, &made_models[OSS20], 8 * GB, 64 * GB);
    c.model.n_used = 33;
    CHECK(run_case(&p, &c) == ERR_RANGE);     /* of 32 */
    c.model.n_used = 4;
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
    for (int i = 0; i < N_CHUNKS; i++) c.s.chunk[i].vram_work = UINT64_MAX;
    CHECK(run_case(&p, &c) == 0 && !p.gpu);
    for (int i = 0; i < N_CHUNKS; i++) c.s.chunk[i].ram_work = UINT64_MAX - 1;
    CHECK(run_case(&p, &c) == ERR_NOMEM);
}

int main(int argc, char **argv)
{
    test_begin("plan", argc, argv);
    test_random();
    test_more_memory();
    test_postfetch();
    test_advice();
    test_advice_holds();
    test_refused();
    test_some_layers();
    test_some_layers_short();
    test_hot_most();
    return test_end();
}
