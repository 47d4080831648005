/* attention_decode_q8.cu - attention_decode.cuh's kernel for stores of Q8_0. */
#include "cuda/attention_decode.cuh"

void attention_decode_q8(gpu *g, const gpu_attention *a) { launch_dim<GPU_KV_Q8_0>(g, a); }
