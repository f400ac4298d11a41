#include "evaluate/ensemble/posterior.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace cairn::evaluate {
namespace {

constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

// log-sum-exp, stable for any length of the sequence.
double log_sum(std::span<const double> logs) {
  const double most = *std::max_element(logs.begin(), logs.end());
  if (most == kNegativeInfinity) return kNegativeInfinity;
  double sum = 0;
  for (const double one : logs) sum += std::exp(one - most);
  return most + std::log(sum);
}

}  // namespace

void check(const MixtureOptions& options, int64_t experts) {
  if (static_cast<int64_t>(options.prior.size()) != experts)
    base::fail_input("a prior of {} experts for an ensemble of {}", options.prior.size(), experts);
  double sum = 0;
  for (const double one : options.prior) {
    if (!std::isfinite(one) || one < 0) base::fail_input("a prior of {}: each must be a number and at least 0", one);
    sum += one;
  }
  if (!(sum > 0)) base::fail_input("a prior of 0 for every expert: at least one must be more");
  if (options.top_k < 0 || options.top_k > experts) base::fail_input("top_k = {}: there are {} experts", options.top_k, experts);
  if (options.refresh < 1) base::fail_input("refresh = {}: must be at least 1", options.refresh);
}

std::vector<double> log_prior(const MixtureOptions& options) {
  std::vector<double> logs;
  for (const double one : options.prior) logs.push_back(std::log(one));
  return log_normalised(logs);
}

std::vector<double> log_normalised(std::span<const double> logs) {
  const double sum = log_sum(logs);
  CAIRN_CHECK(sum != kNegativeInfinity, "no expert is left of {}", logs.size());
  std::vector<double> result;
  for (const double one : logs) result.push_back(one - sum);
  return result;
}

std::vector<double> log_weights(const MixtureOptions& options, std::span<const double> at_refresh, std::span<const double> now) {
  if (options.top_k == 0 || options.top_k == static_cast<int64_t>(now.size())) return log_normalised(now);
  std::vector<size_t> order(now.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return at_refresh[a] > at_refresh[b]; });
  std::vector<double> kept(now.size(), kNegativeInfinity);
  for (size_t i = 0; i < static_cast<size_t>(options.top_k); ++i) kept[order[i]] = now[order[i]];
  return log_normalised(kept);
}

Posterior::Posterior(MixtureOptions options) : options_(std::move(options)) {
  check(options_, static_cast<int64_t>(options_.prior.size()));
  log_w_ = at_refresh_ = log_prior(options_);
  log_q_ = log_weights(options_, at_refresh_, log_w_);
}

double Posterior::mixed(std::span<const double> log_p) const {
  std::vector<double> logs;
  for (size_t j = 0; j < log_p.size(); ++j) logs.push_back(log_q_[j] + log_p[j]);
  return log_sum(logs);
}

void Posterior::read(std::span<const double> log_p) {
  ++read_;
  if (!options_.average)
    for (size_t j = 0; j < log_w_.size(); ++j) log_w_[j] += log_p[j];
  if (read_ % options_.refresh == 0) at_refresh_ = log_w_;
  log_q_ = log_weights(options_, at_refresh_, log_w_);
}

Mixed mix(const MixtureOptions& options, const std::vector<std::vector<double>>& log_p) {
  CAIRN_CHECK(log_p.size() == options.prior.size(), "{} experts and a prior of {}", log_p.size(), options.prior.size());
  Posterior posterior(options);
  Mixed mixed;
  std::vector<double> now(log_p.size());
  for (size_t t = 0; t < log_p.front().size(); ++t) {
    for (size_t j = 0; j < log_p.size(); ++j) now[j] = log_p[j][t];
    mixed.log_q.push_back(posterior.log_q());
    mixed.log_p.push_back(posterior.mixed(now));
    posterior.read(now);
  }
  mixed.log_q_end = posterior.log_q();
  return mixed;
}

CachedPrior::CachedPrior(int64_t experts, double decay, bool by_power)
    : decay_(decay), by_power_(by_power), prior_(static_cast<size_t>(experts), 1.0 / static_cast<double>(experts)) {
  if (!(decay >= 0 && decay < 1)) base::fail_input("decay = {}: must be at least 0 and less than 1", decay);
}

void CachedPrior::add(std::span<const double> log_p) {
  CAIRN_CHECK(log_p.size() == prior_.size(), "{} sums for {} experts", log_p.size(), prior_.size());
  ++added_;
  std::vector<double> logs;
  for (size_t j = 0; j < prior_.size(); ++j) logs.push_back(std::log(prior_[j]) + log_p[j]);
  const std::vector<double> posterior = log_normalised(logs);
  const double kept = by_power_ ? std::pow(decay_, static_cast<double>(added_)) : decay_;
  double sum = 0;
  for (size_t j = 0; j < prior_.size(); ++j) sum += prior_[j] = kept * prior_[j] + std::exp(posterior[j]);
  for (double& one : prior_) one /= sum;
}

}  // namespace cairn::evaluate
