/* speeds.c - the file of measured speeds: one JSON object with a list of entries.
 *
 *   {"version": 3,
 *    "speeds": [{"processor": "...", "gpu": "...", "n_thread": 8, "kernels": "avx2", "drive": 6,
 *                "date": 1794787200, "vram_read": 3.6e+11, ...}, ...]}
 *
 * An entry counts only if its key is the wanted one (or its processor is "*") and every figure is a
 * number that a measurement could have given. A file of another version counts as none. The file is
 * never written in place. */
#include "tiers/speeds.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/file_io.h"

enum {
    MOST_ENTRIES = 64,                   /* limit, many machines may share a home: the oldest go */
    MOST_BYTES = 1 << 20,                /* a longer file is ignored */
    VERSION = 3                          /* the first one had no dates, and no number; the second
                                          * no times of layers */
};

/* The JSON names, and the assumptions for unmeasured figures. */
static const struct figure {
    const char *name;
    size_t at;
    double assumed;
    bool of_gpu;
} figures[] = {
    { "vram_read", offsetof(speeds, vram_read), SPEEDS_VRAM_READ, true },
    { "pcie_in", offsetof(speeds, pcie_in), SPEEDS_PCIE, true },
    { "pcie_out", offsetof(speeds, pcie_out), SPEEDS_PCIE, true },
    { "pull", offsetof(speeds, pull), SPEEDS_PULL, true },
    { "pull_busy", offsetof(speeds, pull_busy), SPEEDS_PULL_BUSY, true },
    { "cpu", offsetof(speeds, cpu), SPEEDS_CPU, false },
    { "cpu_busy", offsetof(speeds, cpu_busy), SPEEDS_CPU_BUSY, false },
    { "cpu_dense", offsetof(speeds, cpu_dense), SPEEDS_CPU_DENSE, false },
    { "cpu_many", offsetof(speeds, cpu_many), SPEEDS_CPU_MANY, false },
    { "gpu_macs", offsetof(speeds, gpu_macs), SPEEDS_GPU_MACS, true },
    { "hop", offsetof(speeds, hop), SPEEDS_HOP, true },
    { "disk", offsetof(speeds, disk), SPEEDS_DISK, false },
    { "layer_dense", offsetof(speeds, layer_dense), SPEEDS_LAYER_DENSE, true },
    { "layer_hot", offsetof(speeds, layer_hot), SPEEDS_LAYER_HOT, true },
    { "layer_cpu", offsetof(speeds, layer_cpu), SPEEDS_LAYER_CPU, false },
    { "disk_wait", offsetof(speeds, disk_wait), SPEEDS_DISK_WAIT, false },
    /* no assumptions: cuda/gemm_choice.h has defaults */
    { "gemm_own_64", offsetof(speeds, gemm_own[0]), 0, true },
    { "gemm_own_256", offsetof(speeds, gemm_own[1]), 0, true },
    { "gemm_own_1024", offsetof(speeds, gemm_own[2]), 0, true },
    { "gemm_own_4096", offsetof(speeds, gemm_own[3]), 0, true },
    { "gemm_vendor_64", offsetof(speeds, gemm_vendor[0]), 0, true },
    { "gemm_vendor_256", offsetof(speeds, gemm_vendor[1]), 0, true },
    { "gemm_vendor_1024", offsetof(speeds, gemm_vendor[2]), 0, true },
    { "gemm_vendor_4096", offsetof(speeds, gemm_vendor[3]), 0, true },
};

static double *figure_of(speeds *s, const struct figure *f)
{
    return (double *)(void *)((char *)s + f->at);
}

