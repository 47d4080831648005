/* test_layer_perf.c - counts of another program, as a profile: which lists count, how they add up,
 * and what is refused. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "moe/layer_perf.h"
#include "tests/case_file.h"

#define HEAD "{\"schema\":\"llama.cpp.moe_layer_perf.v1\",\"layers\":["

static usage_profile *load(const char *text, err_ctx *err)
{
    usage_profile *p = NULL;
    json_t *root = json_loads(text, 0, NULL);
    if (!CHECK_MSG(root != NULL, "the test's own text: %s", text)) return NULL;
    const int rc = layer_perf_read(&p, root, 2, 3, err);
    CHECK((rc == 0) == (p != NULL));
    json_decref(root);
    return p;
}

/* What a row says, of the layer that has its text. */
static void check_taken(char *const *cells)
{
    const bool by_expert = !strcmp(cells[0], "experts");
    char text[400], got[200];
    err_ctx err = { 0 };
    size_t n = 0;
    snprintf(text, sizeof text, HEAD "{\"layer\":%d,%s}]}", by_expert, cells[1]);
    usage_profile *p = load(text, &err);
    if (!CHECK_MSG(p != NULL, "%s: %s", cells[3], err.msg)) return;
    const layer_uses *u = usage_profile_layer(p, 0);
    const expert_uses *e = usage_profile_uses(p, 1);
    for (int i = 0; i < 3 && by_expert; i++)
        n += (size_t)snprintf(got + n, sizeof got - n, "%s%g %g %.16g", i ? ", " : "", e[i].hot,
                              e[i].cold, e[i].raw);
    if (by_expert) CHECK(u->calls == 0);
    else snprintf(got, sizeof got, "%g %g %g", u->calls, u->cold_slots, u->join_s);
    CHECK_MSG(!strcmp(got, cells[2]) && u->cold_s == 0 && u->hot_s == 0, "%s: %s, not %s", cells[3],
              got, cells[2]);
    usage_profile_free(p);
}

static void check_refused(char *const *cells)
{
    err_ctx err = { 0 };
    usage_profile *p = load(cells[1], &err);
    CHECK_MSG(!p && strstr(err.msg, cells[2]), "%s: '%s'", cells[1], err.msg);
    usage_profile_free(p);
}

int main(int argc, char **argv)
{
    static case_rows rows;
    test_begin("layer_perf", argc, argv);
    (void)case_rows_read(&rows, "layer_perf.txt");
    for (int i = 0; i < rows.n; i++)
        if (!strcmp(rows.cells[i][0], "refused")) check_refused(rows.cells[i]);
        else check_taken(rows.cells[i]);
    case_rows_free(&rows);
    return test_end();
}
