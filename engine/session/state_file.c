/* state_file.c - writes a session's state to a file and reads it back.
 *
 * Everything is little-endian, without gaps:
 *
 *   header        HEADER_BYTES, drawn below, with a checksum of its own
 *   layers        for each layer u32 kind, u32 window, see layer_entry()
 *   ids           one i32 per position
 *   extra         the caller's bytes
 *   keys, values  the stored rows that the next token may read, in kv_each_piece's order
 *   recurrent     the block as it is
 *   checksum      u64 over all before it
 *
 * The rows of a next-token block are behind those of the other layers. A session without the block
 * skips them; one with it reads files without, and then its drafts are worse.
 *
 * The file has neither ctx nor slack nor the space: any session of the model and the KV type can
 * load it if the position fits. A file is read twice. The first time checks everything and changes
 * nothing, so the second time can fail only if the file changes in between or the space fails. */
#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/session/layer_memory.h"
#include "engine/session/state_internal.h"
#include "loader/bytes.h"
#include "loader/file_io.h"

enum {
    VERSION = 1,
    BUFFER = 1 << 18,                    /* a multiple of 8, so that only the last word is cut */
    N_FACT = 8,
    /* where the fields of the header are */
    AT_MAGIC = 0,                        /* 8 bytes */
    AT_VERSION = 8,                      /* u32 */
    AT_KV_TYPE = 12,                     /* u32, a kv_type */
    AT_FILE_BYTES = 16,                  /* u64, of the whole file */
    AT_EXTRA_BYTES = 24,                 /* u64 */
    AT_POS = 32,                         /* u32 */
    AT_FACTS = 36,                       /* N_FACT times u32, see facts_of() */
    AT_MTP = AT_FACTS + 4 * N_FACT,      /* u32, 1: with the layer of a next-token block; or 0 */
    AT_MODEL = AT_MTP + 4,               /* u64: the tag */
    AT_ARCH = AT_MODEL + 8,              /* text, filled up with zeros */
    AT_NAME = AT_ARCH + 24,              /* the same */
    AT_SUM = AT_NAME + 64,               /* u64, checksum of the header up to here */
    HEADER_BYTES = AT_SUM + 8
};
static_assert(sizeof(((state_tag *)0)->arch) == AT_NAME - AT_ARCH &&
              sizeof(((state_tag *)0)->name) == AT_SUM - AT_NAME && HEADER_BYTES % 8 == 0,
              "header");

/* ---- checksum ------------------------------------------------------------------------------- */

/* The last bytes are filled up with zeros. Each step can be undone for a known word and for a known
 * sum, so damage within one word is always noticed; other damage goes unnoticed once in 2^64. */
uint64_t state_checksum(uint64_t sum, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    for (; n > 0; p += 8) {
        uint8_t last[8] = { 0 };
        if (n < 8) memcpy(last, p, n);
        sum = (sum ^ load_u64(n < 8 ? last : p)) * UINT64_C(0x9E3779B97F4A7C15);
        sum ^= sum >> 32;
        n -= n < 8 ? n : 8;
    }
    return sum;
}

/* ---- dimensions of the model ----------------------------------------------------------------- */

typedef struct fact { const char *what; uint32_t value; } fact;

static void facts_of(fact out[N_FACT], const model_hparams *hp)
{
    const fact all[N_FACT] = {
        { "layers", (uint32_t)hp->n_layer }, { "tokens in the vocabulary", (uint32_t)hp->n_vocab },
        { "KV heads", (uint32_t)hp->n_head_kv }, { "values in a head", (uint32_t)hp->head_dim },
        { "taps of the convolution", (uint32_t)hp->ssm_conv },
        { "values in a recurrent head", (uint32_t)hp->ssm_head_dim },
        { "recurrent key heads", (uint32_t)hp->ssm_n_k_head },
        { "recurrent value heads", (uint32_t)hp->ssm_n_v_head },
    };
    memcpy(out, all, sizeof all);
}

/* The kind: 0 attention with the header's heads, 1 DeltaNet, 2 attention to the keys and values of
 * an earlier layer; attention with others: how many of them, and their values in the lower 16 bits,
 * more than 2 in any case. */
static void layer_entry(uint8_t out[8], const model *m, int l)
{
    const layer_memory a = layer_memory_of(m, l);
    const bool same = a.n_head == m->hp.n_head_kv && a.head_dim == m->hp.head_dim;
    const uint32_t others = (uint32_t)a.n_head << 16 | (uint32_t)a.head_dim;
    store_u32(out, a.kind == MEMORY_RECURRENT ? 1 : a.kind == MEMORY_NONE ? 2 : same ? 0 : others);
    store_u32(out + 4, (uint32_t)a.window);
}