speeds speeds_assume(const speeds *s)
{
    const bool gpu_measured = s->vram_read > 0;
    speeds out = *s;
    for (size_t i = 0; i < ARRAY_LEN(figures); i++) {
        double *v = figure_of(&out, &figures[i]);
        if (*v <= 0 && !(figures[i].of_gpu && gpu_measured)) *v = figures[i].assumed;
    }
    if (s->cpu > 0 && s->cpu_busy <= 0) out.cpu_busy = out.cpu;
    if (s->cpu > 0 && s->cpu_dense <= 0) out.cpu_dense = out.cpu;
    /* what a GPU cannot lack */
    if (out.pcie_in <= 0) out.pcie_in = SPEEDS_PCIE;
    if (out.gpu_macs <= 0) out.gpu_macs = SPEEDS_GPU_MACS;
    if (out.layer_dense <= 0) out.layer_dense = SPEEDS_LAYER_DENSE;
    if (out.layer_hot <= 0) out.layer_hot = SPEEDS_LAYER_HOT;
    return out;
}

/* ---- where ----------------------------------------------------------------------------------- */

bool speeds_path(char *path, size_t cap, const char *cache_home, const char *home)
{
    int n;
    if (cache_home && cache_home[0] == '/')
        n = snprintf(path, cap, "%s/moe/speeds.json", cache_home);
    else if (home && home[0] == '/')
        n = snprintf(path, cap, "%s/.cache/moe/speeds.json", home);
    else
        return false;
    return n > 0 && (size_t)n < cap;
}

/* ---- entries --------------------------------------------------------------------------------- */

/* Names as JSON can hold them. */
typedef struct key_text { char cpu[512], gpu[512], kernels[400]; } key_text;

static void text_of(key_text *out, const speeds_key *key)
{
    ESC(out->cpu, str_from(key->cpu));
    ESC(out->gpu, str_from(key->gpu));
    ESC(out->kernels, str_from(key->kernels));
}

static bool is_text(const json_t *entry, const char *name, const char *text)
{
    const char *v = json_string_value(json_object_get(entry, name));
    return v && strcmp(v, text) == 0;
}

static bool is_number(const json_t *entry, const char *name, json_int_t n)
{
    const json_t *v = json_object_get(entry, name);
    return json_is_integer(v) && json_integer_value(v) == n;
}

static bool has_key(const json_t *entry, const speeds_key *key)
{
    key_text text;
    text_of(&text, key);
    return is_text(entry, "processor", text.cpu) && is_text(entry, "gpu", text.gpu) &&
           is_text(entry, "kernels", text.kernels) && is_number(entry, "n_thread", key->n_thread) &&
           is_number(entry, "drive", (json_int_t)key->drive);
}

/* An entry of the processor "*" matches every key of its GPU; tests write such entries. */
static bool holds_for(const json_t *entry, const speeds_key *key)
{
    key_text text;
    text_of(&text, key);
    return has_key(entry, key) ||
           (is_text(entry, "processor", "*") && is_text(entry, "gpu", text.gpu));
}

static bool read_figures(speeds *out, const json_t *entry)
{
    speeds s = { 0 };
    for (size_t i = 0; i < ARRAY_LEN(figures); i++) {
        const json_t *v = json_object_get(entry, figures[i].name);
        const double n = json_number_value(v);
        if (!json_is_number(v) || !isfinite(n) || n < 0) return false;
        *figure_of(&s, &figures[i]) = n;
    }
    /* an earlier program's "disk" may be the speed of a bounce buffer, which is gone */
    const double straight = json_number_value(json_object_get(entry, "disk_straight"));
    if (straight > 0 && straight < s.disk) s.disk = straight;
    *out = s;
    return true;
}

static bool read_entry(speeds *out, int64_t *date, const json_t *entry)
{
    const json_t *when = json_object_get(entry, "date");
    if (!json_is_integer(when) || json_integer_value(when) <= 0 || !read_figures(out, entry))
        return false;
    *date = json_integer_value(when);
    return true;
}

static int check_figures(const speeds *s, err_ctx *err)
{
    speeds copy = *s;
    for (size_t i = 0; i < ARRAY_LEN(figures); i++) {
        const double n = *figure_of(&copy, &figures[i]);
        if (!isfinite(n) || n < 0)
            return err_set(err, ERR_RANGE, "%g for %s is not a speed", n, figures[i].name);
    }
    return 0;
}

