/* test_speeds.c - the file of measured speeds: kept, damaged, foreign; what is assumed instead. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/case_file.h"
#include "tiers/speeds.h"

static const speeds usual = {
    .vram_read = 450e9, .pcie_in = 24e9, .pcie_out = 24e9, .pull = 22e9, .pull_busy = 20e9,
    .cpu = 55e9, .cpu_busy = 48e9, .cpu_dense = 60e9, .cpu_many = 6e11, .gpu_macs = 2e13,
    .hop = 8e-6, .disk = 3e9, .layer_dense = 17e-6, .layer_hot = 7e-6,
    .layer_cpu = 22e-6, .disk_wait = 90e-6,
    .gemm_own = { 1e13, 3e13, 6e13, 7e13 }, .gemm_vendor = { 5e12, 2e13, 9e13, 2e14 },
};

static const int64_t noted = 1794787200;

static char root[400];

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    if (!CHECK_MSG(f != NULL, "cannot write %s", path)) return;
    fputs(text, f);
    fclose(f);
}

static bool same(const speeds *a, const speeds *b) { return memcmp(a, b, sizeof *a) == 0; }

/* The processor's name is "processor" in the file: "cpu" is a figure. */
static const char good_file[] =
    "{\"version\": 3, \"speeds\": [{\"date\": 99, \"gpu\": \"\", \"n_thread\": 4, "
    "\"kernels\": \"avx2\", \"drive\": 5, \"processor\": \"x\", \"vram_read\": 1e9, "
    "\"pcie_in\": 2, \"pcie_out\": 3, \"pull\": 4, \"pull_busy\": 0, \"cpu\": 5, "
    "\"cpu_busy\": 6, \"cpu_dense\": 6.5, \"cpu_many\": 7, \"gpu_macs\": 8, \"hop\": 9, "
    "\"disk\": 0.5, \"layer_dense\": 2e-5, \"layer_hot\": 1e-5, "
    "\"layer_cpu\": 0, \"disk_wait\": 1e-4, \"gemm_own_64\": 1, \"gemm_own_256\": 2, "
    "\"gemm_own_1024\": 3, \"gemm_own_4096\": 4, \"gemm_vendor_64\": 0, "
    "\"gemm_vendor_256\": 0, \"gemm_vendor_1024\": 0, \"gemm_vendor_4096\": 0}]}";

static void test_damaged(void)
{
    const speeds_key key = { .cpu = "x", .n_thread = 4, .kernels = "avx2", .drive = 5 };
    static case_rows rows;
    char path[512], text[1024];
    if (!case_rows_read(&rows, "speeds.txt")) return;
    snprintf(path, sizeof path, "%s/damaged.json", root);
    for (int i = 0; i < rows.n; i++) {
        const bool good = rows.cells[i][2][0] == 'y';
        const char *why = rows.cells[i][3];
        speeds got = { .hop = 77 };
        int64_t date = 0;
        err_ctx err = { 0 };
        put(path, case_replace(text, sizeof text, good_file, rows.cells[i][0], rows.cells[i][1]));
        CHECK_MSG(speeds_load(&got, &date, path, &key) == good, "%s", why);
        CHECK_MSG(!good || date == 99, "%s: date", why);
        CHECK_MSG(good ? got.cpu == 5 && got.vram_read == 1e9 && got.disk == 0.5 &&
                         got.layer_dense == 2e-5 && got.disk_wait == 1e-4
                       : got.hop == 77, "%s: figures", why);
        CHECK_MSG(speeds_save(&usual, noted, path, &key, &err) == 0, "%s: %s", why, err.msg);
        CHECK_MSG(speeds_load(&got, &date, path, &key) == 1 && same(&got, &usual) &&
                  date == noted, "%s: saved", why);
    }
    case_rows_free(&rows);
}

/* Where a bounce buffer paid, earlier programs kept its speed as that of the drive. */
static void test_bounced(void)
{
    const speeds_key key = { .cpu = "x", .n_thread = 4, .kernels = "avx2", .drive = 5 };
    char path[512], text[1024];
    speeds s;
    int64_t date;
    snprintf(path, sizeof path, "%s/bounced.json", root);
    put(path, case_replace(text, sizeof text, good_file, "\"hop\": 9",
                           "\"hop\": 9, \"disk_straight\": 0.25"));
    CHECK(speeds_load(&s, &date, path, &key) == 1 && s.disk == 0.25);
}

