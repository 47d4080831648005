/* models.c - moe-run models: prints models.txt, the list of public model files.
 *
 * The list is data, not code: it lies beside the program or where `make install` put it. Every line
 * is checked; a bad one is an error with file and line, never skipped. */
#include "cli/commands.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/console.h"

typedef struct settings {
    bool json;
} settings;

static const arg_option options[] = {
    { "json", 0, ARG_FLAG, offsetof(settings, json), NULL, NULL, 0, 0,
      "One JSON object per model on stdout" },
};

static const arg_spec spec = {
    .usage = "moe-run models [options]",
    .about = "Lists public model files that this engine reads: where they are, how large, their\n"
             "hashes. The list is models.txt beside the program, or in ../share/moe, where make\n"
             "install puts it with the demo models.",
    .options = options, .n_option = ARRAY_LEN(options),
};

enum { F_NAME, F_REPO, F_FILE, F_BYTES, F_SHA, F_NOTES, N_FIELD };
static const char *const field_names[N_FIELD] = {
    "name", "repository", "file", "bytes", "sha256", "notes" };

typedef struct entry {
    str_view field[N_FIELD];
    uint64_t bytes;
    bool about;                          /* the size is not exact */
} entry;

typedef struct catalogue {
    char path[PATH_MAX];
    char *text;
    entry *entries;
    int n_entry, cap;
} catalogue;

/* ---- reading ----------------------------------------------------------------------------- */

static str_view trim(str_view s)
{
    while (s.len && (s.ptr[0] == ' ' || s.ptr[0] == '\t')) s.ptr++, s.len--;
    while (s.len && strchr(" \t\r", s.ptr[s.len - 1])) s.len--;
    return s;
}

static bool is_sha256(str_view s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!strchr("0123456789abcdef", s.ptr[i]) || !s.ptr[i]) return false;
    return s.len == 64;
}

static bool parse_bytes(entry *e)
{
    str_view s = e->field[F_BYTES];
    e->about = str_starts(s, "~");
    e->bytes = 0;
    if (e->about) s.ptr++, s.len--;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9' || e->bytes > UINT64_MAX / 10 - 1) return false;
        e->bytes = e->bytes * 10 + (uint64_t)(s.ptr[i] - '0');
    }
    return e->bytes > 0;
}

static int parse_line(entry *e, str_view line, err_ctx *err)
{
    char shown[96];
    int n = 0;
    for (size_t from = 0, i = 0; i <= line.len; i++) {
        if (i < line.len && line.ptr[i] != '|') continue;
        if (n < N_FIELD) e->field[n] = trim((str_view){ line.ptr + from, i - from });
        from = i + 1;
        n++;
    }
    if (n != N_FIELD) return err_set(err, ERR_FORMAT, "%d fields, expected %d", n, N_FIELD);
    for (int k = 0; k < F_NOTES; k++)
        if (e->field[k].len == 0) return err_set(err, ERR_FORMAT, "%s is empty", field_names[k]);
    if (!parse_bytes(e))
        return err_set(err, ERR_FORMAT, "bytes is '%s', expected a number or ~ and a number",
                       ESC(shown, e->field[F_BYTES]));
    if (!str_is(e->field[F_SHA], "-") && !is_sha256(e->field[F_SHA]))
        return err_set(err, ERR_FORMAT, "sha256 is '%s', expected 64 small hex digits or -",
                       ESC(shown, e->field[F_SHA]));
    return 0;
}

static int parse_text(catalogue *c, size_t len, err_ctx *err)
{
    int number = 0, rc;
    for (size_t from = 0; from < len; number++) {
        const char *end = memchr(c->text + from, '\n', len - from);
        const size_t n = end ? (size_t)(end - c->text) - from : len - from;
        const str_view line = trim((str_view){ c->text + from, n });
        from += n + 1;
        if (line.len == 0 || line.ptr[0] == '#') continue;
        if (c->n_entry == c->cap) {
            entry *grown = mem_resize(c->entries, (size_t)c->cap + 32, sizeof *grown);
            if (!grown) return err_set(err, ERR_NOMEM, "out of memory after %d models", c->n_entry);
            c->entries = grown;
            c->cap += 32;
        }
        if ((rc = parse_line(&c->entries[c->n_entry], line, err)) < 0)
            return err_prefix(err, rc, "line %d", number + 1);
        c->n_entry++;
    }
    return c->n_entry ? 0 : err_set(err, ERR_FORMAT, "holds no model");
}

/* ---- finding ----------------------------------------------------------------------------- */

/* Folder of the running program, or "" if the system does not tell. */
static void program_folder(char *dst, size_t cap)
{
    const ssize_t n = readlink("/proc/self/exe", dst, cap - 1);
    char *slash;
    dst[n > 0 ? n : 0] = '\0';
    if ((slash = strrchr(dst, '/'))) *slash = '\0';
}

