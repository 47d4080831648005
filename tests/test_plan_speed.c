/* test_plan_speed.c - what the planner expects of made-up machines: times by hand, how much is
 * fetched, and which way prompts go. What goes where: test_plan.c.
 *
 * Nothing here is timed, and no GPU is asked. */
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

static const struct fetch_row {
    int m;
    double cpu, cpu_busy, pull, pull_busy;       /* GB/s */
    int down, all;
    const char *why;
} fetch_rows[] = {
    { 4, 76, 70, 50, 47, 4, 0, "0.36 of 12 slabs is 4.4: four downs" },
    { 10, 76, 70, 50, 47, 8, 1, "0.36 of 30 slabs is 10.9: eight downs and one expert" },
    { 10, 30, 30, 50, 47, 8, 2, "0.6 of 30 slabs: all that the pad can take" },
    { 4, 60, 58, 12, 11, 1, 0, "a seventh of 12 slabs" },
    { 1, 60, 54, 12, 11, 0, 0, "a third of one expert takes the bus longer than the CPU all" },
    { 4, 60, 40, 12, 11, 0, 0, "the CPU loses more than the bus brings" },
    { 4, 60, 54, 0, 11, 0, 0, "no pull" },
    { 0, 60, 54, 50, 47, 0, 0, "nothing cold" },
};

static void test_fetch_rows(void)
{
    for (size_t i = 0; i < ARRAY_LEN(fetch_rows); i++) {
        const struct fetch_row *f = &fetch_rows[i];
        const speeds r = { .cpu = f->cpu * 1e9, .cpu_busy = f->cpu_busy * 1e9,
                           .pull = f->pull * 1e9, .pull_busy = f->pull_busy * 1e9 };
        int d, a;
        plan_fetch(&d, &a, f->m, 1769472, 589824, &r);
        CHECK_MSG(d == f->down && a == f->all, "fetch of %d: %d + %d, not %d + %d: %s", f->m, d, a,
                  f->down, f->all, f->why);
    }
}

/* ---- expectations ---------------------------------------------------------------------------- */

static void check_near(double got, double want, const char *what)
{
    CHECK_MSG(fabs(got - want) <= 1e-9 * fabs(want), "%s: %.9g, not %.9g", what, got, want);
}

static void test_times(void)
{
    static plan p;
    static made c;
    const made_model *m = &made_models[OSS20];
    const double e = (double)m->expert, dense = (double)m->token_dense;

    make_case(&c, m, 80 * GB, 64 * GB);  /* all in VRAM */
    CHECK(run_case(&p, &c) == 0);
    check_near(p.t_dense, dense / 450e9 + 24 * 25e-6, "dense in VRAM");
    check_near(p.t_hot, 24 * (4 * e / 450e9 + 9e-6), "experts in VRAM");
    check_near(1 / p.decode_tok_s, p.t_dense + p.t_hot, "a token in VRAM");
    check_near(1 / p.limit_tok_s, (dense + 24 * 4 * e) / 450e9, "its limit");
    check_near(p.prefill_tok_s, 2e13 / (1.2e9 + 2.4e9), "prompts in VRAM");
    CHECK(p.stream_from == 9 && p.t_hop == 0 && p.t_cpu == 0);

    make_case(&c, m, 0, 64 * GB);        /* all on the CPU */
    CHECK(run_case(&p, &c) == 0);
    check_near(1 / p.decode_tok_s, dense / 70e9 + 24 * 35e-6 + 24 * 4 * e / 55e9,
               "a token on the CPU");
    check_near(1 / p.limit_tok_s, dense / 70e9 + 24 * 4 * e / 55e9, "its memory alone");
    check_near(p.prefill_tok_s, p.chunk / (p.chunk * (1.2e9 + 2.4e9) / 6e11 +
                                           (double)all_experts(&c.what) / 55e9),
               "prompts on the CPU: every expert is read once");
    CHECK(p.stream_from == INT_MAX && p.t_hot == 0 && p.t_hop == 0);

    make_case(&c, m, 8 * GB, 64 * GB);   /* no expert in VRAM */
    c.w.vram = 1950 * MB - c.what.embed + c.s.state[0] + c.s.vram_work[0] + 300 * MB;
    while (run_case(&p, &c) == 0 && p.vram_experts > 0) c.w.vram -= MB;
    CHECK(p.gpu && p.stage_parts > 0);
    /* of four experts the downs of three cross: 13.2 of 52.9 MB at 20 GB/s, the rest at 48 */
    CHECK_MSG(p.fetch_down[4] == 3 && p.fetch_all[4] == 0, "%d + %d", p.fetch_down[4],
              p.fetch_all[4]);
    check_near(p.t_cpu, 24 * 3 * e / 48e9, "the CPU's part");
    check_near(p.t_pull, 24 * e / 20e9, "the bus's part");
    check_near(p.t_hop, 24 * 8e-6, "questions");
    check_near(1 / p.decode_tok_s, p.t_dense + p.t_cpu + p.t_hop, "a token with all experts cold");
    check_near(1 / p.limit_tok_s, dense / 450e9 + 24 * 4 * e / 68e9, "both links together");
    CHECK(p.bound == BOUND_CPU);
    c.w.no_postfetch = true;
    CHECK(run_case(&p, &c) == 0);
    check_near(p.t_cpu, (24 * 4 * e - (double)p.vram_experts / 32 * 4) / 55e9, "without fetching");
}

