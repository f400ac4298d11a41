// The arguments of the block-sparse attention kernels. bf16 or fp16 heads of 64 or 128; statistics are fp32.
#pragma once
#include <cstdint>

#include <cuda_runtime_api.h>

namespace cairn::kernels {

// [batch, length, heads, head_dim] with a contiguous last dim. Strides count elements; rows begin at multiples of 16 bytes.
struct BlockRows {
  void* data;
  int64_t batch_stride, row_stride, head_stride;
};

// The lists of BlockPairs (block_pattern.h), on the device.
struct BlockLists {
  const int32_t *panel_starts, *of_panel, *tile_starts, *of_tile;
  int heads, panels, tiles, tile_keys;
  int row_shift;  // query i of a panel is in row i >> row_shift of it
};

// A part of one tile's list, so that the few tiles that every later query sees do not keep one thread block busy long after the others.
// Parts that are not a whole list write sums to `partial`, in fp32, which a second kernel adds in order: no atomics.
struct BlockPart {
  int32_t tile, begin, end;  // of the tile's list
  int32_t partial;           // -1: the whole list
};
struct BlockSum {
  int32_t tile, first, count;  // partials of one tile
};

struct BlockLaunch {
  bool half;  // fp16; else bf16
  BlockLists lists;
  int batch, q_len, k_len, heads, kv_heads, head_dim;
  int shift;  // query i sees keys up to i + shift
  float scale;
  BlockRows q, k, v, out, dout, dq, dk, dv;  // what a pass does not use stays null
  float *lse, *delta;                        // [batch, heads, q_len]
  const BlockPart* parts;                    // [lists.heads, parts_per_head], longest first
  const BlockSum* sums;                      // [lists.heads, sums_per_head]
  int parts_per_head, sums_per_head, partials_per_head;
  float* partial;  // [batch, kv_heads, partials_per_head, 2, tile_keys, head_dim]: dk, dv
};
bool has_block_kernel(int64_t head_dim, int64_t tile_keys);
// Overwrites out and lse.
cudaError_t launch_block_forward(const BlockLaunch& launch, cudaStream_t stream);
// Overwrites delta, dq, dk, dv and partial.
cudaError_t launch_block_backward(const BlockLaunch& launch, cudaStream_t stream);

}  // namespace cairn::kernels
