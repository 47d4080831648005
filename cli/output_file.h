/* output_file.h - output to a file that appears when it is complete, a device, a pipe or stdout.
 *
 * A file is written as NAME.part and renamed by output_file_finish; until then an older file of
 * that name stays. Devices and pipes are written directly. Zero-initialise. */
#ifndef CLI_OUTPUT_FILE_H
#define CLI_OUTPUT_FILE_H

#include <jansson.h>
#include <limits.h>

#include "loader/base.h"

typedef struct output_file {
    bool is_open;
    int fd;
    bool staged;                         /* part exists */
    bool is_new;                         /* the rename must not replace a file */
    char final[PATH_MAX], part[PATH_MAX + 8];
} output_file;

int output_file_open(output_file *s, const char *path, err_ctx *err);  /* "-": standard output */
/* A new file of that many bytes; neither it nor its .part may exist. Refuses a disk with less
 * space. output_file_finish waits until all bytes are on the disk. */
int output_file_open_new(output_file *s, const char *path, uint64_t bytes, err_ctx *err);
int output_file_check_new(const char *path, err_ctx *err); /* that it does not exist */
/* ERR_STOPPED from any of these: interrupted() while the reader was slow. */
int output_file_write(output_file *s, const void *data, size_t bytes, err_ctx *err);
int output_file_finish(output_file *s, err_ctx *err);

/* Renames from to path, which must not exist. 0, or -1 with errno. */
int output_file_move_new(const char *from, const char *path);

/* Writes a text, or JSON in one line, as a file. */
int output_file_text(const char *path, const textbuf *b, err_ctx *err);
int output_file_json(const char *path, const json_t *root, err_ctx *err);  /* NULL: no memory */
/* Whether the file could be written, as an early check: 0, or the exit code after one line.
 * NULL: no file. */
int output_file_check(const char *path);

/* Removes an unfinished file. No-op after finish or before open. */
void output_file_drop(output_file *s);

/* The same for the open file, from a signal handler that ends the program. */
void output_file_abandon(void);

/* The name in messages: the path, or "standard output". */
const char *output_file_name(const char *path);
bool output_file_is_stdout(const char *path);            /* false for NULL */

#endif
