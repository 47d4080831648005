/* sink.c - output that is whole or not there.
 *
 * Whatever fails between open and finish, sink_drop leaves nothing behind but what stood there
 * before. What is written, and in which order of bytes, is the caller's. */
#include "cli/sink.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void sink_drop(sink *s)
{
    if (s->file && s->file != stdout) fclose(s->file);
    if (s->staged) unlink(s->part);
    s->file = NULL;
    s->staged = false;
}

int sink_open(sink *s, const char *path, err_ctx *err)
{
    struct stat st;

    if (strcmp(path, "-") == 0) {
        s->file = stdout;
        return 0;
    }
    if (stat(path, &st) != 0) {          /* a new file, or something that fopen() will explain */
        if ((size_t)snprintf(s->final, sizeof s->final, "%s", path) >= sizeof s->final)
            return err_set(err, ERR_RANGE, "a path of %zu bytes is too long", strlen(path));
    } else if (!S_ISREG(st.st_mode)) {
        s->file = fopen(path, "wb");
        return s->file ? 0 : err_sys(err, "cannot write");
    } else if (!realpath(path, s->final)) {      /* through a link, so that the link stays */
        return err_sys(err, "cannot resolve");
    }
    snprintf(s->part, sizeof s->part, "%s.part", s->final);
    if (!(s->file = fopen(s->part, "wb"))) return err_sys(err, "cannot create %s", s->part);
    s->staged = true;
    return 0;
}

int sink_write(sink *s, const void *data, size_t bytes, err_ctx *err)
{
    if (fwrite(data, 1, bytes, s->file) == bytes) return 0;
    return err_sys(err, "cannot write");
}

int sink_finish(sink *s, err_ctx *err)
{
    FILE *f = s->file;
    bool bad = fflush(f) != 0 || ferror(f);

    s->file = NULL;
    if (f != stdout) bad = fclose(f) != 0 || bad;
    if (bad) return err_sys(err, "cannot write");
    if (s->staged && rename(s->part, s->final) != 0)
        return err_sys(err, "cannot rename %s", s->part);
    s->staged = false;
    return 0;
}

const char *sink_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard output" : path;
}
