/* profile_file.h - the file of a usage profile: one JSON object, for one model.
 *
 * Users pass such files on, so reading trusts nothing, and a file tells nothing of the machine
 * or its folders. The caller decides the path. A failure is one line that names the file, the
 * thing and the number; nothing has changed then. Any thread. */
#ifndef MOE_PROFILE_FILE_H
#define MOE_PROFILE_FILE_H

#include "moe/usage_profile.h"

enum { PROFILE_MAX_BYTES = 64 << 20 };   /* of a file: more than PROFILE_MAX_EXPERTS need */

/* The model of a file. Files with another key are refused; the name does not count. */
typedef struct profile_key {
    uint64_t model;                      /* a hash of its tensors; in the file 16 hex digits */
    int n_layer, n_expert;               /* layers, and experts of one; as in the profile */
    char name[128];                      /* for messages */
} profile_key;

/* Replaces the file in one step: a reader sees the old one or the new one. A failure leaves the
 * old one and nothing else. A link stays a link. The folder must exist. ERR_RANGE if a count is
 * one that loading would refuse. */
int profile_file_save(const usage_profile *p, const char *path, const profile_key *key,
                      err_ctx *err);

/* 0 with *out NULL if there is no such file. < 0 with *out NULL if it is damaged, absurd or another
 * model's. */
int profile_file_load(usage_profile **out, const char *path, const profile_key *expected,
                      err_ctx *err);
int profile_file_parse(usage_profile **out, str_view text, const profile_key *expected,
                       err_ctx *err);

#endif
