/* line_input.h - what people type to a chat, one message at a time.
 *
 * On a terminal: a prompt, line editing, history and completion by libedit, all of it on stderr (on
 * stdout if only that is a terminal). From a pipe or a file: plain lines and no prompt; if stderr
 * is a terminal, each message is shown there after "> ", so that the screen reads as a
 * conversation. Either way a line that ends in a backslash goes on in the next one, and a line of
 * """ begins and ends a block of lines. At most one in a program, used from one thread.
 *
 * From open to close the terminal passes on each key and shows none by itself: what is typed
 * meanwhile, Ctrl-D included, waits in the terminal for the next message and appears in no answer.
 * Keys that send signals are keys like others while a line is edited, so that their order is kept,
 * and send signals at other times. */
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

/* Raises SIGINT if Ctrl-C is the next key after the message that was read: it was typed before the
 * terminal sent signals again. Call before an answer. */
void line_input_check_keys(line_input *in);

/* The next message, without the newline at its end; good until the next call. Returns 1, or 2 if it
 * came as a block (which is never a command); 0 at the end of the input; ERR_STOPPED after a
 * signal or its key, with what was typed before it given up (interrupt.h knows which signal; the
 * caller clears it); another error < 0 if the input cannot be read. */
int line_input_read(str_view *out, line_input *in, err_ctx *err);

#endif
