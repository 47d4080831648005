/* test_cpu_utilisation.c - ticks of made-up /proc/stat files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/test.h"
#include "tiers/cpu_utilisation.h"

static char root[] = "/tmp/moe_load_XXXXXX";

static void put(const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "%s/proc/stat", root);
    FILE *f = fopen(path, "w");
    if (!CHECK_MSG(f != NULL, "cannot write %s", path)) return;
    fputs(text, f);
    fclose(f);
}

static const struct {
    const char *text;
    bool ok;
    uint64_t busy, all;                  /* of CPUs 0 and 2 */
    const char *why;
} rows[] = {
    { "", false, 0, 0, "empty" },
    { "cpu  9 9 9 9 9 9 9 9 9 9\nintr 5\n", false, 0, 0, "only the line of all CPUs" },
    { "cpu1 1 2 3 4 5 6 7 8 0 0\n", false, 0, 0, "only a CPU that is not ours" },
    { "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 400 50 6 7 8 1 0\ncpu1 9 9 9 9 9 9 9 9 9 9\n"
      "cpu2 10 0 0 90 0 0 0 0 0 0\nintr 5\n", true, 27 + 10, 477 + 100, "ours" },
    { "cpu0 1 2 3 4\ncpu2 10 0 0 90 0 0 0 0 0 0\n", true, 10, 100, "a line that is cut" },
    { "cpu2 10 0 0 90 0 0 0 0\nctxt 1\ncpu0 1 1 1 1 1 1 1 1\n", true, 10, 100,
      "the CPUs come first" },
    { "cpu-1 1 1 1 1 1 1 1 1\ncpu99999 1 1 1 1 1 1 1 1\ncpu2 10 0 0 90 0 0 0 0\n", true, 10, 100,
      "numbers of no CPU" },
};

int main(int argc, char **argv)
{
    char path[64];
    cpu_ticks t;
    cpu_set_t set;
    test_begin("cpu_load", argc, argv);
    if (!CHECK(mkdtemp(root) != NULL)) return test_end();
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    CPU_SET(2, &set);
    CHECK(!cpu_ticks_read(&t, root, &set));      /* no file */
    snprintf(path, sizeof path, "%s/proc", root);
    mkdir(path, 0700);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        put(rows[i].text);
        const bool ok = cpu_ticks_read(&t, root, &set);
        CHECK_MSG(ok == rows[i].ok && (!ok || (t.busy == rows[i].busy && t.all == rows[i].all)),
                  "%s: %d, %llu of %llu", rows[i].why, ok, (unsigned long long)t.busy,
                  (unsigned long long)t.all);
    }
    snprintf(path, sizeof path, "%s/proc/stat", root);
    unlink(path);
    snprintf(path, sizeof path, "%s/proc", root);
    rmdir(path);
    rmdir(root);

    const cpu_ticks from = { 10, 100 };
    CHECK(cpu_utilisation(&from, &(cpu_ticks){ 15, 120 }) == 0.25);
    CHECK(cpu_utilisation(&from, &(cpu_ticks){ 10, 120 }) == 0);
    CHECK(cpu_utilisation(&from, &(cpu_ticks){ 30, 120 }) == 1);
    CHECK(cpu_utilisation(&from, &(cpu_ticks){ 31, 120 }) == 1);         /* not counted at once */
    CHECK(cpu_utilisation(&from, &from) == -1);
    CHECK(cpu_utilisation(&from, &(cpu_ticks){ 9, 120 }) == -1);         /* corrected */
    const double now = cpu_utilisation_now();
    CHECK_MSG(now == -1 || (now >= 0 && now <= 1), "%g", now);
    return test_end();
}
