/* usage_profile.c - counts by layer and expert, and their file.
 *
 *   {..., "runs": 3,
 *    "layers": [{"calls": 812, "cold_slots": 1944.5, "hot_s": 0.031, "cold_s": 0.29,
 *                "join_s": 0.2, "hot": [0, 17, ...], "cold": [...], "raw": [...]}, ...]}
 *
 * hot + cold <= raw for every expert, always. Nothing is loaded that could not have been saved: the
 * same walk over all figures judges both. What all such files have is left to profile_file.c. */
#include "moe/usage_profile.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct usage_profile {
    int n_layer, n_expert;
    int n_run;
    layer_uses *layers;                  /* [n_layer] */
    expert_uses *experts;                /* [n_layer, n_expert] */
};

enum { MOST_RUNS = 1000000000, STEPS = 64 };     /* steps of a count, to one */
static const double MOST = 1e15;         /* of any figure: the next whole number is still another */

/* Figures of a layer and of an expert, with their JSON names. */
static const struct figure { const char *name; size_t at; bool seconds; } layer_figures[] = {
    { "calls", offsetof(layer_uses, calls), false },
    { "cold_slots", offsetof(layer_uses, cold_slots), false },
    { "hot_s", offsetof(layer_uses, hot_s), true },
    { "cold_s", offsetof(layer_uses, cold_s), true },
    { "join_s", offsetof(layer_uses, join_s), true },
}, expert_figures[] = {
    { "hot", offsetof(expert_uses, hot), false },
    { "cold", offsetof(expert_uses, cold), false },
    { "raw", offsetof(expert_uses, raw), false },
};
enum { N_LAYER_FIGURE = ARRAY_LEN(layer_figures), N_EXPERT_FIGURE = ARRAY_LEN(expert_figures) };

static const char *const file_names[] = { "runs", "layers" };
static const profile_kind kind = { "moe-expert-profile", 1, file_names, ARRAY_LEN(file_names) };

static double *figure_of(void *uses, const struct figure *f)
{
    return (double *)(void *)((char *)uses + f->at);
}

static double value_of(const void *uses, const struct figure *f)
{
    return *(const double *)(const void *)((const char *)uses + f->at);
}

/* ---- shape ----------------------------------------------------------------------------------- */

static size_t n_all(const usage_profile *p) { return (size_t)p->n_layer * (size_t)p->n_expert; }

int usage_profile_create(usage_profile **out, int n_layer, int n_expert, err_ctx *err)
{
    *out = NULL;
    if (n_layer < 1 || n_expert < 1 || n_expert > PROFILE_MOST_EXPERTS / n_layer)
        return err_set(err, ERR_RANGE, "expert profile: %d layers of %d experts", n_layer,
                       n_expert);
    usage_profile *p = mem_zalloc(sizeof *p);
    if (!p) return err_set(err, ERR_NOMEM, "expert profile: %zu bytes", sizeof *p);
    p->n_layer = n_layer;
    p->n_expert = n_expert;
    p->layers = mem_array((size_t)n_layer, sizeof *p->layers);
    p->experts = mem_array(n_all(p), sizeof *p->experts);
    if (!p->layers || !p->experts) {
        const size_t n = n_all(p);
        usage_profile_free(p);
        return err_set(err, ERR_NOMEM, "expert profile: %zu experts", n);
    }
    usage_profile_clear(p);
    *out = p;
    return 0;
}

void usage_profile_free(usage_profile *p)
{
    if (!p) return;
    mem_free(p->layers);
    mem_free(p->experts);
    mem_free(p);
}

void usage_profile_clear(usage_profile *p)
{
    p->n_run = 0;
    for (int l = 0; l < p->n_layer; l++) p->layers[l] = (layer_uses){ 0 };
    for (size_t i = 0; i < n_all(p); i++) p->experts[i] = (expert_uses){ 0 };
}

int usage_profile_layers(const usage_profile *p) { return p->n_layer; }
int usage_profile_experts(const usage_profile *p) { return p->n_expert; }
int usage_profile_runs(const usage_profile *p) { return p->n_run; }

static expert_uses *uses_of(const usage_profile *p, int layer)
{
    assert(layer >= 0 && layer < p->n_layer);
    return p->experts + (size_t)layer * (size_t)p->n_expert;
}

const expert_uses *usage_profile_uses(const usage_profile *p, int layer)
{
    return uses_of(p, layer);
}

const layer_uses *usage_profile_layer(const usage_profile *p, int layer)
{
    assert(layer >= 0 && layer < p->n_layer);
    return &p->layers[layer];
}

