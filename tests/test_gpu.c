/* test_gpu.c - the device itself and the two ends of a token's path: memory, uploads, recordings,
 * profiles; embeddings, rotary tables, the largest logit. Products, experts and mixers have files
 * of their own. */
#include "cuda/gpu_measure.h"
#include "tests/gpu_fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/models/rope.h"
#include "tests/sim_gpu.h"

/* ---- memory ---------------------------------------------------------------------------------- */

static void fill_pieces(void *ctx, void *to, const void *from, size_t n)
{
    *(size_t *)ctx += n;
    memcpy(to, from, n);
}

/* More than the page-locked buffers hold, in two parts, at odd addresses. */
static void check_upload(test_rng *rng)
{
    const size_t n = (size_t)110 << 20, cut = ((size_t)70 << 20) + 13;
    uint64_t *words = host_room(n / 8, 8), *back = host_room(n / 8, 8);
    const uint64_t key = test_rand(rng);
    size_t filled = 0;
    err_ctx err = { 0 };
    for (size_t i = 0; i < n / 8; i++) words[i] = random_word(key, i);
    uint8_t *to = vram_room(n), *from = (uint8_t *)words;
    const bool good = gpu_upload(device(), to, from, cut, NULL, NULL, &err) == 0 &&
                      gpu_upload(device(), to + cut, from + cut, n - cut, fill_pieces, &filled,
                                 &err) == 0 && gpu_upload_end(device(), &err) == 0;
    expect(good, "%s", err.msg);
    expect(filled == n - cut, "%zu bytes of %zu were filled in", filled, n - cut);
    vram_read(back, to, n);
    expect_bytes("uploaded", back, words, n);
}

/* Page-locked RAM that the system refuses fails one upload; the device goes on. */
static void check_refused_upload(test_rng *rng)
{
    struct rlimit whole;
    unsigned long pages = 0;
    const size_t n = (size_t)8 << 20, bytes = n * sizeof(float);
    float *x = host_floats(n, 1.0f, rng), *to = vram_room(bytes);
    err_ctx err = { 0 };
    FILE *sizes = fopen("/proc/self/statm", "r");
    if (!sizes || fscanf(sizes, "%lu", &pages) != 1) pages = 0;
    if (sizes) fclose(sizes);
    getrlimit(RLIMIT_AS, &whole);
    const struct rlimit low = {          /* the driver has some MiB left, a buffer needs 32 */
        .rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + (sim_gpu() ? 0 : 16 << 20),
        .rlim_max = whole.rlim_max,
    };
    setrlimit(RLIMIT_AS, &low);
    const int rc = gpu_upload(device(), to, x, bytes, NULL, NULL, &err);
    setrlimit(RLIMIT_AS, &whole);
    expect(rc < 0 && strstr(err.msg, "page-locked"), "%d: %s", rc, err.msg);
    const bool good = gpu_wait(device(), &err) == 0 &&
                      gpu_upload(device(), to, x, bytes, NULL, NULL, &err) == 0 &&
                      gpu_upload_end(device(), &err) == 0;
    expect(good, "afterwards: %s", err.msg);
    expect_bits("uploaded", host_copy(to, n), x, n);
}

