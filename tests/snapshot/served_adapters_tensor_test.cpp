// Many adapters beside one model, each against the model that it was merged into.
#include "model/decoder/served_adapters.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"
#include "mesh/axes.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "model/generate/generate.h"
#include "snapshot/adapter.h"

namespace cairn::snapshot {
namespace {

model::DecoderShape served_shape(const std::string& family) {
  const model::Family& of = model::family(family);
  return {.vocab = 11,
          .embed = 8,
          .layers = 3,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 4,
          .mlp = 6,
          .length = 16,
          .tied = true,
          .family = family,
          .qkv_bias = of.qkv_bias,
          .out_bias = of.out_bias,
          .mlp_bias = of.mlp_bias};
}

constexpr int64_t kServedTokens = 5;

at::Tensor served_tokens(int64_t rows) {
  at::Tensor tokens = at::empty({rows, kServedTokens}, at::kLong);
  for (int64_t i = 0; i < tokens.numel(); ++i) tokens.mutable_data_ptr<int64_t>()[i] = (3 * i + i / kServedTokens) % 11;
  return tokens;
}

at::Tensor served_logits(const model::Model& model, const at::Tensor& flat, model::Buffers& buffers, const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  const model::FlatWeights weights(model.layout(), flat);
  const mesh::Axes alone;
  model::Values values;
  values.put("tokens", tokens);
  for (const auto& block : model.blocks()) block->forward(values, nullptr, {.weights = weights, .buffers = buffers, .axes = alone});
  return values.take("logits");
}

// An adapter of random values, none of them zero.
Adapter random_adapter(const model::DecoderShape& shape, const model::AdapterShape& lora, uint64_t seed) {
  Adapter adapter{.shape = lora, .tensors = {}};
  const auto with = model::make_decoder(shape, lora);
  for (const model::Parameter& p : with->parameters()) {
    if (p.role != model::Parameter::Role::adapter) continue;
    const at::Tensor value = at::empty(p.shape);
    kernels::fill_normal(value.view({-1}), base::Random(seed).for_name(p.name), 0, 0.5);
    adapter.tensors.push_back({p.name, value});
  }
  return adapter;
}

struct ServedBase {
  model::DecoderShape shape;
  at::Tensor flat;
  explicit ServedBase(const std::string& family) : shape(served_shape(family)) {
    const auto model = model::make_decoder(shape);
    flat = at::empty({model->elements()});
    model::initialize_parameters(*model, flat, base::Random(8));
  }
  // The model with an adapter merged, as `cairn snapshot merge` does it.
  at::Tensor merged_logits(const Adapter* adapter, const at::Tensor& tokens) const {
    const auto model = model::make_decoder(shape);
    const at::Tensor own = flat.clone();
    if (adapter) merge_adapter(model->layout().views(own), *adapter, shape);
    model::Buffers buffers = model->make_buffers(at::kFloat);
    return served_logits(*model, own, buffers, tokens);
  }
};

std::shared_ptr<const model::ServedAdapters> served(const ServedBase& base, const std::vector<Adapter>& adapters) {
  std::vector<model::ServedAdapters::One> all;
  for (const Adapter& one : adapters) {
    model::ServedAdapters::One& into =
        all.emplace_back(model::ServedAdapters::One{.name = "a" + std::to_string(all.size()), .shape = one.shape, .tensors = {}});
    for (const mesh::NamedTensor& tensor : one.tensors) into.tensors[tensor.name] = tensor.tensor;
  }
  return std::make_shared<const model::ServedAdapters>(std::move(all), base.shape.layers, model::family(base.shape.family).names.layers);
}

model::AdapterShape low_rank(int64_t rank, std::vector<std::string> targets) {
  return {.rank = rank, .alpha = 2.0 * static_cast<double>(rank), .targets = std::move(targets)};
}

model::AdapterShape pooled(int64_t rank, int64_t seed) {
  model::AdapterShape shape{.rank = rank, .alpha = 3, .targets = {"q_proj", "v_proj", "down_proj"}, .kind = model::AdapterKind::mos};
  shape.equivalent_rank = 2, shape.private_rank = 1, shape.shards = 2, shape.index_seed = seed;
  return shape;
}

// Each row of a batch against the model with that row's adapter merged.
void expect_merged_logits(const ServedBase& base, const std::vector<Adapter>& adapters, const std::vector<std::vector<int32_t>>& batches) {
  const auto model = model::make_serving_decoder(base.shape, served(base, adapters));
  model::Buffers buffers = model->make_buffers(at::kFloat);
  for (const std::vector<int32_t>& of_row : batches) {
    const at::Tensor tokens = served_tokens(static_cast<int64_t>(of_row.size()));
    std::vector<int32_t> of_token;  // rows of what layers read are tokens
    for (const int32_t one : of_row) of_token.insert(of_token.end(), kServedTokens, one);
    model::put_row_adapters(buffers, of_token, at::kCPU);
    const at::Tensor together = served_logits(*model, base.flat, buffers, tokens);
    for (size_t row = 0; row < of_row.size(); ++row) {
      const at::Tensor own = tokens.narrow(0, static_cast<int64_t>(row), 1);
      const Adapter* const adapter = of_row[row] < 0 ? nullptr : &adapters[static_cast<size_t>(of_row[row])];
      const at::Tensor expected = base.merged_logits(adapter, own), plain = base.merged_logits(nullptr, own);
      const at::Tensor found = together.narrow(0, static_cast<int64_t>(row), 1);
      EXPECT_LT((found - expected).abs().max().item<float>(), 1e-5 * expected.abs().max().item<float>() + 1e-5) << row;
      if (adapter) {
        EXPECT_GT((expected - plain).abs().max().item<float>(), 1e-2) << row;
      }
    }
  }
}

TEST(ServedAdapters, GiveTheLogitsOfTheModelThatEachIsMergedInto) {
  const ServedBase base("llama");
  const std::vector<Adapter> adapters{random_adapter(base.shape, low_rank(3, {"q_proj", "v_proj", "up_proj"}), 1),
                                      random_adapter(base.shape, pooled(4, 5), 2), random_adapter(base.shape, pooled(4, 5), 3),
                                      random_adapter(base.shape, pooled(3, 6), 4),
                                      random_adapter(base.shape, low_rank(1, {"o_proj", "down_proj"}), 5)};
  // The second batch has the same adapters in other rows, the third others.
  expect_merged_logits(base, adapters, {{1, -1, 0, 2, 0, -1, 4}, {-1, 2, 1, 4, 0}, {3, 3, 1}, {2, 2}, {-1, -1}, {0}});
}

TEST(ServedAdapters, FitWeightsThatAreStoredTransposed) {
  const ServedBase base("gpt2");
  const std::vector<Adapter> adapters{random_adapter(base.shape, low_rank(2, {"c_attn", "c_fc"}), 1),
                                      random_adapter(base.shape, low_rank(3, {"c_attn"}), 2)};
  expect_merged_logits(base, adapters, {{0, 1, -1, 0}, {1}});
}

TEST(ServedAdapters, LeaveTheTensorsThatTheyAreGivenAsTheyAre) {
  const ServedBase base("llama");
  const std::vector<Adapter> adapters{random_adapter(base.shape, low_rank(1, {"q_proj"}), 1)};
  const at::Tensor before = adapters[0].tensors[1].tensor.clone();
  served(base, adapters);
  EXPECT_TRUE(at::equal(adapters[0].tensors[1].tensor, before));
}

TEST(ServedAdapters, ShareIndicesAndKeepNothingAfterABatch) {
  const ServedBase base("llama");
  std::vector<Adapter> adapters;
  for (uint64_t i = 0; i < 3; ++i) adapters.push_back(random_adapter(base.shape, pooled(4, 5), i));
  const auto one = served(base, {adapters[0]}), all = served(base, adapters);
  EXPECT_GT(one->index_bytes(), 0);
  EXPECT_EQ(all->index_bytes(), one->index_bytes());
  EXPECT_EQ(all->bytes() - all->index_bytes(), 3 * (one->bytes() - one->index_bytes()));
  adapters.push_back(random_adapter(base.shape, pooled(4, 6), 9));
  EXPECT_EQ(served(base, adapters)->index_bytes(), 2 * one->index_bytes());

  const auto model = model::make_serving_decoder(base.shape, all);
  const model::FlatWeights weights(model->layout(), base.flat);
  model::Buffers buffers = model->make_buffers(at::kFloat);
  const auto texts = [&](const std::vector<int32_t>& of_row, bool batched) {
    std::vector<model::GenerateRequest> requests;
    for (const int32_t adapter : of_row) requests.push_back({.prompt = {3, 1, 4}, .random = {}, .adapter = adapter});
    std::vector<std::vector<int32_t>> ids;
    for (const model::GeneratedText& one_text :
         model::generate(*model, weights, buffers, requests,
                         {.tokens = 6, .length_max = base.shape.length, .sampling = {.temperature = 0}, .batched = batched},
                         [&](int64_t, int32_t) { return model::row_adapter_bytes(buffers) > 0 || of_row == std::vector<int32_t>{-1}; }))
      ids.push_back(one_text.ids);
    return ids;
  };
  const auto plain = texts({-1}, false), together = texts({2, -1, 0}, true);
  EXPECT_EQ(model::row_adapter_bytes(buffers), 0);
  EXPECT_EQ(together, texts({2, -1, 0}, false));
  EXPECT_EQ(together[1], plain[0]);
  EXPECT_EQ(texts({-1}, false), plain);  // nothing of the batch before is left
  EXPECT_EQ(together[0].size(), 6u);
}

}  // namespace
}  // namespace cairn::snapshot
