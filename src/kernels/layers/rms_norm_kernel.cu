// RMSNorm on a GPU. A row stays in the registers of a warp or of a block between its sum and its result, so memory is read once. Rows that
// are too long or not aligned are read twice, element by element. With g = dy * weight and s = rstd:
//   y = x s weight,   dx = s (g - x s^2 mean(g x)) + add,   dw = sum over rows of dy x s
#include <type_traits>

#include "kernels/cuda/pack.h"
#include "kernels/layers/rms_norm_kernel.h"

namespace cairn::kernels {
namespace {

using device::bf16;
using device::is_aligned;
using device::kPack;
using device::Pack;

constexpr int kWarp = 32;
constexpr int kWarpsTogether = 4;  // rows of a block where each has a warp
constexpr int kBlock = 256;        // threads of a row where it has a block
constexpr int kPacksMax = 4;       // packs of a row per thread; more registers would leave too few warps to hide latency

template <int kRowThreads>
constexpr int kThreads = kRowThreads == kWarp ? kWarp* kWarpsTogether : kRowThreads;

// The row of this thread, and its index among the row's threads.
template <int kRowThreads>
struct Place {
  int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads<kRowThreads> / kRowThreads) + threadIdx.x / kRowThreads;
  int thread = static_cast<int>(threadIdx.x) % kRowThreads;
};

template <class T, int N, int kRowThreads, int kPacks>
__global__ void __launch_bounds__(kThreads<kRowThreads>) norm_kernel(NormLaunch a) {
  const Place<kRowThreads> place;
  if (place.row >= a.rows) return;  // uniform within a warp
  const int64_t begin = place.row * a.embed;
  const int embed = static_cast<int>(a.embed);
  const T *x = static_cast<const T*>(a.x) + begin, *weight = static_cast<const T*>(a.weight);
  Pack<T, N> kept[kPacks], gains[kPacks];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int d = (k * kRowThreads + place.thread) * N;
    if (d >= embed) continue;
    kept[k] = Pack<T, N>::load(x + d);
    gains[k] = Pack<T, N>::load(weight + d);
  }
  if (a.r != nullptr) {
    Pack<T, N> added[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int d = (k * kRowThreads + place.thread) * N;
      if (d < embed) added[k] = Pack<T, N>::load(static_cast<const T*>(a.r) + begin + d);
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int d = (k * kRowThreads + place.thread) * N;
      if (d >= embed) continue;
      float both[N];
#pragma unroll
      for (int i = 0; i < N; ++i) both[i] = kept[k][i] + added[k][i];
      kept[k] = Pack<T, N>::of(both);  // the norm is of the rounded sum, as the gradient will see it
      kept[k].store(static_cast<T*>(a.sum) + begin + d);
    }
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if ((k * kRowThreads + place.thread) * N >= embed) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) squares += kept[k][i] * kept[k][i];
  }
  const float scale = 1.0f / sqrtf(device::row_sum<kRowThreads>(squares) / static_cast<float>(embed) + a.eps);
  if (place.thread == 0) a.rstd[place.row] = scale;
  device::Amax<T> amax;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int d = (k * kRowThreads + place.thread) * N;
    if (d >= embed) continue;
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = kept[k][i] * scale * gains[k][i];
    const auto rounded = Pack<T, N>::of(y);
    rounded.store(static_cast<T*>(a.y) + begin + d);
    amax.update(rounded);
  }
  amax.record(a.amax);
}

// Any width and alignment: a block reads its row twice.
template <class T>
__global__ void __launch_bounds__(kBlock) long_norm_kernel(NormLaunch a) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * a.embed;
  const T *x = static_cast<const T*>(a.x) + begin, *weight = static_cast<const T*>(a.weight);
  T* sum = static_cast<T*>(a.sum);
  float squares = 0;
  for (int64_t d = threadIdx.x; d < a.embed; d += kBlock) {
    float value = static_cast<float>(x[d]);
    if (a.r != nullptr) {
      const float both[1] = {value + static_cast<float>(static_cast<const T*>(a.r)[begin + d])};
      const auto rounded = Pack<T, 1>::of(both);
      rounded.store(sum + begin + d);
      value = rounded[0];
    }
    squares += value * value;
  }
  const float scale = 1.0f / sqrtf(device::row_sum<kBlock>(squares) / static_cast<float>(a.embed) + a.eps);
  if (threadIdx.x == 0) a.rstd[blockIdx.x] = scale;
  const T* from = a.r != nullptr ? sum + begin : x;  // each thread reads what it wrote itself
  device::Amax<T> amax;
  for (int64_t d = threadIdx.x; d < a.embed; d += kBlock) {
    const float y[1] = {static_cast<float>(from[d]) * scale * static_cast<float>(weight[d])};
    const auto rounded = Pack<T, 1>::of(y);
    rounded.store(static_cast<T*>(a.y) + begin + d);
    amax.update(rounded);
  }
  amax.record(a.amax);
}

