// Block-sparse attention on a GPU, backward. With s = scale q k^T over the pairs that are seen, p = exp(s - lse), dp = dout v^T,
// delta = rowsum(dout * out) and ds = p * (dp - delta):
//   dq_kernel   one thread block per panel of 64 queries and head walks the panel's tiles:     dq = scale sum ds k
//   dkv_kernel  one per tile of keys (or part of its list) walks the panels that see the tile, of all query heads that read it:
//               dk = scale sum ds^T q,  dv = sum p^T dout
//   sum_kernel  adds the parts of long lists, in order
#include <cmath>

#include "kernels/attention/block_attention_kernel.h"
#include "kernels/attention/block_fragments.h"

namespace cairn::kernels {
namespace {

using namespace block;

constexpr int kPanel = 64, kThreads = 128;
constexpr float kLog2e = 1.44269504088896340736f;

template <class T>
__device__ inline T* head_of(const BlockRows& rows, int batch, int head) {
  return static_cast<T*>(rows.data) + batch * rows.batch_stride + head * rows.head_stride;
}

template <class T>
__device__ inline float as_float(T x) {
  if constexpr (std::is_same_v<T, __half>)
    return __half2float(x);
  else
    return __bfloat162float(x);
}

// delta, one warp per row.
template <class T>
__global__ void delta_kernel(const BlockLaunch p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= static_cast<int64_t>(p.batch) * p.heads * p.q_len) return;
  const int query = static_cast<int>(row % p.q_len), head = static_cast<int>(row / p.q_len % p.heads),
            batch = static_cast<int>(row / p.q_len / p.heads);
  const T *out = head_of<T>(p.out, batch, head) + query * p.out.row_stride,
          *dout = head_of<T>(p.dout, batch, head) + query * p.dout.row_stride;
  float sum = 0;
  for (int d = lane; d < p.head_dim; d += 32) sum += as_float(out[d]) * as_float(dout[d]);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane == 0) p.delta[row] = sum;
}

template <class T, int kDim, int kTile>
__global__ void __launch_bounds__(kThreads) dq_kernel(const BlockLaunch p) {
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr int kTileBytes = kTile * kDim * 2;
  const uint32_t queries = shared_address(memory), douts = queries + kPanel * kDim * 2, keys = douts + kPanel * kDim * 2,
                 values = keys + 2 * kTileBytes;
  const int panel = p.lists.panels - 1 - static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y),
            batch = static_cast<int>(blockIdx.z);
  const int kv_head = head / (p.heads / p.kv_heads), list = p.lists.heads == 1 ? 0 : kv_head;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const T *k = head_of<T>(p.k, batch, kv_head), *v = head_of<T>(p.v, batch, kv_head);
  const int32_t* starts = p.lists.panel_starts + list * (p.lists.panels + 1) + panel;
  const int begin = starts[0], end = starts[1];

  load_tile<kPanel, kDim, kThreads>(queries, head_of<T>(p.q, batch, head), p.q.row_stride, panel * kPanel, p.q_len);
  load_tile<kPanel, kDim, kThreads>(douts, head_of<T>(p.dout, batch, head), p.dout.row_stride, panel * kPanel, p.q_len);
  const auto load = [&](int entry, int stage) {
    const int first = (p.lists.of_panel[entry] >> 4) * kTile;
    load_tile<kTile, kDim, kThreads>(keys + static_cast<uint32_t>(stage * kTileBytes), k, p.k.row_stride, first, p.k_len);
    load_tile<kTile, kDim, kThreads>(values + static_cast<uint32_t>(stage * kTileBytes), v, p.v.row_stride, first, p.k_len);
  };
  if (begin < end) load(begin, 0);
  copies_commit();

  const float scale = p.scale * kLog2e;
  const int query = warp * 16 + lane / 4;
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = panel * kPanel + query + half * 8;
    const int64_t at = (static_cast<int64_t>(batch) * p.heads + head) * p.q_len + row;
    lse[half] = row < p.q_len ? p.lse[at] * kLog2e : INFINITY;
    if (lse[half] == -INFINITY) lse[half] = INFINITY;  // a row without keys: every weight is 0
    delta[half] = row < p.q_len ? p.delta[at] : 0;
  }
  float dq[kDim / 8][4];
  set_zero(dq);
  for (int entry = begin, stage = 0; entry < end; ++entry, stage ^= 1) {
    copies_wait<0>();
    __syncthreads();
    if (entry + 1 < end) load(entry + 1, stage ^ 1);
    copies_commit();
    const uint32_t key_tile = keys + static_cast<uint32_t>(stage * kTileBytes),
                   value_tile = values + static_cast<uint32_t>(stage * kTileBytes);
    float scores[kTile / 8][4], dweights[kTile / 8][4];
    set_zero(scores);
    set_zero(dweights);
    multiply_transposed<T, kDim, kTile>(scores, queries, warp * 16, key_tile);
    multiply_transposed<T, kDim, kTile>(dweights, douts, warp * 16, value_tile);
    const int pair = p.lists.of_panel[entry], first = (pair >> 4) * kTile;
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = query + j / 2 * 8, key = first + i * 8 + lane % 4 * 2 + j % 2;
        const bool seen = ((pair >> (row >> p.lists.row_shift)) & 1) != 0 && key < p.k_len && key <= panel * kPanel + row + p.shift;
        const float weight = seen ? exp2f(scores[i][j] * scale - lse[j / 2]) : 0;
        scores[i][j] = weight * (dweights[i][j] - delta[j / 2]);
      }
    multiply<T, kDim, kTile>(dq, scores, key_tile);
  }
  copies_wait<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = panel * kPanel + query + half * 8;
    if (row >= p.q_len) continue;
    T* to = head_of<T>(p.dq, batch, head) + row * p.dq.row_stride + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
      *reinterpret_cast<uint32_t*>(to + i * 8) = pack_two<T>(dq[i][2 * half] * p.scale, dq[i][2 * half + 1] * p.scale);
  }
}

