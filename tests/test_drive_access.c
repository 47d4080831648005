/* test_drive_access.c - a drive gets figures, or a reason why not; their size does not matter. */
#include "tiers/drive_access.h"

#include "tests/test.h"
#include "tiers/fault_injection.h"

static const char file[] = "tests/models/demo-qwen3next-mtp.gguf";
static const uint64_t file_bytes = 8 << 20;      /* it has more */
enum { ONE = 50000, PAGES = 53248, MEMORY = 4 << 20, LEAST = 16 * PAGES };

static int n_asked;

static bool three_times(void *ctx)
{
    (void)ctx;
    return ++n_asked <= 3;
}

static const struct row {
    uint64_t file, one, memory;
    const char *path;
    int fault;                           /* a fault_point, or -1 */
    keep_going_fn *watch;
    int rc;
    const char *why;
} rows[] = {
    { file_bytes, ONE, MEMORY, file, -1, NULL, 0, "usual" },
    { file_bytes, 1, 48 * READER_PAGE, file, -1, NULL, 0, "single pages, no more memory" },
    { 4 * PAGES, ONE, LEAST, file, -1, NULL, 0, "as little as possible" },
    { file_bytes, ONE, LEAST - 1, file, -1, NULL, ERR_RANGE, "less memory" },
    { 4 * PAGES - 1, ONE, MEMORY, file, -1, NULL, ERR_RANGE, "less of a file" },
    { file_bytes, 0, MEMORY, file, -1, NULL, ERR_RANGE, "nothing to read" },
    { file_bytes, ONE, MEMORY, "tests/models/none", -1, NULL, ERR_IO, "no file" },
    { file_bytes, ONE, MEMORY, file, FAULT_READ_ERROR, NULL, ERR_IO, "it cannot be read" },
    { file_bytes, ONE, MEMORY, file, FAULT_URING, NULL, 0, "threads instead" },
    { file_bytes, ONE, MEMORY, file, -1, three_times, ERR_STOPPED, "the caller stops it" },
};

static drive_task task_of(const struct row *r, pool *team)
{
    return (drive_task){ .path = r->path, .file_bytes = r->file, .one = r->one,
                         .memory_bytes = r->memory, .team = team, .seconds = 0.01,
                         .at_once = 3, .watch = r->watch };
}

static void test_rows(pool *team)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const drive_task t = task_of(&rows[i], team);
        drive_speed d = { 7, 7 };
        err_ctx err = { 0 };
        if (rows[i].fault >= 0) fault_arm((fault_point)rows[i].fault, 0, FAULT_ALWAYS);
        const int rc = drive_measure(&d, &t, &err);
        fault_disarm_all();
        CHECK_MSG(rc == rows[i].rc && (d.speed > 0) == (rc == 0) && (d.wait > 0) == (rc == 0),
                  "%s: %d, %g bytes/s, %g s: %s", rows[i].why, rc, d.speed, d.wait, err.msg);
        CHECK(rc < 0 || (d.wait >= DRIVE_LEAST_WAIT_S && d.wait <= DRIVE_MOST_WAIT_S));
    }
    drive_task t = task_of(&rows[0], team);
    drive_speed d;
    t.at_once = 0;
    CHECK(drive_measure(&d, &t, NULL) == 0 && d.speed > 0 && d.wait == 0);
    CHECK(n_asked == 4 && drive_least_memory(ONE) == 16 * PAGES);
}

static void test_no_memory(pool *team)
{
    const drive_task t = task_of(&rows[1], team);
    int refused = 0;
    for (long nth = 1; nth < 60; nth++) {
        drive_speed d;
        mem_fail_after(nth);
        const int rc = drive_measure(&d, &t, NULL);
        mem_fail_after(0);
        refused += rc == ERR_NOMEM;
        CHECK_MSG(rc == 0 ? d.speed > 0 : rc == ERR_NOMEM, "allocation %ld: %d", nth, rc);
    }
    CHECK_MSG(refused > 4 && refused < 50, "%d of 59", refused);
}

int main(int argc, char **argv)
{
    pool *team;
    test_begin("drive", argc, argv);
    if (!CHECK(pool_create(&team, test_n_thread(2), NULL) == 0)) return test_end();
    test_rows(team);
    test_no_memory(team);
    pool_free(team);
    return test_end();
}