template <class T, int N, int kRowThreads, int kPacks>
__global__ void __launch_bounds__(kThreads<kRowThreads>) norm_input_kernel(NormInputLaunch a) {
  const Place<kRowThreads> place;
  if (place.row >= a.rows) return;
  const int64_t begin = place.row * a.embed;
  const int embed = static_cast<int>(a.embed);
  const float scale = a.rstd[place.row];
  Pack<T, N> x[kPacks], dy[kPacks], gains[kPacks], added[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int d = (k * kRowThreads + place.thread) * N;
    if (d >= embed) continue;
    x[k] = Pack<T, N>::load(static_cast<const T*>(a.x) + begin + d);
    dy[k] = Pack<T, N>::load(static_cast<const T*>(a.dy) + begin + d);
    gains[k] = Pack<T, N>::load(static_cast<const T*>(a.weight) + d);
    if (a.add != nullptr) added[k] = Pack<T, N>::load(static_cast<const T*>(a.add) + begin + d);
  }
  float products = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if ((k * kRowThreads + place.thread) * N >= embed) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) products += dy[k][i] * gains[k][i] * x[k][i];
  }
  const float along = device::row_sum<kRowThreads>(products) / static_cast<float>(embed) * scale * scale;
  device::Amax<T> amax;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int d = (k * kRowThreads + place.thread) * N;
    if (d >= embed) continue;
    float dx[N];
#pragma unroll
    for (int i = 0; i < N; ++i) dx[i] = scale * (dy[k][i] * gains[k][i] - x[k][i] * along);
    if (a.add != nullptr) {
#pragma unroll
      for (int i = 0; i < N; ++i) dx[i] += added[k][i];
    }
    const auto rounded = Pack<T, N>::of(dx);
    rounded.store(static_cast<T*>(a.dx) + begin + d);
    amax.update(rounded);
  }
  amax.record(a.amax);
}

template <class T>
__global__ void __launch_bounds__(kBlock) long_norm_input_kernel(NormInputLaunch a) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * a.embed;
  const T *x = static_cast<const T*>(a.x) + begin, *dy = static_cast<const T*>(a.dy) + begin, *weight = static_cast<const T*>(a.weight);
  const float scale = a.rstd[blockIdx.x];
  float products = 0;
  for (int64_t d = threadIdx.x; d < a.embed; d += kBlock)
    products += static_cast<float>(dy[d]) * static_cast<float>(weight[d]) * static_cast<float>(x[d]);
  const float along = device::row_sum<kBlock>(products) / static_cast<float>(a.embed) * scale * scale;
  device::Amax<T> amax;
  for (int64_t d = threadIdx.x; d < a.embed; d += kBlock) {
    float dx[1] = {scale * (static_cast<float>(dy[d]) * static_cast<float>(weight[d]) - static_cast<float>(x[d]) * along)};
    if (a.add != nullptr) dx[0] += static_cast<float>(static_cast<const T*>(a.add)[begin + d]);
    const auto rounded = Pack<T, 1>::of(dx);
    rounded.store(static_cast<T*>(a.dx) + begin + d);
    amax.update(rounded);
  }
  amax.record(a.amax);
}

constexpr int kRowLanes = 8;         // warps of a block of the weight gradient; each reads rows of its own
constexpr int kWeightBlocks = 1024;  // blocks wanted: about 8 on each multiprocessor of an H200

// Columns that one warp covers: the same for aligned and unaligned rows, so that results are bitwise identical.
template <class T>
constexpr int kTile = kWarp* kPack<T>;

