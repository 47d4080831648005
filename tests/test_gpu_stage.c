/* test_gpu_stage.c - stages, copy queues, page-locked memory of the caller, and measured links.
 *
 * Stages are tested by the bytes that arrive. Readers are late, so a copy that does not wait for
 * them overwrites their data; copies are long, so a reader that does not wait finds the previous
 * round. Speeds only have to be numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/gpu_experts.h"
#include "cuda/gpu_measure.h"
#include "tests/gpu_fixture.h"
#include "tests/sim_gpu.h"

/* ---- stages ---------------------------------------------------------------------------------- */

typedef struct stage_case {
    int n_buffer, rounds, pieces;        /* a round is copied in this many pieces */
    uint64_t bytes;
    int late;                            /* copies within VRAM before every reader */
    bool ahead;                          /* copies to all other buffers are asked for before the
                                          * readers of one */
    bool refill;                         /* a source is filled again once it was sent */
    const char *why;
} stage_case;

/* Of a copy that makes readers late: takes far longer than a round of a megabyte. A simulated GPU
 * does not depend on who is late. */
static size_t idle_bytes(void) { return sim_gpu() ? 1 << 16 : 16 << 20; }

static const stage_case stages[] = {
    { 2, 8, 1, 1 << 20, 0, true, true, "plain" },
    { 2, 8, 7, (1 << 20) + 52, 0, true, true, "ragged pieces" },
    { 2, 8, 3, 1 << 20, 24, true, false, "late readers" },
    { 3, 8, 1, 1 << 20, 24, true, false, "late readers of three" },
    { 1, 5, 2, 1 << 20, 24, false, false, "late readers of one" },
    { 2, 6, 1, 32 << 20, 0, false, false, "long copies" },
    { 2, 4, 1, 4, 0, true, true, "a word" },
};

static uint8_t pattern(int round, uint64_t at)
{
    return (uint8_t)((uint32_t)(at * 2654435761u >> 7) + (uint32_t)round * 37u);
}

static void fill_round(uint8_t *to, uint64_t bytes, int round)
{
    for (uint64_t i = 0; i < bytes; i++) to[i] = pattern(round, i);
}

/* Pieces in descending order: a piece's offset is not the amount copied before it. */
static void copy_round(const stage_case *c, gpu_stage *s, int round, const uint8_t *from)
{
    const uint64_t each = c->bytes / (uint64_t)c->pieces;
    for (int p = c->pieces - 1; p >= 0; p--) {
        const uint64_t at = (uint64_t)p * each;
        const uint64_t n = p == c->pieces - 1 ? c->bytes - at : each;
        gpu_stage_copy(device(), s, round % c->n_buffer, at, from + at, n);
    }
}

static void read_round(const stage_case *c, gpu_stage *s, int round, uint8_t *to, uint8_t *idle)
{
    const int i = round % c->n_buffer;
    gpu_stage_ready(device(), s, i);
    for (int l = 0; l < c->late; l++) gpu_copy(device(), idle + idle_bytes(), idle, idle_bytes());
    gpu_copy(device(), to, gpu_stage_buffer(s, i), c->bytes);
    gpu_stage_done(device(), s, i);
}

/* Page-locked, or NULL after a failed check. */
static uint8_t *locked_room(uint64_t bytes)
{
    err_ctx err = { 0 };
    uint8_t *p = gpu_alloc_host(device(), bytes, &err);
    expect(p != NULL, "%s", err.msg);
    return p;
}

static void check_stage(const stage_case *c)
{
    err_ctx err = { 0 };
    const uint64_t all = c->bytes * (uint64_t)c->rounds;
    const int n_source = c->refill ? c->n_buffer : c->rounds;
    uint8_t *from = locked_room(c->bytes * (uint64_t)n_source);
    uint8_t *got = vram_room((size_t)all), *idle = vram_room(2 * idle_bytes());
    uint8_t *back = host_room((size_t)all, 1), *want = host_room((size_t)all, 1);
    gpu_stage *s = NULL;
    for (int round = 0; round < c->rounds; round++)
        fill_round(want + c->bytes * (uint64_t)round, c->bytes, round);
    if (!from || !expect(gpu_stage_create(&s, device(), c->n_buffer, c->bytes, &err) == 0, "%s",
                         err.msg))
        goto end;
    if (!c->refill) memcpy(from, want, (size_t)all);
    const int ahead = c->ahead ? c->n_buffer - 1 : 0;
    for (int round = 0; round < c->rounds + ahead; round++) {
        uint8_t *own = from + c->bytes * (uint64_t)(round % n_source);
        const int now = round - ahead;
        if (round < c->rounds && c->refill) {
            expect(gpu_stage_sent(device(), s, round % c->n_buffer, &err) == 0, "%s", err.msg);
            memcpy(own, want + c->bytes * (uint64_t)round, (size_t)c->bytes);
        }
        if (round < c->rounds) copy_round(c, s, round, own);
        if (now >= 0) read_round(c, s, now, got + c->bytes * (uint64_t)now, idle);
    }
    expect(gpu_wait(device(), &err) == 0, "%s", err.msg);
    vram_read(back, got, (size_t)all);
    expect_bytes("rounds", back, want, (size_t)all);
end:
    gpu_stage_free(device(), s);
    gpu_free_host(device(), from);
}