uint64_t state_layout_key(const model *m, kv_type type, const state_tag *tag)
{
    uint8_t word[8];
    fact facts[N_FACT];
    store_u64(word, tag->model);
    uint64_t sum = state_checksum((uint64_t)type + 1, word, 8);
    sum = state_checksum(sum, tag->arch, sizeof tag->arch);
    sum = state_checksum(sum, tag->name, sizeof tag->name);
    facts_of(facts, &m->hp);
    for (int i = 0; i < N_FACT; i++) {
        store_u64(word, facts[i].value);
        sum = state_checksum(sum, word, 8);
    }
    for (int l = 0; l < hparams_layers(&m->hp); l++) {
        layer_entry(word, m, l);
        sum = state_checksum(sum, word, 8);
    }
    return sum;
}

static int add_piece(void *ctx, mem_space *where, void *bytes, size_t n)
{
    (void)where;
    (void)bytes;
    *(uint64_t *)ctx += n;               /* pieces of memory that is there: no overflow */
    return 0;
}

/* Layers of a file, mtp: with a next-token block. */
static int layers_of(const state *s, uint32_t mtp) { return s->m->hp.n_layer + (int)mtp; }

static uint64_t mtp_bytes(const state *s, int pos)
{
    return kv_rows_bytes(s->m, s->o.kv, s->m->hp.n_layer, pos);
}

/* Bytes of the whole file. False: too much. */
static bool file_bytes(uint64_t *out, const state *s, uint32_t mtp, int pos, uint64_t extra_bytes)
{
    *out = HEADER_BYTES + 8 * (uint64_t)layers_of(s, mtp) + 4 * (uint64_t)pos + s->rec_bytes + 8;
    kv_each_piece(s->kv, KV_TRUNK, pos, add_piece, out);
    if (mtp) *out += mtp_bytes(s, pos);
    return size_add(out, *out, extra_bytes);
}

static void copy_text(uint8_t *dst, const char *src, size_t cap)
{
    memset(dst, 0, cap);
    memcpy(dst, src, strnlen(src, cap));
}

/* False: too long a file. */
static bool make_header(uint8_t h[HEADER_BYTES], const state *s, const state_tag *tag,
                        size_t extra_bytes)
{
    fact facts[N_FACT];
    uint64_t bytes;
    const uint32_t mtp = s->m->hp.uses_mtp;
    if (!file_bytes(&bytes, s, mtp, s->pos, extra_bytes)) return false;
    facts_of(facts, &s->m->hp);
    memset(h, 0, HEADER_BYTES);
    memcpy(h + AT_MAGIC, STATE_FILE_MAGIC, 8);
    store_u32(h + AT_VERSION, VERSION);
    store_u32(h + AT_KV_TYPE, (uint32_t)s->o.kv);
    store_u64(h + AT_FILE_BYTES, bytes);
    store_u64(h + AT_EXTRA_BYTES, extra_bytes);
    store_u32(h + AT_POS, (uint32_t)s->pos);
    for (int i = 0; i < N_FACT; i++) store_u32(h + AT_FACTS + 4 * i, facts[i].value);
    store_u32(h + AT_MTP, mtp);
    store_u64(h + AT_MODEL, tag->model);
    copy_text(h + AT_ARCH, tag->arch, sizeof tag->arch);
    copy_text(h + AT_NAME, tag->name, sizeof tag->name);
    store_u64(h + AT_SUM, state_checksum(0, h, AT_SUM));
    return true;
}

/* ---- the stream ------------------------------------------------------------------------------ */

/* A buffered reader or writer that computes the checksum. The space of each piece copies between
 * the buffer and the state. */
typedef struct stream {
    int fd;
    const char *path;                    /* for messages */
    err_ctx *err;
    uint8_t *buf;                        /* [BUFFER] */
    size_t used, have;                   /* of buf; have is for reading */
    uint64_t left;                       /* reading: summed bytes not yet in buf */
    uint64_t sum;
} stream;

static int flush(stream *f)
{
    const size_t n = f->used;
    f->sum = state_checksum(f->sum, f->buf, n);
    f->used = 0;
    return file_write(f->fd, f->buf, n, f->err);
}

static int put_from(stream *f, mem_space *from, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    while (n > 0) {
        const size_t room = BUFFER - f->used, part = n < room ? n : room;
        from->read(from, f->buf + f->used, p, part);
        f->used += part;
        p += part;
        n -= part;
        if (f->used == BUFFER) {
            const int rc = flush(f);
            if (rc < 0) return rc;
        }
    }
    return 0;
}

