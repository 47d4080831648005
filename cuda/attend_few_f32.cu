/* attend_few_f32.cu - attend_few.cuh's kernel for stores of F32. */
#include "cuda/attend_few.cuh"

void attend_few_f32(gpu *g, const gpu_attention *a) { launch_dim<GPU_KV_F32>(g, a); }
