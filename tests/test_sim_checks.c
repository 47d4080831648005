/* test_sim_checks.c - the simulated GPU notices what it says it notices (tests/sim_gpu.h).
 *
 * Every row does something twice, on a gpu of its own each time: rightly, and with one thing wrong.
 * The first must not fail, the second must, and say why. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda/gpu_experts.h"
#include "loader/quant.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"

enum { N = 32, MANY = GPU_FEW + 1, ROOM = 1 << 16, TOO_LONG_S = 60 };

static uint8_t *room;                    /* ROOM bytes of VRAM, zeros to begin with */

/* The i-th kilobyte of it: room for what the rows below need. */
static float *floats(int i) { return (float *)(void *)(room + ((size_t)i << 10)); }

/* ---- memory ---------------------------------------------------------------------------------- */

static void read_past(gpu *g, bool wrong)
{
    float x[2];
    gpu_read(g, x, room + ROOM - sizeof x + (wrong ? 1 : 0), sizeof x, NULL);
}

static void write_freed(gpu *g, bool wrong)
{
    const float x = 1.0f;
    float *p = gpu_alloc(g, sizeof *p, "a word", NULL);
    if (wrong) gpu_free(g, p);
    gpu_write(g, p, &x, sizeof x, NULL);
    if (!wrong) gpu_free(g, p);
}

static void free_twice(gpu *g, bool wrong)
{
    float *p = gpu_alloc(g, sizeof *p, "a word", NULL);
    gpu_free(g, p);
    if (wrong) gpu_free(g, p);
}

static void move_host_cursor(gpu *g, bool wrong)
{
    static gpu_cursor here;
    gpu_advance(g, wrong ? &here : (gpu_cursor *)(void *)room, 1);
}

static void copy_unlocked(gpu *g, bool wrong)
{
    static float here[N];
    float *locked = gpu_alloc_host(g, sizeof here, NULL);
    gpu_copy(g, room, wrong ? here : locked, sizeof here);
    gpu_free_host(g, locked);
}

/* Two pages, each a piece of its own. */
static void with_two_pieces(gpu *g, bool wrong, void (*use)(gpu *, const uint8_t *, size_t))
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *p = aligned_alloc(page, 2 * page);
    CHECK(p && gpu_lock(g, p, page, NULL) == 0 && gpu_lock(g, p + page, page, NULL) == 0);
    use(g, wrong ? p + page / 2 : p + page, page);
    gpu_wait(g, NULL);
    gpu_unlock(g, p);
    gpu_unlock(g, p + page);
    free(p);
}

static void copy_locked(gpu *g, const uint8_t *from, size_t n) { gpu_copy(g, room, from, n); }

static void stage_locked(gpu *g, const uint8_t *from, size_t n)
{
    gpu_stage *s = NULL;
    if (!CHECK(gpu_stage_create(&s, g, 2, n, NULL) == 0)) return;
    gpu_stage_copy(g, s, 0, 0, from, n);
    gpu_stage_sent(g, s, 0, NULL);
    gpu_stage_free(g, s);
}

static void copy_two_pieces(gpu *g, bool wrong) { with_two_pieces(g, wrong, copy_locked); }
static void stage_two_pieces(gpu *g, bool wrong) { with_two_pieces(g, wrong, stage_locked); }

static void change_source(gpu *g, bool wrong)
{
    uint8_t *from = gpu_alloc_host(g, 8, NULL);
    from[0] = 1;
    sim_gpu_lazy(true);
    gpu_copy(g, room, from, 8);
    if (wrong) from[0] = 2;
    (void)gpu_wait(g, NULL);
    sim_gpu_lazy(false);
    gpu_free_host(g, from);
}

static void lock_twice(gpu *g, bool wrong)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *p = aligned_alloc(page, 2 * page);
    CHECK(p && gpu_lock(g, p, 2 * page, NULL) == 0);
    if (wrong) CHECK(gpu_lock(g, p + page, page, NULL) == ERR_NOMEM);
    gpu_unlock(g, p);
    free(p);
}

static void unlock_twice(gpu *g, bool wrong)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *p = aligned_alloc(page, page);
    CHECK(p && gpu_lock(g, p, page, NULL) == 0);
    gpu_unlock(g, p);
    if (wrong) gpu_unlock(g, p);
    free(p);
}

/* ---- recordings ------------------------------------------------------------------------------ */

static void write_recording(gpu *g, bool wrong)
{
    gpu_recording *r = NULL;
    const float x = 1.0f;
    CHECK(gpu_recording_create(&r, NULL) == 0 && gpu_record_begin(g, NULL) == 0);
    if (wrong) gpu_write(g, room, &x, sizeof x, NULL);
    gpu_record_end(r, g, NULL);
    gpu_recording_free(r);
}

