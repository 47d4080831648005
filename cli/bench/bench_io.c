/* bench_io.c - moe-bench io: how fast a file's drive reads random pieces of it.
 *
 * Experts that are in neither VRAM nor RAM come from here, so this is what decoding can at best
 * take from the drive. Read with the engine's own reader (tiers/reader.h), at places that are new
 * each time. Time is counted from a completion, after a first round, to a completion: as much is in
 * flight at the end as was at the start. */
#include "cli/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cli/args.h"
#include "cli/bench/bench_memory.h"
#include "cli/bench/bench_model.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "tiers/drive.h"
#include "tiers/pages.h"

typedef struct io_options {
    const char *model;
    double seconds;
    bool json;
} io_options;

#define FIELD(f) offsetof(io_options, f)
static const arg_option options[] = {
    { "model", 'm', ARG_NEEDED_TEXT, FIELD(model), "FILE", "MOE_MODEL", 0, 0,
      "The file to read; any will do, a large one is best" },
    { "seconds", 0, ARG_FLOAT, FIELD(seconds), "S", NULL, 0.001, 10,
      "Time for each figure. Default: 0.3" },
    { "json", 0, ARG_FLAG, FIELD(json), NULL, NULL, 0, 0, "JSON on stdout instead of a table" },
};

static const arg_spec spec = {
    .usage = "moe-bench io [-m] FILE [options]",
    .about = "Measures how fast the drive gives random pieces of a file, past the page cache: for\n"
             "several sizes, and numbers of reads in flight.",
    .options = options,
    .n_option = ARRAY_LEN(options),
    .operands = "FILE",
    .epilogue = "default    what the engine uses: larger reads are cut into pieces of that size\n"
                "straight   to memory that the drive has not written to before\n"
                "bounced    through a buffer of a few megabytes, from which threads copy: faster\n"
                "           on some virtual drives. The engine does so if that is a tenth faster\n"
                "GB/s       10^9 bytes a second. A drive that has its own memory may give what it\n"
                "           has just read faster: the file should be larger than that",
};

enum { MAX_DEPTH = 32, MAX_SIZES = 5, MAX_POINTS = 64 };
enum { SMALL_FILE = 1 << 30 };           /* a drive may hold this much in its own memory */
enum { SLAB = 576 << 10 };               /* an expert's matrix */

static const uint32_t sizes[MAX_SIZES] = { 64 << 10, 256 << 10, 576 << 10, 1 << 20, 4 << 20 };
static const int depths[] = { 1, 2, 4, 8, 16, MAX_DEPTH };
static const int thread_counts[] = { 1, 4, READER_THREADS, 16 };

/* One figure. */
typedef struct io_point {
    reader_kind kind;
    bool buffered;
    uint32_t bytes;                      /* of a read */
    int depth;
    double gb_s;
} io_point;

typedef struct io_bench {
    const io_options *opt;
    const char *path;
    uint64_t file_bytes, n_page;         /* whole pages */
    uint32_t sizes[MAX_SIZES];
    int n_size;
    bool uring;
    char name[32];                       /* reader_name of what the engine would open */
    uint8_t *memory;
    size_t memory_bytes;
    uint64_t n_random;                   /* words used of the stream of random numbers */
    io_point points[MAX_POINTS];
    int n_point;
    drive_speed spread;                  /* zeros: not measured */
} io_bench;

/* ---- one figure ------------------------------------------------------------------------------ */

/* The next read of place slot: anywhere in the file, at a page. */
static read_job next_job(io_bench *b, const io_point *p, int slot)
{
    const uint64_t room = b->n_page - p->bytes / READER_PAGE + 1;
    const uint64_t page = random_word(1, b->n_random++) % room;
    return (read_job){ .offset = page * READER_PAGE, .bytes = p->bytes, .tag = (uint64_t)slot,
                       .to = b->memory + (size_t)slot * p->bytes };
}