static void test_file(void)
{
    const speeds_key key = { .cpu = "Xeon \"9\"", .gpu = "H200 \xff\x01", .n_thread = 16,
                             .kernels = "avx512", .drive = UINT64_MAX - 3 };
    speeds_key keys[6];
    char path[512], folder[512];
    speeds got;
    int64_t date;
    err_ctx err = { 0 };
    snprintf(path, sizeof path, "%s/moe/speeds.json", root);
    snprintf(folder, sizeof folder, "%s/moe", root);
    CHECK(mkdir(folder, 0700) == 0);
    CHECK(speeds_load(&got, &date, path, &key) == 0);
    for (int i = 0; i < 6; i++) keys[i] = key;
    strcpy(keys[1].cpu, "Xeon 8");
    keys[2].gpu[0] = '\0';
    keys[3].n_thread = 15;
    strcpy(keys[4].kernels, "avx2");
    keys[5].drive = 3;
    for (int i = 0; i < 6; i++) {        /* each part of the key counts, and none is lost */
        speeds s = usual;
        s.hop = 1e-6 / 3 * i;
        CHECK(speeds_load(&got, &date, path, &keys[i]) == 0);
        CHECK_MSG(speeds_save(&s, noted, path, &keys[i], &err) == 0, "%s", err.msg);
        for (int k = 0; k <= i; k++)
            CHECK_MSG(speeds_load(&got, &date, path, &keys[k]) == 1 && got.hop == 1e-6 / 3 * k &&
                      got.disk == usual.disk, "key %d of %d", k, i);
    }
    speeds s = usual;
    s.cpu = 1.0 / 3;
    CHECK(speeds_save(&s, noted, path, &keys[2], &err) == 0);   /* replaced, not added */
    CHECK(speeds_load(&got, &date, path, &keys[2]) == 1 && same(&got, &s));
    size_t len;
    char *text = test_read_file(path, &len);
    int n = 0;
    for (const char *at = text; at && (at = memchr(at, '{', len - (size_t)(at - text))); at++) n++;
    CHECK_MSG(n == 1 + 6, "%d objects", n);
    mem_free(text);

    for (int i = 0; i < 70; i++) {       /* does not grow for ever, and the newest stay */
        keys[0].n_thread = 100 + i;
        CHECK(speeds_save(&usual, noted, path, &keys[0], &err) == 0);
    }
    CHECK(speeds_load(&got, &date, path, &keys[0]) == 1 &&
          speeds_load(&got, &date, path, &keys[5]) == 0);
    keys[0].n_thread = 100 + 70 - 64;
    CHECK(speeds_load(&got, &date, path, &keys[0]) == 1);
    keys[0].n_thread--;
    CHECK(speeds_load(&got, &date, path, &keys[0]) == 0);

    s.pull = NAN;
    CHECK(speeds_save(&s, noted, path, &key, &err) == ERR_RANGE && strstr(err.msg, "pull"));
    CHECK(speeds_load(&got, &date, folder, &key) == 0);         /* a folder */
    CHECK(speeds_save(&usual, noted, folder, &key, &err) == ERR_IO);
    CHECK(speeds_save(&usual, noted, "/proc/none/speeds.json", &key, &err) == ERR_IO);
    for (long fail = 1; fail <= 4; fail++) {
        mem_fail_after(fail);
        const int rc = speeds_save(&usual, noted, path, &key, &err);
        mem_fail_after(0);
        CHECK(rc == 0 || rc == ERR_NOMEM);
    }
    CHECK(speeds_save(&usual, noted, path, &key, &err) == 0 &&
          speeds_load(&got, &date, path, &key) == 1);

    char any[512], wide[1024];           /* an entry for every processor, until there is a better one */
    snprintf(any, sizeof any, "%s/any.json", root);
    put(any, case_replace(wide, sizeof wide, good_file, "\"processor\": \"x\"",
                          "\"processor\": \"*\""));
    CHECK(speeds_load(&got, &date, any, &key) == 0);     /* for another GPU */
    CHECK(speeds_load(&got, &date, any, &keys[2]) == 1 && got.cpu == 5);
    CHECK(speeds_save(&usual, noted, any, &keys[2], &err) == 0 &&
          speeds_load(&got, &date, any, &keys[2]) == 1 && same(&got, &usual));
    keys[2].n_thread++;
    CHECK(speeds_load(&got, &date, any, &keys[2]) == 1 && got.cpu == 5);
    char command[640];
    snprintf(command, sizeof command, "test \"$(ls '%s')\" = speeds.json", folder);
    CHECK_MSG(system(command) == 0, "something else is left in %s", folder);
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
    CHECK(speeds_assume(&s).cpu_dense == 90e9);
    CHECK(speeds_assume(&s).cpu == 90e9 && speeds_assume(&s).cpu_busy == 90e9 &&
          speeds_assume(&s).pull == SPEEDS_PULL);
    /* a GPU that was measured and cannot pull: that figure stays 0, others cannot be 0 */
    s = (speeds){ .vram_read = 1e12 };
    CHECK(speeds_assume(&s).pull == 0 && speeds_assume(&s).pcie_in > 0 &&
          speeds_assume(&s).gpu_macs > 0 && speeds_assume(&s).cpu > 0);
    CHECK(speeds_assume(&s).layer_dense == SPEEDS_LAYER_DENSE &&
          speeds_assume(&s).layer_hot == SPEEDS_LAYER_HOT &&
          speeds_assume(&s).layer_cpu == SPEEDS_LAYER_CPU &&
          speeds_assume(&s).disk_wait == SPEEDS_DISK_WAIT);
    s = speeds_assume(&(speeds){ .disk = 9e9 });
    CHECK(s.disk == 9e9);
    s = speeds_assume(&(speeds){ 0 });
    CHECK(s.disk > 0);
    s = speeds_assume(&usual);
    CHECK(same(&s, &usual));
}

int main(int argc, char **argv)
{
    test_begin("speeds", argc, argv);
    if (CHECK(mkdtemp(test_temp(root, sizeof root)) != NULL)) {
        test_damaged();
        test_bounced();
        test_file();
        test_remove(root);
    }
    test_path_rows();
    test_assumed();
    return test_end();
}