// Writes a warp's gradients of 16 keys: to their place, or in fp32 beside the other parts of the tile's list.
template <class T, int kDim, int kTile>
__device__ inline void store_key_gradients(const BlockLaunch& p, const BlockPart& part, const float (&dk)[kDim / 8][4],
                                           const float (&dv)[kDim / 8][4], int batch, int kv_head) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  if (part.partial >= 0) {
    float* to = p.partial + ((static_cast<int64_t>(batch) * p.kv_heads + kv_head) * p.partials_per_head + part.partial) * 2 * kTile * kDim;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = (first + j / 2 * 8) * kDim + i * 8 + lane % 4 * 2 + j % 2;
        to[at] = dk[i][j] * p.scale;
        to[kTile * kDim + at] = dv[i][j];
      }
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = part.tile * kTile + first + half * 8;
    if (row >= p.k_len) continue;
    T* to_k = head_of<T>(p.dk, batch, kv_head) + row * p.dk.row_stride + lane % 4 * 2;
    T* to_v = head_of<T>(p.dv, batch, kv_head) + row * p.dv.row_stride + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      *reinterpret_cast<uint32_t*>(to_k + i * 8) = pack_two<T>(dk[i][2 * half] * p.scale, dk[i][2 * half + 1] * p.scale);
      *reinterpret_cast<uint32_t*>(to_v + i * 8) = pack_two<T>(dv[i][2 * half], dv[i][2 * half + 1]);
    }
  }
}

// A warp has 16 keys; there are as many warps as the tile has 16 keys. Scores are transposed: rows are keys.
template <class T, int kDim, int kTile>
__global__ void __launch_bounds__(kTile * 2) dkv_kernel(const BlockLaunch p) {
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr int kWide = kTile * 2, kPanelBytes = kPanel * kDim * 2, kColumns = 32;  // queries at a time: half a panel, to save registers
  const uint32_t keys = shared_address(memory), values = keys + kTile * kDim * 2, queries = values + kTile * kDim * 2,
                 douts = queries + 2 * kPanelBytes;
  float* statistics = reinterpret_cast<float*>(memory + 2 * kTile * kDim * 2 + 4 * kPanelBytes);  // [2][lse, delta][kPanel]
  const int kv_head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z), list = p.lists.heads == 1 ? 0 : kv_head;
  const BlockPart part = p.parts[list * p.parts_per_head + static_cast<int>(blockIdx.x)];
  if (part.tile < 0) return;  // heads have unequally many parts
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = p.heads / p.kv_heads, first_key = part.tile * kTile;
  const int32_t* panels = p.lists.of_tile + p.lists.tile_starts[list * (p.lists.tiles + 1) + part.tile];
  const int count = part.end - part.begin, steps = count * group;

  load_tile<kTile, kDim, kWide>(keys, head_of<T>(p.k, batch, kv_head), p.k.row_stride, first_key, p.k_len);
  load_tile<kTile, kDim, kWide>(values, head_of<T>(p.v, batch, kv_head), p.v.row_stride, first_key, p.k_len);
  const auto load = [&](int step, int stage) {
    const int head = kv_head * group + step / count, first = (panels[part.begin + step % count] >> 4) * kPanel;
    load_tile<kPanel, kDim, kWide>(queries + static_cast<uint32_t>(stage * kPanelBytes), head_of<T>(p.q, batch, head), p.q.row_stride,
                                   first, p.q_len);
    load_tile<kPanel, kDim, kWide>(douts + static_cast<uint32_t>(stage * kPanelBytes), head_of<T>(p.dout, batch, head), p.dout.row_stride,
                                   first, p.q_len);
    for (int i = static_cast<int>(threadIdx.x); i < kPanel; i += kWide) {
      const int64_t at = (static_cast<int64_t>(batch) * p.heads + head) * p.q_len + first + i;
      const bool valid = first + i < p.q_len;
      const float lse = valid ? p.lse[at] * kLog2e : INFINITY;
      statistics[stage * 2 * kPanel + i] = lse == -INFINITY ? INFINITY : lse;
      statistics[stage * 2 * kPanel + kPanel + i] = valid ? p.delta[at] : 0;
    }
  };
  if (steps > 0) load(0, 0);
  copies_commit();

  float dk[kDim / 8][4], dv[kDim / 8][4];
  set_zero(dk);
  set_zero(dv);
  const float scale = p.scale * kLog2e;
  const int key = first_key + warp * 16 + lane / 4;
  for (int step = 0, stage = 0; step < steps; ++step, stage ^= 1) {
    copies_wait<0>();
    __syncthreads();
    if (step + 1 < steps) load(step + 1, stage ^ 1);
    copies_commit();
    const int pair = panels[part.begin + step % count], first = (pair >> 4) * kPanel;
    const float *lse = statistics + stage * 2 * kPanel, *delta = lse + kPanel;
#pragma unroll
    for (int half = 0; half < kPanel; half += kColumns) {
      const uint32_t offset = static_cast<uint32_t>(stage * kPanelBytes + half * kDim * 2);
      float weights[kColumns / 8][4], dscores[kColumns / 8][4];
      set_zero(weights);
      set_zero(dscores);
      multiply_transposed<T, kDim, kColumns>(weights, keys, warp * 16, queries + offset);
      multiply_transposed<T, kDim, kColumns>(dscores, values, warp * 16, douts + offset);
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = half + i * 8 + lane % 4 * 2 + j % 2, here = key + j / 2 * 8;
          const bool seen = ((pair >> (row >> p.lists.row_shift)) & 1) != 0 && here < p.k_len && here <= first + row + p.shift;
          const float weight = seen ? exp2f(weights[i][j] * scale - lse[row]) : 0;
          dscores[i][j] = weight * (dscores[i][j] - delta[row]);
          weights[i][j] = weight;
        }
      multiply<T, kDim, kColumns>(dv, weights, douts + offset);
      multiply<T, kDim, kColumns>(dk, dscores, queries + offset);
    }
  }
  copies_wait<0>();

  store_key_gradients<T, kDim, kTile>(p, part, dk, dv, batch, kv_head);
}

