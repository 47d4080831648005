/* fuzz_main.c - runs a fuzz target without a fuzzing library: mutates seeds for some seconds.
 *
 *   fuzz_gguf [--seconds N] [--seed N] FILE-OR-FOLDER...
 *
 * The input ends where a page without access begins, so one byte too many faults even without a
 * sanitizer. A crash or an input that takes over ten seconds is written to fuzz-crash.bin in the
 * current folder and ends the run with exit code 1. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/base.h"
#include "tests/test.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_SEEDS = 512, SEED_CAP = 128 << 10, INPUT_CAP = SEED_CAP + 4096, HANG_SECONDS = 60 };

typedef struct seed { uint8_t *data; size_t n; } seed;

static seed seeds[MAX_SEEDS];
static int n_seed;
static uint8_t *current;                 /* the input being run, for the crash handler */
static size_t current_bytes;

static void on_crash(int sig)
{
    static const char text[] = "fuzz: crash or hang; the input is in fuzz-crash.bin\n"
                               "fuzz 0 passed, 1 failed\n";
    const int fd = open("fuzz-crash.bin", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)sig;
    if (fd < 0 || write(fd, current, current_bytes) < 0 || write(1, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(1);
}

/* Only what is small enough to be run thousands of times a second. */
static void add_file(const char *path)
{
    struct stat st;
    FILE *f;
    seed *s = &seeds[n_seed];
    if (n_seed == MAX_SEEDS || stat(path, &st) < 0 || st.st_size > SEED_CAP) return;
    if (!(f = fopen(path, "rb"))) return;
    s->data = malloc((size_t)st.st_size + 1);
    if (s->data && (s->n = fread(s->data, 1, (size_t)st.st_size, f)) > 0) n_seed++;
    fclose(f);
}

static void add_path(const char *path)
{
    struct dirent *entry;
    DIR *d = opendir(path);
    char name[1024];
    if (!d) {
        add_file(path);
        return;
    }
    while ((entry = readdir(d)))
        if (entry->d_name[0] != '.')
            add_file(test_path(name, sizeof name, "%s/%s", path, entry->d_name));
    closedir(d);
}

/* One random edit of the n bytes at p, which has room for INPUT_CAP. Returns the new length. */
static size_t mutate(test_rng *r, uint8_t *p, size_t n)
{
    static const uint64_t nasty[] = {
        0, 1, 2, 4, 9, 31, 32, 33, 255, 256, 65535, 1u << 31, 0xFFFFFFFFu,
        1ull << 32, 1ull << 61, 1ull << 62, 1ull << 63, UINT64_MAX, UINT64_MAX - 31,
    };
    const size_t at = n ? test_below(r, (uint32_t)n) : 0;
    const size_t room = n - at;
    const seed *other = &seeds[test_below(r, (uint32_t)n_seed)];
    uint64_t v = nasty[test_below(r, ARRAY_LEN(nasty))];
    size_t len;

    switch (test_below(r, 9)) {
    case 0: if (n) p[at] ^= (uint8_t)(1u << test_below(r, 8)); return n;
    case 1: if (n) p[at] = (uint8_t)test_rand(r); return n;
    case 2: memcpy(p + at, &v, room < 4 ? room : 4); return n;
    case 3: memcpy(p + at, &v, room < 8 ? room : 8); return n;
    case 4:                              /* a number a little off */
        if (room >= 8) {
            memcpy(&v, p + at, 8);
            v += test_below(r, 17) - 8u;
            memcpy(p + at, &v, 8);
        }
        return n;
    case 5: return at;                   /* cut */
    case 6:                              /* remove a run */
        len = test_below(r, 64);
        if (len > room) len = room;
        memmove(p + at, p + at + len, room - len);
        return n - len;
    case 7:                              /* double a run */
        len = 1 + test_below(r, 64);
        if (len > room || n + len > INPUT_CAP) return n;
        memmove(p + at + len, p + at, room);
        return n + len;
    default:                             /* a run of another seed over this one */
        len = 1 + test_below(r, 256);
        if (len > room) len = room;
        if (len > other->n) len = other->n;
        memcpy(p + at, other->data + test_below(r, (uint32_t)(other->n - len + 1)), len);
        return n;
    }
}

/* Pages of INPUT_CAP bytes with a guard page after them. */
static uint8_t *map_guarded(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = (size_t)size_align(INPUT_CAP, page);
    uint8_t *base = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                         -1, 0);
    if (base == MAP_FAILED || mprotect(base + bytes, page, PROT_NONE) < 0) return NULL;
    return base + bytes;
}

static void run_one(const uint8_t *bytes, size_t n, uint8_t *guard)
{
    current = guard - n;
    current_bytes = n;
    memcpy(current, bytes, n);
    alarm(HANG_SECONDS);
    LLVMFuzzerTestOneInput(current, n);
}

int main(int argc, char **argv)
{
    static uint8_t work[INPUT_CAP + 8];
    uint64_t end_ns, runs = 0;
    double seconds = 4;
    test_rng r = { 1 };
    uint8_t *guard = map_guarded();

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--seconds") && i + 1 < argc) seconds = strtod(argv[++i], NULL);
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc) r.s = strtoull(argv[++i], NULL, 10);
        else add_path(argv[i]);
    }
    if (!guard || n_seed == 0) {
        printf("fuzz: no seeds of at most %d bytes\nfuzz 0 passed, 1 failed\n", SEED_CAP);
        return 1;
    }
    signal(SIGSEGV, on_crash);
    signal(SIGBUS, on_crash);
    signal(SIGABRT, on_crash);
    signal(SIGFPE, on_crash);
    signal(SIGALRM, on_crash);
    end_ns = clock_ns() + (uint64_t)(seconds * 1e9);
    for (int i = 0; i < n_seed; i++) run_one(seeds[i].data, seeds[i].n, guard);
    for (; clock_ns() < end_ns; runs++) {
        const seed *s = &seeds[test_below(&r, (uint32_t)n_seed)];
        size_t n = s->n;
        memcpy(work, s->data, n);
        for (uint32_t k = 1 + test_below(&r, 6); k > 0; k--) n = mutate(&r, work, n);
        run_one(work, n, guard);
    }
    alarm(0);                            /* looking for leaks at exit may take longer */
    for (int i = 0; i < n_seed; i++) free(seeds[i].data);
    printf("fuzz: %llu executions of %d seeds in %g s\n", (unsigned long long)runs, n_seed, seconds);
    printf("fuzz 1 passed, 0 failed\n");
    return 0;
}
