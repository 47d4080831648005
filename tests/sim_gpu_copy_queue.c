/* sim_gpu_copy_queue.c - copies of experts: those of a queue by a thread of its own, those within
 * the stream, and events. */
#include "tests/sim_gpu_internal.h"

/* ---- marks ----------------------------------------------------------------------------------- */

struct gpu_events {
    sim_event *events;
    int n;
};

int gpu_events_create(gpu_events **out, gpu *g, int n, err_ctx *err)
{
    gpu_events *m = mem_zalloc(sizeof *m);
    (void)g;
    *out = NULL;
    if (m) m->events = mem_zalloc((size_t)n * sizeof *m->events);
    if (!m || !m->events) {
        mem_free(m);
        return err_set(err, ERR_NOMEM, "%d marks", n);
    }
    m->n = n;
    *out = m;
    return 0;
}

void gpu_events_free(gpu_events *m)
{
    if (!m) return;
    mem_free(m->events);
    mem_free(m);
}

void gpu_events_record(gpu *g, gpu_events *m, int i)
{
    if (!sim_failed(g)) sim_event_note(&m->events[i], sim_main_stream(g));
}

int gpu_events_wait(gpu *g, gpu_events *m, int i, err_ctx *err)
{
    if (!sim_failed(g)) sim_event_wait(&m->events[i], g);
    return sim_failed(g) ? gpu_wait(g, err) : 0;
}

/* ---- parallel to the stream ------------------------------------------------------------------ */

struct gpu_copy_queue {
    sim_stream copies;
    gpu_events *marks;
};

int gpu_copy_queue_create(gpu_copy_queue **out, gpu *g, int n_mark, err_ctx *err)
{
    gpu_copy_queue *m = mem_zalloc(sizeof *m);
    int rc;
    *out = NULL;
    if (!m) return err_set(err, ERR_NOMEM, "mover: %zu bytes", sizeof *m);
    if ((rc = gpu_events_create(&m->marks, g, n_mark, err)) < 0 ||
        (rc = sim_stream_start(&m->copies, g, err)) < 0) {
        gpu_copy_queue_free(g, m);
        return rc;
    }
    *out = m;
    return 0;
}

void gpu_copy_queue_free(gpu *g, gpu_copy_queue *m)
{
    (void)g;
    if (!m) return;
    sim_stream_stop(&m->copies);
    gpu_events_free(m->marks);
    mem_free(m);
}

typedef struct copy_args {
    void *to;
    const void *from;
    uint64_t bytes;
} copy_args;

static void run_copy(gpu *g, void *args)
{
    const copy_args *a = args;
    (void)g;
    memcpy(a->to, a->from, (size_t)a->bytes);
}

static void put_copy(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes)
{
    const copy_args a = { to, from, bytes };
    if (sim_is_recording(g)) sim_fail(g, "mover: copy while operations are recorded");
    if (!sim_failed(g))
        sim_stream_put(&m->copies, sim_op_make("copy of an expert", run_copy, &a, sizeof a));
}

void gpu_copy_queue_copy(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes)
{
    if (!sim_in_vram(g, to, bytes) || !sim_is_reachable(g, from, bytes))
        sim_fail(g, "mover: a copy that is not from page-locked RAM to VRAM");
    put_copy(g, m, to, from, bytes);
}

void gpu_copy_queue_save(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes)
{
    if (!sim_in_vram(g, from, bytes) || sim_in_vram(g, to, bytes) ||
        !sim_is_reachable(g, to, bytes))
        sim_fail(g, "mover: a copy that is not from VRAM to page-locked RAM");
    put_copy(g, m, to, from, bytes);
}

void gpu_copy_queue_record(gpu *g, gpu_copy_queue *m, int i)
{
    if (!sim_failed(g)) sim_event_note(&m->marks->events[i], &m->copies);
}

int gpu_copy_queue_passed(gpu *g, gpu_copy_queue *m, int i, err_ctx *err)
{
    if (sim_failed(g)) return gpu_wait(g, err);
    return sim_event_reached(&m->marks->events[i], g);
}

/* ---- in the stream --------------------------------------------------------------------------- */

typedef struct moves_args {
    const gpu_move *jobs;
    int n;
} moves_args;

static void run_moves(gpu *g, void *args)
{
    const moves_args *a = args;
    for (int i = 0; i < a->n; i++) {
        const gpu_move j = a->jobs[i];
        if (!sim_in_vram(g, (void *)(uintptr_t)j.to, j.bytes) ||
            !sim_in_vram(g, (void *)(uintptr_t)j.from, j.bytes)) {
            sim_fail(g, "move: job %d is not within VRAM", i);
            return;
        }
        memcpy((void *)(uintptr_t)j.to, (const void *)(uintptr_t)j.from, (size_t)j.bytes);
    }
}

void gpu_moves(gpu *g, const gpu_move *jobs, int n)
{
    if (n == 0) return;
    const moves_args a = { jobs, n };
    sim_call c = sim_begin(g, "move experts");
    sim_reads_any(&c, "jobs", jobs, (uint64_t)n * sizeof *jobs);
    sim_end(&c, run_moves, &a, sizeof a);
}
