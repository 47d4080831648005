/* test_gguf.c - the loader: good files open and say what they hold, every kind of damage is refused
 * with a message that names the thing and the numbers, and nothing leaks when memory runs out.
 *
 * Files are written in a small assembler, so that a row shows its bytes:
 *   h:T,K        magic, version 3, T tensors, K keys
 *   1:N 4:N 8:N  a little-endian number of that many bytes     s:text  u64 length and the text
 *   t:name/4x2/type/offset   a tensor info                     p:N     zeros up to a multiple of N
 *   z:N          N zero bytes                                  r:text  the bytes of the text */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loader/bytes.h"
#include "loader/gguf.h"
#include "loader/gguf_write.h"
#include "tests/test.h"

typedef struct blob {
    uint8_t *data;
    size_t n;
} blob;

static void put(blob *b, const void *bytes, size_t n)
{
    uint8_t *data = realloc(b->data, b->n + n + 1);
    if (!data) abort();
    b->data = data;
    if (n) memcpy(data + b->n, bytes, n);
    b->n += n;
}

static void put_num(blob *b, uint64_t v, size_t bytes) { put(b, &v, bytes); }

static void put_str(blob *b, const char *s, size_t len)
{
    put_num(b, len, 8);
    put(b, s, len);
}

static void put_zeros(blob *b, size_t n)
{
    static const uint8_t zeros[4096];
    for (; n > sizeof zeros; n -= sizeof zeros) put(b, zeros, sizeof zeros);
    put(b, zeros, n);
}

/* t:name/4x2/type/offset; "name" may be empty */
static void put_tensor(blob *b, const char *arg)
{
    const char *dims = strchr(arg, '/') + 1, *p = dims;
    uint64_t ne[16];
    uint32_t n = 0;
    char *end;
    put_str(b, arg, (size_t)(dims - arg) - 1);
    while (*p != '/') {
        ne[n++] = strtoull(p, &end, 0);
        p = *end == 'x' ? end + 1 : end;
    }
    put_num(b, n, 4);
    for (uint32_t k = 0; k < n; k++) put_num(b, ne[k], 8);
    put_num(b, strtoull(p + 1, &end, 0), 4);
    put_num(b, strtoull(end + 1, NULL, 0), 8);
}

static blob assemble(const char *program)
{
    char *text = strdup(program), *save = NULL;
    blob b = { 0 };
    put(&b, "", 0);
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        const char *arg = w + 2;
        switch (*w) {
        case 'h':
            put(&b, "GGUF", 4);
            put_num(&b, 3, 4);
            put_num(&b, strtoull(arg, NULL, 0), 8);
            put_num(&b, strtoull(strchr(arg, ',') + 1, NULL, 0), 8);
            break;
        case 's': put_str(&b, arg, strlen(arg)); break;
        case 'r': put(&b, arg, strlen(arg)); break;
        case 't': put_tensor(&b, arg); break;
        case 'p': put_zeros(&b, (size_t)size_align(b.n, strtoull(arg, NULL, 0)) - b.n); break;
        case 'z': put_zeros(&b, strtoull(arg, NULL, 0)); break;
        default: put_num(&b, strtoull(arg, NULL, 0), (size_t)(*w - '0')); break;
        }
    }
    free(text);
    return b;
}

/* ---- damage -------------------------------------------------------------------------------- */

