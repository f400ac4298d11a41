// Codecs on a GPU, with the bytes of comm's codecs, whose sources explain the formats. A warp has a block of elements with one scale, whose
// maximum is found by a warp reduction.
#include "kernels/codec/codec_kernel.h"

namespace cairn::kernels {
namespace {

constexpr int kThreads = 256, kWarp = 32;
constexpr int kBlocksMax = 132 * 16;  // as for AdamW
constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

__device__ uint32_t bits_of(float value) { return __float_as_uint(value); }
__device__ float float_of(uint32_t bits) { return __uint_as_float(bits); }

__device__ uint32_t most_of_warp(uint32_t mine) { return __reduce_max_sync(0xffffffff, mine); }

// Each format has the elements of a block, the bytes before its codes, and how a warp encodes and decodes a block. `n` is kBlock except for
// the last block. `whole`: the block is complete and aligned, so each lane reads and writes vectors.
struct E3m0 {
  static constexpr int kBlock = 128, kScaleBytes = 2;
  static constexpr uint32_t kBias = 127, kCodesAbove = 7;
  __device__ static int64_t bytes(int64_t n) { return kScaleBytes + (n + 1) / 2; }

  __device__ static uint32_t code_of(float value, float inverse) {
    const uint32_t bits = bits_of(value);
    const float ratio = float_of(bits & kMagnitude) * inverse * 1.41421354f;
    const int exponent = static_cast<int>(bits_of(ratio) >> 23) - static_cast<int>(kBias - kCodesAbove);
    const int code = min(max(exponent, 0), 7);
    return static_cast<uint32_t>(code) | (code > 0 ? bits >> 31 << 3 : 0u);
  }
  __device__ static float value_of(uint32_t code, float scale) {
    const uint32_t power = code & 7;
    const float size = power > 0 ? float_of((power + kBias - kCodesAbove) << 23) * scale : 0.0f * scale;
    return float_of(bits_of(size) | (code >> 3) << 31);
  }

  // Element i of a block of n shares a byte with element i + (n + 1) / 2: a lane has two neighbours of each half.
  __device__ static void encode(const float* in, int n, uint8_t* out, int lane, bool whole) {
    const int half = (n + 1) / 2;
    float low[2] = {}, high[2] = {};
    if (whole) {
      const float2 first = reinterpret_cast<const float2*>(in)[lane], second = reinterpret_cast<const float2*>(in)[lane + kWarp];
      low[0] = first.x, low[1] = first.y, high[0] = second.x, high[1] = second.y;
    }
    uint32_t largest = 0;
    for (int k = 0; k < 2; ++k) {
      const int i = 2 * lane + k;
      if (!whole && i < half) low[k] = in[i];
      if (!whole && i < half && i + half < n) high[k] = in[i + half];
      largest = max(largest, max(bits_of(low[k]) & kMagnitude, bits_of(high[k]) & kMagnitude));
    }
    largest = most_of_warp(largest);
    uint32_t scale = largest >= kInfinity ? 0x7fc0u : min((largest + 0x7fff + (largest >> 16 & 1)) >> 16, 0x7f7fu);
    if (float_of(largest) < 0x1p-110f) scale = 0;
    const bool coded = scale != 0 && largest < kInfinity;
    const float inverse = coded ? 1.0f / float_of(scale << 16) : 0.0f;
    if (lane == 0) {
      out[0] = static_cast<uint8_t>(scale);
      out[1] = static_cast<uint8_t>(scale >> 8);
    }
    uint32_t packed[2] = {};
    for (int k = 0; coded && k < 2; ++k)
      packed[k] = code_of(low[k], inverse) | (2 * lane + k + half < n ? code_of(high[k], inverse) << 4 : 0u);
    if (whole) {  // blocks have an even number of bytes
      reinterpret_cast<uint16_t*>(out + kScaleBytes)[lane] = static_cast<uint16_t>(packed[0] | packed[1] << 8);
      return;
    }
    for (int k = 0; k < 2; ++k)
      if (2 * lane + k < half) out[kScaleBytes + 2 * lane + k] = static_cast<uint8_t>(packed[k]);
  }
  __device__ static void decode(const uint8_t* in, int n, float* out, int lane, bool whole) {
    const int half = (n + 1) / 2;
    const float scale = float_of((static_cast<uint32_t>(in[0]) | static_cast<uint32_t>(in[1]) << 8) << 16);
    if (whole) {
      const uint32_t packed = reinterpret_cast<const uint16_t*>(in + kScaleBytes)[lane];
      reinterpret_cast<float2*>(out)[lane] = make_float2(value_of(packed & 15, scale), value_of(packed >> 8 & 15, scale));
      reinterpret_cast<float2*>(out)[lane + kWarp] = make_float2(value_of(packed >> 4 & 15, scale), value_of(packed >> 12, scale));
      return;
    }
    for (int k = 0; k < 2; ++k) {
      const int i = 2 * lane + k;
      if (i >= half) continue;
      const uint32_t packed = in[kScaleBytes + i];
      out[i] = value_of(packed & 15, scale);
      if (i + half < n) out[i + half] = value_of(packed >> 4, scale);
    }
  }
};

// Four neighbours at a time: element k of a lane's run.
__device__ int place_of(int lane, int k) { return (k / 4 * kWarp + lane) * 4 + k % 4; }

// A lane's elements, zero past the end.
template <int kEach>
__device__ void load(const float* in, int n, int lane, bool whole, float (&mine)[kEach]) {
  for (int k = 0; k < kEach; k += 4) {
    const int i = place_of(lane, k);
    if (whole) {
      const float4 four = *reinterpret_cast<const float4*>(in + i);
      mine[k] = four.x, mine[k + 1] = four.y, mine[k + 2] = four.z, mine[k + 3] = four.w;
    } else {
      for (int j = 0; j < 4; ++j) mine[k + j] = i + j < n ? in[i + j] : 0.0f;
    }
  }
}

template <int kEach>
__device__ void store(const float (&mine)[kEach], int n, int lane, bool whole, float* out) {
  for (int k = 0; k < kEach; k += 4) {
    const int i = place_of(lane, k);
    if (whole) {
      *reinterpret_cast<float4*>(out + i) = make_float4(mine[k], mine[k + 1], mine[k + 2], mine[k + 3]);
    } else {
      for (int j = 0; j < 4; ++j)
        if (i + j < n) out[i + j] = mine[k + j];
    }
  }
}

struct Int8 {
  static constexpr int kBlock = 256, kScaleBytes = 4, kEach = kBlock / kWarp;
  __device__ static int64_t bytes(int64_t n) { return kScaleBytes + n; }

