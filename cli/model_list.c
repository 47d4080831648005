/* model_list.c - reads models.txt.
 *
 * Names of repositories and files become parts of addresses and paths (cli/pull), so a line whose
 * names could lead out of a folder is refused here, for all. */
#include "cli/model_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/console.h"
#include "cli/pull/sha256.h"

const char *const model_list_hub = "https://huggingface.co";

static const char *const field_names[LIST_FIELDS] = {
    "name", "repository", "file", "bytes", "sha256", "notes" };

/* ---- lines --------------------------------------------------------------------------------- */

static str_view trim(str_view s)
{
    while (s.len && (s.ptr[0] == ' ' || s.ptr[0] == '\t')) s.ptr++, s.len--;
    while (s.len && strchr(" \t\r", s.ptr[s.len - 1])) s.len--;
    return s;
}

static bool parse_bytes(list_entry *e)
{
    str_view s = e->field[LIST_BYTES];
    e->about = str_starts(s, "~");
    e->bytes = 0;
    if (e->about) s.ptr++, s.len--;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9' || e->bytes > UINT64_MAX / 10 - 1) return false;
        e->bytes = e->bytes * 10 + (uint64_t)(s.ptr[i] - '0');
    }
    return e->bytes > 0;
}

/* Names with single slashes between them, none of which begins with a dot; letters, digits and what
 * needs no escape in an address. */
static bool is_plain_path(str_view s)
{
    char before = '/';
    for (size_t i = 0; i < s.len; before = s.ptr[i++]) {
        const char c = s.ptr[i];
        const bool letter = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        if (!letter && (!c || !strchr("/-_.+", c))) return false;
        if (before == '/' && (c == '/' || c == '.')) return false;
    }
    return before != '/';
}

/* N of a name that ends in "-00001-of-0000N.gguf"; 1 if it does not; 0 if it is another part. */
static int parts_of(str_view file)
{
    enum { TAIL = 20 };                  /* "-00001-of-00003.gguf" */
    char tail[TAIL + 1];
    int part, n, used = 0;
    if (file.len <= TAIL) return 1;
    memcpy(tail, file.ptr + file.len - TAIL, TAIL);
    tail[TAIL] = '\0';
    if (sscanf(tail, "-%5d-of-%5d.gguf%n", &part, &n, &used) != 2 || used != TAIL) return 1;
    return part == 1 && n >= 1 ? n : 0;
}

static int check_fields(list_entry *e, err_ctx *err)
{
    char shown[96];
    for (int k = 0; k < LIST_NOTES; k++)
        if (e->field[k].len == 0) return err_set(err, ERR_FORMAT, "%s is empty", field_names[k]);
    for (int k = LIST_REPO; k <= LIST_FILE; k++)
        if (!is_plain_path(e->field[k]))
            return err_set(err, ERR_FORMAT, "%s is '%s', expected plain names with / between them",
                           field_names[k], ESC(shown, e->field[k]));
    if (!parse_bytes(e))
        return err_set(err, ERR_FORMAT, "bytes is '%s', expected a number or ~ and a number",
                       ESC(shown, e->field[LIST_BYTES]));
    if (list_entry_is_hashed(e) && !sha256_is_text(e->field[LIST_SHA256]))
        return err_set(err, ERR_FORMAT, "sha256 is '%s', expected 64 small hex digits or -",
                       ESC(shown, e->field[LIST_SHA256]));
    if ((e->n_part = parts_of(e->field[LIST_FILE])) == 0)
        return err_set(err, ERR_FORMAT, "file is '%s', expected the first part",
                       ESC(shown, e->field[LIST_FILE]));
    return 0;
}

static int parse_line(list_entry *e, str_view line, err_ctx *err)
{
    int n = 0;
    for (size_t from = 0, i = 0; i <= line.len; i++) {
        if (i < line.len && line.ptr[i] != '|') continue;
        if (n < LIST_FIELDS) e->field[n] = trim((str_view){ line.ptr + from, i - from });
        from = i + 1;
        n++;
    }
    if (n == LIST_FIELDS) return check_fields(e, err);
    return err_set(err, ERR_FORMAT, "%d fields, expected %d", n, LIST_FIELDS);
}

