// SeTa: a window over groups of samples by loss (Zhou et al., arXiv:2503.13385). Epoch e of E:
//
//   keep = floor((1 - r) N) samples at random                                  r = sampler.prune
//   e = 0, or e >= stop_at E: all of keep                                      (no losses yet; annealing)
//   else K groups of keep by their last loss, the easiest first                (k-means, loss_groups.h; K = sampler.groups)
//        W = round(alpha K), start = e mod (K - W + 1)                         alpha = sampler.window
//        groups start .. start + W - 1                                         the window slides to the hardest group and begins again
//
// A sample without a loss so far has the mean of the others, or their largest (sampler.unseen). No weights.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "base/check.h"
#include "data/samples/loss_groups.h"
#include "data/samples/scored_epochs.h"

namespace cairn::data {
namespace {

constexpr double kSetaPrune = 0;

struct Seta {
  SamplerFacts facts;
  int64_t keep = 0;
  int64_t groups = 1;
  int64_t window = 1;  // groups
};

float score_of_unseen(std::span<const float> scores, UnseenScore how) {
  double sum = 0;
  float largest = -std::numeric_limits<float>::infinity();
  int64_t known = 0;
  for (const float score : scores) {
    if (std::isnan(score)) continue;
    sum += static_cast<double>(score);
    largest = std::max(largest, score);
    ++known;
  }
  if (known == 0) return 0;
  return how == UnseenScore::max ? largest : static_cast<float>(sum / static_cast<double>(known));
}

// Groups start .. start + window - 1, and their neighbours where these have too few samples for a batch.
std::pair<int64_t, int64_t> window_of(const Seta& method, const LossGroups& found, int64_t epoch) {
  int64_t first = epoch % (method.groups - method.window + 1), end = first + method.window;
  const auto samples = [&] { return std::accumulate(found.sizes.begin() + first, found.sizes.begin() + end, int64_t{0}); };
  while (samples() < method.facts.global_batch && (first > 0 || end < method.groups)) {
    if (end < method.groups) ++end;
    if (samples() < method.facts.global_batch && first > 0) --first;
  }
  return {first, end};
}

EpochChoice choose_window(const Seta& method, int64_t epoch, std::span<const float> scores) {
  EpochChoice choice{.places = random_places(static_cast<int64_t>(scores.size()), method.facts.seed, "data.seta", epoch)};
  choice.places.resize(static_cast<size_t>(method.keep));
  const bool seen = std::any_of(scores.begin(), scores.end(), [](float score) { return !std::isnan(score); });
  if (epoch == 0 || !seen || epoch >= first_full_epoch(method.facts)) return choice;
  const float unseen = score_of_unseen(scores, method.facts.options.unseen);
  std::vector<float> losses;
  losses.reserve(choice.places.size());
  for (const int64_t place : choice.places) {
    const float score = scores[static_cast<size_t>(place)];
    losses.push_back(std::isnan(score) ? unseen : score);
  }
  const LossGroups found = group_losses(losses, method.groups);
  const auto [first, end] = window_of(method, found, epoch);
  std::vector<int64_t> places;
  for (size_t i = 0; i < choice.places.size(); ++i)
    if (found.group[i] >= first && found.group[i] < end) places.push_back(choice.places[i]);
  choice.places = std::move(places);
  choice.metrics = {{"window_first", static_cast<double>(first)}, {"window_groups", static_cast<double>(end - first)}};
  for (size_t k = 0; k < found.sizes.size(); ++k) {
    choice.metrics.emplace_back(fmt::format("group_{}_size", k), static_cast<double>(found.sizes[k]));
    choice.metrics.emplace_back(fmt::format("group_{}_loss", k), found.centers[k]);
  }
  return choice;
}

}  // namespace

std::unique_ptr<Sampler> make_seta(const SamplerFacts& facts) {
  const SamplerOptions& o = facts.options;
  const double prune = prune_share(o, kSetaPrune);
  const Seta method{.facts = facts,
                    .keep = kept_of(prune, facts.from.size()),
                    .groups = o.groups,
                    .window = std::llround(o.window * static_cast<double>(o.groups))};
  if (method.window == 0)
    base::fail_input("sampler.window = {}: it selects none of sampler.groups = {}. Raise one of them.", o.window, o.groups);
  if (method.groups >= method.keep)
    base::fail_input("sampler.groups = {}: only {} samples are kept. Use fewer groups, or a smaller sampler.prune.", o.groups, method.keep);
  return make_scored_epochs(facts, "seta", method.keep,
                            [method](int64_t epoch, std::span<const float> scores) { return choose_window(method, epoch, scores); });
}

}  // namespace cairn::data
