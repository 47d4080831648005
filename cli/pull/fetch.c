/* fetch.c - fetch.h by libcurl's easy interface.
 *
 * Each redirect is a transfer of its own; libcurl follows none. The headers are checked before the
 * caller gets the first byte. The caller chooses the range and stores the bytes. */
#include "cli/pull/fetch.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_REDIRECTS = 10, CONNECT_S = 30, PIECE_BYTES = 512 << 10, MOST_RETRY_S = 120 };

/* ---- addresses ----------------------------------------------------------------------------- */

typedef struct origin {
    char scheme[8], host[256], port[8];
} origin;

static bool take_part(char *dst, size_t cap, CURLU *u, CURLUPart part, unsigned flags)
{
    char *text = NULL;
    const bool ok = curl_url_get(u, part, &text, flags) == CURLUE_OK &&
                    (size_t)snprintf(dst, cap, "%s", text) < cap;
    curl_free(text);
    return ok;
}

/* False unless url is http or https and has a host. */
static bool read_origin(origin *o, const char *url)
{
    CURLU *u = curl_url();
    const bool ok = u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
                    take_part(o->scheme, sizeof o->scheme, u, CURLUPART_SCHEME, 0) &&
                    take_part(o->host, sizeof o->host, u, CURLUPART_HOST, 0) &&
                    take_part(o->port, sizeof o->port, u, CURLUPART_PORT, CURLU_DEFAULT_PORT);
    curl_url_cleanup(u);
    return ok && (!strcasecmp(o->scheme, "http") || !strcasecmp(o->scheme, "https"));
}

static bool same_origin(const origin *a, const origin *b)
{
    return !strcasecmp(a->scheme, b->scheme) && !strcasecmp(a->host, b->host) &&
           !strcmp(a->port, b->port);
}

bool fetch_is_base(const char *text)
{
    origin o;
    return (!strncasecmp(text, "http://", 7) || !strncasecmp(text, "https://", 8)) &&
           !strpbrk(text, "?#") && read_origin(&o, text);
}

bool fetch_may_send_token(const char *url)
{
    origin o;
    if (!read_origin(&o, url)) return false;
    return !strcasecmp(o.scheme, "https") || !strcasecmp(o.host, "localhost") ||
           !strcmp(o.host, "127.0.0.1") || !strcmp(o.host, "[::1]");
}

const char *fetch_missing(void) { return NULL; }

/* ---- response headers ---------------------------------------------------------------------- */

typedef struct transfer {
    const fetch_request *r;
    fetch_head *head;
    CURL *curl;
    bool begun;
    int rc;                              /* < 0: the caller's callback ended the transfer */
    err_ctx *err;
    uint64_t length;                     /* Content-Length; FETCH_UNKNOWN */
    bool bad_range;
    char linked[SHA256_TEXT];            /* the first X-Linked-Etag of the redirects, or "" */
    char curl_error[CURL_ERROR_SIZE];
} transfer;

/* Digits only; *end points behind them. */
static bool read_count(uint64_t *out, const char *text, const char **end)
{
    char *after;
    if (*text < '0' || *text > '9') return false;
    *out = strtoull(text, &after, 10);
    *end = after;
    return *out < UINT64_MAX / 2;
}

/* "bytes 100-199/200", or a star for the total. */
static bool read_range(fetch_head *h, const char *text)
{
    uint64_t last;
    const char *end;
    if (strncasecmp(text, "bytes ", 6) != 0 || !read_count(&h->offset, text + 6, &end) ||
        *end != '-' || !read_count(&last, end + 1, &end) || *end != '/' || last < h->offset)
        return false;
    if (strcmp(end + 1, "*") == 0) return true;
    return read_count(&h->total, end + 1, &end) && *end == '\0' && last < h->total;
}

/* A hash in quotes or without. */
static void take_sha256(transfer *t, const char *text)
{
    str_view s = str_from(text);
    if (s.len > 1 && s.ptr[0] == '"' && s.ptr[s.len - 1] == '"')
        s = (str_view){ s.ptr + 1, s.len - 2 };
    if (sha256_is_text(s) && !t->linked[0])
        snprintf(t->linked, sizeof t->linked, "%.*s", (int)s.len, s.ptr);
}

static void take_header(transfer *t, const char *name, const char *value)
{
    fetch_head *h = t->head;
    const char *end;
    uint64_t n;
    if (!strcasecmp(name, "content-length")) {
        if (read_count(&n, value, &end) && !*end) t->length = n;
    } else if (!strcasecmp(name, "content-range")) {
        t->bad_range = !read_range(h, value);
    } else if (!strcasecmp(name, "etag")) {
        if (value[0] == '"' && strlen(value) < sizeof h->etag) strcpy(h->etag, value);
    } else if (!strcasecmp(name, "x-linked-etag")) {
        take_sha256(t, value);
    } else if (!strcasecmp(name, "retry-after")) {
        if (read_count(&n, value, &end) && !*end)
            h->retry_after_s = n < MOST_RETRY_S ? (int)n : MOST_RETRY_S;
    }
}

