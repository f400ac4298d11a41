// Clips whose shape and batch change on a schedule (multigrid_schedule.h), at equal cost per step. An epoch visits every clip once, in an
// order keyed by (seed, epoch), in batches of the short cycle, which begins anew with each epoch; clips that do not fill its last batch are
// left out. So the draw of a step is a function of the step alone.
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/random.h"
#include "base/random/permutation.h"
#include "data/sampler.h"
#include "data/samples/multigrid_schedule.h"

namespace cairn::data {
namespace {

// A phase and the batches of its epochs.
struct PlannedPhase {
  GridPhase phase;
  std::vector<int64_t> first_in_cycle;  // of the batches of the cycle: their first sample; then the samples of a cycle
  int64_t batches = 0;                  // of an epoch
  int64_t first_step = 0, first_sample = 0;

  int64_t cycle() const { return static_cast<int64_t>(phase.cycle.size()); }
  // The samples of an epoch before one of its batches.
  int64_t samples_before(int64_t batch) const {
    return batch / cycle() * first_in_cycle.back() + first_in_cycle[static_cast<size_t>(batch % cycle())];
  }
  int64_t epochs() const { return phase.end_epoch - phase.first_epoch; }
};

PlannedPhase plan(const GridPhase& phase, int64_t global_batch, int64_t samples) {
  PlannedPhase planned{.phase = phase, .first_in_cycle = {0}};
  for (const GridShape& shape : phase.cycle)
    planned.first_in_cycle.push_back(planned.first_in_cycle.back() + shape.batch_factor * global_batch);
  planned.batches = samples / planned.first_in_cycle.back() * planned.cycle();
  while (planned.samples_before(planned.batches + 1) <= samples) ++planned.batches;
  if (planned.batches == 0)
    base::fail_input(
        "train.global_batch = {}: clips of {} frames of {} x {} come in batches of {}, and there are {} to train on. Use a smaller batch.",
        global_batch, phase.cycle.front().frames, phase.cycle.front().size, phase.cycle.front().size, planned.first_in_cycle[1], samples);
  return planned;
}

class Multigrid final : public Sampler {
 public:
  explicit Multigrid(const SamplerFacts& facts) : facts_(facts), random_(base::Random(facts.seed).for_purpose("data.multigrid")) {
    if (facts.shape.frames < 1)
      base::fail_input("data.sampler = multigrid: changes the shape of clips, and these data have none. Set data.kind = clips.");
    int64_t samples = 0;
    for (const GridPhase& phase :
         multigrid_schedule({.frames = facts.shape.frames, .size = facts.shape.size, .epochs = facts.epochs, .options = facts.options})) {
      PlannedPhase planned = plan(phase, facts.global_batch, facts.from.size());
      planned.first_step = steps_;
      planned.first_sample = samples;
      steps_ += planned.epochs() * planned.batches;
      samples += planned.epochs() * planned.samples_before(planned.batches);
      phases_.push_back(std::move(planned));
    }
  }

  std::vector<int64_t> ids(int64_t step) const override {
    const Place at = place(step);
    return in_order(random_.for_index(static_cast<uint64_t>(at.epoch)), at.of->samples_before(at.batch),
                    at.of->samples_before(at.batch + 1));
  }

  Draw draw(int64_t step) const override {
    const Place at = place(step);
    return {.ids = ids(step),
            .shape = sample_shape(at.of->phase.cycle[static_cast<size_t>(at.batch % at.of->cycle())]),
            .learning_rate_factor = at.of->phase.rate_factor_at(at.epoch)};
  }

  int64_t steps() const override { return steps_; }
  double progress(int64_t step) const override { return std::clamp(epoch(step) / static_cast<double>(epochs()), 0.0, 1.0); }

  double epoch(int64_t step) const override {
    const Place at = place(step);
    return static_cast<double>(at.epoch) + static_cast<double>(at.batch) / static_cast<double>(at.of->batches);
  }

  std::vector<int64_t> positions(int64_t step) const override {
    const Place at = place(step);
    return {at.of->first_sample + (at.epoch - at.of->phase.first_epoch) * at.of->samples_before(at.of->batches) +
            at.of->samples_before(at.batch)};
  }

