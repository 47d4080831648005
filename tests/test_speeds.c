/* test_speeds.c - the file of measured speeds: kept, damaged, foreign; what is assumed instead. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/test.h"
#include "tiers/speeds.h"

static const speeds usual = {
    .vram_read = 450e9, .pcie_in = 24e9, .pcie_out = 24e9, .pull = 22e9, .pull_busy = 20e9,
    .cpu = 55e9, .cpu_busy = 48e9, .cpu_many = 6e11, .gpu_macs = 2e13, .hop = 8e-6, .disk = 3e9,
    .disk_straight = 2e9,
};

static char root[400];

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    if (!CHECK_MSG(f != NULL, "cannot write %s", path)) return;
    fputs(text, f);
    fclose(f);
}

static bool same(const speeds *a, const speeds *b) { return memcmp(a, b, sizeof *a) == 0; }

#define FIGURES(cpu) "\"vram_read\": 1e9, \"pcie_in\": 2, \"pcie_out\": 3, \"pull\": 4, " \
    "\"pull_busy\": 0, \"cpu\": " cpu ", \"cpu_busy\": 6, \"cpu_many\": 7, \"gpu_macs\": 8, " \
    "\"hop\": 9, \"disk\": 0.5, \"disk_straight\": 0.25"
#define NAMED(cpu, figures) "{\"speeds\": [{\"gpu\": \"\", \"n_thread\": 4, \"kernels\": \"avx2\", " \
    "\"drive\": 5, " cpu figures "}]}"

/* The processor's name is "processor" in the file: "cpu" is a figure. */
static const struct damaged_row { const char *text; bool good; const char *why; } damaged[] = {
    { "", false, "empty" },
    { "{", false, "cut off" },
    { "[]", false, "a list" },
    { "{}", false, "no speeds" },
    { "{\"speeds\": {}}", false, "speeds are no list" },
    { "{\"speeds\": []}", false, "no entries" },
    { "{\"speeds\": [1, null, \"x\", [], {}]}", false, "entries that are none" },
    { NAMED("\"processor\": \"x\", ", FIGURES("5")), true, "as it should be" },
    { NAMED("\"processor\": \"y\", ", FIGURES("5")), false, "another processor" },
    { NAMED("\"processor\": 7, ", FIGURES("5")), false, "a name that is a number" },
    { NAMED("", FIGURES("5")), false, "no name" },
    { NAMED("\"processor\": \"x\", ", FIGURES("-5")), false, "negative" },
    { NAMED("\"processor\": \"x\", ", FIGURES("\"5\"")), false, "a text" },
    { NAMED("\"processor\": \"x\", ", FIGURES("null")), false, "nothing" },
    { NAMED("\"processor\": \"x\", ", FIGURES("1e999")), false, "more than a number holds" },
    { NAMED("\"processor\": \"x\", ", "\"cpu\": 5"), false, "other figures are missing" },
    { NAMED("\"processor\": \"x\", ", FIGURES("5") ", \"more\": 1"), true, "of a later version" },
};

static void test_damaged(void)
{
    const speeds_key key = { .cpu = "x", .n_thread = 4, .kernels = "avx2", .drive = 5 };
    char path[512];
    snprintf(path, sizeof path, "%s/damaged.json", root);
    for (size_t i = 0; i < ARRAY_LEN(damaged); i++) {
        speeds got = { .hop = 77 };
        err_ctx err = { 0 };
        put(path, damaged[i].text);
        CHECK_MSG(speeds_load(&got, path, &key) == damaged[i].good, "%s", damaged[i].why);
        CHECK_MSG(damaged[i].good ? got.cpu == 5 && got.vram_read == 1e9 && got.disk == 0.5
                                  : got.hop == 77, "%s: figures", damaged[i].why);
        CHECK_MSG(speeds_save(&usual, path, &key, &err) == 0, "%s: %s", damaged[i].why, err.msg);
        CHECK_MSG(speeds_load(&got, path, &key) == 1 && same(&got, &usual), "%s: saved",
                  damaged[i].why);
    }
}

