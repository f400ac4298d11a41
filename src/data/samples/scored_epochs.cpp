#include "data/samples/scored_epochs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/random.h"
#include "base/random/permutation.h"
#include "data/samples/epochs.h"
#include "data/samples/sample_scores.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

class ScoredEpochs final : public Sampler {
 public:
  ScoredEpochs(const SamplerFacts& facts, int64_t epoch_most, ChooseEpoch choose)
      : facts_(facts),
        choose_(std::move(choose)),
        epochs_(static_cast<int64_t>(facts.epochs)),
        steps_most_(epoch_most / facts.global_batch),
        scores_(facts_.from),
        at_start_(scores_.scores().clone()),
        position_(at::zeros({3}, at::kLong)) {
    make_choice();
  }

  std::vector<int64_t> ids(int64_t step) const override { return draw(step).ids; }

  Draw draw(int64_t step) const override {
    CAIRN_CHECK(step >= first_step() && step < known(), "asked for step {}, and the epoch has steps {} to {}", step, first_step(),
                known() - 1);
    const auto batch = static_cast<size_t>(facts_.global_batch), first = static_cast<size_t>(step - first_step()) * batch;
    Draw draw;
    for (size_t i = first; i < first + batch; ++i) draw.ids.push_back(facts_.from.id(choice_.places[i]));
    if (!choice_.weights.empty())
      draw.weights.assign(choice_.weights.begin() + static_cast<std::ptrdiff_t>(first),
                          choice_.weights.begin() + static_cast<std::ptrdiff_t>(first + batch));
    return draw;
  }

  double progress(int64_t step) const override { return std::clamp(epoch(step) / static_cast<double>(epochs_), 0.0, 1.0); }
  double epoch(int64_t step) const override {
    return static_cast<double>(epoch_now()) + static_cast<double>(step - first_step()) / static_cast<double>(epoch_steps());
  }
  std::vector<int64_t> positions(int64_t step) const override { return {step * facts_.global_batch}; }
  int64_t known() const override { return first_step() + epoch_steps(); }
  int64_t steps() const override { return known() + (epochs_ - 1 - epoch_now()) * steps_most_; }

  void advance() override {
    CAIRN_CHECK(epoch_now() + 1 < epochs_, "epoch {} is the last", epoch_now());
    int64_t* const position = position_.mutable_data_ptr<int64_t>();
    position[1] = known();
    position[0] += 1;
    at_start_.copy_(scores_.scores());
    position[2] = scores_.not_finite();
    make_choice();
  }

  void feedback(const SampleFeedback& losses) override { scores_.record(losses); }
  uint64_t hash() const override { return hash_; }

  std::vector<std::pair<std::string, double>> metrics(int64_t step) const override {
    if (step != first_step()) return {};
    const auto drawn = static_cast<double>(known() * facts_.global_batch), all = static_cast<double>(scores_.size());
    const auto unseen = std::count_if(start(), start() + scores_.size(), [](float score) { return std::isnan(score); });
    std::vector<std::pair<std::string, double>> metrics{{"epoch", static_cast<double>(epoch_now())},
                                                        {"kept_share", static_cast<double>(choice_.places.size()) / all},
                                                        {"kept_share_so_far", drawn / (all * static_cast<double>(epoch_now() + 1))},
                                                        {"unseen", static_cast<double>(unseen)},
                                                        {"not_finite", static_cast<double>(position_.const_data_ptr<int64_t>()[2])}};
    metrics.insert(metrics.end(), choice_.metrics.begin(), choice_.metrics.end());
    return metrics;
  }

  mesh::NamedTensors state() override {
    return {{"scores", scores_.scores()}, {"scores_at_start", at_start_}, {"position", position_}, {"not_finite", scores_.bad_losses()}};
  }
  void restored() override { make_choice(); }

 private:
  int64_t epoch_now() const { return position_.const_data_ptr<int64_t>()[0]; }
  int64_t first_step() const { return position_.const_data_ptr<int64_t>()[1]; }
  int64_t epoch_steps() const { return static_cast<int64_t>(choice_.places.size()) / facts_.global_batch; }
  const float* start() const { return at_start_.const_data_ptr<float>(); }

  void make_choice() {
    choice_ = choose_(epoch_now(), {start(), static_cast<size_t>(scores_.size())});
    const size_t whole = choice_.places.size() - choice_.places.size() % static_cast<size_t>(facts_.global_batch);
    CAIRN_CHECK(whole > 0, "an epoch of {} samples, and a batch has {}", choice_.places.size(), facts_.global_batch);
    choice_.places.resize(whole);
    if (!choice_.weights.empty()) choice_.weights.resize(whole);
    hash_ = base::checksum(std::as_bytes(std::span(choice_.places))) ^ (base::checksum(std::as_bytes(std::span(choice_.weights))) >> 1) ^
            static_cast<uint64_t>(first_step());
  }

  const SamplerFacts facts_;
  const ChooseEpoch choose_;
  const int64_t epochs_, steps_most_;
  SampleScores scores_;
  at::Tensor at_start_;  // the scores at the beginning of the epoch
  at::Tensor position_;  // int64 [3]: the epoch, its first step, losses that were not finite until then
  EpochChoice choice_;
  uint64_t hash_ = 0;
};

}  // namespace

std::unique_ptr<Sampler> make_scored_epochs(const SamplerFacts& facts, const char* name, int64_t epoch_most, ChooseEpoch choose) {
  constexpr double kEpochsLeast = 3;
  check_one_pool(facts, name);
  if (facts.epochs < kEpochsLeast || facts.epochs != std::floor(facts.epochs))
    base::fail_input("train.epochs = {}: data.sampler = {} decides by the losses of the epochs before. Use a whole number from {} on.",
                     facts.epochs, name, kEpochsLeast);
  if (facts.options.stop_at <= 0) base::fail_input("sampler.stop_at = {}: must be above 0 and at most 1.", facts.options.stop_at);
  if (epoch_most < facts.global_batch)
    base::fail_input("train.global_batch = {}: an epoch of {} samples has no whole batch. Lower it, or sampler.prune.", facts.global_batch,
                     epoch_most);
  return std::make_unique<ScoredEpochs>(facts, epoch_most, std::move(choose));
}

int64_t first_full_epoch(const SamplerFacts& facts) { return static_cast<int64_t>(std::ceil(facts.options.stop_at * facts.epochs)); }

double prune_share(const SamplerOptions& options, double usual) {
  if (options.prune < 0 && options.prune != -1)
    base::fail_input("sampler.prune = {}: must be from 0 to 0.9, or -1 for the method's own.", options.prune);
  return options.prune < 0 ? usual : options.prune;
}

int64_t kept_of(double prune, int64_t samples) {
  constexpr double kRounding = 1e-12;
  return static_cast<int64_t>((1 - prune) * static_cast<double>(samples) * (1 + kRounding));
}

std::vector<int64_t> random_places(int64_t samples, uint64_t seed, const char* purpose, int64_t epoch) {
  constexpr int64_t kGrain = 1 << 14;  // places of a thread
  const base::Permutation order(static_cast<uint64_t>(samples),
                                base::Random(seed).for_purpose(purpose).for_index(static_cast<uint64_t>(epoch)));
  std::vector<int64_t> places(static_cast<size_t>(samples));
  at::parallel_for(0, samples, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) places[static_cast<size_t>(i)] = static_cast<int64_t>(order.at(static_cast<uint64_t>(i)));
  });
  return places;
}

}  // namespace cairn::data
