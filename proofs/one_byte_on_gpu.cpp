// One byte on a GPU: the same directions as everywhere, memory of inference, and adapters of a large model that four processes train.
#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/perturb.h"
#include "model/decoder/decoder.h"
#include "model/objective.h"
#include "parallel/pass.h"
#include "proofs/gpu_runs.h"
#include "proofs/hand_built.h"
#include "study/claims.h"
#include "sync/one_byte/replica.h"

namespace cairn::study {
namespace {

constexpr int64_t kEmbed = 2048, kLayers = 16, kHeads = 16, kMlp = 8192, kLength = 128, kRank = 4, kSlopes = 32;

// 1. What a CPU and the GPU make of the same keys.
void directions(const ProofOptions& options, Findings& findings) {
  constexpr int64_t kCount = 3000001, kFirst = 5;
  int64_t differ = 0;
  for (const kernels::Noise noise : {kernels::Noise::normal, kernels::Noise::rademacher}) {
    const std::vector<kernels::Direction> some{{base::Random(options.seed).for_name("a"), 0.3f},
                                               {base::Random(options.seed).for_name("b"), -1.7f}};
    const at::Tensor here = at::arange(kCount).to(at::kFloat).mul(1e-4f), there = here.to(at::kCUDA);
    kernels::replay(here, some, kFirst, 0.25f, 0.999f, noise);
    kernels::replay(there, some, kFirst, 0.25f, 0.999f, noise);
    differ += there.cpu().ne(here).sum().item<int64_t>();
  }
  findings.at_most("1. 3,000,001 weights moved along two directions, normal and of signs: weights that a GPU moves otherwise than a CPU", 0,
                   static_cast<double>(differ), 0);
}

int64_t most_bytes() {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(0).allocated_bytes[kAll].peak;
}

// 7. Adapters on 1.1 billion weights: a round of 8 slopes, then the replay of 32.
void memory_and_replay(const ProofOptions& options, Findings& findings, base::Log& log) {
  const at::NoGradGuard no_gradients;
  model::DecoderShape shape;
  shape.vocab = 4096, shape.embed = kEmbed, shape.layers = kLayers, shape.heads = kHeads, shape.kv_heads = kHeads;
  shape.head_dim = kEmbed / kHeads, shape.mlp = kMlp, shape.length = kLength;
  const std::unique_ptr<model::Model> decoder = model::make_decoder(shape, {.rank = kRank});
  const std::unique_ptr<model::Objective> objective = model::make_next_token();
  const mesh::FlatLayout layout = decoder->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::TensorOptions().dtype(at::kFloat).device(at::kCUDA));
  model::initialize_parameters(*decoder, flat, base::Random(options.seed));
  const mesh::Batch batch =
      mesh::to_device(random_tokens({.seed = options.seed, .samples = 8, .length = kLength, .vocab = shape.vocab}), flat.device());
  const mesh::Axes axes;
  model::Buffers buffers = decoder->make_buffers(flat.options());
  const model::FlatWeights weights(layout, flat);
  const sync::LossAt loss = [&](const model::Weights& at, const sync::BatchKey&) {
    const model::Losses losses =
        parallel::execute({.model = *decoder, .at = at, .buffers = buffers, .axes = axes, .batch = batch, .objective = *objective});
    return losses.sum.item<double>() / losses.count.item<double>();
  };
  sync::OneByteOptions how;
  how.samples_per_round = 8, how.eps = 1e-2;
  sync::OneByteReplica::Model all{weights, {}, {}};
  int64_t trained = 0;
  for (const auto& piece : layout.pieces) {
    all.names.push_back(piece.name);
    all.trained.push_back(piece.name.find("lora") != std::string::npos);
    if (all.trained.back()) trained += piece.elements;
  }
  sync::OneByteReplica replica(how, options.seed, all);
  loss(weights, {});
  c10::getDeviceAllocator(at::kCUDA)->resetPeakStats(0);
  loss(weights, {});
  const int64_t evaluating = most_bytes();
  c10::getDeviceAllocator(at::kCUDA)->resetPeakStats(0);
  for (int64_t k = 0; k < how.samples_per_round; ++k) replica.measure(loss, 0, 0, k);
  sync::RoundRecord record{{.round = 0, .rate = 1e-6f}, {}};
  const std::vector<float> slopes(kSlopes, 1.0f);
  record.messages.push_back({.slopes = kSlopes, .codes = sync::encode_slopes(sync::SlopeCode::log8, slopes).bytes});
  const uint64_t before = replica.hash();
  replica.apply(record);
  findings.at_least("7. whether a round moves the adapters (1: it does)", 0, replica.hash() != before ? 1 : 0, 1);
  findings.at_most(fmt::format("7. {:.1f} billion weights and adapters of {:.2f} million: most bytes of tensors, training / evaluating",
                               1e-9 * static_cast<double>(layout.elements), 1e-6 * static_cast<double>(trained)),
                   1, static_cast<double>(most_bytes()) / static_cast<double>(evaluating), 1.15);
  const double replay_s = gpu_seconds([&] { replica.apply(record); }, 3);
  log.info("a look at the loss takes {:.1f} ms, the replay of {} slopes {:.1f} ms", gpu_seconds([&] { loss(weights, {}); }, 3) * 1e3,
           kSlopes, replay_s * 1e3);
}

// 7. Four processes on the one GPU teach a model of stories to count.
void learns(const ProofOptions& options, Findings& findings, base::Log& log) {
  Assignments sets = gpu_decoder(
      options, {.embed = kEmbed, .layers = kLayers, .heads = kHeads, .kv_heads = kHeads, .mlp = kMlp, .batch = 16, .length = kLength});
  for (const char* set : {"optim.learning_rate=0.0003", "optim.warmup_steps=20", "snapshot.last=true"}) sets.emplace_back(set);
  must_train_on_gpu(options, log, "base", {.sets = std::move(sets), .steps = 80});
  constexpr const char* kNumbers[] = {"one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"};
  std::string text;
  const base::Random random = base::Random(options.seed).for_purpose("numbers");
  for (uint64_t line = 0; line < 4000; ++line) {
    const uint64_t first = random.below(line, 10);
    for (uint64_t i = 0; i < 12; ++i) text += fmt::format("{}{}", kNumbers[(first + i) % 10], i == 11 ? ".\n\n" : " ");
  }
  const std::filesystem::path scratch = options.scratch, numbers = scratch / "numbers.txt";
  base::write_atomically(numbers, text);
  ProofOptions on_numbers = options;
  on_numbers.data = numbers.string();
  const GpuTrained tuned = must_train_on_gpu(
      on_numbers, log, "tuned",
      {.sets = {"model.from=" + (scratch / "base").string(), fmt::format("model.lora.rank={}", kRank), "train.method=one_byte",
                "train.one_byte.samples_per_round=8", "train.one_byte.eps=0.01", "optim.learning_rate=0.001", "optim.schedule=constant",
                "optim.warmup_steps=0", "train.global_batch=8", fmt::format("data.length={}", kLength), "eval.fraction=0.0",
                "snapshot.every=0", "snapshot.last=false", "log.samples=0", "log.trace=false", "log.tensorboard=false"},
       .steps = 60,
       .arguments = {"--nproc", "4"},
       .limit_s = 150});
  const auto mean = [](auto first, auto last) {
    double sum = 0;
    for (auto at = first; at != last; ++at) sum += *at;
    return sum / static_cast<double>(last - first);
  };
  const double at_first = mean(tuned.losses.begin(), tuned.losses.begin() + 5), at_last = mean(tuned.losses.end() - 5, tuned.losses.end());
  findings.at_most(fmt::format("7. four processes, 60 rounds of 32 slopes: loss at the end / at the beginning ({:.3f})", at_first), 1,
                   at_last / at_first, 0.99);
}

}  // namespace

void prove_one_byte_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  directions(options, findings);
  memory_and_replay(options, findings, log);
  learns(options, findings, log);
}

}  // namespace cairn::study
