/* test_routing_trace.c - traces of routing: what is written is what is read, whatever the batches;
 * files that are cut, foreign, damaged or absurd; disks and memory that fail. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loader/bytes.h"
#include "moe/routing_trace.h"
#include "tests/test.h"

/* ---- the disk -------------------------------------------------------------------------------- */

static struct {
    int fail_at, n_call;                 /* this write fails; 0: none */
    bool lazy;                           /* a few bytes at a time, every other call interrupted */
} disk;

ssize_t write(int fd, const void *p, size_t n)
{
    disk.n_call++;
    if (disk.lazy && disk.n_call % 2) {
        errno = EINTR;
        return -1;
    }
    if (disk.n_call == disk.fail_at) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_write, fd, p, disk.lazy && n > 1000 ? 1000 : n);
}

/* ---- files of the test ----------------------------------------------------------------------- */

static char folder[256];

static const char *in_folder(const char *name)
{
    static char path[400];
    return test_path(path, sizeof path, "%s/%s", folder, name);
}

static bool is_there(const char *name) { return access(in_folder(name), F_OK) == 0; }

static void put_file(const char *name, const uint8_t *bytes, size_t n)
{
    unlink(in_folder(name));             /* cutting it makes some file systems wait for the disk */
    FILE *f = fopen(in_folder(name), "wb");
    const bool ok = f && fwrite(bytes, 1, n, f) == n;
    if (f) fclose(f);
    if (!ok) CHECK_MSG(false, "cannot write %s", name);
}

/* ---- a run ----------------------------------------------------------------------------------- */

enum { MAX_LAYER = 6, MAX_USED = 8, MAX_TOKEN = 700 };

typedef struct run {
    routing_model m;
    uint64_t expert_bytes[MAX_LAYER], down_bytes[MAX_LAYER];
    int n_token, n_prompt;
    int32_t ids[MAX_TOKEN][MAX_LAYER][MAX_USED];
} run;

static void make_run(run *r, int n_layer, int n_expert, int n_used, int n_prompt, int n_token,
                     uint64_t seed)
{
    test_rng rng = { seed };
    r->m = (routing_model){
        .fingerprint = test_rand(&rng), .n_layer = n_layer, .n_expert = n_expert, .n_used = n_used,
        .dense_bytes = 123456789, .expert_bytes = r->expert_bytes, .down_bytes = r->down_bytes,
        .name = "a \"name\" & <more>",
    };
    r->n_token = n_token;
    r->n_prompt = n_prompt;
    for (int l = 0; l < n_layer; l++) {
        r->expert_bytes[l] = 3000 + 7 * (uint64_t)l;
        r->down_bytes[l] = 1000 + (uint64_t)l;
    }
    for (int t = 0; t < n_token; t++)
        for (int l = 0; l < n_layer; l++)
            for (int i = 0; i < n_used; i++) {
                int32_t e;
                bool again;
                do {
                    e = (int32_t)test_below(&rng, (uint32_t)n_expert);
                    again = false;
                    for (int j = 0; j < i; j++) again |= r->ids[t][l][j] == e;
                } while (again);
                r->ids[t][l][i] = e;
            }
}

/* Tokens first .. first + n - 1 through the layers before end. */
static void feed(routing_record *to, const run *r, int first, int n, int end)
{
    static int32_t ids[MAX_TOKEN * MAX_USED];
    const int k = r->m.n_used;
    for (int l = 0; l < end; l++) {
        for (int t = 0; t < n; t++)
            memcpy(ids + t * k, r->ids[first + t][l], (size_t)k * sizeof *ids);
        routing_record_layer(to, l, first, n, ids, first < r->n_prompt);
    }
}

static int write_run(const run *r, const char *name, int chunk, err_ctx *err)
{
    routing_record *to = NULL;
    int rc = routing_record_begin(&to, in_folder(name), &r->m, chunk, err);
    if (rc < 0) return rc;
    mem_guard(true);
    for (int t = 0; t < r->n_token;) {
        const int end = t < r->n_prompt ? r->n_prompt : t + 1;
        const int n = min_int(chunk, end - t);
        feed(to, r, t, n, r->m.n_layer);
        t += n;
    }
    mem_guard(false);
    CHECK(routing_record_tokens(to) == (uint64_t)r->n_token);
    const uint64_t bytes = routing_record_bytes(to);
    rc = routing_record_end(to, err);
    routing_record_drop(to);
    struct stat st;
    if (rc == 0) CHECK(stat(in_folder(name), &st) == 0 && (uint64_t)st.st_size == bytes);
    return rc;
}

