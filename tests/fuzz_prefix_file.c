/* fuzz_prefix_file.c - fuzz target: changed files of the prefix cache.
 *
 * Three good files of one conversation are in a folder, and the input changes one of them: its
 * first byte says which, and whether the checksums are made right again; then come edits of four
 * bytes each. A cache opens the folder, loads, keeps and writes. Without right checksums nothing of
 * a changed file may be used, and what is used has its bits. Runs under libFuzzer, AFL++ or
 * tests/fuzz_main.c. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine_internal.h"
#include "engine/session/prefix_cache.h"
#include "engine/session/prefix_file.h"
#include "engine/session/state_internal.h"
#include "loader/bytes.h"
#include "tests/make_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    N_FILE = 3, LINK = 8, N = N_FILE * LINK, FILE_CAP = 256 << 10, PATH_CAP = 512,
    /* as prefix_file.c has them */
    AT_TO = 16, AT_KEY = 24, AT_BODY_SUM = 56, AT_STAMP = 64, HEAD_BYTES = 72
};

typedef struct file {
    char name[PREFIX_NAME];
    uint8_t bytes[FILE_CAP];
    size_t n;
} file;

static struct {
    char folder[PATH_CAP];
    maker_file made;
    model *m;
    engine *e;
    session *s;
    int32_t ids[N + 1];
    file good[N_FILE];                   /* from the first position on */
    uint64_t held[N_FILE + 1];           /* what the session holds after each */
    uint64_t key;
} fixture;

/* ---- files ----------------------------------------------------------------------------------- */

static void put(const file *f)
{
    char path[PATH_CAP + PREFIX_NAME];
    snprintf(path, sizeof path, "%s/%s", fixture.folder, f->name);
    FILE *to = fopen(path, "wb");
    if (!to || fwrite(f->bytes, 1, f->n, to) != f->n || fclose(to) != 0) abort();
}

static bool get(file *f, const char *name)
{
    char path[PATH_CAP + 256];
    snprintf(path, sizeof path, "%s/%s", fixture.folder, name);
    snprintf(f->name, sizeof f->name, "%.63s", name);
    FILE *from = fopen(path, "rb");
    if (!from) return false;
    f->n = fread(f->bytes, 1, sizeof f->bytes, from);
    fclose(from);
    return f->n >= HEAD_BYTES && f->n < sizeof f->bytes;
}

/* Calls fn, or removes them all. */
static void each_file(void (*fn)(const char *name))
{
    char path[PATH_CAP + 256];
    DIR *d = opendir(fixture.folder);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        if (fn) fn(e->d_name);
        snprintf(path, sizeof path, "%s/%s", fixture.folder, e->d_name);
        if (!fn) unlink(path);
    }
    if (d) closedir(d);
}

static void remember(const char *name)
{
    static file f;
    if (!get(&f, name)) abort();
    const uint32_t to = load_u32(f.bytes + AT_TO);
    if (to < LINK || to > N || to % LINK) abort();
    fixture.good[to / LINK - 1] = f;
}

static void clean_up(void)
{
    each_file(NULL);
    rmdir(fixture.folder);
    session_free(fixture.s);
    engine_close(fixture.e);
    model_free(fixture.m);
    maker_close(&fixture.made);
}

/* ---- the session ----------------------------------------------------------------------------- */

static uint64_t look(session *s)
{
    static uint8_t bytes[FILE_CAP];
    const state *st = session_state(s);
    const int pos = session_pos(s);
    const size_t rows = (size_t)state_rows_bytes(st->m, st->o.kv, pos);
    const size_t n = rows + (size_t)state_checkpoint_bytes(st->m, st->o.kv, pos);
    err_ctx err;
    if (n > sizeof bytes || state_export(st, bytes, 0, bytes + rows, &err) < 0) abort();
    return str_hash((str_view){ (char *)bytes, n });
}

static prefix_cache *open_cache(void)
{
    const prefix_cache_options o = { .ram_bytes = 1 << 20, .folder = fixture.folder,
                                     .drive_bytes = 1 << 20 };
    prefix_cache *c;
    err_ctx err;
    if (prefix_cache_create(&c, fixture.s, &o, &err) < 0) abort();
    return c;
}

/* A drive takes its time to write: memory is ten times faster. */
static bool make_folder(const char *in)
{
    snprintf(fixture.folder, sizeof fixture.folder, "%.400s/moe-fuzz-XXXXXX", in);
    return mkdtemp(fixture.folder) != NULL;
}

