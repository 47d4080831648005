/* attend_few_q8.cu - attend_few.cuh's kernel for stores of Q8_0. */
#include "cuda/attend_few.cuh"

void attend_few_q8(gpu *g, const gpu_attention *a) { launch_dim<GPU_KV_Q8_0>(g, a); }