static bool same(const routing_trace *t, const run *r)
{
    const routing_model *a = &t->model, *b = &r->m;
    const size_t sizes = (size_t)b->n_layer * sizeof(uint64_t);
    if (a->fingerprint != b->fingerprint || a->n_layer != b->n_layer ||
        a->n_expert != b->n_expert || a->n_used != b->n_used || a->dense_bytes != b->dense_bytes ||
        strcmp(a->name, b->name) != 0 || memcmp(a->expert_bytes, b->expert_bytes, sizes) != 0 ||
        memcmp(a->down_bytes, b->down_bytes, sizes) != 0)
        return false;
    if (t->n_token != r->n_token || t->n_prompt != r->n_prompt) return false;
    for (int i = 0; i < t->n_token; i++) {
        if (t->pos[i] != (uint32_t)i || t->prompt[i] != (i < r->n_prompt)) return false;
        for (int l = 0; l < b->n_layer; l++)
            for (int j = 0; j < b->n_used; j++)
                if (routing_trace_ids(t, i, l)[j] != r->ids[i][l][j]) return false;
    }
    return true;
}

static run usual;

/* ---- round trips ----------------------------------------------------------------------------- */

static void test_round_trips(void)
{
    static run r;
    static const struct { int n_layer, n_expert, n_used, n_prompt, n_token, chunk; } rows[] = {
        { 1, 1, 1, 0, 1, 1 },      { 4, 24, 4, 30, 60, 512 },    { 4, 24, 4, 30, 60, 7 },
        { 6, 512, 8, 0, 90, 16 },  { 3, 65536, 2, 40, 40, 40 },  { 6, 100, 8, 680, 700, 64 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        routing_trace *t = NULL;
        err_ctx err = { 0 };
        make_run(&r, rows[i].n_layer, rows[i].n_expert, rows[i].n_used, rows[i].n_prompt,
                 rows[i].n_token, i);
        disk.lazy = i % 2;
        CHECK_MSG(write_run(&r, "trip", rows[i].chunk, &err) == 0, "row %zu: %s", i, err.msg);
        disk.lazy = false;
        CHECK_MSG(!is_there("trip.part"), "row %zu: part left", i);
        CHECK_MSG(routing_trace_load(&t, in_folder("trip"), &err) == 0, "row %zu: %s", i, err.msg);
        CHECK_MSG(t && same(t, &r), "row %zu: not what was written", i);
        routing_trace_free(t);
    }
}

/* A batch that was stopped half-way is not in the file, a text that went back is. */
static void test_batches_that_stop(void)
{
    routing_record *to = NULL;
    routing_trace *t = NULL;
    err_ctx err = { 0 };
    if (!CHECK(routing_record_begin(&to, in_folder("stop"), &usual.m, 40, &err) == 0)) return;
    feed(to, &usual, 0, 20, usual.m.n_layer);
    feed(to, &usual, 20, 10, usual.m.n_layer - 1);
    feed(to, &usual, 20, 5, usual.m.n_layer);
    feed(to, &usual, 3, 1, usual.m.n_layer);
    feed(to, &usual, 4, 2, 1);
    CHECK_MSG(routing_record_end(to, &err) == 0, "%s", err.msg);
    routing_record_drop(to);
    CHECK_MSG(routing_trace_load(&t, in_folder("stop"), &err) == 0, "%s", err.msg);
    if (CHECK(t && t->n_token == 26)) {
        CHECK(t->pos[24] == 24 && t->pos[25] == 3);
        CHECK(routing_trace_ids(t, 24, 2)[1] == usual.ids[24][2][1]);
        CHECK(routing_trace_ids(t, 25, 2)[1] == usual.ids[3][2][1]);
    }
    routing_trace_free(t);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void refused(const char *name, const char *text, const char *why)
{
    routing_trace *t = NULL;
    err_ctx err = { 0 };
    const int rc = routing_trace_load(&t, in_folder(name), &err);
    CHECK_MSG(rc < 0 && t == NULL, "%s: accepted", why);
    CHECK_MSG(strstr(err.msg, text) != NULL, "%s: '%s' does not say '%s'", why, err.msg, text);
    CHECK_MSG(strchr(err.msg, '\n') == NULL, "%s: more than one line", why);
    routing_trace_free(t);
}

static void test_cut_files(const uint8_t *good, size_t n)
{
    uint8_t *longer = test_alloc(n + 1, 1);
    refused("none", "No such file", "no file");
    refused(".", "not a regular file", "a folder");
    put_file("cut", good, 0);
    refused("cut", "empty", "nothing in it");
    for (size_t i = 1; i < n; i++) {
        put_file("cut", good, i);
        refused("cut", "truncated", "cut");
    }
    memcpy(longer, good, n);
    longer[n] = 0;
    put_file("cut", longer, n + 1);
    refused("cut", "1 bytes after the last", "longer");
    mem_free(longer);
}

static void test_damaged_files(const uint8_t *good, size_t n)
{
    enum { LAYERS = ROUTING_HEADER_BYTES, N_LAYER = 3 };
    const size_t tokens = LAYERS + 16 * N_LAYER, token = 8 + 2 * 4 * N_LAYER;
    const struct { size_t at; int bytes; uint64_t value; const char *text; } rows[] = {
        { 0, 1, 'X', "not a trace" },
        { 7, 1, 'e', "not a trace" },
        { 8, 4, 0, "version 0" },
        { 8, 4, 2, "version 2, not 1" },
        { 12, 4, 0, "0 layers" },
        { 12, 4, 4097, "4097 layers" },
        { 12, 4, UINT32_MAX, "layers are not within" },
        { 12, 4, 4, "truncated trace: 31 of 40" },
        { 12, 4, 2, "after the last of 40" },
        { 16, 4, 0, "0 experts in a layer" },
        { 16, 4, 65537, "65537 experts" },
        { 16, 4, 3, "experts for a token are not within 1..3" },
        { 16, 4, 10, " of 10" },
        { 20, 4, 0, "0 experts for a token" },
        { 20, 4, 25, "25 experts for a token" },
        { 20, 4, 5, "truncated trace: 33 of 40" },
        { 32, 8, 0, "no tokens" },
        { 32, 8, 39, "32 bytes after the last" },
        { 32, 8, 41, "40 of 41" },
        { 32, 8, UINT64_MAX, "truncated" },
        { 32, 8, UINT64_MAX / 32 + 1, "truncated" },     /* times 32 that would be 0 */
        { 40, 8, UINT64_MAX, "dense" },
        { LAYERS - 1, 1, 'x', "name has no end" },
        { LAYERS, 8, 0, "layer 0: an expert of 0 bytes" },
        { LAYERS + 32, 8, UINT64_MAX, "layer 2: an expert of" },
        { LAYERS + 24, 8, 3008, "layer 1: a down slab of 3008" },
        { tokens, 4, UINT32_MAX, "token 0: position" },
        { tokens + token, 4, 2, "token 1: position 2 skips" },
        { tokens + token + 4, 4, 2, "token 1: flags 0x2" },
        { tokens + 2 * token + 8, 2, 24, "token 2, layer 0: expert 24 of 24" },
        { tokens + 39 * token + 8 + 22, 2, UINT16_MAX, "token 39, layer 2: expert 65535" },
    };
    uint8_t *bad = test_alloc(n, 1);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        memcpy(bad, good, n);
        memcpy(bad + rows[i].at, &rows[i].value, (size_t)rows[i].bytes);
        put_file("bad", bad, n);
        refused("bad", rows[i].text, rows[i].text);
    }
    memcpy(bad, good, n);
    memcpy(bad + tokens + token + 8, bad + tokens + token + 12, 2);
    put_file("bad", bad, n);
    refused("bad", "token 1, layer 0: expert", "an expert twice");
    refused("bad", "twice", "an expert twice");
    mem_free(bad);
}

/* Any byte may be anything: a load that fails says why, one that does not gives sane numbers. */
static void test_random_damage(const uint8_t *good, size_t n)
{
    uint8_t *bad = test_alloc(n, 1);
    test_rng rng = { 3 };
    for (int i = 0; i < 2000; i++) {
        routing_trace *t = NULL;
        err_ctx err = { 0 };
        memcpy(bad, good, n);
        for (uint32_t j = 1 + test_below(&rng, 3); j > 0; j--)
            bad[test_below(&rng, i % 2 ? 160 : (uint32_t)n)] = (uint8_t)test_rand(&rng);
        put_file("bad", bad, n);
        const int rc = routing_trace_load(&t, in_folder("bad"), &err);
        CHECK((rc == 0) == (t != NULL) && (rc == 0 || err.msg[0]));
        for (int j = 0; t && j < t->n_token * t->model.n_layer * t->model.n_used; j++)
            if (t->ids[j] >= t->model.n_expert) CHECK_MSG(false, "an id of %d", t->ids[j]);
        routing_trace_free(t);
    }
    mem_free(bad);
}

/* ---- what cannot be written ------------------------------------------------------------------ */

static void test_refused_models(void)
{
    static const struct { int n_layer, n_expert, n_used; const char *text; } rows[] = {
        { 0, 24, 4, "0 layers" }, { 3, 65537, 4, "65537 experts" },
        { 3, 24, 25, "25 experts for a token" }, { 3, 400, 256, "within 1..255" },
    };
    routing_record *to;
    err_ctx err;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        routing_model m = usual.m;
        m.n_layer = rows[i].n_layer;
        m.n_expert = rows[i].n_expert;
        m.n_used = rows[i].n_used;
        CHECK(routing_record_begin(&to, in_folder("never"), &m, 8, &err) < 0 && to == NULL);
        CHECK_MSG(strstr(err.msg, rows[i].text) != NULL, "%s", err.msg);
    }
    CHECK(routing_record_begin(&to, in_folder("no/folder"), &usual.m, 8, &err) < 0 && !to);
    CHECK_MSG(strstr(err.msg, "No such file") != NULL, "%s", err.msg);
    CHECK(routing_record_begin(&to, "/dev/null", &usual.m, 8, &err) < 0 && !to);
    CHECK_MSG(strstr(err.msg, "not a regular file") != NULL, "%s", err.msg);
    if (CHECK(routing_record_begin(&to, in_folder("never"), &usual.m, 8, &err) == 0)) {
        feed(to, &usual, 0, 4, usual.m.n_layer - 1);
        CHECK(routing_record_end(to, &err) < 0 && strstr(err.msg, "no token was recorded"));
        routing_record_drop(to);
    }
    CHECK(!is_there("never") && !is_there("never.part"));
}