/* ---- counting -------------------------------------------------------------------------------- */

void usage_profile_count(usage_profile *p, int layer, int expert, expert_where where, uint64_t n)
{
    assert(expert >= 0 && expert < p->n_expert);
    expert_uses *u = uses_of(p, layer) + expert;
    u->raw += (double)n;
    if (where == EXPERT_HOT) u->hot += (double)n;
    if (where == EXPERT_COLD) u->cold += (double)n;
    p->n_run = max_int(p->n_run, 1);
}

static double seconds(double s) { return isfinite(s) && s > 0 ? s : 0; }

void usage_profile_call(usage_profile *p, int layer, int cold_slots, double hot_s, double cold_s,
                        double join_s)
{
    assert(layer >= 0 && layer < p->n_layer && cold_slots >= 0);
    layer_uses *u = &p->layers[layer];
    u->calls += 1;
    u->cold_slots += cold_slots;
    u->hot_s += seconds(hot_s);
    u->cold_s += seconds(cold_s);
    u->join_s += seconds(join_s);
    p->n_run = max_int(p->n_run, 1);
}

void usage_profile_add_layer(usage_profile *p, int layer, const layer_uses *more)
{
    assert(layer >= 0 && layer < p->n_layer);
    layer_uses *u = &p->layers[layer];
    u->calls += more->calls;
    u->cold_slots += more->cold_slots;
    u->hot_s += seconds(more->hot_s);
    u->cold_s += seconds(more->cold_s);
    u->join_s += seconds(more->join_s);
    p->n_run = max_int(p->n_run, 1);
}

static double settled(double count) { return floor(count * STEPS) / STEPS; }

static void merge_figures(void *into, const void *from, const struct figure *f, int n, double decay)
{
    for (int i = 0; i < n; i++) {
        const double v = value_of(into, &f[i]) * decay + value_of(from, &f[i]);
        *figure_of(into, &f[i]) = f[i].seconds ? v : settled(v);
    }
}

void usage_profile_merge(usage_profile *into, const usage_profile *from, double decay)
{
    assert(into->n_layer == from->n_layer && into->n_expert == from->n_expert);
    assert(decay >= 0 && decay <= 1);
    for (int l = 0; l < into->n_layer; l++)
        merge_figures(&into->layers[l], &from->layers[l], layer_figures, N_LAYER_FIGURE, decay);
    for (size_t i = 0; i < n_all(into); i++) {
        expert_uses *u = &into->experts[i];
        merge_figures(u, &from->experts[i], expert_figures, N_EXPERT_FIGURE, decay);
        u->raw = fmax(u->raw, u->hot + u->cold);         /* three roundings may be off by a step */
    }
    into->n_run = min_int(into->n_run, MOST_RUNS - from->n_run) + from->n_run;
}

/* ---- what a figure may be -------------------------------------------------------------------- */

static const char *whats_wrong(double v, const struct figure *f)
{
    if (isnan(v)) return "not a number";
    if (v < 0) return "negative";
    if (v > MOST) return "more than 1e15";
    return f->seconds || v == settled(v) ? NULL : "not a multiple of 1/64";
}

static int check_layer(const usage_profile *p, int l, err_ctx *err)
{
    const expert_uses *u = uses_of(p, l);
    const char *wrong;
    for (int i = 0; i < N_LAYER_FIGURE; i++) {
        const double v = value_of(&p->layers[l], &layer_figures[i]);
        if ((wrong = whats_wrong(v, &layer_figures[i])))
            return err_set(err, ERR_RANGE, "layer %d: %s is %.17g: %s", l, layer_figures[i].name, v,
                           wrong);
    }
    for (int e = 0; e < p->n_expert; e++) {
        for (int i = 0; i < N_EXPERT_FIGURE; i++) {
            const double v = value_of(&u[e], &expert_figures[i]);
            if ((wrong = whats_wrong(v, &expert_figures[i])))
                return err_set(err, ERR_RANGE, "layer %d, expert %d: %s is %.17g: %s", l, e,
                               expert_figures[i].name, v, wrong);
        }
        if (u[e].hot + u[e].cold > u[e].raw)
            return err_set(err, ERR_RANGE, "layer %d, expert %d: %.17g hot and %.17g cold of %.17g",
                           l, e, u[e].hot, u[e].cold, u[e].raw);
    }
    return 0;
}

static int check_figures(const usage_profile *p, err_ctx *err)
{
    for (int l = 0; l < p->n_layer; l++) {
        const int rc = check_layer(p, l, err);
        if (rc < 0) return rc;
    }
    return 0;
}

