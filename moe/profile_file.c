/* profile_file.c - the common part of files about a model's experts.
 *
 *   {"format": "moe-expert-profile", "version": 1, "model": "0123456789abcdef", "name": "...",
 *    "n_layer": 48, "n_expert": 512, ...}
 *
 * Text is checked from the outside in: its length, that it is JSON, whose it is, and only then what
 * it says. A file is written beside its place and renamed. What a kind adds is left to the kind. */
#include "moe/profile_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const common[] = { "format", "version", "model", "name", "n_layer", "n_expert" };

/* ---- whose it is ----------------------------------------------------------------------------- */

/* The text of a key, or NULL: there is none, or it is no text. */
static const char *text_of(const json_t *root, const char *name)
{
    return json_string_value(json_object_get(root, name));
}

static int need_text(const char **out, const json_t *root, const char *name, err_ctx *err)
{
    *out = text_of(root, name);
    return *out ? 0 : err_set(err, ERR_FORMAT, "%s is missing, or no text", name);
}

static int need_whole(json_int_t *out, const json_t *root, const char *name, err_ctx *err)
{
    const json_t *v = json_object_get(root, name);
    *out = json_integer_value(v);
    if (json_is_real(v))
        return err_set(err, ERR_FORMAT, "%s is %g, not a whole number", name, json_real_value(v));
    return json_is_integer(v) ? 0
                              : err_set(err, ERR_FORMAT, "%s is missing, or no number", name);
}

static int check_kind(const json_t *root, const profile_kind *kind, err_ctx *err)
{
    const char *format;
    json_int_t version;
    char shown[64];
    int rc;
    if ((rc = need_text(&format, root, "format", err)) < 0) return rc;
    if (strcmp(format, kind->format) != 0)
        return err_set(err, ERR_FORMAT, "format is \"%s\", not \"%s\"",
                       ESC(shown, str_from(format)), kind->format);
    if ((rc = need_whole(&version, root, "version", err)) < 0) return rc;
    if (version != kind->version)
        return err_set(err, ERR_UNSUPPORTED, "version %" JSON_INTEGER_FORMAT ", not %d", version,
                       kind->version);
    return 0;
}

/* 16 small hex digits: one number has one text. */
static bool is_hash(uint64_t *out, const char *text)
{
    uint64_t n = 0;
    for (int i = 0; i < 16; i++) {
        const char c = text[i];
        const bool digit = c >= '0' && c <= '9';
        if (!digit && !(c >= 'a' && c <= 'f')) return false;     /* an early end, too */
        n = n << 4 | (uint64_t)(digit ? c - '0' : c - 'a' + 10);
    }
    *out = n;
    return text[16] == '\0';
}

static int check_key(const json_t *root, const profile_key *expected, err_ctx *err)
{
    const char *model, *name;
    json_int_t n_layer, n_expert;
    uint64_t hash;
    char shown[128], own[128];
    int rc;
    if ((rc = need_text(&model, root, "model", err)) < 0) return rc;
    if (!is_hash(&hash, model))
        return err_set(err, ERR_FORMAT, "model is \"%s\", not 16 digits of 0-9a-f",
                       ESC(shown, str_from(model)));
    if ((rc = need_text(&name, root, "name", err)) < 0) return rc;
    if (hash != expected->model)
        return err_set(err, ERR_FORMAT, "of model %016" PRIx64 " (%s), not of %016" PRIx64 " (%s)",
                       hash, ESC(shown, str_from(name)), expected->model,
                       ESC(own, str_from(expected->name)));
    if ((rc = need_whole(&n_layer, root, "n_layer", err)) < 0) return rc;
    if ((rc = need_whole(&n_expert, root, "n_expert", err)) < 0) return rc;
    if (n_layer != expected->n_layer || n_expert != expected->n_expert)
        return err_set(err, ERR_FORMAT, "%" JSON_INTEGER_FORMAT " layers of %" JSON_INTEGER_FORMAT
                       " experts; the model has %d of %d", n_layer, n_expert, expected->n_layer,
                       expected->n_expert);
    return 0;
}

static bool is_among(const char *name, const char *const *names, int n_name)
{
    for (int i = 0; i < n_name; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static int unknown_key(const char *name, const char *of, err_ctx *err)
{
    char shown[64];
    return err_set(err, ERR_FORMAT, "%s has an unknown key \"%s\"", of, ESC(shown, str_from(name)));
}

int profile_file_known(const json_t *object, const char *of, const char *const *names, int n_name,
                       err_ctx *err)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)object, name, v)
        if (!is_among(name, names, n_name)) return unknown_key(name, of, err);
    return 0;
}

static int check_names(const json_t *root, const profile_kind *kind, err_ctx *err)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)root, name, v)
        if (!is_among(name, common, (int)ARRAY_LEN(common)) &&
            !is_among(name, kind->names, kind->n_name))
            return unknown_key(name, "the file", err);
    return 0;
}

