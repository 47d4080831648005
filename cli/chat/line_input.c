/* line_input.c - messages from a terminal through libedit, or from a pipe through getline.
 *
 * Invariant: the terminal is in the editor's mode only inside line_input_read, whichever way that
 * ends; while an answer is computed it is the shell's. Ctrl-C is noticed here but not handled: the
 * wait for the next byte ends (interrupt.h), and the line is given up. */
#include "cli/chat/line_input.h"

#include <errno.h>
#include <histedit.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/chat/line_history.h"

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
    uint8_t held;                        /* a byte read too far, or 0 */
};

/* ---- signals while a line is edited -------------------------------------------------------- */

static volatile sig_atomic_t resized, suspended;         /* set by the handlers below */

static void on_resize(int number)
{
    (void)number;
    resized = 1;
    interrupt_wake();
}

static void on_suspend(int number)
{
    (void)number;
    suspended = 1;
    interrupt_wake();
}

typedef struct handlers { struct sigaction resize, suspend; } handlers;

static void handlers_set(handlers *old)
{
    struct sigaction act = { 0 };
    sigemptyset(&act.sa_mask);
    act.sa_handler = on_resize;
    sigaction(SIGWINCH, &act, &old->resize);
    act.sa_handler = on_suspend;
    sigaction(SIGTSTP, &act, &old->suspend);
}

static void handlers_restore(const handlers *old)
{
    sigaction(SIGWINCH, &old->resize, NULL);
    sigaction(SIGTSTP, &old->suspend, NULL);
}

/* Ctrl-Z: the shell must find the terminal as it left it, and we must find our line when we come
 * back. */
static void suspend(EditLine *el)
{
    struct sigaction ours, plain = { 0 };
    plain.sa_handler = SIG_DFL;
    sigemptyset(&plain.sa_mask);
    el_set(el, EL_PREP_TERM, 0);
    sigaction(SIGTSTP, &plain, &ours);
    raise(SIGTSTP);
    sigaction(SIGTSTP, &ours, NULL);
    el_set(el, EL_PREP_TERM, 1);
}

/* ---- the editor ---------------------------------------------------------------------------- */

/* 1, 0 at the end of the input, -1 if a signal or an error ends the line. */
static int read_byte(EditLine *el, uint8_t *out)
{
    for (;;) {
        if (interrupted()) {
            errno = EINTR;
            return -1;
        }
        if (interrupt_wait(0)) {
            const ssize_t n = read(0, out, 1);
            if (n >= 0) return (int)n;
            if (errno != EINTR) return -1;
        }
        if (suspended) suspend(el);
        if (resized) el_resize(el);
        if (suspended || resized) el_set(el, EL_REFRESH);
        suspended = resized = 0;
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
    else rc = read_byte(el, bytes);
    in->held = 0;
    if (rc <= 0) return rc;
    if (bytes[0] >= 0xC2 && bytes[0] < 0xF5) n = bytes[0] < 0xE0 ? 2 : bytes[0] < 0xF0 ? 3 : 4;
    for (int i = 1; i < n; i++) {
        if ((rc = read_byte(el, bytes + i)) <= 0) return rc;
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
    handlers old;
    const char *line;
    int n = 0, why;

    in->prompt = prompt;
    el_resize(in->el);                   /* the window may have changed during the answer */
    handlers_set(&old);
    el_set(in->el, EL_PREP_TERM, 1);     /* before the prompt: a Ctrl-D that comes between the two
                                          * would be lost */
    errno = 0;
    line = el_gets(in->el, &n);
    why = errno;
    handlers_restore(&old);
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
    if (in->el) el_end(in->el);
    free(in->line);                      /* getline's own */
    mem_free(in->history_path);
    textbuf_free(&in->message);
    mem_free(in);
}

bool line_input_is_terminal(const line_input *in)
{
    return in->el != NULL;
}
