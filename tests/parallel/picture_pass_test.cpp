// Models of pictures through a pass: hand-written gradients against autograd of the plain form; whole models and their subnets; along tp.
#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/fill_normal.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/objective.h"
#include "model/supernet/sliced_weight.h"
#include "model/supernet/subnet.h"
#include "model/vision/conv_net.h"
#include "parallel/by_autograd.h"
#include "parallel/layout/model_shard.h"
#include "parallel/layout/tensor_split.h"
#include "parallel/pass.h"
#include "parallel/token_batch.h"

namespace cairn::model {
namespace {

at::Tensor drawn(std::vector<int64_t> shape, const char* name) {
  const at::Tensor tensor = at::empty(shape, at::kDouble);
  const base::Random random = base::Random(5).for_name(name);
  for (int64_t i = 0; i < tensor.numel(); ++i)
    tensor.mutable_data_ptr<double>()[i] = static_cast<double>(random.normal(static_cast<uint64_t>(i)));
  return tensor;
}

mesh::Batch picture_batch(int64_t samples, int64_t channels, int64_t size, int64_t classes) {
  mesh::Batch batch;
  batch.ids = at::arange(3, 3 + samples);
  batch.fields["pixels"] = {drawn({samples, channels, size, size}, "pixels")};
  batch.fields["labels"] = {at::arange(samples).remainder(classes)};
  return batch;
}

DecoderShape vit_shape(int64_t layers = 2) {
  DecoderShape shape{.vocab = 5,
                     .embed = 12,
                     .layers = layers,
                     .heads = 3,
                     .kv_heads = 3,
                     .head_dim = 4,
                     .mlp = 16,
                     .length = 0,
                     .tied = false,
                     .family = "vit",
                     .qkv_bias = true,
                     .out_bias = true,
                     .mlp_bias = true,
                     .pictures = {.channels = 2, .size = 6, .patch = 2}};
  shape.length = shape.pictures.positions();
  return shape;
}

// Weights away from the linear regime, where wrong derivatives hide.
at::Tensor starting_weights(const Model& model, double scale) {
  const mesh::FlatLayout layout = model.layout();
  const at::Tensor flat = at::empty({layout.elements}, at::kDouble);
  initialize_parameters(model, flat, base::Random(3));
  for (const mesh::NamedTensor& one : layout.views(flat))
    if (one.name.ends_with(".bias")) kernels::fill_normal(one.tensor.view({-1}), base::Random(4).for_name(one.name), 0, 0.1);
  return flat.mul_(scale);
}

struct PassResult {
  at::Tensor gradients, loss;
  Buffers buffers;
};

PassResult pass_over(const Model& model, const at::Tensor& flat, const mesh::Batch& batch, const Objective& objective, double weight,
                     const Subnet* subnet = nullptr, bool recompute = false) {
  mesh::FlatGradients sink(model.layout(), at::full_like(flat, 99.0), model.uses());
  sink.begin(1, nullptr, /*some_leave_out=*/subnet != nullptr);
  const FlatWeights weights(model.layout(), flat);
  PassResult result{.gradients = {}, .loss = {}, .buffers = model.make_buffers(flat.options())};
  const mesh::Axes alone;
  PassOptions options{.subnet = subnet};
  if (recompute) options.recompute.assign(model.blocks().size(), true);
  result.loss = parallel::execute({.model = model,
                                   .at = weights,
                                   .buffers = result.buffers,
                                   .axes = alone,
                                   .batch = batch,
                                   .objective = objective,
                                   .into = &sink,
                                   .weight = weight,
                                   .options = options,
                                   .recompute = recompute})
                    .sum;
  sink.finish();
  result.gradients = sink.flat();
  return result;
}

void expect_gradients(const Model& model, const at::Tensor& flat, const mesh::Batch& batch, const std::string& targets,
                      const Objective& objective, const Subnet* subnet = nullptr) {
  const mesh::FlatLayout layout = model.layout();
  const double weight = 1.0 / 7;
  const auto expected = gradients_by_autograd(model, layout, flat, model.make_buffers(at::TensorOptions().dtype(at::kDouble)), batch,
                                              targets, weight, subnet);
  for (const bool recompute : {false, true}) {
    const at::Tensor found = pass_over(model, flat, batch, objective, weight, subnet, recompute).gradients;
    double largest = 0;
    for (const at::Tensor& one : expected) largest = std::max(largest, one.defined() ? one.norm().item<double>() : 0);
    EXPECT_GT(largest, 1e-3);
    for (size_t i = 0; i < expected.size(); ++i) {
      const at::Tensor here = layout.view(found, {static_cast<int32_t>(i)});
      const at::Tensor right = expected[i].defined() ? expected[i] : at::zeros_like(here);
      EXPECT_LT((here - right).norm().item<double>(), 1e-11 * right.norm().item<double>() + 1e-13 * largest)
          << layout.pieces[i].name << (recompute ? ", recomputed" : "");
    }
  }
}

TEST(VisionTransformer, HasTheGradientsOfThePlainForm) {
  const auto model = make_decoder(vit_shape());
  EXPECT_EQ(model->positions(), 10);
  expect_gradients(*model, starting_weights(*model, 4), picture_batch(4, 2, 6, 5), "labels", *make_classification());
}

TEST(VisionTransformer, SeesAllPatchesFromAllPatches) {
  const auto model = make_decoder(vit_shape(1));
  const at::Tensor flat = starting_weights(*model, 4);
  const FlatWeights weights(model->layout(), flat);
  Buffers buffers = model->make_buffers(at::kDouble);
  const mesh::Axes alone;
  const auto logits = [&](const at::Tensor& pixels) {
    Values values;
    values.put("pixels", pixels);
    for (const auto& block : model->blocks())
      block->forward(values, nullptr, {.weights = weights, .buffers = buffers, .axes = alone, .needs = {false, false}});
    return values.get("logits");
  };
  const at::Tensor pixels = drawn({1, 2, 6, 6}, "pixels"), before = logits(pixels);
  for (const int64_t row : {0, 5}) {  // of the first and the last patch
    at::Tensor changed = pixels.clone();
    changed[0][1][row][row] += 1;
    EXPECT_GT((logits(changed) - before).abs().max().item<double>(), 1e-6);
  }
}

TEST(ConvNet, HasTheGradientsOfThePlainForm) {
  for (const int64_t kernel : {1, 3}) {
    const auto model =
        make_conv_net({.channels = 2, .size = 6, .classes = 3, .widths = {8, 12}, .depths = {2, 1}, .expand = 2, .kernel = kernel});
    expect_gradients(*model, starting_weights(*model, 1), picture_batch(5, 2, 6, 3), "labels", *make_classification());
  }
}

Subnet conv_subnet(const Model& model) {
  Subnet subnet = whole_subnet(model.elastic());
  subnet.depth = {1, 2};
  subnet.width = {8, 16, 8, 24};
  return subnet;
}

TEST(ConvNet, HasTheGradientsOfThePlainFormInASubnet) {
  for (const int64_t kernel : {1, 3}) {
    const auto model =
        make_conv_net({.channels = 2, .size = 5, .classes = 3, .widths = {8, 8}, .depths = {2, 2}, .expand = 4, .kernel = kernel});
    const Subnet subnet = conv_subnet(*model);
    expect_gradients(*model, starting_weights(*model, 1), picture_batch(5, 2, 5, 3), "labels", *make_classification(), &subnet);
  }
}

// Outside of a subnet there is no gradient, not a small one.
TEST(ConvNet, ASubnetLeavesNoGradientOutside) {
  const auto model = make_conv_net({.channels = 2, .size = 5, .classes = 3, .widths = {8, 8}, .depths = {2, 2}, .expand = 4, .kernel = 3});
  const Subnet subnet = conv_subnet(*model);
  const ElasticShape shape = model->elastic();
  const at::Tensor gradients =
      pass_over(*model, starting_weights(*model, 1), picture_batch(5, 2, 5, 3), *make_classification(), 1, &subnet).gradients;
  int64_t checked = 0;
  for (const mesh::NamedTensor& one : model->layout().views(gradients))
    for (size_t i = 0; i < shape.layers.size(); ++i) {
      const ElasticLayer& layer = shape.layers[i];
      if (!one.name.starts_with(layer.tensors)) continue;
      ++checked;
      if (!subnet.runs(layer)) {
        EXPECT_EQ(one.tensor.count_nonzero().item<int64_t>(), 0) << one.name;
        continue;
      }
      for (const MiddleTensor& middle : layer.of_middle) {
        if (middle.name != one.name) continue;
        const int64_t active = subnet.width[i], rest = one.tensor.size(middle.dim) - active;
        EXPECT_GT(one.tensor.narrow(middle.dim, 0, active).count_nonzero().item<int64_t>(), 0) << one.name;
        EXPECT_EQ(one.tensor.narrow(middle.dim, active, rest).count_nonzero().item<int64_t>(), 0) << one.name;
      }
    }
  EXPECT_EQ(checked, 4 * 7);
}

TEST(ConvNet, ASubnetLeavesTheRunningStatisticsAlone) {
  const auto model = make_conv_net({.channels = 2, .size = 5, .classes = 3, .widths = {8, 8}, .depths = {2, 2}, .expand = 4, .kernel = 3});
  const Subnet subnet = conv_subnet(*model);
  const auto pending = [&](const Subnet* of) {
    double sum = 0;
    const PassResult result = pass_over(*model, starting_weights(*model, 1), picture_batch(5, 2, 5, 3), *make_classification(), 1, of);
    for (const auto& [name, tensor] : result.buffers)
      if (name.ends_with(".pending")) sum += tensor.abs().sum().item<double>();
    return sum;
  };
  EXPECT_EQ(pending(&subnet), 0);
  EXPECT_GT(pending(nullptr), 0);
}

DecoderShape elastic_shape_of(const std::string& family) {
  DecoderShape shape{.vocab = 11, .embed = 12, .layers = 3, .heads = 3, .kv_heads = 3, .head_dim = 4, .mlp = 16, .length = 6};
  shape.family = family;
  shape.tied = false;
  if (family == "gpt2") shape.qkv_bias = shape.out_bias = shape.mlp_bias = true;
  shape.elastic_layers = true;
  return shape;
}

std::unique_ptr<Model> elastic_decoder(const std::string& family, int64_t layers = 3) {
  const DecoderShape shape = elastic_shape_of(family);
  std::vector<std::string> prefixes;
  const auto decoder = make_decoder(shape);
  for (const ElasticLayer& layer : decoder->elastic().layers) prefixes.push_back(layer.tensors);
  EXPECT_EQ(std::ssize(prefixes), layers);
  return make_decoder(shape, {}, make_sliced_rule(prefixes, {4, 8, 16}));
}

TEST(ElasticDecoder, HasTheGradientsOfThePlainFormInASubnet) {
  for (const char* family : {"llama", "gpt2", "qwen2"}) {
    const auto model = elastic_decoder(family);
    const mesh::Batch batch = parallel::token_batch(3, 6, 11);
    const at::Tensor flat = starting_weights(*model, 10);
    expect_gradients(*model, flat, batch, "targets", *make_next_token());
    for (const int64_t width : {4, 8}) {
      const Subnet subnet{.depth = {2}, .width = {width, width, width}};
      expect_gradients(*model, flat, batch, "targets", *make_next_token(), &subnet);
    }
  }
}

TEST(ElasticDecoder, IsThePlainOneAsAWhole) {
  for (const char* family : {"llama", "gpt2"}) {
    const auto elastic = elastic_decoder(family), plain = make_decoder(elastic_shape_of(family));
    const mesh::Batch batch = parallel::token_batch(3, 6, 11);
    const at::Tensor flat = starting_weights(*elastic, 10);
    const Subnet whole = whole_subnet(elastic->elastic());
    const PassResult expected = pass_over(*plain, flat, batch, *make_next_token(), 1);
    for (const Subnet* subnet : {static_cast<const Subnet*>(nullptr), &whole}) {
      const PassResult found = pass_over(*elastic, flat, batch, *make_next_token(), 1, subnet);
      EXPECT_LT((found.gradients - expected.gradients).abs().max().item<double>(), 1e-13 * expected.gradients.abs().max().item<double>());
      EXPECT_NEAR(found.loss.item<double>(), expected.loss.item<double>(), 1e-12);
    }
  }
}

// A model on some ranks along tp: the loss, and the gradients of the whole parameters.
PassResult pass_along_tp(comm::World& world, const Model& model, const mesh::Batch& batch, const Objective& objective,
                         const Subnet* subnet) {
  parallel::Plan plan;
  plan.mesh.axes = {{"tp", world.size()}};
  for (const Parameter& parameter : model.parameters())
    plan.placements[parameter.name] = {{{"tp", parallel::tensor_split(parameter, world.size())}}};
  const parallel::ModelShard shard = parallel::model_shard(model, plan, world.rank());
  const mesh::FlatLayout whole_layout = model.layout();
  const at::Tensor whole = starting_weights(model, 4), flat = at::empty({shard.layout.elements}, at::kDouble);
  std::vector<mesh::Placement> placements;
  for (size_t i = 0; i < shard.parameters.size(); ++i) {
    const mesh::ParamId id{static_cast<int32_t>(i)};
    shard.layout.view(flat, id).copy_(parallel::cut_out(whole_layout.view(whole, id), shard.parameters[i].local_shard));
    placements.push_back(plan.placements.at(model.parameters()[i].name));
  }
  const FlatWeights weights(shard.layout, flat, placements);
  mesh::FlatGradients sink(shard.layout, at::full({shard.layout.elements}, 99.0, at::kDouble), model.uses());
  sink.begin(1, nullptr, /*some_leave_out=*/true);
  mesh::Axes axes;
  if (world.size() > 1) axes.put("tp", world.everyone());
  PassResult result{.gradients = at::zeros_like(whole), .loss = {}, .buffers = model.make_buffers(at::TensorOptions().dtype(at::kDouble))};
  const PassOptions options{.subnet = subnet};
  result.loss = parallel::execute({.model = model,
                                   .at = weights,
                                   .buffers = result.buffers,
                                   .axes = axes,
                                   .batch = batch,
                                   .objective = objective,
                                   .into = &sink,
                                   .weight = 1.0 / 7,
                                   .options = options})
                    .sum;
  sink.finish();
  for (size_t i = 0; i < shard.parameters.size(); ++i) {
    const mesh::ParamId id{static_cast<int32_t>(i)};
    at::Tensor together = at::zeros(model.parameters()[i].shape, at::kDouble);
    parallel::put_back(together, shard.parameters[i].local_shard, shard.layout.view(sink.flat(), id));
    world.everyone().all_reduce(together, comm::Reduce::sum, {comm::Purpose::gradient, "check"}).wait_host();
    whole_layout.view(result.gradients, id).copy_(together);
  }
  return result;
}

void expect_same_along_tp(const Model& model, const mesh::Batch& batch, const Objective& objective, const Subnet* subnet, int ranks) {
  PassResult alone;
  harness::on_ranks(1, [&](comm::World& world) { alone = pass_along_tp(world, model, batch, objective, subnet); });
  harness::on_ranks(ranks, [&](comm::World& world) {
    const PassResult found = pass_along_tp(world, model, batch, objective, subnet);
    EXPECT_NEAR(found.loss.item<double>(), alone.loss.item<double>(), 1e-11 * std::abs(alone.loss.item<double>()));
    const double largest = alone.gradients.abs().max().item<double>();
    const mesh::FlatLayout layout = model.layout();
    for (size_t i = 0; i < layout.pieces.size(); ++i) {
      const mesh::ParamId id{static_cast<int32_t>(i)};
      EXPECT_LT((layout.view(found.gradients, id) - layout.view(alone.gradients, id)).abs().max().item<double>(), 1e-11 * largest)
          << layout.pieces[i].name;
    }
  });
}

TEST(VisionTransformer, GivesTheSameGradientsAlongTp) {
  DecoderShape shape = vit_shape();
  shape.heads = shape.kv_heads = 4, shape.head_dim = 3;
  for (const char* wiring : {"standard", "parallel"}) {
    shape.residual = wiring;
    expect_same_along_tp(*make_decoder(shape), picture_batch(3, 2, 6, 5), *make_classification(), nullptr, 2);
  }
}

TEST(ElasticDecoder, GivesTheSameGradientsAlongTp) {
  DecoderShape shape = elastic_shape_of("llama");
  shape.heads = shape.kv_heads = 4, shape.head_dim = 3 + 1, shape.embed = 16;
  std::vector<std::string> prefixes;
  const auto decoder = make_decoder(shape);
  for (const ElasticLayer& layer : decoder->elastic().layers) prefixes.push_back(layer.tensors);
  const auto model = make_decoder(shape, {}, make_sliced_rule(prefixes, {4, 8, 16}));
  for (const int64_t width : {4, 8, 16}) {
    const Subnet subnet{.depth = {2}, .width = {width, width, width}};
    for (const int ranks : {2, 4}) expect_same_along_tp(*model, parallel::token_batch(3, 6, 11), *make_next_token(), &subnet, ranks);
  }
}

}  // namespace
}  // namespace cairn::model
