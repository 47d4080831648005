/* answer_view.c - parts of an answer, the marks between them, and the bytes on standard output.
 *
 * Invariant: every <think> stands at the start of a line and has its </think>, in whatever order
 * reasoning and answer come, once answer_view_end was called. Whose answer it is and what becomes
 * of the text is the caller's. */
#include "cli/answer_view.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/output.h"

answer_view answer_view_of(bool show_reasoning)
{
    return (answer_view){ .show_reasoning = show_reasoning, .on_screen = isatty(STDOUT_FILENO),
                          .dim = console_may_dim() };
}

/* ---- bytes --------------------------------------------------------------------------------- */

static int write_bytes(answer_view *v, const char *s, size_t n)
{
    if (v->why) return ERR_IO;
    if (n == 0 || output_write(STDOUT_FILENO, s, n) == 0) return 0;
    v->why = errno ? errno : EIO;
    return ERR_IO;
}

static int put(answer_view *v, str_view s)
{
    int rc = 0;
    console_status_clear();
    if (!v->begun && v->lead) rc = write_bytes(v, v->lead, strlen(v->lead));
    v->begun = true;
    if (s.len) v->last = s.ptr[s.len - 1];
    return rc < 0 ? rc : write_bytes(v, s.ptr, s.len);
}

/* The model's text: on a screen without what a terminal would obey. */
static int put_text(answer_view *v, str_view s)
{
    if (!v->on_screen) return put(v, s);
    for (str_view part; (part = text_for_screen(&s)).len > 0;)
        if (put(v, part) < 0) return ERR_IO;
    return 0;
}

int answer_view_str(answer_view *v, const char *s)
{
    return put(v, str_from(s));
}

/* ---- parts --------------------------------------------------------------------------------- */

static int end_line(answer_view *v)
{
    return v->last && v->last != '\n' ? answer_view_str(v, "\n") : 0;
}

static int set_marked(answer_view *v, bool on)
{
    if (v->marked == on) return 0;
    v->marked = on;
    if (end_line(v) < 0) return ERR_IO;
    if (on) return answer_view_str(v, v->dim ? "\033[2m<think>\n" : "<think>\n");
    return answer_view_str(v, v->dim ? "</think>\033[0m\n" : "</think>\n");
}

int answer_view_event(answer_view *v, const chat_event *ev)
{
    const bool was_marked = v->marked;

    if ((ev->kind != CHAT_ANSWER && ev->kind != CHAT_REASONING) || ev->text.len == 0) return 0;
    v->thinking = ev->kind == CHAT_REASONING;
    if (v->thinking && !v->show_reasoning) {
        v->n_hidden++;
        if (!v->quiet)
            console_status("thinking... %d tokens (--show-reasoning shows them)", v->n_hidden);
        return v->why ? ERR_IO : 0;
    }
    if (set_marked(v, v->thinking) < 0) return ERR_IO;
    if (was_marked && !v->thinking && answer_view_str(v, "\n") < 0) return ERR_IO;
    return put_text(v, ev->text);
}

int answer_view_end(answer_view *v, bool even_empty)
{
    console_status_clear();
    if (even_empty && !v->begun) return answer_view_str(v, "\n");
    if (set_marked(v, false) < 0) return ERR_IO;
    return end_line(v);
}

int answer_view_exit_code(const answer_view *v)
{
    if (v->why == EINTR && interrupted()) return interrupt_exit_code();
    return v->why ? console_lost_output(v->why) : 0;
}