#define U32MAX1 "4294967296"
static const struct { const char *why, *program, *want[3]; } refused[] = {
    /* header */
    { "empty", "", { "truncated", "magic", "0 left" } },
    { "inside the magic", "r:GGU", { "truncated", "magic at byte 0", "3 left" } },
    { "web page", "r:<!DOCTYPE_html><html>aaaaaaaaa", { "not a GGUF file", "<!DO" } },
    { "pointer file", "r:version_https://git-lfs.git", { "not a GGUF file", "vers" } },
    { "version 0", "r:GGUF 4:0 8:0 8:0", { "unsupported version 0" } },
    { "version 1", "r:GGUF 4:1 8:0 8:0", { "unsupported version 1" } },
    { "version 4", "r:GGUF 4:4 8:0 8:0", { "unsupported version 4" } },
    { "big-endian", "r:GGUF 4:0x03000000 8:0 8:0", { "big-endian" } },
    { "inside the version", "r:GGUF 1:3",
      { "truncated: version at byte 4 needs 4 bytes, 1 left" } },
    { "inside the counts", "r:GGUF 4:3 8:0 4:0",
      { "truncated: key count at byte 16 needs 8 bytes" } },
    { "tensor count 2^32", "h:" U32MAX1 ",0",
      { "tensor count " U32MAX1 " cannot fit", "24 bytes" } },
    { "tensor count 2^64-1", "h:18446744073709551615,0", { "tensor count 18446744073709551615" } },
    { "key count 2^60", "h:0,1152921504606846976", { "key count 1152921504606846976 cannot fit" } },
    /* strings, keys, values */
    { "key length wraps", "h:0,1 8:18446744073709551615 z:40",
      { "string length 18446744073709551615", "byte 24", "40 bytes left" } },
    { "key length one too many", "h:0,1 8:13 r:abcdefghijkl",
      { "string length 13", "12 bytes left" } },
    { "empty key", "h:0,1 s: 4:4 4:1 z:8", { "empty key" } },
    { "value type 13", "h:0,1 s:some.key 4:13 z:8", { "key some.key has unknown value type 13" } },
    { "value type 2^31", "h:0,1 s:some.key 4:0x80000000 z:8", { "unknown value type 2147483648" } },
    { "inside a value", "h:0,1 s:abcdef 4:10 4:0", { "key abcdef", "truncated", "4 left" } },
    { "inside a string value", "h:0,1 s:abcdef 4:8 8:9 r:abc",
      { "key abcdef", "string length 9" } },
    { "no room for a value type", "h:0,1 s:abcdefgh 2:0", { "key abcdefgh", "value type" } },
    { "array of arrays", "h:0,1 s:nest 4:9 4:9 8:1 4:4 8:1 4:0", { "nested array in key nest" } },
    { "array element type 99", "h:0,1 s:k 4:9 4:99 8:1 z:8",
      { "key k has unknown array element type 99" } },
    { "array count wraps, u32", "h:0,1 s:k 4:9 4:4 8:4611686018427387904 z:8",
      { "array k claims 4611686018427387904 elements, only 8 bytes left" } },
    { "array count wraps, u64", "h:0,1 s:k 4:9 4:10 8:2305843009213693952 z:8",
      { "array k claims" } },
    { "array of strings claims too many", "h:0,1 s:k 4:9 4:8 8:1000000 z:80",
      { "array k claims 1000000 elements, only 80 bytes left" } },
    { "string in array too long", "h:0,1 s:k 4:9 4:8 8:2 s:ab 8:100 z:8",
      { "key k", "string length 100" } },
    { "same key twice", "h:0,3 s:dup 4:4 4:1 s:z 4:4 4:1 s:dup 4:0 1:1", { "duplicate key dup" } },
    { "control characters are escaped", "h:0,1 s:a\x1b[31m\n 4:77 z:8", { "a\\x1B[31m\\x0A" } },
    /* alignment */
    { "alignment 0", "h:0,1 s:general.alignment 4:4 4:0", { "general.alignment is 0" } },
    { "alignment 48", "h:0,1 s:general.alignment 4:4 4:48",
      { "general.alignment is 48, must be a power of two" } },
    { "alignment negative", "h:0,1 s:general.alignment 4:5 4:0xffffffff",
      { "general.alignment is -1" } },
    { "alignment a bool", "h:0,1 s:general.alignment 4:7 1:1", { "general.alignment is a bool" } },
    { "alignment 2^31, second tensor",
      "h:2,1 s:general.alignment 4:4 4:0x80000000 t:a/8/0/0 t:b/8/0/32 p:32 z:64",
      { "data section would start at 2147483648" } },
    { "alignment a string", "h:0,1 s:general.alignment 4:8 s:32",
      { "general.alignment is a string" } },
    { "alignment 2^31", "h:1,1 s:general.alignment 4:4 4:0x80000000 t:a/8/0/0 p:32 z:32",
      { "data section would start at 2147483648, file has 128 bytes" } },
    { "alignment 2^63", "h:1,1 s:general.alignment 4:10 8:0x8000000000000000 t:a/8/0/0 p:32 z:32",
      { "general.alignment is 9223372036854775808, too large" } },
    { "alignment 2^62", "h:1,1 s:general.alignment 4:10 8:0x4000000000000000 t:a/8/0/0 p:32 z:32",
      { "data section would start at 4611686018427387904" } },
    /* tensor infos */
    { "empty tensor name", "h:1,0 t:/8/0/0 p:32 z:32", { "empty tensor name" } },
    { "name of 64 bytes",
      "h:1,0 t:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/8/0/0 p:32 z:32",
      { "tensor name too long: 64 bytes" } },
    { "no dimensions", "h:1,0 t:a//0/0 p:32 z:32", { "tensor a has 0 dimensions" } },
    { "five dimensions", "h:1,0 t:a/1x1x1x1x1/0/0 p:32 z:32", { "tensor a has 5 dimensions" } },
    { "2^32-1 dimensions", "h:1,0 s:a 4:0xffffffff z:64",
      { "tensor a has 4294967295 dimensions" } },
    { "dimension 0", "h:1,0 t:a/8x0/0/0 p:32 z:32", { "tensor a: dimension 1 is 0" } },
    { "dimension 2^63", "h:1,0 t:a/0x8000000000000000/0/0 p:32 z:32",
      { "tensor a: dimension 0 is 9223372036854775808" } },
    { "product of dimensions wraps to 0", "h:1,0 t:a/0x100000000x0x100000000/0/0 p:32 z:32",
      { "tensor a: size overflows" } },
    { "byte size wraps to 32", "h:1,0 t:a/0x4000000000000008/0/0 p:32 z:64",
      { "tensor a: size overflows" } },
    { "slabs wrap", "h:1,0 t:a/1x1x0x100000000x0x100000000/0/0 p:32 z:32",
      { "tensor a: size overflows" } },
    { "partial block", "h:1,0 t:a/33/8/0 p:32 z:64",
      { "tensor a: row of 33 elements is not a multiple of 32 (Q8_0)" } },
    { "partial super-block", "h:1,0 t:a/128/12/0 p:32 z:160", { "not a multiple of 256 (Q4_K)" } },
    { "removed type", "h:1,0 t:a/32/4/0 p:32 z:64", { "tensor a has unsupported type 4", "Q4_2" } },
    { "removed type in a dialect",
      "h:1,1 s:general.architecture 4:8 s:gptoss t:blk.0.ffn_down_exps.weight/32/4/0 p:32 z:64",
      { "Ollama", "converted by llama.cpp", "blk.0.ffn_down_exps.weight has unsupported type 4" } },
    { "removed type 36", "h:1,0 t:a/32/36/0 p:32 z:64", { "tensor a has unsupported type 36" } },
    { "activation type", "h:1,0 t:a/32/9/0 p:32 z:64",
      { "tensor a has unsupported type 9", "Q8_1" } },
    { "activation type 15", "h:1,0 t:a/256/15/0 p:32 z:320", { "unsupported type 15", "Q8_K" } },
    { "unknown type", "h:1,0 t:a/32/43/0 p:32 z:64", { "tensor a has unsupported type 43" } },
    { "type 2^32-1", "h:1,0 t:a/32/0xffffffff/0 p:32 z:64", { "unsupported type 4294967295" } },
    { "offset not aligned", "h:1,0 t:a/8/0/16 p:32 z:64",
      { "tensor a: offset 16 is not a multiple of 32" } },
    { "offset past the data", "h:1,0 t:a/8/0/64 p:32 z:32",
      { "tensor a: bytes 64..96 lie outside the data (32 bytes); file truncated?" } },
    { "end past the data", "h:1,0 t:a/16/0/0 p:32 z:63",
      { "tensor a: bytes 0..64", "(63 bytes)" } },
    { "offset + size wraps", "h:1,0 t:a/8/0/0xffffffffffffffe0 p:32 z:32",
      { "tensor a: bytes 18446744073709551584" } },
    { "overlap", "h:2,0 t:a/16/0/0 t:b/8/0/32 p:32 z:96", { "tensors a and b overlap" } },
    { "same place", "h:2,0 t:a/8/0/0 t:b/8/0/0 p:32 z:96", { "overlap" } },
    { "same name", "h:3,0 t:a/8/0/0 t:b/8/0/32 t:a/8/0/64 p:32 z:96", { "duplicate tensor a" } },
    { "directory cut inside a name", "h:1,0 8:80 r:abc z:30",
      { "tensor name: string length 80 at byte 24 exceeds the 33 bytes left" } },
    { "directory cut", "h:1,0 s:weight 4:2 8:32 z:4", { "tensor weight", "truncated" } },
    { "no data section", "h:1,0 t:a/8/0/0",
      { "data section would start at 64, file has 57 bytes" } },
    /* split */
    { "a later part", "h:0,2 s:split.no 4:2 2:2 s:split.count 4:2 2:3",
      { "part 3 of 3", "first part", "00001-of-00003" } },
    { "split.count of the wrong type", "h:0,1 s:split.count 4:8 s:2",
      { "key split.count is string" } },
    { "split.count negative", "h:0,1 s:split.count 4:5 4:0xffffffff",
      { "split.count = -1 out of range" } },
};

