/* vendor_gemm.cu - loads cuBLASLt, decodes weights for it, and calls it. Contract: vendor_gemm.cuh.
 *
 * The library stores matrices column by column. So W [rows, cols] is passed as a transposed matrix
 * [cols, rows], x as [cols, n], y as [rows, n]. It stores descriptors of MAX_SHAPES shapes. */
#include "cuda/vendor_gemm.cuh"

#include <stdio.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>

#ifndef TOOLKIT_LIB
#define TOOLKIT_LIB "/usr/local/cuda/lib64"
#endif

enum : size_t {
    WEIGHT_BYTES = (size_t)64 << 20,     /* bf16 weights of most models' largest dense matrix */
    WORKSPACE_BYTES = (size_t)32 << 20,  /* the manual's figure for Hopper and later */
    ALIGNED = 16
};
enum { DECODE_THREADS = 256, SLICE_ROWS = 128, MAX_SHAPES = 64 };

/* ---- the library ----------------------------------------------------------------------------- */

#define FUNCTIONS(X)                                                                               \
    X(cublasLtGetVersion) X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtMatmul)                   \
    X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy)     \
    X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate)                                \
    X(cublasLtMatrixLayoutDestroy) X(cublasLtMatmulPreferenceCreate)                               \
    X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)

typedef struct library {
#define MEMBER(name) decltype(&::name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
    char version[32];                    /* "": not found */
} library;

static bool take_functions(library *l, void *from)
{
#define TAKE(name)                                                                                 \
    l->name = (decltype(l->name))dlsym(from, #name);                                               \
    if (!l->name) return false;
    FUNCTIONS(TAKE)
#undef TAKE
    return true;
}

/* Searches the system's path, then the toolkit of the build, the newest version first. Closes a
 * library that lacks a function. */
static library load_library(void)
{
    static const char *const names[] = {
        "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
        TOOLKIT_LIB "/libcublasLt.so.13", TOOLKIT_LIB "/libcublasLt.so.12",
    };
    library l = {};
    for (size_t i = 0; i < sizeof names / sizeof *names && !l.version[0]; i++) {
        void *from = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (!from) continue;
        if (!take_functions(&l, from)) {
            dlclose(from);
            continue;
        }
        const size_t v = l.cublasLtGetVersion();
        snprintf(l.version, sizeof l.version, "cuBLASLt %zu.%zu", v / 10000, v / 100 % 100);
    }
    return l;
}

static const library &lib(void)
{
    static const library found = load_library();         /* set once, by the first caller */
    return found;
}

const char *vendor_gemm_find(void) { return lib().version[0] ? lib().version : NULL; }

size_t vendor_gemm_bytes(void) { return WEIGHT_BYTES + WORKSPACE_BYTES; }

/* ---- shapes ---------------------------------------------------------------------------------- */

typedef struct shape {
    int rows, cols, n, y_stride;
    uint64_t w_stride;                   /* distance of two rows of weights, in values */
    bool add, bias;
} shape;

typedef struct ready_shape {
    shape s;
    cublasLtMatmulDesc_t op;             /* NULL: free */
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algo;
    bool works;                          /* the library has an algorithm */
} ready_shape;

struct vendor {
    cublasLtHandle_t handle;
    uint8_t *weights, *workspace;        /* in lent scratch */
    ready_shape shapes[MAX_SHAPES];
    int next;                            /* index of the shape that is replaced next */
};

static bool same_shape(const shape *a, const shape *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->n == b->n &&
           a->y_stride == b->y_stride && a->w_stride == b->w_stride && a->add == b->add &&
           a->bias == b->bias;
}

static void release_shape(ready_shape *r)
{
    if (r->op) lib().cublasLtMatmulDescDestroy(r->op);
    if (r->w) lib().cublasLtMatrixLayoutDestroy(r->w);
    if (r->x) lib().cublasLtMatrixLayoutDestroy(r->x);
    if (r->y) lib().cublasLtMatrixLayoutDestroy(r->y);
    *r = {};
}

static bool set_op(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t what, const void *value,
                   size_t bytes)
{
    return lib().cublasLtMatmulDescSetAttribute(op, what, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool make_operands(ready_shape *r)
{
    const shape *s = &r->s;
    const cudaDataType_t type = CUDA_R_16BF;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t end = s->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    const uint64_t rows = (uint64_t)s->rows, cols = (uint64_t)s->cols, n = (uint64_t)s->n;
    return lib().cublasLtMatmulDescCreate(&r->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
               CUBLAS_STATUS_SUCCESS &&
           lib().cublasLtMatrixLayoutCreate(&r->w, type, cols, rows,
                                            (int64_t)s->w_stride) == CUBLAS_STATUS_SUCCESS &&
           lib().cublasLtMatrixLayoutCreate(&r->x, type, cols, n, s->cols) ==
               CUBLAS_STATUS_SUCCESS &&
           lib().cublasLtMatrixLayoutCreate(&r->y, CUDA_R_32F, rows, n, s->y_stride) ==
               CUBLAS_STATUS_SUCCESS &&
           set_op(r->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) &&
           set_op(r->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &end, sizeof end);
}

static bool set_preferences(cublasLtMatmulPreference_t p)
{
    /* allows split sums only with a second step that adds the parts in a fixed order */
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t aligned = ALIGNED;
    const size_t most = WORKSPACE_BYTES;
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t bytes;
    } list[] = {
        { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most },
        { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &aligned, sizeof aligned },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &aligned, sizeof aligned },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &aligned, sizeof aligned },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &aligned, sizeof aligned },
    };
    for (const auto &one : list)
        if (lib().cublasLtMatmulPreferenceSetAttribute(p, one.what, one.value, one.bytes) !=
            CUBLAS_STATUS_SUCCESS)
            return false;
    return true;
}