  // Evenly over the epochs of a phase, its last one included.
  bool evaluates_after(int64_t steps) const override {
    const int64_t wanted = facts_.options.evaluations_per_shape;
    if (wanted == 0 || steps < 1 || steps > steps_) return false;
    const Place last = place(steps - 1);
    const int64_t apart = std::max<int64_t>(last.of->epochs() / wanted + 1, 1);
    return last.batch + 1 == last.of->batches && (last.of->phase.end_epoch - 1 - last.epoch) % apart == 0;
  }

  std::vector<Draw> norm_draws(int64_t steps) const override {
    std::vector<Draw> draws;
    if (!evaluates_after(steps)) return draws;
    const GridShape& shape = place(steps - 1).of->phase.base;
    const int64_t samples = shape.batch_factor * facts_.global_batch, rounds = facts_.from.size() / samples;
    for (int64_t i = 0; i < facts_.options.precise_norm_batches; ++i) {
      const base::Random order =
          random_.for_name("norm").for_index(static_cast<uint64_t>(steps)).for_index(static_cast<uint64_t>(i / rounds));
      draws.push_back({.ids = in_order(order, i % rounds * samples, (i % rounds + 1) * samples), .shape = sample_shape(shape)});
    }
    return draws;
  }

  std::string schedule_text() const override {
    std::string text =
        fmt::format("{:>5} {:>16} {:>6} {:>10} {:>12} {:>8}", "stage", "frames x size", "batch", "rate x", "epochs", "steps");
    for (const PlannedPhase& one : phases_) {
      const GridPhase& phase = one.phase;
      const auto row = [&](double rate, int64_t first, int64_t end) {
        if (first < end)
          text += fmt::format("\n{:>5} {:>16} {:>6} {:>10.4g} {:>12} {:>8}", phase.stage,
                              fmt::format("{} x {}", phase.base.frames, phase.base.size), phase.base.batch_factor * facts_.global_batch,
                              rate, fmt::format("{} - {}", first, end), (end - first) * one.batches);
      };
      row(phase.rate_factor, phase.first_epoch, phase.fall_epoch);
      row(phase.later_rate_factor, phase.fall_epoch, phase.end_epoch);
    }
    const double baseline = facts_.epochs * std::floor(static_cast<double>(facts_.from.size()) / static_cast<double>(facts_.global_batch));
    return text + fmt::format("\n{} epochs in {} steps; {:g} epochs at the full shape would take {:.0f}: {:.2f} times as many", epochs(),
                              steps_, facts_.epochs, baseline, baseline / static_cast<double>(steps_));
  }

 private:
  struct Place {
    const PlannedPhase* of;
    int64_t epoch = 0, batch = 0;  // of the run; of the epoch
  };

  Place place(int64_t step) const {
    CAIRN_CHECK(step >= 0, "step {}", step);  // steps beyond the schedule (after rollbacks) go on with its last phase
    const auto after = std::upper_bound(phases_.begin(), phases_.end(), step,
                                        [](int64_t wanted, const PlannedPhase& one) { return wanted < one.first_step; });
    const PlannedPhase& of = *std::prev(after);
    const int64_t inside = step - of.first_step;
    return {&of, of.phase.first_epoch + inside / of.batches, inside % of.batches};
  }

  int64_t epochs() const { return phases_.back().phase.end_epoch; }

  std::vector<int64_t> in_order(const base::Random& order, int64_t first, int64_t end) const {
    const base::Permutation places(static_cast<uint64_t>(facts_.from.size()), order);
    std::vector<int64_t> ids;
    ids.reserve(static_cast<size_t>(end - first));
    for (int64_t i = first; i < end; ++i) ids.push_back(facts_.from.id(static_cast<int64_t>(places.at(static_cast<uint64_t>(i)))));
    return ids;
  }

  SampleShape sample_shape(const GridShape& shape) const {
    return {.frames = shape.frames,
            .size = shape.size,
            .stride_max = facts_.shape.frames / shape.frames,
            .norm_samples = facts_.options.norm_samples};
  }

  SamplerFacts facts_;
  base::Random random_;
  std::vector<PlannedPhase> phases_;
  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Sampler> make_multigrid(const SamplerFacts& facts) { return std::make_unique<Multigrid>(facts); }

}  // namespace cairn::data