/* Readers in another order than copies, and a copy to one buffer before the other is read. */
static void check_order(void)
{
    err_ctx err = { 0 };
    enum { BYTES = 4096 };
    uint8_t *from = locked_room(3 * BYTES);
    uint8_t *got = vram_room(2 * BYTES), back[2 * BYTES], want[2 * BYTES];
    gpu_stage *s = NULL;
    if (!from || !expect(gpu_stage_create(&s, device(), 2, BYTES, &err) == 0, "%s", err.msg))
        goto end;
    for (int i = 0; i < 3; i++) fill_round(from + i * BYTES, BYTES, i);
    for (int i = 0; i < 2; i++) fill_round(want + i * BYTES, BYTES, i);
    gpu_stage_copy(device(), s, 0, 0, from, BYTES);
    gpu_stage_copy(device(), s, 1, 0, from + BYTES, BYTES);
    gpu_stage_ready(device(), s, 1);
    gpu_copy(device(), got + BYTES, gpu_stage_buffer(s, 1), BYTES);
    gpu_stage_done(device(), s, 1);
    gpu_stage_copy(device(), s, 1, 0, from + 2 * BYTES, BYTES);
    gpu_stage_ready(device(), s, 0);
    gpu_copy(device(), got, gpu_stage_buffer(s, 0), BYTES);
    gpu_stage_done(device(), s, 0);
    vram_read(back, got, sizeof back);
    expect_bytes("both", back, want, sizeof back);
    expect(gpu_stage_sent(device(), s, 1, &err) == 0, "%s", err.msg);
    vram_read(back, gpu_stage_buffer(s, 1), BYTES);
    expect_bytes("the third", back, from + 2 * BYTES, BYTES);
end:
    gpu_stage_free(device(), s);
    gpu_free_host(device(), from);
}

static void test_stages(void)
{
    family("stages");
    for (size_t i = 0; i < ARRAY_LEN(stages); i++) {
        const stage_case *c = &stages[i];
        if (sim_gpu() && c->bytes > 1 << 24) continue;
        case_begin("%d buffers of %llu bytes, %d rounds of %d pieces: %s", c->n_buffer,
                   (unsigned long long)c->bytes, c->rounds, c->pieces, c->why);
        check_stage(c);
        case_end();
    }
    case_begin("order");
    check_order();
    case_end();
}

/* A copy past the end fails, and everything after it is skipped; so does memory that is not
 * there. */
static void test_stage_refused(void)
{
    static const struct { uint64_t offset, bytes; } bad[] = {
        { 0, 257 }, { 256, 1 }, { 300, 0 }, { 128, UINT64_MAX }, { UINT64_MAX, 2 },
    };
    family("stages, refused");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        gpu *other = NULL;
        gpu_stage *s = NULL;
        err_ctx err = { 0 };
        case_begin("%llu bytes at %llu of 256", (unsigned long long)bad[i].bytes,
                   (unsigned long long)bad[i].offset);
        uint8_t *from = locked_room(512);
        if (from && expect(gpu_open(&other, 0, &err) == 0, "%s", err.msg)) {
            if (expect(gpu_stage_create(&s, other, 2, 256, &err) == 0, "%s", err.msg)) {
                gpu_stage_copy(other, s, 1, bad[i].offset, from, bad[i].bytes);
                gpu_stage_ready(other, s, 1);
                gpu_stage_done(other, s, 1);
                expect(gpu_stage_sent(other, s, 1, &err) < 0, "not refused");
                expect(gpu_wait(other, NULL) < 0, "forgotten");
            }
            gpu_stage_free(other, s);
            gpu_close(other);
        }
        gpu_free_host(device(), from);
        case_end();
    }
    case_begin("no memory");
    for (long n = 1; n <= 2; n++) {
        gpu_stage *s = (gpu_stage *)&s;
        err_ctx err = { 0 };
        mem_fail_after(n);
        const int rc = gpu_stage_create(&s, device(), 2, 4096, &err);
        mem_fail_after(0);
        expect(rc == ERR_NOMEM && !s, "allocation %ld: %d", n, rc);
    }
    gpu_stage *s = NULL;
    err_ctx err = { 0 };
    expect(gpu_stage_create(&s, device(), 2, (uint64_t)1 << 50, &err) == ERR_NOMEM && !s,
           "a petabyte");
    gpu_stage_free(device(), NULL);
    expect(gpu_wait(device(), &err) == 0, "%s", err.msg);
    case_end();
}