/* The Nth write fails: no new file, the old one stays. */
static void test_full_disk(void)
{
    static const uint8_t old[] = "old";
    static run large;                    /* of more than one buffer */
    int n_failed = 0;
    make_run(&large, 6, 400, 8, 0, MAX_TOKEN, 5);
    large.n_prompt = MAX_TOKEN;
    for (int at = 1; at < 20; at++) {
        size_t n = 0;
        err_ctx err = { 0 };
        routing_record *to = NULL;
        put_file("full", old, sizeof old);
        disk.n_call = 0;
        disk.fail_at = at;
        int rc = routing_record_begin(&to, in_folder("full"), &large.m, MAX_TOKEN, &err);
        for (int i = 0; i < 6 && rc == 0; i++) feed(to, &large, 0, MAX_TOKEN, 6);
        if (rc == 0) rc = routing_record_end(to, &err);
        routing_record_drop(to);
        disk.fail_at = 0;
        if (rc == 0) break;
        n_failed++;
        uint8_t *now = test_read_file(in_folder("full"), &n);
        CHECK_MSG(n == sizeof old && memcmp(now, old, n) == 0, "write %d: the old file", at);
        CHECK_MSG(strstr(err.msg, "No space left") != NULL, "write %d: %s", at, err.msg);
        CHECK_MSG(!is_there("full.part"), "write %d: part left", at);
        mem_free(now);
    }
    CHECK_MSG(n_failed >= 4, "%d writes", n_failed);
}

