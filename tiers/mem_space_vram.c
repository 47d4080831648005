/* mem_space_vram.c - the memory of a GPU as a space.
 *
 * Everything goes through the GPU's one stream, so it is in order with what is computed there. The
 * first failure of a transfer is kept here; check reports one that the GPU itself kept. */
#include "cuda/gpu.h"
#include "tiers/mem_space.h"

typedef struct vram {
    mem_space face;                      /* first: a space is a vram */
    gpu *g;                              /* borrowed */
    err_ctx first;                       /* code 0: nothing has failed */
} vram;

static vram *of(mem_space *self) { return (vram *)self; }

/* The destination of the next failure; only the first one is kept. */
static err_ctx *note(vram *v) { return v->first.code == 0 ? &v->first : NULL; }

static int vram_alloc(void **out, mem_space *self, uint64_t bytes, mem_space_use use,
                      const char *what, err_ctx *err)
{
    gpu *g = of(self)->g;
    err_ctx own = { 0 };
    err_ctx *e = err ? err : &own;
    int rc;
    (void)use;                           /* VRAM is committed at once, whatever it is for */
    *out = NULL;
    void *p = gpu_alloc(g, bytes, what, e);
    if (!p) return e->code;
    if ((rc = gpu_zero(g, p, bytes, e)) < 0) {
        gpu_free(g, p);
        return rc;
    }
    *out = p;
    return 0;
}

static void vram_release(mem_space *self, void *p, uint64_t bytes)
{
    (void)bytes;
    gpu_free(of(self)->g, p);
}

static void vram_read(mem_space *self, void *to, const void *from, size_t n)
{
    if (n > 0) gpu_read(of(self)->g, to, from, n, note(of(self)));
}

static void vram_read_later(mem_space *self, void *to, const void *from, size_t n)
{
    if (n > 0) gpu_read_later(of(self)->g, to, from, n, note(of(self)));
}

static void vram_write(mem_space *self, void *to, const void *from, size_t n)
{
    if (n > 0) gpu_write_later(of(self)->g, to, from, n, note(of(self)));
}

static void vram_zero(mem_space *self, void *p, size_t n)
{
    if (n > 0) gpu_zero(of(self)->g, p, n, note(of(self)));
}

static int vram_check(mem_space *self, err_ctx *err)
{
    vram *v = of(self);
    gpu_copies_end(v->g, note(v));       /* earlier reads are complete now */
    const err_ctx first = v->first;
    v->first = (err_ctx){ 0 };
    if (first.code == 0) return gpu_wait(v->g, err);     /* reports a lost device again */
    if (err) *err = first;
    return first.code;
}

int mem_space_vram_create(mem_space **out, gpu *g, err_ctx *err)
{
    vram *v = mem_zalloc(sizeof *v);
    *out = NULL;
    if (!v) return err_set(err, ERR_NOMEM, "VRAM: no memory for %zu bytes", sizeof *v);
    v->g = g;
    v->face = (mem_space){ "VRAM", false, vram_alloc, vram_release, vram_read,
                           vram_read_later, vram_write, vram_zero, vram_check };
    *out = &v->face;
    return 0;
}

void mem_space_vram_free(mem_space *s)
{
    mem_free(s);                         /* its first member begins the vram */
}
