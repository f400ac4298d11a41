#include "data/selection/targets.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace cairn::data {
namespace {

// What one task wants, best first.
class TaskOrder {
 public:
  virtual ~TaskOrder() = default;
  // The task's best document that is not taken; nothing: all are.
  virtual std::optional<TargetPick> next(const std::vector<bool>& taken) = 0;
};

// Its queries take turns.
class Turns final : public TaskOrder {
 public:
  Turns(const TargetTask& task, const PoolSearch& search, int64_t keep, int64_t& rescans)
      : task_(task), search_(search), rescans_(rescans), queries_(static_cast<size_t>(task.queries.size(0))) {
    const auto count = static_cast<int64_t>(queries_.size());
    at_once_ = std::min(search.rows, 4 * ((keep + count - 1) / count));
    std::vector<std::vector<Match>> lists = search_.top(task.queries, at_once_, {});
    for (size_t q = 0; q < queries_.size(); ++q) queries_[q].matches = std::move(lists[q]);
  }

  std::optional<TargetPick> next(const std::vector<bool>& taken) override {
    const size_t q = turn_++ % queries_.size();
    Query& query = queries_[q];
    for (;; ++query.at) {
      if (query.at == query.matches.size() && !scan_on(q)) return std::nullopt;
      const Match& match = query.matches[query.at];
      if (!taken[static_cast<size_t>(match.id)])
        return TargetPick{.position = match.id, .score = match.score, .query = static_cast<int32_t>(q)};
    }
  }

 private:
  struct Query {
    std::vector<Match> matches;
    size_t at = 0;
    int64_t seen = 0;  // in earlier lists
  };

  // The next matches of a query whose list is used up.
  bool scan_on(size_t q) {
    Query& query = queries_[q];
    query.seen += static_cast<int64_t>(query.matches.size());
    if (query.matches.empty() || query.seen >= search_.rows) return false;
    ++rescans_;
    const std::optional<Match> last = query.matches.back();
    const int64_t count = std::min(search_.rows - query.seen, std::max<int64_t>(query.seen, at_once_));
    query.matches = std::move(search_.top(task_.queries.narrow(0, static_cast<int64_t>(q), 1), count, {last}).front());
    query.at = 0;
    return !query.matches.empty();
  }

  const TargetTask& task_;
  const PoolSearch& search_;
  int64_t& rescans_;
  std::vector<Query> queries_;
  int64_t at_once_ = 1;
  size_t turn_ = 0;
};

// By the highest score with any query. Others take at most `keep` documents from its list, so so many are enough.
class HighestScores final : public TaskOrder {
 public:
  HighestScores(const TargetTask& task, const PoolSearch& search, int64_t keep, const std::vector<bool>& excluded) {
    const std::vector<float> scores = search.best(task.queries);
    for (size_t i = 0; i < scores.size(); ++i)
      if (!excluded[i]) order_.push_back({static_cast<int64_t>(i), scores[i]});
    const auto count = std::min(static_cast<size_t>(keep), order_.size());
    std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(count), order_.end(), is_better);
    order_.resize(count);
  }

  std::optional<TargetPick> next(const std::vector<bool>& taken) override {
    while (at_ < order_.size() && taken[static_cast<size_t>(order_[at_].id)]) ++at_;
    if (at_ == order_.size()) return std::nullopt;
    return TargetPick{.position = order_[at_].id, .score = order_[at_].score};
  }

 private:
  std::vector<Match> order_;
  size_t at_ = 0;
};

}  // namespace

TargetResult pick_for_targets(const std::vector<TargetTask>& tasks, const PoolSearch& search, int64_t keep, WithinTask within,
                              std::vector<bool> excluded) {
  excluded.resize(static_cast<size_t>(search.rows), false);
  const int64_t available = search.rows - std::ranges::count(excluded, true);
  if (keep > available) base::fail_input("--keep {}: there are {} documents to choose from. Keep at most these.", keep, available);
  TargetResult result;
  std::vector<std::unique_ptr<TaskOrder>> orders;
  for (const TargetTask& task : tasks) {
    if (task.queries.size(0) == 0) base::fail_input("--queries {}: it has no examples. Give at least one.", task.name);
    const bool turns = within == WithinTask::round_robin;
    if (turns)
      orders.push_back(std::make_unique<Turns>(task, search, keep, result.rescans));
    else
      orders.push_back(std::make_unique<HighestScores>(task, search, keep, excluded));
    result.picks_of_queries.emplace_back(turns ? static_cast<size_t>(task.queries.size(0)) : size_t{1}, 0);
  }
  std::vector<bool>& taken = excluded;
  for (size_t task = 0; static_cast<int64_t>(result.picks.size()) < keep; task = (task + 1) % tasks.size()) {
    std::optional<TargetPick> pick = orders[task]->next(taken);
    CAIRN_CHECK(pick, "task {} has no document left after {} of {}", task, result.picks.size(), keep);
    pick->task = static_cast<int32_t>(task);
    taken[static_cast<size_t>(pick->position)] = true;
    ++result.picks_of_queries[task][static_cast<size_t>(std::max(pick->query, 0))];
    result.picks.push_back(*pick);
  }
  return result;
}

}  // namespace cairn::data
