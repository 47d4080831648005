/* test_drive.c - figures of a drive are there, or a reason is; how large they are is nobody's
 * business here. And when a dock is worth while. */
#include "tiers/drive.h"

#include "tests/test.h"
#include "tiers/fault.h"

static const char file[] = "tests/models/demo-qwen3next-Q4_K_M.gguf";
static const uint64_t file_bytes = 8 << 20;      /* it has more */
enum { ONE = 50000, MEMORY = 4 << 20 };

static const struct {
    uint64_t file, one, memory;
    const char *path;
    int fault, rc;
    const char *why;
} rows[] = {
    { file_bytes, ONE, MEMORY, file, -1, 0, "usual" },
    { file_bytes, 1, 32 * READER_PAGE, file, -1, 0, "single pages, no more memory than needed" },
    { file_bytes, ONE, 15 * 53248, file, -1, ERR_RANGE, "no memory for those in flight" },
    { 3 * 53248, ONE, MEMORY, file, -1, ERR_RANGE, "hardly a file" },
    { file_bytes, 0, MEMORY, file, -1, ERR_RANGE, "nothing to read" },
    { file_bytes, ONE, MEMORY, "tests/models/none", -1, ERR_IO, "no file" },
    { file_bytes, ONE, MEMORY, file, FAULT_READ_ERROR, ERR_IO, "a drive that cannot be read" },
    { file_bytes, ONE, MEMORY, file, FAULT_URING, 0, "threads instead" },
};

static void test_rows(pool *team)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        drive_speed d = { 7, 7 };
        err_ctx err = { 0 };
        if (rows[i].fault >= 0) fault_arm((fault_point)rows[i].fault, 0, FAULT_ALWAYS);
        const int rc = drive_measure(&d, rows[i].path, rows[i].file, rows[i].one, rows[i].memory,
                                     team, 0.01, &err);
        fault_disarm_all();
        CHECK_MSG(rc == rows[i].rc && (d.straight > 0) == (rc == 0) &&
                  (d.docked > 0) == (rc == 0), "%s: %d, %g straight, %g docked: %s", rows[i].why,
                  rc, d.straight, d.docked, err.msg);
    }
    CHECK(drive_least_memory(ONE) == 32 * 53248);
}

/* Without memory for a dock there is no figure of one, and that is no failure. */
static void test_no_dock(pool *team)
{
    int n_without = 0;
    for (long nth = 1; nth < 60; nth++) {
        drive_speed d;
        mem_fail_after(nth);
        const int rc = drive_measure(&d, file, file_bytes, ONE, MEMORY, team, 0.001, NULL);
        mem_fail_after(0);
        CHECK_MSG(rc == 0 ? d.straight > 0 : rc == ERR_NOMEM, "allocation %ld: %d", nth, rc);
        if (rc < 0 || d.docked > 0) continue;
        n_without++;
        CHECK(!drive_wants_dock(&d));
    }
    CHECK_MSG(n_without > 0 && n_without < 4, "%d of 60", n_without);
}

static void test_worth(void)
{
    CHECK(drive_wants_dock(&(drive_speed){ 2e9, 3e9 }));
    CHECK(!drive_wants_dock(&(drive_speed){ 2e9, 2.1e9 }));
    CHECK(!drive_wants_dock(&(drive_speed){ 3e9, 2e9 }));
}

int main(int argc, char **argv)
{
    pool *team;
    test_begin("drive", argc, argv);
    if (!CHECK(pool_create(&team, 2, NULL) == 0)) return test_end();
    test_rows(team);
    test_no_dock(team);
    test_worth();
    pool_free(team);
    return test_end();
}