// Block (x, y): the sum over the rows of part y, for the columns of tile x.
template <class T, int N>
__global__ void __launch_bounds__(kWarp* kRowLanes) norm_weight_parts_kernel(NormWeightLaunch a, int64_t rows_of_part) {
  constexpr int kEach = kPack<T>;  // columns of a thread, read N at a time
  const int lane = static_cast<int>(threadIdx.x), row_lane = static_cast<int>(threadIdx.y);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile<T> + lane * kEach;
  const int64_t begin = blockIdx.y * rows_of_part, end = begin + rows_of_part < a.rows ? begin + rows_of_part : a.rows;
  float total[kEach] = {};
  const auto add_rows = [&](auto whole) {
#pragma unroll 4
    for (int64_t row = begin + row_lane; row < end; row += kRowLanes) {
      const T *x = static_cast<const T*>(a.x) + row * a.embed + first, *dy = static_cast<const T*>(a.dy) + row * a.embed + first;
      const float scale = a.rstd[row];
#pragma unroll
      for (int d = 0; d < kEach; d += N) {
        if (!whole.value && first + d >= a.embed) continue;
        const auto from_x = Pack<T, N>::load(x + d), from_dy = Pack<T, N>::load(dy + d);
#pragma unroll
        for (int i = 0; i < N; ++i) total[d + i] += from_dy[i] * from_x[i] * scale;
      }
    }
  };
  if (first + kEach <= a.embed)
    add_rows(std::true_type());
  else
    add_rows(std::false_type());

  __shared__ float sums[kRowLanes][kTile<T> + 1];
  for (int i = 0; i < kEach; ++i) sums[row_lane][i * kWarp + lane] = total[i];
  __syncthreads();
  for (int at = row_lane * kWarp + lane; at < kTile<T>; at += kWarp * kRowLanes) {
    const int64_t column = static_cast<int64_t>(blockIdx.x) * kTile<T> + at;
    float sum = 0;
    for (int r = 0; r < kRowLanes; ++r) sum += sums[r][at % kEach * kWarp + at / kEach];
    if (column < a.embed) a.parts[blockIdx.y * a.embed + column] = sum;
  }
}

// A block adds the parts of 32 columns: 32 threads per column take the parts in turn, then their sums are added in order.
__global__ void __launch_bounds__(kWarp* kWarp) norm_weight_kernel(NormWeightLaunch a, int parts) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  __shared__ float sums[kWarp][kWarp];
  float mine = 0;
  if (column < a.embed) {
#pragma unroll 4
    for (int part = static_cast<int>(threadIdx.y); part < parts; part += kWarp) mine += a.parts[part * a.embed + column];
  }
  sums[threadIdx.y][threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.y != 0 || column >= a.embed) return;
  float sum = a.accumulate ? a.dw[column] : 0.0f;
  for (int y = 0; y < kWarp; ++y) sum += sums[y][threadIdx.x];
  a.dw[column] = sum;
}

// Blocks of the kernel below: whole waves on 132 multiprocessors, and few enough that the parts of the weight gradient are small beside the
// rows.
template <int kRowThreads>
constexpr int64_t kBackwardBlocks = kRowThreads == kWarp ? 1584 : 792;

// Writes the block's part of the weight gradient: the sums of its rows of threads, added one row of threads after the other.
template <int N, int kRowThreads, int kPacks>
__device__ __forceinline__ void write_weight_part(const NormBackwardLaunch& a, const Place<kRowThreads>& place,
                                                  float (&totals)[kPacks][N]) {
  constexpr int kRows = kThreads<kRowThreads> / kRowThreads;  // side by side
  const int embed = static_cast<int>(a.embed);
  float* part = a.parts + blockIdx.x * a.embed;
  if constexpr (kRows > 1) {
    __shared__ float sums[kWarp * kPacksMax * N];  // 4 KiB for bf16
    for (int turn = 0; turn < kRows; ++turn) {
      if (static_cast<int>(threadIdx.x) / kRowThreads == turn) {
#pragma unroll
        for (int k = 0; k < kPacks; ++k)
#pragma unroll
          for (int i = 0; i < N; ++i) {
            float& sum = sums[(k * N + i) * kWarp + place.thread];
            sum = turn == 0 ? totals[k][i] : sum + totals[k][i];
            if (turn + 1 == kRows) totals[k][i] = sum;
          }
      }
      __syncthreads();
    }
    if (static_cast<int>(threadIdx.x) / kRowThreads + 1 != kRows) return;
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int d = (k * kRowThreads + place.thread) * N;
    if (d >= embed) continue;
#pragma unroll
    for (int i = 0; i < N; i += kPack<float>) {
      constexpr int kEach = N < kPack<float> ? N : kPack<float>;
      float four[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) four[j] = totals[k][i + j];
      Pack<float, kEach>::of(four).store(part + d + i);
    }
  }
}

