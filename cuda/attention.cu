/* attention.cu - gpu_attend: chooses the kernel. Up to GPU_FEW tokens use attention_decode.cuh, in
 * one file for each type of KV store; prompts use attention_prompt.cu if it has a kernel. Attention
 * is outside the arithmetic contract; each kernel sums in a fixed order. */
#include "cuda/attention_decode.cuh"
#include "cuda/attention_prompt_split_kv.cuh"

static_assert(PART_TOKENS <= GPU_FEW * MAX_RANGES, "both kinds have room in gpu_attention.partial");

size_t gpu_attention_scratch(const gpu *g, int n_head, int head_dim, int n)
{
    (void)g;
    const size_t most = n > GPU_FEW ? (size_t)n : (size_t)GPU_FEW;
    return most * (size_t)n_head * MAX_RANGES * ((size_t)head_dim + 2);
}

bool gpu_attention_fits(int n_head, int n_head_kv, int head_dim)
{
    return (head_dim == 32 || head_dim == 64 || head_dim == 128 || head_dim == 256 ||
            head_dim == 512) &&
           n_head_kv > 0 && n_head % n_head_kv == 0;
}

/* Norms q and k as a whole and returns the arguments without norms by heads. */
static gpu_attention whole_norms(gpu *g, const gpu_attention *a)
{
    gpu_attention rest = *a;
    attention_norm_whole(g, a);
    rest.q_norm = rest.k_norm = NULL;
    return rest;
}

void gpu_attend(gpu *g, const gpu_attention *whole)
{
    if (whole->norm_whole && (!whole->q_norm || !whole->k_norm))
        gpu_fail(g, cudaErrorInvalidValue, "attention: norms of all heads without weights");
    const gpu_attention rest = whole->norm_whole ? whole_norms(g, whole) : *whole, *a = &rest;
    if (a->n > 1) attention_prepare(g, a);
    if (!gpu_is_few(a->n, a->in_pass) && attention_prompt_fits(g, a)) attention_prompt(g, a);
    else if (a->kv == GPU_KV_F32) attention_decode_f32(g, a);
    else if (a->kv == GPU_KV_F16) attention_decode_f16(g, a);
    else attention_decode_q8(g, a);
}
