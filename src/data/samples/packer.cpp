#include "data/samples/packer.h"

#include "base/check.h"

namespace cairn::data {

int64_t Packer::place(int64_t size) {
  CAIRN_CHECK(size >= 1 && size <= capacity_, "a piece of {} for bins of {}", size, capacity_);
  const auto found = open_.lower_bound({size, 0});
  const bool fits = found != open_.end();
  const int64_t bin = fits ? found->second : bins_++;
  const int64_t room = (fits ? found->first : capacity_) - size;
  if (fits) open_.erase(found);
  if (room > 0) open_.emplace(room, bin);
  if (static_cast<int64_t>(open_.size()) > open_max_) open_.erase(open_.begin());
  return bin;
}

}  // namespace cairn::data
