#pragma once
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "federate/coding/job_gradients.h"
#include "federate/coding/scheme.h"

namespace cairn::federate {

// Jobs whose gradients are small integers that depend on job and chunk, computed by workers that keep the rules of the live ones.
class ToyJobs {
 public:
  ToyJobs(const Scheme& scheme, uint64_t seed) : scheme_(scheme), random_(seed), own_(static_cast<size_t>(scheme.workers())) {}

  static constexpr size_t kElements = 3;
  std::vector<float> gradient(int64_t job, int chunk) const {
    std::vector<float> values(kElements);
    for (size_t e = 0; e < kElements; ++e)
      values[e] =
          static_cast<float>(random_.for_index(static_cast<uint64_t>(job)).for_index(static_cast<uint64_t>(chunk)).below(e, 2001)) - 1000;
    return values;
  }
  std::vector<double> expected(int64_t job) const {
    std::vector<double> sum(kElements);
    for (size_t c = 0; c < scheme_.chunks().size(); ++c)
      for (size_t e = 0; e < kElements; ++e) sum[e] += static_cast<double>(gradient(job, static_cast<int>(c))[e]);
    return sum;
  }

  // What the workers do in a round, and what reaches the master of it.
  void round(const std::vector<Task>& tasks, const Workers& late) {
    for (size_t i = 0; i < tasks.size(); ++i) {
      for (const Slot& slot : tasks[i]) {
        std::vector<float> sum(kElements);
        for (size_t k = 0; k < slot.chunks.size(); ++k)
          for (size_t e = 0; e < kElements; ++e) sum[e] += static_cast<float>(slot.weights[k]) * gradient(slot.job, slot.chunks[k])[e];
        if (slot.group != Slot::kAlone) {
          if (!late[i]) master_.add_coded(slot.job, slot.group, static_cast<int>(i), sum);
          continue;
        }
        own_[i].add(slot.job, sum);
        if (slot.completes && !late[i]) master_.add_own_sum(slot.job, own_[i].total(slot.job));
      }
      own_[i].settle(!late[i]);
    }
  }

  // The largest error of a decoded gradient, relative to 1000 per chunk.
  double error(const JobDecoding& how) {
    const std::vector<float> found = master_.decode(how).gradient;
    const std::vector<double> wanted = expected(how.job);
    double most = 0;
    for (size_t e = 0; e < kElements; ++e) most = std::max(most, std::abs(static_cast<double>(found[e]) - wanted[e]));
    return most / (1000.0 * static_cast<double>(scheme_.chunks().size()));
  }

 private:
  const Scheme& scheme_;
  base::Random random_;
  std::vector<OwnSums> own_;
  JobGradients master_;
};

}  // namespace cairn::federate
