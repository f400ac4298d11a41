#include "train/steps/code_gradients.h"

#include <algorithm>

#include "base/error.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "parallel/pass.h"

namespace cairn::train {
namespace {

// The weights of a pass that ends between two blocks when it is not wanted any more: every block fetches its weights first.
class InterruptibleWeights final : public model::Weights {
 public:
  InterruptibleWeights(const model::Weights& inside, const std::function<bool()>& given_up) : inside_(inside), given_up_(given_up) {}
  at::Tensor get(mesh::ParamId id) const override { return inside_.get(id); }
  const mesh::Placement& placement(mesh::ParamId id) const override { return inside_.placement(id); }
  void fetch(std::span<const mesh::ParamId> ids) const override {
    if (given_up_()) throw Error(Error::Kind::cancelled, "the gradient is not wanted any more");
    inside_.fetch(ids);
  }
  void release(std::span<const mesh::ParamId> ids, std::span<const mesh::ParamId> next) const override { inside_.release(ids, next); }

 private:
  const model::Weights& inside_;
  const std::function<bool()>& given_up_;
};

void add(at::Tensor& sum, const at::Tensor& more) {
  if (more.defined()) sum = sum.defined() ? sum + more : more;
}

}  // namespace

std::optional<std::vector<PartSums>> code_gradients(Engine& engine, std::span<const WeightedPart> parts, int64_t step,
                                                    const std::function<bool()>& given_up) {
  struct MicroBatch {
    size_t part;
    mesh::Batch batch;
    bool last;
  };
  std::vector<MicroBatch> all;
  for (size_t i = 0; i < parts.size(); ++i)
    for (const data::BatchRange& range : data::micro_batches(parts[i].batch.samples(), engine.micro_batching.samples))
      all.push_back({i, mesh::slice(parts[i].batch, range.first, range.first + range.count), false});
  if (!all.empty()) all.back().last = true;
  const InterruptibleWeights weights(engine.store->weights(), given_up);
  parallel::GradientReducer& reducer = engine.store->reducer();
  reducer.begin(static_cast<int64_t>(all.size()), static_cast<int64_t>(all.size()), {});
  std::vector<PartSums> sums(parts.size());
  try {
    for (const MicroBatch& one : all) {
      const parallel::Pass like = pass_over(engine, one.batch);
      const model::Losses losses = parallel::execute({.model = like.model,
                                                      .at = weights,
                                                      .buffers = like.buffers,
                                                      .axes = like.axes,
                                                      .batch = one.batch,
                                                      .objective = like.objective,
                                                      .into = &engine.store->sink(),
                                                      .weight = parts[one.part].weight,
                                                      .random = engine.random.for_index(static_cast<uint64_t>(step)),
                                                      .trace = engine.trace,
                                                      .memory = engine.memory,
                                                      .context = like.context,
                                                      .options = like.options,
                                                      .recompute = engine.options.recompute_last || !one.last,
                                                      .progress = like.progress});
      add(sums[one.part].loss_sum, losses.sum);
      add(sums[one.part].measures, losses.measures);
    }
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::cancelled) throw;
    reducer.abandon();
    return std::nullopt;
  }
  reducer.finish();  // parts without samples count as zero
  return sums;
}

}  // namespace cairn::train