/* ---- experts that change places -------------------------------------------------------------- */

/* Bytes at addresses of every kind; more than one turn of all threads, and nothing at all. */
static const struct { uint64_t to, from, bytes; } moves[] = {
    { 0, 0, 16 }, { 256, 512, 300000 }, { 400000, 400016, 65536 }, { 500000, 500001, 5000 },
    { 510001, 510000, 16 }, { 520008, 520008, 32 }, { 530000, 530000, 0 }, { 540003, 540005, 1 },
    { 550000, 550016, 31 }, { 560000, 560000, 131072 + 15 },
};
enum { MOVES_BYTES = 700000 };

/* Played from a recording, with other jobs each time. */
static void check_moves(int rounds, test_rng *rng)
{
    const int n = (int)ARRAY_LEN(moves);
    gpu_move *jobs = (gpu_move *)locked_room((uint64_t)n * sizeof *jobs);
    uint8_t *image = host_room(MOVES_BYTES, 1), *want = host_room(MOVES_BYTES, 1);
    uint8_t *got = host_room(MOVES_BYTES, 1);
    gpu_recording *r = NULL;
    err_ctx err = { 0 };
    test_fill(rng, image, MOVES_BYTES);
    uint8_t *from = vram_copy(image, MOVES_BYTES), *to = vram_room(MOVES_BYTES);
    int rc = gpu_recording_create(&r, &err);
    if (rc == 0) rc = gpu_record_begin(device(), &err);
    if (rc == 0) gpu_moves(device(), jobs, n);
    if (rc == 0) rc = gpu_record_end(r, device(), &err);
    if (!jobs || !expect(rc == 0, "%s", err.msg)) goto end;
    for (int round = 0; round <= rounds; round++) {
        const int skip = round;          /* jobs of no bytes, others in another order */
        memset(want, 0xFF, MOVES_BYTES);
        vram_write(to, want, MOVES_BYTES);
        for (int i = 0; i < n; i++) {
            const uint64_t bytes = i < skip ? 0 : moves[i].bytes;
            jobs[(i + round) % n] = (gpu_move){ (uint64_t)(uintptr_t)(to + moves[i].to),
                                                (uint64_t)(uintptr_t)(from + moves[i].from),
                                                bytes };
            memcpy(want + moves[i].to, image + moves[i].from, (size_t)bytes);
        }
        if (round == 0) gpu_moves(device(), jobs, n);
        else gpu_replay(device(), r);
        gpu_moves(device(), jobs, 0);
        vram_read(got, to, MOVES_BYTES);
        expect_bytes("moved", got, want, MOVES_BYTES);
    }
end:
    gpu_recording_free(r);
    gpu_free_host(device(), jobs);
}

enum { MOVER_BYTES = 3 << 20, MOVER_ROUNDS = 6 };

/* 0 after a counted failure. */
static int await_mark(gpu_copy_queue *m, int i)
{
    err_ctx err = { 0 };
    int rc = 0;
    while (rc == 0) rc = gpu_copy_queue_passed(device(), m, i, &err);
    return expect(rc == 1, "%s", err.msg);
}

/* Copies parallel to a stream that is busy: what has passed its mark is there for the next
 * operation, and the source may be filled again, as by a copy back, which the host reads. Marks of
 * the stream say the same of its own copies. */