// The whole backward pass of a norm from one reading of its rows: dx, y where wanted, and a part of dw.
template <class T, int N, int kRowThreads, int kPacks>
__global__ void __launch_bounds__(kThreads<kRowThreads>) norm_backward_kernel(NormBackwardLaunch a) {
  constexpr int kRows = kThreads<kRowThreads> / kRowThreads;  // side by side
  const Place<kRowThreads> place;
  const int embed = static_cast<int>(a.embed);
  Pack<T, N> gains[kPacks];
  float totals[kPacks][N] = {};
  device::Amax<T> amax;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int d = (k * kRowThreads + place.thread) * N;
    if (d < embed) gains[k] = Pack<T, N>::load(static_cast<const T*>(a.weight) + d);
  }
  for (int64_t row = place.row; row < a.rows; row += static_cast<int64_t>(gridDim.x) * kRows) {
    const int64_t begin = row * a.embed;
    const float scale = a.rstd[row];
    Pack<T, N> x[kPacks], dy[kPacks], added[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int d = (k * kRowThreads + place.thread) * N;
      if (d >= embed) continue;
      x[k] = Pack<T, N>::load(static_cast<const T*>(a.x) + begin + d);
      dy[k] = Pack<T, N>::load(static_cast<const T*>(a.dy) + begin + d);
      if (a.add != nullptr) added[k] = Pack<T, N>::load(static_cast<const T*>(a.add) + begin + d);
    }
    float products = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if ((k * kRowThreads + place.thread) * N >= embed) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        products += dy[k][i] * gains[k][i] * x[k][i];
        totals[k][i] += dy[k][i] * x[k][i] * scale;
      }
    }
    const float along = device::row_sum<kRowThreads>(products) / static_cast<float>(embed) * scale * scale;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int d = (k * kRowThreads + place.thread) * N;
      if (d >= embed) continue;
      float dx[N];
#pragma unroll
      for (int i = 0; i < N; ++i) dx[i] = scale * (dy[k][i] * gains[k][i] - x[k][i] * along);
      if (a.add != nullptr) {
#pragma unroll
        for (int i = 0; i < N; ++i) dx[i] += added[k][i];
      }
      const auto rounded = Pack<T, N>::of(dx);
      rounded.store(static_cast<T*>(a.dx) + begin + d);
      amax.update(rounded);
      if (a.y != nullptr) {
        float y[N];
#pragma unroll
        for (int i = 0; i < N; ++i) y[i] = x[k][i] * scale * gains[k][i];
        Pack<T, N>::of(y).store(static_cast<T*>(a.y) + begin + d);
      }
    }
  }
  amax.record(a.amax);

  write_weight_part<N, kRowThreads, kPacks>(a, place, totals);
}

enum class Form { long_row, warp, block };

// How a row of so many elements is worked on, and how many packs each thread keeps of it.
struct Choice {
  Form form;
  int packs;
};
template <class T>
Choice choose(int64_t embed, bool aligned) {
  const int64_t packs = embed / kPack<T>;
  if (!aligned || embed % kPack<T> != 0 || packs > kBlock * kPacksMax) return {Form::long_row, 0};
  const Form form = packs <= kWarp * kPacksMax ? Form::warp : Form::block;
  const int64_t threads = form == Form::warp ? kWarp : kBlock, each = (packs + threads - 1) / threads;
  return {form, static_cast<int>(each)};
}

// Calls run with the threads of a row and the packs of a thread as constants.
template <class Run>
void with_constants(const Choice& choice, const Run& run) {
  const auto with_packs = [&](auto threads) {
    if (choice.packs == 1)
      run(threads, std::integral_constant<int, 1>());
    else if (choice.packs == 2)
      run(threads, std::integral_constant<int, 2>());
    else if (choice.packs == 3)
      run(threads, std::integral_constant<int, 3>());
    else
      run(threads, std::integral_constant<int, kPacksMax>());
  };
  choice.form == Form::warp ? with_packs(std::integral_constant<int, kWarp>()) : with_packs(std::integral_constant<int, kBlock>());
}

unsigned blocks_for(int64_t rows, const Choice& choice) {
  return static_cast<unsigned>(choice.form == Form::warp ? (rows + kWarpsTogether - 1) / kWarpsTogether : rows);
}

template <class T>
void start(const NormLaunch& a, cudaStream_t stream) {
  const Choice choice =
      choose<T>(a.embed, is_aligned(a.x) && is_aligned(a.r) && is_aligned(a.weight) && is_aligned(a.y) && is_aligned(a.sum));
  const unsigned blocks = blocks_for(a.rows, choice);
  if (choice.form == Form::long_row)
    long_norm_kernel<T><<<blocks, kBlock, 0, stream>>>(a);
  else
    with_constants(choice, [&](auto threads, auto packs) {
      norm_kernel<T, kPack<T>, threads.value, packs.value><<<blocks, kThreads<threads.value>, 0, stream>>>(a);
    });
}

