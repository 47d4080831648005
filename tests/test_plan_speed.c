/* test_plan_speed.c - the speed that the planner predicts for made-up machines, how much post-fetch
 * copies, and the strategy of prompts. Which bytes go where: test_plan.c.
 *
 * Predictions are compared with a simulation that draws experts at random. Nothing is timed, and no
 * GPU is used. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "tests/plan_checks.h"

/* ---- post-fetch ------------------------------------------------------------------------------ */

static double fetch_time(int m, int d, int a, double e, double down, const speeds *r)
{
    const double on_bus = d * down + a * e, on_cpu = m * e - on_bus;
    return fmax(on_cpu / r->cpu_busy, on_bus / (PLAN_PULL_MARGIN * r->pull_busy));
}

static void test_fetch(void)
{
    test_rng rng = { 7 };
    for (int round = 0; round < 1000; round++) {
        const uint64_t e = 3000 + test_below(&rng, 20000000), down = 1 + test_below(&rng, e);
        const double cpu = 1e9 + test_below(&rng, 200) * 1e9;
        const speeds r = {
            .cpu = cpu, .cpu_busy = cpu * (0.5 + test_below(&rng, 51) * 0.01), .pull = 60e9,
            .pull_busy = 1e9 + test_below(&rng, 60) * 1e9,
        };
        const int m = (int)test_below(&rng, PLAN_MOST_USED + 1);
        const double alone = m * (double)e / r.cpu;
        double best = alone;
        int d, a;
        plan_fetch(&d, &a, m, e, down, &r);
        for (int i = 0; i <= m; i++)
            for (int k = 0; k <= m - i && k <= PLAN_PAD_WHOLE; k++)
                best = fmin(best, fetch_time(m, i, k, (double)e, (double)down, &r));
        const double got = d + a == 0 ? alone
                                      : fetch_time(m, d, a, (double)e, (double)down, &r);
        const double want = best < 0.97 * alone ? best : alone;
        CHECK_MSG(d >= 0 && a >= 0 && d + a <= m && a <= PLAN_PAD_WHOLE, "fetch %d + %d of %d", d,
                  a, m);
        CHECK_MSG(fabs(got - want) <= 1e-9 * alone, "fetch %d of %d + %d: %g s, best %g", m, d, a,
                  got, want);
    }
}

/* ---- a simulated machine --------------------------------------------------------------------- */

/* Draws the experts of a token in a layer without repetition; returns how many are not among the
 * first n_hot. */
static int draw_cold(test_rng *rng, const plan_model *w, int n_hot)
{
    int ids[PLAN_MOST_USED], n_cold = 0;
    for (int i = 0; i < w->n_used; i++) {
        bool again = true;
        while (again) {
            ids[i] = (int)test_below(rng, (uint32_t)w->n_expert);
            again = false;
            for (int k = 0; k < i; k++) again |= ids[k] == ids[i];
        }
        n_cold += ids[i] >= n_hot;
    }
    return n_cold;
}

/* Bytes of experts in VRAM, without what frames of a cache add. */
static double in_vram_bytes(const plan *p, const plan_model *w)
{
    double sum = 0;
    for (int l = 0; l < w->n_layer; l++) sum += p->hot[l] * (double)w->expert_bytes[l];
    return sum;
}

/* Seconds of m cold experts of e bytes on the CPU, with post-fetch where the plan has it. */
static double cold_seconds(const plan *p, const made *c, int l, int m, bool fetched)
{
    const speeds *r = &p->rate;
    const double e = (double)c->expert[l], down = (double)c->down[l];
    const int n_down = fetched ? p->fetch_down[m] : 0, n_all = fetched ? p->fetch_all[m] : 0;
    const double bus = n_down * down + n_all * e;
    if (bus == 0) return m * e / r->cpu;
    return fmax((m * e - bus) / r->cpu_busy, bus / r->pull_busy);
}

