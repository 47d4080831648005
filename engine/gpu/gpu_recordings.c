/* gpu_recordings.c - records a pass of a few tokens on the GPU, replays it, and does the host's half
 * of a replayed pass. */
#include "engine/gpu/gpu_steps_internal.h"

#include "tiers/fault_injection.h"

enum {
    RETRY_PASSES = 64,                   /* from one attempt without VRAM to the next; a recording
                                          * that was used in as many passes is not given up, */
    OUTGROWN_PASSES = 4,                 /* or in these, if the new one is for more positions */
    LAYER_KERNELS = 16,                  /* most kernels of a pass in a layer, or after the last, */
    WIDE_KERNELS = 40                    /* also with more than GPU_FEW tokens */
};

/* ---- recordings ------------------------------------------------------------------------------ */

int gpu_steps_reach(int pos)
{
    int last = GPU_LEAST_REACH;
    while (last <= pos && last < 1 << 30) last *= 2;
    return last;
}

/* The kernels of a single token depend on two flags: slabs are fetched, the CPU reads ahead; those
 * of several on whether inputs are kept. A profile has a recording of its own. */
enum { FETCHES = 1, READS_AHEAD = 2, PROFILED = 4, KEEPS = 8 };

static int kind_of(const gpu_steps *s, int n, const kept_inputs *keep)
{
    if (s->profiling) return PROFILED;
    if (keep) return KEEPS;
    if (!s->server || n > 1) return 0;
    return (expert_server_fetches(s->server) ? FETCHES : 0) |
           (expert_server_reads_ahead(s->server) ? READS_AHEAD : 0);
}

/* NULL: there is none. */
static recorded_pass *find_recording(gpu_steps *s, const batch *b)
{
    const int kind = kind_of(s, b->n, b->keep);
    for (int i = 0; i < RECORDINGS; i++) {
        recorded_pass *t = &s->recordings[i];
        if (t->n == b->n && t->reach == b->last && t->kind == kind) return t;
    }
    return NULL;
}

/* Whether t was used too lately to be given up for a recording of b. */
static bool is_in_use(const gpu_steps *s, const recorded_pass *t, const batch *b)
{
    const bool outgrown = t->n == b->n && t->kind == kind_of(s, b->n, b->keep) &&
                          t->reach < b->last;
    return t->reach > 0 && s->n_pass - t->used < (outgrown ? OUTGROWN_PASSES : RETRY_PASSES);
}

/* Of the recordings that are not in use, the one that was used longest ago, an empty one before all
 * others; recorded: none that is empty. NULL: there is none. */
static recorded_pass *spare_recording(gpu_steps *s, const batch *b, bool recorded)
{
    recorded_pass *best = NULL;
    for (int i = 0; i < RECORDINGS; i++) {
        recorded_pass *t = &s->recordings[i];
        if (is_in_use(s, t, b) || (recorded && t->reach == 0)) continue;
        if (!best || t->used < best->used) best = t;
    }
    return best;
}

bool gpu_steps_is_recorded(gpu_steps *s, const batch *b)
{
    return find_recording(s, b) != NULL;
}

/* Called once for each pass. */
bool gpu_steps_wants_recording(gpu_steps *s, const batch *b)
{
    s->n_pass++;
    return s->n_pass >= s->retry_at && !find_recording(s, b) && spare_recording(s, b, false);
}

int gpu_steps_record_begin(gpu_steps *s, err_ctx *err)
{
    const int rc = gpu_record_begin(s->g, err);
    s->recording = rc == 0;
    return rc;
}

static int empty_recording(recorded_pass *t, err_ctx *err)
{
    gpu_recording_free(t->r);
    *t = (recorded_pass){ 0 };
    return gpu_recording_create(&t->r, err);
}

/* VRAM was too small for a further recording. */
static int make_room(gpu_steps *s, const batch *b, const err_ctx *failure, err_ctx *err)
{
    recorded_pass *oldest = spare_recording(s, b, true);
    if (oldest) return empty_recording(oldest, err);
    s->retry_at = s->n_pass + RETRY_PASSES;
    if (!s->refusal_logged)
        log_line("%s: tokens are computed without a recording, which is slower", failure->msg);
    s->refusal_logged = true;
    return 0;
}

