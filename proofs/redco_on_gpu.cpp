// Redco's three functions on one GPU: what the trainer around them costs, against a loop written by hand over the same functions.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "proofs/gpu_runs.h"
#include "study/claims.h"
#include "task/network.h"
#include "task/trainer.h"

namespace cairn::study {
namespace {

constexpr int64_t kBatch = 16, kLength = 512, kVocab = 4096, kFew = 10, kMany = 50;
constexpr double kRate = 1e-4;
const at::Device kGpu(at::kCUDA, 0);

using Text = std::vector<int64_t>;

std::vector<Text> texts(uint64_t seed, int64_t count) {
  const base::Random random = base::Random(seed).for_purpose("texts");
  std::vector<Text> all(static_cast<size_t>(count), Text(kLength + 1));
  uint64_t drawn = 0;
  for (Text& one : all)
    for (int64_t& token : one) token = static_cast<int64_t>(random.uniform(drawn++) * kVocab);
  return all;
}

task::Task<Text> language_model(const task::Network& network) {
  task::Task<Text> task;
  task.collate = [](std::span<const Text> some) {
    std::vector<at::Tensor> rows;
    for (const Text& one : some) rows.push_back(at::tensor(one, at::kLong));
    const at::Tensor all = at::stack(rows);
    return task::batch_of({{"tokens", all.narrow(1, 0, kLength).contiguous()}, {"targets", all.narrow(1, 1, kLength).contiguous()}});
  };
  task.loss = [&network](const base::Random&, const task::Params& params, const task::Batch& batch, bool) -> task::Loss {
    return at::cross_entropy_loss(network.run(params, batch).view({-1, kVocab}), batch.field("targets").flatten());
  };
  return task;
}

// Seconds of a step, from runs of two lengths.
template <typename Run>
double step_seconds(const Run& run) {
  const auto timed = [&](int64_t steps) {
    const base::RealClock clock;
    run(steps);
    return base::seconds(clock.now());
  };
  timed(kFew);
  const double few = timed(kFew), many = timed(kMany);
  return (many - few) / static_cast<double>(kMany - kFew);
}

double by_hand(const task::Task<Text>& task, const task::Params& start, const std::vector<Text>& list) {
  const task::Params params =
      start.map([](const at::Tensor& one) { return one.detach().to(kGpu, at::kFloat, false, true).requires_grad_(); });
  std::vector<at::Tensor> leaves, first, second, counts;
  for (const mesh::NamedTensor& one : params.all()) {
    leaves.push_back(one.tensor);
    first.push_back(at::zeros_like(one.tensor)), second.push_back(at::zeros_like(one.tensor));
    counts.push_back(at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(kGpu)));
  }
  return step_seconds([&](int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      const std::span<const Text> some(list.data() + step * kBatch, static_cast<size_t>(kBatch));
      const task::Batch batch = mesh::to_device(task.collate(some), kGpu);
      const at::Tensor loss = task.loss(base::Random(1), params, batch, true).sum;
      const auto gradients = torch::autograd::grad({loss}, leaves);
      const c10::NoGradGuard no_grad;
      for (at::Tensor& count : counts) count += 1;
      at::_fused_adamw_(leaves, gradients, first, second, {}, counts, kRate, 0.9, 0.999, 0.0, 1e-8, false, false);
      loss.item<double>();
    }
  });
}

double by_trainer(const task::Task<Text>& task, const task::Params& start, const std::vector<Text>& list) {
  double seconds = 0;
  for (const std::exception_ptr& error : comm::LocalNetwork(1).run([&](comm::World& world) {
         task::Deployer deployer(world, {.seed = 1, .device = "cuda"});
         task::Trainer trainer(deployer, task, start,
                               {.per_device_batch = kBatch, .learning_rate = kRate, .schedule = "constant", .sanity_check = false});
         seconds = step_seconds([&](int64_t steps) {
           const std::vector<Text> some(list.begin(), list.begin() + steps * kBatch);
           trainer.fit(some);
         });
       }))
    if (error) std::rethrow_exception(error);
  return seconds;
}

}  // namespace

void prove_redco_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  model::DecoderShape shape;
  shape.vocab = kVocab, shape.embed = 768, shape.layers = 8, shape.heads = 12, shape.kv_heads = 12, shape.head_dim = 64;
  shape.mlp = 2048, shape.length = kLength;
  const task::Network network(model::make_decoder(shape), kGpu);
  const task::Task<Text> task = language_model(network);
  const task::Params start = network.start(base::Random(options.seed));
  const std::vector<Text> list = texts(options.seed, kMany * kBatch);
  const double hand = by_hand(task, start, list), trainer = by_trainer(task, start, list), hand_again = by_hand(task, start, list);
  log.info("a step: by hand {:.1f} ms, by the trainer {:.1f} ms, by hand again {:.1f} ms", hand * 1e3, trainer * 1e3, hand_again * 1e3);
  findings.at_most("8. one GPU, a decoder of 57 million parameters in fp32: time of a step, trainer / loop by hand", 1,
                   trainer / std::min(hand, hand_again), 1.03);
}

}  // namespace cairn::study