static int put(stream *f, const void *bytes, size_t n)
{
    return put_from(f, mem_space_ram(), bytes, n);
}

static int put_piece(void *ctx, mem_space *where, void *bytes, size_t n)
{
    return put_from(ctx, where, bytes, n);
}

static int truncated(stream *f)
{
    return err_set(f->err, ERR_FORMAT, "truncated session file");
}

/* Reads n bytes to dst, or skips them if dst is NULL. */
static int take_to(stream *f, mem_space *to, void *dst, uint64_t n)
{
    uint8_t *out = dst;
    while (n > 0) {
        if (f->used == f->have) {
            const size_t want = f->left < BUFFER ? (size_t)f->left : BUFFER;
            const ssize_t got = file_read(f->fd, f->buf, want, f->err);
            if (got < 0) return (int)got;
            if ((size_t)got < want || want == 0) return truncated(f);
            f->sum = state_checksum(f->sum, f->buf, want);
            f->left -= want;
            f->have = want;
            f->used = 0;
        }
        const size_t room = f->have - f->used, part = n < room ? (size_t)n : room;
        if (out) {
            to->write(to, out, f->buf + f->used, part);
            out += part;
        }
        f->used += part;
        n -= part;
    }
    return 0;
}

static int take(stream *f, void *dst, uint64_t n)
{
    return take_to(f, mem_space_ram(), dst, n);
}

static int take_piece(void *ctx, mem_space *where, void *bytes, size_t n)
{
    return take_to(ctx, where, bytes, n);
}

/* Compares the sum of all bytes read with the stored one, which follows. */
static int take_checksum(stream *f)
{
    uint8_t word[8];
    const ssize_t got = file_read(f->fd, word, 8, f->err);
    if (got < 0) return (int)got;
    if (got < 8) return truncated(f);
    if (load_u64(word) != f->sum)
        return err_set(f->err, ERR_FORMAT, "damaged session file (wrong checksum)");
    return 0;
}

static int rewind_stream(stream *f, uint64_t bytes)
{
    if (lseek(f->fd, 0, SEEK_SET) < 0) return err_sys(f->err, "cannot read");
    f->used = f->have = 0;
    f->left = bytes - 8;
    f->sum = 0;
    return 0;
}

static int make_buffer(stream *f)
{
    f->buf = mem_alloc(BUFFER);
    return f->buf ? 0 : err_set(f->err, ERR_NOMEM, "no memory for a buffer");
}

/* ---- saving ---------------------------------------------------------------------------------- */

typedef struct saving {
    stream f;
    const state *s;
    const state_tag *tag;
    const int32_t *ids;
    str_view extra;
} saving;

static int write_state(void *ctx, int fd, err_ctx *err)
{
    saving *w = ctx;
    const state *s = w->s;
    stream *f = &w->f;
    uint8_t header[HEADER_BYTES], word[8];
    int rc;
    f->fd = fd;
    if (!make_header(header, s, w->tag, w->extra.len))
        return err_set(err, ERR_RANGE, "%zu extra bytes", w->extra.len);
    if ((rc = put(f, header, sizeof header)) < 0) return rc;
    for (int l = 0; l < hparams_layers(&s->m->hp); l++) {
        layer_entry(word, s->m, l);
        if ((rc = put(f, word, 8)) < 0) return rc;
    }
    if ((rc = put(f, w->ids, (size_t)s->pos * sizeof *w->ids)) < 0) return rc;
    if ((rc = put(f, w->extra.ptr, w->extra.len)) < 0) return rc;
    if ((rc = kv_each_piece(s->kv, KV_ALL, s->pos, put_piece, f)) < 0) return rc;
    if ((rc = state_each_block(s, put_piece, f)) < 0) return rc;
    if ((rc = state_check(s, err)) < 0) return rc;
    if ((rc = flush(f)) < 0) return rc;
    store_u64(word, f->sum);
    return file_write(fd, word, 8, err);
}

int state_save(const state *s, const char *path, const state_tag *tag, const int32_t *ids,
               str_view extra, err_ctx *err)
{
    saving w = { { .path = path, .err = err }, s, tag, ids, extra };
    int rc = make_buffer(&w.f);
    if (rc == 0) rc = file_replace(path, 0, write_state, &w, err);
    mem_free(w.f.buf);
    return rc;
}

/* ---- loading: the checks --------------------------------------------------------------------- */

