// The gradient of SwiGLU as epilogue of the GEMM that makes dy, for small K. The epilogue of a tile takes as long as its products, so two
// warpgroups alternate (CUTLASS: ping-pong): one multiplies, which occupies the tensor cores, while the other runs the epilogue of the tile
// before. TMA, clusters and barriers as in fused_gemm_kernel.cu; tiles have 128 rows and 128 columns and belong to one warpgroup.
#include "kernels/cuda/pack.h"
#include "kernels/gemm/fused_gemm_kernel.h"
#include "kernels/gemm/gemm_tiles.h"
#include "kernels/gemm/hopper.h"

namespace cairn::kernels {
namespace {

constexpr int kColumns = 128, kStages = 4;
constexpr int kWarps = 8;  // of the two warpgroups
constexpr int kThreads = 32 * kWarps + 128;
constexpr uint32_t kXBytes = kTileRows * kTileSum * 2, kWBytes = kColumns * kTileSum * 2, kStageBytes = kXBytes + kWBytes;
constexpr int kSlots = 6;  // TMA boxes of shared memory per warp
constexpr int kLoads = 2;  // pairs of boxes in flight
constexpr uint32_t kSharedBytes = 1024 + kStages * kStageBytes + kWarps * kSlots * kBoxBytes + 8 * (2 * kStages + kWarps * kLoads + 2);

struct Gradients {
  CUtensorMap gate, up, dgate, dup, y;  // in boxes
  CUtensorMap gates_ahead, ups_ahead;   // in tiles
};

// The shared memory of a warp. Gates and ups are loaded into slots 0 and 1, then 2 and 3, in turn; their gradients overwrite them. Slots 4
// and 5 hold y.
struct Slots {
  uint32_t base, barriers;
  int lane;

  __device__ uint32_t slot(int i) const { return base + static_cast<uint32_t>(i) * kBoxBytes; }
  __device__ uint32_t barrier(int pair) const { return barriers + 8 * static_cast<uint32_t>(pair); }
  // The address of this lane's row in the 16 x 16 fragment at column 16 c.
  __device__ uint32_t place(int i, int c) const {
    const int row = lane % 16, unit = 2 * c + lane / 16;
    return slot(i) + static_cast<uint32_t>(row * 128 + ((unit ^ row % 8) << 4));
  }
  __device__ void load(const Gradients& to, int pair, int row, int column) const {  // by lane 0
    hopper::mbarrier_arrive_expect_bytes(barrier(pair), 2 * kBoxBytes);
    hopper::tma_load(slot(2 * pair), to.gate, column, row, barrier(pair));
    hopper::tma_load(slot(2 * pair + 1), to.up, column, row, barrier(pair));
  }
};

__device__ float low(uint32_t two) { return __uint_as_float(two << 16); }
__device__ float high(uint32_t two) { return __uint_as_float(two & 0xffff0000U); }
__device__ uint32_t rounded(float first, float second) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&two);
}

// The epilogue of one box, 16 rows and 64 columns. d holds dy in the layout of hopper::wgmma.
__device__ void finish_box(const float* d, const Slots& slots, int pair) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    uint32_t gates[4], ups[4], again[4];
    hopper::ldmatrix(slots.place(2 * pair, c), gates[0], gates[1], gates[2], gates[3]);
    hopper::ldmatrix(slots.place(2 * pair + 1, c), ups[0], ups[1], ups[2], ups[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float g[2] = {low(gates[i]), high(gates[i])}, u[2] = {low(ups[i]), high(ups[i])};
      float dgate[2], dup[2], y[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float dy = d[8 * c + 2 * i + k], s = device::sigmoid_approx(g[k]), silu = g[k] * s;
        dgate[k] = dy * u[k] * (s + silu * (1.0f - s));
        dup[k] = dy * silu;
        y[k] = silu * u[k];
      }
      gates[i] = rounded(dgate[0], dgate[1]), ups[i] = rounded(dup[0], dup[1]), again[i] = rounded(y[0], y[1]);
    }
    hopper::stmatrix(slots.place(2 * pair, c), gates[0], gates[1], gates[2], gates[3]);
    hopper::stmatrix(slots.place(2 * pair + 1, c), ups[0], ups[1], ups[2], ups[3]);
    hopper::stmatrix(slots.place(4 + pair, c), again[0], again[1], again[2], again[3]);
  }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The shared memory and the place of a block: addresses of the stages, slots and mbarriers, and which units (pairs of tiles) it makes.