/* Seconds of a token: of each layer the links work at once, and the slowest counts. */
static double simulate_token(const plan *p, const made *c, test_rng *rng)
{
    const plan_model *w = &c->model;
    const speeds *r = &p->rate;
    const bool drive = plan_uses_drive(p, w->n_layer);
    const double cold = (double)plan_all_experts(w) - in_vram_bytes(p, w);
    const double miss = drive ? fmax(0, 1 - (double)p->ram.experts / cold) : 0;
    const double in_vram = (double)(p->head == PLAN_RAM ? p->vram.dense : w->token_dense);
    double s = in_vram / r->vram_read + ((double)w->token_dense - in_vram) / r->cpu_dense;
    for (int l = 0; l < w->n_layer; l++) {
        const bool gpu = p->gpu && p->place[l].dense == PLAN_VRAM;
        const int m = draw_cold(rng, w, p->hot[l]);
        int missed = 0;
        for (int i = 0; i < m; i++) missed += test_below(rng, 1000000) < miss * 1e6;
        const double e = (double)c->expert[l];
        const double hot = gpu ? (w->n_used - m) * e / r->vram_read + r->layer_hot : 0;
        const double cpu = cold_seconds(p, c, l, m, gpu && p->vram.pad > 0 && !drive);
        const double others = fmax(cpu, missed * e / r->disk) + (missed > 0 ? r->disk_wait : 0) +
                              (gpu && m > 0 ? r->hop : 0);
        s += (gpu ? r->layer_dense : r->layer_cpu) + fmax(hot, others);
    }
    return s;
}

/* Seconds of a chunk of a prompt that the CPU computes, or that is streamed. */
static double simulate_prompt(const plan *p, const made *c, test_rng *rng)
{
    const plan_model *w = &c->model;
    const speeds *r = &p->rate;
    const bool drive = plan_uses_drive(p, w->n_layer);
    const double all = (double)plan_all_experts(w), cold = all - in_vram_bytes(p, w);
    const double slower = p->chunk <= p->contract_to ? PLAN_CONTRACT_SPEED : 1;
    bool chosen[512] = { false };
    int n_chosen = 0;
    for (int i = 0; i < p->chunk * w->n_used; i++) {
        bool *expert = &chosen[test_below(rng, (uint32_t)w->n_expert)];
        n_chosen += !*expert;
        *expert = true;
    }
    if (p->gpu)
        return fmax(cold / (drive ? fmin(r->disk, r->pcie_in) : r->pcie_in),
                    p->chunk * (w->dense_macs + w->expert_macs / slower) / r->gpu_macs);
    const double read = cold * n_chosen / w->n_expert;
    const double experts = read / r->cpu + p->chunk * w->expert_macs * cold / all / r->cpu_many;
    return p->chunk * w->dense_macs / r->cpu_many + (drive ? fmax(experts, read / r->disk)
                                                           : experts);
}

/* The figures of plans for random machines and speeds against the means of the simulation. The
 * planner lets links overlap by their means: where a layer waits for the drive, or seldom for a
 * cold expert, that is too fast. */
static void test_prediction(void)
{
    enum { TOKENS = 60 };
    static plan p;
    static made c;
    test_rng rng = { 3 };
    int n_token = 0, n_prompt = 0;
    const int rounds = test_rounds(2000, 300);
    for (int i = 0; i < rounds; i++) {
        const plan_model *w = &c.model;
        random_case(&c, &rng);
        for (size_t k = 0; k < offsetof(speeds, gemm_own) / sizeof(double); k++)
            ((double *)&c.machine.rate)[k] *= 0.5 + test_below(&rng, 1500) * 1e-3;
        if (i % 2) {
            c.machine.ram_available = 300 * GB;
            c.w.ram = UINT64_MAX;
        }
        if (run_case(&p, &c) < 0) continue;
        const double cold = 1 - in_vram_bytes(&p, w) / (double)plan_all_experts(w);
        const bool seldom = plan_uses_drive(&p, w->n_layer) || (cold > 0 && cold * w->n_used < 3);
        double s = 0;
        for (int t = 0; t < TOKENS; t++) s += simulate_token(&p, &c, &rng) / TOKENS;
        CHECK_MSG(s * p.decode_tok_s > 0.85 && s * p.decode_tok_s < (seldom ? 2 : 1.15),
                  "case %d: %g tok/s, simulated %g", i, p.decode_tok_s, 1 / s);
        n_token += !seldom;
        if (p.gpu && (p.head == PLAN_RAM || p.stream_from > p.chunk)) continue;
        const double prompt = p.chunk / simulate_prompt(&p, &c, &rng);
        CHECK_MSG(fabs(prompt / p.prefill_tok_s - 1) < 0.15, "case %d: prompts at %g tok/s, "
                  "simulated %g", i, p.prefill_tok_s, prompt);
        n_prompt++;
    }
    CHECK_MSG(n_token > rounds / 6 && n_prompt > rounds / 4, "%d tokens, %d prompts", n_token,
              n_prompt);
}

/* ---- strategies of prompts ------------------------------------------------------------------- */

