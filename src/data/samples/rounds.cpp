#include "data/samples/rounds.h"

#include <algorithm>
#include <unordered_set>

#include "base/check.h"

namespace cairn::data {

RoundPool::RoundPool(int64_t size, const SamplerOptions& options, const base::Random& random)
    : size_(size), options_(options), random_(random), carried_(1) {
  CAIRN_CHECK(size >= 1, "a pool of {} samples", size);
}

RoundPart RoundPool::next(const std::optional<RoundPart>& before, int64_t count) {
  CAIRN_CHECK(count >= 1 && count <= size_, "a round of {} samples from {}", count, size_);
  if (!before) return {.count = count};
  if (options_.fixed) return {.count = count};
  RoundPart part{.cycle = before->cycle, .cursor = before->cursor + before->count, .count = count, .unseen = before->unseen};
  const bool carries = options_.tail == RoundTail::carry && !options_.replacement;
  const int64_t used = std::min(part.cursor, size_);
  if (part.cursor >= size_ || options_.replacement || (!carries && part.cursor + count > size_)) {
    part.cycle += 1;
    part.cursor = carries ? part.cursor - size_ : 0;
    part.unseen *= 1 - static_cast<double>(used) / static_cast<double>(size_);
  }
  const std::lock_guard lock(mutex_);
  if (carries && part.cursor + count > size_ && static_cast<int64_t>(carried_.size()) == part.cycle + 1)
    carried_.push_back({size_ - part.cursor, count});
  carried_.resize(std::max(carried_.size(), static_cast<size_t>(part.cycle) + 1));
  return part;
}

base::Permutation RoundPool::order(int64_t cycle) const {
  return {static_cast<uint64_t>(size_), random_.for_index(static_cast<uint64_t>(cycle))};
}

std::vector<int64_t> RoundPool::places(const RoundPart& part, std::span<const int64_t> indices) const {
  struct Cycle {
    std::optional<base::Permutation> order;
    int64_t changed = 0;  // places from here on are those of the order
    std::shared_ptr<const Places> beginning;
  } cycles[2];
  std::vector<int64_t> places;
  places.reserve(indices.size());
  for (const int64_t index : indices) {
    const int64_t next = part.cursor + index >= size_ ? 1 : 0, place = part.cursor + index - next * size_;
    Cycle& cycle = cycles[next];
    if (!cycle.order) {
      cycle.order.emplace(order(part.cycle + next));
      cycle.changed = carried_into(part.cycle + next).count;
    }
    if (place < cycle.changed && !cycle.beginning) cycle.beginning = beginning(part.cycle + next);
    const bool changed = place < cycle.changed && place < static_cast<int64_t>(cycle.beginning->size());
    places.push_back(changed ? (*cycle.beginning)[static_cast<size_t>(place)]
                             : static_cast<int64_t>(cycle.order->at(static_cast<uint64_t>(place))));
  }
  return places;
}

double RoundPool::seen(const RoundPart& part) const {
  const double drawn = std::min(1.0, static_cast<double>(part.cursor + part.count) / static_cast<double>(size_));
  return 1 - part.unseen * (1 - drawn);
}

RoundPool::Carried RoundPool::carried_into(int64_t cycle) const {
  const std::lock_guard lock(mutex_);
  return cycle < static_cast<int64_t>(carried_.size()) ? carried_[static_cast<size_t>(cycle)] : Carried{};
}

std::shared_ptr<const RoundPool::Places> RoundPool::beginning(int64_t cycle) const {
  constexpr size_t kKept = 3;  // rounds are drawn in order, perhaps by two threads
  const std::lock_guard lock(mutex_);
  if (const auto found = beginnings_.find(cycle); found != beginnings_.end()) return found->second;
  auto made = std::make_shared<const Places>(make_beginning(cycle, carried_into(cycle)));
  beginnings_[cycle] = made;
  while (beginnings_.size() > kKept) beginnings_.erase(beginnings_.begin());
  return made;
}

// The round has `carried.samples` from the end of the cycle before, and needs the rest from this one.
RoundPool::Places RoundPool::make_beginning(int64_t cycle, const Carried& carried) const {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < carried.samples; ++i) indices.push_back(i);
  const std::vector<int64_t> before = places({.cycle = cycle - 1, .cursor = size_ - carried.samples, .count = carried.samples}, indices);
  const std::unordered_set<int64_t> in_round(before.begin(), before.end());
  const base::Permutation fresh = order(cycle);
  Places first, behind;
  for (uint64_t place = 0; static_cast<int64_t>(first.size()) < carried.count - carried.samples; ++place) {
    const auto sample = static_cast<int64_t>(fresh.at(place));
    (in_round.contains(sample) ? behind : first).push_back(sample);
  }
  first.insert(first.end(), behind.begin(), behind.end());
  return first;
}

}  // namespace cairn::data
