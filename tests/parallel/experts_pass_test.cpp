// Layers with experts through whole passes: losses of the router, micro-batches, recomputation, exchanges, decoding.
// decoder_pass_test.cpp compares their gradients with those of the plain form.
#include <cmath>
#include <limits>

#include <ATen/core/IListRef.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/aten.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/experts/balance.h"
#include "model/experts/exchange.h"
#include "model/objective.h"
#include "model/some_experts.h"
#include "parallel/pass.h"
#include "parallel/token_batch.h"

namespace cairn::model {
namespace {

DecoderShape expert_decoder(const std::string& kind = "qwen3_moe") {
  DecoderShape shape{
      .vocab = 19, .embed = 12, .layers = 2, .heads = 3, .kv_heads = 1, .head_dim = 4, .mlp = 14, .length = 23, .family = kind};
  shape.qkv_bias = family(kind).qkv_bias;
  return with_experts(shape);
}

struct ExpertPass {
  Losses losses;
  at::Tensor gradients;
  Buffers buffers;
};

struct ExpertModel {
  std::unique_ptr<Model> model;
  at::Tensor flat;

  explicit ExpertModel(const DecoderShape& shape, at::ScalarType type = at::kDouble, double scale = 10)
      : model(make_decoder(shape)), flat(at::empty({model->elements()}, type)) {
    const at::Tensor values = at::empty({model->elements()}, at::kDouble);
    initialize_parameters(*model, values, base::Random(3));
    flat.copy_(values.mul_(scale));
  }

