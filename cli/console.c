/* console.c - everything the programs say on stderr, and how they write numbers. */
#include "cli/console.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/interrupt.h"
#include "cli/view/line_wrap.h"

static const char *program = "moe";
static bool on_screen, dimmed;           /* stderr is a terminal; stdout one with colours */

/* What stands on the terminal and will be erased: a line of its own, or one below the cursor's. */
static enum { STATUS_NONE, STATUS_LINE, STATUS_BELOW } status_shown;

void console_init(const char *name)
{
    program = name;
    on_screen = isatty(2) == 1;
    dimmed = console_may_dim();
}

/* One line whatever the text holds: control characters are escaped. A terminal shows it as several,
 * broken between words. */
static void say(const char *prefix, const char *fmt, va_list ap)
{
    char text[1024], shown[2048], line[2200];
    line_wrap w = { .columns = console_columns(2), .indent = 2 };
    vsnprintf(text, sizeof text, fmt, ap);
    snprintf(line, sizeof line, "%s: %s%s", program, prefix, ESC(shown, str_from(text)));
    console_status_clear();
    if (w.columns > 0) {
        console_use_utf8();
        (void)line_wrap_put(&w, str_from(line), line_wrap_to_file, stderr);
        (void)line_wrap_flush(&w, line_wrap_to_file, stderr);
        fputc('\n', stderr);
    } else {
        fprintf(stderr, "%s\n", line);   /* one write: lines of several processes stay whole */
    }
}

void console_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say("error: ", fmt, ap);
    va_end(ap);
}

int console_fail(const char *path, const err_ctx *err)
{
    enum { SHOWN = 200 };                /* of a path that would push the reason out of the line */
    const size_t n = strlen(path);
    const bool cut = n > SHOWN, unsaid = err->code == ERR_NOMEM && !strstr(err->msg, "memory");
    console_error("%s%s: %s%s", cut ? "..." : "", path + (cut ? n - SHOWN : 0),
                  unsaid ? "out of memory: " : "", err->msg);
    return 1;
}

/* In a signal handler: nothing here allocates, locks or formats. */
void console_lost_file(const char *path)
{
    const char *const words[] = {
        !on_screen ? "" : status_shown ? "\r\033[K" : "\n", program, ": error: ", path,
        ": cannot be read any more: it was changed while in use, or its drive failed; check the "
        "file and start again\n",
    };
    char line[1024];
    size_t n = 0;
    interrupt_restore_terminal();
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        for (const char *p = words[i]; *p && n < sizeof line; p++) line[n++] = *p;
    if (dimmed && write(1, "\033[0m", 4) < 0) _exit(1);
    if (write(2, line, n) < 0) _exit(1);
    _exit(1);
}

void console_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say("", fmt, ap);
    va_end(ap);
}

void console_note_line(void *ctx, const char *line)
{
    (void)ctx;
    console_note("%s", line);
}

void console_copy(const char *fmt, ...)
{
    va_list ap;
    console_status_clear();
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

/* ---- lines that go away -------------------------------------------------------------------- */

/* A terminal that moves its cursor and takes colours. */
static bool is_capable(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) == 1 && term && *term && strcmp(term, "dumb") != 0;
}

bool console_may_dim(void)
{
    const char *no = getenv("NO_COLOR");
    return is_capable(1) && !(no && *no);
}

int console_columns(int fd)
{
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 ? size.ws_col : 0;
}

/* Longer lines would wrap, and a wrapped line cannot be taken back. */
static int terminal_columns(void)
{
    const int n = console_columns(2);
    return n > 0 ? n : 80;
}