static void set_up(void)
{
    const char *tmp = getenv("TMPDIR");
    const session_options so = { .ctx = 2 * N, .chunk = LINK, .kv = KV_F16 };
    const engine_options eo = { .threads = 1 };
    maker mk = maker_small(ARCH_QWEN3NEXT);
    err_ctx err = { 0 };
    mk.n_embd = mk.n_ff = mk.n_ff_shared = mk.ssm_dim = mk.head_dim = 32;
    mk.n_head = 2;
    mk.n_head_kv = mk.n_k_head = 1;
    mk.n_v_head = 2;
    mk.rope_dim = 8;
    if (!make_folder("/dev/shm") && !make_folder(tmp && *tmp ? tmp : "/tmp")) abort();
    if (maker_open(&fixture.made, &mk, &err) < 0 ||
        model_bind(&fixture.m, fixture.made.g, &err) < 0 ||
        engine_open(&fixture.e, fixture.m, &eo, &err) < 0 ||
        session_create(&fixture.s, fixture.e, &so, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    atexit(clean_up);
    prefix_cache *c = open_cache();
    for (int i = 0; i <= N; i++) fixture.ids[i] = (i * 7 + 3) % fixture.m->hp.n_vocab;
    for (int i = 0; i < N_FILE; i++) {
        if (session_eval(fixture.s, fixture.ids + i * LINK, LINK, NULL, 0, NULL, NULL, &err) < 0 ||
            prefix_cache_keep(c, fixture.s, &err) < 0)
            abort();
        fixture.held[i + 1] = look(fixture.s);
    }
    if (prefix_cache_flush(c, &err) < 0) abort();
    prefix_cache_free(c);
    each_file(remember);
    each_file(NULL);
    fixture.key = load_u64(fixture.good[0].bytes + AT_KEY);
}

/* ---- the input ------------------------------------------------------------------------------- */

static void edit(file *f, const uint8_t *data, size_t size)
{
    static const uint64_t nasty[] = { 0, 1, 7, 8, 9, 24, 255, 1u << 27, (1u << 27) + 1, 1u << 31,
                                      UINT32_MAX, 1ull << 32, 1ull << 63, UINT64_MAX };
    for (; size >= 4; data += 4, size -= 4) {
        const size_t at = (size_t)(data[1] | data[2] << 8) % (f->n + 1), in_head = at % HEAD_BYTES;
        const uint64_t v = nasty[data[3] % ARRAY_LEN(nasty)];
        switch (data[0] % 6) {
        case 0: if (at < f->n) f->bytes[at] = data[3]; break;
        case 1: if (in_head + 4 <= f->n) store_u32(f->bytes + in_head, (uint32_t)v); break;
        case 2: if (in_head + 8 <= f->n) store_u64(f->bytes + in_head, v); break;
        case 3: f->n = at; break;
        case 4:                          /* longer */
            if (f->n + data[3] >= FILE_CAP) break;
            memset(f->bytes + f->n, data[1], data[3]);
            f->n += data[3];
            break;
        default: if (at < f->n) f->bytes[at] ^= (uint8_t)(1 << data[3] % 8); break;
        }
    }
}

/* Right checksums, and the name that goes with them. */
static void forge(file *f)
{
    if (f->n < HEAD_BYTES) return;
    const size_t to = load_u32(f->bytes + AT_TO), rest = f->n - HEAD_BYTES;
    const size_t ids = to < rest / 4 ? 4 * to : rest / 4 * 4;
    store_u64(f->bytes + AT_BODY_SUM, state_checksum(0, f->bytes + HEAD_BYTES + ids, rest - ids));
    const uint64_t stamp = state_checksum(state_checksum(0, f->bytes, AT_STAMP),
                                          f->bytes + HEAD_BYTES, ids);
    store_u64(f->bytes + AT_STAMP, stamp);
    prefix_file_name(f->name, &(prefix_file){ .key = fixture.key, .stamp = stamp });
}

/* Opens the folder, continues its state, and keeps that. most: nothing after it is good. */
static void use(int most, bool forged)
{
    prefix_cache *c = open_cache();
    err_ctx err;
    session_rewind(fixture.s, 0);
    const int got = prefix_cache_load(c, fixture.s, fixture.ids, N, &err);
    if (got < 0 || got > N || session_pos(fixture.s) != got) abort();
    if (!forged && (got > most || got % LINK)) abort();
    if (!forged && got > 0 && look(fixture.s) != fixture.held[got / LINK]) abort();
    if (session_eval(fixture.s, fixture.ids + got, 1, NULL, 0, NULL, NULL, &err) == 0)
        (void)prefix_cache_keep(c, fixture.s, &err);
    if (prefix_cache_flush(c, &err) < 0) abort();
    prefix_cache_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static file f;
    if (!fixture.s) set_up();
    if (size < 1) return 0;
    const int which = data[0] % N_FILE;
    const bool forged = data[0] & 64;
    f = fixture.good[which];
    edit(&f, data + 1, size - 1);
    const bool same =
        f.n == fixture.good[which].n && !memcmp(f.bytes, fixture.good[which].bytes, f.n);
    if (forged) forge(&f);
    for (int i = 0; i < N_FILE; i++) put(i == which ? &f : &fixture.good[i]);
    use(same ? N : which * LINK, forged);
    each_file(NULL);
    return 0;
}