  __device__ static void encode(const float* in, int n, uint8_t* out, int lane, bool whole) {
    float mine[kEach];
    load(in, n, lane, whole, mine);
    uint32_t largest = 0;
    for (int k = 0; k < kEach; ++k) largest = max(largest, bits_of(mine[k]) & kMagnitude);
    largest = most_of_warp(largest);
    float scale = float_of((bits_of(__fdiv_rn(float_of(largest), 127.0f)) + 64) & ~uint32_t{127});
    float inverse = __fdiv_rn(1.0f, scale);
    if (largest >= kInfinity) scale = float_of(kInfinity | (1u << 22)), inverse = 0;
    if (float_of(largest) < 0x1p-119f) scale = inverse = 0;
    if (lane < 4) out[lane] = static_cast<uint8_t>(bits_of(scale) >> (8 * lane));
    for (int k = 0; k < kEach; k += 4) {
      uint32_t four = 0;
      for (int j = 0; j < 4; ++j) {
        const float ratio = __fmul_rn(mine[k + j], inverse);
        const float below = ratio < 127.0f ? ratio : 127.0f;
        const float within = below > -127.0f ? below : -127.0f;
        four |= (bits_of(__fadd_rn(within, 12582912.0f)) & 255) << (8 * j);
      }
      const int i = place_of(lane, k);
      if (whole) {  // blocks have a multiple of four bytes
        *reinterpret_cast<uint32_t*>(out + kScaleBytes + i) = four;
      } else {
        for (int j = 0; j < 4; ++j)
          if (i + j < n) out[kScaleBytes + i + j] = static_cast<uint8_t>(four >> (8 * j));
      }
    }
  }
  __device__ static void decode(const uint8_t* in, int n, float* out, int lane, bool whole) {
    const float scale =
        float_of(in[0] | static_cast<uint32_t>(in[1]) << 8 | static_cast<uint32_t>(in[2]) << 16 | static_cast<uint32_t>(in[3]) << 24);
    float mine[kEach];
    for (int k = 0; k < kEach; ++k) {
      const int i = place_of(lane, k);
      mine[k] = i < n ? __fmul_rn(static_cast<float>(static_cast<int8_t>(in[kScaleBytes + i])), scale) : 0.0f;
    }
    store(mine, n, lane, whole, out);
  }
};

// A sign, E bits of exponent, M of mantissa; from code kTop on nothing is finite.
template <int E, int M, uint32_t kTop, uint32_t kNan, uint32_t kLargest>
struct Fp8 {
  static constexpr int kBlock = 128, kScaleBytes = 1, kEach = kBlock / kWarp;
  static constexpr int kBias = (1 << (E - 1)) - 1, kShift = 23 - M;
  static constexpr uint32_t kSign = 1u << (E + M), kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(1 - kBias + 127) << 23;  // its bits
  __device__ static int64_t bytes(int64_t n) { return kScaleBytes + n; }

