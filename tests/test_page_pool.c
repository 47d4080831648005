/* test_page_pool.c - pages that sessions share: what is taken and given back, blocks that are lent,
 * and sessions that grow and shrink on one pool until it is full. */
#include <stdlib.h>
#include <string.h>

#include "engine/session/page_pool.h"
#include "tests/state_reference.h"
#include "tests/test.h"

/* ---- a lender -------------------------------------------------------------------------------- */

enum { BLOCKS = 6 };

typedef struct lender {
    uint64_t block_bytes;
    void *out[BLOCKS];                   /* blocks that are lent; NULL: not */
    int most;                            /* no more than so many at a time */
    int n_out, n_taken;
} lender;

static int lend(void *ctx, void **block, err_ctx *err)
{
    lender *a = ctx;
    int i = 0;
    if (a->n_out == a->most) return err_set(err, ERR_NOMEM, "the lender has no more");
    while (a->out[i]) i++;
    CHECK(far_space()->alloc(&a->out[i], far_space(), a->block_bytes, MEM_DENSE, "lent", err) == 0);
    *block = a->out[i];
    a->n_out++;
    a->n_taken++;
    return 0;
}

static void take_back(void *ctx, void *block)
{
    lender *a = ctx;
    int i = 0;
    while (i < BLOCKS && a->out[i] != block) i++;
    if (!CHECK(i < BLOCKS)) return;
    far_space()->free(far_space(), block, a->block_bytes);
    a->out[i] = NULL;
    a->n_out--;
}

/* ---- the pool -------------------------------------------------------------------------------- */

/* Three pages of its own and blocks of two: all apart, blocks go back when they are empty. */
static void test_blocks(void)
{
    enum { PAGE = 128, PAGES = 7 };
    lender a = { .block_bytes = 2 * PAGE + 40, .most = 2 };
    const page_source more = { &a, a.block_bytes, lend, take_back };
    const page_pool_options o = { far_space(), PAGE, PAGES, 3, &more };
    page_pool *p = NULL;
    uint8_t *page[PAGES], *one = NULL;
    err_ctx err = { 0 };
    if (!CHECK_MSG(page_pool_create(&p, &o, &err) == 0, "%s", err.msg)) return;
    for (int i = 0; i < PAGES; i++) {
        CHECK_MSG(page_pool_take(p, &page[i], &err) == 0, "%d: %s", i, err.msg);
        for (int k = 0; k < i; k++) CHECK(llabs((long long)(page[i] - page[k])) >= PAGE);
    }
    CHECK(a.n_out == 2 && page_pool_taken(p) == PAGES);
    CHECK(page_pool_take(p, &one, &err) == ERR_NOMEM && !one && page_pool_taken(p) == PAGES);
    CHECK_MSG(strstr(err.msg, "the lender has no more"), "%s", err.msg);
    page_pool_give(p, page[3]);
    CHECK(a.n_out == 2);
    page_pool_give(p, page[4]);          /* the first lent block has no page in use */
    CHECK(a.n_out == 1 && page_pool_taken(p) == PAGES - 2);
    page_pool_give(p, page[0]);
    CHECK(page_pool_take(p, &one, &err) == 0 && one == page[0]);
    CHECK(page_pool_take(p, &page[3], &err) == 0 && a.n_out == 2 && a.n_taken == 3);
    page_pool_free(p);                   /* with pages in use */
    CHECK(a.n_out == 0);

    const page_pool_options own = { far_space(), PAGE, 2, 2, NULL };
    if (!CHECK_MSG(page_pool_create(&p, &own, &err) == 0, "%s", err.msg)) return;
    CHECK(page_pool_take(p, &page[0], &err) == 0 && page_pool_take(p, &page[1], &err) == 0);
    CHECK(page_pool_take(p, &one, &err) == ERR_NOMEM);
    CHECK_MSG(strstr(err.msg, "memory for contexts is full"), "%s", err.msg);
    page_pool_free(p);
    far_fail_after(1);
    CHECK(page_pool_create(&p, &own, &err) == ERR_NOMEM && !p);
    far_fail_after(0);
    CHECK(far_blocks() == 0);
}

/* ---- sessions on one pool -------------------------------------------------------------------- */

enum { SESSIONS = 3, CTX = 300, SLACK = 40 };

/* One step of a session. Whether there was room for it. */
static bool step(reference *t, test_rng *rng)
{
    const int left = t->o.ctx - t->pos;
    const uint32_t dice = test_below(rng, 12);
    err_ctx err = { 0 };
    if (dice < 8 && left > 0) {
        const int n = 1 + (int)test_below(rng, (uint32_t)min_int(left, SLACK));
        const int rc = state_reserve(t->s, t->pos + n, &err);
        if (rc == 0) reference_run(t, rng, n, dice == 0);
        else CHECK_MSG(rc == ERR_NOMEM && strstr(err.msg, "the lender has no more"), "%s", err.msg);
        return rc == 0;
    }
    if (dice == 8) reference_snapshot(t);
    else if (dice < 11) reference_rewind(t, t->pos - (int)test_below(rng, 90));
    else reference_rewind(t, 0);
    return true;
}

/* Pages of the sessions lie in any order among each other. A full pool is an error of the session
 * that wants to grow; neither it nor another one loses anything. */
static void test_sessions(const char *layers, kv_type type)
{
    model *m = reference_model(layers, 2, 32, 20);
    const uint64_t page = kv_page_bytes(m, type, 0, m->hp.n_layer);
    const uint64_t each = kv_n_page(m, CTX, 0, m->hp.n_layer);
    lender a = { .block_bytes = 3 * page, .most = (int)(SESSIONS * each) / 14 };
    const page_source more = { &a, a.block_bytes, lend, take_back };
    const page_pool_options o = { far_space(), page, SESSIONS * each, 4, &more };
    state_options so = { .ctx = CTX, .slack = SLACK, .kv = type, .n_snapshot = 2 };
    test_rng rng = { (uint64_t)type };
    reference t[SESSIONS];
    page_pool *p = NULL;
    err_ctx err = { 0 };
    int n_full = 0;
    if (!CHECK_MSG(page_pool_create(&p, &o, &err) == 0, "%s", err.msg)) return;
    segments_add(&so.in, m->hp.n_layer, far_space());
    so.in.of[0].pages = p;
    for (int i = 0; i < SESSIONS; i++) reference_open(&t[i], m, &so);
    for (int i = 0; i < 200; i++) {
        reference *now = &t[test_below(&rng, SESSIONS)];
        n_full += !step(now, &rng);
        if (!CHECK_MSG(reference_holds(now, &rng), "%s, step %d: %s", layers, i, now->why)) break;
    }
    for (int i = 0; i < SESSIONS; i++)
        CHECK_MSG(reference_holds(&t[i], &rng), "%s: %s", layers, t[i].why);
    CHECK_MSG(n_full > 0 && n_full < 120, "%s: full %d times", layers, n_full);
    for (int i = 0; i < SESSIONS; i++) reference_close(&t[i]);
    CHECK(page_pool_taken(p) == 0 && a.n_out == 0);
    page_pool_free(p);
    reference_model_free(m);
}

int main(int argc, char **argv)
{
    static const char *const layers[] = { "FFF", "WFDF", "FWwfF" };
    test_begin("page_pool", argc, argv);
    test_blocks();
    for (int i = 0; i < 3; i++) test_sessions(layers[i], (kv_type)i);
    CHECK(far_blocks() == 0);
    return test_end();
}