/* A speed as if the strategy were asked for; 0: a prompt of n tokens cannot have it. */
static double forced_speed(made *c, prompt_strategy way, int n)
{
    static plan p;
    c->w.strategy_wanted = true;
    c->w.strategy = way;
    const bool ok = run_case(&p, c) == 0 && plan_prompt_strategy(&p, n) == way;
    c->w.strategy_wanted = false;
    return ok ? p.prefill_tok_s : 0;
}

/* Streaming is chosen where it is faster than the alternative: splitting, or the CPU where experts
 * come from the drive. */
static void test_fastest(void)
{
    static const double factors[] = { 1e-3, 0.1, 1, 10, 1e3 };
    static plan p;
    static made c;
    int n_stream = 0, n_other = 0;
    for (int k = 0; k < N_MADE_MODELS; k++)
        for (int disk = 0; disk <= 1; disk++)
            for (size_t f = 0; f < ARRAY_LEN(factors); f++) {
                const made_model *m = &made_models[k];
                const int most = plan_most_shared(m->n_used, m->n_expert);
                for (int n = 9; n <= most; n = n * 3 / 2) {
                    make_case(&c, m, 6 * GB, disk ? 8 * GB : 128 * GB);
                    c.machine.rate.cpu_many *= factors[f];
                    c.s.n_chunk = 1;
                    c.s.chunk[0].tokens = n;
                    if (!made_plan(&p, &c, m->name)) continue;
                    const double streamed = forced_speed(&c, PROMPT_BUS, n);
                    const double other = forced_speed(&c, disk ? PROMPT_CORES : PROMPT_SPLIT, n);
                    const bool stream = plan_prompt_strategy(&p, n) == PROMPT_BUS;
                    CHECK_MSG(p.prefill_tok_s >= fmax(streamed, other) * (1 - 1e-9),
                              "%s, %d tokens: %g tok/s, streamed %g, else %g", m->name, n,
                              p.prefill_tok_s, streamed, other);
                    n_stream += stream;
                    n_other += !stream;
                }
            }
    CHECK_MSG(n_stream > 20 && n_other > 20, "%d streamed, %d not", n_stream, n_other);
}

/* Speeds never decide which bits a prompt has: above plan_most_shared there is one strategy. */
static void test_contract_to(void)
{
    static plan p;
    static made c;
    for (int k = 0; k < N_MADE_MODELS; k++)
        for (int kind = 0; kind < 8; kind++) {
            const made_model *m = &made_models[k];
            const bool disk = kind & 1, floats = kind & 2, whole = kind & 4;
            const int most = plan_most_shared(m->n_used, m->n_expert);
            for (double factor = 1e-9; factor < 1e10; factor *= 1e9) {
                make_case(&c, m, 6 * GB, disk ? 8 * GB : 128 * GB);
                c.model.float_experts = floats;
                c.w.whole_banks = whole;
                c.machine.rate.cpu *= factor;
                c.machine.rate.cpu_many *= factor;
                if (!made_plan(&p, &c, m->name)) continue;
                CHECK_MSG(p.contract_to == most && p.stream_from <= most + 1, "%s: %d, from %d",
                          m->name, p.contract_to, p.stream_from);
                CHECK_MSG(!floats || (p.split_from == INT_MAX && p.stream_from == most + 1),
                          "%s: floats are split from %d, streamed from %d", m->name,
                          p.split_from, p.stream_from);
            }
        }
    make_case(&c, &made_models[OSS20], 90 * GB, 128 * GB);
    CHECK(run_case(&p, &c) == 0 && p.contract_to == 0);       /* nothing is outside */
    c.w.fixed = true;
    CHECK(run_case(&p, &c) == 0 && p.contract_to == INT_MAX);
    make_case(&c, &made_models[OSS20], 0, 128 * GB);
    CHECK(run_case(&p, &c) == 0 && !p.gpu && p.contract_to == 0);
}