template <class T>
void start(const NormInputLaunch& a, cudaStream_t stream) {
  const Choice choice =
      choose<T>(a.embed, is_aligned(a.x) && is_aligned(a.dy) && is_aligned(a.weight) && is_aligned(a.add) && is_aligned(a.dx));
  const unsigned blocks = blocks_for(a.rows, choice);
  if (choice.form == Form::long_row)
    long_norm_input_kernel<T><<<blocks, kBlock, 0, stream>>>(a);
  else
    with_constants(choice, [&](auto threads, auto packs) {
      norm_input_kernel<T, kPack<T>, threads.value, packs.value><<<blocks, kThreads<threads.value>, 0, stream>>>(a);
    });
}

template <class T>
int64_t backward_blocks(int64_t rows, int64_t embed) {
  const Choice choice = choose<T>(embed, true);
  const int64_t most = choice.form == Form::warp ? kBackwardBlocks<kWarp> : kBackwardBlocks<kBlock>;
  const int64_t needed = static_cast<int64_t>(blocks_for(rows, choice));
  return needed < most ? needed : most;
}

template <class T>
void start(const NormBackwardLaunch& a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(backward_blocks<T>(a.rows, a.embed));
  with_constants(choose<T>(a.embed, true), [&](auto threads, auto packs) {
    norm_backward_kernel<T, kPack<T>, threads.value, packs.value><<<blocks, kThreads<threads.value>, 0, stream>>>(a);
  });
  const NormWeightLaunch sum{.elements = a.elements, .dw = a.dw, .parts = a.parts, .rows = a.rows, .embed = a.embed};
  norm_weight_kernel<<<static_cast<unsigned>((a.embed + kWarp - 1) / kWarp), dim3(kWarp, kWarp), 0, stream>>>(sum,
                                                                                                              static_cast<int>(blocks));
}

int64_t tiles_of(int64_t embed) { return (embed + kTile<bf16> - 1) / kTile<bf16>; }

template <class T>
void start(const NormWeightLaunch& a, cudaStream_t stream) {
  const int64_t parts = norm_weight_parts(a.rows, a.embed), rows_of_part = (a.rows + parts - 1) / parts;
  const dim3 grid(static_cast<unsigned>((a.embed + kTile<T> - 1) / kTile<T>), static_cast<unsigned>(parts)), block(kWarp, kRowLanes);
  if (a.embed % kPack<T> == 0 && is_aligned(a.x) && is_aligned(a.dy))
    norm_weight_parts_kernel<T, kPack<T>><<<grid, block, 0, stream>>>(a, rows_of_part);
  else
    norm_weight_parts_kernel<T, 1><<<grid, block, 0, stream>>>(a, rows_of_part);
  const unsigned blocks = static_cast<unsigned>((a.embed + kWarp - 1) / kWarp);
  norm_weight_kernel<<<blocks, dim3(kWarp, kWarp), 0, stream>>>(a, static_cast<int>(parts));
}

template <class Launch>
cudaError_t start_for(const Launch& launch, cudaStream_t stream) {
  if (launch.rows == 0 || launch.embed == 0) return cudaSuccess;
  launch.elements == Elements::bf16 ? start<bf16>(launch, stream) : start<float>(launch, stream);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_norm(const NormLaunch& launch, cudaStream_t stream) { return start_for(launch, stream); }
cudaError_t launch_norm_input(const NormInputLaunch& launch, cudaStream_t stream) { return start_for(launch, stream); }
cudaError_t launch_norm_weight(const NormWeightLaunch& launch, cudaStream_t stream) { return start_for(launch, stream); }
cudaError_t launch_norm_backward(const NormBackwardLaunch& launch, cudaStream_t stream) { return start_for(launch, stream); }

bool norm_backward_supports(Elements elements, int64_t embed) {
  return (elements == Elements::bf16 ? choose<bf16>(embed, true) : choose<float>(embed, true)).form != Form::long_row;
}

int64_t norm_backward_parts(Elements elements, int64_t rows, int64_t embed) {
  return elements == Elements::bf16 ? backward_blocks<bf16>(rows, embed) : backward_blocks<float>(rows, embed);
}

int64_t norm_weight_parts(int64_t rows, int64_t embed) {
  constexpr int64_t kRowsAtLeast = 4 * kRowLanes;  // of a part
  const int64_t tiles = tiles_of(embed), wanted = (kWeightBlocks + tiles - 1) / tiles, possible = (rows + kRowsAtLeast - 1) / kRowsAtLeast;
  return wanted < possible ? wanted : possible > 0 ? possible : 1;
}

}  // namespace cairn::kernels
