// A whole decoder of each family through a pass: hand-written gradients against autograd of the plain form.
#include <algorithm>
#include <limits>
#include <map>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/memory_tags.h"
#include "base/random.h"
#include "kernels/device.h"
#include "kernels/fill_normal.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "model/objective.h"
#include "model/some_experts.h"
#include "parallel/by_autograd.h"
#include "parallel/pass.h"
#include "parallel/token_batch.h"

namespace cairn::model {
namespace {

// Documents of 3, 4, 5, ... tokens one after the other, each counting its positions from 0.
void pack(mesh::Batch& batch) {
  const at::Tensor documents = at::empty_like(batch.field("tokens")), positions = at::empty_like(documents);
  for (int64_t i = 0; i < documents.size(0); ++i)
    for (int64_t j = 0, document = 10 * i, left = 3 + i, at = 0; j < documents.size(1); ++j, --left, ++at) {
      if (left == 0) ++document, left = 4 + i, at = 0;
      documents[i][j] = document;
      positions[i][j] = at;
    }
  batch.fields["documents"] = {documents};
  batch.fields["positions"] = {positions};
}

struct Case {
  DecoderShape shape;
  int64_t samples, length;
  bool packed = false;
  AdapterShape lora = {};
};

// Biases and adapters, where a wrong sign hides.
void fill_what_starts_at_zero(const mesh::FlatLayout& layout, const at::Tensor& flat) {
  for (const mesh::NamedTensor& one : layout.views(flat))
    if (one.name.ends_with(".bias") || one.name.ends_with(".lora_B.weight") || one.name.ends_with(".pool_b") ||
        one.name.ends_with(".up.weight"))
      kernels::fill_normal(one.tensor.view({-1}), base::Random(4).for_name(one.name), 0, 0.03);
}

// By the blocks as they run, summed over the batches, where and in what type the weights are.
at::Tensor gradients_by_blocks(const Model& model, const at::Tensor& flat, const std::vector<mesh::Batch>& batches, double weight,
                               const mesh::FlatGradients::Announce& announce = nullptr) {
  mesh::FlatGradients sink(model.layout(), at::full_like(flat, 99.0), model.uses());
  sink.begin(static_cast<int64_t>(batches.size()), announce);
  const FlatWeights weights(model.layout(), flat);
  Buffers buffers = model.make_buffers(flat.options());
  const mesh::Axes alone;
  const auto objective = make_next_token();
  for (const mesh::Batch& batch : batches)
    parallel::execute({.model = model,
                       .at = weights,
                       .buffers = buffers,
                       .axes = alone,
                       .batch = batch,
                       .objective = *objective,
                       .into = &sink,
                       .weight = weight});
  sink.finish();
  return sink.flat();
}

class DecoderGradients : public testing::TestWithParam<Case> {};

// Forward and both gradients of every block, in double, against autograd of the plain form: rounding is all that may differ.
TEST_P(DecoderGradients, EqualThoseOfThePlainFormInDouble) {
  const auto& [shape, samples, length, packed, lora] = GetParam();
  const auto model = make_decoder(shape, lora);
  const mesh::FlatLayout layout = model->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  initialize_parameters(*model, flat, base::Random(3));
  fill_what_starts_at_zero(layout, flat);
  flat.mul_(lora.kind == AdapterKind::mos || shape.experts.count > 0 ? 4
                                                                     : 10);  // away from the linear regime, where wrong derivatives hide
  mesh::Batch batch = parallel::token_batch(samples, length, shape.vocab);
  if (packed) pack(batch);
  const double weight = 1.0 / 17;
  const auto expected = gradients_by_autograd(*model, layout, flat, model->make_buffers(at::kDouble), batch, "targets", weight);

  std::vector<int64_t> announced;
  const at::Tensor gradients = gradients_by_blocks(*model, flat, {batch}, weight, [&](int64_t index) { announced.push_back(index); });
  EXPECT_EQ(announced.size(), layout.pieces.size());
  double largest = 0;
  for (const at::Tensor& one : expected) largest = std::max(largest, one.norm().item<double>());
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor found = layout.view(gradients, {static_cast<int32_t>(i)});
    const double apart = (found - expected[i]).norm().item<double>();
    const double size = expected[i].norm().item<double>();
    // Small gradients are differences of large ones, and keep some roundings of those. A query that sees one key only, or one above all
    // others, has no gradient: what is left there is nothing but rounding, and differs between processors.
    const double roundings = size > 1e-12 ? 4 : 128;
    if (apart <= roundings * std::numeric_limits<double>::epsilon() * largest) continue;
    const double error = apart / (size > 1e-12 ? size : 1e-2);
    EXPECT_LT(error, 1e-11) << layout.pieces[i].name << ": " << apart << " apart, size " << size << ", largest " << largest;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Llama, DecoderGradients,
    testing::Values(
        Case{{.vocab = 23, .embed = 16, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 20, .length = 9, .tied = true}, 3, 9},
        Case{
            {.vocab = 11, .embed = 10, .layers = 1, .heads = 1, .kv_heads = 1, .head_dim = 10, .mlp = 7, .length = 5, .tied = false}, 1, 5},
        Case{{.vocab = 31, .embed = 12, .layers = 3, .heads = 6, .kv_heads = 1, .head_dim = 2, .mlp = 13, .length = 4, .tied = true}, 2, 1},
        Case{{.vocab = 7, .embed = 8, .layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 8, .mlp = 16, .length = 17, .tied = false},
             2,
             17}));

// Pools that three layers share: every row has the gradients of all layers that take it.
INSTANTIATE_TEST_SUITE_P(
    Pools, DecoderGradients,
    testing::Values(
        Case{.shape =
                 {.vocab = 23, .embed = 16, .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 20, .length = 9, .tied = true},
             .samples = 3,
             .length = 9,
             .lora = {.rank = 4,
                      .alpha = 7,
                      .targets = {"q_proj", "v_proj", "o_proj", "up_proj", "down_proj"},
                      .kind = AdapterKind::mos,
                      .equivalent_rank = 2,
                      .private_rank = 1,
                      .shards = 4}},
        Case{.shape =
                 {.vocab = 11, .embed = 12, .layers = 2, .heads = 2, .kv_heads = 2, .head_dim = 6, .mlp = 10, .length = 5, .tied = false},
             .samples = 2,
             .length = 5,
             .lora = {.rank = 4,
                      .alpha = 3,
                      .targets = {"k_proj", "gate_proj"},
                      .by_root = true,
                      .kind = AdapterKind::mos,
                      .equivalent_rank = 2,
                      .shards = 2,
                      .dissociate = false,
                      .share_rows = true}}));

std::vector<Case> of_bottlenecks() {
  std::vector<Case> cases;
  for (const AdapterStyle style : {AdapterStyle::adaptformer, AdapterStyle::pfeiffer, AdapterStyle::houlsby})
    cases.push_back(
        {.shape = {.vocab = 19, .embed = 12, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 6, .mlp = 14, .length = 11},
         .samples = 2,
         .length = 7,
         .lora = {.rank = 3, .kind = AdapterKind::bottleneck, .style = style, .branch_scale = style == AdapterStyle::pfeiffer ? 0.7 : 0}});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Bottlenecks, DecoderGradients, testing::ValuesIn(of_bottlenecks()));

// A shape of the family with odd sizes.
DecoderShape small(const std::string& kind) {
  const Family& of = family(kind);
  DecoderShape shape{.vocab = 19,
                     .embed = 12,
                     .layers = 2,
                     .heads = 3,
                     .kv_heads = kind == "gpt2" ? 3 : 1,
                     .head_dim = 4,
                     .mlp = 14,
                     .length = 11,
                     .tied = kind != "mistral",
                     .family = kind,
                     .qkv_bias = of.qkv_bias,
                     .out_bias = of.out_bias,
                     .mlp_bias = of.mlp_bias};
  if (of.linear_attention) shape.linear = {.heads = 3, .key_dim = 2, .value_dim = 4, .chunk = 16};
  return with_experts(shape);
}

std::vector<Case> of_every_family() {
  std::vector<Case> cases;
  for (const std::string& kind : family_names())
    for (const bool packed : {false, true}) cases.push_back({small(kind), 2, 11, packed});
  cases.push_back({small("llama"), 2, 11});
  cases.back().shape.qkv_bias = cases.back().shape.out_bias = cases.back().shape.mlp_bias = true;
  cases.push_back({small("mistral"), 2, 11, true});
  cases.back().shape.window = 3;
  cases.push_back({small("qwen3"), 1, 5});
  cases.back().shape.head_dim = 6;  // heads x head_dim is not the width
  cases.back().shape.qkv_bias = true;
  cases.push_back({small("gpt2"), 2, 7});
  cases.back().shape.tied = false;
  cases.push_back({small("llama"), 2, 11});
  cases.back().shape.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_length = 5};
  for (const LinearAttentionShape::Decay decay : {LinearAttentionShape::Decay::constant, LinearAttentionShape::Decay::none}) {
    cases.push_back({small("gla"), 2, 11, true});
    cases.back().shape.linear.decay = decay;
  }
  cases.push_back({small("gla"), 1, 37});  // several chunks
  cases.push_back({small("gla"), 2, 11, true});
  cases.back().shape.linear.softmax_layers = {1};  // a hybrid
  cases.push_back({small("gla"), 2, 11, false, {.rank = 2, .alpha = 3, .targets = {"q_proj", "g_proj", "o_proj"}}});
  cases.push_back({small("llama"), 2, 11, false, {.rank = 2, .alpha = 3, .targets = {"q_proj", "v_proj", "down_proj"}}});
  cases.push_back({small("qwen2"), 2, 5, false, {.rank = 3, .alpha = 5, .targets = {"*proj"}}});
  cases.push_back({small("gpt2"), 2, 7, false, {.rank = 1, .alpha = 0.5, .targets = {"c_attn", "c_proj"}, .by_root = true}});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Families, DecoderGradients, testing::ValuesIn(of_every_family()));

std::vector<Case> of_every_wiring() {
  std::vector<Case> cases;
  for (const std::string kind : {"llama", "gpt2"})
    for (const std::vector<int64_t>& ladder : std::vector<std::vector<int64_t>>{{}, {0, 1, 2}, {1, 2}, {0}, {0, 2}}) {
      cases.push_back({small(kind), 2, 7, kind == "llama"});
      cases.back().shape.layers = 3;
      cases.back().shape.residual = "ladder";
      cases.back().shape.ladder_layers = ladder;
    }
  cases.push_back({small("qwen3"), 2, 7});
  cases.back().shape.residual = "ladder";
  cases.back().shape.ladder_layers = {0, 1};
  for (const std::string kind : {"llama", "gpt2", "gla"}) {
    cases.push_back({small(kind), 2, 7});
    cases.back().shape.residual = "parallel";
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Wirings, DecoderGradients, testing::ValuesIn(of_every_wiring()));

std::vector<Case> of_every_pattern() {
  std::vector<Case> cases;
  for (const bool packed : {false, true}) {
    cases.push_back({small("llama"), 2, 75, packed});
    DecoderShape& shape = cases.back().shape;
    shape.length = 75, shape.heads = 4, shape.kv_heads = 2, shape.layers = 3;
    shape.pattern = kernels::BlockPattern{.block = 16, .local_blocks = 1, .stride = 2, .kv_heads = 2};
    shape.dense_layers = {1};
  }
  cases.push_back({small("gpt2"), 1, 90});
  cases.back().shape.length = 90;
  cases.back().shape.pattern = kernels::BlockPattern{.block = 32, .local_blocks = 1, .stride = 2, .kv_heads = 3, .dense_heads = 1};
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Patterns, DecoderGradients, testing::ValuesIn(of_every_pattern()));

std::vector<Case> of_streams() {
  std::vector<Case> cases;
  for (const char* kind : {"llama", "gpt2", "qwen3"})
    for (const bool packed : {false, true}) {
      cases.push_back({small(kind), 2, 11, packed});
      cases.back().shape.streams = {.count = 3, .prefix_tokens = 5, .smoothing = 0.1};
    }
  for (const char* wiring : {"ladder", "parallel"}) {
    cases.push_back({small("llama"), 2, 7});
    cases.back().shape.residual = wiring;
    if (cases.back().shape.residual == "ladder") cases.back().shape.ladder_layers = {0, 1};
    cases.back().shape.streams = {.count = 2, .prefix_tokens = 1, .smoothing = 0};
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Streams, DecoderGradients, testing::ValuesIn(of_streams()));

// Before model.parscale.start_step the model is the plain one, and its prefixes and mixer have no gradient.
TEST(ParallelStreams, ComputeAsThePlainModelWhereOneStreamIsAsked) {
  DecoderShape plain = small("llama"), shape = plain;
  shape.streams = {.count = 3, .prefix_tokens = 5, .smoothing = 0.01};
  const auto streamed = make_decoder(shape), single = make_decoder(plain);
  const at::Tensor flat = at::empty({streamed->elements()}), own = at::empty({single->elements()});
  initialize_parameters(*streamed, flat, base::Random(3));
  initialize_parameters(*single, own, base::Random(3));
  const mesh::Batch batch = parallel::token_batch(2, 11, shape.vocab);
  const auto gradients = [&](const Model& model, const at::Tensor& values, bool as_one) {
    mesh::FlatGradients sink(model.layout(), at::full_like(values, 99.0), model.uses());
    sink.begin(1, {});
    const FlatWeights weights(model.layout(), values);
    Buffers buffers = model.make_buffers(values.options());
    const mesh::Axes alone;
    const PassOptions options{.single_stream = as_one};
    const auto objective = make_next_token();
    const double loss = parallel::execute({.model = model,
                                           .at = weights,
                                           .buffers = buffers,
                                           .axes = alone,
                                           .batch = batch,
                                           .objective = *objective,
                                           .into = &sink,
                                           .options = options})
                            .sum.item<double>();
    sink.finish();
    return std::pair(loss, sink.flat());
  };
  const auto [loss, found] = gradients(*streamed, flat, true);
  const auto [plain_loss, expected] = gradients(*single, own, false);
  EXPECT_EQ(loss, plain_loss);
  EXPECT_NE(gradients(*streamed, flat, false).first, plain_loss);
  std::map<std::string, at::Tensor> by_name;
  for (const mesh::NamedTensor& one : single->layout().views(expected)) by_name[one.name] = one.tensor;
  for (const mesh::NamedTensor& one : streamed->layout().views(found)) {
    if (by_name.contains(one.name))
      EXPECT_TRUE(at::allclose(one.tensor, by_name.at(one.name), 1e-5, 1e-7)) << one.name;
    else
      EXPECT_EQ(one.tensor.abs().max().item<float>(), 0) << one.name;
  }
}

// The same in float where there is a GPU, whose kernels do other things at a time than those of a CPU: by parameter, so that the gain of
// one norm does not hide behind matrices.
void expect_gradients_in_float(const at::Device& device, const Case& one) {
  DecoderShape shape = one.shape;
  shape.embed = 16 * shape.heads, shape.head_dim = 16, shape.mlp = 80, shape.vocab = 40;
  const auto model = make_decoder(shape);
  const mesh::FlatLayout layout = model->layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  initialize_parameters(*model, flat, base::Random(3));
  fill_what_starts_at_zero(layout, flat);
  flat.mul_(3);
  mesh::Batch batch = parallel::token_batch(one.samples, one.length, shape.vocab);
  if (one.packed) pack(batch);
  const double weight = 1.0 / 17;
  const auto expected = gradients_by_autograd(*model, layout, flat, model->make_buffers(at::kDouble), batch, "targets", weight);

  for (auto& [name, field] : batch.fields) field.tensor = field.tensor.to(device);
  const at::Tensor gradients = gradients_by_blocks(*model, flat.to(device, at::kFloat), {batch}, weight).to(at::kCPU, at::kDouble);
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor found = layout.view(gradients, {static_cast<int32_t>(i)});
    EXPECT_LT((found - expected[i]).norm().item<double>(), 3e-5 * expected[i].norm().item<double>() + 1e-7)
        << shape.family << ", " << shape.residual << ": " << layout.pieces[i].name;
  }
}

TEST(DecoderInFloat, HasTheGradientsOfThePlainFormInEveryWiring) {
  for (const Case& one : of_every_wiring()) expect_gradients_in_float(at::kCPU, one);
}
TEST(DecoderOnGpu, HasTheGradientsOfThePlainFormInEveryWiring) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  for (const Case& one : of_every_wiring()) expect_gradients_in_float(at::Device(at::kCUDA, 0), one);
}

// Logits of a batch in float, by the blocks as they run.
at::Tensor logits_of(const Model& model, const at::Tensor& flat, const mesh::Batch& batch) {
  at::NoGradGuard no_grad;
  const FlatWeights weights(model.layout(), flat);
  Buffers buffers = model.make_buffers(at::kFloat);
  const mesh::Axes alone;
  const Call call{.weights = weights, .buffers = buffers, .axes = alone};
  Values values;
  for (const auto& [name, field] : batch.fields) values.put(name, field.tensor);
  for (const auto& block : model.blocks()) block->forward(values, nullptr, call);
  return values.get("logits");
}

class Packing : public testing::TestWithParam<std::string> {};

// Three documents in one row give what each gives alone.
TEST_P(Packing, ChangesNoLogitAndNoGradient) {
  DecoderShape shape = small(GetParam());
  shape.length = 23;
  const auto model = make_decoder(shape);
  const at::Tensor flat = at::empty({model->elements()});
  initialize_parameters(*model, flat, base::Random(6));
  flat.mul_(shape.experts.count > 0 ? 2 : 5);
  const std::vector<int64_t> lengths{9, 1, 13};
  mesh::Batch packed = parallel::token_batch(1, 23, shape.vocab);
  std::vector<int64_t> documents, positions;
  for (size_t d = 0; d < lengths.size(); ++d)
    for (int64_t i = 0; i < lengths[d]; ++i) documents.push_back(40 - static_cast<int64_t>(d)), positions.push_back(i);
  packed.fields["documents"] = {at::tensor(documents, at::kLong).view({1, -1})};
  packed.fields["positions"] = {at::tensor(positions, at::kLong).view({1, -1})};
  const at::Tensor together = logits_of(*model, flat, packed);
  std::vector<mesh::Batch> apart;
  for (int64_t d = 0, begin = 0; d < 3; begin += lengths[static_cast<size_t>(d++)]) {
    mesh::Batch one;
    one.ids = at::arange(1);
    for (const char* name : {"tokens", "targets"})
      one.fields[name] = {packed.field(name).narrow(1, begin, lengths[static_cast<size_t>(d)]).contiguous()};
    const at::Tensor found = together.narrow(1, begin, lengths[static_cast<size_t>(d)]), alone = logits_of(*model, flat, one);
    EXPECT_LT((found - alone).abs().max().item<double>(), 1e-6 * alone.abs().max().item<double>() + 1e-6) << "document " << d;
    apart.push_back(std::move(one));
  }
  const at::Tensor whole = gradients_by_blocks(*model, flat, {packed}, 0.1), parts = gradients_by_blocks(*model, flat, apart, 0.1);
  EXPECT_LT((whole - parts).norm().item<double>(), 1e-6 * parts.norm().item<double>() + 1e-7);
}
INSTANTIATE_TEST_SUITE_P(Families, Packing, testing::ValuesIn(family_names()));

TEST(Decoder, WithConsecutivePositionsIsBitwiseIdenticalToWithout) {
  const auto model = make_decoder(small("llama"));
  const at::Tensor flat = at::empty({model->elements()});
  initialize_parameters(*model, flat, base::Random(6));
  mesh::Batch batch = parallel::token_batch(2, 11, 19);
  const at::Tensor without = logits_of(*model, flat, batch);
  batch.fields["positions"] = {at::arange(11).unsqueeze(0).expand({2, -1}).contiguous()};
  EXPECT_TRUE(at::equal(without, logits_of(*model, flat, batch)));
}

class Books : public testing::TestWithParam<std::string> {};

TEST_P(Books, WhatItKeepsForBackwardAsItsCardsSay) {
  DecoderShape shape{.vocab = 50, .embed = 16, .layers = 3, .heads = 2, .kv_heads = 1, .head_dim = 8, .mlp = 24, .length = 8, .tied = true};
  shape.residual = GetParam();
  if (shape.residual == "ladder") shape.ladder_layers = {1, 2};
  const auto model = make_decoder(shape);
  const FlatWeights weights(model->layout(), at::zeros({model->elements()}));
  Buffers buffers = model->make_buffers(at::kFloat);
  const mesh::Batch batch = parallel::token_batch(2, 8, 50);
  mesh::FlatGradients sink(model->layout(), at::empty({model->elements()}), model->uses());
  const mesh::Axes alone;
  const auto objective = make_next_token();
  double expected = 0;  // elements a token, without the logits, which the objective turns into their gradient
  for (const auto& block : model->blocks())
    for (const BlockOp& operation : block->card().operations)
      if (operation.name != "logits") expected += operation.saved_elements_per_token;
  const auto most_with = [&](int64_t loss_chunks) {
    base::MemoryTags memory;
    sink.begin(1, nullptr);
    const PassOptions options{.loss_chunks = loss_chunks};
    parallel::execute({.model = *model,
                       .at = weights,
                       .buffers = buffers,
                       .axes = alone,
                       .batch = batch,
                       .objective = *objective,
                       .into = &sink,
                       .memory = &memory,
                       .options = options});
    const auto booked = memory.of(base::MemoryUse::activations);
    EXPECT_EQ(booked.now, 0);
    return static_cast<double>(booked.peak);
  };
  EXPECT_NEAR(most_with(1), expected * 16 * 4, 0.05 * expected * 16 * 4);
  EXPECT_EQ(most_with(3) - most_with(1), 16 * 16 * 4) << "beside chunked logits the gradient of the head's input";
}
INSTANTIATE_TEST_SUITE_P(Wirings, Books, testing::Values("standard", "ladder", "parallel"));

TEST(Llama, GivesTheSameLossInFloatAsThePlainForm) {
  const DecoderShape shape{
      .vocab = 101, .embed = 64, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .mlp = 96, .length = 33, .tied = true};
  const auto model = make_decoder(shape);
  const at::Tensor flat = at::empty({model->elements()});
  initialize_parameters(*model, flat, base::Random(5));
  Buffers buffers = model->make_buffers(at::kFloat);
  const mesh::Batch batch = parallel::token_batch(3, 33, 101);
  const FlatWeights weights(model->layout(), flat);
  const mesh::Axes alone;
  const auto objective = make_next_token();
  const Losses losses =
      parallel::execute({.model = *model, .at = weights, .buffers = buffers, .axes = alone, .batch = batch, .objective = *objective});
  Values values;
  for (const auto& [name, field] : batch.fields) values.put(name, field.tensor);
  const Call call{.weights = weights, .buffers = buffers, .axes = alone};
  at::NoGradGuard no_grad;
  for (const auto& block : model->blocks()) block->plain(values, call);
  const at::Tensor plain =
      at::cross_entropy_loss(values.get("logits").reshape({-1, 101}), batch.field("targets").reshape({-1}), {}, at::Reduction::Sum, -100);
  EXPECT_NEAR(losses.sum.item<double>(), plain.item<double>(), 1e-5 * plain.item<double>());
  EXPECT_EQ(losses.count.item<int64_t>(), 3 * 33 - 1);
  EXPECT_EQ(losses.per_sample.size(0), 3);
}

}  // namespace
}  // namespace cairn::model