/* A strategy that is asked for is used wherever it is possible, but never against fixed. */
static void test_wanted_way(void)
{
    static const struct { prompt_strategy way; bool disk, fixed; int split, stream; } rows[] = {
        { PROMPT_CORES, false, false, INT_MAX, INT_MAX },
        { PROMPT_CORES, true, false, INT_MAX, INT_MAX },
        { PROMPT_BUS, false, false, INT_MAX, 9 },
        { PROMPT_BUS, true, false, INT_MAX, 9 },
        { PROMPT_SPLIT, false, false, 9, PLAN_SPLIT_TOKENS + 1 },
        { PROMPT_SPLIT, true, false, INT_MAX, 9 },
        { PROMPT_SPLIT, false, true, INT_MAX, 9 },
        { PROMPT_CORES, false, true, INT_MAX, 9 },
    };
    static plan p;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        make_case(&c, &made_models[OSS20], 6 * GB, rows[i].disk ? 8 * GB : 128 * GB);
        c.w.strategy_wanted = true;
        c.w.strategy = rows[i].way;
        c.w.fixed = rows[i].fixed;
        if (!made_plan(&p, &c, "a way")) continue;
        CHECK_MSG(p.split_from == rows[i].split && p.stream_from == rows[i].stream,
                  "row %d: split from %d, streamed from %d", (int)i, p.split_from, p.stream_from);
        const prompt_strategy from_9 = rows[i].split == 9 ? PROMPT_SPLIT : rows[i].stream == 9 ?
                                PROMPT_BUS : PROMPT_CORES;
        CHECK(plan_prompt_strategy(&p, 9) == from_9);
        CHECK_MSG(p.contract_to == (rows[i].fixed || rows[i].way != PROMPT_BUS ? INT_MAX : 512),
                  "row %d: contract up to %d", (int)i, p.contract_to);
        CHECK(plan_prompt_strategy(&p, PLAN_SPLIT_TOKENS + 1) ==
              (rows[i].stream == INT_MAX ? PROMPT_CORES : PROMPT_BUS));
    }
}

/* With fixed wishes no speed changes who computes a prompt. */
static void test_fixed(void)
{
    static plan p;
    static made c;
    static const double factors[] = { 1e-6, 1, 1e6 };
    for (int k = 0; k < N_MADE_MODELS; k++)
        for (int kind = 0; kind <= 3; kind++) {
            bool differs = false;
            int first = 0;
            for (size_t f = 0; f < ARRAY_LEN(factors); f++) {
                make_case(&c, &made_models[k], kind == 3 ? 0 : kind == 2 ? 90 * GB : 6 * GB,
                          kind == 1 ? 8 * GB : 128 * GB);
                c.machine.rate.cpu *= factors[f];
                c.machine.rate.cpu_many *= factors[f];
                c.machine.rate.disk *= factors[f];
                if (!made_plan(&p, &c, made_models[k].name)) continue;
                if (f == 0) first = p.stream_from;
                differs |= p.stream_from != first;
                c.w.fixed = true;
                if (!made_plan(&p, &c, made_models[k].name)) continue;
                check_plan(&p, &c, "fixed");
                CHECK_MSG(p.stream_from == (p.gpu ? 9 : INT_MAX), "%s: fixed, from %d",
                          made_models[k].name, p.stream_from);
            }
            CHECK_MSG(differs == (kind < 2), "%s: speeds decide", made_models[k].name);
        }
    make_case(&c, &made_models[OSS20], 2250 * MB, 128 * GB);  /* no room for a stage */
    c.w.fixed = true;
    for (; run_case(&p, &c) == 0 && p.gpu && p.stage_ranges > 0; c.machine.vram_free -= MB) { }
    CHECK_MSG(p.gpu && p.stage_ranges == 0 && p.stream_from == INT_MAX, "no stage: from %d",
              p.stream_from);
    c.w.fixed = false;                   /* the CPU computes any prompt's */
    CHECK(run_case(&p, &c) == 0 && p.stage_ranges == 0 && p.contract_to == INT_MAX);
}

/* ---- unmeasured speeds ----------------------------------------------------------------------- */

static void test_assumed(void)
{
    static plan p, q;
    static made c;
    speeds s = { 0 };
    make_case(&c, &made_models[OSS120], 8 * GB, 128 * GB);
    c.machine.rate = s;
    CHECK(run_case(&p, &c) == 0 && p.t_pull > 0 && p.rate.cpu == SPEEDS_CPU &&
          p.rate.disk == SPEEDS_DISK);
    check_plan(&p, &c, "nothing measured");
    c.machine.rate = speeds_assume(&s);
    CHECK(run_case(&q, &c) == 0 && memcmp(&p.decode_tok_s, &q.decode_tok_s, sizeof(double)) == 0);
    /* a GPU that was measured and cannot pull does not */
    c.machine.rate = made_speeds;
    c.machine.rate.pull = c.machine.rate.pull_busy = 0;
    CHECK(run_case(&p, &c) == 0 && p.t_pull == 0 && p.vram.pad == 0);
    check_plan(&p, &c, "no pull");
}

int main(int argc, char **argv)
{
    test_begin("plan_speed", argc, argv);
    test_fetch();
    test_prediction();
    test_fastest();
    test_contract_to();
    test_wanted_way();
    test_fixed();
    test_assumed();
    return test_end();
}