static json_t *make_entry(const speeds *s, int64_t date, const speeds_key *key)
{
    speeds copy = *s;
    key_text text;
    text_of(&text, key);
    json_t *entry = json_pack("{s:s, s:s, s:i, s:s, s:I, s:I}",
                              "processor", text.cpu, "gpu", text.gpu, "n_thread", key->n_thread,
                              "kernels", text.kernels, "drive", (json_int_t)key->drive,
                              "date", (json_int_t)date);
    for (size_t i = 0; i < ARRAY_LEN(figures) && entry; i++)
        if (json_object_set_new(entry, figures[i].name,
                                json_real(*figure_of(&copy, &figures[i]))) < 0) {
            json_decref(entry);
            entry = NULL;
        }
    return entry;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* The whole file's text, or NULL. */
static char *read_text(size_t *len, const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);        /* a pipe never blocks */
    struct stat st;
    char *text = NULL;
    *len = 0;
    if (fd < 0) return NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size <= MOST_BYTES)
        text = mem_array((size_t)st.st_size, 1);
    const ssize_t got = text ? file_read(fd, text, (size_t)st.st_size, NULL) : 0;
    if (got > 0) *len = (size_t)got;
    close(fd);
    return text;
}

/* The file's object, whose "speeds" is a list; NULL if the file is not ours. */
static json_t *read_file(const char *path)
{
    size_t len;
    char *text = read_text(&len, path);
    json_t *root = text ? json_loadb(text, len, 0, NULL) : NULL;
    mem_free(text);
    if (root && is_number(root, "version", VERSION) &&
        json_is_array(json_object_get(root, "speeds")))
        return root;
    json_decref(root);
    return NULL;
}

int speeds_load(speeds *out, int64_t *date, const char *path, const speeds_key *key)
{
    json_t *root = read_file(path);
    const json_t *list = json_object_get(root, "speeds");
    int found = 0;
    for (size_t i = json_array_size(list); i-- > 0 && !found;) { /* the newest first */
        const json_t *entry = json_array_get(list, i);
        found = holds_for(entry, key) && read_entry(out, date, entry);
    }
    json_decref(root);
    return found;
}

static int write_json(void *root, int fd, err_ctx *err)
{
    errno = 0;
    if (json_dumpfd(root, fd, JSON_INDENT(1)) == 0) return 0;
    return errno ? err_sys(err, "cannot write") : err_set(err, ERR_NOMEM, "no memory to write it");
}

static int save(const speeds *s, int64_t date, const char *path, const speeds_key *key,
                err_ctx *err)
{
    json_t *old = read_file(path), *list = json_array(), *entry = make_entry(s, date, key);
    const json_t *were = json_object_get(old, "speeds");
    const size_t n = json_array_size(were);
    size_t left = 0;
    bool ok = list && entry;
    int rc;

    for (size_t i = 0; i < n; i++) left += !has_key(json_array_get(were, i), key);
    for (size_t i = 0; i < n && ok; i++) {
        json_t *other = json_array_get(were, i);
        if (has_key(other, key) || left-- > MOST_ENTRIES - 1) continue;
        ok = json_array_append(list, other) == 0;
    }
    if (ok) {
        ok = json_array_append_new(list, entry) == 0;
        entry = NULL;                    /* the list's, or gone */
    }
    json_decref(entry);
    json_t *root = ok ? json_pack("{s:i, s:O}", "version", VERSION, "speeds", list) : NULL;
    if (root) rc = file_replace(path, 0, write_json, root, err);
    else rc = err_set(err, ERR_NOMEM, "no memory for its %zu entries", n + 1);
    json_decref(root);
    json_decref(list);
    json_decref(old);
    return rc < 0 ? err_prefix(err, rc, "%s", path) : 0;
}

int speeds_save(const speeds *s, int64_t date, const char *path, const speeds_key *key,
                err_ctx *err)
{
    const int rc = check_figures(s, err);
    return rc < 0 ? rc : save(s, date, path, key, err);
}
