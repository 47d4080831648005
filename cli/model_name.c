/* model_name.c - names to entries of the list, entries to paths.
 *
 * A missing or invalid list counts as empty: the name is then opened as a file, and that error is
 * the one to report. */
#include "cli/model_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/console.h"

/* ---- names --------------------------------------------------------------------------------- */

static char folded(char c)
{
    if (c == ' ' || c == ':' || c == '_') return '-';
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

static bool same(str_view a, str_view b)
{
    if (a.len != b.len || a.len == 0) return false;
    for (size_t i = 0; i < a.len; i++)
        if (folded(a.ptr[i]) != folded(b.ptr[i])) return false;
    return true;
}

/* What comes before the first c, and in *rest what comes after it; all and nothing without one. */
static str_view until(str_view s, char c, str_view *rest)
{
    const char *at = memchr(s.ptr, c, s.len);
    *rest = (str_view){ s.ptr + s.len, 0 };
    if (!at) return s;
    const size_t n = (size_t)(at - s.ptr);
    *rest = (str_view){ at + 1, s.len - n - 1 };
    return (str_view){ s.ptr, n };
}

/* "gpt-oss-120b-mxfp4" of "Q/gpt-oss-120b-mxfp4-00001-of-00003.gguf". */
static str_view stem(const list_entry *e)
{
    str_view s = e->field[LIST_FILE];
    const size_t tail = e->n_part > 1 ? strlen("-00001-of-00003.gguf") : strlen(".gguf");
    for (size_t i = s.len; i > 0; i--)
        if (s.ptr[i - 1] == '/') {
            s = (str_view){ s.ptr + i, s.len - i };
            break;
        }
    if (str_ends(s, ".gguf") && s.len > tail) s.len -= tail;
    return s;
}

static bool fits(const list_entry *e, str_view name)
{
    str_view rest, repo;
    const str_view owner = until(name, '/', &rest);
    const str_view whole = e->field[LIST_NAME], e_owner = until(e->field[LIST_REPO], '/', &repo);
    if (rest.len > 0) {
        if (!same(owner, e_owner)) return false;
        name = rest;
        if (same(name, repo)) return true;
    }
    return same(name, whole) || same(name, until(whole, ' ', &rest)) || same(name, stem(e));
}

int model_name_next(const model_list *l, const char *name, int from)
{
    for (int i = from; i < l->n_entry; i++)
        if (fits(&l->entries[i], str_from(name))) return i;
    return -1;
}

/* ---- places -------------------------------------------------------------------------------- */

int model_name_folder(char dst[PATH_MAX], const char *given, err_ctx *err)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    int n;
    if (given && *given) n = snprintf(dst, PATH_MAX, "%s", given);
    else if (data && data[0] == '/') n = snprintf(dst, PATH_MAX, "%s/moe/models", data);
    else if (home && *home) n = snprintf(dst, PATH_MAX, "%s/.local/share/moe/models", home);
    else return err_set(err, ERR_RANGE, "no folder for models: HOME is not set; use --dir");
    return n < PATH_MAX ? 0 : err_set(err, ERR_RANGE, "a folder of %d bytes is too long", n);
}

int model_name_path(char dst[PATH_MAX], const char *folder, const list_entry *e, int p,
                    err_ctx *err)
{
    const str_view repo = e->field[LIST_REPO];
    char file[PATH_MAX];
    if (list_entry_file(file, sizeof file, e, p) &&
        snprintf(dst, PATH_MAX, "%s/%.*s/%s", folder, (int)repo.len, repo.ptr, file) < PATH_MAX)
        return 0;
    return err_set(err, ERR_RANGE, "the path of the file is too long");
}

/* Fills the first part's path if all are there. */
static bool is_complete(char dst[PLACE_CAP], const model_list *l, const list_entry *e,
                        const char *folder)
{
    char path[PATH_MAX];
    if (list_entry_is_here(e)) return model_list_find_here(dst, l, e);
    for (int p = e->n_part - 1; p >= 0; p--)
        if (model_name_path(path, folder, e, p, NULL) < 0 || access(path, R_OK) != 0) return false;
    snprintf(dst, PLACE_CAP, "%s", path);
    return true;
}

/* Whether the list should be asked: files win. */
static bool is_name(const char *name)
{
    return *name && !str_ends(str_from(name), ".gguf") && access(name, F_OK) != 0;
}

const char *model_name_find(const char *name)
{
    static char found[PLACE_CAP];        /* outlives every option that points to it */
    model_list l = { .text = NULL };
    char folder[PATH_MAX] = "";
    int i = -1;
    if (!is_name(name)) return NULL;
    (void)model_name_folder(folder, getenv("MOE_MODELS"), NULL);
    if (model_list_load(&l, NULL) == 0)
        while ((i = model_name_next(&l, name, i + 1)) >= 0)
            if (is_complete(found, &l, &l.entries[i], folder)) break;
    model_list_release(&l);
    return i >= 0 ? found : NULL;
}

const char *model_name_advice(char *dst, size_t cap, const char *name)
{
    model_list l = { .text = NULL };
    const bool loaded = is_name(name) && model_list_load(&l, NULL) == 0;
    const int i = loaded ? model_name_next(&l, name, 0) : -1;
    char shown[128], size[32];
    if (i < 0 || list_entry_is_here(&l.entries[i]))
        snprintf(dst, cap, "moe-run models lists public model files");
    else
        snprintf(dst, cap, "moe-run pull '%s' downloads it, %s", ESC(shown, str_from(name)),
                 text_bytes(size, sizeof size, l.entries[i].bytes));
    model_list_release(&l);
    return dst;
}

int model_name_open(gguf **out, const char *path, err_ctx *err)
{
    char advice[256];
    const int rc = gguf_open(out, path, err);
    if (rc == 0 || access(path, F_OK) == 0) return rc;
    const err_ctx said = *err;
    return err_set(err, rc, "%s (%s)", said.msg, model_name_advice(advice, sizeof advice, path));
}
