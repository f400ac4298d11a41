// Hopper GEMMs with fused epilogues: results are processed on chip before they are written, which saves a round trip through memory.
//
// A warp-specialized persistent kernel, as in CUTLASS. A cluster of two blocks makes two tiles of 128 rows and the same 256 columns; each
// block loads half of the tile of w and multicasts it to both. Inside a block:
//   producer  one thread issues TMA loads of x and w, kStages steps of K ahead; mbarriers `full` and `empty` guard the stages
//   MMA       two warpgroups multiply (wgmma), 64 rows each, round the tile and write it to shared memory
//   epilogue  kEpilogueWarps warps process the tile in shared memory (SwiGLU, its gradient, rope) and write the results, while the MMA
//   warps
//             compute the next tile; `tile_full` and `tile_empty` guard the tile
// Blocks stay resident and go from tile to tile.
#include "kernels/cuda/pack.h"
#include "kernels/gemm/fused_gemm_kernel.h"
#include "kernels/gemm/gemm_tiles.h"
#include "kernels/gemm/hopper.h"

namespace cairn::kernels {
namespace {

using device::bf16;

constexpr int kColumns = 256;      // of a tile
constexpr int kMmaWarps = 8;       // warps that multiply
constexpr int kEpilogueWarps = 3;  // warps of the epilogue
constexpr int kStages = 3;         // steps of K in shared memory
constexpr uint32_t kXBytes = kTileRows * kTileSum * 2, kWBytes = kColumns * kTileSum * 2, kStageBytes = kXBytes + kWBytes;

// Eight adjacent bf16 in four registers. A pending load is not converted until it is used.
struct Eight {
  uint4 words;

  __device__ static Eight load(const bf16* from) { return {__ldcs(reinterpret_cast<const uint4*>(from))}; }  // not to be kept in caches
  __device__ float operator[](int i) const {
    const uint32_t word = i / 2 == 0 ? words.x : i / 2 == 1 ? words.y : i / 2 == 2 ? words.z : words.w;
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000U);
  }
  __device__ static Eight store(bf16* to, const float (&values)[8]) {
    const auto two = [&](int i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], values[i + 1]);
      return *reinterpret_cast<const uint32_t*>(&pair);
    };
    const Eight stored{{two(0), two(2), two(4), two(6)}};
    __stcs(reinterpret_cast<uint4*>(to), stored.words);
    return stored;
  }
};

// A rounded tile in shared memory, in TMA boxes; four boxes side by side belong to one warp.
constexpr int kBoxes = kColumns / kBoxColumns;
constexpr uint32_t kTileBytes = kTileRows * kColumns * 2;

struct Tile {
  unsigned char* data;
  uint32_t base;  // its address

  __device__ uint32_t box(int warp, int across) const { return base + static_cast<uint32_t>(warp * kBoxes + across) * kBoxBytes; }
  // The offset of the eight columns from 8 * eight on.
  __device__ static uint32_t place(int row, int eight) {
    return static_cast<uint32_t>(row / kBoxRows * kBoxes + eight / 8) * kBoxBytes +
           static_cast<uint32_t>(row % kBoxRows * 128 + ((eight % 8 ^ row % 8) << 4));
  }
  __device__ Eight read(int row, int eight) const { return {*reinterpret_cast<const uint4*>(data + place(row, eight))}; }
  // Writes a warp's accumulators, in the layout of hopper::wgmma, times a factor.
  __device__ void write(const float (&d)[128], float factor, int warp, int lane) const {
#pragma unroll
    for (int c = 0; c < kBoxColumns / 16; ++c) {  // lanes name rows of the four quarters of 16 x 16
      const uint32_t first = base + place(warp * kBoxRows + lane % 16, 2 * c + lane / 16);
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) {
        const uint32_t at = first + static_cast<uint32_t>(i) * kBoxBytes;
        uint32_t two[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float* from = d + 32 * i + 8 * c + 2 * k;
          const __nv_bfloat162 sums = __floats2bfloat162_rn(from[0] * factor, from[1] * factor);
          two[k] = *reinterpret_cast<const uint32_t*>(&sums);
        }
        hopper::stmatrix(at, two[0], two[1], two[2], two[3]);
      }
    }
  }
};