/* Puts into c->path the first of the three places that can be read. */
static int find_list(catalogue *c, err_ctx *err)
{
    char here[PATH_MAX], tried[3][PATH_MAX + 32];
    program_folder(here, sizeof here);
    snprintf(tried[0], sizeof tried[0], "%s/models.txt", here);
    snprintf(tried[1], sizeof tried[1], "%s/../share/moe/models.txt", here);
    snprintf(tried[2], sizeof tried[2], "models.txt");
    for (int i = 0; i < 3; i++) {
        if (access(tried[i], R_OK) != 0 || strlen(tried[i]) >= sizeof c->path) continue;
        snprintf(c->path, sizeof c->path, "%s", tried[i]);
        return 0;
    }
    return err_set(err, ERR_IO, "not found; tried %.200s, %.200s and %s in the current folder",
                   tried[0], tried[1], tried[2]);
}

static int load(catalogue *c, err_ctx *err)
{
    size_t len;
    int rc;
    snprintf(c->path, sizeof c->path, "models.txt");
    if ((rc = find_list(c, err)) < 0) return rc;
    if ((rc = read_whole_file(&c->text, &len, c->path, err)) < 0) return rc;
    return parse_text(c, len, err);
}

/* ---- where a file is ---------------------------------------------------------------------- */

enum { PLACE_CAP = PATH_MAX + 256 };

static const char *const hub = "https://huggingface.co/";

/* A file that comes with the program: beside the list as in the source tree, or right beside it, as
 * it is installed. False if it is in neither place. */
static bool find_here(char dst[PLACE_CAP], const catalogue *c, const entry *e)
{
    const char *end = strrchr(c->path, '/'), *name = e->field[F_FILE].ptr;
    const int folder = end ? (int)(end - c->path) : 0;
    int n = (int)e->field[F_FILE].len;
    char path[PLACE_CAP], found[PATH_MAX];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%.*s%s%.*s", folder, c->path, end ? "/" : "", n, name);
        if (access(path, R_OK) == 0 && realpath(path, found)) {
            snprintf(dst, PLACE_CAP, "%s", found);
            return true;
        }
        while (memchr(name, '/', (size_t)n)) name++, n--;
    }
    return false;
}

/* A path, or an address to download from. */
static const char *place_of(char dst[PLACE_CAP], const catalogue *c, const entry *e)
{
    const str_view repo = e->field[F_REPO], file = e->field[F_FILE];
    if (!str_is(repo, "here"))
        snprintf(dst, PLACE_CAP, "%s%.*s/resolve/main/%.*s", hub, (int)repo.len, repo.ptr,
                 (int)file.len, file.ptr);
    else if (!find_here(dst, c, e))
        snprintf(dst, PLACE_CAP, "%.*s (not installed)", (int)file.len, file.ptr);
    return dst;
}

/* ---- printing ---------------------------------------------------------------------------- */

static void print_table(const catalogue *c)
{
    size_t width = 0;
    for (int i = 0; i < c->n_entry; i++)
        if (c->entries[i].field[F_NAME].len > width) width = c->entries[i].field[F_NAME].len;
    for (int i = 0; i < c->n_entry; i++) {
        const entry *e = &c->entries[i];
        char name[128], place[PLACE_CAP], shown[PLACE_CAP], sha[80], notes[256], size[32];
        printf("%-*s  %s%8s  %s\n", (int)width, ESC(name, e->field[F_NAME]), e->about ? "~" : " ",
               text_bytes(size, sizeof size, e->bytes),
               ESC(shown, str_from(place_of(place, c, e))));
        if (!str_is(e->field[F_SHA], "-")) printf("    sha256 %s\n", ESC(sha, e->field[F_SHA]));
        if (e->field[F_NOTES].len) printf("    %s\n", ESC(notes, e->field[F_NOTES]));
    }
}

static int print_json(const catalogue *c)
{
    for (int i = 0; i < c->n_entry; i++) {
        const entry *e = &c->entries[i];
        char name[128], repo[128], file[256], notes[256], sha[80], place[PLACE_CAP];
        char shown[PLACE_CAP];
        const bool hashed = !str_is(e->field[F_SHA], "-"), here = str_is(e->field[F_REPO], "here");
        json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:I, s:b, s:s*, s:s}",
                                "name", ESC(name, e->field[F_NAME]),
                                "repository", ESC(repo, e->field[F_REPO]),
                                "file", ESC(file, e->field[F_FILE]), here ? "path" : "url",
                                ESC(shown, str_from(place_of(place, c, e))),
                                "bytes", (json_int_t)e->bytes, "exact", !e->about,
                                "sha256", hashed ? ESC(sha, e->field[F_SHA]) : NULL,
                                "notes", ESC(notes, e->field[F_NOTES]));
        if (!console_json(row, JSON_COMPACT)) {
            console_error("out of memory for model %d", i + 1);
            return 1;
        }
    }
    return 0;
}

int cmd_models(int argc, char **argv)
{
    settings s = { false };
    catalogue c = { .text = NULL };
    err_ctx err;
    int rc = args_parse(&spec, &s, NULL, NULL, argc, argv);

    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    rc = load(&c, &err) < 0 ? console_fail(c.path, &err) : 0;
    if (rc == 0 && s.json) rc = print_json(&c);
    else if (rc == 0) print_table(&c);
    mem_free(c.entries);
    mem_free(c.text);
    return console_finish() || rc ? 1 : 0;
}
