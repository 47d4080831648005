/* profile_file.h - files of a few numbers about a model's experts: which model they are of, and how
 * they are read and replaced.
 *
 * One JSON object: what kind of file it is, its version, the model, the shape, and what the kind
 * adds. Such files are passed on between people, so reading trusts nothing, and nothing in them
 * tells of a machine or its folders. Where they lie is the caller's decision.
 *
 * A failure is one line that names the thing and the number; nothing is changed then. Any
 * thread. */
#ifndef MOE_PROFILE_FILE_H
#define MOE_PROFILE_FILE_H

#include "loader/base.h"

enum {
    PROFILE_MOST_EXPERTS = 1000000,      /* of all layers together */
    PROFILE_MOST_BYTES = 64 << 20        /* of a file: more than that many experts need */
};

/* What a file holds for: a difference in any but the name means that it is another model's. */
typedef struct profile_key {
    uint64_t model;                      /* a hash of its tensors; in the file 16 hex digits */
    int n_layer, n_expert;               /* layers with experts, and experts of one */
    char name[128];                      /* for people */
} profile_key;

struct json_t;                           /* of Jansson, which only the .c files need */

/* A kind of such files. */
typedef struct profile_kind {
    const char *format;                  /* what the file calls itself */
    int version;
    const char *const *names;            /* [n_name]: the keys that it adds to the object */
    int n_name;
} profile_kind;

/* The object in a text of at most `most` bytes, if it is of this kind, version and key, has no key
 * twice and none that is unknown. The caller releases it with json_decref. */
int profile_file_parse(struct json_t **out, str_view text, size_t most, const profile_kind *kind,
                       const profile_key *expected, err_ctx *err);

/* < 0 if the object has a key that is not one of the names; `of` says in the message whose key. */
int profile_file_known(const struct json_t *object, const char *of, const char *const *names,
                       int n_name, err_ctx *err);

/* An object with what all kinds have; NULL without memory. The caller adds the rest. */
struct json_t *profile_file_begin(const profile_kind *kind, const profile_key *key);

/* The whole file, to be released with mem_free. 0 with *text NULL if there is no such file. */
int profile_file_read(char **text, size_t *len, const char *path, err_ctx *err);

/* Replaces the file in one step: whoever reads it sees the old one or the new one, and a failure
 * leaves the old one and nothing else. A link stays one; what is no file is refused. Its folder
 * must exist. root NULL: ERR_NOMEM. */
int profile_file_replace(const char *path, const struct json_t *root, err_ctx *err);

#endif
