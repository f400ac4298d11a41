// StreamBP: layers and head in slices along the sequence, forward and backward. The baseline is the product's own activation recomputation
// (recompute.mode = full) with whole logits.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "comm/label.h"
#include "kernels/aten.h"
#include "memory/host_allocator.h"
#include "model/losses/dpo.h"
#include "model/losses/grpo.h"
#include "model/objective.h"
#include "proofs/hand_built.h"
#include "proofs/layout_run.h"
#include "proofs/stream_trial.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

constexpr int64_t kLength = 2048, kVocab = 32000;

// 1. Every parameter's gradient against that of whole sequences.
void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr int64_t kSmallVocab = 512;
  const auto compare = [&](const std::string& what, const model::DecoderShape& shape, const mesh::Batch& batch,
                           const model::Objective& objective, const std::vector<StreamWay>& ways, const model::AdapterShape& lora = {}) {
    for (const auto& [dtype, bound] : {std::pair{at::kDouble, 1e-10}, {at::kFloat, 1e-5}}) {
      StreamTrial trial(shape, dtype, options.seed, lora);
      const double loss = trial.run(batch, objective, {}).loss;
      const at::Tensor whole = trial.gradients().clone();
      double most = 0;
      int64_t twice = 0;
      for (const StreamWay& way : ways) {
        const StreamTrial::Outcome outcome = trial.run(batch, objective, way);
        most = std::max({most, std::abs(outcome.loss / loss - 1), trial.apart(whole)});
        for (const auto& [index, times] : outcome.announced) twice += times != 1;
      }
      const std::string_view type = dtype == at::kDouble ? "fp64" : "fp32";
      log.info("{}, {}: {:.2g}", what, type, most);
      findings.at_most(fmt::format("1. {}, {}: largest relative difference of loss and gradients", what, type), 0, most, bound);
      findings.at_most(fmt::format("1. {}, {}: gradients that are not announced exactly once", what, type), 0, static_cast<double>(twice),
                       0);
    }
  };
  const model::DecoderShape shape = stream_shape(kSmallVocab, kLength);
  const auto next_token = model::make_next_token();
  const std::vector<StreamWay> all{streamed(kLength, kLength), streamed(700, 100), streamed(64, 7)}, one{streamed(700, 100)};
  compare("SFT with prompts, slices 2048, 700, 64", shape, stream_batch(options.seed, 1, kLength, kSmallVocab), *next_token, all);

  constexpr int64_t kShort = 900;
  model::DecoderShape dropped = stream_shape(kSmallVocab, kShort);
  dropped.dropout = 0.1;
  compare("dropout 0.1", dropped, stream_batch(options.seed, 2, kShort, kSmallVocab), *next_token, one);
  const model::DecoderShape less = stream_shape(kSmallVocab, kShort);
  compare("LoRA", less, stream_batch(options.seed, 2, kShort, kSmallVocab), *next_token, one,
          {.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj", "down_proj"}});
  mesh::Batch padded = stream_batch(options.seed, 3, kShort, kSmallVocab);
  const at::Tensor documents = at::zeros({3, kShort}, at::kLong), positions = at::zeros_like(documents);
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t padding = 50 + 200 * i;
    documents[i].narrow(0, padding, kShort - padding).fill_(1);
    positions[i].narrow(0, padding, kShort - padding).copy_(at::arange(kShort - padding));
  }
  padded.fields["documents"] = {documents};
  padded.fields["positions"] = {positions};
  compare("left padding", less, padded, *next_token, one);

  mesh::Batch pairs = stream_batch(options.seed, 6, 400, kSmallVocab);
  pairs.ids = at::arange(3);
  for (const char* name : {"tokens", "targets"}) pairs.fields[name].shape = mesh::Field::Shape::rows;
  pairs.fields["reference"] = {at::linspace(900, 1100, 6, at::kDouble), mesh::Field::Shape::whole};
  compare("DPO, 3 pairs", less, pairs, *model::make_dpo({.beta = 0.01}), {streamed(150, 100), streamed(64, 7)});
  mesh::Batch rollouts = stream_batch(options.seed, 3, 400, kSmallVocab);
  rollouts.fields["advantages"] = {at::tensor({1.0, -0.8, 0.3}, at::kDouble)};
  rollouts.fields["old_log_probs"] = {at::full({3, 400}, -std::log(kSmallVocab), at::kDouble)};
  rollouts.fields["reference_log_probs"] = {at::full({3, 400}, -std::log(kSmallVocab) - 0.1, at::kDouble)};
  using By = model::GrpoOptions::Normalisation;
  for (const auto& [by, name] : {std::pair{By::sequence, "sequence"}, {By::tokens, "tokens"}, {By::length, "length"}})
    compare(fmt::format("GRPO by {}", name), less, rollouts,
            *model::make_grpo({.normalisation = by, .beta = 0.04, .temperature = 0.9, .length = 400}), {streamed(150, 100)});
}

