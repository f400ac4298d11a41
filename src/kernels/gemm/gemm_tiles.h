// Tiling of the Hopper GEMMs (fused_gemm_kernel.cu, pingpong_gemm_kernel.cu): tile sizes, order of tiles, TMA descriptors, launch. For .cu
// files.
#pragma once
#include <algorithm>
#include <atomic>

#include <cuda.h>

#include "kernels/gemm/fused_gemm_kernel.h"

namespace cairn::kernels {

constexpr int kTileRows = 128, kTileSum = 64;  // rows of a tile, and K of one step
constexpr int kTileBlocks = 2;                 // blocks of a cluster: tiles below each other
constexpr int kGroupRows = 8;  // clusters below each other, before the next columns: what they read of w and x stays in the L2 cache

// The cluster attribute of a kernel; GPUs before Hopper have no clusters.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CAIRN_CLUSTER
#else
#define CAIRN_CLUSTER __cluster_dims__(kTileBlocks, 1, 1)
#endif

// The TMA box of results.
constexpr int kBoxRows = 16, kBoxColumns = 64;
constexpr uint32_t kBoxBytes = kBoxRows * kBoxColumns * 2;

struct Tiles {
  CUtensorMap x, w;
  int rows, columns;                 // of results, or of each half of them
  int down, across, steps;           // pairs of tiles, tiles, steps of a sum
  int w_second;                      // where the second half of a tile's columns begins, counted from its first: 128, or half of all
  int tile_columns;                  // from one tile's first column to the next one's
  const float *x_factor, *w_factor;  // of codes; null: there are none

  struct Place {
    int row, column;
  };
  __device__ int units() const { return down * across; }
  __device__ Place place(int unit, uint32_t block) const {
    const int whole = kGroupRows * across, group = unit / whole, first = group * kGroupRows;
    const int rows_here = min(kGroupRows, down - first), inside = unit - group * whole;
    return {.row = ((first + inside % rows_here) * kTileBlocks + static_cast<int>(block)) * kTileRows,
            .column = inside / rows_here * tile_columns};
  }
};

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                                 const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill);

// The driver's function, found at run time: the program does not link with the driver.
inline EncodeTiled encode_tiled() {
  static const EncodeTiled found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(function) : nullptr;
  }();
  return found;
}

// Makes TMA descriptors for bf16 or fp8 matrices. Out of bounds, TMA reads zeros and writes nothing.
struct TensorMaps {
  cudaError_t status = cudaSuccess;

  CUtensorMap of(const void* data, int64_t rows, int64_t columns, int64_t stride, uint32_t box_rows, int bytes_each = 2) {
    CUtensorMap map{};
    const cuuint64_t extents[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                     bytes[1] = {static_cast<cuuint64_t>(stride * bytes_each)};
    const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / bytes_each), box_rows}, steps[2] = {1, 1};
    const CUtensorMapDataType type = bytes_each == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    if (!encode_tiled() ||
        encode_tiled()(&map, type, 2, const_cast<void*>(data), extents, bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                       CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
      status = cudaErrorInvalidValue;
    return map;
  }
  CUtensorMap boxes_of(const void* data, int64_t rows, int64_t columns, int64_t stride) {
    return of(data, rows, columns, stride, kBoxRows);
  }
  Tiles tiles_of(const GemmLaunch& p, int wide_tile, bool halves = false /* of all columns, one beside the other */) {
    const int bytes = p.x_factor ? 1 : 2, sum = kTileSum * 2 / bytes;
    const int64_t columns = halves ? p.out / 2 : p.out, wide = halves ? wide_tile / 2 : wide_tile;
    return {.x = of(p.x, p.rows, p.in, p.x_stride, kTileRows, bytes),
            .w = p.fan_in_fan_out ? of(p.w, p.in, p.out, p.w_stride, kTileSum) : of(p.w, p.out, p.in, p.w_stride, wide_tile / 2, bytes),
            .rows = static_cast<int>(p.rows),
            .columns = static_cast<int>(columns),
            .down = static_cast<int>((p.rows + kTileBlocks * kTileRows - 1) / (kTileBlocks * kTileRows)),
            .across = static_cast<int>((columns + wide - 1) / wide),
            .steps = static_cast<int>((p.in + sum - 1) / sum),
            .w_second = static_cast<int>(halves ? columns : wide_tile / 2),
            .tile_columns = static_cast<int>(wide),
            .x_factor = p.x_factor,
            .w_factor = p.w_factor};
  }
};

// A persistent launch: one block per multiprocessor, in clusters; fewer where there are fewer tiles.
template <auto kKernel, class... More>
cudaError_t launch_tiles(const TensorMaps& maps, int threads, uint32_t shared_bytes, cudaStream_t stream, const Tiles& tiles,
                         const More&... more) {
  if (maps.status != cudaSuccess) return maps.status;
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];  // clusters that run at a time, by device
  int most = device < kDevices ? known[device].load() : 0;
  if (most == 0) {
    cudaLaunchConfig_t config{};
    config.gridDim = kTileBlocks, config.blockDim = static_cast<unsigned>(threads), config.dynamicSmemBytes = shared_bytes;
    cudaError_t status = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (status == cudaSuccess) status = cudaOccupancyMaxActiveClusters(&most, kKernel, &config);
    if (status != cudaSuccess) return status;
    if (device < kDevices) known[device].store(most);
  }
  if (most == 0) return cudaErrorInvalidConfiguration;
  kKernel<<<static_cast<unsigned>(kTileBlocks * std::min(most, tiles.down * tiles.across)), static_cast<unsigned>(threads), shared_bytes,
            stream>>>(tiles, more...);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