/* What a recording uses must be there when it is played. */
static void play_freed(gpu *g, bool wrong)
{
    gpu_recording *r = NULL;
    gpu_cursor *p = gpu_alloc(g, sizeof *p, "a cursor", NULL);
    CHECK(gpu_recording_create(&r, NULL) == 0 && gpu_record_begin(g, NULL) == 0);
    gpu_advance(g, p, 1);
    CHECK(gpu_record_end(r, g, NULL) == 0);
    if (wrong) gpu_free(g, p);
    gpu_replay(g, r);
    if (!wrong) gpu_free(g, p);
    gpu_recording_free(r);
}

/* ---- operations ------------------------------------------------------------------------------ */

static gpu_matrix square(float *data)
{
    return (gpu_matrix){ .type = QT_F32, .rows = N, .cols = N, .data = (uint8_t *)data,
                         .row_bytes = N * sizeof(float), .scale = 1.0f };
}

static void state_twice(gpu *g, bool wrong)
{
    const gpu_delta d = { .out = floats(0), .mixed = floats(1), .ba = floats(2),
                          .dt_bias = floats(3), .a = floats(4), .state = floats(8), .n_k = 1,
                          .n_v = 1, .dim = N, .n = 1 };
    gpu_delta_rule(g, &d);
    if (!wrong) gpu_advance(g, (gpu_cursor *)(void *)floats(20), 1);
    gpu_delta_rule(g, &d);
}

/* The finished vectors of many tokens, used by two products. */
static void use_input(gpu *g, int type, float *lost)
{
    gpu_input in = { .kind = GPU_NORM, .n = MANY, .cols = N, .x = floats(0), .weight = floats(2),
                     .eps = 1.0f, .rows = floats(4), .halves = floats(6), .lows = floats(7) };
    gpu_product p = { .y = floats(8), .y_stride = N, .w = square(floats(12)) };
    const float one = 1.0f;
    p.w.type = type;
    p.w.row_bytes = N * (type == QT_F32 ? 4 : 2);
    gpu_project(g, &in, &p, 1);
    if (lost) gpu_write(g, lost, &one, sizeof one, NULL);
    gpu_project(g, &in, &p, 1);
}

static void lose_rows(gpu *g, bool wrong) { use_input(g, QT_F32, wrong ? floats(4) : NULL); }
static void lose_halves(gpu *g, bool wrong) { use_input(g, QT_BF16, wrong ? floats(6) : NULL); }
static void lose_lows(gpu *g, bool wrong) { use_input(g, QT_BF16, wrong ? floats(7) : NULL); }

static void change_x(gpu *g, bool wrong)
{
    float ones[N];
    for (int i = 0; i < N; i++) ones[i] = 1.0f;
    gpu_write(g, floats(2), ones, sizeof ones, NULL);
    use_input(g, QT_F32, wrong ? floats(0) : NULL);
}

static void embed_nothing(gpu *g, bool wrong)
{
    const gpu_matrix table = square(floats(4));
    const int32_t id = wrong ? N : N - 1;
    gpu_write(g, floats(1), &id, sizeof id, NULL);
    gpu_embed(g, floats(0), &table, (int32_t *)(void *)floats(1), 1);
}

static void count_wrongly(gpu *g, bool wrong)
{
    const uint32_t left = wrong;
    uint32_t *best = (uint32_t *)(void *)floats(8), *counter = (uint32_t *)(void *)floats(2);
    gpu_write(g, counter, &left, sizeof left, NULL);
    gpu_largest(g, floats(0), N, (gpu_cursor *)(void *)floats(1), NULL, best, counter);
}

/* A layer of four experts, of which one is chosen. */
static void layer_of(gpu_input *in, gpu_expert_args *a)
{
    *in = (gpu_input){ .kind = GPU_PLAIN, .n = 1, .cols = N, .x = floats(0), .rows = floats(1),
                       .blocks = floats(2) };
    const gpu_bank bank = { .type = QT_F32, .rows = N, .cols = N, .data = (uint8_t *)floats(16),
                            .row_bytes = N * sizeof(float), .slab_bytes = N * N * sizeof(float) };
    *a = (gpu_expert_args){ .x = floats(3), .gate = bank, .up = bank, .down = bank, .n_expert = 4,
                            .k = 1, .ids = (int32_t *)(void *)floats(4), .gates = floats(5),
                            .scratch = floats(6) };
}

static void choose_nobody(gpu *g, bool wrong)
{
    gpu_input in;
    gpu_expert_args a;
    const int32_t id = wrong ? 4 : 3;
    layer_of(&in, &a);
    gpu_write(g, floats(4), &id, sizeof id, NULL);
    gpu_experts(g, &in, &a);
}

