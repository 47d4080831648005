/* test_mem_space.c - RAM and VRAM as spaces. What lives in one: test_state.c. */
#include "tests/test.h"

#include <string.h>

#include "cuda/gpu.h"
#include "tiers/mem_space.h"

static bool is_all(const uint8_t *p, size_t n, uint8_t value)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != value) return false;
    return true;
}

/* Bytes there and back, by all ways, with nothing before or after them changed. */
static void round_trip(mem_space *s, uint64_t bytes, mem_space_use use)
{
    uint8_t *out = test_alloc((size_t)bytes, 1), *back = test_alloc((size_t)bytes, 1);
    const size_t n = (size_t)bytes, cut = n / 3, part = n / 2;
    void *a = NULL, *b = NULL;
    err_ctx err = { 0 };
    for (size_t i = 0; i < n; i++) out[i] = (uint8_t)(1 + i % 251);
    if (!CHECK_MSG(s->alloc(&a, s, bytes, use, "a test", &err) == 0 &&
                   s->alloc(&b, s, bytes, use, "a test", &err) == 0 && a && b, "%s: %s", s->name,
                   err.msg))
        goto done;
    CHECK(((uintptr_t)a & 63) == 0 && ((uintptr_t)b & 63) == 0);
    s->read(s, back, a, n);
    CHECK_MSG(is_all(back, n, 0), "%s: %zu bytes are not zeros", s->name, n);
    s->write(s, a, out, n);
    s->write(s, (uint8_t *)b + cut, out + cut, part);
    s->zero(s, (uint8_t *)a + cut, part);
    memset(back, 0xAA, n);
    s->read(s, back + cut, (uint8_t *)b + cut, part);
    CHECK_MSG(memcmp(back + cut, out + cut, part) == 0 && is_all(back, cut, 0xAA) &&
              is_all(back + cut + part, n - cut - part, 0xAA), "%s: part of %zu", s->name, n);
    s->read(s, back, a, n);
    CHECK_MSG(memcmp(back, out, cut) == 0 && is_all(back + cut, part, 0) &&
              memcmp(back + cut + part, out + cut + part, n - cut - part) == 0,
              "%s: zeros in %zu", s->name, n);
    s->read(s, back, b, n);
    CHECK(is_all(back, cut, 0) && is_all(back + cut + part, n - cut - part, 0));
    s->read_later(s, NULL, NULL, 0);
    s->read(s, NULL, NULL, 0);           /* no bytes need no address */
    s->write(s, NULL, NULL, 0);
    s->zero(s, NULL, 0);
    CHECK_MSG(s->check(s, &err) == 0, "%s: %s", s->name, err.msg);
done:
    s->free(s, a, bytes);
    s->free(s, b, bytes);
    mem_free(out);
    mem_free(back);
}

/* Many pieces, small and large: each is written and read as it was at the time of the call. */
static void copy_pieces(mem_space *s, size_t n, size_t least, size_t most)
{
    uint8_t *out = test_alloc(n, 1), *back = test_alloc(n + 1, 1), *piece = test_alloc(most, 1);
    test_rng rng = { most };
    void *a = NULL;
    err_ctx err = { 0 };
    for (size_t i = 0; i < n; i++) out[i] = (uint8_t)(1 + i % 251);
    if (CHECK_MSG(s->alloc(&a, s, n, MEM_DENSE, "a test", &err) == 0, "%s", err.msg)) {
        memset(back, 0xAA, n + 1);
        for (size_t at = 0, k; at < n; at += k) {
            k = least + (size_t)test_below(&rng, (uint32_t)(most - least + 1));
            if (k > n - at) k = n - at;
            memcpy(piece, out + at, k);
            s->write(s, (uint8_t *)a + at, piece, k);
            memset(piece, 0x55, k);
            s->read_later(s, back + at, (uint8_t *)a + at, k);
            s->zero(s, (uint8_t *)a + at, k);
        }
        CHECK_MSG(s->check(s, &err) == 0, "%s: %s", s->name, err.msg);
        CHECK_MSG(memcmp(back, out, n) == 0 && back[n] == 0xAA, "%s: %zu bytes in pieces of %zu "
                  "to %zu", s->name, n, least, most);
    }
    s->free(s, a, n);
    mem_free(piece);
    mem_free(out);
    mem_free(back);
}

