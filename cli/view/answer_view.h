/* answer_view.h - an answer on standard output, as it comes.
 *
 * Reasoning, if it is shown, stands between lines <think> and </think>; if not, a status line on
 * stderr says that the model is thinking. On a screen nothing is shown that a terminal would obey,
 * lines are broken between words, and a line below the text shows the speed meanwhile; a file gets
 * the text as it is. After a failed write nothing more is written. */
#ifndef CLI_VIEW_ANSWER_VIEW_H
#define CLI_VIEW_ANSWER_VIEW_H

#include "cli/view/line_wrap.h"
#include "engine/text/chat/chat.h"

typedef struct answer_view {
    bool show_reasoning;
    bool quiet;                          /* no status line */
    bool on_screen;                      /* stdout is a terminal ... */
    bool dim;                            /* ... that may show reasoning in a fainter colour */
    bool below;                          /* ... and may show the speed in a line below */
    const char *lead;                    /* goes before the first byte; NULL: nothing */
    /* to be read */
    bool begun;                          /* something was written ... */
    char last;                           /* ... of the answer, and this is its last byte; or 0 */
    bool thinking;                       /* the latest text was reasoning, shown or not */
    int why;                             /* errno of the write that failed, EINTR after a signal */
    /* the view's own */
    bool marked;                         /* <think> is open */
    int n_hidden;                        /* pieces of reasoning that were not shown */
    line_wrap lines;
    int n_token;                         /* asked for so far */
    uint64_t first_ns, rated_ns;         /* when the first was, and when the rate was looked at */
    double rate;                         /* tok/s; 0: not known yet */
    int n_rated;                         /* tokens until then */
} answer_view;

answer_view answer_view_of(bool show_reasoning);

/* Before each token: for the speed. */
void answer_view_token(answer_view *v);

/* Between tokens or chunks of the prompt: stops the process if Ctrl-Z was pressed while
 * interrupt_hold_stop held it. Returns for how many ns. */
uint64_t answer_view_stop(answer_view *v);

/* Text of the model. Events other than reasoning and answer show nothing. < 0: a write failed, and
 * v->why says why. */
int answer_view_event(answer_view *v, const chat_event *ev);

/* Ends what was shown with a newline, and open reasoning with its line. An empty answer shows
 * nothing, or an empty line if even_empty. */
int answer_view_end(answer_view *v, bool even_empty);

int answer_view_str(answer_view *v, const char *s);      /* as it is */

/* The exit code for a view: 0, or what console_lost_output or the signal says. */
int answer_view_exit_code(const answer_view *v);

#endif