template <class T>
__global__ void sum_kernel(const BlockLaunch p) {
  const int kv_head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z), list = p.lists.heads == 1 ? 0 : kv_head;
  const BlockSum sum = p.sums[list * p.sums_per_head + static_cast<int>(blockIdx.x)];
  if (sum.tile < 0) return;
  const int elements = p.lists.tile_keys * p.head_dim;
  const float* from = p.partial + ((static_cast<int64_t>(batch) * p.kv_heads + kv_head) * p.partials_per_head + sum.first) * 2 * elements;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * elements; i += static_cast<int>(blockDim.x)) {
    const int row = sum.tile * p.lists.tile_keys + i % elements / p.head_dim;
    if (row >= p.k_len) continue;
    float total = 0;
    for (int j = 0; j < sum.count; ++j) total += from[static_cast<int64_t>(j) * 2 * elements + i];
    const BlockRows& rows = i < elements ? p.dk : p.dv;
    T* to = head_of<T>(rows, batch, kv_head) + row * rows.row_stride + i % p.head_dim;
    if constexpr (std::is_same_v<T, __half>)
      *to = __float2half_rn(total);
    else
      *to = __float2bfloat16_rn(total);
  }
}

template <class T, int kDim, int kTile>
cudaError_t launch(const BlockLaunch& p, cudaStream_t stream) {
  constexpr int kQueryBytes = (2 * kPanel + 4 * kTile) * kDim * 2;
  constexpr int kKeyBytes = (2 * kTile + 4 * kPanel) * kDim * 2 + 4 * kPanel * static_cast<int>(sizeof(float));
  cudaError_t status = cudaFuncSetAttribute(dq_kernel<T, kDim, kTile>, cudaFuncAttributeMaxDynamicSharedMemorySize, kQueryBytes);
  if (status != cudaSuccess) return status;
  status = cudaFuncSetAttribute(dkv_kernel<T, kDim, kTile>, cudaFuncAttributeMaxDynamicSharedMemorySize, kKeyBytes);
  if (status != cudaSuccess) return status;
  const auto batch = static_cast<unsigned>(p.batch), heads = static_cast<unsigned>(p.heads), kv_heads = static_cast<unsigned>(p.kv_heads);
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.q_len;
  delta_kernel<T><<<static_cast<unsigned>((rows + kThreads / 32 - 1) / (kThreads / 32)), kThreads, 0, stream>>>(p);
  dq_kernel<T, kDim, kTile><<<dim3(static_cast<unsigned>(p.lists.panels), heads, batch), kThreads, kQueryBytes, stream>>>(p);
  dkv_kernel<T, kDim, kTile><<<dim3(static_cast<unsigned>(p.parts_per_head), kv_heads, batch), kTile * 2, kKeyBytes, stream>>>(p);
  if (p.sums_per_head > 0) sum_kernel<T><<<dim3(static_cast<unsigned>(p.sums_per_head), kv_heads, batch), kThreads, 0, stream>>>(p);
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

cudaError_t launch_block_backward(const BlockLaunch& p, cudaStream_t stream) {
  return p.half ? launch_heads<__half>(p, stream) : launch_heads<__nv_bfloat16>(p, stream);
}

}  // namespace cairn::kernels