static void test_memory(test_rng *rng)
{
    gpu_info info;
    err_ctx err = { 0 };
    family("memory");
    case_begin("description");
    expect(gpu_describe(&info, 0, &err) == 0 && info.cc_major >= 7 && info.n_sm > 0 &&
           info.vram_total >= info.vram_free && info.name[0], "%s", err.msg);
    expect(gpu_describe(&info, gpu_count(), &err) < 0, "a device that is not there");
    expect(sim_gpu() || strstr(gpu_backend(), "CUDA ") == gpu_backend(), "backend %s",
           gpu_backend());
    case_end();

    case_begin("copy and zero");
    const size_t n = 5000;
    float *x = host_floats(n, 1.0f, rng), *a = vram_floats(x, n), *b = vram_room(n * sizeof *x);
    gpu_copy(device(), b + 100, a + 100, (n - 200) * sizeof *x);
    expect(gpu_zero(device(), a + 7, 50 * sizeof *x, &err) == 0, "%s", err.msg);
    expect_bits("copied", host_copy(b + 100, n - 200), x + 100, n - 200);
    memset(x + 7, 0, 50 * sizeof *x);
    expect_bits("zeros", host_copy(a, n), x, n);
    x[0] = NAN;
    expect_bits("before the copy", host_copy(b, 1), x, 1);
    case_end();

    case_begin("too much");
    void *p = gpu_alloc(device(), UINT64_C(1) << 50, "everything", &err);
    expect(!p && strstr(err.msg, "everything"), "%p: %s", p, err.msg);
    expect(gpu_wait(device(), &err) == 0, "and then: %s", err.msg);
    case_end();

    case_begin("page-locked memory");
    uint64_t *word = gpu_alloc_host(device(), sizeof *word, &err);
    if (expect(word != NULL, "%s", err.msg)) *word = 0x123456789ABCDEF0u;
    gpu_free_host(device(), word);
    case_end();

    case_begin("upload");
    check_upload(rng);
    case_end();

    case_begin("refused upload");
    if (!SANITIZED) check_refused_upload(rng);           /* sanitizers allocate at any time */
    case_end();
}

/* ---- embeddings ------------------------------------------------------------------------------ */

static void check_embedding(quant_type type, int cols, float scale, test_rng *rng)
{
    enum { ROWS = 50, TOKENS = 11 };
    const reference table = reference_make(type, ROWS, cols, WEIGHTS_PLAUSIBLE, scale, false, rng);
    const size_t n = TOKENS * (size_t)cols;
    float *want = host_room(n, sizeof *want), *x = vram_room(n * sizeof *x);
    int32_t ids[TOKENS] = { ROWS - 1, 0, 7, 7 };
    size_t bad = 0, first = 0;
    for (int t = 4; t < TOKENS; t++) ids[t] = (int32_t)test_below(rng, ROWS);
    gpu_embed(device(), x, &table.gpu, vram_copy(ids, sizeof ids), TOKENS);
    ops_embed(contract_ops(), want, &table.cpu, ids, TOKENS);
    const float *got = host_copy(x, n);
    for (size_t i = 0; i < n; i++)       /* by value: a zero has no sign here */
        if (!(got[i] == want[i]) && bad++ == 0) first = i;
    expect(bad == 0, "%zu of %zu values differ, the first at %zu: %a, expected %a", bad, n, first,
           (double)got[first], (double)want[first]);
}

static void test_embeddings(test_rng *rng)
{
    family("embeddings");
    for (int i = 0; i < GPU_TYPE_COUNT; i++)
        for (int k = 0; k < 4; k++) {
            const int elems = quant_traits_of(gpu_types[i])->block_elems;
            const int cols = elems == 1 ? (k < 2 ? 33 : 2880) : elems * (k < 2 ? 1 : 11);
            const float scale = k % 2 ? 0.5f : 1.0f;
            case_begin("%s, %d columns, scale %g", quant_name(gpu_types[i]), cols, (double)scale);
            check_embedding(gpu_types[i], cols, scale, rng);
            case_end();
        }
}

/* ---- rotary tables --------------------------------------------------------------------------- */