static void test_refusals(void)
{
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        const char *why = refused[i].why;
        const blob b = assemble(refused[i].program);
        err_ctx err = { 0 };
        gguf *g;
        const int rc = gguf_open_memory(&g, b.data, b.n, &err);
        CHECK_MSG(rc < 0 && !g, "%s: accepted", why);
        for (int k = 0; k < 3 && refused[i].want[k] && rc < 0; k++) {
            const char *want = refused[i].want[k];
            CHECK_MSG(strstr(err.msg, want), "%s: '%s' is not in '%s'", why, want, err.msg);
        }
        CHECK_MSG(!strchr(err.msg, '\n') && !strchr(err.msg, '\x1b'),
                  "%s: raw control character", why);
        gguf_close(g);
        free(b.data);
    }
}

/* ---- good files ---------------------------------------------------------------------------- */

static const struct { const char *why, *program; int n_kv, n_tensor; } accepted[] = {
    { "nothing in it", "h:0,0", 0, 0 },
    { "version 2", "r:GGUF 4:2 8:0 8:0", 0, 0 },
    { "metadata only, no padding", "h:0,1 s:a 4:0 1:7", 1, 0 },
    { "every value type",
      "h:0,13 s:a 4:0 1:1 s:b 4:1 1:1 s:c 4:2 2:1 s:d 4:3 2:1 s:e 4:4 4:1 s:f 4:5 4:1 "
      "s:g 4:6 4:1 s:h 4:7 1:9 s:i 4:8 s: s:j 4:9 4:4 8:2 4:1 4:2 s:k 4:10 8:1 s:l 4:11 8:1 "
      "s:m 4:12 8:1", 13, 0 },
    { "empty arrays", "h:0,2 s:a 4:9 4:4 8:0 s:b 4:9 4:8 8:0", 2, 0 },
    { "padding after the last tensor missing", "h:1,0 t:a/9/0/0 p:32 z:36", 0, 1 },
    { "bytes after the last tensor", "h:1,0 t:a/8/0/0 p:32 z:500", 0, 1 },
    { "gap and other order", "h:2,0 t:a/8/0/64 t:b/8/0/0 p:32 z:96", 0, 2 },
    { "alignment 1 as u8", "h:1,1 s:general.alignment 4:0 1:1 t:a/3/24/5 z:8", 1, 1 },
    { "alignment 64 as u64", "h:1,1 s:general.alignment 4:10 8:64 t:a/8/0/64 p:64 z:96", 1, 1 },
    { "four dimensions", "h:1,0 t:a/2x2x2x2/0/0 p:32 z:64", 0, 1 },
    { "embedded NUL makes another name",
      "h:2,0 t:a/8/0/0 8:3 r:a 2:0 4:1 8:8 4:0 8:32 p:32 z:64", 0, 2 },
    { "name that is not UTF-8", "h:1,1 s:\xff\xfe 4:0 1:1 t:\xc0\x80/8/0/0 p:32 z:32", 1, 1 },
    { "split.count 1 is not split", "h:0,2 s:split.no 4:2 2:0 s:split.count 4:2 2:1", 2, 0 },
};

