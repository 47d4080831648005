/* attention_decode_f32.cu - attention_decode.cuh's kernel for stores of F32. */
#include "cuda/attention_decode.cuh"

void attention_decode_f32(gpu *g, const gpu_attention *a) { launch_dim<GPU_KV_F32>(g, a); }