// 2. The peak of a pass beside weights and gradients, of one sequence in fp32.
void memory_peaks(const ProofOptions& options, Findings& findings, base::Log& log) {
  const auto next_token = model::make_next_token();
  const auto peak = [&](int64_t vocab, int64_t length, const StreamWay& way) {
    StreamTrial trial(stream_shape(vocab, length), at::kFloat, options.seed);
    const mesh::Batch batch = stream_batch(options.seed, 1, length, vocab);
    return static_cast<double>(trial.run(batch, *next_token, way).peak_bytes);
  };
  constexpr int64_t kSlice = 256, kHeadSlice = 64;
  const auto mib = [](double bytes) { return bytes / (1 << 20); };
  for (const auto& [vocab, bound] : {std::pair<int64_t, double>{kVocab, 4.0}, {256, 1.8}}) {
    const double baseline = peak(vocab, kLength, kRecomputation), sliced = peak(vocab, kLength, streamed(kSlice, kHeadSlice));
    const double finer = peak(vocab, kLength, streamed(kSlice / 2, kHeadSlice));
    log.info("vocabulary {}: recomputation {:.1f} MiB, in slices of 256 {:.1f}, of 128 {:.1f}", vocab, mib(baseline), mib(sliced),
             mib(finer));
    findings.at_least(fmt::format("2. vocabulary {}: peak of recomputation / peak in slices of 256", vocab), 1, baseline / sliced, bound);
    findings.at_least(fmt::format("2. vocabulary {}: the same in slices of 128", vocab), 1, baseline / finer, bound);
  }
  // Affine in T: three lengths on one line, whose slope is that of what must grow.
  const double a = peak(kVocab, 1024, streamed(kSlice, kHeadSlice)), b = peak(kVocab, 2048, streamed(kSlice, kHeadSlice)),
               c = peak(kVocab, 3072, streamed(kSlice, kHeadSlice));
  const double d = 256, kv = 2 * 64, per_token = 4 * (4 * d + 4 * kv + 2 * d);  // checkpoints of 4 layers; k, v, dk, dv; H, dH
  findings.at_most("2. peaks at 1024, 2048 and 3072 tokens: distance of the middle one from a line", 0, std::abs(b - (a + c) / 2) / b,
                   0.03);
  log.info("peaks at 1024, 2048 and 3072 tokens: {:.1f}, {:.1f}, {:.1f} MiB", mib(a), mib(b), mib(c));
  findings.at_most("2. slope of the peak / bytes of checkpoints, keys, values, their gradients, H and dH", 1, (c - a) / 2048 / per_token,
                   1.3);
}

// 3. Time.
void speed(const ProofOptions& options, Findings& findings, base::Log& log) {
  const auto next_token = model::make_next_token();
  StreamTrial trial(stream_shape(kVocab, kLength), at::kFloat, options.seed);
  const mesh::Batch batch = random_tokens({.seed = options.seed, .samples = 1, .length = kLength, .vocab = kVocab});  // all are targets
  const StreamWay slices = streamed((kLength + 2) / 3, 256);
  std::vector<double> ratios, baseline;
  for (int round = 0; round < 4; ++round) {  // interleaved; the first warms up
    const double whole = trial.run(batch, *next_token, kRecomputation).seconds, sliced = trial.run(batch, *next_token, slices).seconds;
    if (round == 0) continue;
    baseline.push_back(whole);
    ratios.push_back(sliced / whole);
  }
  std::ranges::sort(ratios);
  std::ranges::sort(baseline);
  log.info("recomputation {:.2f} s; in slices {:.3f} of it (from {:.3f} to {:.3f})", baseline[1], ratios[1], ratios.front(), ratios.back());
  findings.at_most("3. time of a pass in slices of T/3 / recomputation with whole logits, median of 3", 1, ratios[1], 1.15);
}

// 4. Four ranks with ZeRO 2: as many reductions, the same gradients.
void reductions(const ProofOptions& options, Findings& findings) {
  const base::Recipe recipe =
      small_decoder(options, {"memory.zero=2", "train.global_batch=4", "data.length=64", "optim.kind=sgd", "train.micro_batch=1"});
  const RunStats whole = collect_stats({.recipe = with(recipe, {"recompute.mode=full"}), .ranks = 4, .steps = 2});
  const RunStats sliced = collect_stats(
      {.recipe = with(recipe, {"recompute.mode=stream", "recompute.slice=9", "recompute.head_slice=10"}), .ranks = 4, .steps = 2});
  double messages = 0, messages_sliced = 0, bytes = 0, bytes_sliced = 0;
  for (size_t rank = 0; rank < 4; ++rank) {
    messages += static_cast<double>(whole.ranks[rank].messages.at(comm::Purpose::gradient));
    messages_sliced += static_cast<double>(sliced.ranks[rank].messages.at(comm::Purpose::gradient));
    bytes += static_cast<double>(whole.ranks[rank].sent.at(comm::Purpose::gradient));
    bytes_sliced += static_cast<double>(sliced.ranks[rank].sent.at(comm::Purpose::gradient));
  }
  findings.at_most("4. four ranks, ZeRO 2: messages of gradients in a step, in slices", messages, messages_sliced, messages);
  findings.at_most("4. four ranks, ZeRO 2: bytes of gradients, in slices / whole", 1, bytes_sliced / bytes, 1.01);
  findings.at_most("4. four ranks, ZeRO 2: losses apart", 0, largest_relative_difference(sliced.losses, whole.losses), 1e-5);
  findings.at_most("4. four ranks, ZeRO 2: parameters apart after three steps", 0, largest_difference(sliced.parameters, whole.parameters),
                   1e-5);
}

}  // namespace

void prove_streambp(const ProofOptions& options, Findings& findings, base::Log& log) {
  memory::install_host_allocator();
  memory_peaks(options, findings, log);
  speed(options, findings, log);
  reductions(options, findings);
  exactness(options, findings, log);
  findings.skip("5. one H200: 2.8 times the length of recomputation with whole logits in 40 GB", "needs a GPU: --device cuda");
}

}  // namespace cairn::study
