// Gradient coding, GC(n, s), and its selective repetition, SR-SGC (Krishnan et al. 2023, "Sequential Gradient Coding For Straggler
// Mitigation"). A worker's reply to job t is sum over its s + 1 parts of b_ij g_j; any n - s replies give the gradient.
//
//   GC          round r: everybody does job r. Closes with at most s late workers.
//   SR-SGC      round r: if job r - B has fewer than n - s replies, as many workers as are missing, the first that did not reply to it, do
//               job r - B again instead of job r. Closes once job r - B has n - s replies.
#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "federate/coding/schemes.h"

namespace cairn::federate {
namespace {

class RepeatingScheme final : public Scheme {
 public:
  RepeatingScheme(const Repeating& options, sync::GradientCode code) : options_(options), code_(std::move(code)) {
    for (int part = 0; part < code_.workers(); ++part) chunks_.push_back({part, 1});
  }

  int workers() const override { return code_.workers(); }
  int delay() const override { return options_.repeat_after; }
  double load() const override { return static_cast<double>(options_.s + 1) / workers(); }
  int64_t units() const override { return workers(); }
  const std::vector<Chunk>& chunks() const override { return chunks_; }
  int64_t jobs() const override { return options_.jobs; }

  std::vector<Task> tasks(int64_t round) override {
    CAIRN_CHECK(round == round_ + 1, "round {} after round {}", round, round_);
    round_ = round;
    assigned_.assign(static_cast<size_t>(workers()), -1);
    if (round < jobs()) assigned_.assign(static_cast<size_t>(workers()), round);
    const int64_t due = due_job();
    if (options_.repeat_after > 0 && due >= 0) {
      const Workers& have = replies_.at(due);
      auto missing = workers() - options_.s - std::count(have.begin(), have.end(), 1);
      for (size_t i = 0; i < have.size() && missing > 0; ++i) {
        if (have[i]) continue;
        assigned_[i] = due;
        --missing;
      }
    }
    if (round < jobs()) replies_[round].assign(static_cast<size_t>(workers()), 0);
    std::vector<Task> tasks(static_cast<size_t>(workers()));
    for (int i = 0; i < workers(); ++i)
      if (const int64_t job = assigned_[static_cast<size_t>(i)]; job >= 0)
        tasks[static_cast<size_t>(i)].push_back({.job = job, .group = 0, .chunks = code_.parts(i), .weights = code_.coefficients(i)});
    return tasks;
  }

  bool conforms(const Workers& late) const override {
    const int64_t due = due_job();
    if (due < 0 || due >= jobs()) return true;
    Workers have = replies_.at(due);
    for (size_t i = 0; i < have.size(); ++i)
      if (assigned_[i] == due && !late[i]) have[i] = 1;
    return std::count(have.begin(), have.end(), 1) >= workers() - options_.s && code_.decodes(have);
  }

  void close(const Workers& late) override {
    replies_.erase(replies_.begin(), replies_.lower_bound(due_job()));
    for (size_t i = 0; i < late.size(); ++i)
      if (assigned_[i] >= 0 && !late[i]) replies_.at(assigned_[i])[i] = 1;
  }

  bool completed(JobDecoding& job) const override {
    const int64_t due = due_job();
    if (due < 0 || due >= jobs()) return false;
    job = {.job = due, .own_sums = false, .weights = {code_.decode(replies_.at(due)).weights}};
    CAIRN_CHECK(!job.weights.front().empty(), "job {} cannot be decoded", due);
    return true;
  }

 private:
  int64_t due_job() const { return round_ - options_.repeat_after; }

  const Repeating options_;
  const sync::GradientCode code_;
  std::vector<Chunk> chunks_;
  int64_t round_ = -1;
  std::vector<int64_t> assigned_;       // by worker: the job of this round; -1: none
  std::map<int64_t, Workers> replies_;  // by job: who has replied
};

}  // namespace

std::unique_ptr<Scheme> make_repeating(const Repeating& options, sync::GradientCode code) {
  return std::make_unique<RepeatingScheme>(options, std::move(code));
}

}  // namespace cairn::federate
