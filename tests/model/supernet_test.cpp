#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/losses/distillation.h"
#include "model/model.h"
#include "model/supernet/draw.h"
#include "model/supernet/extract.h"
#include "model/supernet/subnet.h"
#include "model/vision/conv_config.h"
#include "model/vision/conv_net.h"

namespace cairn::model {
namespace {

using testing::HasSubstr;

template <typename Act>
std::string supernet_refusal(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

const ConvNetShape kConv{.channels = 2, .size = 8, .classes = 3, .widths = {8, 16}, .depths = {3, 3}, .expand = 4, .kernel = 3};

TEST(Supernet, DrawsSubnetsThatDependOnTheRandomNumberAlone) {
  const auto model = make_conv_net(kConv);
  const ElasticShape shape = model->elastic();
  const SupernetOptions options{.depth = {3, 1, 2}, .expand = {4, 1, 2}};
  const SubnetChoices choices = subnet_choices(options, shape);
  EXPECT_EQ(choices.depth, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(choices.widths.front(), (std::vector<int64_t>{8, 16, 32}));
  EXPECT_EQ(choices.widths.back(), (std::vector<int64_t>{16, 32, 64}));
  EXPECT_EQ(format_subnet(smallest_subnet(choices, shape), shape), "1,1:8,8");
  std::set<std::string> seen;
  for (uint64_t i = 0; i < 200; ++i) {
    const base::Random random = base::Random(1).for_index(i);
    const Subnet subnet = draw_subnet(choices, shape, SubnetSampling::random, random);
    EXPECT_EQ(subnet, draw_subnet(choices, shape, SubnetSampling::random, random));
    seen.insert(format_subnet(subnet, shape));
  }
  EXPECT_GT(seen.size(), 120u);
  for (uint64_t i = 0; i < 50; ++i) {  // the deeper, the wider
    const Subnet subnet = draw_subnet(choices, shape, SubnetSampling::compound, base::Random(1).for_index(i));
    for (size_t layer = 0; layer < subnet.width.size(); ++layer)
      EXPECT_EQ(subnet.width[layer], choices.widths[layer][static_cast<size_t>(subnet.depth[layer / 3] - 1)]);
  }
}

TEST(Supernet, SubnetsAreWrittenAndRead) {
  const auto model = make_conv_net(kConv);
  const ElasticShape shape = model->elastic();
  const Subnet subnet = parse_subnet("1,2:8,32,16", shape);
  EXPECT_EQ(subnet.depth, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(subnet.width, (std::vector<int64_t>{8, 32, 32, 32, 16, 64}));
  EXPECT_EQ(format_subnet(subnet, shape), "1,2:8,32,16");
  const auto refused = [&](const char* text) { return supernet_refusal([&] { parse_subnet(text, shape); }); };
  EXPECT_THAT(refused("1,2"), HasSubstr("there is no colon"));
  EXPECT_THAT(refused("1:8"), HasSubstr("1 depths, and the model 2 stages"));
  EXPECT_THAT(refused("1,4:8,8,8,8,8"), HasSubstr("4 layers in stage 1, which has 3"));
  EXPECT_THAT(refused("1,2:8,32"), HasSubstr("2 widths, and 3 layers run"));
  EXPECT_THAT(refused("1,2:8,32,99"), HasSubstr("99 channels in stages.1.1, which has 64"));
  EXPECT_THAT(refused("1,0:8"), HasSubstr("\"0\" is no number of layers"));
  EXPECT_THAT(refused("1,x:8"), HasSubstr("\"x\" is no number"));
  const SubnetChoices choices = subnet_choices({.depth = {1, 3}, .expand = {2, 4}}, shape);
  EXPECT_THAT(supernet_refusal([&] { check_trained(subnet, shape, choices); }), HasSubstr("2 layers in stage 1 were never trained"));
  EXPECT_THAT(supernet_refusal([&] { check_trained(parse_subnet("1,1:8,16", shape), shape, choices); }),
              HasSubstr("8 channels in stages.0.0 were never trained. Choose from [16, 32]"));
}

TEST(Supernet, CountsTheWorkOfSubnets) {
  const auto model = make_conv_net(kConv);
  const ElasticShape shape = model->elastic();
  double from_cards = 0;
  for (const auto& block : model->blocks())
    for (const BlockOp& one : block->card().operations) from_cards += one.flops_per_token;
  EXPECT_NEAR(flops_of(whole_subnet(shape), shape), from_cards, 1e-6 * from_cards);
  const Subnet subnet = parse_subnet("1,2:8,32,16", shape);
  const auto extracted = make_conv_net(extract(subnet, shape, kConv));
  double of_extracted = 0;
  for (const auto& block : extracted->blocks())
    for (const BlockOp& one : block->card().operations) of_extracted += one.flops_per_token;
  EXPECT_NEAR(flops_of(subnet, shape), of_extracted, 1e-6 * of_extracted);
}

TEST(Supernet, RefusesChoicesThatTheModelCannotHave) {
  const auto conv = make_conv_net(kConv);
  const auto decoder = make_decoder({.layers = 3, .mlp = 32});
  const auto refused = [](const Model& model, const SupernetOptions& options) {
    return supernet_refusal([&] { subnet_choices(options, model.elastic()); });
  };
  EXPECT_THAT(refused(*conv, {.depth = {1, 2}}), HasSubstr("the largest must be what the model has, and its stage 0 has 3 layers"));
  EXPECT_THAT(refused(*conv, {.depth = {3, 2, 3}}), HasSubstr("3 is there twice"));
  EXPECT_THAT(refused(*conv, {.expand = {2, 3}}), HasSubstr("the largest gives 24 channels in stages.0.0, and the model has 32"));
  EXPECT_THAT(refused(*conv, {.mlp = {8, 16}}), HasSubstr("supernet.mlp: is for decoders"));
  EXPECT_THAT(refused(*decoder, {.expand = {1, 2}}), HasSubstr("supernet.expand: is for model.kind = \"cnn\""));
  EXPECT_THAT(refused(*decoder, {.depth = {3}}), HasSubstr("there is one network only"));
  EXPECT_THAT(refused(*decoder, {.mlp = {16, 24}}), HasSubstr("the largest gives 24 channels"));
  const auto narrow = make_conv_net({.channels = 1, .size = 4, .classes = 2, .widths = {3}, .depths = {2}, .expand = 4, .kernel = 1});
  EXPECT_THAT(refused(*narrow, {.expand = {3, 4, 1, 2}}), HasSubstr("1 and 2 give the same 8 channels in stages.0.0"));
}

// The logits of a model over pixels, with running statistics.
at::Tensor logits_of(const Model& model, const FlatWeights& weights, Buffers& buffers, const at::Tensor& pixels, const Subnet* subnet) {
  const mesh::Axes alone;
  Values values;
  values.put("pixels", pixels);
  for (const auto& block : model.blocks())
    block->forward(values, nullptr, {.weights = weights, .buffers = buffers, .axes = alone, .needs = {false, false}, .subnet = subnet});
  return values.get("logits");
}

TEST(Supernet, AnExtractedNetworkIsTheActiveOne) {
  const auto whole = make_conv_net(kConv);
  const ElasticShape shape = whole->elastic();
  const at::Tensor flat = at::empty({whole->elements()});
  initialize_parameters(*whole, flat, base::Random(3));
  const FlatWeights weights(whole->layout(), flat);
  Buffers buffers = whole->make_buffers(at::kFloat);
  mesh::NamedTensors all = weights.layout().views(flat);
  for (auto& [name, tensor] : buffers) {
    if (name.ends_with(".pending")) continue;
    for (int64_t i = 0; i < tensor.numel(); ++i) tensor[i] = 0.5 + base::Random(9).for_name(name).uniform(static_cast<uint64_t>(i));
    all.push_back({name, tensor});
  }
  const at::Tensor pixels = at::linspace(-1, 1, 4 * 2 * 8 * 8).view({4, 2, 8, 8});
  for (const char* text : {"1,2:8,32,16", "3,3:32,32,32,32,64,64", "1,1:8,16"}) {
    const Subnet subnet = parse_subnet(text, shape);
    const ConvNetShape small = extract(subnet, shape, kConv);
    EXPECT_EQ(format_conv_config(parse_conv_config(format_conv_config(small), "config.json")), format_conv_config(small));
    const auto alone = make_conv_net(parse_conv_config(format_conv_config(small), "config.json"));
    const at::Tensor own = at::empty({alone->elements()});
    Buffers own_buffers = alone->make_buffers(at::kFloat);
    mesh::NamedTensors wanted = alone->layout().views(own);
    for (auto& [name, tensor] : own_buffers)
      if (!name.ends_with(".pending")) wanted.push_back({name, tensor});
    const mesh::NamedTensors extracted = extract(subnet, shape, all);
    EXPECT_EQ(extracted.size(), wanted.size());
    for (const mesh::NamedTensor& one : wanted) {
      const auto found = std::ranges::find(extracted, one.name, &mesh::NamedTensor::name);
      ASSERT_NE(found, extracted.end()) << one.name;
      ASSERT_EQ(found->tensor.sizes(), one.tensor.sizes()) << one.name;
      one.tensor.copy_(found->tensor);
    }
    const FlatWeights own_weights(alone->layout(), own);
    const at::Tensor expected = logits_of(*whole, weights, buffers, pixels, &subnet);
    const at::Tensor found = logits_of(*alone, own_weights, own_buffers, pixels, nullptr);
    EXPECT_LT((found - expected).abs().max().item<double>(), 1e-6) << text;
    EXPECT_GT((expected - logits_of(*whole, weights, buffers, pixels, nullptr)).abs().max().item<double>(), text[0] == '3' ? -1 : 1e-3);
  }
}

TEST(Supernet, RefusesConfigurationsThatDoNotHoldTogether) {
  const std::string good = format_conv_config(kConv);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return supernet_refusal([&] { parse_conv_config(text, "d/config.json"); });
  };
  EXPECT_THAT(refused("\"cairn_cnn\"", "\"vit\""), HasSubstr("d/config.json: model_type is \"vit\""));
  EXPECT_THAT(refused("\"kernel\": 3", "\"kernel\": 2"), HasSubstr("do not belong together"));
  EXPECT_THAT(refused("\"kernel\": 3", "\"kernel\": -1"), HasSubstr("kernel"));
  EXPECT_THAT(refused("\"widths\"", "\"width\""), HasSubstr("widths must be a list"));
  EXPECT_THAT(refused("{", "["), HasSubstr("d/config.json"));
}

TEST(Distillation, IsTheCrossEntropyOfTheTeachersProbabilities) {
  const int64_t rows = 5, classes = 4;
  const at::Tensor logits = at::empty({rows, classes}, at::kDouble), teacher = at::empty({rows, classes}, at::kDouble);
  for (int64_t i = 0; i < rows * classes; ++i) {
    logits.mutable_data_ptr<double>()[i] = base::Random(1).normal(static_cast<uint64_t>(i));
    teacher.mutable_data_ptr<double>()[i] = base::Random(2).normal(static_cast<uint64_t>(i));
  }
  mesh::Batch batch;
  batch.ids = at::arange(rows);
  batch.weights = at::linspace(0.5, 1.5, rows);
  batch.fields["labels"] = {at::zeros({rows}, at::kLong)};
  const double t = 2, weight = 0.3;
  const auto objective = make_distillation(t, Objective::Separates::samples);
  const auto evaluate = [&](const at::Tensor& z, Values* gradients) {
    Values values;
    values.put("logits", z.clone());
    values.put(kTeacherLogits, teacher);
    return objective->evaluate(values, batch, gradients, weight, {});
  };
  Values gradients;
  const Losses losses = evaluate(logits, &gradients);
  const at::Tensor q = at::log_softmax(teacher / t, -1).exp(), log_p = at::log_softmax(logits / t, -1);
  const at::Tensor expected = -(q * log_p).sum(1) * (t * t);
  EXPECT_NEAR(losses.sum.item<double>(), (expected * batch.weights).sum().item<double>(), 1e-9);
  EXPECT_EQ(losses.count.item<int64_t>(), rows);
  const at::Tensor gradient = gradients.get("logits");
  for (int64_t i = 0; i < rows; ++i)  // against differences
    for (int64_t j = 0; j < classes; ++j) {
      at::Tensor up = logits.clone(), down = logits.clone();
      up[i][j] += 1e-5, down[i][j] -= 1e-5;
      const double slope = (evaluate(up, nullptr).sum - evaluate(down, nullptr).sum).item<double>() / 2e-5;
      EXPECT_NEAR(gradient[i][j].item<double>(), weight * slope, 1e-8);
    }
}

}  // namespace
}  // namespace cairn::model
