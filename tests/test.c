/* test.c - the harness of test.h. Checks are counted from one thread only. */
#include "tests/test.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/bytes.h"

static struct {
    const char *area, *golden, *unpacked;
    const char *with;                    /* "sim " with a simulated GPU, else "" */
    int n_site, skipped;
} run;

/* The checks of this program by file and line, in a hash table that is never full. */
enum { SITES = 1 << 14, SITE_REPORTS = 10 };
typedef struct site {
    const char *file;
    int line, failed;                    /* failed: how many times */
} site;
static site sites[SITES];

static site *site_of(const char *file, int line)
{
    const uint64_t hash = random_word((uintptr_t)file, (uint64_t)line);
    for (size_t i = hash % SITES;; i = (i + 1) % SITES) {
        if (sites[i].file == file && sites[i].line == line) return &sites[i];
        if (sites[i].file) continue;
        if (++run.n_site == SITES) {
            printf("FAIL: more than %d checks in one program\n", SITES - 1);
            exit(1);
        }
        sites[i] = (site){ file, line, 0 };
        return &sites[i];
    }
}

/* Looking for leaks takes four seconds for each program on some processors (it walks over all
 * addresses there are), and is left out where as much is allocated in the end as was to begin with. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>

size_t __sanitizer_get_current_allocated_bytes(void);    /* in a header of clang's alone */
static size_t held_first;

static void note_held(void)
{
    static char buffer[4096];            /* stdout's own would be one more */
    setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    held_first = __sanitizer_get_current_allocated_bytes();
}

int __lsan_is_turned_off(void) { return __sanitizer_get_current_allocated_bytes() == held_first; }
#else
static void note_held(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);    /* a program that hangs has printed what failed before */
}
#endif

void test_begin(const char *area, int argc, char **argv)
{
    const char *unpacked = getenv("MOE_TEST_UNPACKED");
    note_held();
    run.area = area;
    run.with = argc > 0 && strstr(argv[0], "/test_sim_") ? "sim " : "";
    run.golden = argc > 1 ? argv[1] : "tests/golden";
    run.unpacked = unpacked ? unpacked : "build/golden";
}

int test_end(void)
{
    int failed = 0;
    for (size_t i = 0; i < SITES; i++) {
        failed += sites[i].failed > 0;
        if (sites[i].failed > SITE_REPORTS)
            printf("FAIL %s:%d: %d times\n", sites[i].file, sites[i].line, sites[i].failed);
    }
    printf("%s%s %d passed, %d failed", run.with, run.area, run.n_site - failed, failed);
    if (run.skipped) printf(", %d skipped", run.skipped);
    printf("\n");
    return failed || run.n_site + run.skipped == 0;
}

const char *test_golden(void) { return run.golden; }

const char *test_unpacked(void) { return run.unpacked; }

int test_n_thread(int usual)
{
    const char *said = getenv("TEST_THREADS");
    const int n = said ? atoi(said) : 0;
    return n > 0 ? n : usual;
}

bool test_is_long(void)
{
    const char *said = getenv("TEST_LONG");
    return said && strcmp(said, "1") == 0;
}

int test_rounds(int many, int few) { return test_is_long() ? many : few; }

bool test_check(bool ok, const char *file, int line, const char *fmt, ...)
{
    site *check = site_of(file, line);
    va_list ap;
    if (ok) return true;
    if (check->failed++ >= SITE_REPORTS) return false;
    printf("FAIL %s:%d: ", file, line);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    return false;
}

void test_skip(const char *why)
{
    run.skipped++;
    printf("skip: %s\n", why);
}

bool test_map_refused(const err_ctx *err)
{
#ifdef __SANITIZE_THREAD__
    if (strstr(err->msg, "cannot map")) {
        test_skip("thread sanitizer: no address space for a file of real size");
        return true;
    }
#endif
    (void)err;
    return false;
}

void *test_alloc(size_t n, size_t size)
{
    void *p = mem_array(n ? n : 1, size);
    if (!p) {
        printf("FAIL: no memory for the test\n");
        exit(1);
    }
    return p;
}

void *test_read_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    long size = -1;
    if (f && fseek(f, 0, SEEK_END) == 0) size = ftell(f);
    if (size >= 0) {
        rewind(f);
        data = mem_alloc((size_t)size + 1);
        if (data && fread(data, 1, (size_t)size, f) != (size_t)size) {
            mem_free(data);
            data = NULL;
        }
    }
    if (f) fclose(f);
    if (!test_check(data != NULL, __FILE__, __LINE__, "cannot read %s", path)) return NULL;
    data[size] = 0;
    *bytes = (size_t)size;
    return data;
}

char *test_temp(char *dst, size_t cap)
{
    const char *dir = getenv("TMPDIR");
    snprintf(dst, cap, "%s/moe-%s-XXXXXX", dir && *dir ? dir : "/tmp", run.area);
    return dst;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

void test_remove(const char *folder)
{
    test_check(nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0, __FILE__, __LINE__,
               "cannot remove %s", folder);
}

const char *test_path(char *dst, size_t cap, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(dst, cap, fmt, ap);
    va_end(ap);
    return dst;
}

void test_fill(test_rng *r, void *to, size_t n)
{
    uint8_t *p = to;
    for (; n >= 8; n -= 8, p += 8) store_u64(p, test_rand(r));
    for (uint64_t word = n > 0 ? test_rand(r) : 0; n > 0; n--, word >>= 8) *p++ = (uint8_t)word;
}
