// The running statistics lag behind the weights and belong to several shapes of samples. An evaluation reads better ones: the mean and
// variance over all values of some hundred batches of one shape (precise BN).
#include "train/precise_norm.h"

#include <algorithm>

#include "comm/flight/recorder.h"
#include "comm/group.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"
#include "model/classifier/batch_norm.h"
#include "train/build.h"

namespace cairn::train {
namespace {

// Passes without gradients read the statistics of their batch while this lives.
class ScopedBatchStatistics {
 public:
  explicit ScopedBatchStatistics(Engine& engine) : engine_(engine) { engine_.options.batch_statistics = true; }
  ~ScopedBatchStatistics() { engine_.options.batch_statistics = false; }
  ScopedBatchStatistics(const ScopedBatchStatistics&) = delete;
  ScopedBatchStatistics& operator=(const ScopedBatchStatistics&) = delete;

 private:
  Engine& engine_;
};

void run_batch(Job& job, const data::Draw& draw, int64_t key) {
  const data::BatchRange own = job.shares.own(static_cast<int64_t>(draw.ids.size()));
  mesh::Batch batch;
  job.data.samples->fill_shaped(std::span(draw.ids).subspan(static_cast<size_t>(own.first), static_cast<size_t>(own.count)), draw.shape,
                                key, batch);
  batch.norm_samples = draw.shape.norm_samples;
  batch = mesh::to_device(batch, job.config.device);
  for (const data::BatchRange& part : data::micro_batches(own.count, job.engine.micro_batching.samples))
    job.step->evaluate(job.engine, mesh::slice(batch, part.first, part.first + part.count));
}

}  // namespace

void compute_precise_norms(Job& job) {
  const int64_t batches_done = job.progress.steps_done + job.progress.batches_passed;
  const std::vector<data::Draw> draws = job.sampler->norm_draws(batches_done);
  if (draws.empty() || model::running_buffers(job.engine.buffers).empty()) return;
  const auto traced = job.instruments.trace->span("precise batch norm", "evaluate");
  const comm::ScopedActivity evaluating(job.instruments.flight, comm::Activity::evaluating);
  const ScopedBatchStatistics of_batches(job.engine);
  for (size_t i = 0; i < draws.size(); ++i)
    run_batch(job, draws[i], -1 - (batches_done * static_cast<int64_t>(draws.size()) + static_cast<int64_t>(i)));  // steps are positive
  mesh::before_writing_all(job.engine.trained.barrier);
  model::commit_batch_norms(
      job.engine.buffers, /*skipped=*/false,
      [&](const at::Tensor& sums) {
        job.engine.step_group->all_reduce(sums, comm::Reduce::sum, {comm::Purpose::state, "batch norm"}).wait();
      },
      /*momentum=*/1);
}

}  // namespace cairn::train
