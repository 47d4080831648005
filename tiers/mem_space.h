/* mem_space.h - a place where bytes live: RAM, or memory that the CPU cannot address.
 *
 * What is kept in a space has addresses there, and arithmetic on them is fine. Follow them as
 * pointers only where the space is addressable; elsewhere the functions below move the bytes.
 *
 * read, write, zero and copy take effect in the order of the calls. They return nothing: the first
 * failure is kept, and check reports it from then on. Until check has returned 0, do not rely on
 * what they did. One thread at a time; RAM may be used by any number. */
#ifndef TIERS_MEM_SPACE_H
#define TIERS_MEM_SPACE_H

#include "loader/base.h"

typedef enum mem_space_use {
    MEM_DENSE,                         /* all of it is used, and often */
    MEM_SPARSE                         /* much of it perhaps never: RAM is committed in small pages,
                                        * at the first write */
} mem_space_use;

typedef struct mem_space mem_space;

struct mem_space {
    const char *name;
    bool addressable;                    /* by the CPU */

    /* bytes (1 or more) of zeros, at a multiple of 64. what names the use: "no room for WHAT: ...".
     * Returns 0, or < 0 with *err filled and *out NULL. */
    int (*alloc)(void **out, mem_space *self, uint64_t bytes, mem_space_use use, const char *what,
                 err_ctx *err);
    void (*free)(mem_space *self, void *p, uint64_t bytes);  /* bytes as allocated; NULL is fine */

    void (*read)(mem_space *self, void *to, const void *from, size_t n);     /* to RAM */
    void (*read_later)(mem_space *self, void *to, const void *from, size_t n);   /* complete after
                                                                              * the next check */
    void (*write)(mem_space *self, void *to, const void *from, size_t n);    /* from RAM */
    void (*zero)(mem_space *self, void *p, size_t n);
    /* within the space; the two do not overlap */
    void (*copy)(mem_space *self, void *to, const void *from, size_t n);

    /* Waits for all earlier calls. Returns 0, or the first failure with *err filled. */
    int (*check)(mem_space *self, err_ctx *err);
};

mem_space *mem_space_ram(void);                  /* not to be freed; never fails except in alloc */

/* The memory of a GPU. Borrows g, which must outlive the space; the space must outlive what was
 * allocated in it. */
struct gpu;
int mem_space_vram_create(mem_space **out, struct gpu *g, err_ctx *err);
void mem_space_vram_free(mem_space *s);          /* NULL is fine */

#endif
