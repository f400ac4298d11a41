// StreamBP: layers and head in slices along the sequence give the losses and gradients of whole sequences.
#include "parallel/activations/slices.h"

#include <cmath>
#include <map>
#include <optional>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/memory_tags.h"
#include "base/random.h"
#include "kernels/fill_normal.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "model/losses/dpo.h"
#include "model/losses/grpo.h"
#include "model/objective.h"
#include "model/some_experts.h"
#include "parallel/activations/activation_bytes.h"
#include "parallel/activations/recompute.h"
#include "parallel/pass.h"
#include "parallel/token_batch.h"

namespace cairn::parallel {
namespace {

using model::DecoderShape;

constexpr int64_t kSliceTestLength = 23, kSliceTestVocab = 19;

struct SliceCase {
  std::string name;
  DecoderShape shape;
  model::AdapterShape lora = {};
  bool packed = false, left_padded = false;
};

DecoderShape slice_shape(const std::string& kind, const std::string& wiring = "standard") {
  const model::Family& of = model::family(kind);
  DecoderShape shape{.vocab = kSliceTestVocab,
                     .embed = 12,
                     .layers = 3,
                     .heads = 3,
                     .kv_heads = kind == "gpt2" ? 3 : 1,
                     .head_dim = 4,
                     .mlp = 14,
                     .length = kSliceTestLength,
                     .tied = kind != "mistral",
                     .family = kind,
                     .qkv_bias = of.qkv_bias,
                     .out_bias = of.out_bias,
                     .mlp_bias = of.mlp_bias,
                     .residual = wiring};
  if (wiring == "ladder") shape.ladder_layers = {1, 2};
  return model::with_experts(shape);
}

std::vector<SliceCase> slice_cases() {
  std::vector<SliceCase> all;
  for (const std::string& kind : model::family_names()) all.push_back({kind, slice_shape(kind)});
  all.push_back({"packed", slice_shape("llama"), {}, true});
  all.push_back({"padded", slice_shape("llama"), {}, false, true});
  all.push_back({"window", slice_shape("mistral")});
  all.back().shape.window = 6;
  all.push_back({"packed_normed_heads", slice_shape("qwen3"), {}, true});
  all.push_back({"dropout", slice_shape("llama")});
  all.back().shape.dropout = 0.1;
  all.push_back({"lora", slice_shape("llama"), {.rank = 2, .alpha = 3, .targets = {"q_proj", "v_proj", "down_proj"}}});
  all.push_back({"lora_gpt2", slice_shape("gpt2"), {.rank = 1, .alpha = 0.5, .targets = {"c_attn", "c_proj"}, .by_root = true}});
  all.push_back({"ladder", slice_shape("llama", "ladder")});
  all.push_back({"ladder_qwen3", slice_shape("qwen3", "ladder"), {}, true});
  all.push_back({"parallel", slice_shape("gpt2", "parallel")});
  return all;
}

mesh::Batch slice_batch(const SliceCase& c, int64_t rows) {
  mesh::Batch batch = token_batch(rows, kSliceTestLength, kSliceTestVocab);
  const at::Tensor targets = batch.field("targets");
  targets[1].narrow(0, 4, 9).fill_(-100);  // a prompt in the middle, longer than a slice
  if (c.packed || c.left_padded) {
    const at::Tensor documents = at::zeros({rows, kSliceTestLength}, at::kLong), positions = at::zeros_like(documents);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < kSliceTestLength; ++j) {
        // Documents of 7 + i tokens; or padding of 3 + 4 i tokens, which sees itself alone.
        const int64_t begin = c.packed ? j / (7 + i) * (7 + i) : j < 3 + 4 * i ? 0 : 3 + 4 * i;
        documents[i][j] = 100 * i + begin;
        positions[i][j] = j - begin;
        if (c.left_padded && begin == 0) targets[i][j] = -100;
      }
    batch.fields["documents"] = {documents};
    batch.fields["positions"] = {positions};
  }
  return batch;
}

struct Result {
  double loss = 0;
  at::Tensor flat;  // gradients
  std::vector<int64_t> announced;
  int64_t activations_most = 0;
};

at::Tensor slice_weights(const model::Model& model, at::ScalarType dtype) {
  const mesh::FlatLayout layout = model.layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  model::initialize_parameters(model, flat, base::Random(3));
  for (const mesh::NamedTensor& one : layout.views(flat))
    if (one.name.ends_with(".bias") || one.name.ends_with(".lora_B.weight"))
      kernels::fill_normal(one.tensor.view({-1}), base::Random(4).for_name(one.name), 0, 0.03);
  return flat.mul_(model.loss_terms().empty() ? 4 : 2).to(dtype);  // a router sharpens rounding
}

Result run_slices(const model::Model& model, const at::Tensor& flat, const mesh::Batch& batch, const model::Objective& objective,
                  int64_t slice, int64_t head_slice) {
  mesh::FlatGradients sink(model.layout(), at::full_like(flat, 99.0), model.uses());
  Result result;
  sink.begin(1, [&](int64_t index) { result.announced.push_back(index); });
  const model::FlatWeights weights(model.layout(), flat);
  model::Buffers buffers = model.make_buffers(flat.options().dtype(flat.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  const mesh::Axes alone;
  base::MemoryTags memory;
  const model::PassOptions options{.head_slice = head_slice, .skip_unneeded_logits = true, .slice = slice, .draws_by_token = true};
  result.loss = execute({.model = model,
                         .at = weights,
                         .buffers = buffers,
                         .axes = alone,
                         .batch = batch,
                         .objective = objective,
                         .into = &sink,
                         .weight = 1.0 / 17,
                         .random = base::Random(8),
                         .memory = &memory,
                         .options = options,
                         .recompute = true})
                    .sum.item<double>();
  sink.finish();
  result.flat = sink.flat();
  result.activations_most = memory.of(base::MemoryUse::activations).peak;
  return result;
}

// Every gradient to `tolerance` of its own size, or of the largest where it is small against that. `rounded`: the same pass in lower
// precision, whose own error counts where it is larger.
void expect_gradients(const model::Model& model, const Result& found, const Result& whole, double tolerance, const std::string& what,
                      const Result* rounded = nullptr) {
  EXPECT_NEAR(found.loss, whole.loss, tolerance * std::abs(whole.loss)) << what;
  EXPECT_EQ(found.announced.size(), whole.announced.size()) << what << ": each gradient is announced once";
  const mesh::FlatLayout layout = model.layout();
  double largest = 0;
  for (size_t i = 0; i < layout.pieces.size(); ++i)
    largest = std::max(largest, layout.view(whole.flat, {static_cast<int32_t>(i)}).norm().item<double>());
  for (size_t i = 0; i < layout.pieces.size(); ++i) {
    const mesh::ParamId id{static_cast<int32_t>(i)};
    const auto apart = [&](const Result& one) { return (layout.view(one.flat, id) - layout.view(whole.flat, id)).norm().item<double>(); };
    const double size = layout.view(whole.flat, id).norm().item<double>();
    EXPECT_LE(apart(found), std::max(tolerance * std::max(size, 0.01 * largest), rounded ? 3 * apart(*rounded) : 0))
        << what << ": " << layout.pieces[i].name << " of size " << size;
  }
}

class InSlices : public testing::TestWithParam<SliceCase> {};

TEST_P(InSlices, GivesTheGradientsOfWholeSequences) {
  const SliceCase& c = GetParam();
  const auto model = model::make_decoder(c.shape, c.lora);
  const auto objective = model::make_next_token();
  for (const auto& [dtype, tolerance] : {std::pair{at::kDouble, 1e-10}, {at::kFloat, 1e-5}}) {
    const at::Tensor flat = slice_weights(*model, dtype);
    for (const int64_t rows : {1, 3}) {
      if (rows == 1 && c.left_padded) continue;
      mesh::Batch batch = rows > 1 ? slice_batch(c, rows) : mesh::slice(slice_batch(c, 3), 1, 2);
      const Result whole = run_slices(*model, flat.to(at::kDouble), batch, *objective, 0, 0),
                   rounded = run_slices(*model, flat, batch, *objective, 0, 0);
      for (const auto& [slice, head_slice] : {std::pair<int64_t, int64_t>{kSliceTestLength, 100}, {10, 7}, {7, 23}, {1, 1}})
        expect_gradients(*model, run_slices(*model, flat, batch, *objective, slice, head_slice), whole, (slice == 1 ? 2 : 1) * tolerance,
                         std::to_string(rows) + " rows, slices of " + std::to_string(slice), &rounded);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Decoders, InSlices, testing::ValuesIn(slice_cases()), [](const auto& test) { return test.param.name; });

// Contributions of slices are summed in fp32 before they are rounded.
TEST(InSlices, RoundHardlyMoreThanWholeSequencesInBf16) {
  for (const char* kind : {"llama", "mistral"}) {
    const SliceCase c{kind, slice_shape(kind)};
    const auto model = model::make_decoder(c.shape);
    const at::Tensor flat = slice_weights(*model, at::kBFloat16);
    const mesh::Batch batch = slice_batch(c, 3);
    const auto objective = model::make_next_token();
    const Result exact = run_slices(*model, flat.to(at::kDouble), batch, *objective, 0, 0);
    const auto error = [&](int64_t slice, int64_t head_slice) {
      const Result found = run_slices(*model, flat, batch, *objective, slice, head_slice);
      EXPECT_EQ(found.announced.size(), exact.announced.size());
      return (found.flat.to(at::kDouble) - exact.flat).norm().item<double>() / exact.flat.norm().item<double>();
    };
    const double whole = error(0, 0);
    EXPECT_LT(whole, 0.1) << kind;
    for (const auto& [slice, head_slice] : {std::pair<int64_t, int64_t>{10, 7}, {3, 5}})
      EXPECT_LE(error(slice, head_slice), 1.5 * whole) << kind << ", slices of " << slice;
  }
}

TEST(InSlices, TrainsPairsAndGivenLogProbabilities) {
  const SliceCase c{"llama", slice_shape("llama")};
  const auto model = model::make_decoder(c.shape);
  const at::Tensor flat = slice_weights(*model, at::kDouble);
  mesh::Batch pairs = slice_batch(c, 6);
  pairs.ids = at::arange(3);
  for (const char* name : {"tokens", "targets"}) pairs.fields[name].shape = mesh::Field::Shape::rows;
  pairs.fields["reference"] = {at::linspace(30, 90, 6, at::kDouble), mesh::Field::Shape::whole};
  mesh::Batch rollouts = slice_batch(c, 3);
  rollouts.fields["advantages"] = {at::tensor({1.5, -0.7, 0.4}, at::kDouble)};
  rollouts.fields["old_log_probs"] = {at::full({3, kSliceTestLength}, -3.0, at::kDouble)};
  rollouts.fields["reference_log_probs"] = {at::full({3, kSliceTestLength}, -2.5, at::kDouble)};
  using By = model::GrpoOptions::Normalisation;
  const auto check = [&](const mesh::Batch& batch, const model::Objective& objective, const std::string& what) {
    const Result whole = run_slices(*model, flat, batch, objective, 0, 0);
    for (const auto& [slice, head_slice] : {std::pair<int64_t, int64_t>{kSliceTestLength, 100}, {10, 7}, {5, 1}})
      expect_gradients(*model, run_slices(*model, flat, batch, objective, slice, head_slice), whole, 1e-10, what);
  };
  check(pairs, *model::make_dpo({.beta = 0.3, .label_smoothing = 0.1}), "pairs");
  check(rollouts, *model::make_grpo({.beta = 0.04}), "by sequence");
  check(rollouts, *model::make_grpo({.normalisation = By::tokens, .beta = 0.04, .temperature = 0.8}), "by token");
  check(rollouts, *model::make_grpo({.normalisation = By::length, .length = 40}), "by length");
}

// Counts the chunks of logits that are computed.
class CountNeeded final : public model::Objective {
 public:
  CountNeeded(const model::Objective& of, int64_t& needed) : of_(of), needed_(needed) {}
  Separates separates() const override { return of_.separates(); }
  bool reads_chunks() const override { return of_.reads_chunks(); }
  model::Losses evaluate(model::Values& outputs, const mesh::Batch& batch, model::Values* gradients, double weight,
                         const mesh::Axes& axes) const override {
    if (const auto chunks = outputs.value("logits").chunked_logits)
      for (int64_t i = 0; i < chunks->chunks(); ++i) needed_ += chunks->rows(i).needed;
    return of_.evaluate(outputs, batch, gradients, weight, axes);
  }

 private:
  const model::Objective& of_;
  int64_t& needed_;
};

TEST(InSlices, LeaveOutLogitsOfRowsWithoutATarget) {
  const SliceCase c{"llama", slice_shape("llama")};
  const auto model = model::make_decoder(c.shape);
  const at::Tensor flat = slice_weights(*model, at::kDouble);
  for (const auto& objective : {model::make_next_token(), model::make_grpo({.temperature = 0.7})}) {
    mesh::Batch batch = slice_batch(c, 3);
    batch.fields["advantages"] = {at::tensor({1.5, -0.7, 0.4}, at::kDouble)};
    const at::Tensor targets = batch.field("targets"), one = targets[2][5].clone();
    targets.fill_(-100);
    const auto check = [&](int64_t chunks) {
      int64_t needed = 0;
      const Result found = run_slices(*model, flat, batch, CountNeeded(*objective, needed), 10, 7);
      EXPECT_EQ(needed, chunks);
      const Result whole = run_slices(*model, flat, batch, *objective, 0, 0);
      EXPECT_LE((found.flat - whole.flat).abs().max().item<double>(), 1e-12 * (1 + whole.flat.abs().max().item<double>()));
      EXPECT_NEAR(found.loss, whole.loss, 1e-12);
      EXPECT_EQ(found.announced.size(), whole.announced.size());
    };
    check(1);  // no target at all: one chunk, for its gradient of 0
    targets[2][5].copy_(one);
    check(1);
    targets[0][0].copy_(one);
    check(2);
  }
}

TEST(InSlices, AreAsLargeAsABudgetAllows) {
  const auto model = model::make_decoder(slice_shape("llama"));
  const auto peak = [&](int64_t slices) {
    const ActivationSetup setup{.tokens = 960, .loss_chunks = 8, .slices = slices};
    std::vector<bool> recomputed;
    for (const auto& block : model->blocks()) recomputed.push_back(block->card().sliceable);
    return peak_activation_bytes(activation_bytes(*model, setup), recomputed);
  };
  const ActivationSetup setup{.tokens = 960, .loss_chunks = 8};
  EXPECT_GT(peak(1), peak(2));
  EXPECT_EQ(slice_within(static_cast<int64_t>(peak(1)) + 1, *model, setup, 960), 960);
  EXPECT_EQ(slice_within(static_cast<int64_t>(peak(1)) - 1, *model, setup, 960), 480);
  EXPECT_EQ(slice_within(static_cast<int64_t>(peak(4)) + 1, *model, setup, 960), 240);
  EXPECT_THROW(slice_within(1 << 10, *model, setup, 960), Error);
}

TEST(InSlices, KeepsOneInputForEachLayer) {
  DecoderShape shape{
      .vocab = 50, .embed = 16, .layers = 3, .heads = 2, .kv_heads = 1, .head_dim = 8, .mlp = 24, .length = kSliceTestLength};
  const auto model = model::make_decoder(shape);
  const at::Tensor flat = slice_weights(*model, at::kFloat);
  const mesh::Batch batch = token_batch(2, kSliceTestLength, 50);
  const Result found = run_slices(*model, flat, batch, *model::make_next_token(), 5, 5);
  // Inputs of 3 layers; what the head keeps (its input, statistics, the normed input and its gradient); the embedding's tokens.
  const double per_token = 3 * 16 * 4 + (3 * 16 + 1) * 4 + 8;
  EXPECT_NEAR(static_cast<double>(found.activations_most), per_token * 2 * kSliceTestLength, 0.02 * per_token * 2 * kSliceTestLength);
}

TEST(BlockGroups, AreTheLayersOfADecoder) {
  const auto of = [](const std::string& wiring, int64_t slice) {
    const auto model = model::make_decoder(slice_shape("llama", wiring));
    std::vector<std::string> text;
    for (const BlockGroup& group : group_blocks(*model, 0, model->blocks().size(), {}, slice)) {
      std::string one = group.sliced ? "*" : "";
      for (size_t i = group.first; i < group.last; ++i) one += " " + model->blocks()[i]->card().name;
      for (const std::string& name : group.writes) one += " > " + name;
      text.push_back(one);
    }
    return text;
  };
  EXPECT_EQ(of("standard", 0).size(), 8u);
  const std::vector<std::string> standard = of("standard", 4);
  ASSERT_EQ(standard.size(), 5u);
  EXPECT_EQ(standard[1], "* layers.0.attention layers.0.mlp > hidden.1");
  EXPECT_EQ(standard[4], " head");
  EXPECT_EQ(of("parallel", 4).size(), 5u);
  for (const std::string& one : of("ladder", 4)) SCOPED_TRACE(one);
}

}  // namespace
}  // namespace cairn::parallel
