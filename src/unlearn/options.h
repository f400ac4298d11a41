// The recipe's unlearning.* keys.
#pragma once
#include <cstdint>
#include <string>

#include "base/enum_names.h"
#include "base/schema.h"

namespace cairn::unlearn {

// s3t: a stage trains adapters on a group of layers of its own, and a deletion switches groups off. sisa: a stage trains adapters on all
// layers, and a deletion goes back to a checkpoint.
enum class Method { s3t, sisa };
inline constexpr base::EnumName<Method> kMethodNames[] = {{Method::s3t, "s3t"}, {Method::sisa, "sisa"}};

// In which orders the slices of a shard are trained.
enum class OrderKind { cyclic, matching, random, all };
inline constexpr base::EnumName<OrderKind> kOrderKindNames[] = {
    {OrderKind::cyclic, "cyclic"}, {OrderKind::matching, "matching"}, {OrderKind::random, "random"}, {OrderKind::all, "all"}};

// Which slices a stage reads: all so far, or the last one alone.
enum class StageData { cumulative, slice };
inline constexpr base::EnumName<StageData> kStageDataNames[] = {{StageData::cumulative, "cumulative"}, {StageData::slice, "slice"}};

// How the answers of shards become one.
enum class Aggregate { mean_log_prob, mean_prob, vote };
inline constexpr base::EnumName<Aggregate> kAggregateNames[] = {
    {Aggregate::mean_log_prob, "mean_log_prob"}, {Aggregate::mean_prob, "mean_prob"}, {Aggregate::vote, "vote"}};

// Which live beginning of which order answers for a shard: the longest one, or the one with the lowest loss on `validation`.
enum class Prefix { longest, best };
inline constexpr base::EnumName<Prefix> kPrefixNames[] = {{Prefix::longest, "longest"}, {Prefix::best, "best"}};

struct UnlearnOptions {
  Method method = Method::s3t;
  int64_t shards = 5, slices = 4;
  int64_t budget = 4;  // orders of a shard
  OrderKind orders = OrderKind::cyclic;
  std::string delete_probs = {};    // a file
  double expected_deletions = 100;  // t of the matching
  StageData data = StageData::cumulative;
  int64_t layers_per_stage = 0;  // 0: layers / slices
  Aggregate aggregate = Aggregate::mean_log_prob;
  Prefix prefix = Prefix::longest;
  std::string validation = {};  // a file
  int64_t cache_bytes = int64_t{1} << 30;
  int64_t partition_seed = 0;
};

base::Schema<UnlearnOptions> unlearning_schema();

}  // namespace cairn::unlearn