static gpu_with_host split_of(gpu_mailbox *mailbox, const int32_t *hot)
{
    return (gpu_with_host){ .mailbox = mailbox, .number = (uint32_t *)(void *)floats(8), .hot = hot,
                        .scratch = floats(10) };
}

/* Expert 0 is hot, so the host has nothing to do: its answer may come first. */
static void hot_nowhere(gpu *g, bool wrong)
{
    gpu_input in;
    gpu_expert_args a;
    gpu_mailbox *mailbox = NULL;
    const int32_t places[4] = { wrong ? ROOM : 1, 0, 2, 3 };
    layer_of(&in, &a);
    gpu_write(g, floats(9), places, sizeof places, NULL);
    if (!CHECK(gpu_mailbox_create(&mailbox, g, N, N, 1, NULL) == 0)) return;
    mailbox->answered = 1;
    const gpu_with_host s = split_of(mailbox, (int32_t *)(void *)floats(9));
    gpu_experts_with_host(g, &in, &a, &s);
    gpu_wait(g, NULL);
    gpu_mailbox_free(g, mailbox);
}

/* ---- stages ---------------------------------------------------------------------------------- */

static void with_stage(gpu *g, void (*use)(gpu *, gpu_stage *, bool), bool wrong)
{
    gpu_stage *s = NULL;
    uint8_t *from = gpu_alloc_host(g, 4096, NULL);
    if (!CHECK(from && gpu_stage_create(&s, g, 2, 4096, NULL) == 0)) return;
    gpu_stage_copy(g, s, 0, 0, from, 4096);
    use(g, s, wrong);
    gpu_stage_copy(g, s, 0, 0, from, 4096);
    gpu_stage_sent(g, s, 0, NULL);
    gpu_stage_free(g, s);
    gpu_free_host(g, from);
}

static void without_ready(gpu *g, gpu_stage *s, bool wrong)
{
    if (!wrong) gpu_stage_ready(g, s, 0);
    gpu_copy(g, room, gpu_stage_buffer(s, 0), 4096);
    gpu_stage_done(g, s, 0);
}

static void without_done(gpu *g, gpu_stage *s, bool wrong)
{
    gpu_stage_ready(g, s, 0);
    gpu_copy(g, room, gpu_stage_buffer(s, 0), 4096);
    if (!wrong) gpu_stage_done(g, s, 0);
}

static void written(gpu *g, gpu_stage *s, bool wrong)
{
    gpu_stage_ready(g, s, 0);
    if (wrong) gpu_zero(g, gpu_stage_buffer(s, 0), 4096, NULL);
    gpu_stage_done(g, s, 0);
}

static void read_early(gpu *g, bool wrong) { with_stage(g, without_ready, wrong); }
static void copy_early(gpu *g, bool wrong) { with_stage(g, without_done, wrong); }
static void write_stage(gpu *g, bool wrong) { with_stage(g, written, wrong); }

/* ---------------------------------------------------------------------------------------------- */

static const struct { void (*run)(gpu *, bool); const char *says; } rows[] = {
    { read_past, "not in one allocation of VRAM" },
    { write_freed, "not in one allocation of VRAM" },
    { free_twice, "was not allocated, or was freed before" },
    { move_host_cursor, "cursor, 8 bytes, is not in one allocation" },
    { copy_unlocked, "not in one piece" },
    { copy_two_pieces, "not in one piece" },
    { change_source, "was changed before the copy ran" },
    { stage_two_pieces, "more than one piece" },
    { lock_twice, "page-locked twice" },
    { unlock_twice, "was not allocated, or was freed before" },
    { write_recording, "while operations are recorded" },
    { play_freed, "not in one allocation of VRAM" },
    { state_twice, "state is read ahead" },
    { lose_rows, "its rows were overwritten" },
    { lose_halves, "its halves were overwritten" },
    { lose_lows, "its lows were overwritten" },
    { change_x, "its x has changed" },
    { embed_nothing, "id 32 of 32" },
    { count_wrongly, "the counter is 1" },
    { choose_nobody, "chose 4 of 4" },
    { hot_nowhere, "expert 0 is at place 65536" },
    { read_early, "not ready" },
    { copy_early, "before its readers are done" },
    { write_stage, "not for operations to write" },
};

/* A gpu and its memory, for one try. */
static gpu *open_one(void)
{
    gpu *g = NULL;
    err_ctx err = { 0 };
    if (!CHECK_MSG(gpu_open(&g, 0, &err) == 0, "%s", err.msg)) exit(test_end());
    room = gpu_alloc(g, ROOM, "a test", &err);
    if (!CHECK_MSG(room && gpu_zero(g, room, ROOM, &err) == 0 && gpu_wait(g, &err) == 0, "%s",
                   err.msg))
        exit(test_end());
    return g;
}

static void close_one(gpu *g)
{
    gpu_free(g, room);
    gpu_close(g);
}