// An Epilogue has `work`, which warp `self` of kEpilogueWarps runs on a tile after calling `ready`; with kCopies also `copy`, by which the
// MMA warps store the tile; and optionally `expect`, which prefetches into the L2 cache.

// Rope. Half a warp has a row; a thread has eight columns of the first half of a head and their partners in the second half.
struct RopeEpilogue {
  static constexpr bool kCopies = false;
  static constexpr int kTogether = 2;  // rows whose angles are loaded while as many are rotated
  bf16* y;
  const float *cos, *sin;
  int length, half, rotated;

  struct Angles {
    float4 cos[kTogether][2], sin[kTogether][2];
  };
  __device__ static float element(const float4 (&of)[2], int i) {
    const float4& four = of[i / 4];
    return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
  }

  template <class Ready>
  __device__ void work(const Tile& tile, const Tiles& tiles, Tiles::Place at, int self, int lane, const Ready& ready) const {
    const int eights = half / 8, place = lane % 16, head = place / eights, eight = place % eights;
    const int first = head * 2 * eights + eight, column = at.column + 8 * first;
    const bool rotates = column < rotated;
    const int rows = column < tiles.columns ? min(kTileRows, tiles.rows - at.row) : 0;
    constexpr int kStep = 2 * kEpilogueWarps;
    const auto load = [&](Angles& into, int from) {
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int64_t angles = static_cast<int64_t>((at.row + from + k * kStep) % length) * half + 8 * eight;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          into.cos[k][i] = *reinterpret_cast<const float4*>(cos + angles + 4 * i);
          into.sin[k][i] = *reinterpret_cast<const float4*>(sin + angles + 4 * i);
        }
      }
    };
    const auto rotate = [&](const Angles& by, int from) {
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int row = from + k * kStep;
        if (row >= rows) continue;
        const Eight u = tile.read(row, first), v = tile.read(row, first + eights);
        float to_first[8], to_second[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float c = rotates ? element(by.cos[k], i) : 1.0f, s = rotates ? element(by.sin[k], i) : 0.0f;
          to_first[i] = u[i] * c - v[i] * s;
          to_second[i] = v[i] * c + u[i] * s;
        }
        bf16* to = y + static_cast<int64_t>(at.row + row) * tiles.columns + column;
        Eight::store(to, to_first);
        Eight::store(to + half, to_second);
      }
    };
    Angles even, odd;
    const int begin = 2 * self + lane / 16;
    load(even, begin);
    ready();
    for (int from = begin; from < kTileRows; from += 2 * kTogether * kStep) {
      load(odd, from + kTogether * kStep);
      rotate(even, from);
      load(even, from + 2 * kTogether * kStep);
      rotate(odd, from + kTogether * kStep);
    }
  }
};

// SwiGLU. The first half of a tile's columns are gates, the second half the matching ups. Both are stored; the epilogue computes y.
struct SwigluEpilogue {
  static constexpr bool kCopies = true;
  CUtensorMap gate, up;
  bf16* y;
  unsigned* amax;  // of y; null: not wanted

