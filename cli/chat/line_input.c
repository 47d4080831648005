/* line_input.c - messages from a terminal through libedit, or from a pipe through getline.
 *
 * Invariant: nothing that was typed is lost. From open to close the terminal is never in its
 * line mode (ICANON) and never echoes; no change of its mode discards input, nor does a signal
 * (NOFLSH). The editor changes one thing only: while it edits a line, keys do not send signals
 * (ISIG), and read_byte does that in their order. */
#include "cli/chat/line_input.h"

#include <errno.h>
#include <histedit.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "cli/chat/line_history.h"
#include "cli/console.h"
#include "cli/interrupt.h"

struct line_input {
    const char *const *words;
    int n_word;
    bool echo;                           /* plain input, and stderr is a terminal */
    char *line;                          /* of getline */
    size_t cap;
    textbuf message;
    /* the terminal's side; NULL if there is none */
    EditLine *el;
    History *past;
    FILE *out;
    const char *prompt;
    char *history_path;
    struct termios shell_mode;
    uint8_t held;                        /* a byte read too far, or 0 */
};

/* ---- keys ---------------------------------------------------------------------------------- */

/* Does what the terminal would do on a key that sends a signal. False: it is no such key. */
static bool send_signal(const line_input *in, uint8_t key)
{
    static const struct { int key, number; } signals[] = {
        { VINTR, SIGINT }, { VQUIT, SIGQUIT }, { VSUSP, SIGTSTP },
    };
    if (key == _POSIX_VDISABLE) return false;
    for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
        if (in->shell_mode.c_cc[signals[i].key] != key) continue;
        if (signals[i].number == SIGQUIT) interrupt_restore_terminal();
        raise(signals[i].number);
        return true;
    }
    return false;
}

void line_input_check_keys(line_input *in)
{
    struct pollfd input = { .fd = 0, .events = POLLIN };
    if (!in->el || in->held || poll(&input, 1, 0) <= 0) return;
    if (read(0, &in->held, 1) == 1 && send_signal(in, in->held)) in->held = 0;
}

/* 1, 0 at the end of the input, -1 if a signal or an error ends the line. */
static int read_byte(line_input *in, uint8_t *out)
{
    for (;;) {
        bool stopped;
        if (interrupted()) {
            errno = EINTR;
            return -1;
        }
        if (interrupt_wait(0)) {
            const ssize_t n = read(0, out, 1);
            if (n == 0 || (n == 1 && !send_signal(in, *out))) return (int)n;
            if (n < 0 && errno != EINTR) return -1;
        }
        stopped = interrupt_stop_asked();
        if (stopped) interrupt_stop();
        if (interrupt_resized() || stopped) {
            el_resize(in->el);
            el_set(in->el, EL_REFRESH);
        }
    }
}

/* One character for the editor. What is not UTF-8 becomes U+FFFD; the byte that broke a sequence
 * begins the next one. */
static int read_char(EditLine *el, wchar_t *out)
{
    uint8_t bytes[4];
    uint32_t cp = 0xFFFD;
    int n = 1, rc = 1;
    line_input *in;

    el_get(el, EL_CLIENTDATA, &in);
    if (in->held) bytes[0] = in->held;
    else rc = read_byte(in, bytes);
    in->held = 0;
    if (rc <= 0) return rc;
    if (bytes[0] >= 0xC2 && bytes[0] < 0xF5) n = bytes[0] < 0xE0 ? 2 : bytes[0] < 0xF0 ? 3 : 4;
    for (int i = 1; i < n; i++) {
        if ((rc = read_byte(in, bytes + i)) <= 0) return rc;
        if ((bytes[i] & 0xC0) == 0x80) continue;
        in->held = bytes[i];
        n = i;
    }
    *out = utf8_decode(&cp, bytes, (size_t)n) == n ? (wchar_t)cp : 0xFFFD;
    return 1;
}

static char *prompt_text(EditLine *el)
{
    line_input *in;
    el_get(el, EL_CLIENTDATA, &in);
    return (char *)in->prompt;
}

/* Tab: completes a command; anywhere else it is a character like any other (pasted code has
 * them). */
