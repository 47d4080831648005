/* line_input.h - what people type to a chat, one message at a time.
 *
 * On a terminal: a prompt, line editing, history and completion by libedit, all of it on stderr (on
 * stdout if only that is a terminal). From a pipe or a file: plain lines and no prompt; if stderr
 * is a terminal, each message is shown there after "> ", so that the screen reads as a
 * conversation. Either way a line that ends in a backslash goes on in the next one, and a line of
 * """ begins and ends a block of lines. At most one in a program, used from one thread. */
#ifndef CLI_CHAT_LINE_INPUT_H
#define CLI_CHAT_LINE_INPUT_H

#include "loader/base.h"

typedef struct line_input line_input;

/* words, borrowed, are what Tab completes at the beginning of a line; they begin with a slash.
 * history_path: NULL keeps the history in memory. A history that cannot be read or written is no
 * error. */
int line_input_open(line_input **out, const char *const *words, int n_word,
                    const char *history_path, err_ctx *err);
void line_input_close(line_input *in);   /* NULL is fine */

bool line_input_is_terminal(const line_input *in);

/* The next message, without the newline at its end; good until the next call. Returns 1, or 2 if it
 * came as a block (which is never a command); 0 at the end of the input; ERR_STOPPED after a
 * signal, with what was typed thrown away (interrupt.h knows which signal; the caller clears it);
 * another error < 0 if the input cannot be read. */
int line_input_read(str_view *out, line_input *in, err_ctx *err);

#endif
