/* last_run_experts.h - the experts that were in VRAM when a run ended, the most valuable first.
 *
 * The next run may begin with them. An expert is a number, layer * n_expert + expert, as in
 * expert_cache.h. The file belongs beside the machine's speeds: unlike a profile it depends on how
 * much VRAM there was. Any thread. */
#ifndef MOE_LAST_RUN_EXPERTS_H
#define MOE_LAST_RUN_EXPERTS_H

#include "moe/profile_file.h"

enum { LAST_RUN_EXPERTS_MAX = 100000 };  /* experts; those after are not saved */

/* Replaces the file in one step. Every number is in the key's range and comes once: anything else
 * is ERR_RANGE, and no file. */
int last_run_experts_save(const int *experts, int n, const char *path, const profile_key *key,
                          err_ctx *err);

/* *out has *n numbers, each in range and once; free it with mem_free. 0 with *out NULL if there is
 * no such file; < 0 with *out NULL if it is damaged, absurd or another model's. */
int last_run_experts_load(int **out, int *n, const char *path, const profile_key *expected,
                          err_ctx *err);
int last_run_experts_load_text(int **out, int *n, str_view text, const profile_key *expected,
                               err_ctx *err);

#endif
