/* stop_strings.c - searches for stop strings in a stream.
 *
 * One window holds the undecided bytes and the next piece of text. At each position one of three
 * things is true: a string matches (stop), none can match (the byte passes), or more text is needed
 * (wait). The scan never passes a waiting position, so the earliest match wins without a list of
 * partial matches.
 *
 * Each push compares a waiting position again: at most STOP_STRING_MAX_BYTES per string. A byte
 * that begins no stop string costs one table look-up. */
#include "engine/text/chat/stop_strings.h"

#include <string.h>

enum { PIECE_BYTES = 4096 };             /* pushed text is scanned in pieces of this size */

struct stop_strings {
    str_view *strings;                   /* [n], into text */
    int n;
    char *text;
    bool begins[256];                    /* a string begins with this byte */
    char *window;                        /* [longest + PIECE_BYTES] */
    size_t n_held;                       /* undecided bytes at the start of the window */
    int over;                            /* result of push once it is not 0, else 0 */
};

static bool is_utf8(const char *text, size_t len)
{
    const uint8_t *p = (const uint8_t *)text;
    uint32_t cp;
    int n = 1;
    for (size_t i = 0; i < len && n > 0; i += (size_t)n) n = utf8_decode(&cp, p + i, len - i);
    return n > 0;
}

int stop_strings_create(stop_strings **out, const char *const *strings, int n, err_ctx *err)
{
    size_t bytes = 0, longest = 0, pos = 0;

    *out = NULL;
    if (n < 0) return err_set(err, ERR_RANGE, "%d stop strings", n);
    for (int i = 0; i < n; i++) {
        const size_t len = strlen(strings[i]);
        if (len == 0) return err_set(err, ERR_RANGE, "stop string %d of %d is empty", i + 1, n);
        if (len > STOP_STRING_MAX_BYTES)
            return err_set(err, ERR_RANGE, "stop string %d of %d has %zu bytes; %d are possible",
                           i + 1, n, len, STOP_STRING_MAX_BYTES);
        if (!is_utf8(strings[i], len))
            return err_set(err, ERR_FORMAT, "stop string %d of %d is not valid UTF-8", i + 1, n);
        bytes += len;
        if (len > longest) longest = len;
    }
    stop_strings *s = mem_zalloc(sizeof *s);
    if (!s) return err_set(err, ERR_NOMEM, "out of memory for stop strings");
    s->n = n;
    if (n > 0) {
        s->strings = mem_array((size_t)n, sizeof *s->strings);
        s->text = mem_alloc(bytes);
        s->window = mem_alloc(longest + PIECE_BYTES);
        if (!s->strings || !s->text || !s->window) {
            stop_strings_free(s);
            return err_set(err, ERR_NOMEM, "out of memory for %d stop strings", n);
        }
    }
    for (int i = 0; i < n; i++) {
        const size_t len = strlen(strings[i]);
        memcpy(s->text + pos, strings[i], len);
        s->strings[i] = (str_view){ s->text + pos, len };
        s->begins[(uint8_t)strings[i][0]] = true;
        pos += len;
    }
    *out = s;
    return 0;
}

void stop_strings_free(stop_strings *s)
{
    if (!s) return;
    mem_free(s->strings);
    mem_free(s->text);
    mem_free(s->window);
    mem_free(s);
}

void stop_strings_reset(stop_strings *s)
{
    s->n_held = 0;
    s->over = 0;
}

typedef enum verdict { PASSES, WAITS, STOPS } verdict;

/* Judges the position p with n bytes. A complete string beats a partial one: both start here, so
 * the text before them is the same. */
static verdict judge(const stop_strings *s, const char *p, size_t n)
{
    verdict v = PASSES;

    if (!s->begins[(uint8_t)*p]) return PASSES;
    for (int i = 0; i < s->n; i++) {
        const str_view stop = s->strings[i];
        if (memcmp(p, stop.ptr, stop.len < n ? stop.len : n) != 0) continue;
        if (stop.len <= n) return STOPS;
        v = WAITS;
    }
    return v;
}

/* Scans the n bytes in the window, passes the decided ones to fn and moves the rest to the front.
 * If is_end, no byte stays undecided. */
static int walk(stop_strings *s, size_t n, bool is_end, stop_strings_fn *fn, void *ctx)
{
    size_t pos = 0;
    verdict v = PASSES;
    int rc = 0;

    while (pos < n) {
        v = judge(s, s->window + pos, n - pos);
        if (v == STOPS || (v == WAITS && !is_end)) break;
        pos++;
    }
    if (pos > 0) rc = fn(ctx, (str_view){ s->window, pos });
    s->n_held = n - pos;
    memmove(s->window, s->window + pos, s->n_held);
    if (rc < 0) s->over = rc;
    else if (pos < n && v == STOPS) s->over = 1;
    return s->over;
}

int stop_strings_push(stop_strings *s, str_view text, stop_strings_fn *fn, void *ctx)
{
    if (s->n == 0 && s->over == 0 && text.len > 0) {
        const int rc = fn(ctx, text);
        if (rc < 0) s->over = rc;
        return s->over;
    }
    while (text.len > 0 && s->over == 0) {
        const size_t take = text.len < PIECE_BYTES ? text.len : PIECE_BYTES;
        memcpy(s->window + s->n_held, text.ptr, take);
        text.ptr += take;
        text.len -= take;
        walk(s, s->n_held + take, false, fn, ctx);
    }
    return s->over;
}

int stop_strings_end(stop_strings *s, stop_strings_fn *fn, void *ctx)
{
    if (s->over == 0 && s->n_held > 0) walk(s, s->n_held, true, fn, ctx);
    return s->over;
}

int stop_strings_which(const stop_strings *s)
{
    for (int i = 0; i < s->n && s->over == 1; i++) {
        const str_view stop = s->strings[i];
        if (stop.len <= s->n_held && !memcmp(s->window, stop.ptr, stop.len)) return i;
    }
    return -1;
}
