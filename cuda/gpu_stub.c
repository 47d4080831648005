/* gpu_stub.c - gpu.h, gpu_experts.h and gpu_measure.h for a build without CUDA: gpu_count() is 0,
 * and gpu_open fails with ERR_UNSUPPORTED.
 *
 * No gpu exists, so functions that take one are called only to free NULL. The linker needs their
 * symbols; most are aliases of one function that returns 0. */
#include "cuda/gpu_experts.h"
#include "cuda/gpu_measure.h"

static int refuse(err_ctx *err)
{
    return err_set(err, ERR_UNSUPPORTED, "this build has no CUDA");
}

const char *gpu_backend(void) { return "none"; }
int gpu_count(void) { return 0; }

int gpu_describe(gpu_info *out, int device, err_ctx *err)
{
    *out = (gpu_info){ 0 };
    return err_prefix(err, refuse(err), "GPU %d", device);
}

int gpu_open(gpu **out, int device, err_ctx *err)
{
    *out = NULL;
    return err_prefix(err, refuse(err), "GPU %d", device);
}

/* Tests call the next four without a device. */
void *gpu_alloc(gpu *g, uint64_t bytes, const char *what, err_ctx *err)
{
    (void)g, (void)bytes;
    err_prefix(err, refuse(err), "no room for %s", what);
    return NULL;
}

int gpu_write(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    (void)g, (void)to, (void)from, (void)bytes;
    return refuse(err);
}

int gpu_read(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    (void)g, (void)to, (void)from, (void)bytes;
    return refuse(err);
}

int gpu_wait(gpu *g, err_ctx *err)
{
    (void)g;
    return refuse(err);
}

/* ---- the others ------------------------------------------------------------------------------ */

__attribute__((used)) static uint64_t no_device(void) { return 0; }

#define NEED_A_DEVICE(X)                                                                           \
    X(gpu_close) X(gpu_free) X(gpu_alloc_host) X(gpu_free_host) X(gpu_read_later)                  \
    X(gpu_write_later) X(gpu_copies_end)                                                           \
    X(gpu_zero) X(gpu_copy) X(gpu_upload) X(gpu_upload_end) X(gpu_set_host_limit) X(gpu_recover)   \
    X(gpu_recoveries) X(gpu_gemm_set) X(gpu_gemm_name) X(gpu_gemm_scratch) X(gpu_gemm_lend)        \
    X(gpu_gemm_reclaim) X(gpu_read_bandwidth) X(gpu_limit_sms) X(gpu_throttle_begin)             \
    X(gpu_throttle_end) X(gpu_multiply_peak) X(gpu_measure_links) X(gpu_load_begin)                \
    X(gpu_load_end) X(gpu_profile_begin) X(gpu_profile_read) X(gpu_profile_end)                    \
    X(gpu_record_begin) X(gpu_recording_create) X(gpu_record_end) X(gpu_replay)                    \
    X(gpu_recording_free) X(gpu_embed) X(gpu_rope_table) X(gpu_type_fits) X(gpu_project)           \
    X(gpu_finish_input) X(gpu_attention_scratch) X(gpu_attention_fits) X(gpu_attend)               \
    X(gpu_delta_fits) X(gpu_delta_scratch) X(gpu_delta_rule) X(gpu_conv_window) X(gpu_route)       \
    X(gpu_add_normed) X(gpu_network_scratch) X(gpu_network) X(gpu_expert_scratch) X(gpu_experts)   \
    X(gpu_mailbox_create) X(gpu_mailbox_free) X(gpu_mailbox_put_mid) X(gpu_prediction_fits)        \
    X(gpu_prediction_state) X(gpu_with_host_pad) X(gpu_with_host_scratch)    \
    X(gpu_experts_with_host) X(gpu_experts_partial_begin) X(gpu_experts_partial_end)               \
    X(gpu_experts_join) X(gpu_prefer_hot) X(gpu_alive) X(gpu_polls) X(gpu_lock) X(gpu_unlock)      \
    X(gpu_stage_create) X(gpu_stage_free) X(gpu_stage_buffer) X(gpu_stage_copy)                    \
    X(gpu_stage_ready) X(gpu_stage_done) X(gpu_stage_sent) X(gpu_copy_queue_create)                \
    X(gpu_copy_queue_free) X(gpu_copy_queue_copy) X(gpu_copy_queue_save) X(gpu_copy_queue_record)  \
    X(gpu_copy_queue_passed) X(gpu_moves) X(gpu_events_create) X(gpu_events_free)                  \
    X(gpu_events_record) X(gpu_events_wait) X(gpu_soft_cap) X(gpu_largest) X(gpu_advance)          \
    X(gpu_shortlist_make) X(gpu_shortlist_gather) X(gpu_shortlist_gather_top)

#define SAME_AS_NO_DEVICE(name) __asm__(".globl " #name "\n.set " #name ", no_device");
NEED_A_DEVICE(SAME_AS_NO_DEVICE)
