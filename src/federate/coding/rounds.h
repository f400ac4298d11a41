// When rounds close: the part of the master that knows time. It learns when replies arrive, by any clock.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "federate/coding/scheme.h"

namespace cairn::federate {

struct ClosedRound {
  int64_t round = 0;
  double seconds = 0;
  Workers late = {};    // what they computed does not count
  bool waited = false;  // for workers behind the cut-off, because the scheme could not do without them
  std::optional<JobDecoding> completed = {};
};

// A round lasts until the cut-off, (1 + mu) times the time of its first reply; longer where the scheme cannot do without those who are late
// then, and shorter where nobody is. Times are seconds since the round began. Workers without a task are not waited for.
class Rounds {
 public:
  Rounds(std::unique_ptr<Scheme> scheme, double mu) : scheme_(std::move(scheme)), mu_(mu) {}

  const Scheme& scheme() const { return *scheme_; }
  bool over() const { return round_ + 1 >= scheme_->rounds(); }
  const std::vector<Task>& begin();
  void arrived(int worker, double at);
  // When the round closes if no more replies arrive before; nothing: it needs more.
  std::optional<double> closes_at() const;
  ClosedRound close(double at);

  int64_t round() const { return round_; }
  Workers late_now() const;  // have a task and have not replied

 private:
  std::unique_ptr<Scheme> scheme_;
  double mu_;
  int64_t round_ = -1;
  std::vector<Task> tasks_;
  Workers replied_;
  double first_ = -1, last_ = 0;  // replies of this round; first_ -1: none
};

}  // namespace cairn::federate
