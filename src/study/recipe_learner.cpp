#include "study/recipe_learner.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "data/subset.h"
#include "kernels/aten.h"
#include "study/sample_scores.h"
#include "train/build.h"
#include "train/train.h"

namespace cairn::study {
namespace {

comm::LocalOptions quiet_world() {
  comm::LocalOptions options;
  options.world = [](int) {
    comm::WorldOptions world;
    world.log = base::Log::quiet();
    return world;
  };
  return options;
}

class TrainingLearner final : public Learner {
 public:
  explicit TrainingLearner(RecipeLearner what) : what_(std::move(what)) {}

  Predictions predict(std::span<const int64_t> training, std::span<const int64_t> rows) const override {
    std::vector<int64_t> samples(training.begin(), training.end());
    std::sort(samples.begin(), samples.end());
    const uint64_t key = base::checksum(std::as_bytes(std::span(samples))) ^ (base::checksum(std::as_bytes(rows)) << 1);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    Predictions made = on_one_rank([&](comm::World& world, Predictions& into) {
      const data::Subset subset = data::Subset::of(samples);
      train::run(world, what_.recipe, start(), subset, stop(), {.at_end = [&](train::Job& job) { into = predictions(job, rows); }});
    });
    if (made.classes == 0 && made.losses.empty()) throw Error(Error::Kind::cancelled, "stopped; start the study again to go on");
    return known_.emplace(key, std::move(made)).first->second;
  }

  Predictions untrained(std::span<const int64_t> rows) const override {
    return on_one_rank([&](comm::World& world, Predictions& into) {
      const std::unique_ptr<train::Job> job = train::build(world, what_.recipe, start(), {});
      into = predictions(*job, rows);
    });
  }

 private:
  static Predictions predictions(train::Job& job, std::span<const int64_t> rows) {
    const bool classes = job.data.classes > 0;
    const SampleScores scores = score_samples(job, rows, {.probabilities = classes});
    Predictions found{.classes = job.data.classes, .losses = scores.loss, .targets = scores.targets};
    if (!classes) return found;
    const at::Tensor all = scores.probabilities.contiguous();
    found.log_probabilities.assign(all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel());
    return found;
  }

  Predictions on_one_rank(const std::function<void(comm::World&, Predictions&)>& body) const {
    Predictions found;
    for (const std::exception_ptr& error : comm::LocalNetwork(1, quiet_world()).run([&](comm::World& world) { body(world, found); }))
      if (error) std::rethrow_exception(error);
    return found;
  }

  train::Start start() const {
    return {.out = {}, .cache = what_.cache, .device = what_.device, .threads = what_.threads, .terminal = nullptr};
  }
  const base::Stop& stop() const { return what_.stop ? *what_.stop : never_; }

  RecipeLearner what_;
  base::Stop never_;
  mutable std::map<uint64_t, Predictions> known_;
};

}  // namespace

std::unique_ptr<Learner> make_recipe_learner(RecipeLearner what) { return std::make_unique<TrainingLearner>(std::move(what)); }

}  // namespace cairn::study
