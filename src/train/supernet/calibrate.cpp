#include "train/supernet/calibrate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/random/permutation.h"
#include "comm/flight/recorder.h"
#include "comm/group.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"
#include "model/classifier/batch_norm.h"
#include "model/supernet/draw.h"
#include "train/job.h"
#include "train/supernet/subnet_space.h"

namespace cairn::train {
namespace {

constexpr int64_t kFixedSubnets = 2;
constexpr int64_t kCalibrationBatch = 256;  // samples of a pass, on all ranks together

// Passes without gradients over samples of a fixed order, whose batch norms note their sums.
void sum_statistics(Job& job, int64_t samples) {
  const data::SampleRange training = job.data.samples->training();
  const int64_t count = std::min(samples, training.count);
  const base::Permutation order(static_cast<uint64_t>(training.count), base::Random(1).for_purpose("supernet.calibration"));
  for (int64_t first = 0; first < count; first += kCalibrationBatch) {
    const int64_t batch = std::min(kCalibrationBatch, count - first);
    const data::BatchRange own = job.shares.within_step_group(batch);
    std::vector<int64_t> ids;
    for (int64_t i = own.first; i < own.first + own.count; ++i)
      ids.push_back(training.first + static_cast<int64_t>(order.at(static_cast<uint64_t>(first + i))));
    job.step->evaluate(job.engine, mesh::to_device(job.batches->fill(ids), job.config.device));
  }
}

}  // namespace

ScopedSubnet::ScopedSubnet(Job& job, const model::Subnet& subnet, int64_t calibration_samples) : job_(job), subnet_(subnet) {
  const mesh::NamedTensors running = model::running_buffers(job.engine.buffers);
  for (const mesh::NamedTensor& one : running) kept_[one.name] = one.tensor.clone();
  job.engine.options.subnet = &subnet_;
  if (running.empty()) return;
  mesh::before_writing_all(job.engine.trained.barrier);
  const comm::ScopedActivity evaluating(job.instruments.flight, comm::Activity::evaluating);
  job.engine.options.batch_statistics = true;
  sum_statistics(job, calibration_samples);
  job.engine.options.batch_statistics = false;
  model::commit_batch_norms(
      job.engine.buffers, /*skipped=*/false,
      [&](const at::Tensor& sums) {
        job.engine.step_group->all_reduce(sums, comm::Reduce::sum, {comm::Purpose::state, "batch norm"}).wait();
      },
      /*momentum=*/1);
}

ScopedSubnet::~ScopedSubnet() {
  job_.engine.options.subnet = nullptr;
  job_.engine.options.batch_statistics = false;
  for (const auto& [name, tensor] : kept_) job_.engine.buffers.at(name).copy_(tensor);
}

void evaluate_subnets(Job& job, HeldOut& found) {
  const model::SupernetOptions& options = job.config.settings.model.supernet;
  if (!options.any()) return;
  const SubnetSpace space = subnet_space(job);
  std::vector<std::pair<std::string, model::Subnet>> subnets{{"smallest", space.smallest()}};
  for (int64_t i = 0; i < kFixedSubnets; ++i)
    subnets.emplace_back(fmt::format("medium_{}", i + 1),
                         space.draw(base::Random(1).for_purpose("supernet.fixed").for_index(static_cast<uint64_t>(i))));
  const std::vector<std::string> measured = job.engine.objective->measures();
  for (const auto& [name, subnet] : subnets) {
    const ScopedSubnet scoped(job, subnet, options.calibration_samples);
    const HeldOut of_subnet = evaluate_held_out(job);
    found.more.emplace_back(name + "_loss", of_subnet.loss);
    for (size_t i = 0; i < measured.size(); ++i)
      if (measured[i] == "accuracy") found.more.emplace_back(name + "_accuracy", of_subnet.measures[i]);
    found.seconds += of_subnet.seconds;
  }
}

}  // namespace cairn::train
