/* profile_file.c - reads and replaces the file of a usage profile.
 *
 *   {"format": "moe-expert-profile", "version": 1, "model": "0123456789abcdef", "name": "...",
 *    "n_layer": 48, "n_expert": 512, "runs": 3,
 *    "layers": [{"calls": 812, "cold_slots": 1944.5, "hot_s": 0.031, "cold_s": 0.29,
 *                "join_s": 0.2, "hot": [0, 17, ...], "cold": [...], "raw": [...]}, ...]}
 *
 * A list of zeros is left out. Reading checks from the outside in: the length, JSON, the model,
 * then the counts. The same walk over all counts judges what is saved and what was loaded. */
#include "moe/profile_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/file_io.h"

#define FORMAT "moe-expert-profile"
enum { VERSION = 1 };

static const double MAX_COUNT = 1e15;    /* above it, adding 1 may not change a double */

/* Counts of a layer and of an expert, with their JSON names. */
static const struct field { const char *name; size_t offset; bool seconds; } layer_fields[] = {
    { "calls", offsetof(layer_uses, calls), false },
    { "cold_slots", offsetof(layer_uses, cold_slots), false },
    { "hot_s", offsetof(layer_uses, hot_s), true },
    { "cold_s", offsetof(layer_uses, cold_s), true },
    { "join_s", offsetof(layer_uses, join_s), true },
}, expert_fields[] = {
    { "hot", offsetof(expert_uses, hot), false },
    { "cold", offsetof(expert_uses, cold), false },
    { "raw", offsetof(expert_uses, raw), false },
};

static const char *const root_names[] = { "format", "version", "model", "name", "n_layer",
                                          "n_expert", "runs", "layers" };
static const char *const layer_names[] = { "calls", "cold_slots", "hot_s", "cold_s", "join_s",
                                           "hot", "cold", "raw" };

static double *count_of(const void *uses, const struct field *f)
{
    return (double *)(void *)((char *)uses + f->offset);
}

static expert_uses *uses_of(const usage_profile *p, int layer)
{
    return p->experts + (size_t)layer * (size_t)p->n_expert;
}

/* ---- what a count may be --------------------------------------------------------------------- */

/* What is wrong with a count, or NULL. */
static const char *fault_of(double v, const struct field *f)
{
    if (isnan(v)) return "not a number";
    if (v < 0) return "negative";
    if (v > MAX_COUNT) return "more than 1e15";
    return f->seconds || v * 64 == floor(v * 64) ? NULL : "not a multiple of 1/64";
}

static int check_layer(const usage_profile *p, int l, err_ctx *err)
{
    const char *fault;
    for (size_t i = 0; i < ARRAY_LEN(layer_fields); i++) {
        const double v = *count_of(&p->layers[l], &layer_fields[i]);
        if ((fault = fault_of(v, &layer_fields[i])))
            return err_set(err, ERR_RANGE, "layer %d: %s is %.17g: %s", l, layer_fields[i].name, v,
                           fault);
    }
    for (int e = 0; e < p->n_expert; e++) {
        const expert_uses *u = &uses_of(p, l)[e];
        for (size_t i = 0; i < ARRAY_LEN(expert_fields); i++) {
            const double v = *count_of(u, &expert_fields[i]);
            if ((fault = fault_of(v, &expert_fields[i])))
                return err_set(err, ERR_RANGE, "layer %d, expert %d: %s is %.17g: %s", l, e,
                               expert_fields[i].name, v, fault);
        }
        if (u->hot + u->cold > u->raw)
            return err_set(err, ERR_RANGE, "layer %d, expert %d: %.17g hot and %.17g cold of %.17g",
                           l, e, u->hot, u->cold, u->raw);
    }
    return 0;
}

static int check_counts(const usage_profile *p, err_ctx *err)
{
    int rc = 0;
    for (int l = 0; l < p->n_layer && rc == 0; l++) rc = check_layer(p, l, err);
    return rc;
}

/* ---- parsing --------------------------------------------------------------------------------- */