  __device__ void copy(const Tile& tile, int warp, int row, int column) const {
#pragma unroll
    for (int i = 0; i < kBoxes / 2; ++i) {
      hopper::tma_store(gate, column + kBoxColumns * i, row, tile.box(warp, i));
      hopper::tma_store(up, column + kBoxColumns * i, row, tile.box(warp, kBoxes / 2 + i));
    }
  }
  template <class Ready>
  __device__ void work(const Tile& tile, const Tiles& tiles, Tiles::Place at, int self, int lane, const Ready& ready) const {
    const int eight = lane % 16, column = at.column + 8 * eight;
    const int rows = column < tiles.columns ? min(kTileRows, tiles.rows - at.row) : 0;
    device::Amax<bf16> local_amax;
    ready();
#pragma unroll 2
    for (int row = 2 * self + lane / 16; row < rows; row += 2 * kEpilogueWarps) {
      const Eight gates = tile.read(row, eight), ups = tile.read(row, 16 + eight);
      float values[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = gates[i] * device::sigmoid_approx(gates[i]) * ups[i];
      const uint4 words = Eight::store(y + static_cast<int64_t>(at.row + row) * tiles.columns + column, values).words;
      for (const unsigned two : {words.x, words.y, words.z, words.w}) local_amax.two = __vmaxu2(local_amax.two, two & 0x7fff7fffU);
    }
    __syncwarp();
    local_amax.record(amax);
  }
};

// The gradient of SwiGLU. A warp has kTogether rows at a time, a thread eight columns. Gates and ups of the next rows are loaded while the
// current ones are computed; `expect` prefetches them into the L2 cache.
struct SwigluBackwardEpilogue {
  static constexpr bool kCopies = false;
  static constexpr int kTogether = 3;
  CUtensorMap gates_ahead, ups_ahead;
  const bf16* gate_up;
  bf16 *dgate_up, *y;

  __device__ void expect(Tiles::Place at) const {
    for (int i = 0; i < kBoxes; ++i) {
      hopper::tma_prefetch(gates_ahead, at.column + kBoxColumns * i, at.row);
      hopper::tma_prefetch(ups_ahead, at.column + kBoxColumns * i, at.row);
    }
  }

  struct Rows {
    Eight gates[kTogether], ups[kTogether];
  };

  template <class Ready>
  __device__ void work(const Tile& tile, const Tiles& tiles, Tiles::Place at, int self, int lane, const Ready& ready) const {
    const int column = at.column + 8 * lane, rows = column < tiles.columns ? min(kTileRows, tiles.rows - at.row) : 0;
    const int64_t ff = tiles.columns, first = static_cast<int64_t>(at.row) * 2 * ff + column;
    constexpr int kStep = kTogether * kEpilogueWarps;
    const auto load = [&](Rows& into, int from) {
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int64_t row = min(at.row + from + k * kEpilogueWarps, tiles.rows - 1);  // clamped instead of skipped: no branch
        const bf16* gates = gate_up + row * 2 * ff + min(column, tiles.columns - 8);
        into.gates[k] = Eight::load(gates), into.ups[k] = Eight::load(gates + ff);
      }
    };
    const auto compute = [&](const Rows& of, int from) {
      float s[kTogether][8];
      Eight dy[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) dy[k] = tile.read(min(from + k * kEpilogueWarps, kTileRows - 1), lane);
#pragma unroll
      for (int i = 0; i < 8 * kTogether; ++i) s[i / 8][i % 8] = device::sigmoid_approx(of.gates[i / 8][i % 8]);
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        float dgate[8], dup[8], again[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float u = of.ups[k][i], silu = of.gates[k][i] * s[k][i];
          dgate[i] = dy[k][i] * u * (s[k][i] + silu * (1.0f - s[k][i]));
          dup[i] = dy[k][i] * silu;
          again[i] = silu * u;
        }
        const int row = from + k * kEpilogueWarps;
        if (row >= rows) continue;
        bf16* gates = dgate_up + first + row * 2 * ff;
        Eight::store(gates, dgate);
        Eight::store(gates + ff, dup);
        Eight::store(y + static_cast<int64_t>(at.row + row) * ff + column, again);
      }
    };
    Rows even, odd;
    load(even, self);
    ready();
    for (int from = self; from < kTileRows; from += 2 * kStep) {
      load(odd, from + kStep);
      compute(even, from);
      load(even, from + 2 * kStep);
      if (from + kStep < kTileRows) compute(odd, from + kStep);
    }
  }
};

