/* test_perf_view.c - counts as JSON and as lines: every key that the docs name is there and no
 * other, with the number that belongs to it; what has nothing to say says nothing. */
#include "cli/view/perf_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/console.h"
#include "tests/case_file.h"

/* Every field another number. */
static const perf_counts counts = {
    .n_layer = 2, .n_used = 4, .tokens = 100, .prompt_tokens = 7, .calls = 200, .quiet = 122,
    .hot = 744, .cold = 56, .on_cpu = 33, .down_fetched = 17, .all_fetched = 6, .vram_bytes = 1001,
    .cpu_bytes = 1002, .fetch_bytes = 1003, .upload_bytes = 1004, .drive_bytes = 2000000000,
    .ask_s = 0.5, .cold_s = 0.25, .late_s = 0.125, .fetch_s = 2, .overlap_least_s = 3,
    .overlap_most_s = 4, .join_s = 5, .late = 11, .not_locked = 12, .failed_uploads = 13,
    .refused = 14, .frame_hits = 15, .frame_misses = 16, .uploads = 1200, .swaps = 34,
    .evictions = 198, .ram_hits = 900, .ram_misses = 100, .ram_wait_s = 0.75,
};
static const perf_layer layers[2] = { { 100, 61, 400, 0, 0.0 }, { 100, 61, 344, 56, 0.25 } };

/* "slots.hot" in an object; NULL if it is not there. */
static json_t *value_at(json_t *root, const char *key)
{
    char group[32];
    const char *dot = strchr(key, '.');
    if (!dot) return json_object_get(root, key);
    snprintf(group, sizeof group, "%.*s", (int)(dot - key), key);
    return json_object_get(json_object_get(root, group), dot + 1);
}

static void test_numbers(void)
{
    json_t *root = perf_view_json(&counts, PERF_FULL, layers, 2);
    static case_rows rows;
    if (!CHECK(root) || !case_rows_read(&rows, "perf_view.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        const json_t *v = value_at(root, rows.cells[i][0]);
        CHECK_MSG(json_is_number(v) && json_number_value(v) == atof(rows.cells[i][1]),
                  "%s: %g, not %s", rows.cells[i][0], json_number_value(v), rows.cells[i][1]);
    }
    case_rows_free(&rows);
    CHECK(!strcmp(json_string_value(json_object_get(root, "mode")), "full"));
    const json_t *last = json_array_get(json_object_get(root, "layers"), 1);
    CHECK(json_array_size(json_object_get(root, "layers")) == 2);
    CHECK(json_integer_value(json_object_get(last, "calls")) == 100 &&
          json_integer_value(json_object_get(last, "quiet")) == 61 &&
          json_integer_value(json_object_get(last, "hot")) == 344 &&
          json_integer_value(json_object_get(last, "cold")) == 56 &&
          json_real_value(json_object_get(last, "cold_seconds")) == 0.25);
    json_decref(root);
    root = perf_view_json(&(perf_counts){ .n_layer = 2 }, PERF_UPDATE, NULL, 0);
    CHECK(root && json_is_null(json_object_get(root, "hit_rate")) &&
          !json_object_get(root, "layers"));
    json_decref(root);
}

/* ---- docs ------------------------------------------------------------------------------------ */

static int count_keys(json_t *object)
{
    const char *name;
    json_t *v;
    int n = 0;
    json_object_foreach(object, name, v) n += json_is_object(v) ? count_keys(v) : 1;
    return n;
}

/* The keys in the first column of the section's table are those of the object. */
static void test_docs(void)
{
    FILE *f = fopen("docs/troubleshooting.md", "r");
    json_t *root = perf_view_json(&counts, PERF_FULL, layers, 2);
    char line[2048];
    bool inside = false;
    int n = 0;
    if (!CHECK(f && root)) return;
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#') inside = strstr(line, "`--perf`") != NULL;
        if (!inside || line[0] != '|') continue;
        char *end = strchr(line + 1, '|');
        if (end) *end = '\0';
        for (char *at = strchr(line, '`'); at; at = strchr(at, '`')) {
            char *key = at + 1, *stop = strchr(key, '`');
            if (!CHECK(stop)) break;
            *stop = '\0';
            at = stop + 1;
            if (strstr(key, "[]")) key[strlen(key) - 2] = '\0';
            CHECK_MSG(value_at(root, key), "the docs name %s, which is not there", key);
            n++;
        }
    }
    CHECK_MSG(n == count_keys(root), "%d keys in the docs, %d in the object", n, count_keys(root));
    fclose(f);
    json_decref(root);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void test_lines(void)
{
    static const perf_counts fixed = { .calls = 4, .quiet = 1, .hot = 3, .cold = 5 };
    static const perf_counts nothing = { .tokens = 3, .cold = 24 };
    char line[PERF_LINE_CAP];
    CHECK_MSG(!strcmp(perf_view_vram_line(line, sizeof line, &counts),
                      "93% of 800 choices in VRAM, 61% of layers without the CPU; 1,234 "
                      "uploaded, 198 evicted"), "%s", line);
    CHECK_MSG(!strcmp(perf_view_vram_line(line, sizeof line, &fixed),
                      "38% of 8 choices in VRAM, 25% of layers without the CPU"), "%s", line);
    CHECK_MSG(!strcmp(perf_view_ram_line(line, sizeof line, &counts),
                      "90% of 1,000 reads in RAM; 2.0 GB read from the drive, 0.8 s waited"),
              "%s", line);
    CHECK(perf_view_vram_line(line, sizeof line, &nothing)[0] == '\0');
    CHECK(perf_view_ram_line(line, sizeof line, &nothing)[0] == '\0');
}

/* ---- flags ----------------------------------------------------------------------------------- */

static const struct { perf_args args; int rc; perf_level want; const char *why; } flags[] = {
    { { NULL, NULL }, 0, PERF_UPDATE, "nothing is said" },
    { { "", "" }, 0, PERF_UPDATE, "an empty variable says nothing" },
    { { "off", NULL }, 0, PERF_OFF, "off" },
    { { "update", "x.json" }, 0, PERF_UPDATE, "the default by name" },
    { { "full", "x.json" }, 0, PERF_FULL, "full" },
    { { "FULL", NULL }, 2, PERF_UPDATE, "another word" },
    { { "off", "x.json" }, 2, PERF_OFF, "nothing to write" },
};

static void test_flags(void)
{
    const int kept = dup(2);
    if (!CHECK(kept >= 0 && freopen("/dev/null", "w", stderr))) return;  /* error lines */
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        perf_level level;
        const int rc = perf_args_read(&level, &flags[i].args);
        CHECK_MSG(rc == flags[i].rc && (rc != 0 || level == flags[i].want), "%s: %d", flags[i].why,
                  rc);
    }
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
}

int main(int argc, char **argv)
{
    test_begin("perf_view", argc, argv);
    test_numbers();
    test_docs();
    test_lines();
    test_flags();
    return test_end();
}
