/* model_list.h - models.txt: the known model files and their addresses.
 *
 * The list is in the program's folder or where `make install` put it. Every line is checked; a bad
 * one is an error with its number, never skipped. */
#ifndef CLI_MODEL_LIST_H
#define CLI_MODEL_LIST_H

#include <limits.h>

#include "loader/base.h"

enum { LIST_NAME, LIST_REPO, LIST_FILE, LIST_BYTES, LIST_SHA256, LIST_NOTES, LIST_FIELDS };

typedef struct list_entry {
    str_view field[LIST_FIELDS];         /* into the list's text */
    uint64_t bytes;                      /* of all parts */
    bool about;                          /* the size is not exact */
    int n_part;                          /* 1, or N of "-00001-of-0000N.gguf" */
} list_entry;

/* Zero-initialise; model_list_release in any case. */
typedef struct model_list {
    char path[PATH_MAX];                 /* for messages; "models.txt" until it is found */
    char *text;
    list_entry *entries;
    int n_entry, cap;
} model_list;

int model_list_load(model_list *l, err_ctx *err);
void model_list_release(model_list *l);

bool list_entry_is_here(const list_entry *e);    /* comes with the program: nothing to download */
bool list_entry_is_hashed(const list_entry *e);  /* sha256 is not "-" */

/* The file of part p (0 is the first) as the list would name it. False if it does not fit. */
bool list_entry_file(char *dst, size_t cap, const list_entry *e, int p);

enum { PLACE_CAP = PATH_MAX + 256 };

/* The path of a file that comes with the program: relative to the list's folder as in the source
 * tree, or in that folder as installed. False if neither exists. */
bool model_list_find_here(char dst[PLACE_CAP], const model_list *l, const list_entry *e);

extern const char *const model_list_hub;         /* where repositories are, without a slash */

#endif
