/* routing_trace.c - traces of routing to a file and back.
 *
 * The loop goes layer by layer, a file token by token: a batch is turned round in memory and
 * written when its last layer is there. The number of tokens is written last, so a file that lacks
 * some is noticed. What a trace may say of a model is checked by the same code in both ways. */
#include "moe/routing_trace.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/bytes.h"

enum {
    AT_MAGIC = 0,                        /* 8 bytes */
    AT_VERSION = 8,                      /* u32 */
    AT_N_LAYER = 12,                     /* u32 */
    AT_N_EXPERT = 16,                    /* u32 */
    AT_N_USED = 20,                      /* u32 */
    AT_FINGERPRINT = 24,                 /* u64 */
    AT_N_TOKEN = 32,                     /* u64 */
    AT_DENSE = 40,                       /* u64 */
    AT_NAME = 48,                        /* text, filled up with zeros */
    LAYER_BYTES = 16,
    TOKEN_HEAD = 8,
    BUFFER = 1 << 18                     /* at least; a whole token in any case */
};
static_assert(AT_NAME + ROUTING_NAME_CAP == ROUTING_HEADER_BYTES, "header");

/* No expert and no model is larger: beyond it sums might not fit. */
#define MOST_EXPERT_BYTES (UINT64_C(1) << 40)
#define MOST_DENSE_BYTES (UINT64_C(1) << 50)

/* ---- what a trace may say -------------------------------------------------------------------- */

/* Numbers as the file has them, before they are believed. */
typedef struct shape { uint64_t n_layer, n_expert, n_used, dense; } shape;

static int check_shape(const shape *s, err_ctx *err)
{
    if (s->n_layer < 1 || s->n_layer > ROUTING_MOST_LAYERS)
        return err_set(err, ERR_FORMAT, "%" PRIu64 " layers are not within 1..%d", s->n_layer,
                       ROUTING_MOST_LAYERS);
    if (s->n_expert < 1 || s->n_expert > ROUTING_MOST_EXPERTS)
        return err_set(err, ERR_FORMAT, "%" PRIu64 " experts in a layer are not within 1..%d",
                       s->n_expert, ROUTING_MOST_EXPERTS);
    const uint64_t most = s->n_expert < ROUTING_MOST_USED ? s->n_expert : ROUTING_MOST_USED;
    if (s->n_used < 1 || s->n_used > most)
        return err_set(err, ERR_FORMAT, "%" PRIu64 " experts for a token are not within 1..%d",
                       s->n_used, (int)most);
    if (s->dense > MOST_DENSE_BYTES)
        return err_set(err, ERR_FORMAT, "%" PRIu64 " bytes of dense weights for a token", s->dense);
    return 0;
}

static int check_model(const routing_model *m, err_ctx *err)
{
    const shape s = { (uint64_t)m->n_layer, (uint64_t)m->n_expert, (uint64_t)m->n_used,
                      m->dense_bytes };
    const int rc = check_shape(&s, err);
    if (rc < 0) return rc;
    for (int l = 0; l < m->n_layer; l++) {
        if (m->expert_bytes[l] < 1 || m->expert_bytes[l] > MOST_EXPERT_BYTES)
            return err_set(err, ERR_FORMAT, "layer %d: an expert of %" PRIu64 " bytes", l,
                           m->expert_bytes[l]);
        if (m->down_bytes[l] > m->expert_bytes[l])
            return err_set(err, ERR_FORMAT, "layer %d: a down slab of %" PRIu64 " bytes in an "
                           "expert of %" PRIu64, l, m->down_bytes[l], m->expert_bytes[l]);
    }
    return 0;
}

static size_t ids_of_token(const routing_model *m)
{
    return (size_t)m->n_layer * (size_t)m->n_used;
}

static size_t token_bytes(const routing_model *m)
{
    return TOKEN_HEAD + ids_of_token(m) * sizeof(uint16_t);
}

static size_t front_bytes(const routing_model *m)        /* all before the tokens */
{
    return ROUTING_HEADER_BYTES + (size_t)m->n_layer * LAYER_BYTES;
}

