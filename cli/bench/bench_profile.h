/* bench_profile.h - moe-bench decode --profile: where the time goes on the GPU. */
#ifndef CLI_BENCH_BENCH_PROFILE_H
#define CLI_BENCH_BENCH_PROFILE_H

#include "engine/engine_stats.h"

/* Takes in n tokens with every kernel watched and prints a row for each class of kernels; rewind s
 * afterwards. 0, or < 0 with err filled. */
int bench_profile(session *s, const char *title, const int32_t *ids, int n, err_ctx *err);

#endif
