#include "comm/shm/arena.h"

#include <algorithm>

#include "base/check.h"

namespace cairn::comm {
namespace {

constexpr int64_t kPage = 4096;

}  // namespace

Arena::Arena(std::byte* begin, int64_t bytes) : begin_(begin), bytes_(bytes / kPage * kPage) {
  if (bytes_ > 0) free_[0] = bytes_;
}

void* Arena::allocate(int64_t bytes) {
  const int64_t length = std::max<int64_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  for (auto one = free_.begin(); one != free_.end(); ++one) {
    if (one->second < length) continue;
    const auto [at, room] = *one;
    free_.erase(one);
    if (room > length) free_[at + length] = room - length;
    used_[at] = length;
    return begin_ + at;
  }
  return nullptr;
}

void Arena::free(void* piece) {
  const auto found = used_.find(offset_of(piece));
  CAIRN_CHECK(found != used_.end(), "memory at {} was not handed out", offset_of(piece));
  auto [at, length] = *found;
  used_.erase(found);
  const auto next = free_.lower_bound(at);
  if (next != free_.end() && at + length == next->first) {
    length += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(at);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == at) {
      before->second += length;
      return;
    }
  }
  free_[at] = length;
}

bool Arena::holds(const void* data, int64_t bytes) const {
  const auto* first = static_cast<const std::byte*>(data);
  return bytes_ > 0 && first >= begin_ && first + bytes <= begin_ + bytes_;
}

}  // namespace cairn::comm