static bool find_algorithm(ready_shape *r, cublasLtHandle_t handle)
{
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t found = {};
    int n = 0;
    bool ok = lib().cublasLtMatmulPreferenceCreate(&wish) == CUBLAS_STATUS_SUCCESS &&
              set_preferences(wish) &&
              lib().cublasLtMatmulAlgoGetHeuristic(handle, r->op, r->w, r->x, r->y, r->y, wish, 1,
                                                   &found, &n) == CUBLAS_STATUS_SUCCESS;
    ok = ok && n > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    if (ok) r->algo = found.algo;
    if (wish) lib().cublasLtMatmulPreferenceDestroy(wish);
    return ok;
}

/* Finds or makes the shape's descriptors. NULL: the library has no algorithm for it. */
static ready_shape *shape_ready(vendor *v, const shape *s)
{
    for (ready_shape &r : v->shapes)
        if (r.op && same_shape(&r.s, s)) return r.works ? &r : NULL;
    ready_shape *r = &v->shapes[v->next];
    v->next = (v->next + 1) % MAX_SHAPES;
    release_shape(r);
    r->s = *s;
    r->works = make_operands(r) && find_algorithm(r, v->handle);
    return r->works ? r : NULL;
}

/* ---- weights to bf16 ------------------------------------------------------------------------- */

typedef struct decode_args {
    const uint8_t *w;
    uint64_t row_bytes;
    int row_blocks;                      /* blocks of a row: 32 weights, or 8 floats */
    unsigned n_block;
    int type;
    uint4 *to;                           /* bf16, 8 in each element, rows without gaps */
} decode_args;

static __device__ __forceinline__ uint32_t two_weights(uint32_t codes, int i, float scale,
                                                       float offset)
{
    const float low = (float)(int8_t)(codes >> 8 * i), high = (float)(int8_t)(codes >> 8 * (i + 1));
    return pack_halves(fmaf(scale, low, offset), fmaf(scale, high, offset));
}

/* A thread decodes a block of 32 weights. Its four chunks of 16 bytes pass through shared memory,
 * so that a warp writes whole lines; chunk i of a warp is at i ^ (i / 8 % 8). */
template <int TYPE>
static __global__ void __launch_bounds__(DECODE_THREADS)
    decode_blocks(tracer f, const decode_args a)
{
    __shared__ uint4 turned[DECODE_THREADS / 32][128];
    const unsigned lane = threadIdx.x % 32;
    const unsigned first = blockIdx.x * DECODE_THREADS + threadIdx.x - lane;
    const unsigned at = min(first + lane, a.n_block - 1);
    const int row = (int)(at / (unsigned)a.row_blocks), b = (int)(at % (unsigned)a.row_blocks);
    uint4 *warp_chunks = turned[threadIdx.x / 32];
    weight_parts p;
    float scale[2], offset[2];

    pdl_begin(f);
    unpack<TYPE>(p, a.w + (uint64_t)row * a.row_bytes + (size_t)(b / 8) * format<TYPE>::group_bytes,
                 b % 8);
    block_affine<TYPE>(scale, offset, p);
    #pragma unroll
    for (unsigned c = 0; c < 4; c++) {
        const unsigned i = 4 * lane + c;
        const float by = scale[c / 2], from = offset[c / 2];
        warp_chunks[i ^ (i / 8 % 8)] = make_uint4(two_weights(p.w[2 * c], 0, by, from),
                                                  two_weights(p.w[2 * c], 2, by, from),
                                                  two_weights(p.w[2 * c + 1], 0, by, from),
                                                  two_weights(p.w[2 * c + 1], 2, by, from));
    }
    __syncwarp();
    pdl_wait(f);                         /* until the previous product has read the scratch */
    #pragma unroll
    for (unsigned k = 0; k < 4; k++) {
        const unsigned i = 32 * k + lane;
        const size_t chunk = (size_t)first * 4 + i;
        if (chunk < (size_t)a.n_block * 4) a.to[chunk] = warp_chunks[i ^ (i / 8 % 8)];
    }
    pdl_end(f);
}

