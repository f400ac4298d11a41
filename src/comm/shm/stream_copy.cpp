#include "comm/shm/stream_copy.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace cairn::comm {

#if defined(__SSE2__)

void stream_copy(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const int64_t head = std::min<int64_t>(bytes, (kLine - static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLine)) % kLine);
  if (head > 0) std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* line = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  _mm_sfence();  // non-temporal stores are not ordered with others
  if (at < bytes) std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
}

#else

void stream_copy(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

#endif

}  // namespace cairn::comm
