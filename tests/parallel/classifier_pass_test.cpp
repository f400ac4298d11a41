// A model of autograd blocks through a pass: gradients block by block equal those of the whole graph.
#include <gtest/gtest.h>

#include "base/random.h"
#include "mesh/flat_gradients.h"
#include "model/classifier/classifier.h"
#include "model/objective.h"
#include "parallel/by_autograd.h"
#include "parallel/pass.h"

namespace cairn::model {
namespace {

TEST(AutogradBlock, GivesTheGradientsOfTheWholeGraphBlockByBlock) {
  const auto model = make_classifier({.features = 2, .classes = 3, .hidden = 5, .layers = 2});
  const mesh::FlatLayout layout = model->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  initialize_parameters(*model, flat, base::Random(2));
  Buffers buffers;
  mesh::Batch batch;
  batch.ids = at::arange(7);
  batch.fields["features"] = {at::linspace(-1, 1, 14, at::kDouble).view({7, 2})};
  batch.fields["labels"] = {at::arange(7).remainder(3)};
  const auto expected = gradients_by_autograd(*model, layout, flat, buffers, batch, "labels", 0.5);

  mesh::FlatGradients sink(layout, at::full({layout.elements}, 99.0, at::kDouble), model->uses());
  const FlatWeights weights(layout, flat);
  const mesh::Axes alone;
  const auto objective = make_classification();
  // Two passes of 3 and 4 samples must add up to one of 7.
  sink.begin(2, nullptr);
  for (const auto& [begin, end] : {std::pair{0, 3}, std::pair{3, 7}}) {
    const mesh::Batch part = mesh::slice(batch, begin, end);
    parallel::execute({.model = *model,
                       .at = weights,
                       .buffers = buffers,
                       .axes = alone,
                       .batch = part,
                       .objective = *objective,
                       .into = &sink,
                       .weight = 0.5});
  }
  sink.finish();
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::allclose(layout.view(sink.flat(), {static_cast<int32_t>(i)}), expected[i], 1e-12, 1e-14)) << layout.pieces[i].name;
}

TEST(AutogradBlock, KeepsNothingWhereNoGradientIsAskedFor) {
  const auto model = make_classifier({});
  const FlatWeights weights(model->layout(), at::zeros({model->elements()}));
  Buffers buffers;
  const mesh::Axes alone;
  const Call call{.weights = weights, .buffers = buffers, .axes = alone};
  Values values;
  values.put("features", at::ones({1, 2}));
  for (const auto& block : model->blocks()) block->forward(values, nullptr, call);
  EXPECT_FALSE(values.get("logits").requires_grad());
  EXPECT_TRUE(model->blocks()[0]->card().fused_backward);
}

}  // namespace
}  // namespace cairn::model
