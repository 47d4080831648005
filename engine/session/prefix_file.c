/* prefix_file.c - writes and reads the file of a kept state.
 *
 *   head   HEAD_BYTES, drawn below
 *   ids    one i32 for each position up to `to`
 *   body   rows, checkpoint
 *
 * All little-endian, without gaps. */
#include "engine/session/prefix_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/session/state_internal.h"
#include "loader/bytes.h"
#include "loader/file_io.h"

#define MAGIC "MOEPREFX"

enum {
    VERSION = 2,
    MOST_TOKENS = 1 << 27,
    PIECE = 4 << 20,                     /* bytes of the body with a checksum of their own */
    /* offsets of the head's fields */
    AT_MAGIC = 0,                        /* 8 bytes */
    AT_VERSION = 8,                      /* u32 */
    AT_FROM = 12,                        /* u32 */
    AT_TO = 16,                          /* u32 */
    AT_UNUSED = 20,                      /* u32, 0 */
    AT_KEY = 24,                         /* u64 each from here on */
    AT_PARENT = 32,
    AT_ROWS = 40,                        /* bytes */
    AT_CHECKPOINT = 48,                        /* bytes */
    AT_BODY_SUM = 56,
    AT_STAMP = 64,                       /* checksum of the head up to here and the ids */
    HEAD_BYTES = 72
};

/* ---- names and sizes ------------------------------------------------------------------------- */

uint64_t prefix_file_bytes(const prefix_file *f)
{
    return size_plus(HEAD_BYTES + 4 * (uint64_t)f->to,
                     size_plus(f->rows_bytes, f->checkpoint_bytes));
}

const char *prefix_file_name(char dst[PREFIX_NAME], const prefix_file *f)
{
    snprintf(dst, PREFIX_NAME, "%016" PRIx64 "-%016" PRIx64 ".prefix", f->key, f->stamp);
    return dst;
}

enum { KEY = 17, STEM = 33 };            /* characters of a name: "<key>-", "<key>-<stamp>" */