struct BlockState {
  uint32_t base, slots;   // stages; slots of the warps
  uint32_t full, empty;   // one mbarrier per stage: loaded, free
  uint32_t loads, turns;  // mbarriers: loads of each warp's slots; whose turn it is to multiply
  uint32_t rank;          // in the cluster
  int first, step;        // units first, first + step, ...
};

// The producer, one thread: loads x and w for all steps of all tiles, and prefetches gates and ups.
__device__ __forceinline__ void produce(const Tiles& tiles, const Gradients& to, const BlockState& s) {
  int stage = 0;
  uint32_t parity = 1;  // unused stages are free
  for (int unit = s.first; unit < tiles.units(); unit += s.step) {
    const Tiles::Place at = tiles.place(unit, s.rank);
    const int column = at.column + static_cast<int>(s.rank) * (kColumns / 2);
    for (int i = 0; i < kColumns; i += kBoxColumns) {
      hopper::tma_prefetch(to.gates_ahead, at.column + i, at.row);
      hopper::tma_prefetch(to.ups_ahead, at.column + i, at.row);
    }
    for (int k = 0; k < tiles.steps; ++k) {
      const uint32_t stage_base = s.base + stage * kStageBytes, barrier = s.full + 8 * stage;
      hopper::mbarrier_wait(s.empty + 8 * stage, parity);
      hopper::mbarrier_arrive_expect_bytes(barrier, kStageBytes);
      hopper::tma_load(stage_base, tiles.x, k * kTileSum, at.row, barrier);
      hopper::tma_load_multicast(3, stage_base + kXBytes + s.rank * (kWBytes / 2), tiles.w, column, k * kTileSum, barrier);
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }
}

// The products of one tile, number `turn` of this block, into d.
__device__ __forceinline__ void multiply(float (&d)[2][64], const Tiles& tiles, const BlockState& s, int group, int turn, int lane) {
  const auto release = [&](int which) {
    if (threadIdx.x % 128 < kTileBlocks) hopper::mbarrier_arrive_remote(s.empty + 8 * which, threadIdx.x % 128);
  };
  const int begin = turn * tiles.steps;
  int stage = begin % kStages, before = 0;
  uint32_t parity = begin / kStages % 2;
  // Wait until the other warpgroup has its stages: a barrier's parity distinguishes a phase from the next one, not from the one after.
  if (turn > 0) hopper::mbarrier_wait(s.turns + 8 * group, (turn - 1) / 2 % 2);
  for (int k = 0; k < tiles.steps; ++k) {
    hopper::mbarrier_wait(s.full + 8 * stage, parity);
    const uint32_t x = s.base + stage * kStageBytes, w = x + kXBytes;
    const uint64_t upper = hopper::wgmma_descriptor(x, 16, 1024), lower = hopper::wgmma_descriptor(x + kXBytes / 2, 16, 1024);
    const uint64_t b = hopper::wgmma_descriptor(w, kWBytes / 2, 1024);
    hopper::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTileSum / 16; ++i) {
      hopper::wgmma<true>(d[0], upper + 2 * i, b + 128 * i, k > 0 || i > 0);
      hopper::wgmma<true>(d[1], lower + 2 * i, b + 128 * i, k > 0 || i > 0);
    }
    hopper::wgmma_commit();
    if (k > 0) {
      hopper::wgmma_wait<1>();
      release(before);
    }
    before = stage;
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  if (lane == 0) hopper::mbarrier_arrive(s.turns + 8 * (1 - group));
  hopper::wgmma_wait<0>();
  release(before);
}

// One of the two warpgroups: multiplies every second tile and runs its epilogue.
__device__ __forceinline__ void consume(const Tiles& tiles, const Gradients& to, const BlockState& s, int warp, int group, int lane) {
  const Slots slots{.base = s.slots + warp * kSlots * kBoxBytes, .barriers = s.loads + 8 * warp * kLoads, .lane = lane};
  uint32_t load_parity = 0;
  int turn = group;  // number of the tile within this block; each warpgroup has every second one
  for (int unit = s.first + group * s.step; unit < tiles.units(); unit += 2 * s.step, turn += 2) {
    const Tiles::Place at = tiles.place(unit, s.rank);
    const int row = at.row + warp % 4 * kBoxRows;
    // Of boxes 0 to 3 of a warp, two lie side by side and two 64 rows further down.
    const auto box_row = [&](int i) { return row + i / 2 * 64; };
    const auto box_column = [&](int i) { return at.column + i % 2 * kBoxColumns; };
    if (lane == 0) {
      hopper::tma_wait_read<0>();
      slots.load(to, 0, box_row(0), box_column(0));
      slots.load(to, 1, box_row(1), box_column(1));
    }
    __syncwarp();
    float d[2][64];
    multiply(d, tiles, s, group, turn, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pair = i % 2;
      if (i == 1 || i == 2) {  // the slots of the box before are free: load the box after next
        if (lane == 0) {
          hopper::tma_wait_read<0>();
          slots.load(to, 1 - pair, box_row(i + 1), box_column(i + 1));
        }
        __syncwarp();
      }
      hopper::mbarrier_wait(slots.barrier(pair), load_parity);
      finish_box(d[i / 2] + i % 2 * 32, slots, pair);
      hopper::fence_async_shared();
      __syncwarp();
      if (lane == 0) {
        hopper::tma_store(to.dgate, box_column(i), box_row(i), slots.slot(2 * pair));
        hopper::tma_store(to.dup, box_column(i), box_row(i), slots.slot(2 * pair + 1));
        hopper::tma_store(to.y, box_column(i), box_row(i), slots.slot(4 + pair));
        hopper::tma_commit_group();
      }
      __syncwarp();
      if (pair == 1) load_parity ^= 1;
    }
  }
  if (lane == 0) hopper::tma_wait_stored<0>();
}

#endif

__global__ void CAIRN_CLUSTER __launch_bounds__(kThreads, 1)
    pingpong_swiglu_backward_kernel(const __grid_constant__ Tiles tiles, const __grid_constant__ Gradients to) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char shared[];
  const uint32_t base = (hopper::shared_address(shared) + 1023) / 1024 * 1024;  // the same in both blocks
  const uint32_t slots = base + kStages * kStageBytes, full = slots + kWarps * kSlots * kBoxBytes;
  const uint32_t empty = full + 8 * kStages, loads = empty + 8 * kStages, turns = loads + 8 * kWarps * kLoads;
  const BlockState s{.base = base,
                     .slots = slots,
                     .full = full,
                     .empty = empty,
                     .loads = loads,
                     .turns = turns,
                     .rank = hopper::cluster_rank(),
                     .first = static_cast<int>(blockIdx.x / kTileBlocks),
                     .step = static_cast<int>(gridDim.x / kTileBlocks)};
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), group = warp / 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hopper::mbarrier_init(s.full + 8 * i, 1);
      hopper::mbarrier_init(s.empty + 8 * i, kTileBlocks);  // one warpgroup of each block
    }
    for (int i = 0; i < kWarps * kLoads; ++i) hopper::mbarrier_init(s.loads + 8 * i, 1);
    for (int i = 0; i < 2; ++i) hopper::mbarrier_init(s.turns + 8 * i, kWarps / 2);
    hopper::fence_barrier_init();
  }
  __syncthreads();
  hopper::cluster_sync();

  if (group == 2) {
    hopper::decrease_registers<40>();
    if (warp == kWarps && lane == 0) produce(tiles, to, s);
  } else {
    hopper::increase_registers<232>();
    consume(tiles, to, s, warp, group, lane);
  }
  __syncwarp();
  hopper::cluster_sync();  // shared memory is written to from the other block
