#include "federate/coding/rounds.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cairn::federate {

const std::vector<Task>& Rounds::begin() {
  CAIRN_CHECK(!over(), "round {} is the last", round_);
  tasks_ = scheme_->tasks(++round_);
  replied_.assign(tasks_.size(), 0);
  first_ = -1;
  last_ = 0;
  return tasks_;
}

void Rounds::arrived(int worker, double at) {
  char& replied = replied_[static_cast<size_t>(worker)];
  CAIRN_CHECK(!tasks_[static_cast<size_t>(worker)].empty() && !replied, "a second reply of worker {}, or one without a task", worker);
  replied = 1;
  if (first_ < 0) first_ = at;
  last_ = std::max(last_, at);
}

Workers Rounds::late_now() const {
  Workers late(tasks_.size(), 0);
  for (size_t i = 0; i < late.size(); ++i) late[i] = !tasks_[i].empty() && !replied_[i];
  return late;
}

std::optional<double> Rounds::closes_at() const {
  const Workers late = late_now();
  if (std::find(late.begin(), late.end(), 1) == late.end()) return last_;
  if (first_ < 0 || !scheme_->conforms(late)) return std::nullopt;
  return std::max((1 + mu_) * first_, last_);
}

ClosedRound Rounds::close(double at) {
  ClosedRound closed{.round = round_, .seconds = at, .late = late_now()};
  closed.waited = first_ >= 0 && at > (1 + mu_) * first_ * (1 + 1e-9) && last_ > (1 + mu_) * first_;
  scheme_->close(closed.late);
  JobDecoding job;
  if (scheme_->completed(job)) closed.completed = std::move(job);
  return closed;
}

}  // namespace cairn::federate
