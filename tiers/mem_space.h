/* mem_space.h - one interface to RAM and to memory that the CPU cannot address.
 *
 * Address arithmetic is valid in each space. Dereference addresses only if the space is
 * addressable; otherwise use the functions below.
 *
 * read, write and zero take effect in the order of the calls. They return nothing: the space
 * stores the first failure, and every later check reports it. Results are valid after check has
 * returned 0. One thread at a time; any number for RAM. */
#ifndef TIERS_MEM_SPACE_H
#define TIERS_MEM_SPACE_H

#include "loader/base.h"

typedef enum mem_space_use {
    MEM_DENSE,                         /* all bytes are used often */
    MEM_SPARSE                         /* many bytes may never be used: RAM is committed in small
                                        * pages, at the first write */
} mem_space_use;

typedef struct mem_space mem_space;

struct mem_space {
    const char *name;
    bool addressable;                    /* by the CPU */

    /* bytes (1 or more) of zeros, at a multiple of 64. what: the use, for messages. Returns 0, or
     * < 0 with *err filled and *out NULL. */
    int (*alloc)(void **out, mem_space *self, uint64_t bytes, mem_space_use use, const char *what,
                 err_ctx *err);
    void (*free)(mem_space *self, void *p, uint64_t bytes);  /* bytes as allocated; NULL is fine */

    void (*read)(mem_space *self, void *to, const void *from, size_t n);     /* to RAM */
    void (*read_later)(mem_space *self, void *to, const void *from, size_t n);   /* complete after
                                                                              * the next check */
    void (*write)(mem_space *self, void *to, const void *from, size_t n);    /* from RAM */
    void (*zero)(mem_space *self, void *p, size_t n);

    /* Waits for all earlier calls. Returns 0, or the first failure with *err filled. */
    int (*check)(mem_space *self, err_ctx *err);
};

mem_space *mem_space_ram(void);                  /* static; only alloc can fail */

/* The memory of a GPU. Borrows g, which must outlive the space; the space must outlive its
 * allocations. */
struct gpu;
int mem_space_vram_create(mem_space **out, struct gpu *g, err_ctx *err);
void mem_space_vram_free(mem_space *s);          /* NULL is fine */

#endif
