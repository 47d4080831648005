/* make_store.h - small models with experts of random bytes: in memory, in a file, in two files. */
#ifndef TESTS_MAKE_STORE_H
#define TESTS_MAKE_STORE_H

#include "tests/make_model.h"

typedef enum made_where { IN_MEMORY, IN_FILE, IN_PARTS } made_where;

typedef struct made_model {
    gguf *g;
    model *m;
    maker_file origin;                   /* the same model in memory: bytes to compare with */
    model *reference;                    /* bound to it */
    char folder[256], paths[2][300];
    int n_path;
} made_model;

/* False after a failed check. Weights are such that arithmetic with them makes sense. Free with
 * made_close, also then. */
bool made_open(made_model *out, const maker *mk, made_where where);
void made_close(made_model *f);

/* A model whose layers have experts of different types and sizes. */
maker made_maker(model_arch arch, int n_expert, int n_used, unsigned variants);

/* Drops the files from the page cache if possible; false if they are still there. */
bool made_forget_pages(const made_model *f);

/* The bytes that a slab must have, and whether it has them; NULL has not. */
const uint8_t *made_slab(const made_model *f, int layer, expert_slab slab, int expert);
bool made_slab_is(const made_model *f, int layer, expert_slab slab, int expert, const uint8_t *at);

#endif