static void test_drive_times(void)
{
    static plan p;
    static made c;
    const made_model *m = &made_models[OSS120];
    const double e = (double)m->expert, token = 36 * 4 * e;

    make_case(&c, m, 0, 64 * GB);
    c.w.ram = dense_on_cpu(&c, 0) + c.s.state[0] + c.s.ram_work[0] + all_experts(&c.what) / 2;
    CHECK(run_case(&p, &c) == 0 && p.place[0] == PLAN_DISK && p.chunk == 4096);
    check_near(p.t_disk, token / 2 / 3e9 + 36 * 0.3e-3, "half of it from the drive");
    check_near(1 / p.decode_tok_s, p.t_dense + p.t_disk, "while the CPU computes");
    check_near(1 / p.limit_tok_s, (double)m->token_dense / 70e9 + token / 2 / 3e9,
               "the drive alone");
    CHECK(p.bound == BOUND_DISK && p.disk_experts == all_experts(&c.what) / 2);
    c.machine.rate.cpu_many = 1e15;      /* a prompt waits for every expert that it touches */
    CHECK(run_case(&p, &c) == 0);
    check_near(p.prefill_tok_s, 4096 / (4096 * m->dense_macs / 1e15 + (double)
               all_experts(&c.what) * (1 - pow(1 - 4.0 / 128, 4096)) / 3e9), "a prompt, too");
    c.machine.rate.cpu_many = 6e11;
    /* less than a token's worth hits as its share says: FADE keeps the popular experts */
    c.w.ram = dense_on_cpu(&c, 0) + c.s.state[0] + c.s.ram_work[0] + (uint64_t)token - 1;
    CHECK(run_case(&p, &c) == 0);
    check_near(p.t_disk, token * (1 - (token - 1) / (double)all_experts(&c.what)) / 3e9 +
               36 * 0.3e-3, "nearly all of it from the drive");
    c.w.ram++;
    CHECK(run_case(&p, &c) == 0);
    CHECK(p.t_disk < token / 3e9);
}

/* ---- ways of prompts ------------------------------------------------------------------------- */