int gpu_steps_record_end(gpu_steps *s, const batch *b, err_ctx *err)
{
    recorded_pass *same = find_recording(s, b), *t = same ? same : spare_recording(s, b, false);
    err_ctx failure = { 0 };
    s->recording = false;
    gpu_steps_end_pass(s);
    const int rc = gpu_record_end(t->r, s->g, &failure);
    t->n = b->n;
    t->kind = kind_of(s, b->n, b->keep);
    t->reach = rc == 0 ? b->last : 0;
    t->used = rc == 0 ? s->n_pass : 0;
    if (rc == ERR_NOMEM) return make_room(s, b, &failure, err);
    if (rc < 0 && err) *err = failure;
    return rc;
}

/* The host sets the cursors of several tokens anew for each pass. */
void gpu_steps_end_pass(gpu_steps *s)
{
    const gpu_buffers *b = &s->b;
    s->has_logits = engine_head_on_gpu(s->e);
    if (!s->has_logits) gpu_steps_send_vectors(s);
    else gpu_steps_head(s, b->x, s->n);
    if (s->n > 1) return;
    if (s->has_logits)
        gpu_largest(s->g, b->logits, s->m->hp.n_vocab, b->cursor, &s->mailbox->picked, b->best,
                    &b->counters[0]);
    else gpu_advance(s->g, b->cursor, 1);
}

int gpu_steps_picked(gpu_steps *s, int32_t *next, int pos, err_ctx *err)
{
    const int rc = gpu_steps_wait(s, err);
    if (rc < 0) return rc;
    *next = (int32_t)(uint32_t)s->mailbox->picked;
    const gpu_cursor before = gpu_steps_cursor(s, *next);
    s->device_cursor = before;
    s->device_cursor.pos = pos + 1;
    s->device_cursor.recurrent = before.recurrent_next;
    s->device_cursor.recurrent_next = (uint8_t *)(uintptr_t)before.recurrent;
    return 0;
}

/* ---- the host's half of a replayed pass ------------------------------------------------------ */

static bool is_same(const gpu_cursor *a, const gpu_cursor *b)
{
    return a->pos == b->pos && a->n == b->n && a->token == b->token && a->pages == b->pages &&
           a->recurrent == b->recurrent && a->recurrent_next == b->recurrent_next;
}

static int replay_begin(void *self, const batch *b, err_ctx *err)
{
    gpu_steps *s = self;
    gpu_steps_take_batch(s, b);
    if (s->server) {
        const int rc = expert_server_prepare(s->server, err);
        if (rc < 0) return rc;
    }
    s->has_questions = s->server != NULL;
    if (b->n > 1) {
        gpu_steps_send_ids(s, b->ids, b->n);
        gpu_steps_set_cursors(s, -1);
    } else {
        const gpu_cursor at = gpu_steps_cursor(s, b->ids[0]);
        if (!is_same(&s->device_cursor, &at)) gpu_steps_set_cursors(s, b->ids[0]);
    }
    s->device_cursor.token = -1;
    recorded_pass *t = find_recording(s, b);
    t->used = s->n_pass;
    gpu_replay(s->g, t->r);
    if (s->has_questions)
        expert_server_begin(s->server, b->n);    /* threads wake up during the first mixer */
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
    s->has_logits = engine_head_on_gpu(s->e);
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
    for (int i = 0; i < RECORDINGS; i++)
        if (s->recordings[i].kind == PROFILED)
            s->recordings[i].reach = s->recordings[i].used = 0;
    s->profiling = false;
    s->device_cursor.token = -1;
}

/* ---- life ------------------------------------------------------------------------------------ */

uint64_t gpu_steps_recordings_bytes(const model *m, int pass)
{
    const uint64_t each = pass > GPU_FEW ? WIDE_KERNELS : LAYER_KERNELS;
    const uint64_t kernels = each * (1 + (uint64_t)m->hp.n_layer);
    return RECORDINGS * kernels * GPU_RECORDED_KERNEL;
}

int gpu_recordings_create(gpu_steps *s, err_ctx *err)
{
    int rc = 0;
    for (int i = 0; i < RECORDINGS && rc == 0; i++)
        rc = gpu_recording_create(&s->recordings[i].r, err);
    return rc;
}

void gpu_recordings_free(gpu_steps *s)
{
    for (int i = 0; i < RECORDINGS; i++) gpu_recording_free(s->recordings[i].r);
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