static void test_accepted(void)
{
    for (size_t i = 0; i < ARRAY_LEN(accepted); i++) {
        const blob b = assemble(accepted[i].program);
        err_ctx err = { 0 };
        gguf *g;
        if (CHECK_MSG(gguf_open_memory(&g, b.data, b.n, &err) == 0, "%s: %s", accepted[i].why,
                      err.msg))
            CHECK_MSG(gguf_n_kv(g) == accepted[i].n_kv && gguf_n_tensor(g) == accepted[i].n_tensor,
                      "%s: %d keys, %d tensors", accepted[i].why, gguf_n_kv(g), gguf_n_tensor(g));
        gguf_close(g);
        free(b.data);
    }
}

static const char sample[] =
    "h:2,9 s:u8 4:0 1:200 s:i8 4:1 1:200 s:u64 4:10 8:0xffffffffffffffff s:f32 4:6 4:0x3fc00000 "
    "s:nan 4:6 4:0x7fc00000 s:flag 4:7 1:2 s:text 4:8 s:hello "
    "s:list 4:9 4:5 8:3 4:7 4:0xffffffff 4:9 "
    "s:names 4:9 4:8 8:2 s:x s:yz t:w/32x3x2/8/0 t:v/5/0/224 p:32 z:244";

static void test_getters(void)
{
    const blob b = assemble(sample);
    gguf_strings it;
    str_view s;
    int64_t v = 0;
    double f = 0;
    bool flag = false;
    char text[64];
    err_ctx err;
    gguf *g;

    if (!CHECK(gguf_open_memory(&g, b.data, b.n, &err) == 0)) goto done;
    CHECK(gguf_get_int(&v, g, "u8", 0, 255, &err) == 1 && v == 200);
    CHECK(gguf_get_int(&v, g, "i8", -128, 127, &err) == 1 && v == -56);
    CHECK(gguf_get_int(&v, g, "absent", 0, 1, &err) == 0 && v == -56);
    CHECK(gguf_need_int(&v, g, "absent", 0, 1, &err) < 0 && !strcmp(err.msg, "key absent missing"));
    CHECK(gguf_get_int(&v, g, "u8", 0, 199, &err) < 0 &&
          !strcmp(err.msg, "key u8 = 200 out of range 0..199"));
    CHECK(gguf_get_int(&v, g, "u8", 201, 300, &err) < 0);
    CHECK(gguf_get_int(&v, g, "u64", 0, INT64_MAX, &err) < 0 &&
          strstr(err.msg, "18446744073709551615"));
    CHECK(gguf_get_int(&v, g, "text", 0, 1, &err) < 0 &&
          !strcmp(err.msg, "key text is string, expected an integer"));
    CHECK(gguf_get_int(&v, g, "list", 0, 9, &err) < 0 && strstr(err.msg, "array of i32"));
    CHECK(gguf_get_float(&f, g, "f32", 0, 2, &err) == 1 && f == 1.5);
    CHECK(gguf_get_float(&f, g, "u8", 0, 200, &err) == 1 && f == 200);
    CHECK(gguf_get_float(&f, g, "nan", -1e30, 1e30, &err) < 0);
    CHECK(gguf_get_float(&f, g, "f32", 0, 1, &err) < 0);
    CHECK(gguf_get_float(&f, g, "flag", 0, 1, &err) < 0 &&
          strstr(err.msg, "key flag is bool, expected a number"));
    CHECK(gguf_get_bool(&flag, g, "flag", &err) == 1 && flag);
    CHECK(gguf_get_bool(&flag, g, "u8", &err) < 0);
    CHECK(gguf_get_str(&s, g, "text", &err) == 1 && str_is(s, "hello"));
    CHECK(gguf_get_str(&s, g, "u8", &err) < 0);
    CHECK(gguf_get_int_at(&v, g, "list", 1, 3, -5, 5, &err) == 1 && v == -1);
    CHECK(gguf_get_int_at(&v, g, "list", 1, 4, -5, 5, &err) < 0 &&
          strstr(err.msg, "has 3 entries, expected 4"));
    CHECK(gguf_get_int_at(&v, g, "u8", 7, 9, 0, 255, &err) == 1 && v == 200);
    it = gguf_strings_begin(gguf_find(g, "names"));
    CHECK(gguf_strings_next(&it, &s) && str_is(s, "x"));
    CHECK(gguf_strings_next(&it, &s) && str_is(s, "yz") && !gguf_strings_next(&it, &s));
    it = gguf_strings_begin(gguf_find(g, "list"));
    CHECK(!gguf_strings_next(&it, &s));

    const tensor *w = gguf_tensor(g, "w");
    CHECK(w && w->cols == 32 && w->rows == 3 && w->slabs == 2 && w->row_bytes == 34 &&
          w->slab_bytes == 102);
    CHECK(w && w->bytes == 204 && w->elems == 192 && w->data == b.data + w->offset);
    CHECK(w && tensor_row(w, 1, 2) == w->data + 102 + 68);
    CHECK(w && (uint64_t)(w->data - b.data) % 32 == 0);
    CHECK(w && !strcmp(tensor_shape_text(text, sizeof text, w), "[32, 3, 2]"));
    CHECK(!gguf_tensor(g, "") && !gguf_tensor(g, "ww") && gguf_tensor(g, "v"));
    gguf_close(g);
done:
    free(b.data);
}

