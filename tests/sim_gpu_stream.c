/* sim_gpu_stream.c - streams: threads that run operations in the order of the calls, and what is
 * made of that: recordings, events, waiting, copies, profiles.
 *
 * The caller's thread puts operations into a queue; the stream's thread runs them. After a failure
 * operations are skipped, but events are not, so a wait for one ends. */
#include "cuda/gpu_measure.h"
#include "tests/sim_gpu_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_SPANS = 4096, UPLOAD_BYTES = 1 << 20, MOST_HASHED = 4096, HOST_LIMIT_S = 20 };

typedef struct op_list {                 /* of a recording; may still be played when that is gone */
    sim_op *first, **last;
    _Atomic int users;
} op_list;

struct gpu_recording {
    op_list *ops;                        /* NULL: nothing is on it */
    uint64_t bytes;                      /* of VRAM */
    int device;
};

struct gpu {
    int device;
    pthread_mutex_t lock;
    pthread_cond_t changed;              /* a queue, an event or a count of operations done */
    sim_stream stream;
    _Atomic bool failed, closing;
    err_ctx failure;                     /* guarded by lock */
    _Atomic uint64_t limit_ns;           /* of a wait for the host */
    _Atomic bool host_late;

    /* the caller's thread alone */
    op_list *recording;                  /* NULL: operations run */
    sim_claim before[SIM_MAX_CLAIMS];    /* of the operation that was put last */
    int n_before;
    uint8_t *upload;
    struct sim_late *late;               /* reads that are not ended */
    int n_recovery;
    bool profiling;
    int n_span;
    bool awaited;                        /* guarded by lock: a lazy stream runs */

    gpu_span spans[MAX_SPANS];           /* the stream's thread, or the caller's after a wait */
};

static _Atomic bool lazy;

void sim_gpu_lazy(bool on) { atomic_store(&lazy, on); }

sim_stream *sim_main_stream(gpu *g) { return &g->stream; }
int sim_device(const gpu *g) { return g->device; }
bool sim_is_recording(const gpu *g) { return g->recording != NULL; }
bool sim_is_closing(const gpu *g) { return atomic_load(&g->closing); }
bool sim_failed(const gpu *g) { return atomic_load(&g->failed); }

void sim_fail(gpu *g, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&g->lock);
    if (!atomic_load(&g->failed)) {
        err_set(&g->failure, ERR_IO, "GPU %d: %s", g->device, text);
        atomic_store(&g->failed, true);
    }
    pthread_mutex_unlock(&g->lock);
}

bool sim_host_is_late(gpu *g, uint64_t begun)
{
    if (clock_ns() - begun >= atomic_load(&g->limit_ns)) atomic_store(&g->host_late, true);
    return atomic_load(&g->host_late);
}

void gpu_set_host_limit(gpu *g, uint64_t limit_ns) { atomic_store(&g->limit_ns, limit_ns); }

void gpu_recover(gpu *g)
{
    sim_stream_drain(&g->stream);
    g->n_recovery += atomic_exchange(&g->host_late, false);
}

int gpu_recoveries(const gpu *g) { return g->n_recovery; }

int sim_report(gpu *g, err_ctx *err)
{
    if (!sim_failed(g)) return 0;
    pthread_mutex_lock(&g->lock);
    const err_ctx first = g->failure;
    pthread_mutex_unlock(&g->lock);
    if (err) *err = first;
    return first.code;
}

/* ---- operations ------------------------------------------------------------------------------ */

static size_t aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

/* One block: the operation, its claims, its arguments. */
static sim_op *make_op(const char *name, sim_fn *run, const void *args, size_t arg_bytes,
                       const sim_claim *claims, int n_claim)
{
    const size_t head = aligned(sizeof(sim_op)), list = (size_t)n_claim * sizeof *claims;
    uint8_t *p = sim_room(head + aligned(list) + arg_bytes, 1);
    sim_op *op = (sim_op *)(void *)p;
    *op = (sim_op){ .name = name, .run = run, .span = -1, .n_claim = n_claim };
    op->claims = (sim_claim *)(void *)(p + head);
    op->args = p + head + aligned(list);
    if (n_claim > 0) memcpy(op->claims, claims, list);
    if (arg_bytes > 0) memcpy(op->args, args, arg_bytes);
    return op;
}

sim_op *sim_op_make(const char *name, sim_fn *run, const void *args, size_t arg_bytes)
{
    return make_op(name, run, args, arg_bytes, NULL, 0);
}

