/* make_store.c - fills the tensors of a made model and writes it to memory or files. */
#include "tests/make_store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loader/gguf_write.h"
#include "tests/make_weights.h"

/* ---- the model ------------------------------------------------------------------------------- */

static quant_type type_of(const char *name, int layer)
{
    static const quant_type ups[] = { QT_Q8_0, QT_MXFP4, QT_F32, QT_Q4_0 };
    static const quant_type downs[] = { QT_MXFP4, QT_Q8_0, QT_Q5_0, QT_F32 };
    if (!strstr(name, "_exps") || !strstr(name, ".weight")) return QT_F32;
    return (strstr(name, "down") ? downs : ups)[layer % 4];
}

maker made_maker(model_arch arch, int n_expert, int n_used, unsigned variants)
{
    maker mk = maker_small(arch);
    mk.n_expert = n_expert;
    mk.n_used = n_used;
    mk.type_of = type_of;
    mk.variants = variants;
    return mk;
}

/* Experts are random; whatever else is F32 gets small numbers, so that biases and scales show. */
static void fill_tensor(uint8_t *data, const tensor *t, test_rng *rng)
{
    if (t->n_dims == 3) {
        for (uint64_t r = 0; r < t->rows * t->slabs; r++)
            weight_row_make(data + r * t->row_bytes, t->type, (int)t->cols, WEIGHTS_PLAUSIBLE, rng);
        return;
    }
    if (t->type != QT_F32) return;
    for (uint64_t i = 0; i < t->elems; i++) {
        const float v = (float)(test_below(rng, 2001) + 1) / 2000.0f;
        memcpy(data + i * sizeof v, &v, sizeof v);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool write_parts(const char *path, const uint8_t *head, size_t head_bytes,
                        const gguf_writer *w, const tensor *const *tensors, int n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && pwrite(fd, head, head_bytes, 0) == (ssize_t)head_bytes;
    for (int i = 0; ok && i < n; i++)
        ok = pwrite(fd, tensors[i]->data, (size_t)tensors[i]->bytes,
                    (off_t)gguf_write_data_at(w, i)) == (ssize_t)tensors[i]->bytes;
    ok = ok && ftruncate(fd, (off_t)gguf_write_file_bytes(w)) == 0 && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    return CHECK_MSG(ok, "write %s", path);
}

static void copy_tensor(gguf_writer *w, const tensor *t)
{
    const uint64_t ne[4] = { t->cols, t->rows, t->slabs / t->outer, t->outer };
    char name[TENSOR_MAX_NAME + 1];
    snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.ptr);
    gguf_write_tensor(w, name, t->type, ne, t->n_dims);
}

/* Part no of n: tensors whose number is no modulo n, so that every layer is in all of them. */
static bool write_part(const char *path, const gguf *g, int no, int n)
{
    const int n_tensor = gguf_n_tensor(g);
    const tensor **own = test_alloc((size_t)n_tensor, sizeof *own);
    gguf_writer *w = gguf_writer_create();
    const uint8_t *head;
    size_t head_bytes;
    int n_own = 0;
    for (int i = 0; no == 0 && i < gguf_n_kv(g); i++) gguf_write_copy(w, gguf_kv_at(g, i));
    if (n > 1) {
        const uint16_t split_no = (uint16_t)no, split_n = (uint16_t)n;
        gguf_write_kv(w, "split.no", GGUF_U16, &split_no, sizeof split_no);
        gguf_write_kv(w, "split.count", GGUF_U16, &split_n, sizeof split_n);
        gguf_write_kv(w, "split.tensors.count", GGUF_I32, &(int32_t){ n_tensor }, 4);
    }
    for (int i = no; i < n_tensor; i += n) {
        own[n_own++] = gguf_tensor_at(g, i);
        copy_tensor(w, own[n_own - 1]);
    }
    const bool ok = CHECK(gguf_write_head(w, &head, &head_bytes, NULL) == 0) &&
                    write_parts(path, head, head_bytes, w, own, n_own);
    gguf_writer_free(w);
    mem_free(own);
    return ok;
}

static bool write_files(made_model *f, int n)
{
    if (!CHECK(mkdtemp(test_temp(f->folder, sizeof f->folder)))) {
        f->folder[0] = '\0';
        return false;
    }
    for (int i = 0; i < n; i++) {
        char *path = f->paths[i];
        if (n == 1) snprintf(path, sizeof f->paths[i], "%s/m.gguf", f->folder);
        else snprintf(path, sizeof f->paths[i], "%s/m-%05d-of-%05d.gguf", f->folder, i + 1, n);
        f->n_path = i + 1;
        if (!write_part(path, f->origin.g, i, n)) return false;
    }
    return true;
}

bool made_open(made_model *out, const maker *mk, made_where where)
{
    err_ctx err = { 0 };
    test_rng rng = { 5 };
    memset(out, 0, sizeof *out);
    if (!CHECK_MSG(maker_open(&out->origin, mk, &err) == 0, "%s", err.msg)) return false;
    for (int i = 0; i < gguf_n_tensor(out->origin.g); i++) {
        const tensor *t = gguf_tensor_at(out->origin.g, i);
        fill_tensor(out->origin.bytes + t->offset, t, &rng);
    }
    if (!CHECK_MSG(model_bind(&out->reference, out->origin.g, &err) == 0, "%s", err.msg))
        return false;
    if (where == IN_MEMORY) {
        out->g = out->origin.g;
        out->m = out->reference;
        return true;
    }
    return write_files(out, where == IN_PARTS ? 2 : 1) &&
           CHECK_MSG(gguf_open(&out->g, out->paths[0], &err) == 0, "%s", err.msg) &&
           CHECK_MSG(model_bind(&out->m, out->g, &err) == 0, "%s", err.msg);
}

void made_close(made_model *f)
{
    if (f->m != f->reference) {
        model_free(f->m);
        gguf_close(f->g);
    }
    model_free(f->reference);
    maker_close(&f->origin);
    for (int i = 0; i < f->n_path; i++) unlink(f->paths[i]);
    if (f->folder[0]) rmdir(f->folder);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static bool is_cached(int fd, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page;
    unsigned char *there = test_alloc(n, 1);
    void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    bool all = at != MAP_FAILED && mincore(at, bytes, there) == 0;
    for (size_t i = 0; all && i < n; i++) all = there[i] & 1;
    if (at != MAP_FAILED) munmap(at, bytes);
    mem_free(there);
    return all;
}

bool made_forget_pages(const made_model *f)
{
    bool gone = f->n_path > 0;
    for (int i = 0; i < f->n_path; i++) {
        const int fd = open(f->paths[i], O_RDONLY | O_CLOEXEC);
        const off_t bytes = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
        if (fd >= 0) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        gone = gone && fd >= 0 && !is_cached(fd, (size_t)bytes);
        if (fd >= 0) close(fd);
    }
    return gone;
}

const uint8_t *made_slab(const made_model *f, int layer, expert_slab slab, int expert)
{
    return expert_slab_data(f->reference->layers[layer].experts, slab, expert);
}

bool made_slab_is(const made_model *f, int layer, expert_slab slab, int expert, const uint8_t *at)
{
    const uint64_t bytes = expert_slab_bytes(f->m->layers[layer].experts, slab);
    return at && memcmp(at, made_slab(f, layer, slab, expert), (size_t)bytes) == 0;
}