/* Every prefix of a good file is refused or opens; none reads outside its bytes. The copy has the
 * exact size, so that a sanitizer sees one byte too many. */
static void test_every_cut(void)
{
    const blob b = assemble(sample);
    int opened = 0;
    for (size_t n = 0; n <= b.n; n++) {
        uint8_t *copy = malloc(n ? n : 1);
        err_ctx err;
        gguf *g;
        memcpy(copy, b.data, n);
        opened += gguf_open_memory(&g, copy, n, &err) == 0;
        gguf_close(g);
        free(copy);
    }
    CHECK_MSG(opened == 1, "%d prefixes opened, only the whole file should", opened);
    free(b.data);
}

static void test_no_memory(void)
{
    const blob b = assemble(sample);
    bool ok = false;
    for (long n = 1; n < 100 && !ok; n++) {
        err_ctx err = { 0 };
        gguf *g;
        mem_fail_after(n);
        ok = gguf_open_memory(&g, b.data, b.n, &err) == 0;
        mem_fail_after(0);
        CHECK_MSG(ok || (err.code == ERR_NOMEM && !g), "allocation %ld: %s", n, err.msg);
        gguf_close(g);
    }
    CHECK(ok);
    free(b.data);
}

/* ---- files and splits ---------------------------------------------------------------------- */

