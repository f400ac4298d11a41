#include "model/llama.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "model/llama_config.h"

namespace cairn::model {
namespace {

TEST(Llama, StartsFromValuesThatDependOnNameAndIndexAlone) {
  const auto two = make_llama({.vocab = 40, .layers = 2}), three = make_llama({.vocab = 40, .layers = 3});
  const at::Tensor a = at::empty({two->elements()}), b = at::empty({three->elements()});
  materialise(*two, a, base::Random(1));
  materialise(*three, b, base::Random(1));
  // The first layer's query projection of a deeper model is the same, wherever it lies in the buffer.
  const auto find = [](const Model& model, const at::Tensor& flat, const std::string& name) {
    for (const mesh::NamedTensor& view : model.layout().views(flat))
      if (view.name == name) return view.tensor;
    return at::Tensor();
  };
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_TRUE(at::equal(find(*two, a, name), find(*three, b, name)));
  EXPECT_FALSE(at::equal(find(*two, a, name), find(*two, a, "model.layers.1.self_attn.q_proj.weight")));
}

TEST(LlamaConfig, ReadsBackWhatItWrote) {
  const LlamaShape shape{.vocab = 99,
                         .embed = 48,
                         .layers = 3,
                         .heads = 6,
                         .kv_heads = 3,
                         .head_dim = 8,
                         .mlp = 100,
                         .length = 77,
                         .tied = false,
                         .rope_theta = 5e5,
                         .norm_eps = 1e-6};
  const LlamaShape back = parse_llama_config(llama_config_json(shape), "config.json");
  EXPECT_EQ(back.vocab, 99);
  EXPECT_EQ(back.kv_heads, 3);
  EXPECT_EQ(back.length, 77);
  EXPECT_EQ(back.tied, false);
  EXPECT_EQ(back.rope_theta, 5e5);
}

TEST(LlamaConfig, RefusesAnotherModelByName) {
  try {
    parse_llama_config(R"({"model_type": "bert"})", "x/config.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_NE(std::string(error.what()).find("x/config.json: model_type is bert"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cairn::model
