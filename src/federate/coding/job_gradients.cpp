#include "federate/coding/job_gradients.h"

#include <utility>

#include "base/check.h"

namespace cairn::federate {

void JobGradients::add_own_sum(int64_t job, std::span<const float> gradient) {
  std::vector<double>& sum = open_[job].own;
  sum.resize(gradient.size());
  for (size_t i = 0; i < gradient.size(); ++i) sum[i] += static_cast<double>(gradient[i]);
}

void JobGradients::add_coded(int64_t job, int group, int worker, std::vector<float> gradient) {
  open_[job].coded[{group, worker}] = std::move(gradient);
}

JobGradients::Decoded JobGradients::decode(const JobDecoding& how) {
  const auto found = open_.find(how.job);
  CAIRN_CHECK(found != open_.end(), "nothing has come of job {}", how.job);
  Open& job = found->second;
  std::vector<double> sum = std::move(job.own);
  CAIRN_CHECK(how.own_sums == !sum.empty(), "own sums of job {}", how.job);
  for (size_t group = 0; group < how.weights.size(); ++group)
    for (size_t worker = 0; worker < how.weights[group].size(); ++worker) {
      const double weight = how.weights[group][worker];
      if (weight == 0) continue;
      const auto reply = job.coded.find({static_cast<int>(group), static_cast<int>(worker)});
      CAIRN_CHECK(reply != job.coded.end(), "worker {} did not reply to group {} of job {}", worker, group, how.job);
      sum.resize(reply->second.size());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * static_cast<double>(reply->second[i]);
    }
  Decoded decoded{.gradient = std::vector<float>(sum.size()), .chunks = static_cast<int64_t>(job.losses.size())};
  for (size_t i = 0; i < sum.size(); ++i) decoded.gradient[i] = static_cast<float>(sum[i]);
  for (const auto& [chunk, loss] : job.losses) decoded.loss_sum += loss;
  open_.erase(found);
  return decoded;
}

void OwnSums::settle(bool valid) {
  for (auto& [job, gradient] : std::exchange(pending_, {})) {
    if (!valid) continue;
    std::vector<float>& sum = sums_[job];
    sum.resize(gradient.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }
}

std::vector<float> OwnSums::total(int64_t job) const {
  std::vector<float> sum;
  const auto found = sums_.find(job);
  if (found != sums_.end()) sum = found->second;
  for (const auto& [of, gradient] : pending_) {
    if (of != job) continue;
    sum.resize(gradient.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }
  return sum;
}

void OwnSums::forget_all() {
  sums_.clear();
  pending_.clear();
}

}  // namespace cairn::federate