/* libcurl passes one line per call. A status line begins a new response, e.g. after "100 Continue"
 * or a proxy's "200". */
static size_t on_header(char *data, size_t one, size_t n, void *ctx)
{
    transfer *t = ctx;
    char line[1024], *colon, *value;
    const size_t len = one * n;
    if (len > 5 && !strncasecmp(data, "HTTP/", 5)) {
        *t->head = (fetch_head){ .total = FETCH_UNKNOWN };
        t->length = FETCH_UNKNOWN;
        t->bad_range = false;
        return len;
    }
    if (len >= sizeof line) return len;
    memcpy(line, data, len);
    line[len] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    if (!(colon = strchr(line, ':'))) return len;
    *colon = '\0';
    value = colon + 1 + strspn(colon + 1, " \t");
    for (size_t k = strlen(value); k > 0 && strchr(" \t", value[k - 1]); k--) value[k - 1] = '\0';
    take_header(t, line, value);
    return len;
}

static int refuse_status(transfer *t, bool *again)
{
    const long s = t->head->status;
    *again = s == 408 || s == 429 || s == 500 || s == 502 || s == 503 || s == 504;
    if (s == 401 || s == 403)
        return err_set(t->err, ERR_IO, t->r->token ?
                       "the server refuses this HF_TOKEN (HTTP %ld): check that it is valid and "
                       "that its account has accepted the model's terms" :
                       "the server requires a login (HTTP %ld): set HF_TOKEN to a token of "
                       "an account that has accepted the model's terms", s);
    if (s == 404)
        return err_set(t->err, ERR_IO, "the server has no such file (HTTP 404): it was moved or "
                       "renamed; moe-run models shows the address, --base-url another server");
    return err_set(t->err, ERR_IO, "the server answers HTTP %ld%s", s,
                   *again ? ": it is busy or broken; try again later" : "");
}

/* Checks the headers of a response with status 200 or 206, then calls the caller's begin. */
static int begin(transfer *t)
{
    fetch_head *h = t->head;
    uint64_t end;
    t->begun = true;
    memcpy(h->sha256, t->linked, sizeof h->sha256);
    if (h->status == 200) {
        h->offset = 0;
        h->total = t->length;
    } else if (t->bad_range || h->offset != t->r->offset || t->r->offset == 0) {
        return err_set(t->err, ERR_FORMAT, "the server sends another range than the requested one, "
                       "which begins at byte %llu: try another --base-url, or remove the .part "
                       "file", (unsigned long long)t->r->offset);
    } else if (h->total == FETCH_UNKNOWN && t->length != FETCH_UNKNOWN &&
               size_add(&end, h->offset, t->length)) {
        h->total = end;
    }
    return t->r->begin(t->r->ctx, h, t->err);
}

static size_t on_data(char *data, size_t one, size_t n, void *ctx)
{
    transfer *t = ctx;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &t->head->status);
    if (t->head->status >= 300 && t->head->status < 400) return one * n;     /* redirect page */
    if (t->head->status != 200 && t->head->status != 206) return 0;          /* error page */
    if (!t->begun && (t->rc = begin(t)) < 0) return 0;
    if ((t->rc = t->r->data(t->r->ctx, data, one * n, t->err)) < 0) return 0;
    return one * n;
}

static int on_progress(void *ctx, curl_off_t total, curl_off_t now, curl_off_t up_total,
                       curl_off_t up)
{
    transfer *t = ctx;
    (void)total, (void)now, (void)up_total, (void)up;
    return t->r->keep_going && !t->r->keep_going(t->r->ctx);
}

/* ---- one request --------------------------------------------------------------------------- */

/* Errors after which a retry may succeed. */
static bool is_temporary(CURLcode c)
{
    switch (c) {
    case CURLE_COULDNT_RESOLVE_PROXY: case CURLE_COULDNT_RESOLVE_HOST: case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE: case CURLE_OPERATION_TIMEDOUT: case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR: case CURLE_RECV_ERROR: case CURLE_SSL_CONNECT_ERROR: case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: return true;
    default: return false;
    }
}

static int explain(const transfer *t, CURLcode code, const char *host)
{
    const char *message = t->curl_error[0] ? t->curl_error : curl_easy_strerror(code);
    char shown[CURL_ERROR_SIZE + 32];
    ESC(shown, str_from(message));
    if (code == CURLE_OPERATION_TIMEDOUT)
        return err_set(t->err, ERR_IO, "%s: no data for %d s", host, t->r->timeout_s);
    if (code == CURLE_PARTIAL_FILE || code == CURLE_RECV_ERROR || code == CURLE_GOT_NOTHING)
        return err_set(t->err, ERR_IO, "%s: the connection was cut", host);
    return err_set(t->err, ERR_IO, "%s: %s", host, shown);
}

