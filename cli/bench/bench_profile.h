/* bench_profile.h - moe-bench decode --profile: GPU time by class of kernels. */
#ifndef CLI_BENCH_BENCH_PROFILE_H
#define CLI_BENCH_BENCH_PROFILE_H

#include "engine/engine_stats.h"

/* Evaluates n tokens, times every kernel and prints a row for each class of kernels. The caller
 * must rewind s. 0, or < 0 with err filled. */
int bench_profile(session *s, const char *title, const int32_t *ids, int n, err_ctx *err);

#endif