static void test_rope(void)
{
    static const rope_spec specs[] = {
        { 64, 150000.0, 32.0, ROPE_YARN, 4096, 1.0, false },
        { 64, 1e7, 1.0, ROPE_PLAIN, 0, 1.0, false },
        { 128, 10000.0, 1.0, ROPE_PLAIN, 0, 1.0, false },
        { 8, 10000.0, 4.0, ROPE_LINEAR, 4096, 1.0, false },
    };
    static const int positions[] = { 0, 1, 131071 };
    family("rotary tables");
    for (size_t i = 0; i < ARRAY_LEN(specs); i++)
        for (size_t k = 0; k < ARRAY_LEN(positions); k++) {
            enum { TOKENS = 5 };
            const int half = specs[i].dim / 2;
            const size_t n = TOKENS * (size_t)half;
            const gpu_cursor start = { .pos = positions[k], .token = 7 };
            double freq[64], magnitude, worst = 0.0;
            size_t at = 0;
            case_begin("%d dimensions, base %g, position %d", specs[i].dim, specs[i].base,
                       positions[k]);
            float *c = host_room(n, sizeof *c), *s = host_room(n, sizeof *s);
            float *cosine = vram_room(n * sizeof *c), *sine = vram_room(n * sizeof *s);
            rope_frequencies(freq, &magnitude, &specs[i]);
            gpu_rope_table(device(), cosine, sine, vram_copy(freq, (size_t)half * sizeof *freq),
                           magnitude, half, vram_copy(&start, sizeof start), TOKENS);
            rope_table(c, s, freq, magnitude, specs[i].dim, positions[k], TOKENS);
            const float *got_c = host_copy(cosine, n), *got_s = host_copy(sine, n);
            for (size_t j = 0; j < n; j++) {
                const double off = fmax(fabs((double)got_c[j] - c[j]),
                                        fabs((double)got_s[j] - s[j]));
                if (off <= worst && !isnan(got_c[j]) && !isnan(got_s[j])) continue;
                worst = isnan(got_c[j]) || isnan(got_s[j]) ? INFINITY : off;
                at = j;
            }
            expect(worst <= 1e-6, "token %zu, pair %zu: %.9g, %.9g, expected %.9g, %.9g",
                   at / (size_t)half, at % (size_t)half, (double)got_c[at], (double)got_s[at],
                   (double)c[at], (double)s[at]);
            case_end();
        }
}

/* ---- the largest logit ----------------------------------------------------------------------- */

static void check_largest(const float *logits, int n, const char *why)
{
    const gpu_cursor start = { .pos = 41, .token = -1 };
    const uint32_t zero = 0;
    const int want = ops_largest(contract_ops(), logits, n);
    gpu_cursor end = { 0 };
    uint32_t left = 1;
    err_ctx err = { 0 };
    case_begin("%s, %d values", why, n);
    float *x = vram_floats(logits, (size_t)n);
    gpu_cursor *at = vram_copy(&start, sizeof start);
    uint32_t *counter = vram_copy(&zero, sizeof zero),
             *best = vram_room(GPU_LARGEST_WORDS * sizeof *best);
    uint64_t *seen = gpu_alloc_host(device(), sizeof *seen, &err);
    if (expect(seen != NULL, "%s", err.msg)) {
        for (int again = 0; again < 2; again++) {        /* the counter is zero again */
            *seen = 0;
            gpu_largest(device(), x, n, at, seen, best, counter);
            vram_read(&end, at, sizeof end);
            vram_read(&left, counter, sizeof left);
            const int pos = start.pos + again + 1;
            expect(end.token == want && end.pos == pos, "token %d at %d, expected %d at %d",
                   end.token, end.pos, want, pos);
            expect(*seen == ((uint64_t)pos << 32 | (uint32_t)want), "seen %016llx, expected id %x "
                   "and stamp %x", (unsigned long long)*seen, (unsigned)want, (unsigned)pos);
            expect(left == 0, "the counter is left at %u", left);
        }
        gpu_largest(device(), x, n, at, NULL, best, counter);
        vram_read(&end, at, sizeof end);
        expect(end.token == want, "without a witness: token %d, expected %d", end.token, want);
        gpu_free_host(device(), seen);
    }
    case_end();
}

