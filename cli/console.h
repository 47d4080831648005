/* console.h - how the programs talk to people: error lines, notes, progress, numbers.
 *
 * stdout carries only the answer; everything here goes to stderr. */
#ifndef CLI_CONSOLE_H
#define CLI_CONSOLE_H

#include <jansson.h>

#include "loader/base.h"

void console_init(const char *program);  /* "moe-run": what lines begin with */

/* "moe-run: error: <text>". Always one line, broken between words where it goes to a terminal. */
void console_error(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* "moe-run: error: <path>: <message of err>", and 1, the exit code for it. */
int console_fail(const char *path, const err_ctx *err);

/* One error line about a file that can no longer be read where it is mapped, and the end of the
 * program with exit code 1. Async-signal-safe, and any thread. The terminal is the shell's already:
 * the editor has it only while no weights are read (cli/chat/line_input.h). */
void console_lost_file(const char *path);

/* "moe-run: <text>" */
void console_note(const char *fmt, ...) PRINTF_LIKE(1, 2);
void console_note_line(void *ctx, const char *line);     /* the same, as a callback; ctx: unused */

/* Lines to be copied: as they are, however wide the terminal. */
void console_copy(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* Whether standard output is a terminal that may show some text in a fainter colour. */
bool console_may_dim(void);

/* A bar with rate and time left, drawn at most ten times a second and only if stderr is a terminal;
 * gone when it ends. Work that is done in a moment shows none. done and total are bytes, or tokens
 * after progress_begin_tokens. */
typedef struct progress {
    const char *what;
    uint64_t total, start_ns, drawn_ns;
    uint64_t before;                     /* done when it began: no part of the rate */
    uint64_t done;                       /* for progress_watch: before the present call */
    bool on, tokens;
} progress;
void progress_begin(progress *p, const char *what, uint64_t total);
void progress_begin_tokens(progress *p, const char *what, uint64_t total);
void progress_begin_at(progress *p, const char *what, uint64_t total, uint64_t before);
void progress_update(progress *p, uint64_t done);
/* A progress_fn with a progress as its context: adds to what was done before the call. False:
 * interrupted(). */
bool progress_watch(void *bar, double done, double total);
void progress_end(progress *p);

/* A line that is replaced by the next one, or by whatever else is printed here ("thinking..."); on
 * a terminal only. console_status_clear before writing to stdout. */
void console_status(const char *fmt, ...) PRINTF_LIKE(1, 2);
void console_status_clear(void);

/* The same below the line that the cursor is in, which stays where it is: for what is said while an
 * answer is written. Only where standard output and stderr are the same capable terminal, which
 * console_may_show_below tells. */
bool console_may_show_below(void);
void console_below(const char *fmt, ...) PRINTF_LIKE(1, 2);
bool console_has_below(void);            /* one is there: text without a newline leaves it alone */

/* Width of the terminal that fd is; 0 if it is none, or does not tell. */
int console_columns(int fd);

/* Lets the C library know UTF-8, whose columns wcwidth counts. */
void console_use_utf8(void);

/* "48,483,058,688"; "45.2 GB" (powers of 1000). dst of 32 bytes is enough; return dst. */
const char *text_count(char *dst, size_t cap, uint64_t n);
const char *text_bytes(char *dst, size_t cap, uint64_t n);

double text_rate(uint64_t n, uint64_t ns);       /* per second; 0 if it took no time */

/* "2026-01-31", the local date; "" if the clock cannot say. */
const char *text_today(char *dst, size_t cap);

/* A model may write anything, including what a terminal would obey. Takes off *s the next piece
 * that a screen may show: a run of text as it is, or U+FFFD in place of a control character (C0 but
 * tab and newline, DEL, the two-byte C1). Empty when *s is. */
str_view text_for_screen(str_view *s);

/* Prints v as one line on stdout and drops it. False if v is NULL: whatever should have made it ran
 * out of memory, and the caller says so. flags are Jansson's. */
bool console_json(json_t *v, size_t flags);
/* The same. 0, or 1 after the line "out of memory", which about ends: " for the plan", or "". */
int console_report(json_t *v, size_t flags, const char *about);
enum { REPORT_FLAGS = JSON_COMPACT | JSON_REAL_PRECISION(6) };   /* of most reports */

/* Appends item, and drops it and the list if either is NULL or memory is short: json_pack makes
 * NULL of what contains NULL, so only the whole has to be checked. Returns the list, or NULL. */
json_t *console_append(json_t *list, json_t *item);

/* Flushes stdout; 0, or what console_lost_output returns. The last thing a verb does. */
int console_finish(void);

/* The exit code for standard output that failed with why, an errno: 1 after an error line (disk
 * full), or without one if the reader left; 130 without one if a signal ended the wait for the
 * reader. */
int console_lost_output(int why);

/* Says what the program waits for if standard input is a terminal: otherwise a person would see
 * nothing happen. */
void console_await(const char *what);

/* Whole file or standard input ("-") into memory, terminated by a NUL that *len does not count.
 * Free with mem_free. Less than READ_WHOLE_MAX bytes: a device that never ends is refused, not read
 * until memory runs out. */
enum { READ_WHOLE_MAX = 1 << 30 };
int read_whole_file(char **out, size_t *len, const char *path, err_ctx *err);

#endif
