/* test_split_border.c - the border against a search over all borders, and over all divisions. */
#include "moe/split_border.h"

#include <math.h>

#include "tests/test.h"

enum { EXPERTS = 512, FEW = 12 };

typedef struct made {
    split_layer l;
    split_speeds r;
    int32_t counts[EXPERTS], list[EXPERTS];
    bool there[EXPERTS];
    int n_expert, n;
} made;

static double between(test_rng *rng, double low, double high)
{
    return low * pow(high / low, (double)test_below(rng, 10001) / 10000);
}

/* A layer in which a few experts have most of the slots, or all alike, or nearly none. */
static void make(made *m, test_rng *rng, int n_expert)
{
    const double skew = (double)test_below(rng, 4), mean = between(rng, 0.1, 200);
    *m = (made){
        .n_expert = n_expert,
        .l = { .bytes = between(rng, 1e5, 2e7), .macs = between(rng, 1e5, 3e7),
               .most_slots = INT64_MAX },
        .r = { .bus = between(rng, 1e9, 1e11), .read = between(rng, 1e9, 3e11),
               .many = between(rng, 1e10, 1e13), .gpu = between(rng, 1e12, 1e15) },
    };
    for (int e = 0; e < n_expert; e++) {
        const double part = (double)test_below(rng, 1001) / 1000;
        m->counts[e] = (int32_t)(mean * (skew + 1) * pow(part, skew) + part);
        m->there[e] = test_below(rng, 3) == 0;
        if (m->there[e]) m->l.vram_slots += m->counts[e];
    }
    m->n = split_border_sort(m->list, m->counts, m->there, n_expert);
}

static void check_order(const made *m)
{
    int n = 0;
    for (int e = 0; e < m->n_expert; e++) n += m->counts[e] > 0 && !m->there[e];
    CHECK(m->n == n);
    for (int i = 0; i < m->n; i++) {
        const int e = m->list[i];
        CHECK(e >= 0 && e < m->n_expert && m->counts[e] > 0 && !m->there[e]);
        if (i == 0) continue;
        const int last = m->list[i - 1];
        CHECK(m->counts[last] > m->counts[e] || (m->counts[last] == m->counts[e] && last < e));
    }
}

/* When the later side ends, with these of the list on the bus; INFINITY: no room on the cores. */
static double ends(const made *m, const bool *crosses)
{
    double slots[2] = { 0 };
    int n[2] = { 0 };
    for (int i = 0; i < m->n; i++) {
        n[crosses[i]]++;
        slots[crosses[i]] += m->counts[m->list[i]];
    }
    if (slots[0] > (double)m->l.most_slots) return INFINITY;
    const double bus = n[1] > 0 ? n[1] * m->l.bytes / m->r.bus : 0;
    const double gpu = (m->l.vram_slots + slots[1]) * m->l.macs / m->r.gpu;
    const double cores = n[0] * m->l.bytes / m->r.read + slots[0] * m->l.macs / m->r.many;
    return fmax(fmax(bus, gpu), cores);
}

static double ends_at(const made *m, int border)
{
    bool crosses[EXPERTS] = { false };
    for (int i = 0; i < border; i++) crosses[i] = true;
    return ends(m, crosses);
}

static int border_of(const made *m)
{
    return split_border_of(&m->l, &m->r, m->list, m->counts, m->n);
}

/* No border is better, and none before it is as good. */
static void check_border(const made *m)
{
    const int border = border_of(m);
    const double t = ends_at(m, border);
    if (!CHECK(border >= 0 && border <= m->n && isfinite(t))) return;
    for (int b = 0; b <= m->n; b++)
        if (!CHECK_MSG(ends_at(m, b) >= t * (b < border ? 1 + 1e-12 : 1 - 1e-12),
                       "border %d of %d takes %g, %d takes %g", border, m->n, t, b, ends_at(m, b)))
            return;
}

static void test_borders(void)
{
    test_rng rng = { 1 };
    static made m;
    int inside = 0;
    for (int i = 0; i < 400; i++) {
        make(&m, &rng, 1 + (int)test_below(&rng, i % 4 ? 64 : EXPERTS));
        if (i % 5 == 0) m.l.most_slots = (int64_t)test_below(&rng, 500);
        check_order(&m);
        check_border(&m);
        inside += border_of(&m) > 0 && border_of(&m) < m.n;
    }
    CHECK_MSG(inside > 100, "only %d borders with something on both sides", inside);
}

/* Where products on the GPU do not count, no division of any kind is better than a border. */
static void test_divisions(void)
{
    test_rng rng = { 2 };
    static made m;
    for (int i = 0; i < 40; i++) {
        make(&m, &rng, FEW);
        m.r.gpu = 1e30;
        const double t = ends_at(&m, border_of(&m));
        double best = INFINITY;
        for (unsigned set = 0; set < 1u << m.n; set++) {
            bool crosses[FEW];
            for (int e = 0; e < FEW; e++) crosses[e] = set >> e & 1;
            best = fmin(best, ends(&m, crosses));
        }
        CHECK_MSG(t <= best * (1 + 1e-12), "the border takes %g, a division %g", t, best);
    }
}