constexpr int kBarriers = 2 * kStages + 2;
constexpr uint32_t kSharedBytes = 1024 /* to align */ + kStages * kStageBytes + kTileBytes + 8 * kBarriers;

constexpr int kThreads = 384;                              // two MMA warpgroups, and one with the producer warp and kEpilogueWarps
constexpr int kMmaRegisters = 184, kOtherRegisters = 136;  // of a thread

// The shared memory and the place of a block: addresses of the stages and of the mbarriers, and which units (pairs of tiles) it makes.
struct BlockState {
  uint32_t base;  // of the stages
  Tile tile;
  uint32_t full, empty;            // one mbarrier per stage: loaded, free
  uint32_t tile_full, tile_empty;  // written by the MMA warps, read by the epilogue
  uint32_t rank;                   // in the cluster
  int first, step;                 // units first, first + step, ...
};

template <bool kCodes>
constexpr int kStepSum = kCodes ? 2 * kTileSum : kTileSum;  // K of a step: 128 bytes

// The producer, one thread: loads x and w for all steps of all tiles.
template <class Epilogue, bool kByInput, bool kCodes>
__device__ __forceinline__ void produce(const Tiles& tiles, const Epilogue& epilogue, const BlockState& s) {
  constexpr int kSum = kStepSum<kCodes>;
  hopper::prefetch_tensor_map(tiles.x);
  hopper::prefetch_tensor_map(tiles.w);
  int stage = 0;
  uint32_t parity = 1;  // unused stages are free
  for (int unit = s.first; unit < tiles.units(); unit += s.step) {
    const Tiles::Place at = tiles.place(unit, s.rank);
    const int column = at.column + static_cast<int>(s.rank) * tiles.w_second;
    if constexpr (requires { epilogue.expect(at); }) epilogue.expect(at);
    for (int k = 0; k < tiles.steps; ++k) {
      const uint32_t to = s.base + stage * kStageBytes, barrier = s.full + 8 * stage, half = to + kXBytes + s.rank * (kWBytes / 2);
      hopper::mbarrier_wait(s.empty + 8 * stage, parity);
      hopper::mbarrier_arrive_expect_bytes(barrier, kStageBytes);
      hopper::tma_load(to, tiles.x, k * kSum, at.row, barrier);
      if constexpr (kByInput) {  // 64 columns of w are a box
        hopper::tma_load_multicast(3, half, tiles.w, column, k * kSum, barrier);
        hopper::tma_load_multicast(3, half + kWBytes / 4, tiles.w, column + 64, k * kSum, barrier);
      } else {
        hopper::tma_load_multicast(3, half, tiles.w, k * kSum, column, barrier);
      }
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }
}

// The epilogue warps: process each tile once the MMA warps have written it.
template <class Epilogue>
__device__ __forceinline__ void run_epilogue(const Tiles& tiles, const Epilogue& epilogue, const BlockState& s, int self, int lane) {
  uint32_t parity = 0;
  for (int unit = s.first; unit < tiles.units(); unit += s.step, parity ^= 1) {
    epilogue.work(s.tile, tiles, tiles.place(unit, s.rank), self, lane, [&] { hopper::mbarrier_wait(s.tile_full, parity); });
    __syncwarp();
    if (lane == 0) hopper::mbarrier_arrive(s.tile_empty);
  }
}

// The MMA warps: multiply the stages of each tile and write it to shared memory.
template <class Epilogue, bool kByInput, bool kCodes>
__device__ __forceinline__ void multiply(const Tiles& tiles, const Epilogue& epilogue, const BlockState& s, int warp, int lane) {
  int stage = 0;
  uint32_t parity = 0, tile_parity = 1;  // of `tile_empty`; the tile is free at first
  const float factor = kCodes ? *tiles.x_factor * *tiles.w_factor : 1.0f;
  const auto release = [&](int which) {  // one thread of the warpgroup for each block
    if (threadIdx.x % 128 < kTileBlocks) hopper::mbarrier_arrive_remote(s.empty + 8 * which, threadIdx.x % 128);
  };
  for (int unit = s.first; unit < tiles.units(); unit += s.step, tile_parity ^= 1) {
    const Tiles::Place at = tiles.place(unit, s.rank);
    float d[128];
    int before = 0;
    for (int k = 0; k < tiles.steps; ++k) {
      hopper::mbarrier_wait(s.full + 8 * stage, parity);
      const uint32_t x = s.base + stage * kStageBytes + warp / 4 * (kXBytes / 2), w = s.base + stage * kStageBytes + kXBytes;
      const uint64_t a = hopper::wgmma_descriptor(x, 16, 1024), b = hopper::wgmma_descriptor(w, kByInput ? kWBytes / 4 : 16, 1024);
      hopper::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kTileSum / 16; ++i) {  // K = 16, or 32 for fp8: 32 bytes further in each row, or 16 rows of 128 bytes
        if constexpr (kCodes)
          hopper::wgmma_fp8(d, a + 32 / 16 * i, b + 32 / 16 * i, k > 0 || i > 0);
        else
          hopper::wgmma<kByInput>(d, a + 32 / 16 * i, b + (kByInput ? 2048 : 32) / 16 * i, k > 0 || i > 0);
      }
      hopper::wgmma_commit();
      if (k > 0) {
        hopper::wgmma_wait<1>();
        release(before);
      }
      before = stage;
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
    hopper::wgmma_wait<0>();
    release(before);
    hopper::mbarrier_wait(s.tile_empty, tile_parity);
    if constexpr (Epilogue::kCopies) {
      if (lane == 0) hopper::tma_wait_read<0>();
      __syncwarp();
    }
    s.tile.write(d, factor, warp, lane);
    if constexpr (Epilogue::kCopies) hopper::fence_async_shared();
    __syncwarp();
    if (lane == 0) {
      hopper::mbarrier_arrive(s.tile_full);
      if constexpr (Epilogue::kCopies) {
        epilogue.copy(s.tile, warp, at.row + warp * kBoxRows, at.column);
        hopper::tma_commit_group();
      }
    }
    __syncwarp();
  }
  if (Epilogue::kCopies && lane == 0) hopper::tma_wait_stored<0>();
}

template <class Epilogue, bool kByInput, bool kCodes>
__global__ void CAIRN_CLUSTER __launch_bounds__(kThreads, 1)
    fused_gemm_kernel(const __grid_constant__ Tiles tiles, const __grid_constant__ Epilogue epilogue) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char shared[];
  const uint32_t base = (hopper::shared_address(shared) + 1023) / 1024 * 1024;  // the same in both blocks
  const Tile tile{.data = shared + (base - hopper::shared_address(shared)) + kStages * kStageBytes, .base = base + kStages * kStageBytes};
  const uint32_t full = tile.base + kTileBytes, empty = full + 8 * kStages, tile_full = empty + 8 * kStages;
  const BlockState s{.base = base,
                     .tile = tile,
                     .full = full,
                     .empty = empty,
                     .tile_full = tile_full,
                     .tile_empty = tile_full + 8,
                     .rank = hopper::cluster_rank(),
                     .first = static_cast<int>(blockIdx.x / kTileBlocks),
                     .step = static_cast<int>(gridDim.x / kTileBlocks)};
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;  // the shuffle makes `warp` uniform
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hopper::mbarrier_init(s.full + 8 * i, 1);
      hopper::mbarrier_init(s.empty + 8 * i, 2 * kTileBlocks);  // warpgroups of both blocks
    }
    hopper::mbarrier_init(s.tile_full, kMmaWarps);
    hopper::mbarrier_init(s.tile_empty, kEpilogueWarps);
    hopper::fence_barrier_init();
  }
  __syncthreads();
  hopper::cluster_sync();

  if (warp >= kMmaWarps) {
    hopper::decrease_registers<kOtherRegisters>();
    if (warp == kMmaWarps) {
      if (lane == 0) produce<Epilogue, kByInput, kCodes>(tiles, epilogue, s);
    } else {
      run_epilogue(tiles, epilogue, s, warp - kMmaWarps - 1, lane);
    }
  } else {
    hopper::increase_registers<kMmaRegisters>();
    multiply<Epilogue, kByInput, kCodes>(tiles, epilogue, s, warp, lane);
  }
  __syncwarp();
  hopper::cluster_sync();  // shared memory is written to from the other block
