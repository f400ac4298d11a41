// A language model of bytes on the built-in stories: a small Llama of Cairn's, next-byte cross entropy.
// To be reached: a held-out loss of at most half of what the frequencies of the bytes alone give.
#include <array>
#include <cmath>

#include "data/stories/stories.h"
#include "examples/examples.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "task/network.h"
#include "task/trainer.h"

namespace cairn::examples {
namespace {

constexpr int64_t kLength = 64, kIgnored = -100;

// Pieces of at most kLength + 1 bytes; the last of each story is shorter.
std::vector<std::string> pieces(uint64_t seed, int64_t first, int64_t count) {
  std::vector<std::string> pieces;
  for (int64_t i = first; i < first + count; ++i) {
    const std::string story = data::stories(seed, i, 1);
    for (size_t at = 0; at + 1 < story.size(); at += kLength) pieces.push_back(story.substr(at, kLength + 1));
  }
  return pieces;
}

// Nats per byte of a model that knows only the frequency of each byte.
double by_frequency(const std::vector<std::string>& pieces) {
  std::array<double, 256> counts{};
  double all = 0, sum = 0;
  for (const std::string& piece : pieces)
    for (const char byte : piece) ++counts[static_cast<uint8_t>(byte)], ++all;
  for (const double count : counts) sum -= count > 0 ? count * std::log(count / all) : 0;
  return sum / all;
}

}  // namespace

Outcome language_model(task::Deployer& deployer, bool quick) {
  const task::Network network(model::make_decoder(
      {.vocab = 256, .embed = 64, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .mlp = 176, .length = kLength}));

  task::Task<std::string> task;
  task.collate = [](std::span<const std::string> texts) {
    const auto n = static_cast<int64_t>(texts.size());
    const at::Tensor tokens = at::zeros({n, kLength}, at::kLong), targets = at::full({n, kLength}, kIgnored, at::kLong);
    for (int64_t i = 0; i < n; ++i)
      for (size_t j = 0; j + 1 < texts[static_cast<size_t>(i)].size(); ++j) {
        const std::string& text = texts[static_cast<size_t>(i)];
        tokens.mutable_data_ptr<int64_t>()[i * kLength + static_cast<int64_t>(j)] = static_cast<uint8_t>(text[j]);
        targets.mutable_data_ptr<int64_t>()[i * kLength + static_cast<int64_t>(j)] = static_cast<uint8_t>(text[j + 1]);
      }
    return task::batch_of({{"tokens", tokens}, {"targets", targets}});
  };
  // A sum and how many bytes it is over: short texts count for less, however they are dealt out.
  task.loss = [&](const base::Random&, const task::Params& params, const task::Batch& batch, bool) -> task::Loss {
    const at::Tensor targets = batch.field("targets").flatten();
    const at::Tensor logits = network.run(params, batch).flatten(0, 1);
    return {at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, kIgnored), (targets != kIgnored).sum()};
  };
  task.predict = [&](const base::Random&, const task::Params& params, const task::Batch& batch) -> task::Outputs {
    return {{"next", network.run(params, batch).argmax(-1)}};
  };

  const uint64_t seed = deployer.options().seed;
  const auto training = pieces(seed, 0, quick ? 12 : 1000), held_out = pieces(seed, 100000, quick ? 4 : 40);
  task::Trainer trainer(
      deployer, task, network.start(deployer.random("start")),
      {.name = "language_model", .per_device_batch = 8, .epochs = 1, .learning_rate = 5e-3, .max_grad_norm = 1, .warmup_ratio = 0.1});
  trainer.fit(training);
  const double alone = by_frequency(held_out);
  return {"held-out loss, nats a byte, against that of byte frequencies", trainer.evaluate(held_out).at("eval_loss"), alone, alone / 2};
}

}  // namespace cairn::examples