#endif
}

}  // namespace

cudaError_t launch_pingpong_swiglu_backward(const GemmSwigluBackwardLaunch& launch, cudaStream_t stream) {
  const GemmLaunch& p = launch.gemm;
  const int64_t ff = p.out;
  TensorMaps maps;
  const Tiles tiles = maps.tiles_of(p, kColumns);
  const auto *gates = static_cast<const device::bf16*>(launch.gate_up), *ups = gates + ff;
  auto *dgates = static_cast<device::bf16*>(launch.dgate_up), *dups = dgates + ff;
  const Gradients to{.gate = maps.boxes_of(gates, p.rows, ff, 2 * ff),
                     .up = maps.boxes_of(ups, p.rows, ff, 2 * ff),
                     .dgate = maps.boxes_of(dgates, p.rows, ff, 2 * ff),
                     .dup = maps.boxes_of(dups, p.rows, ff, 2 * ff),
                     .y = maps.boxes_of(launch.y, p.rows, ff, ff),
                     .gates_ahead = maps.of(gates, p.rows, ff, 2 * ff, kTileRows),
                     .ups_ahead = maps.of(ups, p.rows, ff, 2 * ff, kTileRows)};
  return launch_tiles<pingpong_swiglu_backward_kernel>(maps, kThreads, kSharedBytes, stream, tiles, to);
}

}  // namespace cairn::kernels