#endif
}

template <class Epilogue, bool kByInput, bool kCodes = false>
cudaError_t start(const TensorMaps& maps, const Tiles& tiles, const Epilogue& epilogue, cudaStream_t stream) {
  return launch_tiles<fused_gemm_kernel<Epilogue, kByInput, kCodes>>(maps, kThreads, kSharedBytes, stream, tiles, epilogue);
}

}  // namespace

int64_t gemm_tiles_down(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }
int64_t gemm_tiles_across(int64_t out) { return (out + kColumns - 1) / kColumns; }

cudaError_t launch_gemm_swiglu(const GemmSwigluLaunch& launch, cudaStream_t stream) {
  const GemmLaunch& p = launch.gemm;
  const int64_t ff = p.out / 2;
  TensorMaps maps;
  const Tiles tiles = maps.tiles_of(p, kColumns, /*halves=*/true);
  const SwigluEpilogue epilogue{.gate = maps.boxes_of(launch.gate_up, p.rows, ff, p.out),
                                .up = maps.boxes_of(static_cast<bf16*>(launch.gate_up) + ff, p.rows, ff, p.out),
                                .y = static_cast<bf16*>(launch.y),
                                .amax = launch.amax};
  return tiles.x_factor ? start<SwigluEpilogue, false, true>(maps, tiles, epilogue, stream)
                        : start<SwigluEpilogue, false>(maps, tiles, epilogue, stream);
}

