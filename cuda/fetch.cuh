/* fetch.cuh - the kernel that fetches slabs from page-locked RAM to VRAM.
 *
 * A few blocks read across the bus, with so many loads in flight that the bus is never idle; other
 * kernels use the rest of the chip. experts_with_host.cu launches it in the stream `side`. */
#ifndef CUDA_FETCH_CUH
#define CUDA_FETCH_CUH

#include "cuda/experts.cuh"

enum {
    PULL_THREADS = 512, PULL_LOADS = 8,  /* PULL_LOADS: loads in flight of a thread */
    PULL_UNITS = 32 * PULL_LOADS,        /* 16-byte units that a warp loads at once: a part */
    LINE = 128                           /* bytes that the bus brings for one request */
};

static inline uint64_t round_up(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

/* Bytes of a slab in the pad, where it begins at the same offset within a line as in RAM. */
static inline uint64_t slab_pad_bytes(uint64_t bytes) { return round_up(bytes + LINE - 1 + 15); }

typedef struct pull_state {              /* zero before and after the kernel, except start */
    unsigned long long start;            /* ns on the device's clock */
    uint32_t done;                       /* number of blocks that have ended */
    uint32_t parts[SELECT_MAX_K];        /* parts of each slot's down slab that have arrived */
} pull_state;

typedef struct pull_args {
    const expert_slot *slots;            /* [k] of one token */
    int k;
    uint32_t bytes[3];                   /* bytes of a gate, an up and a down slab */
    const uint32_t *number;
    pull_state *state;
    volatile uint32_t *fetched;          /* gpu_mailbox.fetched, in RAM */
    volatile uint64_t *fetch_ns;         /* gpu_mailbox.fetch_ns, in RAM */
} pull_args;

/* Number of parts of a slab; at some addresses one more than needed. Parts begin at multiples of
 * LINE, because a line that two warps share would be fetched twice. */
static __device__ __forceinline__ int parts_of(uint32_t bytes)
{
    return (int)(((bytes + LINE - 1 + 15) / 16 + PULL_UNITS - 1) / PULL_UNITS);
}

/* One warp fetches part i of a slab, including all of its first line and of its last 16 bytes. */
static __device__ __forceinline__ void pull_part(const uint8_t *to, const uint8_t *from,
                                                 uint32_t bytes, int i)
{
    const uint32_t skip = low_bits(from, LINE - 1);
    const int n = (int)((skip + bytes + 15) / 16), first = i * PULL_UNITS + threadIdx.x % 32;
    const uint4 *source = (const uint4 *)(from - skip);
    uint4 *target = (uint4 *)(to - skip);
    uint4 v[PULL_LOADS];

    #pragma unroll
    for (int l = 0; l < PULL_LOADS; l++)
        if (first + 32 * l < n) v[l] = source[first + 32 * l];
    #pragma unroll
    for (int l = 0; l < PULL_LOADS; l++)
        if (first + 32 * l < n) target[first + 32 * l] = v[l];
}

/* All warps fetch the parts of all slabs, down slabs first, because the host asks for them once it
 * has computed gate and up. With a slab's last part the kernel writes the question's number to
 * fetched. The host only bases a decision on it, and the kernels that read slabs run after this
 * one, so there is no fence, which would make the whole SM wait. */
static __global__ void __launch_bounds__(PULL_THREADS, 2) pull(tracer f, const pull_args a)
{
    __shared__ int slot_of[SELECT_MAX_K], n_all, n_down; /* slots: down alone, then whole */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    pdl_begin(f);
    pdl_wait(f);
    if (warp == 0) {
        const unsigned below = (1u << lane) - 1;
        const int where = lane < a.k ? a.slots[lane].where : GPU_HOT;
        const unsigned all = __ballot_sync(~0u, where == GPU_FETCHED);
        const unsigned down = __ballot_sync(~0u, where == GPU_COLD_FETCHED);
        if (where == GPU_COLD_FETCHED) slot_of[__popc(down & below)] = lane;
        if (where == GPU_FETCHED) slot_of[__popc(down) + __popc(all & below)] = lane;
        if (lane == 0) {
            n_all = __popc(all);
            n_down = __popc(down);
            if (blockIdx.x == 0) a.state->start = device_ns();
        }
    }
    __syncthreads();
    const int gate = parts_of(a.bytes[0]), up = parts_of(a.bytes[1]), down = parts_of(a.bytes[2]);
    const int whole = gate + up + down, alone = n_down * down, n_part = alone + n_all * whole;
    const uint32_t number = *a.number;

    for (int i = blockIdx.x + gridDim.x * warp; i < n_part;
         i += gridDim.x * (PULL_THREADS / 32)) {
        const bool of_whole = i >= alone;
        const int slot = slot_of[of_whole ? n_down + (i - alone) / whole : i / down];
        const int at = of_whole ? (i - alone) % whole : gate + up + i % down;
        const expert_slot &p = a.slots[slot];
        const int kind = at < gate ? 0 : at < gate + up ? 1 : 2;
        pull_part(kind == 0 ? p.gate : kind == 1 ? p.up : p.down, p.from[kind],
                  kind == 0 ? a.bytes[0] : kind == 1 ? a.bytes[1] : a.bytes[2],
                  at - (kind == 0 ? 0 : kind == 1 ? gate : gate + up));
        if (kind != 2) continue;
        __syncwarp();
        if (lane == 0 && atomicAdd(&a.state->parts[slot], 1u) == (uint32_t)down - 1) {
            a.state->parts[slot] = 0;
            a.fetched[slot] = number;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(&a.state->done, 1u) == gridDim.x - 1) {
            a.state->done = 0;
            __threadfence();
            const unsigned long long from = *(volatile unsigned long long *)&a.state->start;
            if (n_part) *a.fetch_ns = device_ns() - from;
        }
    }
    pdl_end(f);
}

static inline unsigned pull_blocks(const gpu *g)
{
    return (unsigned)(g->n_sm / 16 < 2 ? 2 : g->n_sm / 16 > 16 ? 16 : g->n_sm / 16);
}

#endif
