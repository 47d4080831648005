/* test_usage_profile.c - counts of a run: merged, saved and loaded; damage of every kind, failing
 * disks and memory.
 *
 * The disk is that of bad_disk.h. Jansson's allocations can fail, too. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "moe/profile_file.h"
#include "tests/bad_disk.h"
#include "tests/case_file.h"

/* ---- Jansson's memory ------------------------------------------------------------------------ */

static long n_until_null;                /* of Jansson's allocations; 0: all succeed */

static void *scarce(size_t n)
{
    return n_until_null > 0 && --n_until_null == 0 ? NULL : malloc(n);
}

/* ---- files of the test ----------------------------------------------------------------------- */

static char folder[256];

static const char *in_folder(const char *name)
{
    static char path[8][400];
    static int turn;
    turn = (turn + 1) % 8;
    return test_path(path[turn], sizeof path[0], "%s/%s", folder, name);
}

static int n_files(void)
{
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void put(const char *path, str_view text)
{
    FILE *f = fopen(path, "w");
    if (!CHECK_MSG(f != NULL, "cannot write %s", path)) return;
    CHECK(fwrite(text.ptr, 1, text.len, f) == text.len);
    fclose(f);
}

static bool file_is(const char *path, str_view text)
{
    size_t n;
    char *have = test_read_file(path, &n);
    const bool same = have && str_eq((str_view){ have, n }, text);
    mem_free(have);
    return same;
}

/* ---- profiles -------------------------------------------------------------------------------- */

static usage_profile *make(int n_layer, int n_expert)
{
    usage_profile *p = NULL;
    err_ctx err = { 0 };
    if (!CHECK_MSG(usage_profile_create(&p, n_layer, n_expert, &err) == 0, "%s", err.msg)) exit(1);
    return p;
}

/* An empty one of the same shape. */
static void clear(usage_profile **p)
{
    usage_profile *empty = make(usage_profile_layers(*p), usage_profile_experts(*p));
    usage_profile_free(*p);
    *p = empty;
}

static bool same_uses(const expert_uses *u, double hot, double cold, double raw)
{
    return u->hot == hot && u->cold == cold && u->raw == raw;
}

static bool same(const usage_profile *a, const usage_profile *b)
{
    const int n_layer = usage_profile_layers(a), n_expert = usage_profile_experts(a);
    if (usage_profile_layers(b) != n_layer || usage_profile_experts(b) != n_expert ||
        usage_profile_runs(a) != usage_profile_runs(b))
        return false;
    for (int l = 0; l < n_layer; l++)
        if (memcmp(usage_profile_layer(a, l), usage_profile_layer(b, l), sizeof(layer_uses)) ||
            memcmp(usage_profile_uses(a, l), usage_profile_uses(b, l),
                   (size_t)n_expert * sizeof(expert_uses)))
            return false;
    return true;
}

/* Every figure is one that the header promises. */
static bool holds(const usage_profile *p)
{
    for (int l = 0; l < usage_profile_layers(p); l++) {
        const layer_uses *n = usage_profile_layer(p, l);
        if (!(n->calls >= 0 && n->cold_slots >= 0 && n->hot_s >= 0 && n->cold_s >= 0 &&
              n->join_s >= 0 && n->calls <= 1e15 && n->cold_slots <= 1e15 && n->hot_s <= 1e15 &&
              n->cold_s <= 1e15 && n->join_s <= 1e15))
            return false;
        for (int e = 0; e < usage_profile_experts(p); e++) {
            const expert_uses *u = &usage_profile_uses(p, l)[e];
            if (!(u->hot >= 0 && u->cold >= 0 && u->hot + u->cold <= u->raw && u->raw <= 1e15 &&
                  u->hot * 64 == floor(u->hot * 64) && u->raw * 64 == floor(u->raw * 64)))
                return false;
        }
    }
    return true;
}

static void observe(usage_profile *p, test_rng *rng)
{
    for (int i = 0; i < 60; i++) {
        const int l = (int)test_below(rng, (uint32_t)usage_profile_layers(p));
        usage_profile_count(p, l, (int)test_below(rng, (uint32_t)usage_profile_experts(p)),
                            (expert_where)test_below(rng, 3), test_below(rng, 5));
        usage_profile_call(p, l, (int)test_below(rng, 9), test_below(rng, 1000) * 1e-6 / 3,
                           test_below(rng, 1000) * 1e-6 / 7, test_below(rng, 1000) * 1e-6 / 9);
    }
}

static void test_counts(void)
{
    usage_profile *p = make(2, 3), *q = make(2, 3);
    CHECK(usage_profile_runs(p) == 0 && usage_profile_layers(p) == 2 &&
          usage_profile_experts(p) == 3);
    mem_guard(true);                     /* in the token loop */
    usage_profile_count(p, 0, 1, EXPERT_HOT, 5);
    usage_profile_count(p, 0, 1, EXPERT_COLD, 2);
    usage_profile_count(p, 0, 1, EXPERT_EITHER, 9);
    usage_profile_count(p, 1, 2, EXPERT_COLD, 1);
    usage_profile_call(p, 1, 4, 0.5, 0.25, 0.125);
    usage_profile_call(p, 1, 3, NAN, -1, INFINITY);
    mem_guard(false);
    CHECK(same_uses(&usage_profile_uses(p, 0)[1], 5, 2, 16));
    CHECK(same_uses(&usage_profile_uses(p, 0)[0], 0, 0, 0));
    CHECK(same_uses(&usage_profile_uses(p, 1)[2], 0, 1, 1));
    const layer_uses *u = usage_profile_layer(p, 1);
    CHECK(u->calls == 2 && u->cold_slots == 7 && u->hot_s == 0.5 && u->cold_s == 0.25 &&
          u->join_s == 0.125);
    CHECK(usage_profile_layer(p, 0)->calls == 0 && usage_profile_runs(p) == 1);

    usage_profile_count(q, 0, 1, EXPERT_HOT, 3);
    usage_profile_call(q, 1, 1, 1, 2, 4);
    usage_profile_merge(p, q, 0.5);
    CHECK(same_uses(&usage_profile_uses(p, 0)[1], 5.5, 1, 11));
    CHECK(same_uses(&usage_profile_uses(p, 1)[2], 0, 0.5, 0.5));
    CHECK(u->calls == 2 && u->cold_slots == 4.5 && u->hot_s == 1.25 && u->cold_s == 2.125 &&
          u->join_s == 4.0625);
    CHECK(usage_profile_runs(p) == 2);
    clear(&q);              /* nothing new: rounded down to 1/64, and then gone */
    CHECK(usage_profile_runs(q) == 0);
    usage_profile_merge(p, q, 0.1);
    CHECK(same_uses(&usage_profile_uses(p, 1)[2], 0, 3.0 / 64, 3.0 / 64));
    CHECK(same_uses(&usage_profile_uses(p, 0)[1], 35.0 / 64, 6.0 / 64, 70.0 / 64));
    usage_profile_merge(p, q, 0.1);
    CHECK(same_uses(&usage_profile_uses(p, 1)[2], 0, 0, 0));
    CHECK(usage_profile_runs(p) == 2);
    usage_profile_merge(p, q, 0);
    CHECK(same_uses(&usage_profile_uses(p, 0)[1], 0, 0, 0) && u->hot_s == 0);
    usage_profile_count(p, 0, 0, EXPERT_HOT, 40);        /* 0.7 * 90 is 62.99... in doubles */
    usage_profile_count(p, 0, 0, EXPERT_COLD, 50);
    usage_profile_merge(p, q, 0.7);
    CHECK(same_uses(&usage_profile_uses(p, 0)[0], 28, 35, 63));
    usage_profile_free(p);
    usage_profile_free(q);
    usage_profile_free(NULL);
}

static void test_shapes(void)
{
    static const struct { int n_layer, n_expert; bool good; } rows[] = {
        { 1, 1, true }, { 48, 512, true }, { 1, 1000000, true }, { 1000, 1000, true },
        { 0, 8, false }, { 8, 0, false }, { -1, 8, false }, { 8, -1, false }, { 1001, 1000, false },
        { INT32_MAX, INT32_MAX, false }, { INT32_MIN, INT32_MIN, false },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        usage_profile *p;
        err_ctx err = { 0 };
        const int rc = usage_profile_create(&p, rows[i].n_layer, rows[i].n_expert, &err);
        CHECK_MSG(rc == (rows[i].good ? 0 : ERR_RANGE) && (p != NULL) == rows[i].good,
                  "%d layers of %d: %s", rows[i].n_layer, rows[i].n_expert, err.msg);
        usage_profile_free(p);
    }
    for (long fail = 1; fail <= 3; fail++) {
        usage_profile *p;
        mem_fail_after(fail);
        CHECK(usage_profile_create(&p, 3, 4, NULL) == ERR_NOMEM && !p);
        mem_fail_after(0);
    }
}

/* Merged many times, with any decay: what the header promises holds, and a reference in plain
 * doubles agrees but for what was rounded down. */
static void test_merges(void)
{
    static const double decays[] = { 0.9, 1, 0.3, 1.0 / 3, 0.999 };
    test_rng rng = { 5 };
    for (size_t d = 0; d < ARRAY_LEN(decays); d++) {
        usage_profile *all = make(3, 5), *run = make(3, 5);
        double reference[15] = { 0 }, seconds = 0;
        bool good = true;
        for (int i = 0; i < 100; i++) {
            clear(&run);
            observe(run, &rng);
            for (int k = 0; k < 15; k++)
                reference[k] = reference[k] * decays[d] + usage_profile_uses(run, k / 5)[k % 5].raw;
            seconds = seconds * decays[d] + usage_profile_layer(run, 2)->join_s;
            usage_profile_merge(all, run, decays[d]);
            good = good && holds(all);
        }
        const double room = decays[d] == 1 ? 0 : 1 / 64.0 / (1 - decays[d]);
        CHECK_MSG(good && usage_profile_runs(all) == 100, "decay %g", decays[d]);
        CHECK(usage_profile_layer(all, 2)->join_s == seconds);
        for (int k = 0; k < 15; k++) {
            const double raw = usage_profile_uses(all, k / 5)[k % 5].raw;
            CHECK_MSG(raw <= reference[k] + 1e-9 && raw >= reference[k] - room - 1e-9,
                      "decay %g, expert %d: %g, not %g", decays[d], k, raw, reference[k]);
        }
        usage_profile_free(all);
        usage_profile_free(run);
    }
}

/* ---- the file, as it should be --------------------------------------------------------------- */

static const profile_key small = { .model = 0xab, .n_layer = 2, .n_expert = 2, .name = "M" };

static const char good_profile[] =
    "{\"format\":\"moe-expert-profile\",\"version\":1,\"model\":\"00000000000000ab\","
    "\"name\":\"M\",\"n_layer\":2,\"n_expert\":2,\"runs\":3,\"layers\":["
    "{\"calls\":8,\"cold_slots\":5,\"hot_s\":0.5,\"cold_s\":1.25,\"join_s\":0,"
    "\"hot\":[1,2],\"cold\":[3,0.5],\"raw\":[4,6]},"
    "{\"calls\":9,\"cold_slots\":7,\"hot_s\":0,\"cold_s\":0,\"join_s\":1000,"
    "\"hot\":[10,20],\"cold\":[0,11],\"raw\":[10,32]}]}\n";

/* The text of a good file is what a profile with its figures is saved as. */
static void test_format(void)
{
    const char *path = in_folder("profile.json");
    usage_profile *p, *back;
    err_ctx err = { 0 };
    CHECK_MSG(profile_file_parse(&p, str_from(good_profile), &small, &err) == 0, "%s",
              err.msg);
    if (!p) return;
    CHECK(usage_profile_runs(p) == 3 && same_uses(&usage_profile_uses(p, 0)[1], 2, 0.5, 6) &&
          same_uses(&usage_profile_uses(p, 1)[0], 10, 0, 10));
    CHECK(usage_profile_layer(p, 0)->cold_slots == 5 && usage_profile_layer(p, 1)->calls == 9 &&
          usage_profile_layer(p, 0)->hot_s == 0.5 && usage_profile_layer(p, 0)->cold_s == 1.25 &&
          usage_profile_layer(p, 1)->join_s == 1000);
    CHECK(profile_file_load(&back, path, &small, &err) == 0 && !back);          /* no such file */
    CHECK(profile_file_load(&back, in_folder("no/file"), &small, &err) == 0 && !back);
    CHECK_MSG(profile_file_save(p, path, &small, &err) == 0, "%s", err.msg);
    CHECK(file_is(path, str_from(good_profile)));
    CHECK_MSG(profile_file_load(&back, path, &small, &err) == 0, "%s", err.msg);
    CHECK(back && same(p, back));
    usage_profile_free(back);
    usage_profile_free(p);
    unlink(path);
}

/* The order of a list survives a file. */
static void test_list(void)
{
    const int list[] = { 3, -1, 0, 4, 2 };
    const char *path = in_folder("list.json");
    usage_profile *p = make(2, 2), *back = NULL;
    int order[4];
    err_ctx err = { 0 };
    usage_profile_count_list(p, list, ARRAY_LEN(list));
    CHECK_MSG(profile_file_save(p, path, &small, &err) == 0 &&
              profile_file_load(&back, path, &small, &err) == 0, "%s", err.msg);
    CHECK(back && same(p, back) && usage_profile_list(back, order) == 3 && order[0] == 3 &&
          order[1] == 0 && order[2] == 2);
    usage_profile_free(p);
    usage_profile_free(back);
    unlink(path);
}

/* A model's size, decayed figures, a name that is no UTF-8. */
static void test_round_trip(void)
{
    profile_key key = { .model = UINT64_MAX - 1, .n_layer = 48, .n_expert = 512,
                        .name = "Qwen \"80B\"\n\xff /home/x" };
    const char *path = in_folder("large.json");
    usage_profile *p = make(48, 512), *run = make(48, 512), *back;
    test_rng rng = { 7 };
    struct stat st = { 0 };
    err_ctx err = { 0 };
    for (int l = 0; l < 48; l++)
        for (int e = 0; e < 512; e++)
            usage_profile_count(p, l, e, (expert_where)test_below(&rng, 3),
                                test_below(&rng, 100000));
    for (int i = 0; i < 10; i++) {
        clear(&run);
        observe(run, &rng);
        usage_profile_merge(p, run, 0.9);
    }
    usage_profile_count(p, 0, 0, EXPERT_HOT, 900000000000000);
    CHECK_MSG(profile_file_save(p, path, &key, &err) == 0, "%s", err.msg);
    memset(key.name, 0, sizeof key.name);                        /* is for people alone */
    CHECK_MSG(profile_file_load(&back, path, &key, &err) == 0, "%s", err.msg);
    CHECK(back && same(p, back));
    CHECK_MSG(stat(path, &st) == 0 && st.st_size < 1000000, "%lld bytes", (long long)st.st_size);
    usage_profile_free(back);
    unlink(path);

    usage_profile_count(p, 47, 511, EXPERT_HOT, 1000000000000001);   /* too large to load */
    CHECK(profile_file_save(p, path, &key, &err) == ERR_RANGE && strstr(err.msg, "layer 47") &&
          strstr(err.msg, "expert 511") && n_files() == 0);
    clear(&p);
    clear(&run);
    for (int i = 0; i < 2; i++) usage_profile_call(p, 3, 0, 1e308, 0, 0);
    CHECK(profile_file_save(p, path, &key, &err) == ERR_RANGE &&
          strstr(err.msg, "large.json: layer 3: hot_s is inf: more than 1e15"));
    usage_profile_merge(p, run, 0);
    CHECK(profile_file_save(p, path, &key, &err) == ERR_RANGE && n_files() == 0 &&
          strstr(err.msg, "nan: not a number"));
    usage_profile_free(p);
    usage_profile_free(run);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static bool one_line(const err_ctx *err, int rc)
{
    for (const char *c = err->msg; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) return false;
    return err->code == rc && err->msg[0];
}

/* False: not as the header promises. */
static bool load_profile(str_view text, int *rc, err_ctx *err)
{
    usage_profile *p = (usage_profile *)&disk;           /* must be set in any case */
    *rc = profile_file_parse(&p, text, &small, err);
    const bool ok = *rc == 0 ? p && holds(p) : !p && one_line(err, *rc);
    usage_profile_free(p);
    return ok;
}

/* Rows of "text to replace | its replacement | part of the message, empty if it is good | why". */
static void check_damage(void)
{
    static case_rows rows;
    if (!case_rows_read(&rows, "usage_profile.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i];
        char dst[2000];
        err_ctx err = { 0 };
        int rc;
        case_replace(dst, sizeof dst, good_profile, cells[0], cells[1]);
        const bool ok = load_profile(str_from(dst), &rc, &err);
        CHECK_MSG(ok && (cells[2][0] ? rc < 0 && strstr(err.msg, cells[2]) : rc == 0), "%s: %d, %s",
                  cells[3], rc, err.msg);
    }
    case_rows_free(&rows);
}

static void test_damage(void)
{
    static const char *const texts[] = { "", " ", "[]", "{}", "null", "1", "\"x\"", "[1", "{\"" };
    err_ctx err = { 0 };
    int rc;
    check_damage();
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        CHECK_MSG(load_profile(str_from(texts[i]), &rc, &err) && rc == ERR_FORMAT, "%s", texts[i]);
    CHECK(load_profile((str_view){ 0 }, &rc, &err) && rc == ERR_FORMAT);
    CHECK(load_profile((str_view){ good_profile, sizeof good_profile }, &rc, &err) &&
          rc == ERR_FORMAT);
}

static void test_sizes(void)
{
    const size_t n = 64 << 20;
    char *text = test_alloc(n, 1);
    const char *path = in_folder("huge.json");
    usage_profile *p;
    int rc;
    err_ctx err = { 0 };
    memset(text, '[', n);                /* would be deep, if anybody looked */
    CHECK(load_profile((str_view){ text, n }, &rc, &err) && strstr(err.msg, "67108864 bytes"));
    for (size_t i = 500; i <= 5000; i += 500)            /* not refused for its length alone */
        CHECK(load_profile((str_view){ text, i }, &rc, &err) && rc == ERR_FORMAT);
    mem_free(text);

    put(path, str_from(good_profile));
    CHECK(truncate(path, (off_t)n + 1) == 0);            /* a hole: takes no room */
    CHECK(profile_file_load(&p, path, &small, &err) == ERR_FORMAT && !p &&
          strstr(err.msg, "huge.json: 67108865 bytes: more than 67108864"));
    unlink(path);
    CHECK(profile_file_load(&p, folder, &small, &err) == ERR_FORMAT && !p &&
          strstr(err.msg, "not a file"));
    CHECK(mkfifo(path, 0600) == 0);      /* no program writes into it */
    CHECK(profile_file_load(&p, path, &small, &err) == ERR_FORMAT && !p);
    unlink(path);
}

/* ---- mutations ------------------------------------------------------------------------------- */

/* Damages a text somewhere; returns its new length. */
static size_t mutate(char *text, size_t n, size_t cap, test_rng *rng)
{
    static const char *const pieces[] = {
        "-", "0", "9", "1e15", "1e16", "-1", "0.5", "1e-320", "1e308", "NaN", "null", "true", "\"",
        "[", "]", "{", "}", ",", ":", "[]", "{}", "\\u0000", "\"hot\":", "\"raw\":", "\\", "\n",
        "9223372036854775807", "9223372036854775808", "\xc3\xa9", "\xff", "0.015625", "[1,2]",
    };
    const size_t at = test_below(rng, (uint32_t)n), left = n - at;
    const size_t some = 1 + test_below(rng, left < 20 ? (uint32_t)left : 20);
    const char *piece = pieces[test_below(rng, ARRAY_LEN(pieces))];
    const size_t len = strlen(piece);
    switch (test_below(rng, 6)) {
    case 0:                              /* another byte */
        text[at] = (char)test_below(rng, 256);
        return n;
    case 1:                              /* another digit, where there is one */
        for (size_t i = at; i < n; i++)
            if (text[i] >= '0' && text[i] <= '9') {
                text[i] = (char)('0' + test_below(rng, 10));
                break;
            }
        return n;
    case 2:                              /* some bytes fewer */
        memmove(text + at, text + at + some, left - some);
        return n - some;
    case 3:                              /* some bytes twice */
        if (n + some > cap) return n;
        memmove(text + at + some, text + at, left);
        return n + some;
    case 4:                              /* a piece more */
        if (n + len > cap) return n;
        memmove(text + at + len, text + at, left);
        memcpy(text + at, piece, len);
        return n + len;
    default:                             /* a piece instead of a number */
        for (size_t i = at; i < n && n + len <= cap; i++)
            if (text[i] >= '0' && text[i] <= '9') {
                memmove(text + i + len, text + i + 1, n - i - 1);
                memcpy(text + i, piece, len);
                return n - 1 + len;
            }
        return n;
    }
}

static void test_mutations(int n)
{
    test_rng rng = { 2026 };
    int n_bad = 0, n_good = 0, n_refused = 0;
    const size_t good_len = strlen(good_profile);
    for (int i = 0; i < n; i++) {
        char text[4096];
        err_ctx err = { 0 };
        size_t len = good_len;
        int rc;
        memcpy(text, good_profile, len);
        for (uint32_t k = 1 + test_below(&rng, 3); k > 0 && len > 0; k--)
            len = mutate(text, len, sizeof text, &rng);
        char *exact = test_alloc(len, 1);                /* a sanitizer sees a byte too far */
        memcpy(exact, text, len);
        const bool ok = load_profile((str_view){ exact, len }, &rc, &err);
        mem_free(exact);
        n_good += rc == 0;
        n_refused += rc < 0;
        if (!ok && ++n_bad <= 3)
            CHECK_MSG(false, "mutation %d: %d, %s: %.*s", i, rc, err.msg, (int)len, text);
    }
    CHECK_MSG(n_bad == 0 && n_good > n / 100 && n_refused > n / 2,
              "%d wrong, %d good, %d refused", n_bad, n_good, n_refused);
}

/* ---- failing disks and memory ---------------------------------------------------------------- */

static usage_profile *kept;              /* what is saved below */

static int open_profile(const char *path, err_ctx *err)
{
    usage_profile *p;
    const int rc = profile_file_load(&p, path, &small, err);
    CHECK((p != NULL) == (rc == 0));
    usage_profile_free(p);
    return rc;
}

/* Every call of a save fails once: the old file stays, and no other file is left. */
static void test_disks(void)
{
    const char *path = in_folder("kept.json"), *old = good_profile;
    int fail = 1, rc;
    put(path, str_from(old));
    for (;; fail++) {
        err_ctx err = { 0 };
        disk.n_call = 0;
        disk.fail_at = fail;
        rc = profile_file_save(kept, path, &small, &err);
        const int n_call = disk.n_call;
        disk.fail_at = 0;
        if (n_call < fail) break;
        CHECK_MSG(rc == ERR_IO && one_line(&err, rc) &&
                  strstr(err.msg, "kept.json: cannot write: "), "call %d: %s", fail, err.msg);
        CHECK_MSG(file_is(path, str_from(old)) && n_files() == 1, "call %d: not as it was", fail);
    }
    CHECK_MSG(rc == 0 && fail == 4, "%d calls", fail - 1);       /* write, fsync, rename */
    CHECK(!file_is(path, str_from(old)) && n_files() == 1);
    size_t n;
    char *text = test_read_file(path, &n);
    put(path, str_from(old));
    disk.n_call = 0;
    disk.lazy = true;
    CHECK(profile_file_save(kept, path, &small, NULL) == 0 && file_is(path, (str_view){ text, n }));
    disk.n_call = 0;
    disk.lazy = true;
    CHECK(open_profile(path, NULL) == 0);
    disk.lazy = false;
    for (int cut = 0; cut < 2; cut++) {
        err_ctx err = { 0 };
        disk.n_call = 0;
        disk.fail_at = 1;
        disk.cut = cut;
        rc = open_profile(path, &err);
        disk.fail_at = 0;
        disk.cut = false;
        CHECK_MSG(rc == (cut ? ERR_FORMAT : ERR_IO) && strstr(err.msg, "kept.json: "), "%s",
                  err.msg);
    }
    mem_free(text);
    err_ctx err = { 0 };
    CHECK(profile_file_save(kept, "/proc/none/kept.json", &small, &err) == ERR_IO &&
          strstr(err.msg, "/proc/none"));
    CHECK(profile_file_save(kept, folder, &small, &err) == ERR_IO &&
          n_files() == 1); /* a folder is in the way */
    unlink(path);
    char left[300];
    test_path(left, sizeof left, "ls -d '%s'.* >/dev/null 2>&1", folder);
    CHECK_MSG(system(left) != 0, "a file is left next to %s", folder);
}

/* Every allocation fails once: ours, and Jansson's while it writes. (While it reads, Jansson 2.14
 * itself does not survive that.) */
static void test_memory(void)
{
    static const struct { bool ours, saving; int least; } rows[] = {
        { true, false, 2 }, { true, true, 2 }, { false, true, 20 },
    };
    const char *path = in_folder("kept.json"), *old = good_profile;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int n_failed = 0;
        for (int rc = -1; rc < 0 && n_failed < 1000; n_failed += rc < 0) {
            err_ctx err = { 0 };
            put(path, str_from(old));
            if (rows[i].ours) mem_fail_after(n_failed + 1);
            else n_until_null = n_failed + 1;
            rc = rows[i].saving ? profile_file_save(kept, path, &small, &err)
                                : open_profile(path, &err);
            const bool reached = !rows[i].ours && n_until_null == 0;
            mem_fail_after(0);
            n_until_null = 0;
            CHECK_MSG(reached ? rc == ERR_NOMEM : rc == 0 || rc == ERR_NOMEM, "row %zu, %d: %d, %s",
                      i, n_failed, rc, err.msg);
            CHECK_MSG(n_files() == 1 && (rc == 0 || file_is(path, str_from(old))), "row %zu, %d", i,
                      n_failed);
        }
        CHECK_MSG(n_failed >= rows[i].least && n_failed < 1000, "row %zu: %d", i, n_failed);
    }
    unlink(path);
}

int main(int argc, char **argv)
{
    test_begin("usage_profile", argc, argv);
    json_set_alloc_funcs(scarce, free);
    test_counts();
    test_shapes();
    test_merges();
    if (CHECK(mkdtemp(test_temp(folder, sizeof folder)) != NULL)) {
        test_format();
        test_round_trip();
        test_damage();
        test_sizes();
        test_list();
        kept = make(2, 2);
        usage_profile_count(kept, 1, 1, EXPERT_COLD, 3);
        test_disks();
        test_memory();
        usage_profile_free(kept);
        test_remove(folder);
    }
    test_mutations(test_rounds(40000, 8000));
    return test_end();
}