cudaError_t launch_gemm_swiglu_backward(const GemmSwigluBackwardLaunch& launch, cudaStream_t stream) {
  // The epilogue of a tile takes about as long as K = 2000. For small K the ping-pong kernel is faster; its narrower tiles cost energy for
  // large K.
  if (launch.gemm.in <= 1024) return launch_pingpong_swiglu_backward(launch, stream);
  const int64_t rows = launch.gemm.rows, ff = launch.gemm.out;
  TensorMaps maps;
  const Tiles tiles = maps.tiles_of(launch.gemm, kColumns);
  const auto* gates = static_cast<const bf16*>(launch.gate_up);
  const SwigluBackwardEpilogue epilogue{.gates_ahead = maps.of(gates, rows, ff, 2 * ff, kTileRows),
                                        .ups_ahead = maps.of(gates + ff, rows, ff, 2 * ff, kTileRows),
                                        .gate_up = gates,
                                        .dgate_up = static_cast<bf16*>(launch.dgate_up),
                                        .y = static_cast<bf16*>(launch.y)};
  return start<SwigluBackwardEpilogue, true>(maps, tiles, epilogue, stream);
}

cudaError_t launch_gemm_rope(const GemmRopeLaunch& launch, cudaStream_t stream) {
  TensorMaps maps;
  const Tiles tiles = maps.tiles_of(launch.gemm, kColumns);
  const RopeEpilogue epilogue{.y = static_cast<bf16*>(launch.y),
                              .cos = launch.cos,
                              .sin = launch.sin,
                              .length = static_cast<int>(launch.length),
                              .half = static_cast<int>(launch.head_dim / 2),
                              .rotated = static_cast<int>(launch.rotated)};
  return tiles.x_factor ? start<RopeEpilogue, false, true>(maps, tiles, epilogue, stream)
                        : start<RopeEpilogue, false>(maps, tiles, epilogue, stream);
}

}  // namespace cairn::kernels
