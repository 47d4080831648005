/* expert_cache_files.h - what is remembered of a model's experts from run to run.
 *
 * The first contents of VRAM: the best experts of a profile that the user names, else the experts
 * that were in VRAM when the last run on this machine ended. And the counts of a run, merged into a
 * profile that the user names. A file that is damaged, or of another model, costs one note and is
 * not used. */
#ifndef CLI_EXPERT_CACHE_FILES_H
#define CLI_EXPERT_CACHE_FILES_H

#include "cli/placement.h"
#include "moe/profile_file.h"

/* Experts for engine_placement, the most wanted first; *n of them, to be released with mem_free.
 * NULL if there are none, or if the plan has no use for them. *n_pin: the first ones, for
 * engine_pin: those of a profile that at least every second token chose. */
int *expert_cache_files_recall(int *n, int *n_pin, const placement *where,
                               const placement_options *o, const model *m);

/* The key of the model's files. Reads a little of every tensor. */
profile_key expert_cache_files_key(const model *m);

/* Loads the best experts of a profile, or of a profile's file, into VRAM. Return how many were
 * copied, or < 0. *n_wanted, if not NULL: how many fit. */
int expert_cache_files_use(int *n_wanted, engine *e, const usage_profile *p, const placement *where,
                           const placement_options *o, const model *m, err_ctx *err);
int expert_cache_files_apply(engine *e, const char *path, const placement *where,
                             const placement_options *o, const model *m, err_ctx *err);

/* At the end of a run of e: the list for the next one, and the profile that the user asked for.
 * A list that cannot be saved costs no note. */
void expert_cache_files_keep(const engine *e, const placement_options *o, const model *m);

#endif
