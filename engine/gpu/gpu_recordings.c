/* gpu_recordings.c - records a token on the GPU, replays it, and does the host's half of a replayed
 * token. */
#include "engine/gpu/gpu_steps_internal.h"

#include "tiers/fault_injection.h"

/* One token and the pick after it. */
typedef struct recorded_token {
    gpu_recording *r;
    int last;                            /* valid up to this position; 0: not recorded yet */
    int refused;                         /* position at which VRAM was too small for it; -1: none */
} recorded_token;

enum {
    RETRY_TOKENS = 64,                   /* from one attempt without VRAM to the next */
    LAYER_KERNELS = 16                   /* most kernels of a token in a layer, or after the last */
};

/* The kernels of a recording depend on two flags: slabs are fetched, the CPU reads ahead. So there
 * are four recordings, and one for profiles. */
enum { PROFILED = 4, RECORDINGS };

/* Recordings contain addresses of the session's state. */
struct gpu_session_recordings {
    recorded_token tokens[RECORDINGS];
};

/* ---- recordings ------------------------------------------------------------------------------ */

int gpu_steps_reach(int pos)
{
    int last = 1024;
    while (last <= pos && last < 1 << 30) last *= 2;
    return last;
}

static int recording_index(const gpu_steps *s)
{
    if (s->profiling) return PROFILED;
    if (!s->server) return 0;
    return 2 * expert_server_fetches(s->server) + expert_server_reads_ahead(s->server);
}

bool gpu_steps_is_recorded(const gpu_steps *s, int pos)
{
    return s->recordings->tokens[recording_index(s)].last == gpu_steps_reach(pos);
}

bool gpu_steps_wants_recording(const gpu_steps *s, int pos)
{
    const recorded_token *t = &s->recordings->tokens[recording_index(s)];
    const bool refused = t->refused >= 0 && pos >= t->refused && pos - t->refused < RETRY_TOKENS;
    return t->last != gpu_steps_reach(pos) && !refused;
}

int gpu_steps_record_begin(gpu_steps *s, err_ctx *err)
{
    const int rc = gpu_record_begin(s->g, err);
    s->recording = rc == 0;
    return rc;
}

int gpu_steps_record_end(gpu_steps *s, int pos, err_ctx *err)
{
    recorded_token *t = &s->recordings->tokens[recording_index(s)];
    err_ctx failure = { 0 };
    s->recording = false;
    gpu_steps_end_token(s);
    const int rc = gpu_record_end(t->r, s->g, &failure);
    t->last = rc == 0 ? gpu_steps_reach(pos) : 0;
    t->refused = rc == ERR_NOMEM ? pos : -1;
    if (rc == ERR_NOMEM && !s->refusal_logged) {
        log_line("%s: tokens are computed without a recording, which is slower", failure.msg);
        s->refusal_logged = true;
    } else if (rc < 0 && err) {
        *err = failure;
    }
    return rc == ERR_NOMEM ? 0 : rc;
}

void gpu_steps_end_token(gpu_steps *s)
{
    const gpu_buffers *b = &s->b;
    if (engine_head_on_gpu(s->e)) {
        gpu_steps_head(s, b->x, 1);
        gpu_largest(s->g, b->logits, s->m->hp.n_vocab, b->cursor, &s->mailbox->picked, b->best,
                    &b->counters[0]);
    } else {
        gpu_steps_send_vectors(s);
    }
    gpu_advance(s->g, b->cursor, 1);
}

int gpu_steps_picked(gpu_steps *s, int32_t *next, int pos, err_ctx *err)
{
    const int rc = gpu_steps_wait(s, err);
    if (rc < 0) return rc;
    *next = (int32_t)(uint32_t)s->mailbox->picked;
    s->device_cursor = (gpu_cursor){ pos + 1, *next };
    return 0;
}

/* ---- the host's half of a replayed token ----------------------------------------------------- */

