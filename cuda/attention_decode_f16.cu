/* attention_decode_f16.cu - attention_decode.cuh's kernel for stores of F16. */
#include "cuda/attention_decode.cuh"

void attention_decode_f16(gpu *g, const gpu_attention *a) { launch_dim<GPU_KV_F16>(g, a); }
