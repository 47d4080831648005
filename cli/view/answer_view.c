/* answer_view.c - prints reasoning and answer, the <think> lines, and the speed below the text.
 *
 * Invariants: the line below is erased before text overwrites it. Every <think> begins a line and
 * gets its </think> at the latest in answer_view_end, in any order of reasoning and answer. The
 * caller owns and stores the text. */
#include "cli/view/answer_view.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/output.h"

answer_view answer_view_of(bool show_reasoning)
{
    const bool on_screen = isatty(STDOUT_FILENO);
    if (on_screen) console_use_utf8();
    return (answer_view){ .show_reasoning = show_reasoning, .on_screen = on_screen,
                          .dim = console_may_dim(), .below = console_may_show_below() };
}

/* ---- speed ------------------------------------------------------------------------------- */

enum { RATE_FIRST_NS = 500000000, RATE_NS = 250000000 };         /* first update, interval */
enum { EDGE = 8 };                       /* no line below with fewer columns right of the cursor */

static bool is_mid_line(const answer_view *v)
{
    return v->last && v->last != '\n';
}

/* Shows the speed below the text once it is known. */
static void show_rate(const answer_view *v)
{
    if (!v->below || v->quiet || v->write_errno || !v->begun || v->rate <= 0) return;
    if (v->lines.col + EDGE > console_columns(STDOUT_FILENO)) return;
    console_below("  %.1f tok/s, %d tokens", v->rate, v->n_rated);
}

void answer_view_token(answer_view *v)
{
    const uint64_t now = clock_ns();
    if (v->n_token++ == 0) v->first_ns = now;
    if (now - v->first_ns < RATE_FIRST_NS || now - v->rated_ns < RATE_NS) return;
    v->rated_ns = now;
    v->n_rated = v->n_token - 1;
    v->rate = v->n_rated * 1e9 / (double)(now - v->first_ns);
    if (!v->thinking || v->show_reasoning) show_rate(v);
}

uint64_t answer_view_stop(answer_view *v)
{
    const uint64_t from = clock_ns();
    const bool dim = v->in_think && v->dim;
    if (!interrupt_stop_asked()) return 0;
    console_status_clear();
    if (dim) (void)output_write(STDOUT_FILENO, "\033[0m", 4);
    interrupt_stop();
    if (dim) (void)output_write(STDOUT_FILENO, "\033[2m", 4);
    const uint64_t ns = clock_ns() - from;
    v->first_ns += ns;
    v->rated_ns += ns;
    return ns;
}

/* ---- bytes --------------------------------------------------------------------------------- */

static int write_bytes(answer_view *v, const char *s, size_t n)
{
    if (v->write_errno) return ERR_IO;
    if (n == 0 || output_write(STDOUT_FILENO, s, n) == 0) return 0;
    v->write_errno = errno ? errno : EIO;
    return ERR_IO;
}

static int put(answer_view *v, str_view s)
{
    int rc = 0;
    if (!console_has_below() || memchr(s.ptr, '\n', s.len)) console_status_clear();
    if (!v->begun && v->lead) rc = write_bytes(v, v->lead, strlen(v->lead));
    v->begun = true;
    if (s.len) v->last = s.ptr[s.len - 1];
    return rc < 0 ? rc : write_bytes(v, s.ptr, s.len);
}

static int put_piece(void *ctx, str_view s) { return put(ctx, s); }

/* Prints the model's text; on a terminal, without control characters. */
static int put_text(answer_view *v, str_view s)
{
    if (!v->on_screen) return put(v, s);
    v->lines.columns = console_columns(STDOUT_FILENO);
    for (str_view part; (part = text_for_screen(&s)).len > 0;)
        if (line_wrap_put(&v->lines, part, put_piece, v) < 0) return ERR_IO;
    show_rate(v);
    return 0;
}

int answer_view_str(answer_view *v, const char *s)
{
    const str_view text = str_from(s);
    if (line_wrap_flush(&v->lines, put_piece, v) < 0 || put(v, text) < 0) return ERR_IO;
    if (text.len && s[text.len - 1] == '\n') v->lines.col = 0;
    return 0;
}

/* ---- parts --------------------------------------------------------------------------------- */

static int end_line(answer_view *v)
{
    if (line_wrap_flush(&v->lines, put_piece, v) < 0) return ERR_IO;
    return is_mid_line(v) ? answer_view_str(v, "\n") : 0;
}

/* Shows the number of hidden reasoning tokens. */
static void show_hidden(const answer_view *v)
{
    char rate[40] = "";
    if (v->rate > 0) snprintf(rate, sizeof rate, ", %.1f tok/s", v->rate);
    if (!is_mid_line(v))
        console_status("thinking... %d tokens%s (--show-reasoning shows them)", v->n_hidden, rate);
    else if (v->below)
        console_below("  thinking... %d tokens%s", v->n_hidden, rate);
}

static int set_in_think(answer_view *v, bool on)
{
    if (v->in_think == on) return 0;
    v->in_think = on;
    if (end_line(v) < 0) return ERR_IO;
    if (on) return answer_view_str(v, v->dim ? "\033[2m<think>\n" : "<think>\n");
    return answer_view_str(v, v->dim ? "</think>\033[0m\n" : "</think>\n");
}

int answer_view_event(answer_view *v, const chat_event *ev)
{
    const bool was_thinking = v->in_think;

    if ((ev->kind != CHAT_ANSWER && ev->kind != CHAT_REASONING) || ev->text.len == 0) return 0;
    v->thinking = ev->kind == CHAT_REASONING;
    if (v->thinking && !v->show_reasoning) {
        v->n_hidden++;
        if (line_wrap_flush(&v->lines, put_piece, v) < 0) return ERR_IO;
        if (!v->quiet) show_hidden(v);
        return v->write_errno ? ERR_IO : 0;
    }
    if (set_in_think(v, v->thinking) < 0) return ERR_IO;
    if (was_thinking && !v->thinking && answer_view_str(v, "\n") < 0) return ERR_IO;
    return put_text(v, ev->text);
}

int answer_view_end(answer_view *v, bool even_empty)
{
    if (line_wrap_flush(&v->lines, put_piece, v) < 0) return ERR_IO;
    console_status_clear();
    if (even_empty && !v->begun) return answer_view_str(v, "\n");
    if (set_in_think(v, false) < 0) return ERR_IO;
    return end_line(v);
}

int answer_view_exit_code(const answer_view *v)
{
    if (v->write_errno == EINTR && interrupted()) return interrupt_exit_code();
    return v->write_errno ? console_lost_output(v->write_errno) : 0;
}
