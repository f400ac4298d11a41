#include "model/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/decode_row.h"

namespace cairn::model {
namespace {

// Ties go to the later one, as in the sort of `transformers`.
bool likelier(const std::pair<int32_t, double>& a, const std::pair<int32_t, double>& b) {
  return a.second != b.second ? a.second > b.second : a.first > b.first;
}

}  // namespace

void check(const SamplingOptions& o) {
  if (!(o.temperature >= 0) || std::isinf(o.temperature))
    base::fail_input("--temperature {}: must be a number from 0 (always the likeliest) up", o.temperature);
  if (o.top_k < 0) base::fail_input("--top-k {}: must be at least 1, or 0 for all", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1)) base::fail_input("--top-p {}: must be above 0 and at most 1", o.top_p);
  if (!(o.min_p >= 0 && o.min_p <= 1)) base::fail_input("--min-p {}: must be between 0 and 1", o.min_p);
  if (!(o.repetition_penalty > 0) || std::isinf(o.repetition_penalty))
    base::fail_input("--repetition-penalty {}: must be above 0; 1 changes nothing, more discourages repeating", o.repetition_penalty);
}

std::span<const float> TokenSampler::allowed(std::span<const float> logits) const {
  return vocab_ == 0 ? logits : logits.first(std::min(logits.size(), static_cast<size_t>(vocab_)));
}

// Each id once, however often it was seen.
std::span<const float> TokenSampler::penalized(std::span<const float> logits, std::span<const int32_t> seen) {
  if (options_.repetition_penalty == 1) return logits;
  scores_.assign(logits.begin(), logits.end());
  met_.assign(logits.size(), 0);
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (int32_t id : seen) {
    if (static_cast<size_t>(id) >= logits.size()) continue;
    char& met = met_[static_cast<size_t>(id)];
    if (met != 0) continue;
    met = 1;
    float& score = scores_[static_cast<size_t>(id)];
    score = score < 0 ? score * penalty : score / penalty;
  }
  return scores_;
}

// Keeps the k highest scores and ties with the last of them, divided by the temperature.
void TokenSampler::keep_top_k(std::span<const float> logits) {
  candidates_.clear();
  const auto k = static_cast<size_t>(options_.top_k);
  double lowest = -std::numeric_limits<double>::infinity();
  if (k > 0 && k < logits.size()) {
    for (float logit : logits) candidates_.emplace_back(0, logit);
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(k - 1), candidates_.end(), likelier);
    lowest = candidates_[k - 1].second;
    candidates_.clear();
  }
  for (size_t id = 0; id < logits.size(); ++id)
    if (logits[id] >= lowest) candidates_.emplace_back(static_cast<int32_t>(id), logits[id] / options_.temperature);
}

// Softmax.
void TokenSampler::normalize() {
  double highest = -std::numeric_limits<double>::infinity(), total = 0;
  for (const auto& [id, score] : candidates_) highest = std::max(highest, score);
  for (auto& [id, score] : candidates_) total += score = std::exp(score - highest);
  for (auto& [id, score] : candidates_) score /= total;
}

// Keeps a token while the more likely ones have not reached top_p; the most likely one is always kept.
void TokenSampler::keep_top_p() {
  if (options_.top_p >= 1) return;
  const auto less = [](const auto& a, const auto& b) { return likelier(b, a); };
  std::make_heap(candidates_.begin(), candidates_.end(), less);
  auto rest = candidates_.end();
  for (double reached = 0; rest != candidates_.begin() && reached < options_.top_p; --rest) {
    std::pop_heap(candidates_.begin(), rest, less);
    reached += (rest - 1)->second;
  }
  candidates_.erase(candidates_.begin(), rest);
  double total = 0;
  for (const auto& [id, chance] : candidates_) total += chance;
  for (auto& [id, chance] : candidates_) chance /= total;
}

void TokenSampler::keep_min_p() {
  if (options_.min_p <= 0) return;
  double highest = 0, total = 0;
  for (const auto& [id, chance] : candidates_) highest = std::max(highest, chance);
  std::erase_if(candidates_, [&](const auto& one) { return one.second < options_.min_p * highest; });
  for (const auto& [id, chance] : candidates_) total += chance;
  for (auto& [id, chance] : candidates_) chance /= total;
}

const TokenSampler::Candidates& TokenSampler::candidates(std::span<const float> logits, std::span<const int32_t> seen) {
  const std::span<const float> scores = penalized(allowed(logits), seen);
  if (options_.temperature == 0) {
    candidates_.assign(1, {static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin()), 1.0});
    return candidates_;
  }
  keep_top_k(scores);
  normalize();
  keep_top_p();
  keep_min_p();
  std::sort(candidates_.begin(), candidates_.end());  // by id: the order of the draw
  return candidates_;
}

TokenSampler::SampledToken TokenSampler::sample(std::span<const float> logits, std::span<const int32_t> seen, double uniform) {
  const kernels::RowSummary summary = kernels::summarize_row(logits.data(), static_cast<int64_t>(logits.size()));
  if (!std::isfinite(summary.log_sum_exp))
    throw Error(Error::Kind::diverged, "the model's logits are not finite: its weights hold infinities or NaN");
  auto id = static_cast<int32_t>(summary.largest);
  if (const std::span<const float> some = allowed(logits); static_cast<size_t>(id) >= some.size())
    id = static_cast<int32_t>(std::max_element(some.begin(), some.end()) - some.begin());
  if (options_.temperature != 0 || options_.repetition_penalty != 1) {
    const Candidates& left = candidates(logits, seen);
    size_t at = 0;
    while (at + 1 < left.size() && uniform >= left[at].second) uniform -= left[at++].second;
    id = left[at].first;
  }
  return {id, static_cast<float>(logits[static_cast<size_t>(id)] - summary.log_sum_exp)};
}

}  // namespace cairn::model