static int replay_begin(void *self, const batch *b, err_ctx *err)
{
    gpu_steps *s = self;
    gpu_steps_take_batch(s, b);
    if (s->server) {
        const int rc = expert_server_prepare(s->server, err);
        if (rc < 0) return rc;
    }
    s->has_questions = s->server != NULL;
    if (s->device_cursor.pos != s->row.pos || s->device_cursor.token != b->ids[0])
        gpu_steps_set_cursor(s, s->row.pos, b->ids[0]);
    s->device_cursor.token = -1;
    gpu_replay(s->g, s->recordings->tokens[recording_index(s)].r);
    if (s->has_questions)
        expert_server_begin(s->server, 1);       /* threads wake up during the first mixer */
    else if (fault_hits(FAULT_GPU_LOST)) return err_set(err, ERR_IO, "the GPU stopped");
    return 0;
}

static void no_step(void *self, int l)
{
    (void)self;
    (void)l;
}

static int no_experts(void *self, int l, err_ctx *err)
{
    (void)self;
    (void)l;
    (void)err;
    return 0;
}

static int replay_experts(void *self, int l, err_ctx *err)
{
    gpu_steps *s = self;
    (void)err;
    if (s->failed < 0 && !gpu_alive(s->g)) return 0;   /* no more questions will come */
    const int rc = expert_server_serve(s->server, l, s->failed < 0 ? NULL : &s->failure);
    if (s->failed == 0) s->failed = rc;
    return 0;
}

static int replay_end(void *self, err_ctx *err)
{
    gpu_steps *s = self;
    if (s->has_questions) expert_server_end(s->server);
    s->has_questions = false;
    if (s->failed < 0 && err) *err = s->failure;
    return s->failed;
}

static int copy_replayed(void *self, const float **x, err_ctx *err)
{
    gpu_steps *s = self;
    *x = s->host_transfer.x;
    return gpu_steps_wait(s, err);
}

/* ---- profiles -------------------------------------------------------------------------------- */

int gpu_steps_profile_begin(gpu_steps *s, err_ctx *err)
{
    s->profiling = true;
    return gpu_profile_begin(s->g, err);
}

void gpu_steps_profile_end(gpu_steps *s)
{
    gpu_profile_end(s->g);
    s->profiling = false;
    s->recordings->tokens[PROFILED].last = 0;
    s->device_cursor.token = -1;
}

/* ---- life ------------------------------------------------------------------------------------ */

uint64_t gpu_steps_recordings_bytes(const model *m)
{
    const uint64_t kernels = LAYER_KERNELS * (1 + (uint64_t)m->hp.n_layer);
    return RECORDINGS * kernels * GPU_RECORDED_KERNEL;
}

int gpu_session_recordings_create(gpu_session_recordings **out, err_ctx *err)
{
    gpu_session_recordings *s = mem_zalloc(sizeof *s);
    int rc = 0;
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "session recordings: %zu bytes", sizeof *s);
    for (int i = 0; i < RECORDINGS && rc == 0; i++) {
        s->tokens[i].refused = -1;
        rc = gpu_recording_create(&s->tokens[i].r, err);
    }
    if (rc == 0) *out = s;
    else gpu_session_recordings_free(s);
    return rc;
}

void gpu_session_recordings_free(gpu_session_recordings *s)
{
    if (!s) return;
    for (int i = 0; i < RECORDINGS; i++) gpu_recording_free(s->tokens[i].r);
    mem_free(s);
}

void gpu_steps_select(gpu_steps *s, gpu_session_recordings *recordings)
{
    s->recordings = recordings;
}

void gpu_recordings_fill(layer_steps *table)
{
    table->begin = replay_begin;
    table->mix = gpu_layers_note_written;
    table->route = table->join = no_step;
    table->experts_local = no_experts;
    table->experts_asked = replay_experts;
    table->end = replay_end;
    table->copy_to_host = copy_replayed;
    table->logits = gpu_steps_logits;
}