/* A thread converts 8 weights of 16 bits at any even address. */
static __global__ void __launch_bounds__(DECODE_THREADS)
    decode_halves(tracer f, const decode_args a)
{
    const unsigned at = blockIdx.x * DECODE_THREADS + threadIdx.x;
    const unsigned use = min(at, a.n_block - 1);
    const uint16_t *from = (const uint16_t *)(a.w + use / (unsigned)a.row_blocks * a.row_bytes) +
                           8 * (use % (unsigned)a.row_blocks);
    uint32_t v[4];
    pdl_begin(f);
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t low = from[2 * i], high = from[2 * i + 1];
        v[i] = a.type == QT_F16 ? pack_halves(half_bits(low), half_bits(high)) : low | high << 16;
    }
    pdl_wait(f);
    if (at < a.n_block) a.to[at] = make_uint4(v[0], v[1], v[2], v[3]);
    pdl_end(f);
}

static bool is_wide(int type) { return type == QT_F16 || type == QT_BF16; }

/* Decodes rows first .. first + rows - 1 to the scratch. */
static void decode(gpu *g, const gemm *p, int first, int rows)
{
    const int each = is_wide(p->type) ? 8 : 32;
    const uint8_t *w = p->w.data + (uint64_t)first * p->w.row_bytes;
    const unsigned n = (unsigned)((uint64_t)rows * (uint64_t)(p->cols / each));
    const decode_args a = { w, p->w.row_bytes, p->cols / each, n, p->type,
                            (uint4 *)g->vendor->weights };
    const uint64_t bytes = (uint64_t)rows * p->w.row_bytes;
    const unsigned grid = ceil_div(n, DECODE_THREADS);
    switch (p->type) {
#define CASE(T)                                                                                    \
    case T: launch(g, "decode", bytes, decode_blocks<T>, grid, DECODE_THREADS, 0, a); break;
    GPU_BLOCK_TYPES(CASE)
#undef CASE
    default: launch(g, "decode", bytes, decode_halves, grid, DECODE_THREADS, 0, a);
    }
}

/* ---- the product ----------------------------------------------------------------------------- */

/* The library's kernels write no times for profiles, so a kernel before and one after them do. */
static __global__ void note_start(trace_slot *t) { t->start = t->ready = device_ns(); }
static __global__ void note_end(trace_slot *t) { t->end = device_ns(); }

static trace_slot *trace_begin(gpu *g, const gemm *p)
{
    if (!g->trace || g->n_trace >= TRACE_MAX) return NULL;
    g->trace_name[g->n_trace] = p->name;
    g->trace_bytes[g->n_trace] = (uint64_t)p->rows * p->w.row_bytes;
    trace_slot *t = g->trace + g->n_trace++;
    note_start<<<1, 1, 0, g->stream>>>(t);
    return t;
}

/* If the library refuses (!ok), clears a possible temporary error, e.g. of a launch that did not
 * fit; own kernels are then used. A permanent error returns with the next call. */
static void trace_end(gpu *g, const gemm *p, trace_slot *t, bool ok)
{
    if (!ok) (void)cudaGetLastError();
    if (t) note_end<<<1, 1, 0, g->stream>>>(t);
    gpu_fail(g, cudaGetLastError(), p->name);
}

/* Multiplies by x; low: adds the product with x_low. False: the library refuses; y is unchanged. */
static bool multiply(gpu *g, const gemm *p, const ready_shape *r, const void *w, bool low,
                     int first)
{
    vendor *v = g->vendor;
    const float alpha = p->w.factor, beta = r->s.add ? 1.0f : 0.0f;
    const float *bias = r->s.bias ? p->w.bias + first : NULL;
    const void *x = low ? p->x_low : p->x;
    float *y = p->y + first;

    if (g->failure != cudaSuccess) return true;
    trace_slot *t = trace_begin(g, p);
    const bool ok =
        (!bias || set_op(r->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias)) &&
        lib().cublasLtMatmul(v->handle, r->op, &alpha, w, r->w, x, r->x, &beta, y, r->y, y, r->y,
                             &r->algo, v->workspace, WORKSPACE_BYTES, g->stream) ==
            CUBLAS_STATUS_SUCCESS;
    trace_end(g, p, t, ok);
    return ok;
}