/* Checks that the header is whole, undamaged and of this version. */
static int read_header(uint8_t h[HEADER_BYTES], stream *f)
{
    const ssize_t got = file_read(f->fd, h, HEADER_BYTES, f->err);
    if (got < 0) return (int)got;
    if (got < 8 || memcmp(h, STATE_FILE_MAGIC, 8) != 0)
        return err_set(f->err, ERR_FORMAT, "not a session file");
    if (got < HEADER_BYTES) return truncated(f);
    const uint32_t version = load_u32(h + AT_VERSION);
    if (version != VERSION)
        return err_set(f->err, ERR_UNSUPPORTED, "session file of version %u, this program reads "
                       "version %d", version, VERSION);
    if (load_u64(h + AT_SUM) != state_checksum(0, h, AT_SUM))
        return err_set(f->err, ERR_FORMAT, "damaged session file (wrong checksum of the header)");
    return 0;
}

static str_view text_at(const void *p, size_t cap)
{
    return (str_view){ p, strnlen(p, cap) };
}

static int check_model(const stream *f, const uint8_t *h, const model *m, const state_tag *tag)
{
    const str_view arch = text_at(h + AT_ARCH, sizeof tag->arch);
    const str_view name = text_at(h + AT_NAME, sizeof tag->name);
    const str_view own_arch = text_at(tag->arch, sizeof tag->arch);
    const str_view own_name = text_at(tag->name, sizeof tag->name);
    char a[64], b[160], c[64], d[160];
    fact facts[N_FACT];

    if (!str_eq(arch, own_arch) || !str_eq(name, own_name))
        return err_set(f->err, ERR_UNSUPPORTED, "made for %s \"%s\", this is %s \"%s\"",
                       ESC(a, arch), ESC(b, name), ESC(c, own_arch), ESC(d, own_name));
    if (load_u64(h + AT_MODEL) != tag->model)
        return err_set(f->err, ERR_UNSUPPORTED, "made for another file of %s \"%s\"",
                       ESC(a, arch), ESC(b, name));
    facts_of(facts, &m->hp);
    for (int i = 0; i < N_FACT; i++) {
        const uint32_t v = load_u32(h + AT_FACTS + 4 * i);
        if (v != facts[i].value)
            return err_set(f->err, ERR_UNSUPPORTED, "made for a model with %u %s, this one has "
                           "%u", v, facts[i].what, facts[i].value);
    }
    return 0;
}

static int check_session(const stream *f, const uint8_t *h, const state *s, int cap)
{
    const uint32_t type = load_u32(h + AT_KV_TYPE), pos = load_u32(h + AT_POS);
    const uint32_t most = (uint32_t)(cap < s->o.ctx ? cap : s->o.ctx), mtp = load_u32(h + AT_MTP);
    uint64_t bytes;

    if (type > KV_Q8_0)
        return err_set(f->err, ERR_FORMAT, "unknown KV type %u", type);
    if (type != (uint32_t)s->o.kv)
        return err_set(f->err, ERR_UNSUPPORTED, "its KV cache is %s, that of this session %s",
                       kv_type_name((kv_type)type), kv_type_name(s->o.kv));
    if (pos > most)
        return err_set(f->err, ERR_RANGE, "holds %u tokens, the context has room for %u", pos,
                       most);
    if (mtp > (s->m->hp.n_mtp > 0) ||
        !file_bytes(&bytes, s, mtp, (int)pos, load_u64(h + AT_EXTRA_BYTES)) ||
        bytes != load_u64(h + AT_FILE_BYTES))
        return err_set(f->err, ERR_FORMAT, "session file of another layout");
    return 0;
}

static int check_length(const stream *f, uint64_t want)
{
    struct stat st;
    if (fstat(f->fd, &st) < 0) return err_sys(f->err, "cannot read");
    if ((uint64_t)st.st_size == want) return 0;
    return err_set(f->err, ERR_FORMAT, "%s session file, %llu bytes of %llu",
                   (uint64_t)st.st_size < want ? "truncated" : "too long a",
                   (unsigned long long)st.st_size, (unsigned long long)want);
}

/* Reads the whole file once. A wrong checksum is reported before any other error, because the
 * contents of a damaged file mean nothing. */
