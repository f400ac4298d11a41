// RDS+: the documents most like some target examples.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/enum_names.h"
#include "data/search/top_k.h"

namespace cairn::data {

// The order in which one task wants documents: its queries take turns, or by the highest score with any query.
enum class WithinTask { round_robin, max };
inline constexpr base::EnumName<WithinTask> kWithinTaskNames[] = {{WithinTask::round_robin, "round_robin"}, {WithinTask::max, "max"}};

// Target examples of one task.
struct TargetTask {
  std::string name;
  at::Tensor queries;  // fp32 [queries, dim], of unit length
};

// How the pool is searched: top_k and best_scores, over all ranks.
struct PoolSearch {
  int64_t rows = 0;
  std::function<std::vector<std::vector<Match>>(const at::Tensor& queries, int64_t k, const std::vector<std::optional<Match>>& after)> top;
  std::function<std::vector<float>(const at::Tensor& queries)> best;
};

struct TargetPick {
  int64_t position = 0;  // in the pool
  float score = 0;
  int32_t task = 0;
  int32_t query = -1;  // whose turn it was; -1: of all
};

struct TargetResult {
  std::vector<TargetPick> picks;                       // in the order in which they were taken
  std::vector<std::vector<int64_t>> picks_of_queries;  // by task and query; of max: by task alone
  int64_t rescans = 0;
};

// Takes `keep` documents: tasks take turns, and each takes its best document that nobody has taken. `excluded`: positions that nobody may
// take, by position; empty: none. Searches for few matches of each query first, and goes on where a query runs out, so that no list is
// longer than needed; the result is that of sorting the whole pool for every query. Refuses more than there is.
TargetResult pick_for_targets(const std::vector<TargetTask>& tasks, const PoolSearch& search, int64_t keep, WithinTask within,
                              std::vector<bool> excluded = {});

}  // namespace cairn::data