static char folder[400];

static const char *write_blob(char *path, size_t cap, const char *name, const char *program)
{
    const blob b = assemble(program);
    FILE *f = fopen(test_path(path, cap, "%s/%s", folder, name), "wb");
    CHECK(f && fwrite(b.data, 1, b.n, f) == b.n);
    if (f) fclose(f);
    free(b.data);
    return path;
}

static const struct { const char *why, *first, *second, *want; int n_tensor; } splits[] = {
    { "two parts",
      "s:split.no 4:2 2:0 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:2 t:a/8/0/0 p:32 z:32",
      "s:split.no 4:2 2:1 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:2 t:b/16/0/0 p:32 z:64",
      NULL, 2 },
    { "missing part",
      "s:split.no 4:2 2:0 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:2 t:a/8/0/0 p:32 z:32",
      NULL, "00002-of-00002.gguf: cannot open: No such file", 0 },
    { "damaged part",
      "s:split.no 4:2 2:0 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:2 t:a/8/0/0 p:32 z:32",
      "s:split.no 4:2 2:1 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:2 t:b/16/0/0 p:32 z:63",
      "part 2 of 2", 0 },
    { "misnumbered part",
      "s:split.no 4:2 2:0 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:2 t:a/8/0/0 p:32 z:32",
      "s:split.no 4:2 2:0 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:2 t:b/16/0/0 p:32 z:64",
      "split.no is 0 and split.count 2, expected 1 and 2", 0 },
    { "other count",
      "s:split.no 4:2 2:0 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:2 t:a/8/0/0 p:32 z:32",
      "s:split.no 4:2 2:1 s:split.count 4:2 2:3 s:split.tensors.count 4:5 4:2 t:b/16/0/0 p:32 z:64",
      "split.count 3, expected 1 and 2", 0 },
    { "name again",
      "s:split.no 4:2 2:0 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:2 t:a/8/0/0 p:32 z:32",
      "s:split.no 4:2 2:1 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:2 t:a/16/0/0 p:32 z:64",
      "duplicate tensor a", 0 },
    { "wrong total",
      "s:split.no 4:2 2:0 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:3 t:a/8/0/0 p:32 z:32",
      "s:split.no 4:2 2:1 s:split.count 4:2 2:2 s:split.tensors.count 4:5 4:3 t:b/16/0/0 p:32 z:64",
      "split.tensors.count is 3, the 2 parts hold 2 tensors", 0 },
};