static bool is_aligned(const void *p) { return (uintptr_t)p % ALIGNED == 0; }

/* Whether the library can read the weights in place: aligned BF16. */
static bool is_in_place(const gemm *p)
{
    return p->type == QT_BF16 && is_aligned(p->w.data) && p->w.row_bytes % ALIGNED == 0;
}

bool vendor_gemm_fits(const gpu *g, const gemm *p)
{
    return g->vendor && !gemm_is_float(p->type) && !p->up.data && !p->tiles && !p->w.at &&
           !p->w.scale && p->cols % (is_wide(p->type) ? 8 : 32) == 0 && p->y_stride % 4 == 0 &&
           is_aligned(p->x) && is_aligned(p->x_low) && is_aligned(p->y) &&
           !(p->x_low && p->type == QT_F16) &&           /* bf16 would round these weights */
           (uint64_t)p->cols * SLICE_ROWS * sizeof(uint16_t) <= WEIGHT_BYTES;
}

/* The shape of a range of rows of a product. low: the product with x_low, which is added to y. */
static shape shape_of(const gemm *p, int rows, bool low)
{
    return { rows, p->cols, p->n, p->y_stride,
             is_in_place(p) ? p->w.row_bytes / sizeof(uint16_t) : (uint64_t)p->cols,
             p->add || low, p->w.bias && !low };
}

bool vendor_gemm_run(gpu *g, const gemm *p)
{
    const bool in_place = is_in_place(p);
    const int fit = (int)(WEIGHT_BYTES / sizeof(uint16_t) / (size_t)p->cols) / SLICE_ROWS *
                    SLICE_ROWS;
    const int each = in_place || p->rows < fit ? p->rows : fit, last = (p->rows - 1) % each + 1;
    const void *w = in_place ? (const void *)p->w.data : g->vendor->weights;
    const int n_part = p->x_low ? 2 : 1;

    for (int low = 0; low < n_part; low++) {
        const shape s = shape_of(p, each, low), tail = shape_of(p, last, low);
        if (!shape_ready(g->vendor, &s) || !shape_ready(g->vendor, &tail)) return false;
    }
    for (int first = 0; first < p->rows; first += each) {
        const int rows = p->rows - first < each ? p->rows - first : each;
        if (!in_place) decode(g, p, first, rows);
        for (int low = 0; low < n_part; low++) {
            const shape s = shape_of(p, rows, low);
            ready_shape *r = shape_ready(g->vendor, &s);
            if (r && multiply(g, p, r, w, low, first)) continue;
            if (r) r->works = false;     /* avoids decoding its weights in vain again */
            if (first == 0 && !low) return false;
            gpu_fail(g, cudaErrorUnknown, "cuBLASLt: product");
        }
    }
    return true;
}

/* ---- open and close -------------------------------------------------------------------------- */

bool vendor_gemm_open(gpu *g, void *scratch)
{
    if (!vendor_gemm_find() || !scratch) return false;
    vendor *v = (vendor *)mem_zalloc(sizeof *v);
    if (!v) return false;
    if (lib().cublasLtCreate(&v->handle) != CUBLAS_STATUS_SUCCESS) {
        mem_free(v);
        return false;
    }
    v->weights = (uint8_t *)scratch;
    v->workspace = v->weights + WEIGHT_BYTES;
    g->vendor = v;
    return true;
}

void vendor_gemm_close(gpu *g)
{
    if (!g->vendor) return;
    for (ready_shape &r : g->vendor->shapes) release_shape(&r);
    lib().cublasLtDestroy(g->vendor->handle);
    mem_free(g->vendor);
    g->vendor = NULL;
}

#else                                    /* a toolkit without the library's header */

const char *vendor_gemm_find(void) { return NULL; }
size_t vendor_gemm_bytes(void) { return 0; }
bool vendor_gemm_open(gpu *, void *) { return false; }
void vendor_gemm_close(gpu *) {}
bool vendor_gemm_fits(const gpu *, const gemm *) { return false; }
bool vendor_gemm_run(gpu *, const gemm *) { return false; }

#endif
