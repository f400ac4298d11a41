// Block-sparse attention on a GPU, forward (S2-Attention, arXiv:2407.17678): FlashAttention-2 (arXiv:2307.08691) over the tiles of keys
// that a panel of 64 queries sees. One thread block of four warps per panel and head; tiles are loaded one ahead of the one that is
// multiplied.
#include <cmath>

#include "kernels/attention/block_attention_kernel.h"
#include "kernels/attention/block_fragments.h"

namespace cairn::kernels {
namespace {

using namespace block;

constexpr int kPanel = 64, kThreads = 128;
constexpr float kLog2e = 1.44269504088896340736f, kLn2 = 0.69314718055994530942f;

// Scores of pairs that are not seen become -inf. `query`: the lane's first row in the panel.
template <int kTile>
__device__ inline void hide_unseen(float (&scores)[kTile / 8][4], const BlockLaunch& p, int pair, int panel, int query) {
  const int first = (pair >> 4) * kTile, lane = static_cast<int>(threadIdx.x) % 32;
  const bool all_rows = p.lists.row_shift >= 6 || (pair & 15) == 15;
  if (all_rows && first + kTile <= p.k_len && first + kTile - 1 <= panel * kPanel + p.shift) return;
#pragma unroll
  for (int i = 0; i < kTile / 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = query + j / 2 * 8, key = first + i * 8 + lane % 4 * 2 + j % 2;
      const bool seen = ((pair >> (row >> p.lists.row_shift)) & 1) != 0 && key < p.k_len && key <= panel * kPanel + row + p.shift;
      if (!seen) scores[i][j] = -INFINITY;
    }
}

// Scores become weights; out, highest and sum are brought to the new maximum. A lane has a part of two rows.
template <int kTile, int kDim>
__device__ inline void online_softmax(float (&scores)[kTile / 8][4], float (&out)[kDim / 8][4], float (&highest)[2], float (&sum)[2],
                                      float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = highest[half];
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) most = fmaxf(most, fmaxf(scores[i][2 * half], scores[i][2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float base = most == -INFINITY ? 0 : most * scale;  // nothing seen yet: keep -inf - base from being nan
    const float factor = exp2f(highest[half] * scale - base);
    highest[half] = most;
    float total = 0;
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i)
#pragma unroll
      for (int j = 2 * half; j < 2 * half + 2; ++j) total += scores[i][j] = exp2f(scores[i][j] * scale - base);
    sum[half] = sum[half] * factor + total;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) out[i][2 * half] *= factor, out[i][2 * half + 1] *= factor;
  }
}

template <class T, int kDim, int kTile>
__global__ void __launch_bounds__(kThreads) forward_kernel(const BlockLaunch p) {
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr int kTileBytes = kTile * kDim * 2;
  const uint32_t queries = shared_address(memory), keys = queries + kPanel * kDim * 2, values = keys + 2 * kTileBytes;
  // The last panels have the longest lists: they start first.
  const int panel = p.lists.panels - 1 - static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y),
            batch = static_cast<int>(blockIdx.z);
  const int kv_head = head / (p.heads / p.kv_heads), list = p.lists.heads == 1 ? 0 : kv_head;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const T* q = static_cast<const T*>(p.q.data) + batch * p.q.batch_stride + head * p.q.head_stride;
  const T* k = static_cast<const T*>(p.k.data) + batch * p.k.batch_stride + kv_head * p.k.head_stride;
  const T* v = static_cast<const T*>(p.v.data) + batch * p.v.batch_stride + kv_head * p.v.head_stride;
  const int32_t* starts = p.lists.panel_starts + list * (p.lists.panels + 1) + panel;
  const int begin = starts[0], end = starts[1];

