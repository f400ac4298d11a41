#include "mesh/swap/access_order.h"

#include <algorithm>

namespace cairn::mesh {

bool AccessOrder::used(int64_t what) {
  if (!recorded_) {
    order_.push_back(what);
    next_ = order_.size();
    return true;
  }
  if (next_ < order_.size() && order_[next_] == what) {
    ++next_;
    return true;
  }
  if (!order_.empty() && order_.front() == what) {  // a pass over the model begins
    next_ = 1;
    return true;
  }
  order_.resize(next_);
  order_.push_back(what);
  next_ = order_.size();
  recorded_ = false;
  ++surprises_;
  return false;
}

void AccessOrder::end_step() {
  recorded_ = recorded_ || !order_.empty();
  next_ = 0;
}

std::vector<int64_t> AccessOrder::ahead(size_t count) const {
  std::vector<int64_t> found;
  if (!recorded_) return found;
  for (size_t i = 0; i < order_.size() && found.size() < count; ++i) {
    const int64_t one = order_[(next_ + i) % order_.size()];
    if (std::find(found.begin(), found.end(), one) == found.end()) found.push_back(one);
  }
  return found;
}

}  // namespace cairn::mesh