static void test_largest(test_rng *rng)
{
    enum { N = 200000 };
    static const int sizes[] = { 1, 2, 31, 256, 257, 32768, 151936, N };
    float *x = test_alloc(N, sizeof *x);
    family("the largest");
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        const int n = sizes[i];
        for (int k = 0; k < n; k++) x[k] = (float)test_below(rng, 1 << 24) * 0x1p-20f - 8.0f;
        check_largest(x, n, "random");
        x[n - 1] = 100.0f;
        check_largest(x, n, "the last");
        x[n / 2] = x[n / 3] = x[n - 1];
        check_largest(x, n, "three alike");
        for (int k = 0; k < n; k++) x[k] = -3.5f;
        check_largest(x, n, "all alike");
        for (int k = 0; k < n; k++) x[k] = k == n / 2 ? -1e30f : NAN;
        check_largest(x, n, "all but one NaN");
        for (int k = 0; k < n; k++) x[k] = k % 3 ? -INFINITY : NAN;
        check_largest(x, n, "NaN and minus infinity");
        for (int k = 0; k < n; k++) x[k] = k % 5 == 4 ? INFINITY : -NAN;
        check_largest(x, n, "NaN and infinity");
        for (int k = 0; k < n; k++) x[k] = k % 2 ? NAN : -NAN;
        check_largest(x, n, "all NaN");
    }
    family("the largest of zeros");
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        for (int k = 0; k < sizes[i]; k++) x[k] = k % 2 ? 0.0f : -0.0f;
        check_largest(x, sizes[i], "both signs");
    }
    mem_free(x);
}

/* ---- recordings and profiles ----------------------------------------------------------------- */

typedef struct chain {                   /* y = W x, x += W y, and the cursor moves on */
    reference w;
    float *x, *y;
    gpu_cursor *at;
} chain;

static chain chain_make(quant_type type, const float *x, test_rng rng)
{
    enum { N = 256 };
    const gpu_cursor start = { .pos = 5, .token = 9 };
    return (chain){ .w = reference_make(type, N, N, WEIGHTS_PLAUSIBLE, 0.1f, true, &rng),
                    .x = vram_floats(x, N), .y = vram_room(N * sizeof *x),
                    .at = vram_copy(&start, sizeof start) };
}

/* Each product reads what the previous one wrote. */
static void run_chain(const chain *c)
{
    const int n = c->w.cpu.cols;
    gpu_input x = { .kind = GPU_PLAIN, .n = 1, .cols = n, .x = c->x }, y = x;
    const gpu_product to_y = { .y = c->y, .y_stride = n, .w = c->w.gpu };
    const gpu_product to_x = { .y = c->x, .y_stride = n, .add = true, .w = c->w.gpu };
    y.x = c->y;
    gpu_project(device(), &x, &to_y, 1);
    gpu_project(device(), &y, &to_x, 1);
    gpu_advance(device(), c->at, 3);
}

static int record_chain(gpu_recording **out, const chain *c, err_ctx *err)
{
    int rc = gpu_recording_create(out, err);
    if (rc == 0) rc = gpu_record_begin(device(), err);
    if (rc < 0) return rc;
    run_chain(c);
    return gpu_record_end(*out, device(), err);
}

static void check_recording(quant_type type, const test_rng *rng)
{
    test_rng own = *rng;
    float *x = host_floats(256, 1.0f, &own);
    const chain by_hand = chain_make(type, x, own), replay_table = chain_make(type, x, own);
    gpu_recording *r = NULL;
    gpu_cursor at = { 0 };
    err_ctx err = { 0 };
    if (!expect(record_chain(&r, &replay_table, &err) == 0, "%s", err.msg)) return;
    expect_bits("recorded, not played", host_copy(replay_table.x, 256), x, 256);
    for (int i = 0; i < 3; i++) {
        run_chain(&by_hand);
        gpu_replay(device(), r);
    }
    expect_bits("played three times", host_copy(replay_table.x, 256), host_copy(by_hand.x, 256),
                256);
    vram_read(&at, replay_table.at, sizeof at);
    expect(at.pos == 14 && at.token == 9, "the cursor is at %d, token %d", at.pos, at.token);
    gpu_recording_free(r);
}

enum { RECORDINGS = 8, CHAINS = 170, ROUNDS = 4 };