static void test_edges(void)
{
    test_rng rng = { 3 };
    static made m, some;
    make(&m, &rng, EXPERTS);
    some = m;
    some.r.read = 0;
    CHECK(border_of(&some) == some.n);           /* no cores */
    some = m;
    some.r.many = 0;
    CHECK(border_of(&some) == some.n);
    some = m;
    some.r.bus = 0;
    CHECK(border_of(&some) == 0);                /* no bus */
    some.l.most_slots = 0;
    CHECK(border_of(&some) == 0);
    some = m;
    some.l.most_slots = 0;
    CHECK(border_of(&some) == some.n);           /* no room */

    some = m;
    for (int e = 0; e < EXPERTS; e++) some.counts[e] = 0;
    some.n = split_border_sort(some.list, some.counts, some.there, EXPERTS);
    CHECK(some.n == 0 && border_of(&some) == 0);         /* nothing is used */
    some.counts[7] = 512;
    some.there[7] = false;
    some.n = split_border_sort(some.list, some.counts, some.there, EXPERTS);
    CHECK(some.n == 1 && some.list[0] == 7);             /* one expert has it all: */
    some.l = (split_layer){ .bytes = 2e6, .macs = 3e6, .most_slots = 5120 };
    some.r = (split_speeds){ .bus = 5e10, .read = 1e11, .many = 1e12, .gpu = 1e14 };
    CHECK(border_of(&some) == 1);                        /* 40 us against 1.6 ms */
    some.counts[7] = 1;
    CHECK(border_of(&some) == 0);                        /* 40 us against 23 */
    some.l = (split_layer){ .bytes = 2e6, .most_slots = 5120 };
    some.r = (split_speeds){ .bus = 5e10, .read = 5e10, .many = 1e12, .gpu = 1e14 };
    CHECK(border_of(&some) == 0);                        /* the least of two that are as good */
    for (int e = 0; e < EXPERTS; e++) some.there[e] = true;
    CHECK(split_border_sort(some.list, some.counts, some.there, EXPERTS) == 0);
}

/* Speeds that are wrong by far come near those of the machine within some layers, and a layer that
 * was disturbed does not spoil them. */
static void test_learning(void)
{
    test_rng rng = { 4 };
    static made m;
    for (int i = 0; i < 50; i++) {
        make(&m, &rng, 256);
        m.l.vram_slots = 0;
        if (m.n < 8) continue;
        const split_speeds real = m.r;
        m.r.bus *= between(&rng, 0.2, 5);
        const double wrong = between(&rng, 0.2, 5);
        m.r.read *= wrong;
        m.r.many *= wrong;
        for (int layer = 0; layer < 60; layer++) {
            const int b = border_of(&m);
            double left = 0;
            for (int e = b; e < m.n; e++) left += m.counts[m.list[e]];
            const double bytes = b * m.l.bytes, late = layer == 30 ? 50 : 1;
            const double cores = split_border_cores_s(&m.l, &real, m.n - b, left) * late;
            const double bus = bytes / real.bus;
            split_border_saw_cores(&m.r, &m.l, m.n - b, left, cores);
            split_border_saw_bus(&m.r, bytes, fmax(bus, cores), bus > cores);
        }
        const int b = border_of(&m);
        m.r = real;
        const double got = ends_at(&m, b), best = ends_at(&m, border_of(&m));
        CHECK_MSG(got <= 1.15 * best + m.l.bytes / real.bus, "learnt %g, best %g, %d of %d", got,
                  best, b, m.n);
    }
}

/* A bus that was lost for some layers is tried again, and so are the cores. */
static void test_rest(void)
{
    const split_speeds plan = { .bus = 5e10, .read = 1e11, .many = 1e12, .gpu = 1e14 };
    const split_layer l = { .bytes = 2e6, .macs = 3e6, .most_slots = 5120 };
    int32_t counts[8], list[8];
    for (int i = 0; i < 8; i++) {
        counts[i] = 20;
        list[i] = i;
    }
    for (int side = 0; side < 2; side++) {
        split_speeds r = plan;
        *(side ? &r.many : &r.bus) *= 1e-3;
        if (side) r.read *= 1e-3;
        const int stuck = split_border_of(&l, &r, list, counts, 8);
        CHECK(stuck == (side ? 8 : 0));
        int n = 0, b = stuck;
        while (b == stuck && n++ < 1000) {
            split_border_rested(&r, &plan, b == 0, b == 8);
            b = split_border_of(&l, &r, list, counts, 8);
        }
        CHECK_MSG(n > 5 && n < 100, "tried again after %d layers", n);
        const split_speeds before = r;
        split_border_rested(&r, &plan, false, false);
        CHECK(r.bus == before.bus && r.read == before.read && r.many == before.many);
    }
}

int main(int argc, char **argv)
{
    test_begin("prompt_split", argc, argv);
    test_borders();
    test_divisions();
    test_edges();
    test_learning();
    test_rest();
    return test_end();
}