static void check_mover(void)
{
    uint8_t *from = locked_room(2 * MOVER_BYTES);
    uint8_t *vram = vram_room(2 * MOVER_BYTES), *idle = vram_room(2 * idle_bytes());
    uint8_t *got = vram_room((size_t)MOVER_BYTES * MOVER_ROUNDS);
    uint8_t *back = host_room(MOVER_BYTES, MOVER_ROUNDS);
    uint8_t *want = host_room(MOVER_BYTES, MOVER_ROUNDS);
    gpu_copy_queue *m = NULL;
    gpu_events *read = NULL;
    err_ctx err = { 0 };
    if (!from || !expect(gpu_copy_queue_create(&m, device(), 2, &err) == 0 &&
                         gpu_events_create(&read, device(), 2, &err) == 0, "%s", err.msg))
        goto end;
    expect(gpu_copy_queue_passed(device(), m, 1, &err) == 1, "a mark that was never set");
    expect(gpu_events_wait(device(), read, 1, &err) == 0, "%s", err.msg);
    for (int round = 0; round < MOVER_ROUNDS; round++) {
        const size_t at = (size_t)MOVER_BYTES * (size_t)round;
        uint8_t *own = from + round % 2 * MOVER_BYTES, *place = vram + round % 2 * MOVER_BYTES;
        fill_round(want + at, MOVER_BYTES, round);
        /* no operation reads the target any more */
        expect(gpu_events_wait(device(), read, round % 2, &err) == 0, "%s", err.msg);
        memcpy(own, want + at, MOVER_BYTES);
        for (int l = 0; l < 8; l++) gpu_copy(device(), idle + idle_bytes(), idle, idle_bytes());
        gpu_copy_queue_copy(device(), m, place, own, 1);
        gpu_copy_queue_copy(device(), m, place + 1, own + 1, MOVER_BYTES - 1);
        gpu_copy_queue_copy(device(), m, place, own, 0);
        gpu_copy_queue_record(device(), m, round % 2);
        if (!await_mark(m, round % 2)) goto end;
        memset(own, 0xFF, MOVER_BYTES);
        gpu_copy(device(), got + at, place, MOVER_BYTES);
        gpu_events_record(device(), read, round % 2);
        gpu_copy_queue_save(device(), m, own, place, 1);
        gpu_copy_queue_save(device(), m, own + 1, place + 1, MOVER_BYTES - 1);
        gpu_copy_queue_record(device(), m, round % 2);
        if (!await_mark(m, round % 2)) goto end;
        expect_bytes("saved", own, want + at, MOVER_BYTES);
    }
    vram_read(back, got, (size_t)MOVER_BYTES * MOVER_ROUNDS);
    expect_bytes("rounds", back, want, (size_t)MOVER_BYTES * MOVER_ROUNDS);
end:
    gpu_events_free(read);
    gpu_copy_queue_free(device(), m);
    gpu_free_host(device(), from);
}

/* Memory around an address where a locked piece ends and the next begins: both copies are cut. */
static void check_pieces(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), half = 4 * page, room = 2 * GPU_LOCK_PIECE;
    uint8_t *all = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *vram = vram_room(2 * half), *back = host_room(2 * half, 1);
    uint8_t *want = host_room(2 * half, 1);
    gpu_copy_queue *m = NULL;
    gpu_stage *s = NULL;
    err_ctx err = { 0 };
    if (!expect(all != MAP_FAILED, "no address space")) return;
    uint8_t *end = all + half + GPU_LOCK_PIECE - 1;
    end -= (uintptr_t)end % GPU_LOCK_PIECE;
    uint8_t *from = end - half;
    bool locked = mprotect(from, 2 * half, PROT_READ | PROT_WRITE) == 0;
    if (locked) fill_round(from, 2 * half, 1);
    locked = expect(locked && gpu_lock(device(), from, half, &err) == 0, "%s", err.msg);
    if (locked && expect(gpu_lock(device(), end, half, &err) == 0, "%s", err.msg)) {
        memcpy(want, from, 2 * half);
        if (expect(gpu_copy_queue_create(&m, device(), 1, &err) == 0, "%s", err.msg)) {
            gpu_copy_queue_copy(device(), m, vram, from, 2 * half);
            gpu_copy_queue_record(device(), m, 0);
            await_mark(m, 0);
            vram_read(back, vram, 2 * half);
            expect_bytes("moved", back, want, 2 * half);
            memset(from, 0, 2 * half);
            gpu_copy_queue_save(device(), m, from, vram, 2 * half);
            gpu_copy_queue_record(device(), m, 0);
            await_mark(m, 0);
            expect_bytes("saved", from, want, 2 * half);
        }
        if (expect(gpu_stage_create(&s, device(), 2, 2 * half, &err) == 0, "%s", err.msg)) {
            gpu_stage_copy(device(), s, 0, 0, from, 2 * half);
            expect(gpu_stage_sent(device(), s, 0, &err) == 0, "%s", err.msg);
            vram_read(back, gpu_stage_buffer(s, 0), 2 * half);
            expect_bytes("staged", back, want, 2 * half);
        }
        gpu_stage_free(device(), s);
        gpu_copy_queue_free(device(), m);
        gpu_unlock(device(), end);
    }
    if (locked) gpu_unlock(device(), from);
    munmap(all, room);
}

