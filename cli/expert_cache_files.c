/* expert_cache_files.c - profiles of experts: where their files are, and what a run does with them.
 *
 * The experts in VRAM at the end of a run are a profile, too: the most valuable ones have the most
 * choices. moe/profile_file.h knows the format, moe/profile_scores.h what a profile is worth. */
#include "cli/expert_cache_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cache_directory.h"
#include "cli/console.h"
#include "moe/profile_file.h"
#include "moe/profile_scores.h"

/* Of the counts of earlier runs: those of the tenth run before this one count for a third. */
static const double fade = 0.9;

profile_key expert_cache_files_key(const model *m)
{
    profile_key k = { .model = model_fingerprint(m), .n_layer = m->experts.n_layer,
                      .n_expert = m->experts.n_expert };
    str_view name = { "", 0 };
    (void)gguf_get_str(&name, m->file, "general.name", NULL);
    str_escape(k.name, sizeof k.name, name);
    return k;
}

/* In the folder of the machine's speeds. False if it cannot be used. */
static bool list_path(char *path, size_t cap, const profile_key *key)
{
    char *slash;
    if (!speeds_path(path, cap, getenv("XDG_CACHE_HOME"), getenv("HOME")) ||
        !cache_directory_allows(path) || !(slash = strrchr(path, '/')))
        return false;
    const size_t used = (size_t)(slash + 1 - path);
    const int n = snprintf(slash + 1, cap - used, "experts-%016" PRIx64 ".json", key->model);
    return n > 0 && (size_t)n < cap - used;
}

/* ---- before a run ---------------------------------------------------------------------------- */

/* The best experts of a profile that fit, the pinned ones first. */
static int *best_of(int *n, int *n_pin, const usage_profile *p, const model *m, uint64_t budget,
                    const weighting_options *how)
{
    const int n_layer = m->experts.n_layer, n_expert = m->experts.n_expert;
    const size_t all = (size_t)n_layer * (size_t)n_expert;
    uint64_t *bytes = mem_array((size_t)n_layer, sizeof *bytes);
    double *score = mem_array(all, sizeof *score);
    int *list = mem_array(all, sizeof *list);
    if (bytes && score && list) {
        for (int l = 0; l < n_layer; l++) bytes[l] = expert_slabs_bytes(&m->experts.of[l]);
        profile_scores_of(score, p, how);
        profile_scores_pick(list, n, score, bytes, budget, n_layer, n_expert);
        *n_pin = profile_scores_universal(list, *n, p, m->hp.n_expert_used);
    } else {
        mem_free(list);
        list = NULL;
    }
    mem_free(score);
    mem_free(bytes);
    return list;
}

/* The experts of the last run, the most valuable first. */
static int *last_of(int *n, const usage_profile *p)
{
    int *list = mem_array((size_t)p->n_layer * (size_t)p->n_expert, sizeof *list);
    if (list) *n = usage_profile_list(p, list);
    return list;
}

int *expert_cache_files_recall(int *n, int *n_pin, const placement *where,
                               const placement_options *o, const model *m)
{
    char path[PATH_MAX];
    usage_profile *p = NULL;
    err_ctx err = { 0 };
    int *list = NULL;
    *n = *n_pin = 0;
    if (!where->p.cache || (!o->profile && !o->remember)) return NULL;
    const profile_key key = expert_cache_files_key(m);
    if (!o->profile && !list_path(path, sizeof path, &key)) return NULL;
    if (profile_file_load(&p, o->profile ? o->profile : path, &key, &err) < 0)
        console_note("%s; not used", err.msg);
    else if (!p && o->profile)
        console_note("%s: no such file; not used", o->profile);
    else if (p)
        list = o->profile ? best_of(n, n_pin, p, m, where->p.vram.experts, &o->weighting)
                          : last_of(n, p);
    usage_profile_free(p);
    return list;
}

int expert_cache_files_use(int *n_wanted, engine *e, const usage_profile *p, const placement *where,
                           const placement_options *o, const model *m, err_ctx *err)
{
    int n = 0, n_pin = 0;
    int *list = best_of(&n, &n_pin, p, m, where->p.vram.experts, &o->weighting);
    const int rc = list ? engine_apply(e, list, n, err)
                        : err_set(err, ERR_NOMEM, "no memory for a list of experts");
    if (rc >= 0) engine_pin(e, list, n_pin);
    if (n_wanted) *n_wanted = n;
    mem_free(list);
    return rc;
}

int expert_cache_files_apply(engine *e, const char *path, const placement *where,
                             const placement_options *o, const model *m, err_ctx *err)
{
    const profile_key key = expert_cache_files_key(m);
    usage_profile *p = NULL;
    int rc = profile_file_load(&p, path, &key, err);
    if (rc < 0) return rc;
    if (!p) return err_set(err, ERR_IO, "%s: no such file", path);
    rc = expert_cache_files_use(NULL, e, p, where, o, m, err);
    usage_profile_free(p);
    return rc;
}

/* ---- after it -------------------------------------------------------------------------------- */

/* The key reads a little of every tensor, so it is made only if any expert is resident. */
static void keep_list(const engine *e, const model *m)
{
    const int n_all = m->experts.n_layer * m->experts.n_expert;
    char path[PATH_MAX];
    usage_profile *p = NULL;
    int *list = mem_array((size_t)n_all, sizeof *list);
    const int n = list ? engine_resident(e, list, n_all) : 0;
    if (n > 0) {
        const profile_key key = expert_cache_files_key(m);
        if (list_path(path, sizeof path, &key) &&
            usage_profile_create(&p, key.n_layer, key.n_expert, NULL) == 0) {
            usage_profile_count_list(p, list, n);
            cache_directory_make(path);
            (void)profile_file_save(p, path, &key, NULL);
        }
        usage_profile_free(p);
    }
    mem_free(list);
}

/* Never overwrites a file that belongs to another model or cannot be parsed. */
static void learn(const engine *e, const char *path, const model *m)
{
    const usage_profile *seen = engine_profile(e);
    usage_profile *all = NULL;
    err_ctx err = { 0 };
    int rc;
    if (!seen || usage_profile_runs(seen) == 0) return;
    const profile_key key = expert_cache_files_key(m);
    if ((rc = profile_file_load(&all, path, &key, &err)) == 0 && all)
        usage_profile_merge(all, seen, fade);
    if (rc == 0) rc = profile_file_save(all ? all : seen, path, &key, &err);
    if (rc < 0) console_note("%s; the profile is unchanged", err.msg);
    usage_profile_free(all);
}

void expert_cache_files_keep(const engine *e, const placement_options *o, const model *m)
{
    if (!e) return;
    if (o->remember) keep_list(e, m);
    if (o->learn) learn(e, o->learn, m);
}
