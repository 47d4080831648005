/* last_run_experts.c - a list of experts, and its file.
 *
 *   {..., "experts": [1027, 3, 24575, ...]}
 *
 * Nothing is loaded that could not have been saved. What all such files have is left to
 * profile_file.c. */
#include "moe/last_run_experts.h"

#include <jansson.h>
#include <limits.h>

static const char *const file_names[] = { "experts" };
static const profile_kind kind = { "moe-cache-list", 1, file_names, ARRAY_LEN(file_names) };

/* Each in range, none twice. */
static int check_experts(const int *experts, int n, const profile_key *key, err_ctx *err)
{
    const int n_layer = key->n_layer, n_expert = key->n_expert;
    if (n_layer < 1 || n_expert < 1 || n_expert > PROFILE_MOST_EXPERTS / n_layer)
        return err_set(err, ERR_RANGE, "%d layers of %d experts", n_layer, n_expert);
    const int n_all = n_layer * n_expert;
    bool *seen = mem_zalloc((size_t)n_all * sizeof *seen);
    int rc = 0;
    if (!seen) return err_set(err, ERR_NOMEM, "no memory for %d experts", n_all);
    for (int i = 0; i < n && rc == 0; i++) {
        const int e = experts[i];
        if (e < 0 || e >= n_all)
            rc = err_set(err, ERR_RANGE, "entry %d: expert %d of %d", i, e, n_all);
        else if (seen[e])
            rc = err_set(err, ERR_RANGE, "entry %d: expert %d is in the list twice", i, e);
        else
            seen[e] = true;
    }
    mem_free(seen);
    return rc;
}

/* NULL without memory. */
static json_t *make_root(const int *experts, int n, const profile_key *key)
{
    json_t *root = profile_file_begin(&kind, key), *list = json_array();
    bool ok = root && list;
    for (int i = 0; i < n && ok; i++)
        ok = json_array_append_new(list, json_integer(experts[i])) == 0;
    ok = ok && json_object_set(root, "experts", list) == 0;
    json_decref(list);
    if (ok) return root;
    json_decref(root);
    return NULL;
}

int last_run_experts_save(const int *experts, int n, const char *path, const profile_key *key,
                          err_ctx *err)
{
    n = min_int(n, LAST_RUN_EXPERTS_MAX);
    int rc = check_experts(experts, n, key, err);
    if (rc == 0) {
        json_t *root = make_root(experts, n, key);
        rc = profile_file_replace(path, root, err);
        json_decref(root);
    }
    return rc < 0 ? err_prefix(err, rc, "%s", path) : 0;
}

static int read_list(int *out, const json_t *list, err_ctx *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t e = json_integer_value(v);
        if (json_is_real(v))
            return err_set(err, ERR_FORMAT, "entry %zu is %g, not a whole number", i,
                           json_real_value(v));
        if (!json_is_integer(v)) return err_set(err, ERR_FORMAT, "entry %zu is no number", i);
        if (e < 0 || e > INT_MAX)
            return err_set(err, ERR_RANGE, "entry %zu: expert %" JSON_INTEGER_FORMAT, i, e);
        out[i] = (int)e;
    }
    return 0;
}

static int read_root(int **out, int *n, const json_t *root, const profile_key *key, err_ctx *err)
{
    const json_t *list = json_object_get(root, "experts");
    const size_t size = json_array_size(list);
    if (!json_is_array(list)) return err_set(err, ERR_FORMAT, "experts is missing, or no list");
    if (size > LAST_RUN_EXPERTS_MAX)
        return err_set(err, ERR_RANGE, "%zu experts: more than %d", size, LAST_RUN_EXPERTS_MAX);
    int *experts = mem_array(size + 1, sizeof *experts); /* not NULL for an empty list, either */
    if (!experts) return err_set(err, ERR_NOMEM, "no memory for %zu experts", size);
    int rc = read_list(experts, list, err);
    if (rc == 0) rc = check_experts(experts, (int)size, key, err);
    if (rc < 0) {
        mem_free(experts);
        return rc;
    }
    *out = experts;
    *n = (int)size;
    return 0;
}

int last_run_experts_load_text(int **out, int *n, str_view text, const profile_key *expected,
                               err_ctx *err)
{
    const size_t most = 4096 + 64 * (size_t)LAST_RUN_EXPERTS_MAX;  /* a line of its own for each */
    json_t *root;
    *out = NULL;
    *n = 0;
    int rc = profile_file_parse(&root, text, most, &kind, expected, err);
    if (rc == 0) rc = read_root(out, n, root, expected, err);
    json_decref(root);
    return rc;
}

int last_run_experts_load(int **out, int *n, const char *path, const profile_key *expected,
                          err_ctx *err)
{
    char *text;
    size_t len;
    *out = NULL;
    *n = 0;
    int rc = profile_file_read(&text, &len, path, err);
    if (rc == 0 && text)
        rc = last_run_experts_load_text(out, n, (str_view){text, len}, expected, err);
    mem_free(text);
    return rc < 0 ? err_prefix(err, rc, "%s", path) : 0;
}