static bool add_header(struct curl_slist **list, const char *fmt, const char *value)
{
    char line[1024];
    struct curl_slist *longer;
    if ((size_t)snprintf(line, sizeof line, fmt, value) >= sizeof line) return false;
    if (!(longer = curl_slist_append(*list, line))) return false;
    *list = longer;
    return true;
}

static bool add_headers(struct curl_slist **list, const fetch_request *r, bool with_token)
{
    char range[32];
    snprintf(range, sizeof range, "%llu", (unsigned long long)r->offset);
    return add_header(list, "Accept-Encoding: %s", "identity") &&
           (r->offset == 0 || add_header(list, "Range: bytes=%s-", range)) &&
           (r->offset == 0 || !*r->if_range || add_header(list, "If-Range: %s", r->if_range)) &&
           (!with_token || add_header(list, "Authorization: Bearer %s", r->token));
}

static void set_options(transfer *t, const char *url, struct curl_slist *headers)
{
    CURL *c = t->curl;
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, t->curl_error);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "moe-run");
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, (long)PIECE_BYTES);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)min_int(CONNECT_S, t->r->timeout_s));
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)t->r->timeout_s);
}

/* One request and its response. 1: a redirect; its URL is in next. */
static int request_once(transfer *t, char *next, size_t cap, const char *url, bool with_token,
                        bool *again)
{
    struct curl_slist *headers = NULL;
    char *redirect = NULL;
    origin server;
    CURLcode code;
    int rc = 0;

    *t->head = (fetch_head){ .total = FETCH_UNKNOWN };
    t->length = FETCH_UNKNOWN;
    if (!read_origin(&server, url))
        return err_set(t->err, ERR_RANGE, "not an address of http or https");
    if (!add_headers(&headers, t->r, with_token)) {
        curl_slist_free_all(headers);
        return err_set(t->err, ERR_NOMEM, "the headers of a request do not fit");
    }
    curl_easy_reset(t->curl);
    t->curl_error[0] = '\0';
    set_options(t, url, headers);
    code = curl_easy_perform(t->curl);
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &t->head->status);
    curl_easy_getinfo(t->curl, CURLINFO_REDIRECT_URL, &redirect);
    const long status = t->head->status;
    if (t->rc < 0) {
        rc = t->rc;
    } else if (code == CURLE_ABORTED_BY_CALLBACK) {
        rc = err_set(t->err, ERR_STOPPED, "interrupted");
    } else if (redirect && status >= 300 && status < 400 && status != 304) {
        rc = (size_t)snprintf(next, cap, "%s", redirect) < cap ? 1 :
             err_set(t->err, ERR_FORMAT, "the server redirects to an address that is too long");
    } else if (status >= 300) {
        rc = refuse_status(t, again);
    } else if (code != CURLE_OK) {
        *again = is_temporary(code);
        rc = explain(t, code, server.host);
    } else if (status != 200 && status != 206) {
        rc = refuse_status(t, again);
    } else if (!t->begun) {
        rc = begin(t);                   /* an empty file */
    }
    curl_slist_free_all(headers);
    return rc;
}

int fetch_get(fetch_head *head, bool *again, const fetch_request *r, err_ctx *err)
{
    enum { URL_CAP = 8192 };
    transfer t = { .r = r, .head = head, .err = err };
    char *url = NULL, *next = NULL;
    origin first, now;
    int rc = 1;

    *head = (fetch_head){ .total = FETCH_UNKNOWN };
    *again = false;
    t.curl = curl_easy_init();           /* also initialises libcurl, in this one thread */
    url = mem_strdup_n(r->url, strlen(r->url));
    next = mem_alloc(URL_CAP);
    if (!t.curl || !url || !next) rc = err_set(err, ERR_NOMEM, "out of memory");
    else if (!read_origin(&first, url)) rc = err_set(err, ERR_RANGE, "%s is no address", url);
    for (int i = 0; rc == 1; i++) {
        if (i > MOST_REDIRECTS) {
            rc = err_set(err, ERR_FORMAT, "more than %d redirects", MOST_REDIRECTS);
            break;
        }
        if (!read_origin(&now, url)) {
            rc = err_set(err, ERR_FORMAT, "%s redirects to an address that is not http or https",
                         first.host);
        } else if (!strcasecmp(first.scheme, "https") && strcasecmp(now.scheme, "https") != 0) {
            rc = err_set(err, ERR_FORMAT, "%s redirects from https to http, which is not followed",
                         first.host);
        } else {
            rc = request_once(&t, next, URL_CAP, url, r->token && same_origin(&first, &now), again);
        }
        if (rc != 1) break;
        mem_free(url);
        url = mem_strdup_n(next, strlen(next));
        if (!url) rc = err_set(err, ERR_NOMEM, "out of memory");
    }
    curl_easy_cleanup(t.curl);
    mem_free(url);
    mem_free(next);
    return rc;
}