  __device__ static uint32_t code_of(float value) {
    const uint32_t bits = bits_of(value), magnitude = bits & kMagnitude;
    const uint32_t size = min(magnitude, (kTop << kShift) + kRebias);
    const uint32_t exponent = max(size & kInfinity, kSmallestNormal);
    const uint32_t aligner = exponent + (static_cast<uint32_t>(kShift) << 23);
    const uint32_t mantissa = bits_of(__fadd_rn(float_of(size), float_of(aligner))) - aligner;
    const uint32_t code = mantissa + ((exponent - kSmallestNormal) >> kShift);
    const uint32_t sign = (bits >> (31 - E - M)) & kSign;
    return sign | (kTop != kNan && magnitude > kInfinity ? kNan : code);
  }
  __device__ static float value_of(uint32_t code) {
    const uint32_t size = code & (kSign - 1), normal = (size << kShift) + kRebias;
    const uint32_t tiny = bits_of(__fsub_rn(float_of(normal + (1u << 23)), float_of(kSmallestNormal)));
    const uint32_t finite = size < (1u << M) ? tiny : normal;
    const uint32_t other = kTop == kNan ? kInfinity | (1u << 22) : kInfinity | ((size - kTop) << kShift);
    return float_of((code & kSign) << (31 - E - M) | (size < kTop ? finite : other));
  }

  __device__ static void encode(const float* in, int n, uint8_t* out, int lane, bool /*whole*/) {
    float mine[kEach];
    for (int k = 0; k < kEach; ++k) mine[k] = k * kWarp + lane < n ? in[k * kWarp + lane] : 0.0f;
    uint32_t largest = 0, finite = 0;
    for (int k = 0; k < kEach; ++k) {
      const uint32_t size = bits_of(mine[k]) & kMagnitude;
      largest = max(largest, size);
      finite = max(finite, size < kInfinity ? size : 0u);
    }
    largest = most_of_warp(largest);
    finite = most_of_warp(finite);
    if (largest >= kInfinity) largest = finite;
    const uint32_t exponent = max((largest + 0x1fffff) >> 23, kLargest + 1) - kLargest;
    if (lane == 0) out[0] = static_cast<uint8_t>(exponent);
    const float inverse = float_of((254 - exponent) << 23);
    for (int k = 0; k < kEach; ++k) {
      const int i = k * kWarp + lane;  // codes of a warp side by side: a block's bytes are not aligned
      if (i < n) out[kScaleBytes + i] = static_cast<uint8_t>(code_of(__fmul_rn(mine[k], inverse)));
    }
  }
  __device__ static void decode(const uint8_t* in, int n, float* out, int lane, bool whole) {
    const float scale = float_of(static_cast<uint32_t>(in[0]) << 23);
    float mine[kEach];
    for (int k = 0; k < kEach; ++k) {
      const int i = place_of(lane, k);
      mine[k] = i < n ? __fmul_rn(value_of(in[kScaleBytes + i]), scale) : 0.0f;
    }
    store(mine, n, lane, whole, out);
  }
};
using E4m3 = Fp8<4, 3, 0x7f, 0x7f, 8>;
using E5m2 = Fp8<5, 2, 0x7c, 0x7e, 15>;

// Blocks of a thread block's warps in turn.
template <class Format>
__global__ void encode_kernel(const float* values, int64_t count, uint8_t* codes) {
  const int lane = threadIdx.x % kWarp;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kThreads / kWarp);
  for (int64_t block = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp; block * Format::kBlock < count;
       block += warps) {
    const int64_t first = block * Format::kBlock, left = count - first;
    const bool whole = left >= Format::kBlock && reinterpret_cast<uintptr_t>(values) % 16 == 0;
    Format::encode(values + first, left >= Format::kBlock ? Format::kBlock : static_cast<int>(left),
                   codes + block * Format::bytes(Format::kBlock), lane, whole);
  }
}

template <class Format>
__global__ void decode_kernel(const uint8_t* codes, int64_t count, float* values) {
  const int lane = threadIdx.x % kWarp;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kThreads / kWarp);
  for (int64_t block = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp; block * Format::kBlock < count;
       block += warps) {
    const int64_t first = block * Format::kBlock, left = count - first;
    const bool whole = left >= Format::kBlock && reinterpret_cast<uintptr_t>(values) % 16 == 0;
    Format::decode(codes + block * Format::bytes(Format::kBlock), left >= Format::kBlock ? Format::kBlock : static_cast<int>(left),
                   values + first, lane, whole);
  }
}

