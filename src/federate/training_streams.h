// Models that are trained in turn by coded gradients: jobs of the trainer on this process alone, held by the master and by every worker.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "comm/world.h"
#include "federate/coded_master.h"
#include "federate/coded_worker.h"
#include "train/job.h"

namespace cairn::federate {

// One job for each recipe, in a world of its own. Refuses recipes whose gradients do not add up over samples.
class TrainingJobs {
 public:
  TrainingJobs(const std::vector<base::Recipe>& recipes, const std::filesystem::path& out, const std::string& cache, int threads);
  train::Job& operator[](int64_t stream) const { return *jobs_[static_cast<size_t>(stream)]; }
  int64_t size() const { return static_cast<int64_t>(jobs_.size()); }

 private:
  comm::World alone_;
  std::vector<std::unique_ptr<train::Job>> jobs_;
};

// At the master: decoded gradients become updates.
class TrainingStreams final : public Streams {
 public:
  explicit TrainingStreams(const TrainingJobs& jobs);
  int64_t streams() const override { return jobs_.size(); }
  int64_t samples(int64_t stream, int64_t step) const override;
  std::vector<float> weights(int64_t stream) const override;
  void apply(int64_t stream, int64_t step, std::span<const float> gradient, double loss_sum) override;

  const std::vector<std::vector<double>>& losses() const { return losses_; }  // by stream and step
  std::vector<double> held_out() const;                                       // by stream
  void save(base::Log& log, const base::Clock& clock) const;                  // a snapshot of every stream

 private:
  const TrainingJobs& jobs_;
  std::vector<std::vector<double>> losses_;
};

// At a worker.
class TrainingGradients final : public GradientSource {
 public:
  explicit TrainingGradients(const TrainingJobs& jobs) : jobs_(jobs) {}
  void take_weights(int64_t stream, std::span<const float> weights) override;
  std::optional<Gradient> compute(int64_t stream, int64_t step, std::span<const SampleRange> ranges,
                                  const std::function<bool()>& given_up) override;

 private:
  const TrainingJobs& jobs_;
};

// A bound for messages that carry the gradients or weights of these jobs.
int64_t message_bytes_max(const TrainingJobs& jobs);

}  // namespace cairn::federate
