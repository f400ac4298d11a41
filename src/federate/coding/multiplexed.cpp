// Multiplexed sequential gradient coding, M-SGC(B, W, lambda) (Krishnan et al. 2023). The batch of a job, in units of
// 1 / (n (B + (W - 1)(lambda + 1))):
//
//   own chunks     n (W - 1) of lambda + 1 units; worker i has W - 1 of them, and nobody else has those
//   coded groups   B groups of n chunks of one unit; each is coded by GC(n, lambda): lambda + 1 chunks per worker
//
// In round r a worker has W - 1 + B slots of lambda + 1 units each; slot j works for job r - j:
//
//   j < W - 1      own chunk j of job r - j
//   otherwise      the first own chunk of job r - j that it still lacks, because it was late; if it lacks none, its coded result of group
//                  j - (W - 1)
//
// A round may close if in the last W rounds at most lambda workers were late, and none of those that are late now was also late in rounds
// r - W + 1 .. r - B. Job t is complete after round t + W - 2 + B. With lambda = n there are no groups, and units are 1 / (n (W - 1)).
#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "base/check.h"
#include "federate/coding/schemes.h"

namespace cairn::federate {
namespace {

class MultiplexedScheme final : public Scheme {
 public:
  MultiplexedScheme(const Multiplexed& options, std::unique_ptr<sync::GradientCode> rest) : o_(options), rest_(std::move(rest)) {
    const int64_t own_size = rest_ ? o_.lambda + 1 : 1;
    for (int c = 0; c < o_.workers * own(); ++c) add_chunk(own_size);
    for (int c = 0; rest_ && c < o_.workers * o_.b; ++c) add_chunk(1);
  }

  int workers() const override { return o_.workers; }
  int delay() const override { return o_.w - 2 + o_.b; }
  double load() const override { return static_cast<double>((rest_ ? o_.lambda + 1 : 1) * (own() + o_.b)) / static_cast<double>(units_); }
  int64_t units() const override { return units_; }
  const std::vector<Chunk>& chunks() const override { return chunks_; }
  int64_t jobs() const override { return o_.jobs; }

  std::vector<Task> tasks(int64_t round) override {
    CAIRN_CHECK(round == round_ + 1, "round {} after round {}", round, round_);
    round_ = round;
    if (round < jobs()) {
      OpenJob& job = open_[round];
      job.own.assign(static_cast<size_t>(o_.workers), Workers(static_cast<size_t>(own()), 0));
      job.groups.assign(static_cast<size_t>(rest_ ? o_.b : 0), Workers(static_cast<size_t>(o_.workers), 0));
    }
    given_.assign(static_cast<size_t>(o_.workers), {});
    for (int i = 0; i < o_.workers; ++i)
      for (int j = 0; j < own() + o_.b; ++j) add_slot(i, j);
    return given_;
  }

  bool conforms(const Workers& late) const override {
    if (!is_bursty(late)) return false;
    const auto due = open_.find(round_ - delay());
    if (due == open_.end()) return true;
    OpenJob after = due->second;
    record(after, due->first, late);
    return is_complete(after);
  }

  void close(const Workers& late) override {
    open_.erase(open_.begin(), open_.lower_bound(round_ - delay()));
    for (auto& [index, job] : open_) record(job, index, late);
    late_before_.push_back(late);
    if (static_cast<int>(late_before_.size()) >= o_.w) late_before_.pop_front();  // W - 1 rounds and the next one are looked at
  }

  bool completed(JobDecoding& job) const override {
    const auto due = open_.find(round_ - delay());
    if (due == open_.end()) return false;
    CAIRN_CHECK(is_complete(due->second), "job {} cannot be decoded", due->first);
    job = {.job = due->first, .own_sums = true};
    for (const Workers& have : due->second.groups) job.weights.push_back(rest_->decode(have).weights);
    return true;
  }

 private:
  // What has been computed of a job.
  struct OpenJob {
    std::vector<Workers> own;     // by worker and own chunk
    std::vector<Workers> groups;  // by group and worker
  };

  int own() const { return o_.w - 1; }  // chunks of a worker

  void add_chunk(int64_t count) {
    chunks_.push_back({units_, count});
    units_ += count;
  }

  void add_slot(int i, int j) {
    const auto found = open_.find(round_ - j);
    if (found == open_.end()) return;  // before the first job, or after the last
    const Workers& have = found->second.own[static_cast<size_t>(i)];
    int chunk = j;
    if (j >= own()) chunk = static_cast<int>(std::find(have.begin(), have.end(), 0) - have.begin());
    Slot slot{.job = found->first};
    if (chunk < own()) {
      slot.own_chunk = chunk;
      slot.completes = std::count(have.begin(), have.end(), 1) + 1 == own();
      slot.chunks = {i * own() + chunk};
      slot.weights = {1.0};
    } else {
      if (!rest_) return;
      slot.group = j - own();
      for (const int part : rest_->parts(i)) slot.chunks.push_back(o_.workers * own() + slot.group * o_.workers + part);
      slot.weights = rest_->coefficients(i);
    }
    given_[static_cast<size_t>(i)].push_back(std::move(slot));
  }

  void record(OpenJob& job, int64_t index, const Workers& late) const {
    for (size_t i = 0; i < given_.size(); ++i) {
      if (late[i]) continue;
      for (const Slot& slot : given_[i]) {
        if (slot.job != index) continue;
        if (slot.group == Slot::kAlone)
          job.own[i][static_cast<size_t>(slot.own_chunk)] = 1;
        else
          job.groups[static_cast<size_t>(slot.group)][i] = 1;
      }
    }
  }

  bool is_complete(const OpenJob& job) const {
    const auto all = [](const Workers& have) { return std::find(have.begin(), have.end(), 0) == have.end(); };
    return std::all_of(job.own.begin(), job.own.end(), all) &&
           std::all_of(job.groups.begin(), job.groups.end(), [&](const Workers& have) { return rest_->decodes(have); });
  }

  bool is_bursty(const Workers& late) const {
    Workers any = late;
    for (const Workers& before : late_before_)
      for (size_t i = 0; i < any.size(); ++i) any[i] |= before[i];
    if (std::count(any.begin(), any.end(), 1) > o_.lambda) return false;
    for (size_t ago = static_cast<size_t>(o_.b); ago <= late_before_.size(); ++ago)  // rounds r - W + 1 .. r - B
      for (size_t i = 0; i < late.size(); ++i)
        if (late[i] && late_before_[late_before_.size() - ago][i]) return false;
    return true;
  }

  const Multiplexed o_;
  const std::unique_ptr<sync::GradientCode> rest_;
  std::vector<Chunk> chunks_;
  int64_t units_ = 0;
  int64_t round_ = -1;
  std::map<int64_t, OpenJob> open_;
  std::vector<Task> given_;          // in this round, by worker
  std::deque<Workers> late_before_;  // in the last W - 1 rounds, oldest first
};

}  // namespace

std::unique_ptr<Scheme> make_multiplexed(const Multiplexed& options, std::unique_ptr<sync::GradientCode> rest) {
  return std::make_unique<MultiplexedScheme>(options, std::move(rest));
}

}  // namespace cairn::federate
