/* test.h - the test harness: counts checks, prints failures with their row, reports one line.
 *
 *   int main(int argc, char **argv) { test_begin("gguf", argc, argv); ...; return test_end(); }
 *
 * A check is one CHECK or CHECK_MSG in the source. However often it runs, for rows of a table or rounds
 * of a loop, it counts once, as passed if it never failed; only the first ten failures are printed.
 * A program without a check fails. Not thread-safe: checks belong to the main thread.
 * CHECK_MSG prints its text only on failure. Tests take the folder of golden data from
 * test_golden(), which is tests/golden unless argv[1] names another. */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include "loader/base.h"

void test_begin(const char *area, int argc, char **argv);
int test_end(void);                      /* prints "gguf 21 passed, 0 failed"; the exit code */
const char *test_golden(void);           /* folder with the golden data */
const char *test_unpacked(void);         /* folder where the build unpacked the .xz files */

/* Threads of a pool or an engine that is not made for one number of them: usual, or what
 * TEST_THREADS in the environment says. */
int test_n_thread(int usual);

/* Whether there is time: make check LONG=1, TEST_LONG=1 in the environment. Without it few
 * checks are left out, but most run with fewer seeds and combinations. */
bool test_is_long(void);
int test_rounds(int many, int few);      /* many if there is time */

bool test_check(bool ok, const char *file, int line, const char *fmt, ...) PRINTF_LIKE(4, 5);
void test_skip(const char *why);         /* counted and printed */

/* Sanitizers make arithmetic 20 times slower and allocate memory at any time. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#define CHECK(cond) test_check((cond), __FILE__, __LINE__, "%s", #cond)
#define CHECK_MSG(cond, ...) test_check((cond), __FILE__, __LINE__, __VA_ARGS__)

/* True, and counted as skipped, if this is a thread-sanitizer build and err says that a huge file
 * could not be mapped: the sanitizer leaves too little address space for it. */
bool test_map_refused(const err_ctx *err);

/* mem_array of at least one element; ends the program if there is no memory. */
void *test_alloc(size_t n, size_t size);

/* The whole file, or NULL after a failed check. Free with mem_free. */
void *test_read_file(const char *path, size_t *bytes);
/* dst = "<folder for temporary files>/moe-<area>-XXXXXX", for mkstemp or mkdtemp; returns dst */
char *test_temp(char *dst, size_t cap);
/* Removes the folder and all that is in it; a failed check if that is not possible. */
void test_remove(const char *folder);
/* dst = printf-style path; returns dst */
const char *test_path(char *dst, size_t cap, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Deterministic random numbers for tests. */
typedef struct test_rng { uint64_t s; } test_rng;
static inline uint64_t test_rand(test_rng *r)
{
    const uint64_t key = r->s;
    r->s += 0x9E3779B97F4A7C15u;         /* the same stream, one further on */
    return random_word(key, 0);
}

static inline uint32_t test_below(test_rng *r, uint32_t n)       /* 0 .. n-1 */
{
    return (uint32_t)((test_rand(r) >> 32) * n >> 32);
}

void test_fill(test_rng *r, void *to, size_t n);         /* random bytes, eight of each word */

#endif