prefix_kind prefix_file_kind(const char *name, uint64_t key)
{
    char own[PREFIX_NAME];
    prefix_file_name(own, &(prefix_file){ .key = key });
    if (strncmp(name, own, KEY) != 0 || strlen(name) < STEM ||
        strspn(name + KEY, "0123456789abcdef") != STEM - KEY)
        return PREFIX_OTHER;
    if (strcmp(name + STEM, ".prefix") == 0) return PREFIX_OWN;
    return strncmp(name + STEM, ".prefix.", 8) == 0 ? PREFIX_TEMPORARY : PREFIX_OTHER;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static int read_at(int fd, void *bytes, size_t n, off_t offset, err_ctx *err)
{
    uint8_t *p = bytes;
    while (n > 0) {
        const ssize_t got = pread(fd, p, n < INT_MAX / 2 ? n : INT_MAX / 2, offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_sys(err, "cannot read");
        if (got == 0) return err_set(err, ERR_FORMAT, "truncated");
        p += got;
        offset += got;
        n -= (size_t)got;
    }
    return 0;
}

/* ---- the body, in pieces --------------------------------------------------------------------- */

static size_t n_pieces(size_t n) { return (n + PIECE - 1) / PIECE; }

static size_t piece_bytes(size_t n, size_t i)
{
    return n - i * PIECE < PIECE ? n - i * PIECE : PIECE;
}

/* The body's checksum is that of the checksums of its pieces. */
static uint64_t body_checksum(const uint8_t *body, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n_pieces(n); i++) {
        const uint64_t own = state_checksum(0, body + i * PIECE, piece_bytes(n, i));
        sum = state_checksum(sum, &own, sizeof own);
    }
    return sum;
}

typedef struct body_reader {
    int fd;
    off_t offset;                        /* of the body in the file */
    uint8_t *body;
    size_t n;
    uint64_t *sums;                      /* of each piece */
    err_ctx *errs;                       /* of each piece; code 0: none */
} body_reader;

static void read_pieces(void *ctx, int64_t begin, int64_t end, int thread)
{
    const body_reader *r = ctx;
    (void)thread;
    for (size_t i = (size_t)begin; i < (size_t)end; i++) {
        const size_t n = piece_bytes(r->n, i);
        const off_t offset = r->offset + (off_t)(i * PIECE);
        uint8_t *piece = r->body + i * PIECE;
        (void)posix_fadvise(r->fd, offset, (off_t)n, POSIX_FADV_WILLNEED);       /* one request */
        if (read_at(r->fd, piece, n, offset, &r->errs[i]) == 0)
            r->sums[i] = state_checksum(0, piece, n);
    }
}

/* Reads n bytes from this offset; their checksum in *sum. */
static int read_body(uint64_t *sum, uint8_t *body, size_t n, int fd, off_t offset, pool *team,
                     err_ctx *err)
{
    const size_t n_piece = n_pieces(n);
    body_reader r = { .fd = fd, .offset = offset, .body = body, .n = n,
                      .sums = mem_array(n_piece, sizeof *r.sums),
                      .errs = mem_zalloc(n_piece * sizeof *r.errs) };
    int rc = r.sums && r.errs ? 0 : err_set(err, ERR_NOMEM, "no memory for %zu checksums", n_piece);
    if (rc == 0) {
        if (team) pool_run(team, (int64_t)n_piece, 1, read_pieces, &r);
        else read_pieces(&r, 0, (int64_t)n_piece, 0);
    }
    for (size_t i = 0; i < n_piece && rc == 0; i++)
        if ((rc = r.errs[i].code) < 0 && err) *err = r.errs[i];
    if (rc == 0) *sum = state_checksum(0, r.sums, n_piece * sizeof *r.sums);
    mem_free(r.sums);
    mem_free(r.errs);
    return rc;
}

/* The path in allocated memory; NULL without memory. */
static char *path_of(const char *folder, const char *name, err_ctx *err)
{
    const size_t n = strlen(folder) + strlen(name) + 2;
    char *path = mem_alloc(n);
    if (path) snprintf(path, n, "%s/%s", folder, name);
    else err_set(err, ERR_NOMEM, "no memory for its name");
    return path;
}

static void make_head(uint8_t h[HEAD_BYTES], const prefix_file *f)
{
    memset(h, 0, HEAD_BYTES);
    memcpy(h + AT_MAGIC, MAGIC, 8);
    store_u32(h + AT_VERSION, VERSION);
    store_u32(h + AT_FROM, (uint32_t)f->from);
    store_u32(h + AT_TO, (uint32_t)f->to);
    store_u64(h + AT_KEY, f->key);
    store_u64(h + AT_PARENT, f->parent);
    store_u64(h + AT_ROWS, f->rows_bytes);
    store_u64(h + AT_CHECKPOINT, f->checkpoint_bytes);
    store_u64(h + AT_BODY_SUM, f->body_sum);
    store_u64(h + AT_STAMP, f->stamp);
}

static uint64_t stamp_of(const uint8_t h[HEAD_BYTES], const int32_t *ids, int n)
{
    return state_checksum(state_checksum(0, h, AT_STAMP), ids, (size_t)n * sizeof *ids);
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct parts { const prefix_file *f; const int32_t *ids; const uint8_t *body; } parts;

static int write_parts(void *ctx, int fd, err_ctx *err)
{
    const parts *p = ctx;
    const prefix_file *f = p->f;
    uint8_t h[HEAD_BYTES];
    int rc;
    make_head(h, f);
    if ((rc = file_write(fd, h, sizeof h, err)) < 0 ||
        (rc = file_write(fd, p->ids, (size_t)f->to * sizeof *p->ids, err)) < 0)
        return rc;
    return file_write(fd, p->body, (size_t)(f->rows_bytes + f->checkpoint_bytes), err);
}

int prefix_file_write(prefix_file *f, const char *folder, const int32_t *ids, const uint8_t *body,
                      err_ctx *err)
{
    uint8_t h[HEAD_BYTES];
    char name[PREFIX_NAME];
    f->body_sum = body_checksum(body, (size_t)(f->rows_bytes + f->checkpoint_bytes));
    f->stamp = 0;
    make_head(h, f);
    f->stamp = stamp_of(h, ids, f->to);
    prefix_file_name(name, f);
    char *path = path_of(folder, name, err);
    if (!path) return ERR_NOMEM;
    const int rc = file_replace(path, 0, write_parts, &(parts){ f, ids, body }, err);
    mem_free(path);
    return rc < 0 ? err_prefix(err, rc, "%s", name) : 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int open_file(int *fd, uint64_t *bytes, const char *folder, const char *name, err_ctx *err)
{
    struct stat st;
    char *path = path_of(folder, name, err);
    *fd = -1;
    if (!path) return ERR_NOMEM;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);    /* a FIFO cannot block */
    mem_free(path);
    if (*fd < 0) return err_sys(err, "cannot open");
    if (fstat(*fd, &st) < 0) return err_sys(err, "cannot read");
    if (!S_ISREG(st.st_mode)) return err_set(err, ERR_FORMAT, "is not a regular file");
    *bytes = (uint64_t)st.st_size;
    return 0;
}

/* Parses the head and checks all but its checksum, which covers the ids. */
static int parse_head(prefix_file *f, const uint8_t h[HEAD_BYTES], uint64_t bytes, uint64_t key,
                      err_ctx *err)
{
    const uint32_t version = load_u32(h + AT_VERSION);
    const uint32_t from = load_u32(h + AT_FROM), to = load_u32(h + AT_TO);
    if (memcmp(h, MAGIC, 8) != 0) return err_set(err, ERR_FORMAT, "not a state");
    if (version != VERSION)
        return err_set(err, ERR_FORMAT, "version %u, this program reads %d", version, VERSION);
    if (to > MOST_TOKENS || from >= to)
        return err_set(err, ERR_FORMAT, "damaged: tokens %u to %u", from, to);
    *f = (prefix_file){
        .key = load_u64(h + AT_KEY), .parent = load_u64(h + AT_PARENT), .from = (int)from,
        .to = (int)to, .rows_bytes = load_u64(h + AT_ROWS),
        .checkpoint_bytes = load_u64(h + AT_CHECKPOINT), .body_sum = load_u64(h + AT_BODY_SUM),
        .stamp = load_u64(h + AT_STAMP),
    };
    if (f->key != key) return err_set(err, ERR_FORMAT, "made for another model or KV type");
    if (prefix_file_bytes(f) != bytes)
        return err_set(err, ERR_FORMAT, "%" PRIu64 " bytes of %" PRIu64, bytes,
                       prefix_file_bytes(f));
    return 0;
}

static int read_head(prefix_file *f, int32_t **ids, int fd, uint64_t bytes, const char *name,
                     uint64_t key, err_ctx *err)
{
    uint8_t h[HEAD_BYTES];
    char own[PREFIX_NAME];
    int rc;
    if ((rc = read_at(fd, h, sizeof h, 0, err)) < 0 || (rc = parse_head(f, h, bytes, key, err)) < 0)
        return rc;
    *ids = mem_array((size_t)f->to, sizeof **ids);       /* less than the file's bytes */
    if (!*ids) return err_set(err, ERR_NOMEM, "no memory for %d ids", f->to);
    if ((rc = read_at(fd, *ids, (size_t)f->to * sizeof **ids, HEAD_BYTES, err)) < 0) return rc;
    if (stamp_of(h, *ids, f->to) != f->stamp || strcmp(prefix_file_name(own, f), name) != 0)
        return err_set(err, ERR_FORMAT, "damaged (wrong checksum of the head)");
    return 0;
}

int prefix_file_read_head(prefix_file *f, int32_t **ids, const char *folder, const char *name,
                          uint64_t key, err_ctx *err)
{
    uint64_t bytes;
    int fd, rc = open_file(&fd, &bytes, folder, name, err);
    *ids = NULL;
    if (rc == 0) rc = read_head(f, ids, fd, bytes, name, key, err);
    if (fd >= 0) close(fd);
    if (rc == 0) return 0;
    mem_free(*ids);
    *ids = NULL;
    return err_prefix(err, rc, "%s", name);
}

int prefix_file_read_body(uint8_t *body, const prefix_file *f, const char *folder, pool *team,
                          err_ctx *err)
{
    const size_t n = (size_t)(f->rows_bytes + f->checkpoint_bytes);
    const off_t offset = HEAD_BYTES + 4 * (off_t)f->to;
    char name[PREFIX_NAME];
    uint64_t bytes, sum = 0;
    int fd, rc = open_file(&fd, &bytes, folder, prefix_file_name(name, f), err);
    if (rc == 0 && bytes != prefix_file_bytes(f)) rc = err_set(err, ERR_FORMAT, "truncated");
    if (rc == 0) rc = read_body(&sum, body, n, fd, offset, team, err);
    if (rc == 0 && sum != f->body_sum) rc = err_set(err, ERR_FORMAT, "damaged (wrong checksum)");
    if (fd >= 0) close(fd);
    return rc < 0 ? err_prefix(err, rc, "%s", name) : 0;
}
