/* test_tiers.c - what the machine says about itself. */
#include "tests/test.h"
#include "tiers/machine.h"

#include <string.h>

static const struct {
    const char *text;
    bool ok;
    uint64_t total, available;
    const char *why;
} infos[] = {
    { "MemTotal:       24676352 kB\nMemFree:  1 kB\nMemAvailable:   23900000 kB\n", true,
      24676352ull * 1024, 23900000ull * 1024, "as Linux writes it" },
    { "MemFree: 5 kB\nMemAvailable: 7 kB\nMemTotal: 9 kB\n", true, 9216, 7168, "other order" },
    { "MemTotal: 9 kB\n", false, 0, 0, "no MemAvailable: an old kernel" },
    { "MemTotalX: 9 kB\nMemAvailable: 7 kB\n", false, 0, 0, "a longer name is another name" },
    { "MemTotal: many kB\nMemAvailable: 7 kB\n", false, 0, 0, "no number" },
    { "MemTotal: 18446744073709551615 kB\nMemAvailable: 7 kB\n", false, 0, 0, "overflow" },
    { "", false, 0, 0, "empty" },
};

int main(int argc, char **argv)
{
    err_ctx err;
    machine m;

    test_begin("tiers", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(infos); i++) {
        uint64_t total = 0, available = 0;
        const int rc = machine_parse_meminfo(&total, &available, infos[i].text, &err);
        CHECK_MSG((rc == 0) == infos[i].ok, "%s: returned %d", infos[i].why, rc);
        CHECK_MSG(rc < 0 || (total == infos[i].total && available == infos[i].available),
                  "%s: %llu, %llu", infos[i].why, (unsigned long long)total,
                  (unsigned long long)available);
    }
    CHECK_MSG(machine_probe(&m, &err) == 0, "%s", err.msg);
    CHECK(m.n_core >= 1 && m.n_core <= m.n_cpu);
    CHECK(m.ram_total > 0 && m.ram_available <= m.ram_total);
    CHECK(m.n_gpu <= gpu_count());
    return test_end();
}
