// What replies add up to, at the master and at a worker.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "federate/coding/scheme.h"

namespace cairn::federate {

// Gradients of the jobs that are open at the master. Own sums of workers are added up as they come; coded results are kept until their job
// is decoded. Sums are fp64, so that the order of replies does not show in fp32.
class JobGradients {
 public:
  void add_own_sum(int64_t job, std::span<const float> gradient);
  void add_coded(int64_t job, int group, int worker, std::vector<float> gradient);
  void add_loss(int64_t job, int chunk, double loss_sum) { open_[job].losses[chunk] = loss_sum; }  // chunks that come again count once

  struct Decoded {
    std::vector<float> gradient;
    double loss_sum = 0;
    int64_t chunks = 0;  // whose losses are known
  };
  Decoded decode(const JobDecoding& how);  // and forgets the job
  void forget_all() { open_.clear(); }
  int64_t open_jobs() const { return static_cast<int64_t>(open_.size()); }

 private:
  struct Open {
    std::vector<double> own;
    std::map<std::pair<int, int>, std::vector<float>> coded;  // by group and worker
    std::map<int, double> losses;                             // by chunk
  };
  std::map<int64_t, Open> open_;
};

// A worker's own chunks: added up over rounds, and sent once. What it computed in a round counts once the master says so.
class OwnSums {
 public:
  void add(int64_t job, std::vector<float> gradient) { pending_.emplace_back(job, std::move(gradient)); }
  void settle(bool valid);                      // the results of the last round count, or they do not
  std::vector<float> total(int64_t job) const;  // what counts and what is pending
  void forget_before(int64_t job) { sums_.erase(sums_.begin(), sums_.lower_bound(job)); }
  void forget_all();

 private:
  std::map<int64_t, std::vector<float>> sums_;
  std::vector<std::pair<int64_t, std::vector<float>>> pending_;
};

}  // namespace cairn::federate