static unsigned char complete(EditLine *el, int key)
{
    const LineInfo *li = el_line(el);
    const size_t n = (size_t)(li->cursor - li->buffer);
    const char *first = NULL;
    size_t common = 0;
    int n_match = 0;
    char rest[64];
    line_input *in;

    (void)key;
    el_get(el, EL_CLIENTDATA, &in);
    if (n == 0 || li->buffer[0] != '/' || memchr(li->buffer, ' ', n))
        return el_insertstr(el, "\t") == 0 ? CC_REFRESH : CC_ERROR;
    for (int i = 0; i < in->n_word; i++) {
        const char *word = in->words[i];
        size_t same = 0;
        if (strncmp(word, li->buffer, n) != 0) continue;
        if (n_match++ == 0) {
            first = word;
            common = strlen(word);
        }
        while (same < common && word[same] == first[same]) same++;
        common = same;
    }
    if (n_match == 0) return CC_ERROR;
    snprintf(rest, sizeof rest, "%.*s%s", (int)(common - n), first + n, n_match == 1 ? " " : "");
    if (rest[0]) return el_insertstr(el, rest) == 0 ? CC_REFRESH : CC_ERROR;
    fputc('\n', in->out);
    for (int i = 0; i < in->n_word; i++)
        if (strncmp(in->words[i], li->buffer, n) == 0) fprintf(in->out, "%s  ", in->words[i]);
    fputc('\n', in->out);
    return CC_REDISPLAY;
}

static void remember(void *ctx, const char *line)
{
    line_input *in = ctx;
    HistEvent ev;
    history(in->past, &ev, H_ENTER, line);
}

