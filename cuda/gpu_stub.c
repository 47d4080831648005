/* gpu_stub.c - gpu.h for a build without CUDA: no devices, and every request says so. */
#include "cuda/gpu.h"

static int refuse(err_ctx *err)
{
    return err_set(err, ERR_UNSUPPORTED, "this build has no CUDA");
}

/* ---- devices --------------------------------------------------------------------------------- */

const char *gpu_backend(void)
{
    return "none";
}

int gpu_count(void)
{
    return 0;
}

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

void gpu_close(gpu *g)
{
    (void)g;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void *gpu_alloc(gpu *g, uint64_t bytes, const char *what, err_ctx *err)
{
    (void)g, (void)bytes;
    err_prefix(err, refuse(err), "no room for %s", what);
    return NULL;
}

void gpu_free(gpu *g, void *p)
{
    (void)g, (void)p;
}

void *gpu_alloc_host(gpu *g, uint64_t bytes, err_ctx *err)
{
    (void)g, (void)bytes;
    refuse(err);
    return NULL;
}

void gpu_free_host(gpu *g, void *p)
{
    (void)g, (void)p;
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

int gpu_read_later(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    (void)g, (void)to, (void)from, (void)bytes;
    return refuse(err);
}

int gpu_read_end(gpu *g, err_ctx *err)
{
    (void)g;
    return refuse(err);
}

int gpu_zero(gpu *g, void *p, uint64_t bytes, err_ctx *err)
{
    (void)g, (void)p, (void)bytes;
    return refuse(err);
}

void gpu_copy(gpu *g, void *to, const void *from, uint64_t bytes)
{
    (void)g, (void)to, (void)from, (void)bytes;
}

int gpu_upload(gpu *g, void *to, const void *from, uint64_t bytes, gpu_fill *fill, void *ctx,
               err_ctx *err)
{
    (void)g, (void)to, (void)from, (void)bytes, (void)fill, (void)ctx;
    return refuse(err);
}

int gpu_upload_end(gpu *g, err_ctx *err)
{
    (void)g;
    return refuse(err);
}

int gpu_wait(gpu *g, err_ctx *err)
{
    (void)g;
    return refuse(err);
}

void gpu_set_host_limit(gpu *g, uint64_t limit_ns)
{
    (void)g, (void)limit_ns;
}

void gpu_recover(gpu *g)
{
    (void)g;
}

int gpu_recoveries(const gpu *g)
{
    (void)g;
    return 0;
}

/* ---- products of many tokens ----------------------------------------------------------------- */

void gpu_gemm_set(gpu *g, const gpu_gemm *how)
{
    (void)g, (void)how;
}

const char *gpu_gemm_name(const gpu *g)
{
    (void)g;
    return "own";
}

uint64_t gpu_gemm_scratch(const gpu *g, int n)
{
    (void)g, (void)n;
    return 0;
}

void gpu_gemm_lend(gpu *g, void *scratch)
{
    (void)g, (void)scratch;
}

void gpu_gemm_reclaim(gpu *g, const void *scratch)
{
    (void)g, (void)scratch;
}

/* ---- profiles -------------------------------------------------------------------------------- */

int gpu_read_bandwidth(double *bytes_per_s, gpu *g, err_ctx *err)
{
    (void)g;
    *bytes_per_s = 0;
    return refuse(err);
}

void gpu_pretend_sms(int n)
{
    (void)n;
}

int gpu_hold_begin(gpu *g, double share, gpu_held *out, err_ctx *err)
{
    (void)g, (void)share;
    *out = (gpu_held){ 0 };
    return refuse(err);
}

int gpu_hold_end(gpu *g, err_ctx *err)
{
    (void)g;
    return refuse(err);
}

int gpu_multiply_peak(double *macs_per_s, gpu *g, err_ctx *err)
{
    (void)g;
    *macs_per_s = 0;
    return refuse(err);
}

int gpu_measure_links(gpu_links *out, gpu *g, err_ctx *err)
{
    (void)g;
    *out = (gpu_links){ 0 };
    return refuse(err);
}

int gpu_load_begin(gpu_load **out, gpu *g, const void *ram, uint64_t bytes, err_ctx *err)
{
    (void)g, (void)ram, (void)bytes;
    *out = NULL;
    return refuse(err);
}

int gpu_load_end(gpu_load *l, double *bytes_per_s, err_ctx *err)
{
    (void)l;
    *bytes_per_s = 0;
    return refuse(err);
}

int gpu_profile_begin(gpu *g, err_ctx *err)
{
    (void)g;
    return refuse(err);
}

int gpu_profile_read(gpu_span *spans, int cap, gpu *g, err_ctx *err)
{
    (void)spans, (void)cap, (void)g;
    return refuse(err);
}

void gpu_profile_end(gpu *g)
{
    (void)g;
}

/* ---- recordings ------------------------------------------------------------------------------ */

int gpu_record_begin(gpu *g, err_ctx *err)
{
    (void)g;
    return refuse(err);
}

int gpu_recording_create(gpu_recording **out, err_ctx *err)
{
    *out = NULL;
    return refuse(err);
}

int gpu_record_end(gpu_recording *r, gpu *g, err_ctx *err)
{
    (void)r, (void)g;
    return refuse(err);
}

void gpu_play(gpu *g, gpu_recording *r)
{
    (void)g, (void)r;
}

void gpu_recording_free(gpu_recording *r)
{
    (void)r;
}

/* ---- operations ------------------------------------------------------------------------------ */

void gpu_embed(gpu *g, float *x, const gpu_matrix *table, const int32_t *ids, int n)
{
    (void)g, (void)x, (void)table, (void)ids, (void)n;
}

void gpu_rope_table(gpu *g, float *cosine, float *sine, const double *freq, double magnitude,
                    int half, const gpu_cursor *at, int n)
{
    (void)g, (void)cosine, (void)sine, (void)freq, (void)magnitude, (void)half, (void)at, (void)n;
}

bool gpu_type_fits(int type)
{
    (void)type;
    return false;
}

void gpu_project(gpu *g, gpu_input *in, const gpu_product *list, int n_product)
{
    (void)g, (void)in, (void)list, (void)n_product;
}

void gpu_finish_input(gpu *g, gpu_input *in)
{
    (void)g, (void)in;
}

size_t gpu_attention_scratch(const gpu *g, int n_head, int head_dim)
{
    (void)g, (void)n_head, (void)head_dim;
    return 0;
}

bool gpu_attention_fits(int n_head, int n_head_kv, int head_dim)
{
    (void)n_head, (void)n_head_kv, (void)head_dim;
    return false;
}

void gpu_attend(gpu *g, const gpu_attention *a)
{
    (void)g, (void)a;
}

bool gpu_delta_fits(int dim)
{
    (void)dim;
    return false;
}

size_t gpu_delta_scratch(const gpu *g, int n_k, int n_v, int dim, int n)
{
    (void)g, (void)n_k, (void)n_v, (void)dim, (void)n;
    return 0;
}

void gpu_delta_rule(gpu *g, const gpu_delta *d)
{
    (void)g, (void)d;
}

void gpu_route(gpu *g, gpu_input *in, const gpu_route_args *a)
{
    (void)g, (void)in, (void)a;
}

void gpu_add_normed(gpu *g, const gpu_normed *a)
{
    (void)g, (void)a;
}

size_t gpu_network_scratch(int n, int n_ff, int n_embd)
{
    (void)n, (void)n_ff, (void)n_embd;
    return 0;
}

void gpu_network(gpu *g, gpu_input *in, const gpu_network_args *a)
{
    (void)g, (void)in, (void)a;
}

size_t gpu_expert_scratch(const gpu *g, int n, int k, int n_expert, int n_ff, int n_embd)
{
    (void)g, (void)n, (void)k, (void)n_expert, (void)n_ff, (void)n_embd;
    return 0;
}

void gpu_experts(gpu *g, gpu_input *in, const gpu_expert_args *a)
{
    (void)g, (void)in, (void)a;
}

/* ---- experts in two places ------------------------------------------------------------------- */

int gpu_mail_create(gpu_mail **out, gpu *g, int n_embd, int n_ff, int k, err_ctx *err)
{
    (void)g, (void)n_embd, (void)n_ff, (void)k;
    *out = NULL;
    return refuse(err);
}

void gpu_mail_free(gpu *g, gpu_mail *m)
{
    (void)g, (void)m;
}

void gpu_mail_put_mid(gpu_mail *m, int slot, const int8_t *q, const float *dx, const int16_t *sums)
{
    (void)m, (void)slot, (void)q, (void)dx, (void)sums;
}

bool gpu_guess_fits(int router_type)
{
    (void)router_type;
    return false;
}

size_t gpu_guess_pad(const uint64_t bytes[3])
{
    (void)bytes;
    return 0;
}

size_t gpu_guess_state(int n_expert, int n_embd, int n_layer)
{
    (void)n_expert, (void)n_embd, (void)n_layer;
    return 0;
}

size_t gpu_split_pad(const gpu_expert_args *a, int pad_down, int pad_all)
{
    (void)a, (void)pad_down, (void)pad_all;
    return 0;
}

size_t gpu_split_scratch(int k, int n_ff, int n_embd)
{
    (void)k, (void)n_ff, (void)n_embd;
    return 0;
}

void gpu_experts_split(gpu *g, gpu_input *in, const gpu_expert_args *a, const gpu_split *s)
{
    (void)g, (void)in, (void)a, (void)s;
}

void gpu_experts_beside_begin(gpu *g, gpu_input *in, const gpu_expert_args *a, const int32_t *hot)
{
    (void)g, (void)in, (void)a, (void)hot;
}

void gpu_experts_beside_end(gpu *g, const gpu_input *in, const gpu_expert_args *a,
                            const int32_t *hot, float *sums, const float *cold, int first, int n)
{
    (void)g, (void)in, (void)a, (void)hot, (void)sums, (void)cold, (void)first, (void)n;
}

void gpu_experts_join(gpu *g, const gpu_input *in, const gpu_expert_args *a, const float *cold,
                      const int32_t *row)
{
    (void)g, (void)in, (void)a, (void)cold, (void)row;
}

void gpu_prefer_hot(gpu *g, const gpu_prefer *a)
{
    (void)g, (void)a;
}

bool gpu_alive(gpu *g)
{
    (void)g;
    return false;
}

/* ---- memory of the host; stages -------------------------------------------------------------- */

int gpu_lock(gpu *g, void *p, uint64_t bytes, err_ctx *err)
{
    (void)g, (void)p, (void)bytes;
    return refuse(err);
}

void gpu_unlock(gpu *g, void *p)
{
    (void)g, (void)p;
}

int gpu_stage_create(gpu_stage **out, gpu *g, int n_buffer, uint64_t bytes, err_ctx *err)
{
    (void)g, (void)n_buffer, (void)bytes;
    *out = NULL;
    return refuse(err);
}

void gpu_stage_free(gpu *g, gpu_stage *s)
{
    (void)g, (void)s;
}

uint8_t *gpu_stage_buffer(const gpu_stage *s, int i)
{
    (void)s, (void)i;
    return NULL;
}

void gpu_stage_copy(gpu *g, gpu_stage *s, int i, uint64_t offset, const void *from, uint64_t bytes)
{
    (void)g, (void)s, (void)i, (void)offset, (void)from, (void)bytes;
}

void gpu_stage_ready(gpu *g, gpu_stage *s, int i)
{
    (void)g, (void)s, (void)i;
}

void gpu_stage_done(gpu *g, gpu_stage *s, int i)
{
    (void)g, (void)s, (void)i;
}

int gpu_stage_sent(gpu *g, gpu_stage *s, int i, err_ctx *err)
{
    (void)g, (void)s, (void)i;
    return refuse(err);
}

/* ---- experts that change places -------------------------------------------------------------- */

int gpu_mover_create(gpu_mover **out, gpu *g, int n_mark, err_ctx *err)
{
    (void)g, (void)n_mark;
    *out = NULL;
    return refuse(err);
}

void gpu_mover_free(gpu *g, gpu_mover *m)
{
    (void)g, (void)m;
}

void gpu_mover_copy(gpu *g, gpu_mover *m, void *to, const void *from, uint64_t bytes)
{
    (void)g, (void)m, (void)to, (void)from, (void)bytes;
}

void gpu_mover_save(gpu *g, gpu_mover *m, void *to, const void *from, uint64_t bytes)
{
    (void)g, (void)m, (void)to, (void)from, (void)bytes;
}

void gpu_mover_mark(gpu *g, gpu_mover *m, int i)
{
    (void)g, (void)m, (void)i;
}

int gpu_mover_passed(gpu *g, gpu_mover *m, int i, err_ctx *err)
{
    (void)g, (void)m, (void)i;
    return refuse(err);
}

void gpu_moves(gpu *g, const gpu_move *jobs, int n)
{
    (void)g, (void)jobs, (void)n;
}

int gpu_marks_create(gpu_marks **out, gpu *g, int n, err_ctx *err)
{
    (void)g, (void)n;
    *out = NULL;
    return refuse(err);
}

void gpu_marks_free(gpu_marks *m)
{
    (void)m;
}

void gpu_marks_set(gpu *g, gpu_marks *m, int i)
{
    (void)g, (void)m, (void)i;
}

int gpu_marks_wait(gpu *g, gpu_marks *m, int i, err_ctx *err)
{
    (void)g, (void)m, (void)i;
    return refuse(err);
}

/* ---- after the last layer -------------------------------------------------------------------- */

void gpu_soft_cap(gpu *g, float *x, uint64_t n, float cap)
{
    (void)g, (void)x, (void)n, (void)cap;
}

void gpu_largest(gpu *g, const float *logits, int n, gpu_cursor *at, uint64_t *seen, uint32_t *best,
                 uint32_t *counter)
{
    (void)g, (void)logits, (void)n, (void)at, (void)seen, (void)best, (void)counter;
}

void gpu_advance(gpu *g, gpu_cursor *at, int n)
{
    (void)g, (void)at, (void)n;
}

void gpu_shortlist_make(gpu *g, const gpu_shortlist *s)
{
    (void)g, (void)s;
}

void gpu_shortlist_gather(gpu *g, const gpu_shortlist *s, float bound, gpu_pair *to, int cap,
                          uint32_t *count)
{
    (void)g, (void)s, (void)bound, (void)to, (void)cap, (void)count;
}

void gpu_shortlist_gather_top(gpu *g, const gpu_shortlist *s, gpu_pair *to, int cap,
                              uint32_t *count)
{
    (void)g, (void)s, (void)to, (void)cap, (void)count;
}
