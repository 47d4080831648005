/* profile_file.h - the file of a usage profile: one JSON object, for one model.
 *
 * Users exchange such files, so reading checks everything, and a file does not identify the machine
 * or its folders. A failure changes no file, and its message names the file, the key and the
 * number. Any thread. */
#ifndef MOE_PROFILE_FILE_H
#define MOE_PROFILE_FILE_H

#include "moe/usage_profile.h"

enum { PROFILE_MAX_BYTES = 64 << 20 };   /* of a file: more than PROFILE_MAX_EXPERTS need */

/* Identifies the model of a file. Files with another key are refused; name is not compared. */
typedef struct profile_key {
    uint64_t model;                      /* a hash of its tensors; in the file 16 hex digits */
    int n_layer, n_expert;               /* layers, and experts of one; as in the profile */
    char name[128];                      /* for messages */
} profile_key;

/* Replaces the file atomically; a failure leaves the old one. A link stays a link. The folder must
 * exist. ERR_RANGE if loading would refuse a count. */
int profile_file_save(const usage_profile *p, const char *path, const profile_key *key,
                      err_ctx *err);

/* 0 with *out NULL if the file does not exist. < 0 with *out NULL if it is damaged, has a number
 * out of range or belongs to another model. */
int profile_file_load(usage_profile **out, const char *path, const profile_key *expected,
                      err_ctx *err);
int profile_file_parse(usage_profile **out, str_view text, const profile_key *expected,
                       err_ctx *err);

#endif
