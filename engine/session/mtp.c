/* mtp.c - the next-token block of a session: its keys and values, and its drafts.
 *
 * Row t of the block needs the trunk's vector of token t and the id of token t + 1. So a session at
 * position n may have rows 0 .. n - 2; row n - 1 waits for the token at n. The vectors of the last
 * tokens are kept until their rows are computed: after a chunk of a prompt at once, after passes
 * when drafts are asked for. Rows of many passes without drafts, and the last one before a rewind,
 * keep what they have; that of a vector that an import lacks is computed from zeros. This makes
 * drafts worse and cannot change an answer. Rows of guesses are overwritten by those of the tokens
 * that were taken in. */
#include "engine/session/session_internal.h"

#include <assert.h>

enum { ROWS = 32 };                      /* of a batch: a workspace for passes holds as many */
static_assert((int)ROWS <= (int)RUNNER_MOST_ROWS, "a workspace for passes");

static size_t width(const session *s) { return (size_t)s->r->e->m->hp.n_embd; }

static mem_space *space_of(const session *s)
{
    return state_layer_space(s->st, s->r->e->m->hp.n_layer);
}

uint64_t mtp_vector_bytes(const model *m)
{
    return m->hp.uses_mtp ? MTP_KEPT * (uint64_t)m->hp.n_embd * sizeof(float) : 0;
}

int mtp_create(session *s, err_ctx *err)
{
    const uint64_t bytes = mtp_vector_bytes(s->r->e->m);
    mem_space *where = bytes > 0 ? space_of(s) : NULL;
    void *memory = NULL;
    if (bytes == 0) return 0;
    const int rc = where->alloc(&memory, where, bytes, MEM_DENSE, "vectors for drafts", err);
    s->vectors = memory;
    return rc;
}

void mtp_free(session *s)
{
    if (s->vectors)
        space_of(s)->free(space_of(s), s->vectors, mtp_vector_bytes(s->r->e->m));
}

/* ---- vectors that are kept ------------------------------------------------------------------- */

/* Copies those of positions from .. from + n - 1 to a buffer, or from it. */
static void copy_kept(const session *s, float *buffer, const float *values, int from, int n)
{
    for (int done = 0, i; done < n; done += i) {
        const int slot = (from + done) % MTP_KEPT;
        float *kept = s->vectors + (size_t)slot * width(s);
        i = min_int(n - done, MTP_KEPT - slot);
        forward_copy_vectors(s->r->f, buffer ? buffer + (size_t)done * width(s) : kept,
                             buffer ? kept : values + (size_t)done * width(s), i);
    }
}

void mtp_keep(session *s, int first, int pos, int n)
{
    const int more = max_int(n - MTP_KEPT, 0);
    if (!s->vectors) return;
    if (s->vectors_end != pos) s->vectors_first = pos;
    copy_kept(s, NULL, forward_vectors(s->r->f) + (size_t)(first + more) * width(s), pos + more,
              n - more);
    s->vectors_end = pos + n;
    s->vectors_first = max_int(s->vectors_first, s->vectors_end - MTP_KEPT);
}

void mtp_trim(session *s, int pos)
{
    s->vectors_end = min_int(s->vectors_end, pos);
    s->vectors_first = min_int(s->vectors_first, s->vectors_end);
    s->rows_end = min_int(s->rows_end, pos);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Rows pos .. pos + n - 1, whose vectors are in the buffer. *guess, or NULL: the token after the
 * last one's. */
static int run_rows(session *s, const int32_t *ids, int pos, int n, bool chained, int32_t *guess,
                    err_ctx *err)
{
    const batch_row row = { .st = s->st, .next = state_recurrent(s->st), .pos = pos, .n = n };
    const int rc = forward_mtp(s->r->f, &row, ids, chained, guess, err);
    if (!chained) s->rows_end = pos + n;
    return rc < 0 ? runner_recover(s->r, rc) : 0;
}

/* The rows of the kept vectors before `end`; next: the token at the session's position. Returns the
 * number of rows in the last batch; *guess, or NULL, as in run_rows. */
static int run_kept(session *s, int end, int32_t next, int32_t *guess, err_ctx *err)
{
    const int most = min_int(ROWS, s->r->opt.chunk);
    int rc = 0, n = 0;
    while (s->vectors_first < end && rc == 0) {
        int32_t ids[ROWS];
        const int pos = s->vectors_first;
        n = min_int(end - pos, most);
        for (int i = 0; i < n; i++)
            ids[i] = pos + 1 + i < session_pos(s) ? s->ids[pos + 1 + i] : next;
        copy_kept(s, forward_hidden(s->r->f), NULL, pos, n);
        rc = run_rows(s, ids, pos, n, false, pos + n == end ? guess : NULL, err);
        s->vectors_first = pos + n;
    }
    return rc < 0 ? rc : n;
}

int mtp_before(session *s, int32_t next, err_ctx *err)
{
    const int pos = session_pos(s);
    if (!s->vectors || s->vectors_end != pos) return 0;
    const int rc = run_kept(s, pos - 1, next, NULL, err);
    return rc < 0 ? rc : 0;
}

int mtp_after(session *s, const int32_t *ids, int pos, int n, err_ctx *err)
{
    if (!s->vectors) return 0;
    const bool known = s->vectors_end == pos && s->vectors_first < pos;
    const int before = pos > 0 && (known || s->rows_end < pos);  /* the row of the token before */
    float *hidden = forward_hidden(s->r->f);
    if (known) copy_kept(s, hidden, NULL, pos - 1, 1);
    else space_of(s)->zero(space_of(s), hidden, width(s) * sizeof *hidden);
    forward_copy_vectors(s->r->f, hidden + before * width(s), forward_vectors(s->r->f), n - 1);
    s->vectors_first = s->vectors_end = pos + n - 1;
    mtp_keep(s, n - 1, pos + n - 1, 1);
    const int n_row = n - 1 + before;
    return n_row > 0 ? run_rows(s, ids + !before, pos - before, n_row, false, NULL, err) : 0;
}

/* ---- drafts ---------------------------------------------------------------------------------- */

bool runner_guesses(const runner *r) { return r->e->m->hp.uses_mtp && r->opt.n_version > 0; }

int runner_guess(session *s, int32_t *out, int most, int32_t next, err_ctx *err)
{
    forward *f = s->r->f;
    int rc = session_check_state(s, err), n_row;
    const int pos = session_pos(s), n = min_int(min_int(most, MTP_DRAFTS), session_ctx(s) - pos);
    if (rc < 0 || n <= 0 || !s->vectors) return rc;
    if (s->vectors_end != pos || s->vectors_first == pos) return 0;
    if ((rc = state_reserve(s->st, pos + n, err)) < 0 ||
        (rc = n_row = run_kept(s, pos, next, out, err)) < 0)
        return rc;
    for (int i = 1; i < n; i++, n_row = 1) {
        const float *last = forward_vectors(f) + (size_t)(n_row - 1) * width(s);
        forward_copy_vectors(f, forward_hidden(f), last, 1);
        rc = run_rows(s, out + i - 1, pos - 1 + i, 1, true, out + i, err);
        if (rc < 0) return rc;
    }
    return n;
}

int runner_mtp_logits(session *s, float *logits, int first, int n, err_ctx *err)
{
    return forward_logits(s->r->f, logits, first, n, err);
}
