#include "train/state/rewind.h"

#include "base/check.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"
#include "model/classifier/batch_norm.h"
#include "optim/active_optimizer.h"
#include "train/active_parts.h"
#include "train/build.h"
#include "train/sample_feedback.h"

namespace cairn::train {
namespace {

// All tensors that a step may change, in a fixed order. BadSteps is not among them: its history has good steps only.
std::vector<at::Tensor> changing(Job& job) {
  std::vector<at::Tensor> tensors;
  for (const mesh::NamedTensors& part : {job.engine.trained.values, job.engine.optimizer->state(), job.engine.sync->state(),
                                         job.sampler->state(), model::running_buffers(job.engine.buffers)})
    for (const mesh::NamedTensor& one : part) tensors.push_back(one.tensor);
  for (const auto& between : job.between_steps)
    for (const mesh::NamedTensor& one : between->state()) tensors.push_back(one.tensor);
  if (!job.between_steps.empty())  // surgery may change frozen parameters
    for (const parallel::ParameterSlice& piece : job.engine.store->pieces())
      if (!piece.gradient.defined()) tensors.push_back(piece.value);
  return tensors;
}

}  // namespace

void Rewind::keep(Job& job) {
  flush_sample_losses(job);
  const std::vector<at::Tensor> from = changing(job);
  if (tensors_.empty()) {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : from) {
      tensors_.push_back(at::empty_like(tensor));
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
    booked_.emplace_back(*job.instruments.memory, base::MemoryUse::snapshot, bytes);
  }
  CAIRN_CHECK(from.size() == tensors_.size(), "{} tensors where {} were kept", from.size(), tensors_.size());
  for (size_t i = 0; i < from.size(); ++i) tensors_[i].copy_(from[i]);
  active_ = job.engine.active->set();
  steps_done_ = job.progress.steps_done;
  tokens_done_ = job.progress.tokens_done;
  updates_skipped_ = job.progress.updates_skipped;
}

void Rewind::back(Job& job, int64_t bad_step) const {
  mesh::before_writing_all(job.engine.trained.barrier);
  const std::vector<at::Tensor> into = changing(job);
  CAIRN_CHECK(!tensors_.empty() && into.size() == tensors_.size(), "{} tensors where {} were kept", into.size(), tensors_.size());
  for (size_t i = 0; i < into.size(); ++i) into[i].copy_(tensors_[i]);
  job.engine.active->replace_set(active_);
  apply_active(job.engine);
  if (job.sample_losses) job.sample_losses->drop();
  job.sampler->restored();
  job.engine.store->updated();
  job.progress.batches_passed += bad_step - steps_done_;
  job.progress.steps_done = steps_done_;
  job.progress.tokens_done = tokens_done_;
  job.progress.updates_skipped = updates_skipped_;
  ++job.progress.rollbacks;
}

}  // namespace cairn::train
