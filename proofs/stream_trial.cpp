#include "proofs/stream_trial.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "memory/host_allocator.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "parallel/pass.h"
#include "proofs/hand_built.h"

namespace cairn::study {

model::DecoderShape stream_shape(int64_t vocab, int64_t length) {
  return {.vocab = vocab, .embed = 256, .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 64, .mlp = 688, .length = length, .tied = true};
}

mesh::Batch stream_batch(uint64_t seed, int64_t samples, int64_t length, int64_t vocab) {
  mesh::Batch batch = random_tokens({.seed = seed, .samples = samples, .length = length, .vocab = vocab});
  for (int64_t i = 0; i < samples; ++i)  // prompts of several lengths, which have no loss
    batch.field("targets")[i].narrow(0, 0, length / (3 + i)).fill_(-100);
  return batch;
}

StreamTrial::StreamTrial(const model::DecoderShape& shape, at::ScalarType dtype, uint64_t seed, const model::AdapterShape& lora)
    : model_(model::make_decoder(shape, lora)),
      flat_(at::empty({model_->elements()}, dtype)),
      gradients_(at::zeros_like(flat_)),
      buffers_(model_->make_buffers(flat_.options())) {
  model::initialize_parameters(*model_, flat_, base::Random(seed));
  for (const mesh::NamedTensor& one : model_->layout().views(flat_))
    if (one.name.ends_with(".lora_B.weight")) one.tensor.fill_(0.02);  // at 0, half of an adapter would have no gradient
  flat_.mul_(3);
}

StreamTrial::Outcome StreamTrial::run(const mesh::Batch& batch, const model::Objective& objective, const StreamWay& way) {
  const mesh::Axes alone;
  const model::FlatWeights weights(model_->layout(), flat_);
  mesh::FlatGradients sink(model_->layout(), gradients_, model_->uses());
  Outcome outcome;
  sink.begin(1, [&](int64_t index) { ++outcome.announced[index]; });
  std::vector<bool> recompute;
  for (const auto& block : model_->blocks()) recompute.push_back(way.recompute && block != model_->blocks().back());
  const model::PassOptions options{.head_slice = way.head_slice,
                                   .skip_unneeded_logits = true,
                                   .slice = way.slice,
                                   .draws_by_token = true,
                                   .recompute = std::move(recompute)};
  memory::reset_host_peak();
  const int64_t before = memory::host_memory().current_bytes;
  const base::RealClock clock;
  const auto begun = clock.now();
  outcome.loss = parallel::execute({.model = *model_,
                                    .at = weights,
                                    .buffers = buffers_,
                                    .axes = alone,
                                    .batch = batch,
                                    .objective = objective,
                                    .into = &sink,
                                    .weight = 1.0 / static_cast<double>(batch.field("targets").numel()),
                                    .random = base::Random(5),
                                    .options = options,
                                    .recompute = way.recompute})
                     .sum.item<double>();
  outcome.seconds = base::seconds(clock.now() - begun);
  outcome.peak_bytes = memory::host_memory().peak_bytes - before;
  sink.finish();
  return outcome;
}

double StreamTrial::apart(const at::Tensor& whole) const {
  const mesh::FlatLayout layout = model_->layout();
  double most = 0, largest = 0;
  for (size_t i = 0; i < layout.pieces.size(); ++i)
    largest = std::max(largest, layout.view(whole, {static_cast<int32_t>(i)}).norm().item<double>());
  for (size_t i = 0; i < layout.pieces.size(); ++i) {
    const mesh::ParamId id{static_cast<int32_t>(i)};
    const double size = std::max(layout.view(whole, id).norm().item<double>(), 1e-3 * largest);
    most = std::max(most, (layout.view(gradients_, id) - layout.view(whole, id)).norm().item<double>() / size);
  }
  return std::isnan(most) ? std::numeric_limits<double>::infinity() : most;
}

}  // namespace cairn::study
