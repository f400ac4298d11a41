#include "snapshot/adapter.h"

#include <fstream>

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/decoder/decoder.h"
#include "model/families/families.h"
#include "snapshot/scratch_folder.h"

namespace cairn::snapshot {
namespace {

using testing::HasSubstr;

model::DecoderShape shape_of(const std::string& family) {
  const model::Family& of = model::family(family);
  return {.vocab = 11,
          .embed = 8,
          .layers = 2,
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

// A model with random values everywhere, adapters too.
struct Filled {
  std::unique_ptr<model::Model> model;
  at::Tensor flat;
  explicit Filled(const model::DecoderShape& shape, const model::AdapterShape& lora = {}) : model(model::make_decoder(shape, lora)) {
    flat = at::empty({model->elements()});
    model::initialize_parameters(*model, flat, base::Random(8));
    for (const mesh::NamedTensor& one : views())
      if (((one.name.find("lora_B") != std::string::npos || one.name.ends_with(".pool_b")) || one.name.ends_with(".pool_b")))
        one.tensor.copy_(at::linspace(-1, 1, one.tensor.numel()).view(one.tensor.sizes()));
  }
  mesh::NamedTensors views() const { return model->layout().views(flat); }
  at::Tensor logits() const {
    at::NoGradGuard no_grad;
    const model::FlatWeights weights(model->layout(), flat);
    model::Buffers buffers = model->make_buffers(at::kFloat);
    const mesh::Axes alone;
    model::Values values;
    values.put("tokens", at::tensor({3, 1, 4, 1, 5}, at::kLong).view({1, -1}));
    for (const auto& block : model->blocks()) block->forward(values, nullptr, {.weights = weights, .buffers = buffers, .axes = alone});
    return values.take("logits");
  }
};

Adapter adapter_of(const Filled& filled, const model::AdapterShape& lora) {
  Adapter adapter{.shape = lora, .tensors = {}};
  for (const mesh::NamedTensor& one : filled.views())
    if (one.name.find(".lora_") != std::string::npos || one.name.starts_with("adapters."))
      adapter.tensors.push_back({one.name, one.tensor.clone()});
  return adapter;
}

TEST(Adapter, MergedGivesTheLogitsItGivesBesideTheModelAndCanBeTakenAwayAgain) {
  const ScratchFolder scratch;
  for (const std::string family : {"llama", "gpt2"}) {
    const model::DecoderShape shape = shape_of(family);
    const model::AdapterShape lora{
        .rank = 3, .alpha = 6, .targets = {family == "gpt2" ? "c_attn" : "v_proj", family == "gpt2" ? "c_fc" : "up_proj"}};
    const Filled with(shape, lora), merged(shape);
    EXPECT_GT((with.logits() - merged.logits()).abs().max().item<float>(), 1e-3);
    write_adapter(scratch / family, adapter_of(with, lora), shape, "base", base::real_disk());
    const Adapter read = read_adapter(scratch / family);
    EXPECT_EQ(read.shape, lora);
    merge_adapter(merged.views(), read, shape);
    EXPECT_LT((with.logits() - merged.logits()).abs().max().item<float>(), 1e-5);
    merge_adapter(merged.views(), read, shape, AdapterMerge::undo);
    EXPECT_LT((merged.flat - Filled(shape).flat).abs().max().item<float>(), 1e-6);
  }
  const Safetensors file(scratch / "llama/adapter_model.safetensors");
  EXPECT_NE(file.find("base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight"), nullptr);
}

TEST(Adapter, OfAHeadIsMergedWhereLayersAreStoredTheOtherWayRound) {
  model::DecoderShape shape = shape_of("gpt2");
  shape.tied = false;
  const model::AdapterShape lora{.rank = 3, .alpha = 6, .targets = {"lm_head", "c_fc"}};
  const Filled with(shape, lora), merged(shape);
  merge_adapter(merged.views(), adapter_of(with, lora), shape);
  EXPECT_GT((with.logits() - Filled(shape).logits()).abs().max().item<float>(), 1e-3);
  EXPECT_LT((with.logits() - merged.logits()).abs().max().item<float>(), 1e-5);
}

template <typename Act>
std::string adapter_refusal(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Adapter, PoolsAreExportedAsTheMatricesOfEachLayerAndKeptToGoOnFrom) {
  const ScratchFolder scratch;
  model::AdapterShape pools{.rank = 3, .alpha = 6, .targets = {"v_proj", "q_proj"}, .kind = model::AdapterKind::mos};
  pools.equivalent_rank = 2, pools.private_rank = 1, pools.shards = 2, pools.index_seed = 5;
  const model::DecoderShape shape = shape_of("llama");
  const Filled with(shape, pools), merged(shape);
  const Adapter trained = adapter_of(with, pools);
  EXPECT_EQ(trained.tensors.size(), 4u);
  write_adapter(scratch / "a", trained, shape, "base", base::real_disk());
  const Adapter read = read_adapter(scratch / "a");
  EXPECT_EQ(read.shape, pools);
  merge_adapter(merged.views(), read, shape);
  EXPECT_GT((with.logits() - Filled(shape).logits()).abs().max().item<float>(), 1e-3);
  EXPECT_LT((with.logits() - merged.logits()).abs().max().item<float>(), 1e-5);
  Adapter other = read;
  other.index_checksum = "0123456789abcdef";
  EXPECT_THAT(adapter_refusal([&] { merge_adapter(merged.views(), other, shape); }), HasSubstr("trained with another index"));

  std::filesystem::remove(scratch / "a/pools_config.json");  // what is left is what `peft` reads
  const Adapter plain = read_adapter(scratch / "a");
  EXPECT_EQ(plain.shape.kind, model::AdapterKind::lora);
  EXPECT_EQ(plain.tensors.size(), static_cast<size_t>(2 * 2 * shape.layers));
  for (const mesh::NamedTensor& one : plain.tensors) EXPECT_EQ(one.tensor.size(one.name.ends_with("A.weight") ? 0 : 1), 3) << one.name;
  const Filled again(shape);
  merge_adapter(again.views(), plain, shape);
  EXPECT_TRUE(at::equal(again.flat, merged.flat));
}

TEST(Adapter, RefusesWhatItDoesNotCompute) {
  const ScratchFolder scratch;
  const auto with = [&](const std::string& json) {
    std::ofstream(scratch / "adapter_config.json") << json;
    return adapter_refusal([&] { read_adapter(scratch.path()); });
  };
  const std::string good = R"("peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"])";
  EXPECT_THAT(with("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(with(R"({"peft_type": "IA3"})"), HasSubstr("peft_type is \"IA3\""));
  EXPECT_THAT(with(R"({"peft_type": "LORA"})"), HasSubstr("r = nothing"));
  EXPECT_THAT(with("{" + good + R"(, "use_dora": true})"), HasSubstr("use_dora = true"));
  EXPECT_THAT(with("{" + good + R"(, "bias": "all"})"), HasSubstr("bias = \"all\""));
  EXPECT_THAT(with("{" + good + R"(, "modules_to_save": ["lm_head"]})"), HasSubstr("modules_to_save"));
  EXPECT_THAT(with("{" + good + R"(, "rank_pattern": {"q_proj": 3}})"), HasSubstr("rank_pattern"));
  EXPECT_THAT(with(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": "all-linear"})"), HasSubstr("a list of names"));
  EXPECT_THAT(with("{" + good + "}"), HasSubstr("no adapter_model.safetensors"));
  write_safetensors(scratch / "adapter_model.safetensors", {{"base_model.model.lm_head.weight", at::zeros({1})}}, base::real_disk());
  EXPECT_THAT(with("{" + good + "}"), HasSubstr("is none of a LoRA adapter"));
}

TEST(Adapter, OfAnotherModelIsNotMerged) {
  const model::DecoderShape shape = shape_of("llama");
  const Filled base(shape);
  const auto merged = [&](const mesh::NamedTensors& tensors) {
    return adapter_refusal([&] { merge_adapter(base.views(), {.shape = {.rank = 1}, .tensors = tensors}, shape); });
  };
  EXPECT_THAT(merged({{"model.layers.7.mlp.up_proj.lora_A.weight", at::zeros({1, 8})}}),
              HasSubstr("model.layers.7.mlp.up_proj that the model does not have"));
  const std::string layer = "model.layers.0.mlp.up_proj.lora_";
  EXPECT_THAT(merged({{layer + "A.weight", at::zeros({1, 8})}}), HasSubstr("has no lora_B"));
  EXPECT_THAT(merged({{layer + "A.weight", at::zeros({1, 9})}, {layer + "B.weight", at::zeros({6, 1})}}),
              HasSubstr("does not fit its weight"));
}

}  // namespace
}  // namespace cairn::snapshot
