/* sim_gpu_stage.c - stages, and links with made-up speeds.
 *
 * The steps and events are those of cuda/upload_stage.cu; a thread of its own does the copies. The
 * calls alone decide when a buffer is ready, so a read or a copy at the wrong time is reported
 * whatever the threads' timing. */
#include "cuda/gpu_measure.h"
#include "tests/sim_gpu_internal.h"

typedef struct stage_buffer {
    uint8_t *data;
    sim_event filled, done;
    bool read;                           /* done was set, and no copy has waited for it yet */
    bool reading;                        /* from ready to done */
    bool readable;                       /* no copy since the last ready */
} stage_buffer;

struct gpu_stage {
    sim_stream copies;
    stage_buffer *buffers;
    int n_buffer;
    int open;                            /* buffer whose last copy has no event after it, or -1 */
    uint64_t bytes;                      /* of a buffer */
};

int gpu_stage_create(gpu_stage **out, gpu *g, int n_buffer, uint64_t bytes, err_ctx *err)
{
    const size_t list_bytes = (size_t)n_buffer * sizeof(stage_buffer);
    gpu_stage *s = mem_zalloc(sizeof *s);
    int rc = ERR_NOMEM;
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "stage: %zu bytes", sizeof *s);
    s->open = -1;
    s->bytes = bytes;
    s->buffers = mem_zalloc(list_bytes);
    if (!s->buffers) {
        err_set(err, ERR_NOMEM, "stage: %zu bytes", list_bytes);
        goto fail;
    }
    s->n_buffer = n_buffer;
    for (int i = 0; i < n_buffer; i++) {
        stage_buffer *b = &s->buffers[i];
        b->data = gpu_alloc(g, bytes, "a buffer for banks of experts", err);
        if (!b->data) goto fail;
        sim_guard_vram(b->data, &b->readable);
    }
    if ((rc = sim_report(g, err)) < 0 || (rc = sim_stream_start(&s->copies, g, err)) < 0) goto fail;
    *out = s;
    return 0;
fail:
    gpu_stage_free(g, s);
    return rc;
}

void gpu_stage_free(gpu *g, gpu_stage *s)
{
    if (!s) return;
    sim_stream_drain(sim_main_stream(g));        /* it may still wait for copies */
    sim_stream_stop(&s->copies);
    for (int i = 0; i < s->n_buffer; i++) gpu_free(g, s->buffers[i].data);
    mem_free(s->buffers);
    mem_free(s);
}

uint8_t *gpu_stage_buffer(const gpu_stage *s, int i) { return s->buffers[i].data; }

/* After the copies to one buffer and before those to another. */
static void close_round(gpu_stage *s)
{
    if (s->open >= 0) sim_event_note(&s->buffers[s->open].filled, &s->copies);
    s->open = -1;
}

typedef struct stage_copy {
    uint8_t *to;
    const void *from;
    size_t bytes;
} stage_copy;

static void run_copy(gpu *g, void *args)
{
    const stage_copy *a = args;
    (void)g;
    memcpy(a->to, a->from, a->bytes);
}

static bool may_copy(gpu *g, const gpu_stage *s, int i, uint64_t offset, uint64_t bytes)
{
    if (offset > s->bytes || bytes > s->bytes - offset)
        sim_fail(g, "stage: copy past the end of a buffer");
    else if (s->buffers[i].reading)
        sim_fail(g, "stage: copy to buffer %d before its readers are done", i);
    if (sim_is_recording(g)) sim_fail(g, "stage: copy while operations are recorded");
    return !sim_failed(g);
}