/* Makes RECORDINGS recordings of CHAINS * 3 kernels each: the VRAM that is free goes down by *taken. */
static int record_many(gpu_recording **r, uint64_t *taken, const chain *c, err_ctx *err)
{
    gpu_info before, after;
    int rc = gpu_describe(&before, 0, err);
    for (int i = 0; i < RECORDINGS && rc == 0; i++) {
        rc = gpu_recording_create(&r[i], err);
        if (rc == 0) rc = gpu_record_begin(device(), err);
        for (int k = 0; k < CHAINS && rc == 0; k++) run_chain(c);
        if (rc == 0) rc = gpu_record_end(r[i], device(), err);
    }
    if (rc == 0) rc = gpu_wait(device(), err);
    if (rc == 0) rc = gpu_describe(&after, 0, err);
    if (rc == 0) *taken = before.vram_free < after.vram_free ? 0 :
                          before.vram_free - after.vram_free;
    return rc;
}

/* Recordings take no more VRAM than plans count for them. Other tests use the same GPU meanwhile:
 * the least of several rounds counts, and all recordings stay, so that each round needs its own. */
static void check_recorded_bytes(const test_rng *rng)
{
    const uint64_t most = (uint64_t)RECORDINGS * CHAINS * 3 * GPU_RECORDED_KERNEL;
    test_rng own = *rng;
    const chain c = chain_make(QT_Q8_0, host_floats(256, 1.0f, &own), own);
    gpu_recording *r[ROUNDS][RECORDINGS] = { { NULL } };
    uint64_t taken = 0, least = UINT64_MAX;
    err_ctx err = { 0 };
    int rc = 0;
    for (int i = 0; i < ROUNDS && rc == 0; i++) {
        rc = record_many(r[i], &taken, &c, &err);
        if (taken < least) least = taken;
    }
    if (expect(rc == 0, "%s", err.msg))
        expect(least <= most, "%d recordings of %d kernels take %llu bytes, plans count %llu",
               RECORDINGS, 3 * CHAINS, (unsigned long long)least, (unsigned long long)most);
    for (int i = 0; i < ROUNDS; i++)
        for (int k = 0; k < RECORDINGS; k++) gpu_recording_free(r[i][k]);
}

static void check_profile(const test_rng *rng)
{
    test_rng own = *rng;
    const chain c = chain_make(QT_Q8_0, host_floats(256, 1.0f, &own), own);
    gpu_span spans[8];
    gpu_recording *r = NULL;
    err_ctx err = { 0 };
    int rc = gpu_profile_begin(device(), &err);
    if (rc == 0) rc = record_chain(&r, &c, &err);
    expect(rc == 0, "%s", err.msg);
    for (int i = 0; i < 2 && rc == 0; i++) {
        gpu_replay(device(), r);
        const int n = gpu_profile_read(spans, ARRAY_LEN(spans), device(), &err);
        if (!expect(n == 3, "play %d: %d spans: %s", i, n, n < 0 ? err.msg : "")) break;
        for (int k = 0; k < n; k++)
            expect(spans[k].name && spans[k].start_ns <= spans[k].ready_ns &&
                   spans[k].ready_ns <= spans[k].end_ns && spans[k].end_ns - spans[k].start_ns <
                   1000000000u, "play %d, span %d: %s, from %llu, ready %llu, to %llu", i, k,
                   spans[k].name ? spans[k].name : "nameless",
                   (unsigned long long)spans[k].start_ns, (unsigned long long)spans[k].ready_ns,
                   (unsigned long long)spans[k].end_ns);
        expect(spans[0].bytes >= 256 * 272, "play %d: %llu bytes", i,
               (unsigned long long)spans[0].bytes);
    }
    gpu_recording_free(r);
    gpu_profile_end(device());
}

static void test_recordings(test_rng *rng)
{
    static const quant_type types[] = { QT_Q4_K, QT_F32, QT_MXFP4 };
    family("recordings");
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        case_begin("%s", quant_name(types[i]));
        check_recording(types[i], rng);
        case_end();
    }
    case_begin("VRAM");
    check_recorded_bytes(rng);
    case_end();
    family("profiles");
    case_begin("two kernels");
    check_profile(rng);
    case_end();
}

int main(int argc, char **argv)
{
    test_rng rng = { 31 };
    test_begin("gpu", argc, argv);
    if (device_open()) {
        test_memory(&rng);
        test_embeddings(&rng);
        test_rope();
        test_largest(&rng);
        test_recordings(&rng);
        device_close();
    }
    return test_end();
}