static void test_rows(void)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (int wrong = 0; wrong < 2; wrong++) {
            err_ctx err = { 0 };
            gpu *g = open_one();
            rows[i].run(g, wrong);
            const int rc = gpu_wait(g, &err);
            if (wrong)
                CHECK_MSG(rc < 0 && strstr(err.msg, rows[i].says), "row %zu: %d, \"%s\" instead of "
                          "\"%s\"", i, rc, err.msg, rows[i].says);
            else
                CHECK_MSG(rc == 0, "row %zu: %s", i, err.msg);
            close_one(g);
            CHECK_MSG(sim_gpu_vram_used() == 0 && sim_gpu_locked_pieces() == 0, "row %zu: memory "
                      "is left", i);
        }
}

/* What follows a failure is skipped, and the first one is kept. */
static void test_failure(void)
{
    gpu *g = open_one();
    err_ctx first = { 0 }, again = { 0 };
    gpu_cursor *at = (gpu_cursor *)(void *)room;
    gpu_advance(g, at, 1);
    CHECK(gpu_wait(g, NULL) == 0 && at->pos == 1);
    gpu_advance(g, at + ROOM, 1);
    gpu_advance(g, at, 1);
    CHECK(!gpu_alive(g) && gpu_wait(g, &first) < 0 && at->pos == 1);
    CHECK(gpu_zero(g, at - 1, 1, &again) < 0 && !strcmp(first.msg, again.msg));
    close_one(g);
}

/* How much there is, how much is left, and what is in it. */
static void test_vram(void)
{
    gpu_info info;
    err_ctx err = { 0 };
    float x = 0.0f;
    sim_gpu_set_vram(1 << 20);
    gpu *g = open_one();
    CHECK(gpu_describe(&info, 0, &err) == 0 && info.vram_total == 1 << 20 &&
          info.vram_free == (1 << 20) - ROOM && sim_gpu_vram_used() == ROOM);
    CHECK(!gpu_alloc(g, (1 << 20) - ROOM + 1, "too much", &err) && err.code == ERR_NOMEM &&
          strstr(err.msg, "too much"));
    uint8_t *p = gpu_alloc(g, (1 << 20) - ROOM, "the rest", &err);
    if (CHECK(p != NULL)) {
        CHECK((uintptr_t)p % 256 == 0 && gpu_read(g, &x, p, sizeof x, &err) == 0 && isnan(x));
        CHECK(gpu_describe(&info, 0, &err) == 0 && info.vram_free == 0);
    }
    gpu_free(g, p);
    CHECK(gpu_describe(&info, 0, &err) == 0 && info.vram_free == (1 << 20) - ROOM);
    close_one(g);
    sim_gpu_set_vram((uint64_t)2 << 30);
}

/* Page-locked memory that is refused fails one upload, not the device. */
static void test_upload(void)
{
    gpu *g = open_one();
    const float one = 1.0f;
    float x = 0.0f;
    err_ctx err = { 0 };
    sim_gpu_refuse_locked(1);
    CHECK(gpu_upload(g, room, &one, sizeof one, NULL, NULL, &err) == ERR_NOMEM &&
          strstr(err.msg, "page-locked"));
    CHECK(gpu_wait(g, NULL) == 0 && gpu_upload(g, room, &one, sizeof one, NULL, NULL, NULL) == 0 &&
          gpu_upload_end(g, NULL) == 0);
    CHECK(gpu_read(g, &x, room, sizeof x, NULL) == 0 && x == one);
    close_one(g);
}

/* A question that nobody answers does not keep gpu_close waiting. */
static void test_no_reply(void)
{
    gpu *g = open_one(), *other = NULL;
    gpu_input in;
    gpu_expert_args a;
    gpu_mailbox *mailbox = NULL;
    layer_of(&in, &a);
    if (CHECK(gpu_open(&other, 0, NULL) == 0 &&
              gpu_mailbox_create(&mailbox, g, N, N, 1, NULL) == 0)) {
        const gpu_with_host s = split_of(mailbox, NULL);
        gpu_experts_with_host(other, &in, &a, &s);
        while (__atomic_load_n(&mailbox->asked, __ATOMIC_ACQUIRE) != GPU_CODES) usleep(1000);
        CHECK(gpu_alive(other) && mailbox->n == 1 && mailbox->k == 1 &&
              mailbox->where[0] == GPU_COLD);
        alarm(TOO_LONG_S / 2);
        gpu_close(other);
        alarm(0);
        gpu_mailbox_free(g, mailbox);
    }
    close_one(g);
}

int main(int argc, char **argv)
{
    test_begin("checks", argc, argv);
    CHECK(sim_gpu());
    test_rows();
    test_failure();
    test_vram();
    test_upload();
    test_no_reply();
    return test_end();
}
