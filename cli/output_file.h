/* output_file.h - where a verb's binary output goes: a file that appears only when it is complete,
 * a device, a pipe or standard output.
 *
 * A file is written beside its place, as NAME.part, and moved there by output_file_finish; until
 * then an older file of that name stays. A device or a pipe is written directly.
 * Zero-initialise. */
#ifndef CLI_OUTPUT_FILE_H
#define CLI_OUTPUT_FILE_H

#include <jansson.h>
#include <limits.h>

#include "loader/base.h"

typedef struct output_file {
    bool is_open;
    int fd;
    bool staged;                         /* part exists and is ours to move or remove */
    bool is_new;                         /* nothing may be at its place when it is moved there */
    char final[PATH_MAX], part[PATH_MAX + 8];
} output_file;

int output_file_open(output_file *s, const char *path, err_ctx *err);  /* "-": standard output */
/* A file of that many bytes where nothing is yet, nor a .part. What the disk has no room for is
 * refused now; output_file_finish waits until all of it is on the disk. */
int output_file_open_new(output_file *s, const char *path, uint64_t bytes, err_ctx *err);
int output_file_check_new(const char *path, err_ctx *err); /* that nothing is there: to ask early */
/* ERR_STOPPED from any of these: interrupted() while nobody read. */
int output_file_write(output_file *s, const void *data, size_t bytes, err_ctx *err);
int output_file_finish(output_file *s, err_ctx *err);

/* Renames from to path, which must not exist. 0, or -1 with errno. */
int output_file_move_new(const char *from, const char *path);

/* A whole text, or JSON in one line: opened, written, finished. */
int output_file_text(const char *path, const textbuf *b, err_ctx *err);
int output_file_json(const char *path, const json_t *root, err_ctx *err);  /* NULL: no memory */
/* Whether a file there, or a new one, could be written, to ask before what takes long: 0, or the
 * exit code after one line. NULL: nothing is to be written. */
int output_file_check(const char *path);

/* Removes what is unfinished. Harmless on a sink that was finished or never opened. */
void output_file_drop(output_file *s);

/* The same for the sink that is open, from a signal handler that ends the program. */
void output_file_abandon(void);

/* What messages call it: the path, or "standard output". */
const char *output_file_name(const char *path);
bool output_file_is_stdout(const char *path);            /* false for NULL */

#endif
