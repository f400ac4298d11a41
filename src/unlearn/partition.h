// Which shard and slice each record lies in.
#pragma once
#include <cstdint>
#include <vector>

#include "base/random/permutation.h"

namespace cairn::unlearn {

struct Place {
  int64_t shard = 0, slice = 0;
  bool operator==(const Place&) const = default;
};

// Records 0 to n-1, shuffled once by a seed and cut into shards * slices parts whose sizes differ by at most 1; the first ones get the
// remainder. A value: the same on every machine.
class Partition {
 public:
  Partition(int64_t records, int64_t shards, int64_t slices, uint64_t seed);

  int64_t records() const { return static_cast<int64_t>(shuffled_.size()); }
  int64_t shards() const { return shards_; }
  int64_t slices() const { return slices_; }
  Place place_of(int64_t record) const;
  // In the order of the shuffle, in which stages read them.
  std::vector<int64_t> records_in(Place place) const;

 private:
  int64_t first_of(int64_t part) const;  // position of its first record

  int64_t shards_, slices_;
  base::Permutation shuffled_;  // position -> record
};

}  // namespace cairn::unlearn