  ExpertPass run(const std::vector<mesh::Batch>& batches, const PassOptions& options = kDefaultPassOptions, bool recompute = false) const {
    const bool wide = flat.scalar_type() == at::kDouble;
    mesh::FlatGradients sink(model->layout(), at::full({flat.numel()}, 99.0, wide ? at::kDouble : at::kFloat), model->uses());
    sink.begin(static_cast<int64_t>(batches.size()), {});
    const FlatWeights weights(model->layout(), flat);
    ExpertPass found{.losses = {}, .gradients = {}, .buffers = model->make_buffers(wide ? at::kDouble : at::kFloat)};
    const mesh::Axes alone;
    const auto objective = make_next_token();
    for (const mesh::Batch& batch : batches) {
      const Losses one = parallel::execute({.model = *model,
                                            .at = weights,
                                            .buffers = found.buffers,
                                            .axes = alone,
                                            .batch = batch,
                                            .objective = *objective,
                                            .into = &sink,
                                            .weight = 0.1,
                                            .options = options,
                                            .recompute = recompute});
      found.losses.sum = found.losses.sum.defined() ? found.losses.sum + one.sum : one.sum;
      found.losses.measures = found.losses.measures.defined() ? found.losses.measures + one.measures : one.measures;
    }
    sink.finish();
    found.gradients = sink.flat();
    return found;
  }
};

double relative_distance(const at::Tensor& a, const at::Tensor& b) { return (a - b).norm().item<double>() / b.norm().item<double>(); }

// Router probabilities and choices of a layer by plain loops over the tokens: the embedding as its input, in a model of one layer whose
// attention adds nothing.
TEST(ExpertLosses, AreThoseOfALoopOverSequencesAndExperts) {
  DecoderShape shape = expert_decoder();
  shape.layers = 1;
  ExpertModel of(shape);
  mesh::FlatLayout layout = of.model->layout();
  const auto parameter = [&](const std::string& name) {
    for (size_t i = 0; i < layout.pieces.size(); ++i)
      if (layout.pieces[i].name == name) return layout.view(of.flat, {static_cast<int32_t>(i)});
    ADD_FAILURE() << name;
    return at::Tensor();
  };
  parameter("model.layers.0.self_attn.o_proj.weight").zero_();
  mesh::Batch batch = parallel::token_batch(3, 7, shape.vocab);
  batch.field("targets");
  batch.fields["targets"].tensor[1].narrow(0, 2, 4).fill_(-100);
  const double expected_aux = [&] {
    double aux = 0;
    const at::Tensor table = parameter("model.embed_tokens.weight"), gate = parameter("model.layers.0.mlp.gate.weight"),
                     gain = parameter("model.layers.0.post_attention_layernorm.weight");
    for (int64_t s = 0; s < 3; ++s) {
      std::vector<double> chosen(5, 0), sums(5, 0);
      double tokens = 0;
      for (int64_t t = 0; t < 7; ++t) {
        if (batch.field("targets")[s][t].item<int64_t>() < 0) continue;
        const at::Tensor x = table[batch.field("tokens")[s][t].item<int64_t>()];
        const at::Tensor p = at::mm(gate, (x / (x.square().mean() + shape.norm_eps).sqrt() * gain).unsqueeze(1)).view({-1}).softmax(0);
        std::vector<double> left;
        for (int64_t e = 0; e < 5; ++e) left.push_back(p[e].item<double>()), sums[static_cast<size_t>(e)] += left.back();
        for (int k = 0; k < 2; ++k) {
          const auto best = std::max_element(left.begin(), left.end());
          chosen[static_cast<size_t>(best - left.begin())] += 1, *best = -1;
        }
        ++tokens;
      }
      for (size_t e = 0; e < 5; ++e) aux += 5 / (2 * tokens) * chosen[e] * sums[e];
    }
    return aux;
  }();
  const ExpertPass found = of.run({batch});
  ASSERT_EQ(measures_of(*of.model, *make_next_token()), (std::vector<std::string>{"aux_loss", "z_loss"}));
  EXPECT_NEAR(found.losses.measures[0].item<double>(), expected_aux, 1e-9 * expected_aux);
}

TEST(ExpertLosses, DoNotDependOnMicroBatches) {
  for (const char* kind : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}) {
    const ExpertModel of(expert_decoder(kind));
    const mesh::Batch batch = parallel::token_batch(4, 9, 19);
    const ExpertPass whole = of.run({batch});
    const ExpertPass parts = of.run({mesh::slice(batch, 0, 1), mesh::slice(batch, 1, 4)});
    EXPECT_LT(relative_distance(parts.gradients, whole.gradients), 1e-12) << kind;
    EXPECT_LT(relative_distance(parts.losses.measures, whole.losses.measures), 1e-12) << kind;
  }
}

// Without the router's losses its gradient is another one: they are not lost on the way.
TEST(ExpertLosses, ReachTheRouter) {
  DecoderShape shape = expert_decoder();
  const mesh::Batch batch = parallel::token_batch(2, 9, 19);
  const ExpertModel with(shape);
  shape.experts.aux_weight = 0;
  const ExpertModel no_aux(shape);
  shape.experts.z_weight = 0;
  const ExpertModel none(shape);
  const at::Tensor all = with.run({batch}).gradients, z_alone = no_aux.run({batch}).gradients, plain = none.run({batch}).gradients;
  EXPECT_GT(relative_distance(all, z_alone), 1e-4);
  EXPECT_GT(relative_distance(z_alone, plain), 1e-4);
}

TEST(ExpertPasses, AreBitwiseIdenticalWhenRecomputed) {
  const ExpertModel of(expert_decoder("qwen2_moe"), at::kFloat);
  const mesh::Batch batch = parallel::token_batch(3, 9, 19);
  const PassOptions options{.recompute = std::vector<bool>(of.model->blocks().size(), true)};
  const ExpertPass kept = of.run({batch}), again = of.run({batch}, options, /*recompute=*/true);
  EXPECT_TRUE(at::equal(kept.gradients, again.gradients));
  for (const auto& [name, counts] : kept.buffers)
    if (name.ends_with(".expert_counts")) {
      EXPECT_TRUE(at::equal(counts, again.buffers.at(name))) << name;
    }
}

TEST(ExpertPasses, InHalfPrecisionAreCloseToDouble) {
  DecoderShape shape = expert_decoder();
  shape.experts.top_k = 5;  // all of them: rounding may change a choice, and with it the loss
  const ExpertModel wide(shape, at::kDouble, 2), half(shape, at::kBFloat16, 2);
  const mesh::Batch batch = parallel::token_batch(3, 9, 19);
  const ExpertPass expected = wide.run({batch}), found = half.run({batch});
  EXPECT_LT(std::abs(found.losses.sum.item<double>() / expected.losses.sum.item<double>() - 1), 0.05);
  EXPECT_LT(relative_distance(found.gradients.to(at::kDouble), expected.gradients), 0.1);
}

// An exchange that hands rows over late, and those of each expert in reverse.
class ReversingExchange final : public ExpertExchange {
 public:
  class Route final : public ExpertRoute {
   public:
    explicit Route(kernels::RowGroups groups) : groups_(std::move(groups)) {
      int64_t begin = 0;
      for (const int64_t count : groups_.host()) {
        for (int64_t i = count; i-- > 0;) order_.push_back(begin + i);
        begin += count;
      }
    }
    const kernels::RowGroups& local_groups() override { return groups_; }
    ExpertRows dispatch(const at::Tensor& rows) override { return late(rows); }
    ExpertRows combine(const at::Tensor& rows) override { return late(rows); }
    ExpertRows combine_backward(const at::Tensor& rows) override { return late(rows); }
    ExpertRows dispatch_backward(const at::Tensor& rows) override { return late(rows); }
    void save(Saved& into) override { into.put("route.seen", at::ones({1})); }

   private:
    ExpertRows late(const at::Tensor& rows) const {
      const at::Tensor there = at::full_like(rows, std::numeric_limits<double>::quiet_NaN());
      const at::Tensor moved = rows.index_select(0, at::tensor(order_, at::kLong));
      return {.rows = there, .ready = comm::Work::all({comm::Work::done().then([there, moved] { there.copy_(moved); })})};
    }
    kernels::RowGroups groups_;
    std::vector<int64_t> order_;
  };
  std::unique_ptr<ExpertRoute> begin(const ExpertRequest& request, const Call&) const override { return make(request); }
  std::unique_ptr<ExpertRoute> resume(const ExpertRequest& request, Saved& saved, const Call&) const override {
    EXPECT_TRUE(saved.has("route.seen"));
    return make(request);
  }

