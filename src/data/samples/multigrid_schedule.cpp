// T0, S0, B0: frames, size and batch of the full shape. A batch of shape (B, T, S) costs B T S^2, which stays about constant:
//
//   long cycle    (T, S) = (T0/4, S0/sqrt2), (T0/2, S0/sqrt2), (T0/2, S0), (T0, S0)   in each stage of the learning rate
//   its batch     b = round(T0 S0^2 / (T S^2))                                          8, 4, 2, 1 times B0
//   short cycle   S = S0/2, S0/sqrt2, S in turn, from batch to batch
//   its batch     b round((S / s)^2) for size s                                         mean over the cycle: a
//
// Lengths in epochs, with E = train.epochs, stages at e_1 .. e_n, d_s the length of stage s:
//
//   shape i in stage s     d_s a_i / sum(a)                every shape has as many steps
//   saving                 e_n / sum of (epochs / a)
//   after e_n              (E - e_n) / saving a_full       fine-tuning at the full shape
//   all                    times epoch_factor E / sum, summed up, and the ends rounded; shapes without an epoch are left out
//
// The rate is factor^stage b of the long cycle's shape; in the second half of the fine-tuning it falls once more.
#include "data/samples/multigrid_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/check.h"

namespace cairn::data {
namespace {

struct GridFactors {
  double frames, size;
};

constexpr double kHalfArea = std::numbers::sqrt2 / 2;
constexpr GridFactors kLongCycle[] = {{0.25, kHalfArea}, {0.5, kHalfArea}, {0.5, 1}, {1, 1}};
constexpr GridFactors kLongCycleOfImages[] = {{1, 0.5}, {1, kHalfArea}, {1, 1}};
constexpr double kShortCycle[] = {0.5, kHalfArea};

int64_t rounded(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

std::vector<GridFactors> long_cycle(const GridFacts& facts) {
  if (!facts.options.long_cycle) return {{1, 1}};
  if (facts.frames == 1) return {std::begin(kLongCycleOfImages), std::end(kLongCycleOfImages)};
  return {std::begin(kLongCycle), std::end(kLongCycle)};
}

int64_t frames_of(const GridFacts& facts, double factor) {
  const double frames = static_cast<double>(facts.frames) * factor;
  if (frames != std::floor(frames))
    base::fail_input(
        "clips.frames = {}: the long cycle of data.sampler = multigrid takes a quarter and a half of the frames. Choose a multiple of 4, "
        "or set sampler.long_cycle = false.",
        facts.frames);
  return static_cast<int64_t>(frames);
}

GridPhase phase_of(const GridFacts& facts, const GridFactors& factors) {
  const auto full = static_cast<double>(facts.size);
  GridPhase phase;
  phase.base = {.frames = frames_of(facts, factors.frames), .size = rounded(full * factors.size)};
  const auto size = static_cast<double>(phase.base.size);
  phase.base.batch_factor =
      rounded(static_cast<double>(facts.frames) * full * full / (static_cast<double>(phase.base.frames) * size * size));
  if (facts.options.short_cycle)
    for (const double factor : kShortCycle) {
      const int64_t smaller = std::min(rounded(full * factor), phase.base.size);
      const double ratio = size / (full * factor);
      phase.cycle.push_back({phase.base.frames, smaller, phase.base.batch_factor * std::max<int64_t>(1, rounded(ratio * ratio))});
    }
  phase.cycle.push_back(phase.base);
  return phase;
}

// The ends of all stages: sampler.stages, then the end of the run.
std::vector<double> stage_ends(const GridFacts& facts) {
  std::vector<double> ends = facts.options.stages;
  for (size_t i = 0; i < ends.size(); ++i)
    if (ends[i] >= facts.epochs || ends[i] <= (i == 0 ? 0 : ends[i - 1]))
      base::fail_input("sampler.stages: {} must lie after the stage before it and before train.epochs = {}. Put the stages in order.",
                       ends[i], facts.epochs);
  ends.push_back(facts.epochs);
  return ends;
}

// Phases with their lengths in epochs.
using Lengths = std::vector<std::pair<GridPhase, double>>;

double rate_of(const GridFacts& facts, int64_t stage, const GridShape& base) {
  return std::pow(facts.options.stage_factor, static_cast<double>(stage)) *
         (facts.options.scale_lr ? static_cast<double>(base.batch_factor) : 1.0);
}

// Without a long cycle each stage is one phase, fine-tuning included.
Lengths lengths_of_stages(const GridFacts& facts, const std::vector<double>& ends) {
  Lengths all;
  for (size_t stage = 0; stage < ends.size(); ++stage) {
    GridPhase phase = phase_of(facts, {1, 1});
    phase.stage = static_cast<int64_t>(stage);
    phase.rate_factor = rate_of(facts, phase.stage, phase.base);
    all.emplace_back(std::move(phase), ends[stage] - (stage == 0 ? 0 : ends[stage - 1]));
  }
  return all;
}

Lengths lengths_of_long_cycle(const GridFacts& facts, const std::vector<double>& ends) {
  std::vector<GridPhase> shapes;
  double sum = 0;
  for (const GridFactors& factors : long_cycle(facts)) {
    shapes.push_back(phase_of(facts, factors));
    sum += shapes.back().mean_batch_factor();
  }
  const size_t stages = std::max<size_t>(ends.size() - 1, 1);  // without sampler.stages one stage takes the whole run
  Lengths all;
  double baseline_steps = 0;
  for (size_t stage = 0; stage < stages; ++stage)
    for (GridPhase phase : shapes) {
      const double epochs = (ends[stage] - (stage == 0 ? 0 : ends[stage - 1])) * phase.mean_batch_factor() / sum;
      baseline_steps += epochs / phase.mean_batch_factor();
      phase.stage = static_cast<int64_t>(stage);
      phase.rate_factor = rate_of(facts, phase.stage, phase.base);
      all.emplace_back(std::move(phase), epochs);
    }
  if (ends.size() == 1) return all;
  GridPhase last = shapes.back();
  const double saving = ends[stages - 1] / baseline_steps;
  last.stage = static_cast<int64_t>(stages);
  last.rate_factor = rate_of(facts, last.stage - 1, last.base);
  last.later_rate_factor = rate_of(facts, last.stage, last.base);
  const double epochs = (ends.back() - ends[stages - 1]) / saving * last.mean_batch_factor();
  all.emplace_back(std::move(last), epochs);
  return all;
}

}  // namespace

double GridPhase::mean_batch_factor() const {
  double sum = 0;
  for (const GridShape& shape : cycle) sum += static_cast<double>(shape.batch_factor);
  return sum / static_cast<double>(cycle.size());
}

std::vector<GridPhase> multigrid_schedule(const GridFacts& facts) {
  if (facts.epochs <= 0)
    base::fail_input("train.epochs = {}: data.sampler = multigrid plans a run by its epochs. Set the epochs of training at the full shape.",
                     facts.epochs);
  const std::vector<double> ends = stage_ends(facts);
  Lengths lengths = facts.options.long_cycle ? lengths_of_long_cycle(facts, ends) : lengths_of_stages(facts, ends);
  double sum = 0, done = 0;
  for (const auto& [phase, epochs] : lengths) sum += epochs;
  if (const int64_t epochs = rounded(facts.options.epoch_factor * facts.epochs); epochs < static_cast<int64_t>(lengths.size()))
    base::fail_input(
        "train.epochs = {}: the schedule of data.sampler = multigrid has {} shapes, and {} epochs are fewer. Use more epochs, or fewer "
        "sampler.stages.",
        facts.epochs, lengths.size(), epochs);
  std::vector<GridPhase> phases;
  for (auto& [phase, epochs] : lengths) {
    done += epochs * facts.options.epoch_factor * facts.epochs / sum;
    phase.first_epoch = phases.empty() ? 0 : phases.back().end_epoch;
    phase.end_epoch = rounded(done);
    phase.fall_epoch = phase.end_epoch;
    if (phase.end_epoch > phase.first_epoch) phases.push_back(std::move(phase));
  }
  if (GridPhase& last = phases.back(); facts.options.long_cycle && ends.size() > 1)
    last.fall_epoch = (last.first_epoch + last.end_epoch) / 2;
  return phases;
}

SampleShape smallest_shape(const GridFacts& facts) {
  SampleShape smallest{.frames = facts.frames, .size = facts.size};
  for (const GridFactors& factors : long_cycle(facts))
    for (const GridShape& shape : phase_of(facts, factors).cycle) {
      smallest.frames = std::min(smallest.frames, shape.frames);
      smallest.size = std::min(smallest.size, shape.size);
    }
  return smallest;
}

}  // namespace cairn::data