static void put_front(uint8_t *to, const routing_model *m, uint64_t n_token)
{
    memset(to, 0, front_bytes(m));
    memcpy(to + AT_MAGIC, ROUTING_MAGIC, 8);
    store_u32(to + AT_VERSION, ROUTING_VERSION);
    store_u32(to + AT_N_LAYER, (uint32_t)m->n_layer);
    store_u32(to + AT_N_EXPERT, (uint32_t)m->n_expert);
    store_u32(to + AT_N_USED, (uint32_t)m->n_used);
    store_u64(to + AT_FINGERPRINT, m->fingerprint);
    store_u64(to + AT_N_TOKEN, n_token);
    store_u64(to + AT_DENSE, m->dense_bytes);
    memcpy(to + AT_NAME, m->name, strnlen(m->name, ROUTING_NAME_CAP - 1));
    to += ROUTING_HEADER_BYTES;
    for (int l = 0; l < m->n_layer; l++, to += LAYER_BYTES) {
        store_u64(to, m->expert_bytes[l]);
        store_u64(to + 8, m->down_bytes[l]);
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

struct routing_record {
    routing_model m;
    uint64_t *sizes;                     /* [2, n_layer]: what m points to */
    uint8_t *front;                      /* as written */
    int chunk;
    uint16_t *batch;                     /* [chunk, n_layer, n_used]: the batch under way */
    int next_layer;                      /* of it; 0: none is under way */
    uint8_t *buf;
    size_t used, cap;
    uint64_t n_token;
    int fd;                              /* < 0: closed */
    char *temp;                          /* NULL once it is in its place */
    char *path;
    err_ctx failed;                      /* code 0: nothing has */
};

static int write_all(int fd, const uint8_t *p, size_t n, err_ctx *err)
{
    while (n > 0) {
        const ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return err_sys(err, "cannot write");
        p += done;
        n -= (size_t)done;
    }
    return 0;
}

static void flush(routing_record *r)
{
    if (r->failed.code == 0) (void)write_all(r->fd, r->buf, r->used, &r->failed);
    r->used = 0;
}

static void put_token(routing_record *r, const uint16_t *ids, int pos, bool prompt)
{
    const size_t n = token_bytes(&r->m);
    if (r->cap - r->used < n) flush(r);
    uint8_t *to = r->buf + r->used;
    store_u32(to, (uint32_t)pos);
    store_u32(to + 4, prompt ? ROUTING_PROMPT : 0);
    memcpy(to + TOKEN_HEAD, ids, n - TOKEN_HEAD);
    r->used += n;
    r->n_token++;
}

void routing_record_layer(routing_record *r, int layer, int pos, int n_token, const int32_t *ids,
                          bool prompt)
{
    const size_t k = (size_t)r->m.n_used, stride = ids_of_token(&r->m);
    assert(layer >= 0 && layer < r->m.n_layer && n_token >= 1 && n_token <= r->chunk);
    assert(layer == 0 || layer == r->next_layer);
    for (int t = 0; t < n_token; t++)
        for (size_t i = 0; i < k; i++)
            r->batch[(size_t)t * stride + (size_t)layer * k + i] =
                (uint16_t)ids[(size_t)t * k + i];
    r->next_layer = layer + 1;
    if (r->next_layer < r->m.n_layer) return;
    r->next_layer = 0;
    for (int t = 0; t < n_token; t++)
        put_token(r, r->batch + (size_t)t * stride, pos + t, prompt);
}

uint64_t routing_record_tokens(const routing_record *r) { return r->n_token; }

uint64_t routing_record_bytes(const routing_record *r)
{
    return front_bytes(&r->m) + r->n_token * token_bytes(&r->m);
}

static int copy_model(routing_record *r, const routing_model *m, err_ctx *err)
{
    const size_t n = (size_t)m->n_layer;
    r->sizes = mem_array(2 * n, sizeof *r->sizes);
    if (!r->sizes) return err_set(err, ERR_NOMEM, "trace: %zu layers", n);
    memcpy(r->sizes, m->expert_bytes, n * sizeof *r->sizes);
    memcpy(r->sizes + n, m->down_bytes, n * sizeof *r->sizes);
    r->m = *m;
    r->m.expert_bytes = r->sizes;
    r->m.down_bytes = r->sizes + n;
    r->m.name[ROUTING_NAME_CAP - 1] = '\0';
    return 0;
}

static int make_buffers(routing_record *r, err_ctx *err)
{
    const size_t token = token_bytes(&r->m);
    r->cap = token > BUFFER ? token : BUFFER;
    r->buf = mem_alloc(r->cap);
    r->front = mem_alloc(front_bytes(&r->m));
    r->batch = mem_array((size_t)r->chunk * ids_of_token(&r->m), sizeof *r->batch);
    if (r->buf && r->front && r->batch) return 0;
    return err_set(err, ERR_NOMEM, "trace: no memory for batches of %d tokens", r->chunk);
}

/* NAME.part beside its place. A device or a link to one is not replaced by a file. */
static int open_temp(routing_record *r, const char *path, err_ctx *err)
{
    const size_t len = strlen(path);
    struct stat st;
    r->path = mem_strdup_n(path, len);
    char *temp = mem_array(len + 6, 1);
    if (!r->path || !temp) {
        mem_free(temp);
        return err_set(err, ERR_NOMEM, "trace: no memory for its name");
    }
    int rc = 0;
    snprintf(temp, len + 6, "%s.part", path);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        rc = err_set(err, ERR_IO, "not a regular file");
    else if ((r->fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0)
        rc = err_sys(err, "cannot create %s", temp);
    if (rc == 0) r->temp = temp;
    else mem_free(temp);
    return rc;
}

int routing_record_begin(routing_record **out, const char *path, const routing_model *m, int chunk,
                         err_ctx *err)
{
    routing_record *r;
    int rc = check_model(m, err);
    *out = NULL;
    if (rc < 0) return rc;
    if (!(r = mem_zalloc(sizeof *r))) return err_set(err, ERR_NOMEM, "trace: %zu bytes", sizeof *r);
    r->chunk = chunk;
    r->fd = -1;
    if ((rc = copy_model(r, m, err)) < 0 || (rc = make_buffers(r, err)) < 0 ||
        (rc = open_temp(r, path, err)) < 0)
        goto fail;
    put_front(r->front, &r->m, 0);
    if ((rc = write_all(r->fd, r->front, front_bytes(&r->m), err)) < 0) goto fail;
    *out = r;
    return 0;
fail:
    routing_record_drop(r);
    return rc;
}

/* Now that the number of tokens is known, the front again. */
static int complete(routing_record *r, err_ctx *err)
{
    put_front(r->front, &r->m, r->n_token);
    if (lseek(r->fd, 0, SEEK_SET) < 0) return err_sys(err, "cannot write");
    const int rc = write_all(r->fd, r->front, front_bytes(&r->m), err);
    if (rc < 0) return rc;
    const int fd = r->fd;
    r->fd = -1;
    if (close(fd) < 0 || rename(r->temp, r->path) < 0) return err_sys(err, "cannot write");
    mem_free(r->temp);
    r->temp = NULL;
    return 0;
}

int routing_record_end(routing_record *r, err_ctx *err)
{
    assert(r->fd >= 0);
    if (r->n_token == 0) return err_set(err, ERR_RANGE, "no token was recorded");
    flush(r);
    if (r->failed.code == 0) return complete(r, err);
    return err_set(err, r->failed.code, "%s", r->failed.msg);
}

void routing_record_drop(routing_record *r)
{
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    if (r->temp) unlink(r->temp);
    mem_free(r->temp);
    mem_free(r->path);
    mem_free(r->batch);
    mem_free(r->front);
    mem_free(r->buf);
    mem_free(r->sizes);
    mem_free(r);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A trace with its arrays, which it only lends. */
typedef struct loaded {
    routing_trace t;
    uint64_t *sizes;                     /* [2, n_layer] */
    uint32_t *pos;
    bool *prompt;
    uint16_t *ids;
    uint8_t *seen;                       /* [n_expert]: scratch */
} loaded;

static int read_exactly(int fd, uint8_t *p, size_t n, err_ctx *err)
{
    while (n > 0) {
        const ssize_t got = read(fd, p, n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_sys(err, "cannot read");
        if (got == 0) return err_set(err, ERR_FORMAT, "truncated trace");
        p += got;
        n -= (size_t)got;
    }
    return 0;
}

static int read_header(loaded *r, uint64_t *n_token, int fd, uint64_t bytes, err_ctx *err)
{
    uint8_t h[ROUTING_HEADER_BYTES];
    routing_model *m = &r->t.model;
    const size_t magic = bytes < 8 ? (size_t)bytes : 8;
    int rc;
    if (bytes == 0) return err_set(err, ERR_FORMAT, "the file is empty");
    if ((rc = read_exactly(fd, h, magic, err)) < 0) return rc;
    if (memcmp(h, ROUTING_MAGIC, magic) != 0)
        return err_set(err, ERR_FORMAT, "not a trace of routing");
    if (bytes < sizeof h)
        return err_set(err, ERR_FORMAT, "truncated trace: %" PRIu64 " bytes", bytes);
    if ((rc = read_exactly(fd, h + 8, sizeof h - 8, err)) < 0) return rc;
    const uint32_t version = load_u32(h + AT_VERSION);
    if (version != ROUTING_VERSION)
        return err_set(err, ERR_UNSUPPORTED, "a trace of version %" PRIu32 ", not %d", version,
                       ROUTING_VERSION);
    const shape s = { load_u32(h + AT_N_LAYER), load_u32(h + AT_N_EXPERT), load_u32(h + AT_N_USED),
                      load_u64(h + AT_DENSE) };
    if ((rc = check_shape(&s, err)) < 0) return rc;
    if (h[ROUTING_HEADER_BYTES - 1] != 0)
        return err_set(err, ERR_FORMAT, "the model's name has no end");
    m->fingerprint = load_u64(h + AT_FINGERPRINT);
    m->n_layer = (int)s.n_layer;
    m->n_expert = (int)s.n_expert;
    m->n_used = (int)s.n_used;
    m->dense_bytes = s.dense;
    memcpy(m->name, h + AT_NAME, ROUTING_NAME_CAP);
    *n_token = load_u64(h + AT_N_TOKEN);
    return 0;
}

static int check_length(const routing_model *m, uint64_t n_token, uint64_t bytes, err_ctx *err)
{
    const uint64_t front = front_bytes(m), token = token_bytes(m);
    const uint64_t there = bytes < front ? 0 : (bytes - front) / token;
    if (n_token == 0) return err_set(err, ERR_FORMAT, "the trace has no tokens");
    if (bytes < front || there < n_token)
        return err_set(err, ERR_FORMAT, "truncated trace: %" PRIu64 " of %" PRIu64 " tokens", there,
                       n_token);
    if (bytes - front != n_token * token)        /* no overflow: there >= n_token */
        return err_set(err, ERR_FORMAT, "%" PRIu64 " bytes after the last of %" PRIu64 " tokens",
                       bytes - front - n_token * token, n_token);
    if (n_token > INT_MAX) return err_set(err, ERR_RANGE, "%" PRIu64 " tokens", n_token);
    return 0;
}

static int make_arrays(loaded *r, uint64_t n_token, err_ctx *err)
{
    routing_trace *t = &r->t;
    const size_t n = (size_t)n_token;
    r->sizes = mem_array(2 * (size_t)t->model.n_layer, sizeof *r->sizes);
    r->pos = mem_array(n, sizeof *r->pos);
    r->prompt = mem_array(n, sizeof *r->prompt);
    r->ids = mem_array(n, ids_of_token(&t->model) * sizeof *r->ids);
    r->seen = mem_zalloc((size_t)t->model.n_expert);
    if (!r->sizes || !r->pos || !r->prompt || !r->ids || !r->seen)
        return err_set(err, ERR_NOMEM, "no memory for a trace of %zu tokens", n);
    t->n_token = (int)n_token;
    t->pos = r->pos;
    t->prompt = r->prompt;
    t->ids = r->ids;
    t->model.expert_bytes = r->sizes;
    t->model.down_bytes = r->sizes + t->model.n_layer;
    return 0;
}

static int read_sizes(loaded *r, int fd, err_ctx *err)
{
    const int n_layer = r->t.model.n_layer;
    for (int l = 0; l < n_layer; l++) {
        uint8_t pair[LAYER_BYTES];
        const int rc = read_exactly(fd, pair, sizeof pair, err);
        if (rc < 0) return rc;
        r->sizes[l] = load_u64(pair);
        r->sizes[n_layer + l] = load_u64(pair + 8);
    }
    return check_model(&r->t.model, err);
}

/* Ids in range and different. seen is all zero before and after. */
static int check_layer(uint8_t *seen, const uint16_t *ids, const routing_model *m, int t, int l,
                       err_ctx *err)
{
    int n = 0;
    while (n < m->n_used && ids[n] < m->n_expert && !seen[ids[n]]) seen[ids[n++]] = 1;
    for (int i = 0; i < n; i++) seen[ids[i]] = 0;
    if (n == m->n_used) return 0;
    if (ids[n] < m->n_expert)
        return err_set(err, ERR_FORMAT, "token %d, layer %d: expert %d twice", t, l, ids[n]);
    return err_set(err, ERR_FORMAT, "token %d, layer %d: expert %d of %d", t, l, ids[n],
                   m->n_expert);
}

static int check_token(loaded *r, int t, uint32_t flags, err_ctx *err)
{
    const uint32_t pos = r->pos[t];
    if (flags & ~(uint32_t)ROUTING_PROMPT)
        return err_set(err, ERR_FORMAT, "token %d: flags %#" PRIx32, t, flags);
    if (pos > INT_MAX || (t > 0 && pos > r->pos[t - 1] + 1))     /* a text may end, or go back */
        return err_set(err, ERR_FORMAT, "token %d: position %" PRIu32 "%s", t, pos,
                       pos > INT_MAX ? "" : " skips tokens");
    for (int l = 0; l < r->t.model.n_layer; l++) {
        const int rc = check_layer(r->seen, routing_trace_ids(&r->t, t, l), &r->t.model, t, l, err);
        if (rc < 0) return rc;
    }
    return 0;
}

static int read_tokens(loaded *r, int fd, err_ctx *err)
{
    const size_t token = token_bytes(&r->t.model), n_id = ids_of_token(&r->t.model);
    const int most = token < BUFFER ? (int)(BUFFER / token) : 1;
    uint8_t *buf = mem_array((size_t)most, token);
    int rc = buf ? 0 : err_set(err, ERR_NOMEM, "no memory for a buffer");
    for (int t = 0; t < r->t.n_token && rc == 0; t += most) {
        const int n = min_int(most, r->t.n_token - t);
        rc = read_exactly(fd, buf, (size_t)n * token, err);
        for (int i = 0; i < n && rc == 0; i++) {
            const uint8_t *from = buf + (size_t)i * token;
            const uint32_t flags = load_u32(from + 4);
            r->pos[t + i] = load_u32(from);
            r->prompt[t + i] = (flags & ROUTING_PROMPT) != 0;
            r->t.n_prompt += r->prompt[t + i];
            memcpy(r->ids + (size_t)(t + i) * n_id, from + TOKEN_HEAD, token - TOKEN_HEAD);
            rc = check_token(r, t + i, flags, err);
        }
    }
    mem_free(buf);
    return rc;
}

static int load_from(loaded *r, int fd, err_ctx *err)
{
    struct stat st;
    uint64_t n_token = 0;
    int rc;
    if (fstat(fd, &st) < 0) return err_sys(err, "cannot read");
    if (!S_ISREG(st.st_mode)) return err_set(err, ERR_FORMAT, "not a regular file");
    const uint64_t bytes = (uint64_t)st.st_size;
    if ((rc = read_header(r, &n_token, fd, bytes, err)) < 0 ||
        (rc = check_length(&r->t.model, n_token, bytes, err)) < 0 ||
        (rc = make_arrays(r, n_token, err)) < 0 || (rc = read_sizes(r, fd, err)) < 0)
        return rc;
    return read_tokens(r, fd, err);
}

int routing_trace_load(routing_trace **out, const char *path, err_ctx *err)
{
    loaded *r = mem_zalloc(sizeof *r);
    *out = NULL;
    if (!r) return err_set(err, ERR_NOMEM, "trace: %zu bytes", sizeof *r);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const int rc = fd < 0 ? err_sys(err, "cannot open") : load_from(r, fd, err);
    if (fd >= 0) close(fd);
    if (rc == 0) *out = &r->t;
    else routing_trace_free(&r->t);
    return rc;
}

void routing_trace_free(routing_trace *t)
{
    loaded *r = (loaded *)t;             /* its first member */
    if (!r) return;
    mem_free(r->seen);
    mem_free(r->ids);
    mem_free(r->prompt);
    mem_free(r->pos);
    mem_free(r->sizes);
    mem_free(r);
}
