// Activation offload: inputs of recomputed blocks wait in host memory. On a CPU this is a plain copy; the OnGpu.* tests have the real one.
#include "parallel/activations/host_offload.h"

#include <gtest/gtest.h>

#include "base/memory_tags.h"
#include "base/random.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/objective.h"
#include "parallel/pass.h"
#include "parallel/token_batch.h"

namespace cairn::parallel {
namespace {

TEST(HostOffload, ComesBackAsItWas) {
  const at::Tensor values = at::arange(12, at::kFloat).view({3, 4});
  at::Tensor mine = values.clone();
  HostOffload copy(mine);
  copy.release_device();
  mine.fill_(-1);  // its memory is somebody else's now
  copy.fetch();
  EXPECT_TRUE(at::equal(copy.take(), values));
  HostOffload kept(values);  // never let go: nothing need come back
  EXPECT_TRUE(kept.take().is_same(values));
}

struct PassOutcome {
  at::Tensor gradients;
  double loss = 0;
  int64_t peak_kept = 0;  // bytes of activations, by the books
};

PassOutcome pass_with(const std::vector<bool>& again, bool to_host) {
  const auto model = model::make_decoder(
      {.vocab = 23, .embed = 16, .layers = 5, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 20, .length = 9, .tied = true});
  const mesh::FlatLayout layout = model->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kFloat);
  model::initialize_parameters(*model, flat, base::Random(3));
  model::Buffers buffers = model->make_buffers(at::kFloat);
  mesh::FlatGradients sink(layout, at::zeros({layout.elements}), model->uses());
  sink.begin(1, [](int64_t) {});
  const model::FlatWeights weights(layout, flat);
  const mesh::Axes alone;
  const auto objective = model::make_next_token();
  base::MemoryTags memory;
  const model::PassOptions options{.recompute = again, .offload_inputs = to_host};
  const model::Losses losses = execute({.model = *model,
                                        .at = weights,
                                        .buffers = buffers,
                                        .axes = alone,
                                        .batch = token_batch(3, 9, 23),
                                        .objective = *objective,
                                        .into = &sink,
                                        .memory = &memory,
                                        .options = options,
                                        .recompute = !again.empty()});
  sink.finish();
  return {sink.flat().clone(), losses.sum.item<double>(), memory.total_peak()};
}

TEST(ActivationOffload, IsBitwiseIdenticalAndFreesTheDevice) {
  const size_t blocks =
      model::make_decoder(
          {.vocab = 23, .embed = 16, .layers = 5, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 20, .length = 9, .tied = true})
          ->blocks()
          .size();
  std::vector<bool> all(blocks, true), some(blocks);
  for (size_t i = 0; i < blocks; i += 3) some[i] = true;
  const PassOutcome plain = pass_with({}, false);
  for (const std::vector<bool>& again : {all, some}) {
    const PassOutcome here = pass_with(again, false), there = pass_with(again, true);
    EXPECT_TRUE(at::equal(here.gradients, there.gradients));
    EXPECT_TRUE(at::allclose(plain.gradients, there.gradients, 1e-5, 1e-7));
    EXPECT_EQ(here.loss, there.loss);
    EXPECT_LT(there.peak_kept, here.peak_kept);
  }
}

}  // namespace
}  // namespace cairn::parallel