/* 64 slots for each expert, as far as anybody has room for the batch. */
static void test_most_shared(void)
{
    static const struct { int n_used, n_expert, most; } rows[] = {
        { 4, 32, 512 }, { 4, 128, 2048 }, { 10, 512, 2048 }, { 4, 16, 256 }, { 4, 24, 384 },
        { 8, 8, 64 }, { 1, 1, 64 }, { 3, 16, 341 }, { 8, 512, 2048 }, { 10, 64, 409 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const int n = plan_most_shared(rows[i].n_used, rows[i].n_expert);
        CHECK_MSG(n == rows[i].most && n > 8, "%d of %d: %d", rows[i].n_used, rows[i].n_expert, n);
    }
}

/* Which bits a prompt has: not a speed's business, and above the rule only one way is gone. */
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
                c.what.float_experts = floats;
                c.w.whole_banks = whole;
                c.machine.rate.cpu *= factor;
                c.machine.rate.cpu_many *= factor;
                if (!made_plan(&p, &c, m->name)) continue;
                CHECK_MSG(p.contract_to == most && p.stream_from <= most + 1, "%s: %d, from %d",
                          m->name, p.contract_to, p.stream_from);
                CHECK_MSG(!floats || (p.split_from == INT_MAX && p.stream_from == most + 1),
                          "%s: floats are shared out from %d, streamed from %d", m->name,
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

/* The definition, written down again. */
static void test_stream_from(void)
{
    static plan p;
    static made c;
    for (int k = 0; k < N_MADE_MODELS; k++)
        for (int kind = 0; kind <= 2; kind++) {
            const made_model *m = &made_models[k];
            const int most = plan_most_shared(m->n_used, m->n_expert);
            const bool disk = kind == 1, slow = kind == 2;       /* at reading alone */
            const double cpu_read = slow ? 20e9 : 55e9, cpu_many = slow ? 1e30 : 6e11;
            make_case(&c, m, 6 * GB, disk ? 8 * GB : 128 * GB);
            c.machine.rate.cpu = cpu_read;
            c.machine.rate.cpu_many = cpu_many;
            if (!made_plan(&p, &c, m->name)) continue;
            CHECK(p.place[c.what.n_layer - 1] == (disk ? PLAN_DISK : PLAN_RAM));
            const double all = (double)all_experts(&c.what), outside = all - (double)p.vram_experts;
            const double sweep = outside / (disk ? 3e9 : 24e9), share = outside / all;
            double other[2], streamed[2];
            for (int i = 0; i < 2; i++) {
                const double n = p.stream_from - 1 + i, gpu = n / 2e13;
                const double experts = m->expert_macs * gpu / (n <= most ? 0.4 : 1);
                const double touched = outside * (1 - pow(1 - (double)m->n_used / m->n_expert, n));
                const double macs = n * m->expert_macs * share / cpu_many;
                streamed[i] = fmax(sweep, m->dense_macs * gpu + experts);
                if (disk) {
                    other[i] = m->dense_macs * gpu + experts * (1 - share) +
                               fmax(touched / cpu_read + macs, touched / 3e9);
                    continue;
                }
                const speeds *r = &c.machine.rate;
                const double bus = touched / (24e9 * r->pull_busy / r->pull);
                const double cores = touched / r->cpu_busy + macs;
                double best = 1e300;     /* of all shares that the CPU could have */
                for (double part = 0; part <= fmin(1, 512 / (n * share)); part += 1e-4)
                    best = fmin(best, fmax((1 - part) * bus, part * cores));
                other[i] = m->dense_macs * gpu + fmax(experts, best);
            }
            CHECK(p.split_from == (disk ? INT_MAX : 9));
            CHECK_MSG(other[0] <= streamed[0] * 1.001 &&
                      (other[1] * 1.001 > streamed[1] || p.stream_from == most + 1),
                      "%s: from %d: %g, %g against %g, %g", m->name, p.stream_from, other[0],
                      other[1], streamed[0], streamed[1]);
            c.machine.rate.cpu_many = 1e6;       /* a CPU that is lost with any prompt */
            CHECK(run_case(&p, &c) == 0 && p.split_from == (disk ? INT_MAX : 9) &&
                  (!disk || p.stream_from == 9));
            check_near(p.prefill_tok_s, p.chunk / fmax(sweep, p.chunk * (m->dense_macs +
                       m->expert_macs) / 2e13), "a streamed prompt");
            c.machine.rate.cpu_many = 1e30;      /* and one that is not with any */
            c.machine.rate.cpu = c.machine.rate.cpu_busy = 1e30;
            c.machine.rate.disk = 1e30;
            CHECK(run_case(&p, &c) == 0 && p.stream_from == most + 1);
        }
}

/* Whoever asks for a way gets it wherever it can be gone, but not against fixed. */
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
        c.w.way_wanted = true;
        c.w.way = rows[i].way;
        c.w.fixed = rows[i].fixed;
        if (!made_plan(&p, &c, "a way")) continue;
        CHECK_MSG(p.split_from == rows[i].split && p.stream_from == rows[i].stream,
                  "row %d: split from %d, streamed from %d", (int)i, p.split_from, p.stream_from);
        const prompt_strategy at_9 = rows[i].split == 9 ? PROMPT_SPLIT : rows[i].stream == 9 ?
                                PROMPT_BUS : PROMPT_CORES;
        CHECK(plan_prompt_way(&p, 9) == at_9);
        CHECK_MSG(p.contract_to == (rows[i].fixed || rows[i].way != PROMPT_BUS ? INT_MAX : 512),
                  "row %d: contract up to %d", (int)i, p.contract_to);
        CHECK(plan_prompt_way(&p, PLAN_SPLIT_TOKENS + 1) ==
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
    for (; run_case(&p, &c) == 0 && p.gpu && p.stage_parts > 0; c.machine.vram_free -= MB) { }
    CHECK_MSG(p.gpu && p.stage_parts == 0 && p.stream_from == INT_MAX, "no stage: from %d",
              p.stream_from);
    c.w.fixed = false;                   /* the CPU computes any prompt's */
    CHECK(run_case(&p, &c) == 0 && p.stage_parts == 0 && p.contract_to == INT_MAX);
}

/* Each time of a layer counts where such layers are, and nowhere else: twice as long takes a token
 * longer by what it was. */
static void test_latencies(void)
{
    static const struct { int at; bool gpu, disk; } where[] = {
        { 0, true, false }, { 1, true, false }, { 2, false, false }, { 3, false, true },
    };
    static plan p, q;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(where); i++)
        for (int kind = 0; kind < 3; kind++) {           /* all in VRAM, all in RAM, some on disk */
            make_case(&c, &made_models[OSS20], kind == 0 ? 80 * GB : 0, 64 * GB);
            if (kind == 2) c.w.ram = 2600 * MB;          /* less than a token's experts */
            speeds *r = &c.machine.rate;
            double *figures[] = { &r->layer_dense, &r->layer_hot, &r->layer_cpu, &r->disk_wait };
            const double was = *figures[where[i].at];
            const bool counts = where[i].gpu == (kind == 0) && (!where[i].disk || kind == 2);
            CHECK(run_case(&p, &c) == 0 && p.gpu == (kind == 0));
            *figures[where[i].at] = 2 * was;
            CHECK(run_case(&q, &c) == 0);
            CHECK_MSG(fabs(1 / q.decode_tok_s - 1 / p.decode_tok_s - (counts ? 24 * was : 0)) <
                      1e-12, "figure %d, place %d: %g s, then %g", (int)i, kind,
                      1 / p.decode_tok_s, 1 / q.decode_tok_s);
            CHECK(q.limit_tok_s == p.limit_tok_s);       /* without delays */
            *figures[where[i].at] = 0;                   /* not measured: the stand-in */
            CHECK(run_case(&q, &c) == 0 && (q.decode_tok_s != p.decode_tok_s) == counts);
        }
}

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
    CHECK(run_case(&p, &c) == 0 && p.t_pull == 0 && p.vram_pad == 0);
    check_plan(&p, &c, "no pull");
}

int main(int argc, char **argv)
{
    test_begin("plan_speed", argc, argv);
    test_fetch();
    test_fetch_rows();
    test_times();
    test_drive_times();
    test_most_shared();
    test_contract_to();
    test_stream_from();
    test_wanted_way();
    test_fixed();
    test_latencies();
    test_assumed();
    return test_end();
}