static int need_text(const char **out, const json_t *root, const char *name, err_ctx *err)
{
    *out = json_string_value(json_object_get(root, name));
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

static int check_format(const json_t *root, err_ctx *err)
{
    const char *format;
    json_int_t version;
    char shown[64];
    int rc;
    if ((rc = need_text(&format, root, "format", err)) < 0) return rc;
    if (strcmp(format, FORMAT) != 0)
        return err_set(err, ERR_FORMAT, "format is \"%s\", not \"" FORMAT "\"",
                       ESC(shown, str_from(format)));
    if ((rc = need_whole(&version, root, "version", err)) < 0) return rc;
    if (version != VERSION)
        return err_set(err, ERR_UNSUPPORTED, "version %" JSON_INTEGER_FORMAT ", not %d", version,
                       VERSION);
    return 0;
}

/* 16 lower-case hex digits: one number has one text. */
static bool is_hash(uint64_t *out, const char *text)
{
    uint64_t n = 0;
    for (int i = 0; i < 16; i++) {
        const char c = text[i];
        const bool digit = c >= '0' && c <= '9';
        if (!digit && !(c >= 'a' && c <= 'f')) return false;     /* a 0 byte, too */
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

static int check_names(const json_t *object, const char *of, const char *const *names, int n_name,
                       err_ctx *err)
{
    const char *name;
    json_t *v;
    char shown[64];
    json_object_foreach((json_t *)object, name, v) {
        int i = 0;
        while (i < n_name && strcmp(name, names[i]) != 0) i++;
        if (i == n_name)
            return err_set(err, ERR_FORMAT, "%s has an unknown key \"%s\"", of,
                           ESC(shown, str_from(name)));
    }
    return 0;
}

static int read_list(usage_profile *p, int l, const struct field *f, const json_t *list,
                     err_ctx *err)
{
    if (!list) return 0;                 /* all are 0 */
    if (!json_is_array(list))
        return err_set(err, ERR_FORMAT, "layer %d: %s is no list", l, f->name);
    if (json_array_size(list) != (size_t)p->n_expert)
        return err_set(err, ERR_FORMAT, "layer %d: %zu numbers in %s, not %d", l,
                       json_array_size(list), f->name, p->n_expert);
    for (int e = 0; e < p->n_expert; e++) {
        const json_t *v = json_array_get(list, (size_t)e);
        if (!json_is_number(v))
            return err_set(err, ERR_FORMAT, "layer %d, expert %d: %s is no number", l, e, f->name);
        *count_of(&uses_of(p, l)[e], f) = json_number_value(v);
    }
    return 0;
}

static int read_layer(usage_profile *p, int l, const json_t *layer, err_ctx *err)
{
    char of[32];
    int rc;
    snprintf(of, sizeof of, "layer %d", l);
    if (!json_is_object(layer)) return err_set(err, ERR_FORMAT, "%s is no object", of);
    if ((rc = check_names(layer, of, layer_names, ARRAY_LEN(layer_names), err)) < 0) return rc;
    for (size_t i = 0; i < ARRAY_LEN(layer_fields); i++) {
        const struct field *f = &layer_fields[i];
        const json_t *v = json_object_get(layer, f->name);
        if (!json_is_number(v))
            return err_set(err, ERR_FORMAT, "%s: %s is missing, or no number", of, f->name);
        *count_of(&p->layers[l], f) = json_number_value(v);
    }
    for (size_t i = 0; i < ARRAY_LEN(expert_fields) && rc == 0; i++)
        rc = read_list(p, l, &expert_fields[i], json_object_get(layer, expert_fields[i].name), err);
    return rc;
}

static int read_root(usage_profile *p, const json_t *root, const profile_key *expected,
                     err_ctx *err)
{
    const json_t *layers = json_object_get(root, "layers");
    json_int_t n_run;
    int rc;
    if (!json_is_object(root)) return err_set(err, ERR_FORMAT, "a list, not an object");
    if ((rc = check_format(root, err)) < 0 || (rc = check_key(root, expected, err)) < 0 ||
        (rc = check_names(root, "the file", root_names, ARRAY_LEN(root_names), err)) < 0 ||
        (rc = need_whole(&n_run, root, "runs", err)) < 0)
        return rc;
    if (n_run < 0 || n_run > PROFILE_MAX_RUNS)
        return err_set(err, ERR_RANGE, "%" JSON_INTEGER_FORMAT " runs", n_run);
    if (!json_is_array(layers)) return err_set(err, ERR_FORMAT, "layers is missing, or no list");
    if (json_array_size(layers) != (size_t)p->n_layer)
        return err_set(err, ERR_FORMAT, "%zu layers in the list, not %d", json_array_size(layers),
                       p->n_layer);
    p->n_run = (int)n_run;
    for (int l = 0; l < p->n_layer; l++)
        if ((rc = read_layer(p, l, json_array_get(layers, (size_t)l), err)) < 0) return rc;
    return check_counts(p, err);
}

/* Bytes that a file of this shape may have: a line for each number. */
static size_t max_text(const profile_key *key)
{
    const uint64_t n_number = (uint64_t)key->n_layer *
                              (ARRAY_LEN(layer_fields) +
                               ARRAY_LEN(expert_fields) * (uint64_t)key->n_expert);
    const uint64_t bytes = 4096 + 64 * n_number;
    return bytes < PROFILE_MAX_BYTES ? (size_t)bytes : PROFILE_MAX_BYTES;
}

static int read_text(json_t **root, str_view text, size_t max, err_ctx *err)
{
    json_error_t why = { .text = "" };
    char shown[160];
    if (text.len > max)                  /* before Jansson allocates twenty times as much */
        return err_set(err, ERR_FORMAT, "%zu bytes: more than the %zu that it could need", text.len,
                       max);
    *root = json_loadb(text.ptr ? text.ptr : "", text.len, JSON_REJECT_DUPLICATES, &why);
    if (*root) return 0;
    if (why.text[0] == '\0' || json_error_code(&why) == json_error_out_of_memory)
        return err_set(err, ERR_NOMEM, "no memory for %zu bytes of JSON", text.len);
    return err_set(err, ERR_FORMAT, "not JSON: line %d, column %d: %s", why.line, why.column,
                   ESC(shown, str_from(why.text)));
}

int profile_file_parse(usage_profile **out, str_view text, const profile_key *expected,
                       err_ctx *err)
{
    json_t *root = NULL;
    usage_profile *p;
    *out = NULL;
    int rc = usage_profile_create(&p, expected->n_layer, expected->n_expert, err);
    if (rc < 0) return rc;
    if ((rc = read_text(&root, text, max_text(expected), err)) == 0)
        rc = read_root(p, root, expected, err);
    json_decref(root);
    if (rc < 0) usage_profile_free(p);
    else *out = p;
    return rc;
}

/* ---- loading --------------------------------------------------------------------------------- */

static int read_open(char **text, size_t *len, int fd, err_ctx *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0) return err_sys(err, "cannot read");
    if (!S_ISREG(st.st_mode)) return err_set(err, ERR_FORMAT, "not a file");
    if (st.st_size > PROFILE_MAX_BYTES)
        return err_set(err, ERR_FORMAT, "%lld bytes: more than %d", (long long)st.st_size,
                       PROFILE_MAX_BYTES);
    *text = mem_array((size_t)st.st_size + 1, 1);
    if (!*text) return err_set(err, ERR_NOMEM, "no memory for %lld bytes", (long long)st.st_size);
    const ssize_t got = file_read(fd, *text, (size_t)st.st_size, err);
    if (got >= 0) *len = (size_t)got;    /* less if it was cut meanwhile: not JSON then */
    return got < 0 ? (int)got : 0;
}

int profile_file_load(usage_profile **out, const char *path, const profile_key *expected,
                      err_ctx *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);        /* a pipe never blocks */
    char *text = NULL;
    size_t len = 0;
    *out = NULL;
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return 0;
    int rc = fd < 0 ? err_sys(err, "cannot read") : read_open(&text, &len, fd, err);
    if (fd >= 0) close(fd);
    if (rc == 0) rc = profile_file_parse(out, (str_view){ text, len }, expected, err);
    mem_free(text);
    return rc < 0 ? err_prefix(err, rc, "%s", path) : 0;
}

/* ---- saving ---------------------------------------------------------------------------------- */

static json_t *number(double v)
{
    return v == floor(v) ? json_integer((json_int_t)v) : json_real(v);
}

/* NULL without memory. */
static json_t *make_list(const usage_profile *p, int l, const struct field *f)
{
    json_t *list = json_array();
    for (int e = 0; e < p->n_expert && list; e++)
        if (json_array_append_new(list, number(*count_of(&uses_of(p, l)[e], f))) < 0) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static bool all_zero(const usage_profile *p, int l, const struct field *f)
{
    for (int e = 0; e < p->n_expert; e++)
        if (*count_of(&uses_of(p, l)[e], f) != 0) return false;
    return true;
}

/* NULL without memory. */
static json_t *make_layer(const usage_profile *p, int l)
{
    json_t *layer = json_object();
    bool ok = layer != NULL;
    for (size_t i = 0; i < ARRAY_LEN(layer_fields) && ok; i++)
        ok = json_object_set_new(layer, layer_fields[i].name,
                                 number(*count_of(&p->layers[l], &layer_fields[i]))) == 0;
    for (size_t i = 0; i < ARRAY_LEN(expert_fields) && ok; i++)
        if (!all_zero(p, l, &expert_fields[i]))
            ok = json_object_set_new(layer, expert_fields[i].name,
                                     make_list(p, l, &expert_fields[i])) == 0;
    if (ok) return layer;
    json_decref(layer);
    return NULL;
}

/* NULL without memory. */
static json_t *make_root(const usage_profile *p, const profile_key *key)
{
    char name[4 * sizeof key->name], model[17];
    snprintf(model, sizeof model, "%016" PRIx64, key->model);
    json_t *layers = json_array();
    bool ok = layers != NULL;
    for (int l = 0; l < p->n_layer && ok; l++)
        ok = json_array_append_new(layers, make_layer(p, l)) == 0;
    json_t *root = !ok ? NULL
                       : json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:i, s:O}", "format", FORMAT,
                                   "version", VERSION, "model", model, "name",
                                   ESC(name, str_from(key->name)), "n_layer", key->n_layer,
                                   "n_expert", key->n_expert, "runs", p->n_run, "layers", layers);
    json_decref(layers);
    return root;
}

