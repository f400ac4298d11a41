#include "memory/byte_ring.h"

#include <algorithm>

#include "base/check.h"

namespace cairn::memory {
namespace {

constexpr int64_t kPage = 4096, kCacheLine = 64;

}  // namespace

// The first offset from `from` on whose address leaves this remainder.
int64_t ByteRing::aligned(int64_t from, int64_t remainder) const {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory_.data()) % kPage) + from;
  const int64_t unit = remainder < 0 ? kCacheLine : kPage, wanted = std::max<int64_t>(remainder, 0);
  return from + ((wanted - address) % unit + unit) % unit;
}

std::byte* ByteRing::reserve(int64_t bytes, int64_t remainder) {
  CAIRN_CHECK(bytes > 0, "a region of {} bytes", bytes);
  const int64_t tail = regions_.empty() ? 0 : regions_.front().begin, head = regions_.empty() ? 0 : regions_.back().end;
  const bool wrapped = !regions_.empty() && head <= tail;  // head == tail: full
  const int64_t limit = wrapped ? tail : capacity();
  int64_t begin = aligned(head, remainder);
  if (begin + bytes > limit) {
    if (wrapped) return nullptr;
    begin = aligned(0, remainder);             // the end of the memory is left out
    if (begin + bytes > tail) return nullptr;  // no room before the oldest region, or all of the memory is too small
  }
  regions_.push_back({begin, begin + bytes});
  peak_ = std::max(peak_, used());
  return memory_.data() + begin;
}

int64_t ByteRing::used() const {
  if (regions_.empty()) return 0;
  const int64_t tail = regions_.front().begin, head = regions_.back().end;
  return head > tail ? head - tail : capacity() - tail + head;
}

void ByteRing::release_oldest() {
  CAIRN_CHECK(!regions_.empty(), "no region is left");
  regions_.pop_front();
}

}  // namespace cairn::memory
