/* pull_file.c - one file: request, check the headers, write the bytes, wait, retry.
 *
 * The server's size and hash must agree with the list, with its earlier responses and with the
 * received bytes. Errors that the headers show are reported before the first byte is written. */
#include "cli/pull/pull_file.h"

#include <string.h>
#include <time.h>

#include "cli/interrupt.h"

enum {
    ENOUGH_BYTES = 64 << 10,             /* a try with fewer counts as one without progress */
    FIRST_WAIT_MS = 250, LONGEST_WAIT_MS = 30000
};

typedef struct pulling {
    const pull_request *w;
    part_file f;
    fetch_head head;
    uint64_t limit;                      /* of the file's bytes */
    uint64_t downloaded;
    bool start_over;                     /* the .part belongs to another version of the file */
} pulling;

/* ---- watching ------------------------------------------------------------------------------ */

static bool keep_going(void *ctx)
{
    pulling *p = ctx;
    progress_update(p->w->bar, p->w->before + p->f.bytes);
    return !interrupted();
}

static bool watch_hash(void *ctx, double done, double total)
{
    (void)done, (void)total;
    return keep_going(ctx);
}

/* False if interrupted. */
static bool wait_ms(const char *why, int64_t ms)
{
    const struct timespec piece = { 0, 50000000 };
    const uint64_t until = clock_ns() + (uint64_t)ms * 1000000;
    console_status("%s; trying again in %.0f s", why, ((double)ms + 499) / 1000);
    while (!interrupted() && clock_ns() < until) nanosleep(&piece, NULL);
    console_status_clear();
    return !interrupted();
}

/* ---- response headers ---------------------------------------------------------------------- */

static bool differs(const pull_request *w, const char *announced)
{
    return w->sha256.len > 0 && *announced && !str_is(w->sha256, announced);
}

static int check_announced(const pulling *p, const fetch_head *h, err_ctx *err)
{
    const pull_request *w = p->w;
    if (differs(w, h->sha256) && !w->accept_changed)
        return err_set(err, ERR_FORMAT, "the publisher has replaced the file: its sha256 is %s, "
                       "models.txt says %.*s; --accept-changed takes it nevertheless", h->sha256,
                       (int)w->sha256.len, w->sha256.ptr);
    if (h->total == FETCH_UNKNOWN) return 0;
    if (w->bytes > 0 && h->total != w->bytes && !w->accept_changed)
        return err_set(err, ERR_FORMAT, "the server's file has %llu bytes, models.txt says %llu: "
                       "the publisher has replaced it, or the server is wrong; --accept-changed "
                       "takes it nevertheless", (unsigned long long)h->total,
                       (unsigned long long)w->bytes);
    if (h->total > w->most_bytes && !w->accept_changed)
        return err_set(err, ERR_FORMAT, "the server's file has %llu bytes, far more than "
                       "models.txt says; --accept-changed takes it nevertheless",
                       (unsigned long long)h->total);
    return 0;
}

static int check_disk(const pulling *p, uint64_t bytes, err_ctx *err)
{
    char need[32], free_text[32];
    uint64_t left;
    if (part_file_disk_free(&left, p->f.final, err) < 0) return ERR_IO;
    if (bytes <= left) return 0;
    return err_set(err, ERR_IO, "%s are missing, and the disk has %s left: delete files, or "
                   "choose another --dir", text_bytes(need, sizeof need, bytes),
                   text_bytes(free_text, sizeof free_text, left));
}

static int on_begin(void *ctx, const fetch_head *h, err_ctx *err)
{
    pulling *p = ctx;
    int rc;
    if ((rc = check_announced(p, h, err)) < 0) return rc;
    if (h->offset > 0 && p->f.total != FETCH_UNKNOWN && h->total != p->f.total) {
        p->start_over = true;
        return err_set(err, ERR_FORMAT, "the file on the server has changed since the last try");
    }
    if (h->offset == 0 && p->f.bytes > 0 && (rc = part_file_restart(&p->f, err)) < 0) return rc;
    p->limit = h->total != FETCH_UNKNOWN ? h->total : p->w->most_bytes;
    if (h->total != FETCH_UNKNOWN && (rc = check_disk(p, h->total - p->f.bytes, err)) < 0)
        return rc;
    return part_file_set_source(&p->f, h->total, h->etag, err);
}

static int on_data(void *ctx, const void *bytes, size_t n, err_ctx *err)
{
    static const char magic[4] = "GGUF";
    pulling *p = ctx;
    char shown[64];
    for (size_t i = 0; i < n && p->f.bytes + i < sizeof magic; i++)
        if (((const char *)bytes)[i] != magic[p->f.bytes + i])
            return err_set(err, ERR_FORMAT, "the server sends no GGUF file: '%s'; is it a "
                           "login page? Try another --base-url",
                           ESC(shown, ((str_view){ bytes, n < 24 ? n : 24 })));
    if (n > p->limit - p->f.bytes)
        return err_set(err, ERR_FORMAT, "the server sends more than the %llu bytes that the file "
                       "should have; try another --base-url", (unsigned long long)p->limit);
    p->downloaded += n;
    return part_file_add(&p->f, bytes, n, err);
}

