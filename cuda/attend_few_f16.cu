/* attend_few_f16.cu - attend_few.cuh's kernel for stores of F16. */
#include "cuda/attend_few.cuh"

void attend_few_f16(gpu *g, const gpu_attention *a) { launch_dim<GPU_KV_F16>(g, a); }