  load_tile<kPanel, kDim, kThreads>(queries, q, p.q.row_stride, panel * kPanel, p.q_len);
  const auto load = [&](int entry, int stage) {
    const int first = (p.lists.of_panel[entry] >> 4) * kTile;
    load_tile<kTile, kDim, kThreads>(keys + static_cast<uint32_t>(stage * kTileBytes), k, p.k.row_stride, first, p.k_len);
    load_tile<kTile, kDim, kThreads>(values + static_cast<uint32_t>(stage * kTileBytes), v, p.v.row_stride, first, p.k_len);
  };
  if (begin < end) load(begin, 0);
  copies_commit();

  float out[kDim / 8][4];
  set_zero(out);
  float highest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  const float scale = p.scale * kLog2e;
  const int query = warp * 16 + lane / 4;  // of the panel; the lane's other row is 8 further
  for (int entry = begin, stage = 0; entry < end; ++entry, stage ^= 1) {
    copies_wait<0>();
    __syncthreads();  // this tile is there, and all have done with the other stage
    if (entry + 1 < end) load(entry + 1, stage ^ 1);
    copies_commit();
    float scores[kTile / 8][4];
    set_zero(scores);
    multiply_transposed<T, kDim, kTile>(scores, queries, warp * 16, keys + static_cast<uint32_t>(stage * kTileBytes));

    hide_unseen<kTile>(scores, p, p.lists.of_panel[entry], panel, query);
    online_softmax<kTile, kDim>(scores, out, highest, sum, scale);
    multiply<T, kDim, kTile>(out, scores, values + static_cast<uint32_t>(stage * kTileBytes));
  }
  copies_wait<0>();

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = sum[half];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int row = panel * kPanel + query + half * 8;
    if (row >= p.q_len) continue;
    const float inverse = total > 0 ? 1 / total : 0;
    T* to = static_cast<T*>(p.out.data) + batch * p.out.batch_stride + row * p.out.row_stride + head * p.out.head_stride + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
      *reinterpret_cast<uint32_t*>(to + i * 8) = pack_two<T>(out[i][2 * half] * inverse, out[i][2 * half + 1] * inverse);
    if (lane % 4 == 0)
      p.lse[(static_cast<int64_t>(batch) * p.heads + head) * p.q_len + row] =
          total > 0 ? (highest[half] * scale + log2f(total)) * kLn2 : -INFINITY;
  }
}

template <class T, int kDim, int kTile>
cudaError_t launch(const BlockLaunch& p, cudaStream_t stream) {
  constexpr int kBytes = (kPanel + 4 * kTile) * kDim * 2;
  const cudaError_t status = cudaFuncSetAttribute(forward_kernel<T, kDim, kTile>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<unsigned>(p.lists.panels), static_cast<unsigned>(p.heads), static_cast<unsigned>(p.batch));
  forward_kernel<T, kDim, kTile><<<grid, kThreads, kBytes, stream>>>(p);
  return cudaGetLastError();
}

template <class T, int kDim>
cudaError_t launch_tiles(const BlockLaunch& p, cudaStream_t stream) {
  return p.lists.tile_keys == 64   ? launch<T, kDim, 64>(p, stream)
         : p.lists.tile_keys == 32 ? launch<T, kDim, 32>(p, stream)
                                   : launch<T, kDim, 16>(p, stream);
}

template <class T>
cudaError_t launch_heads(const BlockLaunch& p, cudaStream_t stream) {
  return p.head_dim == 64 ? launch_tiles<T, 64>(p, stream) : launch_tiles<T, 128>(p, stream);
}

}  // namespace

bool has_block_kernel(int64_t head_dim, int64_t tile_keys) {
  return (head_dim == 64 || head_dim == 128) && (tile_keys == 16 || tile_keys == 32 || tile_keys == 64);
}

cudaError_t launch_block_forward(const BlockLaunch& p, cudaStream_t stream) {
  return p.half ? launch_heads<__half>(p, stream) : launch_heads<__nv_bfloat16>(p, stream);
}

}  // namespace cairn::kernels
