/* mem_space.c - RAM as a space: mapped memory, copied by the CPU. VRAM: mem_space_vram.c. */
#include "tiers/mem_space.h"

#include <string.h>
#include <sys/mman.h>

/* No huge pages for sparsely used memory: where a session's store has a region for every head of
 * every layer, the first token would commit 2 MiB in each. */
static int ram_alloc(void **out, mem_space *self, uint64_t bytes, mem_space_use use,
                     const char *what, err_ctx *err)
{
    const int sparse = use == MEM_SPARSE ? MAP_NORESERVE : 0;
    void *p = MAP_FAILED;
    (void)self;
    *out = NULL;
    if (bytes <= PTRDIFF_MAX)
        p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | sparse,
                 -1, 0);
    if (p == MAP_FAILED)
        return err_set(err, ERR_NOMEM, "no room for %s: %llu bytes (%.1f GB)", what,
                       (unsigned long long)bytes, (double)bytes * 1e-9);
    if (sparse) madvise(p, (size_t)bytes, MADV_NOHUGEPAGE);      /* a kernel without them says no */
    *out = p;
    return 0;
}

static void ram_free(mem_space *self, void *p, uint64_t bytes)
{
    (void)self;
    if (p) munmap(p, (size_t)bytes);
}

static void ram_copy(mem_space *self, void *to, const void *from, size_t n)
{
    (void)self;
    if (n > 0) memcpy(to, from, n);      /* with no bytes there may be no address either */
}

static void ram_zero(mem_space *self, void *p, size_t n)
{
    (void)self;
    if (n > 0) memset(p, 0, n);
}

static int ram_check(mem_space *self, err_ctx *err)
{
    (void)self;
    (void)err;
    return 0;
}

mem_space *mem_space_ram(void)
{
    static mem_space ram = {                 /* set once */
        "RAM", true, ram_alloc, ram_free, ram_copy, ram_copy, ram_copy, ram_zero,
        ram_check,
    };
    return &ram;
}