static void run_op(gpu *g, sim_op *op)
{
    const uint64_t from = op->span >= 0 ? clock_ns() : 0;
    if (!op->always && sim_failed(g)) return;
    op->run(g, op->args);
    if (op->span >= 0)
        g->spans[op->span] = (gpu_span){ op->name, op->bytes, from, from, clock_ns() };
}

/* Called with the lock held. */
static bool may_run(const sim_stream *s)
{
    return s->first && (!atomic_load(&lazy) || s->g->awaited || s != &s->g->stream);
}

static void *stream_main(void *ctx)
{
    sim_stream *s = ctx;
    gpu *g = s->g;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        while (!may_run(s) && !s->quit) pthread_cond_wait(&g->changed, &g->lock);
        sim_op *op = s->first;
        if (!op) break;
        s->first = op->next;
        if (!s->first) s->last = &s->first;
        pthread_mutex_unlock(&g->lock);
        run_op(g, op);
        free(op);
        pthread_mutex_lock(&g->lock);
        s->n_done++;
        if (!s->first) pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

int sim_stream_start(sim_stream *s, gpu *g, err_ctx *err)
{
    s->g = g;
    s->last = &s->first;
    if (pthread_create(&s->thread, NULL, stream_main, s) != 0)
        return err_set(err, ERR_NOMEM, "GPU 0: no thread for a stream");
    s->started = true;
    return 0;
}

void sim_stream_stop(sim_stream *s)
{
    if (!s->started) return;
    pthread_mutex_lock(&s->g->lock);
    s->quit = true;
    pthread_cond_broadcast(&s->g->changed);
    pthread_mutex_unlock(&s->g->lock);
    pthread_join(s->thread, NULL);
    s->started = false;
}

void sim_stream_put(sim_stream *s, sim_op *op)
{
    pthread_mutex_lock(&s->g->lock);
    op->next = NULL;
    *s->last = op;
    s->last = &op->next;
    s->n_put++;
    pthread_cond_broadcast(&s->g->changed);
    pthread_mutex_unlock(&s->g->lock);
}

void sim_stream_drain(sim_stream *s)
{
    pthread_mutex_lock(&s->g->lock);
    s->g->awaited = true;
    pthread_cond_broadcast(&s->g->changed);
    while (s->n_done != s->n_put) pthread_cond_wait(&s->g->changed, &s->g->lock);
    s->g->awaited = false;
    pthread_mutex_unlock(&s->g->lock);
}

/* ---- claims ---------------------------------------------------------------------------------- */

static bool overlap(const sim_claim *a, const sim_claim *b)
{
    const uintptr_t p = (uintptr_t)a->at, q = (uintptr_t)b->at;
    return p < q + b->bytes && q < p + a->bytes;
}

/* Whether the operation may run now. Its writes are kept for the next one. */
static bool admit(gpu *g, const sim_op *op)
{
    for (int i = 0; i < op->n_claim; i++) {
        const sim_claim *c = &op->claims[i];
        if (c->any ? !sim_is_reachable(g, c->at, c->bytes) : !sim_in_vram(g, c->at, c->bytes))
            sim_fail(g, "%s: %s, %llu bytes, is not %s", op->name, c->what,
                     (unsigned long long)c->bytes, c->any ? "in memory of the device's"
                                                          : "in one allocation of VRAM");
        else if (!sim_may_use(c->at, c->use == SIM_WRITE))
            sim_fail(g, "%s: %s is in a buffer of a stage that is not %s", op->name, c->what,
                     c->use == SIM_WRITE ? "for operations to write" : "ready");
        for (int k = 0; k < g->n_before && c->use == SIM_AHEAD; k++)
            if (g->before[k].use == SIM_WRITE && overlap(c, &g->before[k]))
                sim_fail(g, "%s: %s is read ahead, and the operation before writes it (%s)",
                         op->name, c->what, g->before[k].what);
    }
    if (op->n_claim > 0) memcpy(g->before, op->claims, (size_t)op->n_claim * sizeof *op->claims);
    g->n_before = op->n_claim;
    return !sim_failed(g);
}

sim_call sim_begin(gpu *g, const char *name)
{
    return (sim_call){ .g = g, .name = name };
}

static void claim(sim_call *c, const char *what, const void *at, uint64_t bytes, sim_use use,
                  bool any)
{
    if (!at || bytes == 0) return;
    if (c->n_claim == SIM_MAX_CLAIMS) sim_fail(c->g, "%s: too many claims", c->name);
    else c->claims[c->n_claim++] = (sim_claim){ what, at, bytes, use, any };
}

void sim_reads(sim_call *c, const char *what, const void *at, uint64_t bytes)
{
    claim(c, what, at, bytes, SIM_READ, false);
}

void sim_writes(sim_call *c, const char *what, const void *at, uint64_t bytes)
{
    claim(c, what, at, bytes, SIM_WRITE, false);
}

void sim_reads_ahead(sim_call *c, const char *what, const void *at, uint64_t bytes)
{
    claim(c, what, at, bytes, SIM_AHEAD, false);
}

void sim_reads_any(sim_call *c, const char *what, const void *at, uint64_t bytes)
{
    claim(c, what, at, bytes, SIM_READ, true);
}

void sim_writes_any(sim_call *c, const char *what, const void *at, uint64_t bytes)
{
    claim(c, what, at, bytes, SIM_WRITE, true);
}

void sim_end(sim_call *c, sim_fn *run, const void *args, size_t arg_bytes)
{
    gpu *g = c->g;
    if (sim_failed(g)) return;
    sim_op *op = make_op(c->name, run, args, arg_bytes, c->claims, c->n_claim);
    op->bytes = c->bytes;
    if (g->profiling && g->n_span < MAX_SPANS) op->span = g->n_span++;
    if (g->recording) {                  /* admitted when it is played */
        op->next = NULL;
        *g->recording->last = op;
        g->recording->last = &op->next;
    } else if (admit(g, op)) {
        sim_stream_put(&g->stream, op);
    } else {
        free(op);
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

typedef struct event_args {
    sim_event *e;
    uint64_t number;
} event_args;

static void reach_event(gpu *g, void *args)
{
    const event_args *a = args;
    pthread_mutex_lock(&g->lock);
    a->e->reached = a->number;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void await_event(gpu *g, void *args)
{
    const event_args *a = args;
    pthread_mutex_lock(&g->lock);
    while (a->e->reached < a->number) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void put_always(sim_stream *s, sim_fn *run, const event_args *a)
{
    sim_op *op = sim_op_make("event", run, a, sizeof *a);
    op->always = true;
    sim_stream_put(s, op);
}

void sim_event_note(sim_event *e, sim_stream *s)
{
    const event_args a = { e, ++e->noted };
    put_always(s, reach_event, &a);
}

void sim_event_await(sim_event *e, sim_stream *s)
{
    const event_args a = { e, e->noted };
    put_always(s, await_event, &a);
}

void sim_event_wait(sim_event *e, gpu *g)
{
    event_args a = { e, e->noted };
    await_event(g, &a);
}

bool sim_event_reached(const sim_event *e, gpu *g)
{
    pthread_mutex_lock(&g->lock);
    const bool reached = e->reached >= e->noted;
    pthread_mutex_unlock(&g->lock);
    return reached;
}

/* ---- life ------------------------------------------------------------------------------------ */

int gpu_open(gpu **out, int device, err_ctx *err)
{
    gpu_info info;
    int rc = gpu_describe(&info, device, err);
    *out = NULL;
    if (rc < 0) return rc;
    gpu *g = mem_zalloc(sizeof *g);
    if (!g) return err_set(err, ERR_NOMEM, "GPU %d: %zu bytes", device, sizeof *g);
    g->device = device;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    atomic_init(&g->limit_ns, (uint64_t)HOST_LIMIT_S * 1000000000);
    if ((rc = sim_stream_start(&g->stream, g, err)) < 0) {
        gpu_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

static void free_list(op_list *l)
{
    if (!l || atomic_fetch_sub(&l->users, 1) > 1) return;
    while (l->first) {
        sim_op *op = l->first;
        l->first = op->next;
        free(op);
    }
    free(l);
}

void gpu_close(gpu *g)
{
    if (!g) return;
    atomic_store(&g->closing, true);
    sim_stream_stop(&g->stream);
    free_list(g->recording);
    gpu_free_host(g, g->upload);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

/* Waiting, and everything that waits, is refused while operations are recorded. */
static bool may_wait(gpu *g, const char *what)
{
    if (g->recording) sim_fail(g, "%s while operations are recorded", what);
    return !g->recording;
}

int gpu_wait(gpu *g, err_ctx *err)
{
    if (may_wait(g, "wait")) sim_stream_drain(&g->stream);
    g->n_before = 0;
    if (sim_failed(g) || !atomic_load(&g->host_late)) return sim_report(g, err);
    return err_set(err, ERR_IO, "GPU 0: the program did not answer a kernel within %.1f s, so this "
                   "token is lost; was it stopped or swapped out?",
                   (double)atomic_load(&g->limit_ns) * 1e-9);
}

uint32_t gpu_polls(const gpu *g)
{
    (void)g;
    return 64;
}

/* Sleeps: the device's thread may need the core of the thread that polls. */
bool gpu_alive(gpu *g)
{
    const struct timespec nap = { 0, 20000 };
    nanosleep(&nap, NULL);
    pthread_mutex_lock(&g->lock);
    const bool busy = g->stream.n_done != g->stream.n_put;
    pthread_mutex_unlock(&g->lock);
    return busy && !sim_failed(g);
}

/* ---- copies ---------------------------------------------------------------------------------- */

typedef struct copy_args {
    void *to;
    const void *from;                    /* NULL: zeros */
    size_t bytes;
    uint64_t hash;                       /* of what a queued copy reads of RAM; 0: not looked at */
} copy_args;

static uint64_t hash_of(const void *from, size_t bytes)
{
    return str_hash((str_view){ from, bytes < MOST_HASHED ? bytes : MOST_HASHED }) | 1;
}

static void run_copy(gpu *g, void *args)
{
    const copy_args *a = args;
    if (a->hash && hash_of(a->from, a->bytes) != a->hash)
        sim_fail(g, "copy: the source was changed before the copy ran");
    if (a->from) memmove(a->to, a->from, a->bytes);
    else memset(a->to, 0, a->bytes);
}

/* Copies that the caller waits for need no other thread. */
static int copy_now(gpu *g, const sim_call *c, copy_args a, err_ctx *err)
{
    const sim_op op = { .name = c->name, .claims = (sim_claim *)c->claims, .n_claim = c->n_claim };
    gpu_wait(g, NULL);
    if (!sim_failed(g) && admit(g, &op)) run_copy(g, &a);
    return gpu_wait(g, err);
}

int gpu_write(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    sim_call c = sim_begin(g, "copy to VRAM");
    sim_writes(&c, "target", to, bytes);
    return copy_now(g, &c, (copy_args){ to, from, (size_t)bytes, 0 }, err);
}

int gpu_read(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    sim_call c = sim_begin(g, "copy from VRAM");
    sim_reads(&c, "source", from, bytes);
    return copy_now(g, &c, (copy_args){ to, from, (size_t)bytes, 0 }, err);
}

/* What is read now, but arrives at the end. */
struct sim_late {
    struct sim_late *next;
    void *to;
    size_t n;
    uint8_t bytes[];
};

int gpu_read_later(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    struct sim_late *a = sim_room(sizeof *a + (size_t)bytes, 1);
    a->next = g->late;
    a->to = to;
    a->n = (size_t)bytes;
    g->late = a;
    return gpu_read(g, a->bytes, from, bytes, err);
}

int gpu_write_later(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    return gpu_write(g, to, from, bytes, err);
}

int gpu_copies_end(gpu *g, err_ctx *err)
{
    for (struct sim_late *a = g->late; a; a = g->late) {
        memcpy(a->to, a->bytes, a->n);
        g->late = a->next;
        free(a);
    }
    return sim_report(g, err);
}

int gpu_zero(gpu *g, void *p, uint64_t bytes, err_ctx *err)
{
    const copy_args a = { p, NULL, (size_t)bytes, 0 };
    sim_call c = sim_begin(g, "clear VRAM");
    sim_writes(&c, "target", p, bytes);
    sim_end(&c, run_copy, &a, sizeof a);
    return sim_report(g, err);
}

void gpu_copy(gpu *g, void *to, const void *from, uint64_t bytes)
{
    copy_args a = { to, from, (size_t)bytes, 0 };
    sim_call c = sim_begin(g, "copy");
    if (bytes > 0 && (!sim_in_one_piece(g, to, bytes) || !sim_in_one_piece(g, from, bytes)))
        sim_fail(g, "copy: %llu bytes are not in one piece", (unsigned long long)bytes);
    if (!g->recording && !sim_failed(g) && !sim_in_vram(g, from, bytes))
        a.hash = hash_of(from, a.bytes);
    sim_reads_any(&c, "source", from, bytes);
    sim_writes_any(&c, "target", to, bytes);
    sim_end(&c, run_copy, &a, sizeof a);
}

int gpu_upload(gpu *g, void *to, const void *from, uint64_t bytes, gpu_fill *fill, void *ctx,
               err_ctx *err)
{
    int rc = sim_report(g, err);
    if (rc == 0 && !g->upload && !(g->upload = gpu_alloc_host(g, UPLOAD_BYTES, err)))
        return ERR_NOMEM;
    for (uint64_t done = 0; done < bytes && rc == 0;) {
        const size_t n = (size_t)(bytes - done < UPLOAD_BYTES ? bytes - done : UPLOAD_BYTES);
        if (fill) fill(ctx, g->upload, (const uint8_t *)from + done, n);
        else memcpy(g->upload, (const uint8_t *)from + done, n);
        rc = gpu_write(g, (uint8_t *)to + done, g->upload, n, err);
        done += n;
    }
    return rc;
}

int gpu_upload_end(gpu *g, err_ctx *err)
{
    gpu_free_host(g, g->upload);
    g->upload = NULL;
    return gpu_wait(g, err);
}

/* ---- recordings ------------------------------------------------------------------------------ */

int gpu_recording_create(gpu_recording **out, err_ctx *err)
{
    *out = mem_zalloc(sizeof **out);
    return *out ? 0 : err_set(err, ERR_NOMEM, "recording: %zu bytes", sizeof **out);
}

static void empty_recording(gpu_recording *r)
{
    free_list(r->ops);
    sim_return_vram(r->device, r->bytes);
    *r = (gpu_recording){ 0 };
}

void gpu_recording_free(gpu_recording *r)
{
    if (!r) return;
    empty_recording(r);
    mem_free(r);
}

int gpu_record_begin(gpu *g, err_ctx *err)
{
    if (g->recording) sim_fail(g, "recorded twice at a time");
    if (sim_failed(g)) return sim_report(g, err);
    g->recording = sim_room(1, sizeof *g->recording);
    g->recording->first = NULL;
    g->recording->last = &g->recording->first;
    atomic_init(&g->recording->users, 1);
    return 0;
}

int gpu_record_end(gpu_recording *r, gpu *g, err_ctx *err)
{
    op_list *made = g->recording;
    if (!made) sim_fail(g, "end of a recording that was not begun");
    g->recording = NULL;
    if (sim_failed(g)) {
        free_list(made);
        return sim_report(g, err);
    }
    uint64_t bytes = 0;
    for (const sim_op *op = made->first; op; op = op->next) bytes += GPU_RECORDED_KERNEL;
    empty_recording(r);
    if (!sim_take_vram(g->device, bytes)) {
        free_list(made);
        return err_set(err, ERR_NOMEM, "GPU %d: recording: out of memory", g->device);
    }
    *r = (gpu_recording){ made, bytes, g->device };
    return 0;
}

static void run_list(gpu *g, void *args)
{
    op_list *l = *(op_list **)args;
    for (sim_op *op = l->first; op; op = op->next) run_op(g, op);
    free_list(l);
}

void gpu_replay(gpu *g, gpu_recording *r)
{
    if (sim_failed(g)) return;
    if (!r->ops) sim_fail(g, "nothing is on the recording");
    if (g->recording) sim_fail(g, "played while operations are recorded");
    if (sim_failed(g)) return;
    for (const sim_op *op = r->ops->first; op; op = op->next)
        if (!admit(g, op)) return;
    sim_op *play = sim_op_make("play", run_list, &r->ops, sizeof r->ops);
    play->always = true;                 /* it gives the list back */
    atomic_fetch_add(&r->ops->users, 1);
    sim_stream_put(&g->stream, play);
}

/* ---- profiles -------------------------------------------------------------------------------- */

int gpu_profile_begin(gpu *g, err_ctx *err)
{
    const int rc = gpu_wait(g, err);
    memset(g->spans, 0, sizeof g->spans);
    g->n_span = 0;
    g->profiling = rc == 0;
    return rc;
}

int gpu_profile_read(gpu_span *spans, int cap, gpu *g, err_ctx *err)
{
    const int rc = gpu_wait(g, err), n = min_int(g->n_span, cap);
    if (rc < 0) return rc;
    for (int i = 0; i < n; i++) spans[i] = g->spans[i];
    memset(g->spans, 0, sizeof g->spans);
    return n;
}

void gpu_profile_end(gpu *g)
{
    g->profiling = false;
    g->n_span = 0;
}