static void test_any(mem_space *s)
{
    static const uint64_t sizes[] = { 1, 64, 4096, 100001, 3u << 20 };
    err_ctx err = { 0 };
    void *p = &err;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        round_trip(s, sizes[i], MEM_DENSE);
        round_trip(s, sizes[i], MEM_SPARSE);
    }
    copy_pieces(s, 10000, 1, 10);
    copy_pieces(s, 11u << 20, 1 << 16, 600000);
    CHECK(s->alloc(&p, s, UINT64_C(1) << 62, MEM_SPARSE, "too much", &err) == ERR_NOMEM && !p);
    CHECK_MSG(strstr(err.msg, "no room for too much"), "%s: %s", s->name, err.msg);
    CHECK(s->check(s, NULL) == 0);       /* that was reported at once */
    s->free(s, NULL, 5);
}

static void test_ram(void)
{
    mem_space *s = mem_space_ram();
    void *p = NULL;
    CHECK(s == mem_space_ram() && s->addressable);
    test_any(s);
    CHECK(s->alloc(&p, s, UINT64_MAX, MEM_DENSE, "all", NULL) == ERR_NOMEM && !p);
    if (CHECK(s->alloc(&p, s, 8, MEM_DENSE, "a word", NULL) == 0)) {
        s->write(s, p, "by hand", 8);
        CHECK(!strcmp(p, "by hand"));
    }
    s->free(s, p, 8);
}

/* In a build without CUDA everything fails, and the failure is kept. */
static void test_no_vram(void)
{
    mem_space *s = NULL;
    err_ctx err = { 0 };
    char byte = 0;
    void *p = &byte;
    mem_fail_after(1);
    CHECK(mem_space_vram_create(&s, NULL, &err) == ERR_NOMEM && !s);
    mem_fail_after(0);
    if (!CHECK(mem_space_vram_create(&s, NULL, &err) == 0 && !s->addressable)) return;
    CHECK(s->alloc(&p, s, 8, MEM_DENSE, "a word", &err) == ERR_UNSUPPORTED && !p &&
          strstr(err.msg, "a word") && strstr(err.msg, "no CUDA"));
    CHECK(s->alloc(&p, s, 8, MEM_DENSE, "a word", NULL) == ERR_UNSUPPORTED);
    s->read(s, &byte, &byte, 1);
    s->write(s, &byte, &byte, 1);
    for (int i = 0; i < 2; i++) {
        err = (err_ctx){ 0 };
        CHECK(s->check(s, &err) == ERR_UNSUPPORTED && err.code == ERR_UNSUPPORTED &&
              strstr(err.msg, "no CUDA"));
    }
    CHECK(s->check(s, NULL) == ERR_UNSUPPORTED);
    mem_space_vram_free(s);
    mem_space_vram_free(NULL);
}

static void test_vram(void)
{
    mem_space *s = NULL;
    gpu *g = NULL;
    err_ctx err = { 0 };
    if (!strcmp(gpu_backend(), "none")) {
        CHECK(gpu_open(&g, 0, &err) == ERR_UNSUPPORTED && !g && strstr(err.msg, "no CUDA"));
        test_no_vram();
        return;
    }
    if (gpu_count() == 0) {
        test_skip("VRAM: no GPU");
        return;
    }
    if (CHECK_MSG(gpu_open(&g, 0, &err) == 0 && mem_space_vram_create(&s, g, &err) == 0, "%s",
                  err.msg))
        test_any(s);
    mem_space_vram_free(s);
    gpu_close(g);
}

int main(int argc, char **argv)
{
    test_begin("mem_space", argc, argv);
    test_ram();
    test_vram();
    return test_end();
}
