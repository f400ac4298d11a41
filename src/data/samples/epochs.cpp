#include "data/samples/epochs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace cairn::data {
namespace {

// Intersects the streams with facts.from. Streams without samples in it are dropped, with their weights.
std::vector<Subset> divide(SamplerFacts& facts) {
  if (facts.streams.size() <= 1) {
    facts.streams = {{{0, facts.from.size()}, 1}};
    return {facts.from};
  }
  std::vector<Subset> parts;
  std::vector<Stream> kept;
  for (const Stream& stream : facts.streams) {
    Subset part = facts.from.among(stream.samples);
    if (part.size() == 0) continue;
    parts.push_back(std::move(part));
    kept.push_back(stream);
  }
  facts.streams = std::move(kept);
  int64_t together = 0;
  for (const Subset& part : parts) together += part.size();
  CAIRN_CHECK(together == facts.from.size(), "streams hold {} of {} samples", together, facts.from.size());
  return parts;
}

Mixture mix(const SamplerFacts& facts) {
  std::vector<double> weights;
  for (const Stream& stream : facts.streams) weights.push_back(stream.weight);
  return Mixture(weights, facts.seed);
}

}  // namespace

Epochs::Epochs(SamplerFacts facts) : facts_(std::move(facts)), streams_(divide(facts_)), mixture_(mix(facts_)) {
  if (facts_.epochs > 0) {
    const double samples = facts_.epochs * static_cast<double>(facts_.from.size());
    facts_.steps = static_cast<int64_t>(std::ceil(samples / static_cast<double>(facts_.global_batch)));
  }
  CAIRN_CHECK(facts_.from.size() >= 1 && facts_.global_batch >= 1 && facts_.steps >= 1, "{} samples, global batch {}, {} steps",
              facts_.from.size(), facts_.global_batch, facts_.steps);
}

double Epochs::epoch(int64_t step) const { return static_cast<double>(first_draw(step)) / static_cast<double>(facts_.from.size()); }

double Epochs::progress(int64_t step) const { return std::clamp(static_cast<double>(step) / static_cast<double>(facts_.steps), 0.0, 1.0); }

std::vector<int64_t> Epochs::positions(int64_t step) const {
  std::vector<int64_t> positions;
  for (int64_t stream = 0; stream < streams(); ++stream) positions.push_back(mixture_.drawn(stream, first_draw(step)));
  return positions;
}

void check_one_pool(const SamplerFacts& facts, const char* sampler) {
  if (facts.streams.size() > 1)
    base::fail_input("data.weights: data.sampler = {} draws equally from all samples. Leave the weights out, or use data.sampler = shuffled.",
                     sampler);
}

Epochs::Place Epochs::place(int64_t draw) const {
  const Mixture::Draw at = mixture_.at(draw);
  return {at.stream, at.number / size(at.stream), at.number % size(at.stream)};
}

}  // namespace cairn::data