static void test_movers(void)
{
    test_rng rng = { 23 };
    family("moves");
    case_begin("%d jobs", (int)ARRAY_LEN(moves));
    check_moves((int)ARRAY_LEN(moves), &rng);
    case_end();

    family("movers");
    case_begin("%d rounds", (int)MOVER_ROUNDS);
    check_mover();
    case_end();

    case_begin("two locked pieces");
    check_pieces();
    case_end();

    case_begin("no memory");
    for (long n = 1; n <= 3; n++) {
        gpu_copy_queue *m = (gpu_copy_queue *)&m;
        err_ctx err = { 0 };
        mem_fail_after(n);
        const int rc = gpu_copy_queue_create(&m, device(), 2, &err);
        mem_fail_after(0);
        expect(rc == ERR_NOMEM && !m, "allocation %ld: %d", n, rc);
    }
    gpu_copy_queue_free(device(), NULL);
    gpu_events_free(NULL);
    expect(gpu_wait(device(), NULL) == 0, "a refusal lasts");
    case_end();
}

/* ---- page-locked memory of the caller's ------------------------------------------------------ */

static void test_lock(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 64 * page;
    err_ctx err = { 0 };
    family("page-locking");
    case_begin("%zu bytes", bytes);
    uint8_t *p = aligned_alloc(page, bytes), *back = host_room(bytes, 1);
    uint8_t *vram = vram_room(bytes);
    if (expect(p != NULL, "no memory"))
        for (int round = 0; round < 3; round++) {
            fill_round(p, bytes, round);
            if (!expect(gpu_lock(device(), p, bytes, &err) == 0, "%s", err.msg)) break;
            gpu_copy(device(), vram, p, bytes);
            vram_read(back, vram, bytes);
            expect_bytes("copy", back, p, bytes);
            gpu_unlock(device(), p);
        }
    free(p);
    gpu_unlock(device(), NULL);
    case_end();

    case_begin("what is not there");     /* and the device goes on */
    expect(gpu_lock(device(), (void *)page, (uint64_t)1 << 46, &err) == ERR_NOMEM, "not refused");
    expect(strstr(err.msg, "page-locked") && !strchr(err.msg, '\n'), "\"%s\"", err.msg);
    expect(gpu_wait(device(), &err) == 0, "%s", err.msg);
    vram_write(vram_room(16), "0123456789abcdef", 16);
    case_end();
}

/* ---- links ----------------------------------------------------------------------------------- */

static void test_links(void)
{
    gpu_links links;
    gpu_load *load = NULL;
    double rate = -1.0;
    err_ctx err = { 0 };
    family("links");
    case_begin("each alone");
    if (expect(gpu_measure_links(&links, device(), &err) == 0, "%s", err.msg)) {
        const struct { const char *name; double v, least, most; } figures[] = {
            { "vram_read", links.vram_read, 1e6, 1e15 }, { "pcie_in", links.pcie_in, 1e6, 1e15 },
            { "pcie_out", links.pcie_out, 1e6, 1e15 }, { "pull", links.pull, 1e6, 1e15 },
            { "hop", links.hop, 1e-9, 1.0 },
        };
        for (size_t i = 0; i < ARRAY_LEN(figures); i++)
            expect(figures[i].v > figures[i].least && figures[i].v < figures[i].most, "%s is %g",
                   figures[i].name, figures[i].v);
    }
    case_end();

    case_begin("under load");
    void *ram = gpu_alloc_host(device(), GPU_LOAD_LEAST, &err);
    expect(ram != NULL, "%s", err.msg);
    if (expect(gpu_load_begin(&load, device(), ram, GPU_LOAD_LEAST, &err) == 0, "%s", err.msg))
        expect(gpu_load_end(load, &rate, &err) == 0, "%s", err.msg);
    expect(isfinite(rate) && rate > 0.0, "rate is %g", rate);
    mem_fail_after(1);
    expect(gpu_load_begin(&load, device(), ram, GPU_LOAD_LEAST, &err) == ERR_NOMEM && !load,
           "no memory");
    mem_fail_after(0);
    expect(gpu_load_end(NULL, &rate, &err) == 0 && rate == 0.0, "nothing to end");
    gpu_free_host(device(), ram);
    case_end();
}

int main(int argc, char **argv)
{
    test_begin("gpu stage", argc, argv);
    if (device_open()) {
        test_stages();
        test_stage_refused();
        test_movers();
        test_lock();
        test_links();
        device_close();
    }
    return test_end();
}
