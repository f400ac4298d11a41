#include "task/network.h"

#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/objective.h"
#include "parallel/pass.h"

namespace cairn::task {
namespace {

// The blocks' hand-written forms, as recipes train them, are the reference.
TEST(Network, GivesTheLossOfTheModelItRuns) {
  const model::DecoderShape shape{.vocab = 37, .embed = 20, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 10, .mlp = 23, .length = 7};
  const auto model = model::make_decoder(shape);
  const Network network(model::make_decoder(shape));
  const at::Tensor tokens = (uniform(base::Random(1), {3, 7}) * 37).to(at::kLong),
                   targets = (uniform(base::Random(2), {3, 7}) * 37).to(at::kLong);
  const Batch batch = batch_of({{"tokens", tokens}, {"targets", targets}});
  const at::Tensor flat = at::empty({model->layout().elements});
  model::initialize_parameters(*model, flat, base::Random(4));
  const model::FlatWeights weights(model->layout(), flat);
  model::Buffers buffers = model->make_buffers(flat.options());
  const mesh::Axes alone;
  const auto objective = model::make_next_token();
  const model::Losses wanted =
      parallel::execute({.model = *model, .at = weights, .buffers = buffers, .axes = alone, .batch = batch, .objective = *objective});
  const at::Tensor logits = network.run(network.start(base::Random(4)), batch).flatten(0, 1);
  EXPECT_NEAR(at::cross_entropy_loss(logits, targets.flatten(), {}, at::Reduction::Sum).item<double>(), wanted.sum.item<double>(), 1e-4);
}

}  // namespace
}  // namespace cairn::task
