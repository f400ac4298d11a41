// A sampler that decides each epoch by the losses so far: what seta and infobatch have in common.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/sampler.h"

namespace cairn::data {

// What an epoch trains on.
struct EpochChoice {
  std::vector<int64_t> places = {};  // of the subset, in the order in which they are drawn
  std::vector<float> weights = {};   // of each; empty: all weigh 1
  std::vector<std::pair<std::string, double>> metrics = {};
};

// Chooses epoch `epoch` (from 0) by the scores at its beginning: a pure function of both.
using ChooseEpoch = std::function<EpochChoice(int64_t epoch, std::span<const float> scores)>;

// The end of a choice that does not fill a batch is left out. State: the scores now and those at the beginning of the epoch, from which a
// restart within the epoch makes the same choice again. `epoch_most`: the most samples that an epoch has, for the estimate of steps().
std::unique_ptr<Sampler> make_scored_epochs(const SamplerFacts& facts, const char* name, int64_t epoch_most, ChooseEpoch choose);

// The first epoch without pruning (stop_at); 0 <= stop_at <= 1.
int64_t first_full_epoch(const SamplerFacts& facts);

// The share of the recipe, or else the method's own.
double prune_share(const SamplerOptions& options, double usual);

// floor((1 - prune) * samples), as decimal numbers have it: 10 of 100 at 0.9.
int64_t kept_of(double prune, int64_t samples);

// The places of `samples` in a random order, a new one for each (random, epoch).
std::vector<int64_t> random_places(int64_t samples, uint64_t seed, const char* purpose, int64_t epoch);

}  // namespace cairn::data
