/* answer_view.h - prints an answer to standard output while it is generated.
 *
 * Reasoning is printed between lines <think> and </think>, or else a status line on stderr says
 * that the model is thinking. For a terminal, control characters are removed, lines are broken
 * between words, and a line below the text shows the speed; a file gets the unchanged text. After a
 * failed write nothing more is written. */
#ifndef CLI_VIEW_ANSWER_VIEW_H
#define CLI_VIEW_ANSWER_VIEW_H

#include "cli/view/line_wrap.h"
#include "engine/text/chat/chat.h"

typedef struct answer_view {
    bool show_reasoning;
    bool quiet;                          /* no status line */
    bool on_screen;                      /* stdout is a terminal ... */
    bool dim;                            /* ... that can show reasoning in a fainter colour */
    bool below;                          /* ... and can show the speed in a line below */
    const char *lead;                    /* printed before the first byte, or NULL */
    /* results, for callers to read */
    bool begun;                          /* a byte was written */
    char last;                           /* last byte of the answer, or 0 */
    bool thinking;                       /* the latest text was reasoning, shown or not */
    int write_errno;                     /* of the write that failed, EINTR after a signal; or 0 */
    /* private */
    bool in_think;                       /* between <think> and </think> */
    int n_hidden;                        /* reasoning events that were not shown */
    line_wrap lines;
    int n_token;                         /* calls of answer_view_token */
    uint64_t first_ns, rated_ns;         /* time of the first one, and of the latest rate */
    double rate;                         /* tok/s; 0: not known yet */
    int n_rated;                         /* tokens that the rate covers */
} answer_view;

answer_view answer_view_of(bool show_reasoning);

/* Call before each token; updates the speed. */
void answer_view_token(answer_view *v);

/* Call between tokens or chunks of the prompt: suspends the process if Ctrl-Z was pressed while
 * interrupt_hold_stop delayed it. Returns the duration in ns. */
uint64_t answer_view_stop(answer_view *v);

/* Prints the model's text. Events other than reasoning and answer print nothing. < 0: a write
 * failed, see v->write_errno. */
int answer_view_event(answer_view *v, const chat_event *ev);

/* Ends the output with a newline, and open reasoning with </think>. An empty answer prints nothing,
 * or an empty line if even_empty. */
int answer_view_end(answer_view *v, bool even_empty);

int answer_view_str(answer_view *v, const char *s);      /* prints s unchanged */

/* The exit code after an answer: 0, or that of the signal or of console_lost_output. */
int answer_view_exit_code(const answer_view *v);

#endif