 private:
  static std::unique_ptr<ExpertRoute> make(const ExpertRequest& request) {
    EXPECT_EQ(request.groups.size(), 5);
    return std::make_unique<Route>(request.groups);
  }
};

TEST(ExpertPasses, DoNotDependOnTheWayOfTheRows) {
  const ExpertModel of(expert_decoder("qwen2_moe"));
  const mesh::Batch batch = parallel::token_batch(3, 9, 19);
  const ReversingExchange exchange;
  const PassOptions options{.experts = &exchange};
  const ExpertPass here = of.run({batch}), moved = of.run({batch}, options);
  EXPECT_LT(relative_distance(moved.gradients, here.gradients), 1e-13);
  EXPECT_NEAR(moved.losses.sum.item<double>(), here.losses.sum.item<double>(), 1e-11);
}

// NaN in the experts that a token did not choose.
TEST(ExpertPasses, ReadTheChosenExpertsOnly) {
  DecoderShape shape = expert_decoder("mixtral");
  shape.layers = 1;
  const ExpertModel of(shape, at::kFloat);
  const mesh::Batch token = parallel::token_batch(1, 1, shape.vocab);
  mesh::Batch batch = token;
  batch.fields["targets"].tensor.fill_(3);
  const ExpertPass before = of.run({batch});
  const at::Tensor counts = before.buffers.at("layers.0.mlp.expert_counts");
  EXPECT_EQ(counts.sum().item<int64_t>(), 2);
  const mesh::FlatLayout layout = of.model->layout();
  for (size_t i = 0; i < layout.pieces.size(); ++i)
    if (layout.pieces[i].name.find(".experts.") != std::string::npos)
      for (int64_t e = 0; e < 5; ++e)
        if (counts[e].item<int64_t>() == 0)
          layout.view(of.flat, {static_cast<int32_t>(i)})[e].fill_(std::numeric_limits<float>::quiet_NaN());
  const ExpertPass after = of.run({batch});
  EXPECT_EQ(after.losses.sum.item<double>(), before.losses.sum.item<double>());
  EXPECT_TRUE(at::equal(after.gradients, before.gradients));
}

TEST(ExpertBias, FollowsTheLoadOfAStep) {
  Buffers buffers;
  add_expert_buffers(buffers, "layers.0.mlp", 3, at::TensorOptions(at::kFloat));
  buffers["layers.0.mlp.expert_counts"] = at::tensor({6, 1, 2}, at::kLong);
  const at::Tensor load = buffers.at("layers.0.mlp.expert_load"), biases = at::zeros({3});
  EXPECT_DOUBLE_EQ(commit_expert_counts(buffers, /*skipped=*/false, [](const at::Tensor& counts) { counts.mul_(2); }), 2);
  EXPECT_TRUE(at::equal(load, at::tensor({12, 2, 4}, at::kLong)));
  EXPECT_EQ(buffers.at("layers.0.mlp.expert_counts").sum().item<int64_t>(), 0);
  EXPECT_TRUE(at::equal(moved_biases(biases, load, 0.5), at::tensor({-0.5, 0.5, 0.5}).to(at::kFloat)));
  buffers["layers.0.mlp.expert_counts"] = at::tensor({9, 0, 0}, at::kLong);
  EXPECT_EQ(commit_expert_counts(buffers, /*skipped=*/true, {}), 0);
  EXPECT_TRUE(at::equal(moved_biases(biases, load, 0.5), biases));
}

// A bias changes who is chosen, not what a choice counts.
TEST(ExpertBias, TakesPartInTheChoiceAlone) {
  for (const int64_t top_k : {5, 1}) {
    DecoderShape shape = expert_decoder();
    shape.layers = 1, shape.experts.biased = true, shape.experts.top_k = top_k;
    const ExpertModel of(shape);
    const FlatWeights weights(of.model->layout(), of.flat);
    const std::vector<ExpertBias> biases = expert_biases(*of.model);
    ASSERT_EQ(biases.size(), 1U);
    const at::Tensor bias = weights.get({static_cast<int32_t>(biases[0].parameter)});
    EXPECT_EQ(of.model->parameters()[biases[0].parameter].name, "model.layers.0.mlp.gate.e_score_correction_bias");
    const mesh::Batch batch = parallel::token_batch(1, 6, 19);
    bias.zero_();
    const ExpertPass plain = of.run({batch});
    bias[3].fill_(7.0);
    const ExpertPass biased = of.run({batch});
    if (top_k == 5)  // all are chosen anyway
      EXPECT_NEAR(biased.losses.sum.item<double>(), plain.losses.sum.item<double>(), 1e-10);
    else
      EXPECT_EQ(biased.buffers.at("layers.0.mlp.expert_counts")[3].item<int64_t>(), 5);  // of 6 tokens, one has no target
  }
}

}  // namespace
}  // namespace cairn::model