void console_use_utf8(void)
{
    static bool done;
    if (done) return;
    done = true;
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

/* Room is left for the "^C" that a terminal writes after it. */
static void draw_line(const char *line)
{
    fprintf(stderr, "\r%.*s\033[K", terminal_columns() - 3, line);
    fflush(stderr);
    status_shown = STATUS_LINE;
}

void console_status(const char *fmt, ...)
{
    char line[256];
    va_list ap;
    if (!is_capable(2)) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    draw_line(line);
}

bool console_may_show_below(void)
{
    struct stat out, err;
    return is_capable(1) && is_capable(2) && console_columns(2) > 0 && fstat(1, &out) == 0 &&
           fstat(2, &err) == 0 && out.st_rdev == err.st_rdev;
}

/* Moving down and up scrolls the screen if the cursor is in its last line, and keeps the column.
 * Saving and restoring the cursor works whatever width the terminal gives the text. */
void console_below(const char *fmt, ...)
{
    static char shown[128];
    char line[sizeof shown];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (status_shown == STATUS_BELOW && strcmp(line, shown) == 0) return;
    strcpy(shown, line);
    console_status_clear();
    fprintf(stderr, "\033D\033[A\0337\r\n%.*s\033[K\0338", terminal_columns() - 1, line);
    fflush(stderr);
    status_shown = STATUS_BELOW;
}

bool console_has_below(void) { return status_shown == STATUS_BELOW; }

void console_status_clear(void)
{
    if (status_shown == STATUS_NONE) return;
    fputs(status_shown == STATUS_LINE ? "\r\033[K" : "\033[J", stderr);
    fflush(stderr);
    status_shown = STATUS_NONE;
}

/* ---- progress ------------------------------------------------------------------------------ */

enum { BAR_CELLS = 30, REDRAW_NS = 100000000, FIRST_NS = 250000000 };

void progress_begin(progress *p, const char *what, uint64_t total)
{
    *p = (progress){ .what = what, .total = total, .start_ns = clock_ns(), .on = is_capable(2) };
}

void progress_begin_tokens(progress *p, const char *what, uint64_t total)
{
    progress_begin(p, what, total);
    p->tokens = true;
}

void progress_begin_at(progress *p, const char *what, uint64_t total, uint64_t before)
{
    progress_begin(p, what, total);
    p->before = before;
}

void progress_update(progress *p, uint64_t done)
{
    const uint64_t now = clock_ns();
    const double seconds = (double)(now - p->start_ns) * 1e-9;
    const uint64_t fresh = done > p->before ? done - p->before : 0;
    const double speed = seconds > 0 ? (double)fresh / seconds : 0;
    char bar[BAR_CELLS + 1], have[32], all[32], rate[32], left[32] = "", text[160], line[256];
    int room, cells;

    if (!p->on || p->total == 0 || now - p->drawn_ns < REDRAW_NS) return;
    if (now - p->start_ns < FIRST_NS) return;
    p->drawn_ns = now;
    if (fresh && done <= p->total)
        snprintf(left, sizeof left, ", %.0f s left", (double)(p->total - done) / speed);
    if (p->tokens)
        snprintf(text, sizeof text, "%s of %s tokens, %.1f tok/s%s",
                 text_count(have, sizeof have, done), text_count(all, sizeof all, p->total), speed,
                 left);
    else
        snprintf(text, sizeof text, "%s of %s, %s/s%s", text_bytes(have, sizeof have, done),
                 text_bytes(all, sizeof all, p->total),
                 text_bytes(rate, sizeof rate, (uint64_t)speed), left);
    room = terminal_columns() - (int)(strlen(p->what) + strlen(text)) - 7;
    room = room < 0 ? 0 : room > BAR_CELLS ? BAR_CELLS : room;
    cells = (int)((double)done / (double)p->total * room);
    memset(bar, '.', sizeof bar);
    memset(bar, '#', (size_t)(cells > room ? room : cells));
    bar[room] = '\0';
    snprintf(line, sizeof line, "%s [%s] %s", p->what, bar, text);
    draw_line(line);
}

bool progress_watch(void *bar, double done, double total)
{
    progress *p = bar;
    (void)total;
    progress_update(p, p->done + (uint64_t)done);
    return !interrupted();
}

void progress_end(progress *p)
{
    if (p->on && p->drawn_ns) console_status_clear();
    p->on = false;
}

/* ---- numbers ------------------------------------------------------------------------------- */

const char *text_count(char *dst, size_t cap, uint64_t n)
{
    char digits[24];
    const int len = snprintf(digits, sizeof digits, "%" PRIu64, n);
    size_t used = 0;
    for (int i = 0; i < len && used + 2 < cap; i++) {
        if (i && (len - i) % 3 == 0) dst[used++] = ',';
        dst[used++] = digits[i];
    }
    dst[used] = '\0';
    return dst;
}

const char *text_bytes(char *dst, size_t cap, uint64_t n)
{
    static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
    double v = (double)n;
    size_t u = 0;
    while (v >= 999.95 && u + 1 < ARRAY_LEN(units)) {
        v /= 1000;
        u++;
    }
    snprintf(dst, cap, u ? "%.1f %s" : "%.0f %s", v, units[u]);
    return dst;
}

double text_rate(uint64_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

const char *text_today(char *dst, size_t cap)
{
    const time_t now = time(NULL);
    struct tm local;
    if (!localtime_r(&now, &local) || strftime(dst, cap, "%Y-%m-%d", &local) == 0) dst[0] = '\0';
    return dst;
}

/* ---- streams ------------------------------------------------------------------------------- */

/* Length of the control character at the start of s; 0 if there is none. */
static size_t control_bytes(str_view s)
{
    const uint8_t b = (uint8_t)s.ptr[0];
    if (b == 0xC2 && s.len > 1 && (uint8_t)s.ptr[1] < 0xA0) return 2;
    return b == 0x7F || (b < 0x20 && b != '\n' && b != '\t');
}

str_view text_for_screen(str_view *s)
{
    size_t n = 0;
    str_view piece = str_from("\xEF\xBF\xBD");
    while (n < s->len && control_bytes((str_view){ s->ptr + n, s->len - n }) == 0) n++;
    if (n > 0 || s->len == 0) piece = (str_view){ s->ptr, n };
    else n = control_bytes(*s);
    s->ptr += n;
    s->len -= n;
    return piece;
}

bool console_json(json_t *v, size_t flags)
{
    if (!v) return false;
    const bool ok = json_dumpf(v, stdout, flags) == 0;
    if (ok) putchar('\n');
    json_decref(v);
    return ok || ferror(stdout);         /* a stream that failed is console_finish's to report */
}

int console_report(json_t *v, size_t flags, const char *about)
{
    if (console_json(v, flags)) return 0;
    console_error("out of memory%s", about);
    return 1;
}

json_t *console_append(json_t *list, json_t *item)
{
    if (json_array_append_new(list, item) == 0) return list;
    json_decref(list);
    return NULL;
}

int console_finish(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    return console_lost_output(errno);
}

int console_lost_output(int why)
{
    if (why == EINTR) return 130;
    if (why != EPIPE)                    /* else the reader has seen enough */
        console_error("standard output: %s", strerror(why ? why : EIO));
    return 1;
}

void console_await(const char *what)
{
    if (isatty(0)) console_note("reading %s from the terminal; Ctrl-D ends", what);
}

/* 0 if a file may be read whole, as far as its size tells. */
static int check_size(int fd, err_ctx *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < READ_WHOLE_MAX) return 0;
    return err_set(err, ERR_RANGE, "%lld bytes are too many: the limit is 1 GiB",
                   (long long)st.st_size);
}

int read_whole_file(char **out, size_t *len, const char *path, err_ctx *err)
{
    const bool is_stdin = strcmp(path, "-") == 0;
    const int fd = is_stdin ? 0 : open(path, O_RDONLY | O_CLOEXEC);
    size_t cap = 1 << 16, n = 0;
    char *data = NULL;
    int rc = 0;

    *out = NULL;
    if (is_stdin) console_await("standard input");
    if (fd < 0) return err_sys(err, "cannot open");
    rc = check_size(fd, err);
    if (rc == 0 && !(data = mem_alloc(cap))) rc = err_set(err, ERR_NOMEM, "out of memory");
    while (rc == 0) {
        const ssize_t got = read(fd, data + n, cap - n - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) rc = err_sys(err, "cannot read");
        if (got <= 0) break;
        n += (size_t)got;
        if (cap - n >= 2) continue;
        if (cap >= READ_WHOLE_MAX) {
            rc = err_set(err, ERR_RANGE, "does not end: the limit is 1 GiB");
        } else {
            char *bigger = mem_resize(data, cap * 2, 1);
            if (!bigger) {
                rc = err_set(err, ERR_NOMEM, "out of memory after %zu bytes", n);
                break;
            }
            data = bigger;
            cap *= 2;
        }
    }
    if (!is_stdin) close(fd);
    if (rc < 0) {
        mem_free(data);
        return rc;
    }
    data[n] = '\0';
    *out = data;
    *len = n;
    return 0;
}