static int check_content(stream *f, const uint8_t *h, const state *s)
{
    const int pos = (int)load_u32(h + AT_POS), n_layer = layers_of(s, load_u32(h + AT_MTP));
    int bad_layer = -1, bad_id = -1, rc;
    uint8_t word[8], own[8];
    uint32_t id = 0;

    if ((rc = rewind_stream(f, load_u64(h + AT_FILE_BYTES))) < 0) return rc;
    if ((rc = take(f, NULL, HEADER_BYTES)) < 0) return rc;
    for (int l = 0; l < n_layer; l++) {
        layer_entry(own, s->m, l);
        if ((rc = take(f, word, 8)) < 0) return rc;
        if (memcmp(word, own, 8) != 0 && bad_layer < 0) bad_layer = l;
    }
    for (int t = 0; t < pos; t++) {
        if ((rc = take(f, word, 4)) < 0) return rc;
        if (load_u32(word) < (uint32_t)s->m->hp.n_vocab || bad_id >= 0) continue;
        bad_id = t;
        id = load_u32(word);
    }
    if ((rc = take(f, NULL, f->left + (f->have - f->used))) < 0) return rc;
    if ((rc = take_checksum(f)) < 0) return rc;
    if (bad_layer >= 0)
        return err_set(f->err, ERR_UNSUPPORTED, "made for a model whose layer %d is another",
                       bad_layer);
    if (bad_id >= 0)
        return err_set(f->err, ERR_FORMAT, "token %d has id %d, the vocabulary %d",
                       bad_id, (int)id, s->m->hp.n_vocab);
    return 0;
}

/* ---- loading: the second time ---------------------------------------------------------------- */

static int read_state(stream *f, const uint8_t *h, state *s, int32_t *ids, char *extra)
{
    const int pos = (int)load_u32(h + AT_POS);
    const uint32_t mtp = load_u32(h + AT_MTP);
    int rc;
    if ((rc = rewind_stream(f, load_u64(h + AT_FILE_BYTES))) < 0) return rc;
    if ((rc = take(f, NULL, HEADER_BYTES + 8 * (uint64_t)layers_of(s, mtp))) < 0) return rc;
    if ((rc = take(f, ids, (uint64_t)pos * sizeof *ids)) < 0) return rc;
    if ((rc = take(f, extra, load_u64(h + AT_EXTRA_BYTES))) < 0) return rc;
    state_clear(s);
    if ((rc = state_reserve(s, pos, f->err)) < 0) return rc;
    if ((rc = kv_each_piece(s->kv, KV_TRUNK, pos, take_piece, f)) < 0) return rc;
    if (mtp) rc = s->m->hp.uses_mtp ? kv_each_piece(s->kv, KV_MTP, pos, take_piece, f)
                                    : take(f, NULL, mtp_bytes(s, pos));
    if (rc < 0) return rc;
    if ((rc = state_each_block(s, take_piece, f)) < 0) return rc;
    if ((rc = take_checksum(f)) < 0) return rc;
    if ((rc = state_check(s, f->err)) < 0) return rc;
    kv_replaced(s->kv, KV_ALL, pos);
    s->pos = pos;
    return 0;
}

static int open_file(stream *f)
{
    struct stat st;
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);    /* a FIFO must not hold us up */
    if (f->fd < 0) return err_sys(f->err, "cannot open");
    if (fstat(f->fd, &st) < 0) return err_sys(f->err, "cannot read");
    if (S_ISREG(st.st_mode)) return 0;
    return err_set(f->err, ERR_IO, "is not a regular file");
}

int state_load(state *s, const char *path, const state_tag *tag, int32_t *ids, int cap,
               char **extra, size_t *n_extra, err_ctx *err)
{
    stream f = { .fd = -1, .path = path, .err = err };
    uint8_t h[HEADER_BYTES];
    uint64_t n = 0;
    char *copy = NULL;
    int rc;

    *extra = NULL;
    *n_extra = 0;
    if ((rc = make_buffer(&f)) < 0 || (rc = open_file(&f)) < 0 || (rc = read_header(h, &f)) < 0 ||
        (rc = check_model(&f, h, s->m, tag)) < 0 || (rc = check_session(&f, h, s, cap)) < 0 ||
        (rc = check_length(&f, load_u64(h + AT_FILE_BYTES))) < 0 ||
        (rc = check_content(&f, h, s)) < 0)
        goto done;
    n = load_u64(h + AT_EXTRA_BYTES);    /* less than the file, which is there */
    copy = mem_alloc((size_t)n + 1);     /* terminated, for text */
    if (!copy) {
        rc = err_set(err, ERR_NOMEM, "no memory for %llu extra bytes", (unsigned long long)n);
        goto done;
    }
    copy[n] = '\0';
    if ((rc = read_state(&f, h, s, ids, copy)) < 0) {
        state_clear(s);
        goto done;
    }
    *extra = copy;
    *n_extra = (size_t)n;
    copy = NULL;
done:
    if (f.fd >= 0) close(f.fd);
    mem_free(copy);
    mem_free(f.buf);
    return rc;
}