static int put_text(const char *text, size_t len, void *out)
{
    textbuf_put(out, (str_view){ text, len });
    return 0;
}

static int write_text(void *ctx, int fd, err_ctx *err)
{
    const str_view text = textbuf_view(ctx);
    return file_write(fd, text.ptr, text.len, err);
}

/* root NULL: ERR_NOMEM. */
static int replace(const char *path, const json_t *root, err_ctx *err)
{
    char target[PATH_MAX];
    struct stat st;
    const bool exists = stat(path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode)) return err_set(err, ERR_IO, "is no regular file");
    if (exists && realpath(path, target)) path = target;       /* a link stays one */
    textbuf text = { 0 };        /* Jansson itself would write every number and every comma */
    int rc;
    const bool dumped = root && json_dump_callback(root, put_text, &text, JSON_COMPACT) == 0;
    textbuf_str(&text, "\n");
    if (!dumped || text.failed) rc = err_set(err, ERR_NOMEM, "no memory to write it");
    else rc = file_replace(path, exists ? (int)(st.st_mode & 0777) : 0, write_text, &text, err);
    textbuf_free(&text);
    return rc;
}

int profile_file_save(const usage_profile *p, const char *path, const profile_key *key,
                      err_ctx *err)
{
    assert(key->n_layer == p->n_layer && key->n_expert == p->n_expert);
    int rc = check_counts(p, err);
    if (rc == 0) {
        json_t *root = make_root(p, key);
        rc = replace(path, root, err);
        json_decref(root);
    }
    return rc < 0 ? err_prefix(err, rc, "%s", path) : 0;
}