int profile_file_parse(json_t **out, str_view text, size_t most, const profile_kind *kind,
                       const profile_key *expected, err_ctx *err)
{
    json_error_t why = { .text = "" };
    char shown[160];
    int rc;
    *out = NULL;
    if (text.len > most)                 /* before Jansson makes twenty times as much of it */
        return err_set(err, ERR_FORMAT, "%zu bytes: more than the %zu that it could need", text.len,
                       most);
    json_t *root = json_loadb(text.ptr ? text.ptr : "", text.len, JSON_REJECT_DUPLICATES, &why);
    if (!root && (why.text[0] == '\0' || json_error_code(&why) == json_error_out_of_memory))
        return err_set(err, ERR_NOMEM, "no memory for %zu bytes of JSON", text.len);
    if (!root)
        return err_set(err, ERR_FORMAT, "not JSON: line %d, column %d: %s", why.line, why.column,
                       ESC(shown, str_from(why.text)));
    if (!json_is_object(root)) rc = err_set(err, ERR_FORMAT, "a list, not an object");
    else if ((rc = check_kind(root, kind, err)) == 0 && (rc = check_key(root, expected, err)) == 0)
        rc = check_names(root, kind, err);
    if (rc < 0) json_decref(root);
    else *out = root;
    return rc;
}

/* ---- the file -------------------------------------------------------------------------------- */

json_t *profile_file_begin(const profile_kind *kind, const profile_key *key)
{
    char name[4 * sizeof key->name], model[17];
    snprintf(model, sizeof model, "%016" PRIx64, key->model);
    return json_pack("{s:s, s:i, s:s, s:s, s:i, s:i}", "format", kind->format, "version",
                     kind->version, "model", model, "name", ESC(name, str_from(key->name)),
                     "n_layer", key->n_layer, "n_expert", key->n_expert);
}

static int read_open(char **text, size_t *len, int fd, err_ctx *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0) return err_sys(err, "cannot read");
    if (!S_ISREG(st.st_mode)) return err_set(err, ERR_FORMAT, "not a file");
    if (st.st_size > PROFILE_MOST_BYTES)
        return err_set(err, ERR_FORMAT, "%lld bytes: more than %d", (long long)st.st_size,
                       PROFILE_MOST_BYTES);
    *text = mem_array((size_t)st.st_size + 1, 1);
    if (!*text) return err_set(err, ERR_NOMEM, "no memory for %lld bytes", (long long)st.st_size);
    while (*len < (size_t)st.st_size) {
        const ssize_t got = read(fd, *text + *len, (size_t)st.st_size - *len);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_sys(err, "cannot read");
        if (got == 0) break;             /* somebody cut it: then it will not be JSON */
        *len += (size_t)got;
    }
    return 0;
}

int profile_file_read(char **text, size_t *len, const char *path, err_ctx *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);        /* a pipe never blocks */
    *text = NULL;
    *len = 0;
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return 0;
    if (fd < 0) return err_sys(err, "cannot read");
    const int rc = read_open(text, len, fd, err);
    close(fd);
    if (rc < 0) {
        mem_free(*text);
        *text = NULL;
    }
    return rc;
}

static int put_text(const char *text, size_t len, void *out)
{
    textbuf_put(out, (str_view){ text, len });
    return 0;
}

/* Jansson itself would make a system call for every number and every comma. */
static int write_text(int fd, str_view text, err_ctx *err)
{
    while (text.len > 0) {
        const ssize_t n = write(fd, text.ptr, text.len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_sys(err, "cannot write");
        text.ptr += n;
        text.len -= (size_t)n;
    }
    return 0;
}

static int write_and_rename(const char *path, const char *temp, int fd, str_view text, err_ctx *err)
{
    int rc = write_text(fd, text, err);
    if (rc == 0 && fsync(fd) < 0) rc = err_sys(err, "cannot write");
    if (close(fd) < 0 && rc == 0) rc = err_sys(err, "cannot write");
    if (rc == 0 && rename(temp, path) < 0) rc = err_sys(err, "cannot write");
    if (rc < 0) unlink(temp);
    return rc;
}

int profile_file_replace(const char *path, const json_t *root, err_ctx *err)
{
    char behind[PATH_MAX];
    struct stat st;
    const bool is_there = stat(path, &st) == 0;
    if (is_there && !S_ISREG(st.st_mode)) return err_set(err, ERR_IO, "is no regular file");
    if (is_there && realpath(path, behind)) path = behind;       /* a link stays one */
    const size_t len = strlen(path);
    char *temp = mem_array(len + 8, 1);
    textbuf text = { 0 };
    int rc = 0;
    const bool dumped = root && json_dump_callback(root, put_text, &text, JSON_COMPACT) == 0;
    textbuf_str(&text, "\n");
    if (!temp || !dumped || text.failed) {
        rc = err_set(err, ERR_NOMEM, "no memory to write it");
    } else {
        snprintf(temp, len + 8, "%s.XXXXXX", path);
        const int fd = mkostemp(temp, O_CLOEXEC);
        if (fd >= 0 && is_there) (void)!fchmod(fd, st.st_mode & 0777);
        rc = fd < 0 ? err_sys(err, "cannot write")
                    : write_and_rename(path, temp, fd, textbuf_view(&text), err);
    }
    textbuf_free(&text);
    mem_free(temp);
    return rc;
}
