/* test_gguf.c - the loader: good files open and say what they hold, every kind of damage is refused
 * with a message that names the thing and the numbers, and nothing leaks when memory runs out.
 *
 * Files, most of them in tests/cases/gguf.txt, are written in a small assembler that shows their
 * bytes:
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
#include "tests/case_file.h"

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

/* ---- damaged files, and good ones ---------------------------------------------------------- */

/* words: separated by |; all must be in the message. */
static void check_refused(const char *why, const char *program, char *words)
{
    const blob b = assemble(program);
    err_ctx err = { 0 };
    gguf *g;
    const int rc = gguf_open_memory(&g, b.data, b.n, &err);
    CHECK_MSG(rc < 0 && !g, "%s: accepted", why);
    for (char *want = strtok(words, "|"); want && rc < 0; want = strtok(NULL, "|"))
        CHECK_MSG(strstr(err.msg, want), "%s: '%s' is not in '%s'", why, want, err.msg);
    CHECK_MSG(!strchr(err.msg, '\n') && !strchr(err.msg, '\x1b'), "%s: raw control character", why);
    gguf_close(g);
    free(b.data);
}

static void check_taken(const char *why, const char *program, int n_kv, int n_tensor)
{
    const blob b = assemble(program);
    err_ctx err = { 0 };
    gguf *g;
    if (CHECK_MSG(gguf_open_memory(&g, b.data, b.n, &err) == 0, "%s: %s", why, err.msg))
        CHECK_MSG(gguf_n_kv(g) == n_kv && gguf_n_tensor(g) == n_tensor, "%s: %d keys, %d tensors",
                  why, gguf_n_kv(g), gguf_n_tensor(g));
    gguf_close(g);
    free(b.data);
}

static void test_cases(void)
{
    static case_file file;
    const bool ok = case_file_read(&file, "gguf.txt");
    for (int i = 0; i < file.n && ok; i++) {
        const test_case *c = &file.cases[i];
        int n_kv = 0, n_tensor = 0;
        if (sscanf(c->want, "%d %d", &n_kv, &n_tensor) == 2 && case_begins(c->head, "taken", ':'))
            check_taken(c->head, c->body, n_kv, n_tensor);
        else check_refused(c->head, c->body, c->want);
    }
    case_file_free(&file);
    char escaped[] = "a\\x1B[31m\\x0A";
    check_refused("control characters", "h:0,1 s:a\x1b[31m\n 4:77 z:8", escaped);
    check_taken("not UTF-8", "h:1,1 s:\xff\xfe 4:0 1:1 t:\xc0\x80/8/0/0 p:32 z:32", 1, 1);
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

#define PART(no, count, total, tensor)                                                             \
    "s:split.no 4:2 2:" #no " s:split.count 4:2 2:" #count                                         \
    " s:split.tensors.count 4:5 4:" #total " t:" tensor
#define FIRST(total) PART(0, 2, total, "a/8/0/0 p:32 z:32")
static const struct { const char *why, *first, *second, *want; int n_tensor; } splits[] = {
    { "two parts", FIRST(2), PART(1, 2, 2, "b/16/0/0 p:32 z:64"), NULL, 2 },
    { "missing part", FIRST(2), NULL, "00002-of-00002.gguf: cannot open: No such file", 0 },
    { "damaged part", FIRST(2), PART(1, 2, 2, "b/16/0/0 p:32 z:63"), "part 2 of 2", 0 },
    { "misnumbered part", FIRST(2), PART(0, 2, 2, "b/16/0/0 p:32 z:64"),
      "split.no is 0 and split.count 2, expected 1 and 2", 0 },
    { "other count", FIRST(2), PART(1, 3, 2, "b/16/0/0 p:32 z:64"),
      "split.count 3, expected 1 and 2", 0 },
    { "name again", FIRST(2), PART(1, 2, 2, "a/16/0/0 p:32 z:64"), "duplicate tensor a", 0 },
    { "wrong total", FIRST(3), PART(1, 2, 3, "b/16/0/0 p:32 z:64"),
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
    test_cases();
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