static void test_file(void)
{
    const speeds_key key = { .cpu = "Xeon \"9\"", .gpu = "H200 \xff\x01", .n_thread = 16,
                             .kernels = "avx512", .drive = UINT64_MAX - 3 };
    speeds_key keys[6];
    char path[512], folder[512];
    speeds got;
    err_ctx err = { 0 };
    snprintf(path, sizeof path, "%s/a/b/moe/speeds.json", root);
    snprintf(folder, sizeof folder, "%s/a/b/moe", root);
    CHECK(speeds_load(&got, path, &key) == 0);
    for (int i = 0; i < 6; i++) keys[i] = key;
    strcpy(keys[1].cpu, "Xeon 8");
    keys[2].gpu[0] = '\0';
    keys[3].n_thread = 15;
    strcpy(keys[4].kernels, "avx2");
    keys[5].drive = 3;
    for (int i = 0; i < 6; i++) {        /* each part of the key counts, and none is lost */
        speeds s = usual;
        s.hop = 1e-6 / 3 * i;
        CHECK(speeds_load(&got, path, &keys[i]) == 0);
        CHECK_MSG(speeds_save(&s, path, &keys[i], &err) == 0, "%s", err.msg);
        for (int k = 0; k <= i; k++)
            CHECK_MSG(speeds_load(&got, path, &keys[k]) == 1 && got.hop == 1e-6 / 3 * k &&
                      got.disk == usual.disk, "key %d of %d", k, i);
    }
    speeds s = usual;
    s.cpu = 1.0 / 3;
    CHECK(speeds_save(&s, path, &keys[2], &err) == 0);   /* replaced, not added */
    CHECK(speeds_load(&got, path, &keys[2]) == 1 && same(&got, &s));
    size_t len;
    char *text = test_read_file(path, &len);
    int n = 0;
    for (const char *at = text; at && (at = memchr(at, '{', len - (size_t)(at - text))); at++) n++;
    CHECK_MSG(n == 1 + 6, "%d objects", n);
    mem_free(text);

    for (int i = 0; i < 70; i++) {       /* does not grow for ever, and the newest stay */
        keys[0].n_thread = 100 + i;
        CHECK(speeds_save(&usual, path, &keys[0], &err) == 0);
    }
    CHECK(speeds_load(&got, path, &keys[0]) == 1 && speeds_load(&got, path, &keys[5]) == 0);
    keys[0].n_thread = 100 + 70 - 64;
    CHECK(speeds_load(&got, path, &keys[0]) == 1);
    keys[0].n_thread--;
    CHECK(speeds_load(&got, path, &keys[0]) == 0);

    s.pull = NAN;
    CHECK(speeds_save(&s, path, &key, &err) == ERR_RANGE && strstr(err.msg, "pull"));
    CHECK(speeds_load(&got, folder, &key) == 0);         /* a folder */
    CHECK(speeds_save(&usual, folder, &key, &err) == ERR_IO);
    CHECK(speeds_save(&usual, "/proc/none/speeds.json", &key, &err) == ERR_IO);
    for (long fail = 1; fail <= 4; fail++) {
        mem_fail_after(fail);
        const int rc = speeds_save(&usual, path, &key, &err);
        mem_fail_after(0);
        CHECK(rc == 0 || rc == ERR_NOMEM);
    }
    CHECK(speeds_save(&usual, path, &key, &err) == 0 && speeds_load(&got, path, &key) == 1);
    char command[640];
    snprintf(command, sizeof command, "test \"$(ls '%s')\" = speeds.json", folder);
    CHECK_MSG(system(command) == 0, "something else is left in %s", folder);
    snprintf(command, sizeof command, "test \"$(ls '%s/a/b')\" = moe", root);
    CHECK_MSG(system(command) == 0, "something is left beside %s", folder);
}

static void test_path_rows(void)
{
    static const struct { const char *cache, *home, *want; } rows[] = {
        { "/c", "/h", "/c/moe/speeds.json" }, { NULL, "/h", "/h/.cache/moe/speeds.json" },
        { "", "/h", "/h/.cache/moe/speeds.json" }, { "rel", "/h", "/h/.cache/moe/speeds.json" },
        { NULL, NULL, NULL }, { "rel", "", NULL }, { NULL, "h", NULL },
    };
    char path[64];
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const bool ok = speeds_path(path, sizeof path, rows[i].cache, rows[i].home);
        CHECK_MSG(ok == (rows[i].want != NULL) && (!ok || !strcmp(path, rows[i].want)),
                  "path row %zu", i);
    }
    CHECK(!speeds_path(path, 10, "/cache", NULL));
}

static void test_assumed(void)
{
    speeds s = { .cpu = 90e9 };
    CHECK(speeds_assume(&s).cpu == 90e9 && speeds_assume(&s).cpu_busy == 90e9 &&
          speeds_assume(&s).pull == 11e9);
    /* a GPU that was measured and cannot pull: the figure stays 0, others cannot be */
    s = (speeds){ .vram_read = 1e12 };
    CHECK(speeds_assume(&s).pull == 0 && speeds_assume(&s).pcie_in > 0 &&
          speeds_assume(&s).gpu_macs > 0 && speeds_assume(&s).cpu > 0);
    /* who knows one figure of a drive knows of no dock */
    s = speeds_assume(&(speeds){ .disk = 9e9 });
    CHECK(s.disk == 9e9 && s.disk_straight == 9e9);
    s = speeds_assume(&(speeds){ 0 });
    CHECK(s.disk > 0 && s.disk_straight == s.disk);
    s = speeds_assume(&usual);
    CHECK(same(&s, &usual));
}

int main(int argc, char **argv)
{
    test_begin("speeds", argc, argv);
    if (CHECK(mkdtemp(test_temp(root, sizeof root)) != NULL)) {
        test_damaged();
        test_file();
        test_remove(root);
    }
    test_path_rows();
    test_assumed();
    return test_end();
}