/* ---- saving ---------------------------------------------------------------------------------- */

static json_t *number(double v)
{
    return v == floor(v) ? json_integer((json_int_t)v) : json_real(v);
}

/* NULL without memory; so are all that follow. */
static json_t *make_list(const usage_profile *p, int l, const struct figure *f)
{
    const expert_uses *u = uses_of(p, l);
    json_t *list = json_array();
    for (int e = 0; e < p->n_expert && list; e++)
        if (json_array_append_new(list, number(value_of(&u[e], f))) < 0) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static json_t *make_layer(const usage_profile *p, int l)
{
    json_t *layer = json_object();
    bool ok = layer != NULL;
    for (int i = 0; i < N_LAYER_FIGURE && ok; i++)
        ok = json_object_set_new(layer, layer_figures[i].name,
                                 number(value_of(&p->layers[l], &layer_figures[i]))) == 0;
    for (int i = 0; i < N_EXPERT_FIGURE && ok; i++)
        ok = json_object_set_new(layer, expert_figures[i].name,
                                 make_list(p, l, &expert_figures[i])) == 0;
    if (ok) return layer;
    json_decref(layer);
    return NULL;
}

static json_t *make_root(const usage_profile *p, const profile_key *key)
{
    json_t *root = profile_file_begin(&kind, key), *layers = json_array();
    bool ok = root && layers && json_object_set_new(root, "runs", json_integer(p->n_run)) == 0;
    for (int l = 0; l < p->n_layer && ok; l++)
        ok = json_array_append_new(layers, make_layer(p, l)) == 0;
    ok = ok && json_object_set(root, "layers", layers) == 0;
    json_decref(layers);
    if (ok) return root;
    json_decref(root);
    return NULL;
}

int usage_profile_save(const usage_profile *p, const char *path, const profile_key *key,
                       err_ctx *err)
{
    assert(key->n_layer == p->n_layer && key->n_expert == p->n_expert);
    int rc = check_figures(p, err);
    if (rc == 0) {
        json_t *root = make_root(p, key);
        rc = profile_file_replace(path, root, err);
        json_decref(root);
    }
    return rc < 0 ? err_prefix(err, rc, "%s", path) : 0;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Generous: whole lines of their own for each number would fit. */
static size_t most_text(const profile_key *key)
{
    const uint64_t n_number = (uint64_t)key->n_layer *
                              (N_LAYER_FIGURE + N_EXPERT_FIGURE * (uint64_t)key->n_expert);
    const uint64_t most = 4096 + 64 * n_number;
    return most < PROFILE_MOST_BYTES ? (size_t)most : PROFILE_MOST_BYTES;
}

static int read_list(usage_profile *p, int l, const struct figure *f, const json_t *list,
                     err_ctx *err)
{
    expert_uses *u = uses_of(p, l);
    if (!json_is_array(list))
        return err_set(err, ERR_FORMAT, "layer %d: %s is missing, or no list", l, f->name);
    if (json_array_size(list) != (size_t)p->n_expert)
        return err_set(err, ERR_FORMAT, "layer %d: %zu numbers in %s, not %d", l,
                       json_array_size(list), f->name, p->n_expert);
    for (int e = 0; e < p->n_expert; e++) {
        const json_t *v = json_array_get(list, (size_t)e);
        if (!json_is_number(v))
            return err_set(err, ERR_FORMAT, "layer %d, expert %d: %s is no number", l, e, f->name);
        *figure_of(&u[e], f) = json_number_value(v);
    }
    return 0;
}

static int read_layer(usage_profile *p, int l, const json_t *layer, err_ctx *err)
{
    const char *names[N_LAYER_FIGURE + N_EXPERT_FIGURE];
    char of[32];
    int rc;
    snprintf(of, sizeof of, "layer %d", l);
    for (int i = 0; i < N_LAYER_FIGURE; i++) names[i] = layer_figures[i].name;
    for (int i = 0; i < N_EXPERT_FIGURE; i++) names[N_LAYER_FIGURE + i] = expert_figures[i].name;
    if (!json_is_object(layer)) return err_set(err, ERR_FORMAT, "%s is no object", of);
    if ((rc = profile_file_known(layer, of, names, ARRAY_LEN(names), err)) < 0) return rc;
    for (int i = 0; i < N_LAYER_FIGURE; i++) {
        const struct figure *f = &layer_figures[i];
        const json_t *v = json_object_get(layer, f->name);
        if (!json_is_number(v))
            return err_set(err, ERR_FORMAT, "%s: %s is missing, or no number", of, f->name);
        *figure_of(&p->layers[l], f) = json_number_value(v);
    }
    for (int i = 0; i < N_EXPERT_FIGURE; i++) {
        const struct figure *f = &expert_figures[i];
        if ((rc = read_list(p, l, f, json_object_get(layer, f->name), err)) < 0) return rc;
    }
    return 0;
}

static int read_root(usage_profile *p, const json_t *root, err_ctx *err)
{
    const json_t *runs = json_object_get(root, "runs"), *layers = json_object_get(root, "layers");
    const json_int_t n_run = json_integer_value(runs);
    int rc;
    if (!json_is_integer(runs))
        return err_set(err, ERR_FORMAT, "runs is missing, or no whole number");
    if (n_run < 0 || n_run > MOST_RUNS)
        return err_set(err, ERR_RANGE, "%" JSON_INTEGER_FORMAT " runs", n_run);
    if (!json_is_array(layers)) return err_set(err, ERR_FORMAT, "layers is missing, or no list");
    if (json_array_size(layers) != (size_t)p->n_layer)
        return err_set(err, ERR_FORMAT, "%zu layers in the list, not %d", json_array_size(layers),
                       p->n_layer);
    p->n_run = (int)n_run;
    for (int l = 0; l < p->n_layer; l++)
        if ((rc = read_layer(p, l, json_array_get(layers, (size_t)l), err)) < 0) return rc;
    return check_figures(p, err);
}

int usage_profile_load_text(usage_profile **out, str_view text, const profile_key *expected,
                            err_ctx *err)
{
    usage_profile *p;
    json_t *root;
    *out = NULL;
    int rc = usage_profile_create(&p, expected->n_layer, expected->n_expert, err);
    if (rc < 0) return rc;
    rc = profile_file_parse(&root, text, most_text(expected), &kind, expected, err);
    if (rc == 0) rc = read_root(p, root, err);
    json_decref(root);
    if (rc < 0) usage_profile_free(p);
    else *out = p;
    return rc;
}

int usage_profile_load(usage_profile **out, const char *path, const profile_key *expected,
                       err_ctx *err)
{
    char *text;
    size_t len;
    *out = NULL;
    int rc = profile_file_read(&text, &len, path, err);
    if (rc == 0 && text) rc = usage_profile_load_text(out, (str_view){ text, len }, expected, err);
    mem_free(text);
    return rc < 0 ? err_prefix(err, rc, "%s", path) : 0;
}

/* ---- for people ------------------------------------------------------------------------------ */

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* What the busiest n experts had, of all choices. */
static double top_share(double *raw, size_t n_expert, size_t n)
{
    double top = 0, all = 0;
    qsort(raw, n_expert, sizeof *raw, descending);
    for (size_t i = 0; i < n_expert; i++) {
        all += raw[i];
        if (i < n) top += raw[i];
    }
    return all > 0 ? top / all : 0;
}

int usage_profile_describe(char *dst, size_t cap, const usage_profile *p, const char *name,
                           err_ctx *err)
{
    const size_t n = n_all(p), n_top = (n + 9) / 10;
    double *raw = mem_array(n, sizeof *raw), hot = 0, cold = 0, all = 0, calls = 0;
    char shown[200];
    if (cap > 0) dst[0] = '\0';
    if (!raw) return err_set(err, ERR_NOMEM, "expert profile: %zu experts", n);
    for (size_t i = 0; i < n; i++) {
        raw[i] = p->experts[i].raw;
        all += raw[i];
        hot += p->experts[i].hot;
        cold += p->experts[i].cold;
    }
    for (int l = 0; l < p->n_layer; l++) calls += p->layers[l].calls / p->n_layer;
    const int len = snprintf(dst, cap, "%s: %d layers of %d experts, %d run%s, %.0f calls of each "
                             "layer. ", ESC(shown, str_from(name)), p->n_layer, p->n_expert,
                             p->n_run, p->n_run == 1 ? "" : "s", calls);
    if (len >= 0 && (size_t)len < cap && all > 0)
        snprintf(dst + len, cap - (size_t)len, "Of %.0f choices %.0f%% were in VRAM and %.0f%% "
                 "were not. The busiest 10%% of all experts had %.0f%% of the choices.", all,
                 100 * hot / all, 100 * cold / all, 100 * top_share(raw, n, n_top));
    else if (len >= 0 && (size_t)len < cap)
        snprintf(dst + len, cap - (size_t)len, "No choice was counted.");
    mem_free(raw);
    return 0;
}