static void test_splits(void)
{
    char path[512], text[1024];
    for (size_t i = 0; i < ARRAY_LEN(splits); i++) {
        err_ctx err = { 0 };
        gguf *g;
        unlink(test_path(path, sizeof path, "%s/m-00002-of-00002.gguf", folder));
        if (splits[i].second)
            write_blob(path, sizeof path, "m-00002-of-00002.gguf",
                       test_path(text, sizeof text, "h:1,3 %s", splits[i].second));
        write_blob(path, sizeof path, "m-00001-of-00002.gguf",
                   test_path(text, sizeof text, "h:1,3 %s", splits[i].first));
        const int rc = gguf_open(&g, path, &err);
        if (!splits[i].want) {
            CHECK_MSG(rc == 0, "%s: %s", splits[i].why, err.msg);
            CHECK(rc < 0 || (gguf_n_tensor(g) == splits[i].n_tensor && gguf_n_part(g) == 2));
            CHECK(rc < 0 || (gguf_tensor(g, "b")->part == 1 && gguf_tensor(g, "b")->elems == 16));
            CHECK(rc < 0 || gguf_find(g, "split.count"));
        } else {
            CHECK_MSG(rc < 0 && strstr(err.msg, splits[i].want), "%s: %s", splits[i].why, err.msg);
        }
        gguf_close(g);
    }

    err_ctx err = { 0 };
    gguf *g;
    write_blob(path, sizeof path, "renamed.gguf",
               test_path(text, sizeof text, "h:1,3 %s", splits[0].first));
    CHECK(gguf_open(&g, path, &err) < 0 && strstr(err.msg, "must end in -00001-of-00002.gguf"));
    write_blob(path, sizeof path, "m-00002-of-00002.gguf",
               test_path(text, sizeof text, "h:1,3 %s", splits[0].second));
    CHECK(gguf_open(&g, path, &err) < 0 && strstr(err.msg, "name the first part"));
}

static void test_split_no_memory(void)
{
    char path[512];
    bool ok = false;
    test_path(path, sizeof path, "%s/m-00001-of-00002.gguf", folder);
    char text[1024];
    write_blob(path, sizeof path, "m-00002-of-00002.gguf",
               test_path(text, sizeof text, "h:1,3 %s", splits[0].second));
    write_blob(path, sizeof path, "m-00001-of-00002.gguf",
               test_path(text, sizeof text, "h:1,3 %s", splits[0].first));
    for (long n = 1; n < 100 && !ok; n++) {
        err_ctx err = { 0 };
        gguf *g;
        mem_fail_after(n);
        ok = gguf_open(&g, path, &err) == 0;
        mem_fail_after(0);
        CHECK_MSG(ok || (err.code == ERR_NOMEM && !g), "allocation %ld: %s", n, err.msg);
        gguf_close(g);
    }
    CHECK(ok);
}

