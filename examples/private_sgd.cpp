// Differentially private SGD (Abadi et al., arXiv:1607.00133): each example's gradient is clipped to a norm of 1, and noise of
// deviation 1 is added to their sum, so that no example shows. What epsilon that gives is for an accountant to say.
// To be reached: 0.95 of the accuracy of the same training without privacy.
#include "examples/blobs.h"
#include "examples/examples.h"
#include "task/trainer.h"

namespace cairn::examples {
namespace {

task::TrainStep::Part clipped(const base::Random&, const task::Params& params, const task::Batch& batch) {
  const task::Params own = task::repeated(params, batch.samples());  // gradients of these are apart for each example
  const at::Tensor logits = task::run_mlp(own, batch.field("x").unsqueeze(1)).squeeze(1);
  const at::Tensor loss = at::cross_entropy_loss(logits, batch.field("label"), {}, at::Reduction::Sum);
  const task::Params gradients = task::gradients(loss, own);
  const at::Tensor factor = (kPrivateClip / (task::squares_by_row(gradients).sqrt() + 1e-12)).clamp_max(1);  // [batch]
  const auto sum = [&](const at::Tensor& rows) { return at::matmul(factor, rows.flatten(1)).view(rows.sizes().slice(1)); };
  return {gradients.map(sum), loss.detach() / static_cast<double>(batch.samples())};
}

task::Params noised(const base::Random& random, const task::Params& sums) {
  mesh::NamedTensors all = sums.all();
  for (mesh::NamedTensor& one : all)
    one.tensor = one.tensor + kPrivateNoise * kPrivateClip * task::normal(random.for_name(one.name), one.tensor.sizes());
  return all;
}

}  // namespace

task::TrainStep private_step() { return {.part = clipped, .finish = noised}; }

Outcome private_sgd(task::Deployer& deployer, bool quick) {
  const base::Random centres = deployer.random("centres");
  const auto training = blobs(centres, deployer.random("training"), quick ? 256 : 4096, 4, 8, 3);
  const auto test = blobs(centres, deployer.random("test"), 1000, 4, 8, 3);
  const task::Params start = task::mlp({8, 32, 4}, deployer.random("start"));
  const auto accuracy = [&](const task::Task<Point>& task, const std::string& name) {
    task::Trainer trainer(deployer, task, start,
                          {.name = name, .per_device_batch = 64, .epochs = 4, .optimizer = "sgd", .learning_rate = 0.5});
    trainer.fit(training);
    return trainer.evaluate(test).at("accuracy");
  };
  task::Task<Point> open = classification(), closed = classification();
  closed.train_step = private_step();
  const double without = accuracy(open, "open");
  return {"accuracy, against the same without privacy", accuracy(closed, "private"), without, 0.95 * without, /*at_most=*/false};
}

}  // namespace cairn::examples