static int open_editor(line_input *in, const char *history_path, err_ctx *err)
{
    HistEvent ev;

    console_use_utf8();                  /* the editor counts columns with the C library */
    in->out = isatty(2) ? stderr : stdout;
    in->prompt = "";
    if (tcgetattr(0, &in->shell_mode) < 0) return err_sys(err, "the terminal's mode");
    interrupt_keep_terminal(0);
    in->el = el_init("moe-run", stdin, in->out, stderr);
    in->past = history_init();
    if (!in->el || !in->past) return err_set(err, ERR_NOMEM, "the line editor does not start");
    el_set(in->el, EL_CLIENTDATA, in);
    el_set(in->el, EL_GETCFN, read_char);
    el_set(in->el, EL_PROMPT, prompt_text);
    el_set(in->el, EL_EDITOR, "emacs");
    el_set(in->el, EL_ADDFN, "complete-command", "Complete a command", complete);
    el_set(in->el, EL_BIND, "^I", "complete-command", NULL);
    el_set(in->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(in->el, EL_HIST, history, in->past);
    history(in->past, &ev, H_SETSIZE, LINE_HISTORY_MAX);
    history(in->past, &ev, H_SETUNIQUE, 1);
    el_source(in->el, NULL);             /* the user's own ~/.editrc, if there is one */
    /* -x: the mode between lines, -d: while one is edited, -q: while one character is quoted */
    if (el_set(in->el, EL_SETTY, "-x", "-icanon", "-echo", "-iexten", "+isig", "+noflsh", NULL) <
            0 ||
        el_set(in->el, EL_SETTY, "-d", "-icanon", "-echo", "-iexten", "-isig", "+noflsh", NULL) <
            0 ||
        el_set(in->el, EL_SETTY, "-q", "-icanon", "-echo", "-iexten", "-isig", "+noflsh", NULL) < 0)
        return err_sys(err, "the terminal's mode cannot be set");
    if (!history_path) return 0;
    if (!(in->history_path = mem_strdup_n(history_path, strlen(history_path))))
        return err_set(err, ERR_NOMEM, "out of memory for the history");
    line_history_load(history_path, remember, in);
    return 0;
}

/* ---- lines --------------------------------------------------------------------------------- */

/* One line without its end, terminated. Returns as line_input_read does. */
static int edit_line(str_view *out, line_input *in, const char *prompt, err_ctx *err)
{
    const char *line;
    int n = 0, why;

    in->prompt = prompt;
    el_resize(in->el);                   /* the window may have changed during the answer */
    el_set(in->el, EL_PREP_TERM, 1);     /* before the prompt: after it each key has its place */
    errno = 0;
    line = el_gets(in->el, &n);
    why = errno;
    if (!line || n <= 0) {
        fputc('\n', in->out);
        fflush(in->out);                 /* answers do not go through the stream */
        if (interrupted()) return err_set(err, ERR_STOPPED, "interrupted");
        errno = why;
        return n < 0 ? err_sys(err, "standard input") : 0;
    }
    *out = (str_view){ line, (size_t)n };
    return 1;
}

static int plain_line(str_view *out, line_input *in, err_ctx *err)
{
    ssize_t n;
    errno = 0;
    while ((n = getline(&in->line, &in->cap, stdin)) < 0) {
        if (interrupted()) return err_set(err, ERR_STOPPED, "interrupted");
        if (feof(stdin)) return 0;
        if (errno != EINTR) return err_sys(err, "standard input");
        clearerr(stdin);
    }
    *out = (str_view){ in->line, (size_t)n };
    return 1;
}

static int read_line(str_view *out, line_input *in, const char *prompt, err_ctx *err)
{
    const int rc = in->el ? edit_line(out, in, prompt, err) : plain_line(out, in, err);
    if (rc <= 0) return rc;
    if (out->len && out->ptr[out->len - 1] == '\n') out->len--;
    if (out->len && out->ptr[out->len - 1] == '\r') out->len--;
    if (in->echo) {
        char shown[512];
        fprintf(stderr, "%s%s\n", prompt, ESC(shown, *out));
    }
    return rc;
}

static bool is_fence(str_view line)
{
    while (line.len && (line.ptr[line.len - 1] == ' ' || line.ptr[line.len - 1] == '\t'))
        line.len--;
    return str_is(line, "\"\"\"");
}

/* Each line goes into the history as it was typed. */
static int keep_history(line_input *in, str_view line, err_ctx *err)
{
    size_t i = 0;
    char *copy;
    if (!in->el) return 0;
    while (i < line.len && line.ptr[i] == ' ') i++;
    if (i == line.len || is_fence(line)) return 0;
    if (!(copy = mem_strdup_n(line.ptr, line.len)))
        return err_set(err, ERR_NOMEM, "out of memory for the history");
    remember(in, copy);
    if (in->history_path) line_history_add(in->history_path, copy);
    mem_free(copy);
    return 0;
}

int line_input_read(str_view *out, line_input *in, err_ctx *err)
{
    textbuf *m = &in->message;
    bool block = false, more = true;
    str_view line;
    int rc;

    m->len = 0;
    m->failed = false;
    for (int i = 0; more; i++) {
        rc = read_line(&line, in, i ? ". " : "> ", err);
        if (rc < 0 || (rc == 0 && i == 0)) return rc;
        if (rc == 0) break;              /* the end of the input ends a block, too */
        if ((rc = keep_history(in, line, err)) < 0) return rc;
        if (i == 0 && is_fence(line)) {
            block = true;
            continue;
        }
        if (block && is_fence(line)) break;
        if (i > (block ? 1 : 0)) textbuf_str(m, "\n");
        more = block || (line.len && line.ptr[line.len - 1] == '\\');
        if (more && !block) line.len--;
        textbuf_put(m, line);
    }
    if (m->failed) return err_set(err, ERR_NOMEM, "a message of more than %zu bytes", m->len);
    *out = textbuf_view(m);
    return block ? 2 : 1;
}

/* ---- open and close ------------------------------------------------------------------------ */

int line_input_open(line_input **out, const char *const *words, int n_word,
                    const char *history_path, err_ctx *err)
{
    line_input *in = mem_zalloc(sizeof *in);
    int rc = 0;

    *out = NULL;
    if (!in) return err_set(err, ERR_NOMEM, "out of memory for the input");
    in->words = words;
    in->n_word = n_word;
    if (isatty(0) && (isatty(2) || isatty(1))) rc = open_editor(in, history_path, err);
    else in->echo = isatty(2);
    if (rc < 0) line_input_close(in);
    else *out = in;
    return rc;
}

void line_input_close(line_input *in)
{
    if (!in) return;
    if (in->history_path) line_history_trim(in->history_path);
    if (in->past) history_end(in->past);
    if (in->el) {
        el_set(in->el, EL_EDITMODE, 0);  /* else el_end would discard what was typed */
        el_end(in->el);
        interrupt_release_terminal();
    }
    free(in->line);                      /* getline's own */
    mem_free(in->history_path);
    textbuf_free(&in->message);
    mem_free(in);
}

bool line_input_is_terminal(const line_input *in) { return in->el != NULL; }
