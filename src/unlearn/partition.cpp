#include "unlearn/partition.h"

#include <algorithm>

#include "base/check.h"
#include "base/random.h"

namespace cairn::unlearn {

Partition::Partition(int64_t records, int64_t shards, int64_t slices, uint64_t seed)
    : shards_(shards), slices_(slices), shuffled_(static_cast<uint64_t>(records), base::Random(seed).for_purpose("unlearning partition")) {
  CAIRN_CHECK(shards >= 1 && slices >= 1 && records >= shards * slices, "{} records in {} shards of {} slices", records, shards, slices);
}

int64_t Partition::first_of(int64_t part) const {
  const int64_t parts = shards_ * slices_, each = records() / parts, rest = records() % parts;
  return part * each + std::min(part, rest);
}

Place Partition::place_of(int64_t record) const {
  CAIRN_CHECK(record >= 0 && record < records(), "record {} of {}", record, records());
  const int64_t parts = shards_ * slices_, each = records() / parts, rest = records() % parts;
  const auto position = static_cast<int64_t>(shuffled_.index_of(static_cast<uint64_t>(record)));
  const int64_t longer = rest * (each + 1);  // positions in the parts with one record more
  const int64_t part = position < longer ? position / (each + 1) : rest + (position - longer) / each;
  return {part / slices_, part % slices_};
}

std::vector<int64_t> Partition::records_in(Place place) const {
  const int64_t part = place.shard * slices_ + place.slice;
  std::vector<int64_t> found;
  for (int64_t at = first_of(part); at < first_of(part + 1); ++at)
    found.push_back(static_cast<int64_t>(shuffled_.at(static_cast<uint64_t>(at))));
  return found;
}

}  // namespace cairn::unlearn
