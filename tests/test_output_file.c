/* test_output_file.c - a new file is whole or absent, whatever the disk does, and replaces no file
 * of another process. */
#include "tests/bad_disk.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/output_file.h"

enum { PIECES = 3, PIECE = 1000 };

static bool is_there(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* Opens, writes PIECES pieces, finishes; drops in any case. */
static int write_new(const char *path, err_ctx *err)
{
    char piece[PIECE];
    output_file s = { 0 };
    int rc = output_file_open_new(&s, path, PIECES * PIECE, err);
    for (int i = 0; i < PIECES && rc == 0; i++) {
        memset(piece, 'a' + i, sizeof piece);
        rc = output_file_write(&s, piece, sizeof piece, err);
    }
    if (rc == 0) rc = output_file_finish(&s, err);
    output_file_drop(&s);
    return rc;
}

static bool is_whole(const char *path)
{
    size_t n;
    char *text = test_read_file(path, &n);
    bool same = text && n == PIECES * PIECE;
    for (size_t i = 0; same && i < n; i++) same = text[i] == 'a' + (int)(i / PIECE);
    mem_free(text);
    return same;
}

static void test_new(const char *folder)
{
    char path[300], part[310];
    err_ctx err;
    snprintf(path, sizeof path, "%s/new", folder);
    snprintf(part, sizeof part, "%s.part", path);

    for (int n = 1; n <= PIECES + 1; n++) {      /* each write, then fsync */
        disk = (bad_disk){ .fail_at = n };
        const int rc = write_new(path, &err);
        CHECK_MSG(rc == ERR_IO && !is_there(path) && !is_there(part), "call %d fails: %d", n, rc);
        CHECK_MSG(strstr(err.msg, n <= PIECES ? "No space left" : "Input/output error") != NULL,
                  "call %d fails: %s", n, err.msg);
    }
    disk = (bad_disk){ .lazy = true, .portion = 100 };
    CHECK_MSG(write_new(path, &err) == 0 && !is_there(part), "a slow disk: %s", err.msg);
    CHECK(is_whole(path));

    disk = (bad_disk){ 0 };
    CHECK(write_new(path, &err) == ERR_IO && strstr(err.msg, "nothing is overwritten"));
    CHECK_MSG(is_whole(path), "the old file changed");
    unlink(path);

    FILE *f = fopen(part, "w");
    CHECK(f && fclose(f) == 0);
    CHECK(write_new(path, &err) == ERR_IO && strstr(err.msg, ".part is there"));
    CHECK_MSG(is_there(part), "another's .part was removed");
    unlink(part);
    CHECK(write_new("/nowhere/at/all", &err) == ERR_IO && strstr(err.msg, "folder /nowhere/at"));
}

/* Another process puts a file there while ours is written. */
static void test_race(const char *folder)
{
    char path[300];
    output_file s = { 0 };
    err_ctx err;
    snprintf(path, sizeof path, "%s/race", folder);
    CHECK(output_file_open_new(&s, path, 10, &err) == 0 &&
          output_file_write(&s, "0123456789", 10, &err) == 0);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("theirs", f) >= 0 && fclose(f) == 0);
    CHECK(output_file_finish(&s, &err) == ERR_IO && strstr(err.msg, "File exists"));
    output_file_drop(&s);
    size_t n = 0;
    char *text = test_read_file(path, &n);
    CHECK(text && n == 6 && memcmp(text, "theirs", 6) == 0);
    mem_free(text);
}

static void test_no_room(const char *folder)
{
    char path[300];
    output_file s = { 0 };
    err_ctx err;
    snprintf(path, sizeof path, "%s/large", folder);
    CHECK(output_file_open_new(&s, path, (uint64_t)1 << 60, &err) == ERR_IO);
    CHECK_MSG(strncmp(err.msg, "needs ", 6) == 0 && strstr(err.msg, " left"), "%s", err.msg);
    output_file_drop(&s);
    CHECK(!is_there(path));
}

int main(int argc, char **argv)
{
    char folder[256];
    test_begin("sink", argc, argv);
    if (CHECK(mkdtemp(test_temp(folder, sizeof folder)) != NULL)) {
        test_new(folder);
        test_race(folder);
        test_no_room(folder);
        test_remove(folder);
    }
    return test_end();
}