static int measure_open(io_bench *b, io_point *p, reader *r, err_ctx *err)
{
    const uint64_t want_ns = (uint64_t)(b->opt->seconds * 1e9);
    uint64_t tags[MAX_DEPTH], bytes = 0, start = 0, now = 0, n_done = 0;
    read_job jobs[MAX_DEPTH];

    for (int i = 0; i < p->depth; i++) jobs[i] = next_job(b, p, i);
    int rc = reader_submit(r, jobs, p->depth, err);
    while (rc >= 0 && (start == 0 || now - start < want_ns)) {
        if (interrupted()) return err_set(err, ERR_STOPPED, "stopped");
        const int n = reader_wait(r, tags, p->depth, 1, err);
        if (n < 0) return n;
        now = clock_ns();
        if (start > 0) bytes += (uint64_t)n * p->bytes;
        n_done += (uint64_t)n;
        if (start == 0 && n_done >= (uint64_t)p->depth) start = now;
        for (int i = 0; i < n; i++) jobs[i] = next_job(b, p, (int)tags[i]);
        rc = reader_submit(r, jobs, n, err);
    }
    if (rc == 0) p->gb_s = (double)bytes / (double)(now - start);
    return rc;
}

/* Measures, and keeps the point. */
static int measure_point(io_bench *b, io_point p, err_ctx *err)
{
    const reader_options o = { .kind = p.kind, .depth = p.depth, .piece = p.bytes,
                               .buffered = p.buffered };
    reader *r;
    int rc = reader_open(&r, &b->path, 1, &o, NULL, err);
    if (rc < 0) return rc;
    console_status("reading %" PRIu32 " KiB at a time, %d in flight", p.bytes >> 10, p.depth);
    reader_register(r, b->memory, (uint64_t)p.depth * p.bytes);
    rc = measure_open(b, &p, r, err);
    reader_close(r);
    console_status_clear();
    if (rc == 0) b->points[b->n_point++] = p;
    return rc;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static const io_point *find_point(const io_bench *b, reader_kind kind, uint32_t bytes, int depth)
{
    for (int i = 0; i < b->n_point; i++) {
        const io_point *p = &b->points[i];
        if (p->kind == kind && !p->buffered && p->bytes == bytes && p->depth == depth) return p;
    }
    return NULL;
}

/* The engine's own way, and the fastest. */
static reader_kind engine_kind(const io_bench *b)
{
    return b->uring ? READER_URING : READER_PREAD;
}

static uint32_t engine_piece(const io_bench *b)
{
    uint32_t piece = b->sizes[0];        /* the largest that was measured and is not above it */
    for (int i = 0; i < b->n_size; i++)
        if (b->sizes[i] <= READER_PIECE) piece = b->sizes[i];
    return piece;
}

static const io_point *engine_point(const io_bench *b)
{
    return find_point(b, engine_kind(b), engine_piece(b), b->uring ? READER_DEPTH : READER_THREADS);
}

static const io_point *best_point(const io_bench *b)
{
    const io_point *best = NULL;
    for (int i = 0; i < b->n_point; i++)
        if (!b->points[i].buffered && (!best || b->points[i].gb_s > best->gb_s))
            best = &b->points[i];
    return best;
}

static const char *text_size(char *dst, size_t cap, uint32_t bytes)
{
    if (bytes % (1 << 20) == 0) snprintf(dst, cap, "%" PRIu32 " MiB", bytes >> 20);
    else snprintf(dst, cap, "%" PRIu32 " KiB", bytes >> 10);
    return dst;
}

static void print_heading(const char *kind, const char *of_depth, const int *counts, int n)
{
    printf("\n%-10s %s\nread      ", kind, of_depth);
    for (int i = 0; i < n; i++) printf(" %7d", counts[i]);
    printf("\n");
    fflush(stdout);
}

static int measure_row(io_bench *b, reader_kind kind, uint32_t bytes, const int *counts, int n,
                       err_ctx *err)
{
    char size[16];
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = measure_point(b, (io_point){ kind, false, bytes, counts[i], 0 }, err);
    if (rc < 0 || b->opt->json) return rc;
    printf("%-10s", text_size(size, sizeof size, bytes));
    for (int i = 0; i < n; i++) printf(" %7.2f", b->points[b->n_point - n + i].gb_s);
    printf("\n");
    fflush(stdout);
    return 0;
}

static int measure_all(io_bench *b, err_ctx *err)
{
    const uint32_t piece = engine_piece(b);
    int rc = 0;
    if (b->uring) {
        if (!b->opt->json)
            print_heading("io_uring", "reads in flight; GB/s", depths, ARRAY_LEN(depths));
        for (int i = 0; i < b->n_size && rc == 0; i++)
            rc = measure_row(b, READER_URING, b->sizes[i], depths, ARRAY_LEN(depths), err);
    }
    if (rc == 0 && !b->opt->json)
        print_heading("pread", "threads; GB/s", thread_counts, ARRAY_LEN(thread_counts));
    if (rc == 0)
        rc = measure_row(b, READER_PREAD, piece, thread_counts, ARRAY_LEN(thread_counts), err);
    if (rc == 0)
        rc = measure_point(b, (io_point){ engine_kind(b), true, piece, READER_DEPTH, 0 }, err);
    return rc;
}

/* As experts are read into their cache. Without these figures the others are as good. */
static int measure_spread(io_bench *b, err_ctx *err)
{
    drive_task t = { .path = b->path, .file_bytes = b->file_bytes, .one = SLAB,
                     .memory_bytes = DRIVE_MEMORY, .seconds = b->opt->seconds,
                     .watch = interrupt_watch };
    int rc = pool_create(&t.team, 0, err);
    if (rc < 0) return rc;
    console_status("reading %d KiB at a time to memory all over the place", SLAB >> 10);
    rc = drive_measure(&b->spread, &t, err);
    console_status_clear();
    pool_free(t.team);
    if (rc == 0 || rc == ERR_STOPPED) return rc;
    if (rc != ERR_RANGE) console_note("%s", err->msg);   /* a small file: tell_limits has said so */
    return 0;
}

static void print_point(const char *name, const io_point *p)
{
    char size[16];
    printf("%-10s %.2f GB/s: %s, reads of %s, %d in flight", name, p->gb_s,
           p->kind == READER_URING ? "io_uring" : "pread", text_size(size, sizeof size, p->bytes),
           p->depth);
}

static void print_spread(const io_bench *b)
{
    const bool bounce = drive_wants_bounce(&b->spread);
    char size[16];
    printf("%-10s %.2f GB/s: reads of %s to memory new to the drive\n", "straight",
           b->spread.straight * 1e-9, text_size(size, sizeof size, SLAB));
    printf("%-10s %.2f GB/s: the same, through a buffer of a few megabytes%s\n", "bounced",
           b->spread.bounced * 1e-9, bounce ? ", which is worth it here" : "");
}

static void print_summary(const io_bench *b)
{
    const io_point *best = best_point(b), *own = engine_point(b);
    printf("\n");
    print_point("buffered", &b->points[b->n_point - 1]);
    printf(" (what of the file is in RAM comes from there)\n");
    print_point("best", best);
    printf("\n");
    print_point("default", own);
    printf(" (%.0f%% of best)\n", 100 * own->gb_s / best->gb_s);
    if (b->spread.straight > 0) print_spread(b);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *point_json(const io_point *p)
{
    return json_pack("{s:s, s:b, s:I, s:i, s:f}",
                     "kind", p->kind == READER_URING ? "io_uring" : "pread",
                     "buffered", p->buffered, "bytes", (json_int_t)p->bytes, "depth", p->depth,
                     "gb_s", p->gb_s);
}

static json_t *spread_json(const drive_speed *s)
{
    if (s->straight <= 0) return json_null();
    return json_pack("{s:f, s:f, s:b}", "straight_gb_s", s->straight * 1e-9,
                     "bounced_gb_s", s->bounced * 1e-9, "bounced_is_worth_it",
                     drive_wants_bounce(s));
}

/* NULL if there is no memory for it. */
static json_t *bench_json(const io_bench *b)
{
    const io_point *best = best_point(b), *own = engine_point(b);
    json_t *rows = json_array();
    char shown[1024];
    for (int i = 0; i < b->n_point; i++)
        if (json_array_append_new(rows, point_json(&b->points[i])) < 0) {
            json_decref(rows);
            return NULL;
        }
    return json_pack("{s:s, s:I, s:s, s:o, s:o, s:o, s:f, s:o}",
                     "file", ESC(shown, str_from(b->path)),
                     "file_bytes", (json_int_t)b->file_bytes, "reader", b->name, "rows", rows,
                     "best", point_json(best), "default", point_json(own),
                     "percent_of_best", 100 * own->gb_s / best->gb_s,
                     "spread", spread_json(&b->spread));
}

/* ---- the verb -------------------------------------------------------------------------------- */

/* Sizes that fit into the file: with a very small one, all of it. */
static void choose_sizes(io_bench *b)
{
    b->n_page = b->file_bytes / READER_PAGE;
    for (int i = 0; i < MAX_SIZES; i++)
        if (sizes[i] / READER_PAGE <= b->n_page) b->sizes[b->n_size++] = sizes[i];
    if (b->n_size == 0) b->sizes[b->n_size++] = (uint32_t)(b->n_page * READER_PAGE);
}

/* What a person should know about the figures before they come. */
static void tell_limits(const io_bench *b, const char *note)
{
    char size[32], largest[16];
    if (*note) console_note("%s", note);
    if (b->file_bytes >= SMALL_FILE) return;
    console_note("the file has only %s: the drive may give it from its own memory",
                 text_bytes(size, sizeof size, b->file_bytes));
    if (b->n_size < MAX_SIZES)
        console_note("reads of %s are the largest that fit; others are left out",
                     text_size(largest, sizeof largest, b->sizes[b->n_size - 1]));
}

/* Looks at the file as the engine would open it. */
static int look(io_bench *b, err_ctx *err)
{
    const reader_options own = { .kind = READER_AUTO };
    const char *note;
    char shown[256];
    struct stat st;
    reader *r;
    ESC(shown, str_from(b->path));
    const int rc = reader_open(&r, &b->path, 1, &own, &note, err);
    if (rc < 0) return rc;
    snprintf(b->name, sizeof b->name, "%s", reader_name(r));
    b->uring = b->name[0] == 'i';
    reader_close(r);
    if (stat(b->path, &st) < 0) return err_sys(err, "%s: cannot look at it", shown);
    b->file_bytes = (uint64_t)st.st_size;
    if (b->file_bytes < READER_PAGE)
        return err_set(err, ERR_RANGE, "%s: %" PRIu64 " bytes are too few to measure with", shown,
                       b->file_bytes);
    choose_sizes(b);
    tell_limits(b, note);
    b->memory_bytes = (size_t)b->sizes[b->n_size - 1] * MAX_DEPTH;
    return 0;
}

static int run(io_bench *b)
{
    char size[32], shown[256];
    void *memory = NULL;
    err_ctx err;
    int rc = look(b, &err);
    if (rc == 0) {
        const int no_room = bench_memory_fits(b->memory_bytes, "reading");
        if (no_room) return no_room;
        rc = pages_map(&memory, b->memory_bytes, PAGES_HUGE, &err);
    }
    b->memory = memory;
    if (rc == 0 && !b->opt->json)
        printf("file       %s, %s\nreader     %s\n", ESC(shown, str_from(b->path)),
               text_bytes(size, sizeof size, b->file_bytes), b->name);
    if (rc == 0) rc = measure_all(b, &err);
    pages_unmap(memory, b->memory_bytes);
    if (rc == 0) rc = measure_spread(b, &err);
    if (rc < 0) return bench_model_fail("io", rc, &err);
    if (!b->opt->json) {
        print_summary(b);
        return console_finish();
    }
    if (console_json(bench_json(b), JSON_COMPACT | JSON_REAL_PRECISION(6))) return console_finish();
    console_error("out of memory");
    return 1;
}

int cmd_bench_io(int argc, char **argv)
{
    static io_bench b;
    io_options opt = { .seconds = 0.3 };
    const int rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);

    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    b.path = opt.model;
    b.opt = &opt;
    interrupt_install();
    return run(&b);
}