void gpu_stage_copy(gpu *g, gpu_stage *s, int i, uint64_t offset, const void *from, uint64_t bytes)
{
    stage_buffer *b = &s->buffers[i];
    const bool ok = may_copy(g, s, i, offset, bytes);
    if (s->open != i) close_round(s);
    if (!ok) return;
    if (b->read) sim_event_await(&b->done, &s->copies);
    b->read = b->readable = false;
    for (uint64_t done = 0, n; done < bytes; done += n) {
        const uint8_t *part = (const uint8_t *)from + done;
        n = GPU_LOCK_PIECE - (uint64_t)(uintptr_t)part % GPU_LOCK_PIECE;
        if (n > bytes - done) n = bytes - done;
        if (!sim_in_one_piece(g, part, n) && sim_touches_locked(part, n)) {
            sim_fail(g, "stage: a copy from more than one piece of memory");
            return;
        }
        const stage_copy a = { b->data + offset + done, part, (size_t)n };
        sim_stream_put(&s->copies, sim_op_make("copy to a stage", run_copy, &a, sizeof a));
    }
    s->open = i;
}

void gpu_stage_ready(gpu *g, gpu_stage *s, int i)
{
    if (sim_failed(g)) return;
    if (s->open == i) close_round(s);
    sim_event_await(&s->buffers[i].filled, sim_main_stream(g));
    s->buffers[i].reading = s->buffers[i].readable = true;
}

void gpu_stage_done(gpu *g, gpu_stage *s, int i)
{
    if (sim_failed(g)) return;
    sim_event_note(&s->buffers[i].done, sim_main_stream(g));
    s->buffers[i].read = true;
    s->buffers[i].reading = s->buffers[i].readable = false;
}

int gpu_stage_sent(gpu *g, gpu_stage *s, int i, err_ctx *err)
{
    if (s->open == i) close_round(s);
    if (!sim_failed(g)) {
        sim_event_wait(&s->buffers[i].filled, g);
        s->buffers[i].readable = true;
    }
    return sim_failed(g) ? gpu_wait(g, err) : 0;
}

/* ---- links ----------------------------------------------------------------------------------- */

static const gpu_links said = { .vram_read = 1e12, .pcie_in = 2e10, .pcie_out = 2e10,
                                .pull = 2e10, .hop = 1e-5 };

int gpu_multiply_peak(double *macs_per_s, gpu *g, err_ctx *err)
{
    *macs_per_s = 1e9;
    return sim_report(g, err);
}

int gpu_read_bandwidth(double *bytes_per_s, gpu *g, err_ctx *err)
{
    *bytes_per_s = said.vram_read;
    return gpu_wait(g, err);
}

int gpu_throttle_begin(gpu *g, double share, gpu_throttled *out, err_ctx *err)
{
    gpu_info info;
    const int rc = gpu_describe(&info, 0, err);
    if (rc < 0) return rc;
    const int n = sim_sms(&info);
    if (share < 1 && n == info.n_sm)
        return err_set(err, ERR_UNSUPPORTED, "a smaller card: all %d multiprocessors are in use, "
                       "and none is left to read", n);
    *out = (gpu_throttled){ n, info.n_sm, share * said.vram_read, said.vram_read };
    return gpu_wait(g, err);
}

int gpu_throttle_end(gpu *g, err_ctx *err) { return gpu_wait(g, err); }

int gpu_measure_links(gpu_links *out, gpu *g, err_ctx *err)
{
    *out = said;
    return gpu_wait(g, err);
}

struct gpu_load { double rate; };

int gpu_load_begin(gpu_load **out, gpu *g, const void *ram, uint64_t bytes, err_ctx *err)
{
    *out = NULL;
    if (bytes < GPU_LOAD_LEAST || !sim_is_reachable(g, ram, bytes)) {
        sim_fail(g, "load: %llu bytes, which must be page-locked", (unsigned long long)bytes);
        return sim_report(g, err);
    }
    gpu_load *l = mem_zalloc(sizeof *l);
    if (!l) return err_set(err, ERR_NOMEM, "load: %zu bytes", sizeof *l);
    l->rate = said.pull;
    *out = l;
    return 0;
}

int gpu_load_end(gpu_load *l, double *bytes_per_s, err_ctx *err)
{
    (void)err;
    *bytes_per_s = l ? l->rate : 0.0;
    mem_free(l);
    return 0;
}