static void test_no_memory(void)
{
    int n_failed = 0;
    for (long at = 1; at < 40; at++) {
        routing_record *to = NULL;
        routing_trace *t = NULL;
        err_ctx err = { 0 };
        mem_fail_after(at);
        int rc = routing_record_begin(&to, in_folder("memory"), &usual.m, 8, &err);
        if (rc == 0) {
            feed(to, &usual, 0, 8, usual.m.n_layer);
            rc = routing_record_end(to, &err);
        }
        routing_record_drop(to);
        if (rc == 0) rc = routing_trace_load(&t, in_folder("memory"), &err);
        mem_fail_after(0);
        CHECK_MSG(rc == 0 ? t != NULL : rc == ERR_NOMEM && err.msg[0] && !t, "%ld: %s", at,
                  err.msg);
        CHECK_MSG(!is_there("memory.part"), "allocation %ld: part left", at);
        routing_trace_free(t);
        if (rc == 0) break;
        n_failed++;
    }
    CHECK_MSG(n_failed > 10 && n_failed < 39, "%d failures", n_failed);
}

int main(int argc, char **argv)
{
    size_t n = 0;
    test_begin("routing_trace", argc, argv);
    if (!mkdtemp(test_temp(folder, sizeof folder))) return 1;
    make_run(&usual, 3, 24, 4, 30, 40, 99);
    err_ctx err = { 0 };
    CHECK_MSG(write_run(&usual, "good", 16, &err) == 0, "%s", err.msg);
    uint8_t *good = test_read_file(in_folder("good"), &n);
    test_round_trips();
    test_batches_that_stop();
    if (good) {
        test_cut_files(good, n);
        test_damaged_files(good, n);
        test_random_damage(good, n);
    }
    test_refused_models();
    test_full_disk();
    test_no_memory();
    routing_record_drop(NULL);
    routing_trace_free(NULL);
    mem_free(good);
    test_remove(folder);
    return test_end();
}