/* A tensor of 45 GB in a sparse file: opening must not read it, nor allocate for it. */
static void test_big_file(void)
{
    const uint64_t ne[3] = { 2048, 512, 512 * 60 };
    gguf_writer *w = gguf_writer_create();
    const uint8_t *head;
    size_t head_bytes;
    char path[512];
    err_ctx err;
    gguf *g;
    long before;

    test_path(path, sizeof path, "%s/big.gguf", folder);
    gguf_write_tensor(w, "x", QT_Q8_0, ne, 3);
    CHECK(gguf_write_head(w, &head, &head_bytes, &err) == 0);
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && pwrite(fd, head, head_bytes, 0) == (ssize_t)head_bytes);
    if (ftruncate(fd, (off_t)gguf_write_file_bytes(w)) < 0) {
        test_skip("the file system holds no sparse file of 34 GB");
    } else {
        before = mem_count();
        const int rc = gguf_open(&g, path, &err);
        if (rc == 0 || !test_map_refused(&err)) {
            CHECK_MSG(rc == 0, "%s", err.msg);
            CHECK_MSG(mem_count() - before < 20, "%ld allocations", mem_count() - before);
            CHECK(g && gguf_tensor(g, "x")->bytes == 34225520640u);
        }
        gguf_close(g);
    }
    close(fd);
    unlink(path);
    gguf_writer_free(w);
}

static void test_not_files(void)
{
    err_ctx err;
    gguf *g;
    char path[512];
    test_path(path, sizeof path, "%s/none/x.gguf", folder);
    CHECK(gguf_open(&g, path, &err) < 0 && strstr(err.msg, "No such file"));
    CHECK(gguf_open(&g, "/", &err) < 0 && strstr(err.msg, "directory"));
    CHECK(gguf_open(&g, "/dev/null", &err) < 0 && strstr(err.msg, "not a regular file"));
}

/* ---- writer -------------------------------------------------------------------------------- */

static void test_writer(void)
{
    static const uint64_t ne_a[2] = { 64, 3 }, ne_b[1] = { 7 };
    static const int32_t numbers[3] = { 1, -2, 3 };
    gguf_writer *w = gguf_writer_create();
    const uint8_t *head;
    size_t head_bytes;
    int64_t v;
    str_view s;
    err_ctx err;
    gguf *g;
    uint8_t *file;

    gguf_write_str(w, "general.architecture", str_from("none"));
    gguf_write_u32(w, "general.alignment", 64);
    gguf_write_array(w, "numbers", GGUF_I32, numbers, 3);
    gguf_write_str_array(w, "names", 2);
    gguf_write_array_str(w, str_from("one"));
    gguf_write_array_str(w, str_from(""));
    gguf_write_bool(w, "yes", true);
    const int a = gguf_write_tensor(w, "a", QT_Q4_0, ne_a, 2),
              b = gguf_write_tensor(w, "b", QT_F32, ne_b, 1);
    CHECK(gguf_write_head(w, &head, &head_bytes, &err) == 0 && head_bytes % 64 == 0);
    file = calloc(1, gguf_write_file_bytes(w));
    memcpy(file, head, head_bytes);
    CHECK_MSG(gguf_open_memory(&g, file, gguf_write_file_bytes(w), &err) == 0, "%s", err.msg);
    CHECK(g && gguf_n_kv(g) == 5 && gguf_n_tensor(g) == 2);
    CHECK(g && gguf_tensor(g, "a")->offset == gguf_write_data_at(w, a) &&
          gguf_write_data_bytes(w, a) == 108);
    CHECK(g && gguf_tensor(g, "b")->offset == gguf_write_data_at(w, b) &&
          gguf_tensor(g, "b")->offset % 64 == 0);
    CHECK(g && gguf_get_int_at(&v, g, "numbers", 1, 3, -9, 9, &err) == 1 && v == -2);
    CHECK(g && gguf_get_str(&s, g, "general.architecture", &err) == 1 && str_is(s, "none"));
    gguf_close(g);
    gguf_writer_free(w);
    free(file);
}

int main(int argc, char **argv)
{
    test_begin("gguf", argc, argv);
    if (!CHECK(mkdtemp(test_temp(folder, sizeof folder)))) return test_end();
    test_refusals();
    test_accepted();
    test_getters();
    test_every_cut();
    test_no_memory();
    test_splits();
    test_split_no_memory();
    test_big_file();
    test_not_files();
    test_writer();
    test_remove(folder);
    return test_end();
}