__device__ uint16_t to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  return static_cast<uint16_t>((bits & kMagnitude) > kInfinity ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Four at a time where both sides are aligned.
__global__ void encode_bf16(const float* values, int64_t count, uint16_t* codes) {
  const bool aligned = reinterpret_cast<uintptr_t>(values) % 16 == 0 && reinterpret_cast<uintptr_t>(codes) % 8 == 0;
  const int64_t fours = aligned ? count / 4 : 0, threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t me = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = me; i < fours; i += threads) {
    const float4 four = reinterpret_cast<const float4*>(values)[i];
    reinterpret_cast<ushort4*>(codes)[i] = make_ushort4(to_bf16(four.x), to_bf16(four.y), to_bf16(four.z), to_bf16(four.w));
  }
  for (int64_t i = 4 * fours + me; i < count; i += threads) codes[i] = to_bf16(values[i]);
}

__device__ float of_bf16(uint16_t code) { return float_of(static_cast<uint32_t>(code) << 16); }

__global__ void decode_bf16(const uint16_t* codes, int64_t count, float* values) {
  const bool aligned = reinterpret_cast<uintptr_t>(values) % 16 == 0 && reinterpret_cast<uintptr_t>(codes) % 8 == 0;
  const int64_t fours = aligned ? count / 4 : 0, threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t me = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = me; i < fours; i += threads) {
    const ushort4 four = reinterpret_cast<const ushort4*>(codes)[i];
    reinterpret_cast<float4*>(values)[i] = make_float4(of_bf16(four.x), of_bf16(four.y), of_bf16(four.z), of_bf16(four.w));
  }
  for (int64_t i = 4 * fours + me; i < count; i += threads) values[i] = of_bf16(codes[i]);
}

int blocks_for(int64_t threads) {
  const int64_t wanted = (threads + kThreads - 1) / kThreads;
  return static_cast<int>(wanted < kBlocksMax ? wanted : kBlocksMax);
}

template <class Format>
int blocks_of(int64_t count) {
  return blocks_for((count + Format::kBlock - 1) / Format::kBlock * kWarp);
}

// Calls `act` with a value of the format that has blocks.
template <typename Do>
void with_format(CudaCodec codec, Do act) {
  if (codec == CudaCodec::fp8_e4m3) act(E4m3());
  if (codec == CudaCodec::fp8_e5m2) act(E5m2());
  if (codec == CudaCodec::int8) act(Int8());
  if (codec == CudaCodec::e3m0) act(E3m0());
}

}  // namespace

cudaError_t launch_encode(CudaCodec codec, const float* values, int64_t count, uint8_t* codes, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (codec == CudaCodec::bf16) encode_bf16<<<blocks_for(count), kThreads, 0, stream>>>(values, count, reinterpret_cast<uint16_t*>(codes));
  with_format(
      codec, [&]<class Format>(Format) { encode_kernel<Format><<<blocks_of<Format>(count), kThreads, 0, stream>>>(values, count, codes); });
  return cudaGetLastError();
}

cudaError_t launch_decode(CudaCodec codec, const uint8_t* codes, int64_t count, float* values, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (codec == CudaCodec::bf16)
    decode_bf16<<<blocks_for(count), kThreads, 0, stream>>>(reinterpret_cast<const uint16_t*>(codes), count, values);
  with_format(
      codec, [&]<class Format>(Format) { decode_kernel<Format><<<blocks_of<Format>(count), kThreads, 0, stream>>>(codes, count, values); });
  return cudaGetLastError();
}

}  // namespace cairn::kernels
