/* matvec.cu - gpu_project, products of one input with up to six matrices: groups the matrices by
 * type and launches the kernels of matvec.cuh for up to GPU_FEW tokens, those of batch.cuh for
 * more. The sums of quantised weights follow the contract except for the last additions. */
#include "cuda/batch.cuh"
#include "cuda/matvec.cuh"

static void launch_dense(gpu *g, int type, dense_args *a, uint64_t bytes)
{
    switch (type) {
#define CASE(T) case T:
    GPU_BASIC_TYPES(CASE) dense_basic(g, type, a, bytes); break;
    GPU_K_TYPES(CASE) dense_k_quants(g, type, a, bytes); break;
    GPU_TABLE_TYPES(CASE) dense_tables(g, type, a, bytes); break;
    GPU_FLOAT_TYPES(CASE) dense_float_types(g, type, a, bytes); break;
#undef CASE
    default: gpu_fail(g, cudaErrorInvalidValue, "product: type without a kernel");
    }
}

static float factor_of_type(int type)
{
    switch (type) {
#define CASE(T) case T: return format<T>::factor;
    GPU_BLOCK_TYPES(CASE)
#undef CASE
    default: return 1.0f;
    }
}

/* Makes the int8 forms of several vectors, which products with quantised weights read. */
static void make_codes(gpu *g, gpu_input *in)
{
    if (in->has_codes) return;
    const input_view view = view_of(in);
    if (!is_whole(view)) gpu_fail(g, cudaErrorInvalidValue, "product: alignment of the input");
    launch(g, "quantise", 0, is_gated(view) ? dense_input<WHOLE_INPUT> : dense_input<UNGATED_INPUT>,
           (unsigned)in->n, THREADS, 0, view, (uint8_t *)in->codes);
    in->has_codes = true;
}

/* Computes all products whose matrices have this type. Called once for each type of the list. */
static void project_type(gpu *g, gpu_input *in, const gpu_product *list, int n_product, int type)
{
    const bool floats = is_float_weight(type);
    dense_args a = {};
    uint64_t bytes = 0;

    if (!floats && in->n > 1 && in->codes) {
        make_codes(g, in);
        a.codes = (const uint8_t *)in->codes;
    }
    a.in = view_of(in);
    a.name = in->name ? in->name : "dense";
    a.n_token = in->n;
    for (int i = 0; i < n_product; i++) {
        const gpu_product *p = &list[i];
        if (p->w.type != type) continue;
        a.part[a.n_part++] = { p->w.data, (int)p->w.row_bytes, p->w.rows, a.n_unit, 0,
                               p->w.scale * factor_of_type(type), p->w.bias, p->y, p->y_stride,
                               p->add, p->conv };
        a.n_unit += floats ? p->w.rows : (int)ceil_div(p->w.rows, UNIT_ROWS);
        bytes += p->w.row_bytes * (uint64_t)p->w.rows;
    }
    launch_dense(g, type, &a, bytes);
}

static void project_few(gpu *g, gpu_input *in, const gpu_product *list, int n_product)
{
    for (int i = 0; i < n_product; i++) {
        bool done = false;
        for (int k = 0; k < i; k++) done |= list[k].w.type == list[i].w.type;
        if (!done) project_type(g, in, list, n_product, list[i].w.type);
    }
}

/* Computes GPU_FEW tokens at a time; each time shifts a convolution's window. */
static void project_by_few(gpu *g, const gpu_input *in, const gpu_product *list, int n_product)
{
    gpu_product some[GPU_MAX_PRODUCTS];
    for (int first = 0; first < in->n; first += GPU_FEW) {
        const int left = in->n - first;
        gpu_input part = input_part(in, first, left < GPU_FEW ? left : GPU_FEW);
        for (int i = 0; i < n_product; i++) {
            some[i] = list[i];
            some[i].y += (size_t)first * list[i].y_stride;
            some[i].conv.first = first;
            if (list[i].conv.raw) some[i].conv.raw += (size_t)first * list[i].w.rows;
        }
        project_few(g, &part, some, n_product);
    }
}

void gpu_project(gpu *g, gpu_input *in, const gpu_product *list, int n_product)
{
    if (in->n <= GPU_FEW) project_few(g, in, list, n_product);
    else if (in->in_pass || gemm_follows_contract(g, in->n)) project_by_few(g, in, list, n_product);
    else project_many(g, in, list, n_product);
}

bool gpu_type_fits(int type)
{
    switch (type) {
#define CASE(T) case T:
    GPU_BLOCK_TYPES(CASE)
    GPU_FLOAT_TYPES(CASE)
#undef CASE
        return true;
    default: return false;
    }
}