static int parse_text(model_list *l, size_t len, err_ctx *err)
{
    int number = 0, rc;
    for (size_t from = 0; from < len; number++) {
        const char *end = memchr(l->text + from, '\n', len - from);
        const size_t n = end ? (size_t)(end - l->text) - from : len - from;
        const str_view line = trim((str_view){ l->text + from, n });
        from += n + 1;
        if (line.len == 0 || line.ptr[0] == '#') continue;
        list_entry *entries = mem_grow(l->entries, l->n_entry, &l->cap, sizeof *entries);
        if (!entries) return err_set(err, ERR_NOMEM, "out of memory after %d models", l->n_entry);
        l->entries = entries;
        if ((rc = parse_line(&l->entries[l->n_entry], line, err)) < 0)
            return err_prefix(err, rc, "line %d", number + 1);
        l->n_entry++;
    }
    return l->n_entry ? 0 : err_set(err, ERR_FORMAT, "holds no model");
}

/* ---- the list ------------------------------------------------------------------------------ */

/* Folder of the running program, or "" if the system does not tell. */
static void program_folder(char *dst, size_t cap)
{
    const ssize_t n = readlink("/proc/self/exe", dst, cap - 1);
    char *slash;
    dst[n > 0 ? n : 0] = '\0';
    if ((slash = strrchr(dst, '/'))) *slash = '\0';
}

/* Puts into l->path the first of the three places that can be read. */
static int find_list(model_list *l, err_ctx *err)
{
    char here[PATH_MAX], tried[3][PATH_MAX + 32];
    program_folder(here, sizeof here);
    snprintf(tried[0], sizeof tried[0], "%s/models.txt", here);
    snprintf(tried[1], sizeof tried[1], "%s/../share/moe/models.txt", here);
    snprintf(tried[2], sizeof tried[2], "models.txt");
    for (int i = 0; i < 3; i++) {
        if (access(tried[i], R_OK) != 0 || strlen(tried[i]) >= sizeof l->path) continue;
        snprintf(l->path, sizeof l->path, "%s", tried[i]);
        return 0;
    }
    return err_set(err, ERR_IO, "not found; tried %.200s, %.200s and %s in the current folder",
                   tried[0], tried[1], tried[2]);
}

int model_list_load(model_list *l, err_ctx *err)
{
    size_t len;
    int rc;
    snprintf(l->path, sizeof l->path, "models.txt");
    if ((rc = find_list(l, err)) < 0) return rc;
    if ((rc = read_whole_file(&l->text, &len, l->path, err)) < 0) return rc;
    return parse_text(l, len, err);
}

void model_list_release(model_list *l)
{
    mem_free(l->entries);
    mem_free(l->text);
    *l = (model_list){ .text = NULL };
}

/* ---- an entry ------------------------------------------------------------------------------ */

bool list_entry_is_here(const list_entry *e)
{
    return str_is(e->field[LIST_REPO], "here");
}

bool list_entry_is_hashed(const list_entry *e)
{
    return !str_is(e->field[LIST_SHA256], "-");
}

bool list_entry_file(char *dst, size_t cap, const list_entry *e, int p)
{
    enum { TAIL = 20 };
    const str_view file = e->field[LIST_FILE];
    if (e->n_part == 1)
        return (size_t)snprintf(dst, cap, "%.*s", (int)file.len, file.ptr) < cap;
    return (size_t)snprintf(dst, cap, "%.*s-%05d-of-%05d.gguf", (int)file.len - TAIL, file.ptr,
                            p + 1, e->n_part) < cap;
}

bool model_list_find_here(char dst[PLACE_CAP], const model_list *l, const list_entry *e)
{
    const char *end = strrchr(l->path, '/'), *name = e->field[LIST_FILE].ptr;
    const int folder = end ? (int)(end - l->path) : 0;
    int n = (int)e->field[LIST_FILE].len;
    char path[PLACE_CAP], found[PATH_MAX];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%.*s%s%.*s", folder, l->path, end ? "/" : "", n, name);
        if (access(path, R_OK) == 0 && realpath(path, found)) {
            snprintf(dst, PLACE_CAP, "%s", found);
            return true;
        }
        while (memchr(name, '/', (size_t)n)) name++, n--;
    }
    return false;
}