/* ---- tries --------------------------------------------------------------------------------- */

/* Empties the .part unless a hash or an ETag can prove that its bytes are the file's first ones. */
static int choose_offset(pulling *p, err_ctx *err)
{
    const part_file *f = &p->f;
    const bool provable = p->w->sha256.len > 0 || f->etag[0];
    if (f->bytes == 0) return 0;
    if (provable && f->bytes <= p->w->most_bytes &&
        (f->total == FETCH_UNKNOWN || f->bytes <= f->total)) return 0;
    return part_file_restart(&p->f, err);
}

static bool is_whole(const part_file *f)
{
    return f->bytes > 0 && f->bytes == f->total;
}

static int one_try(pulling *p, bool *again, err_ctx *err)
{
    const fetch_request r = { .url = p->w->url, .token = p->w->token, .offset = p->f.bytes,
                              .if_range = p->f.etag, .timeout_s = p->w->timeout_s,
                              .begin = on_begin, .data = on_data, .keep_going = keep_going,
                              .ctx = p };
    int rc;
    p->start_over = false;
    rc = fetch_get(&p->head, again, &r, err);
    if (rc < 0 && (p->start_over || (p->head.status == 416 && p->f.bytes > 0))) {
        const int emptied = part_file_restart(&p->f, NULL);
        *again = emptied == 0;
        return rc;
    }
    if (rc == 0 && p->f.total != FETCH_UNKNOWN && p->f.bytes < p->f.total) {
        *again = true;                   /* the server sent less than the requested range */
        return err_set(err, ERR_IO, "the connection was cut");
    }
    return rc;
}

static int all_tries(pulling *p, err_ctx *err)
{
    uint64_t best = p->f.bytes;
    bool again = false;
    int n_idle = 0, rc;
    while ((rc = one_try(p, &again, err)) < 0 && again) {
        int64_t ms;
        if (p->f.bytes >= best + ENOUGH_BYTES) {
            best = p->f.bytes;
            n_idle = 0;
        }
        if (n_idle == p->w->retries) break;
        ms = (int64_t)FIRST_WAIT_MS << min_int(n_idle++, 7);
        if (ms > LONGEST_WAIT_MS) ms = LONGEST_WAIT_MS;
        if (p->head.retry_after_s * 1000 > ms) ms = p->head.retry_after_s * 1000;
        if (!wait_ms(err->msg, ms)) return err_set(err, ERR_STOPPED, "interrupted");
    }
    return rc;
}

/* ---- the end ------------------------------------------------------------------------------- */

static int check_bytes(pull_result *out, pulling *p, err_ctx *err)
{
    const pull_request *w = p->w;
    sha256 sum = p->f.sum;
    const char *server = p->head.sha256;
    const bool by_list = w->sha256.len > 0 && !(w->accept_changed && differs(w, server));
    sha256_end(out->sha256, &sum);
    if (w->bytes > 0 && p->f.bytes != w->bytes && !w->accept_changed) {
        const unsigned long long n = p->f.bytes;
        part_file_drop(&p->f);
        return err_set(err, ERR_FORMAT, "received %llu bytes, models.txt says %llu: removed; start "
                       "again, or try another --base-url", n, (unsigned long long)w->bytes);
    }
    out->check = by_list ? PULL_BY_LIST : *server ? PULL_BY_SERVER : PULL_UNCHECKED;
    if (by_list ? str_is(w->sha256, out->sha256) : !*server || !strcmp(server, out->sha256))
        return 0;
    if (by_list && w->accept_changed) {  /* the server sends no hash */
        out->check = PULL_UNCHECKED;
        return 0;
    }
    part_file_drop(&p->f);
    return err_set(err, ERR_FORMAT, "the received bytes are not those of %s: sha256 %s instead of "
                   "%.*s; removed; start again, or try another --base-url",
                   by_list ? "models.txt" : "the server's file", out->sha256, SHA256_TEXT - 1,
                   by_list ? w->sha256.ptr : server);
}

int pull_file(pull_result *out, const pull_request *w, err_ctx *err)
{
    pulling p = { .w = w };
    int rc;
    *out = (pull_result){ .bytes = 0 };
    rc = part_file_open(&p.f, w->path, watch_hash, &p, err);
    if (rc == 0) rc = choose_offset(&p, err);
    if (rc == 0 && !is_whole(&p.f)) rc = all_tries(&p, err);
    if (rc == 0) rc = check_bytes(out, &p, err);
    if (rc == 0) rc = part_file_finish(&p.f, err);
    out->bytes = p.f.bytes;
    out->downloaded = p.downloaded;
    part_file_close(&p.f);
    if (rc < 0) {
        bool done;
        const uint64_t have = part_file_size(w->path, &done);
        out->kept = done ? 0 : have;
    }
    return rc;
}
