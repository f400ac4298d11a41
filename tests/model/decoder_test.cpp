#include "model/decoder/decoder.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/aten.h"

namespace cairn::model {
namespace {

TEST(Decoder, StartsFromValuesThatDependOnNameAndIndexAlone) {
  const auto two = make_decoder({.vocab = 40, .layers = 2}), three = make_decoder({.vocab = 40, .layers = 3});
  const at::Tensor a = at::empty({two->elements()}), b = at::empty({three->elements()});
  initialize_parameters(*two, a, base::Random(1));
  initialize_parameters(*three, b, base::Random(1));
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

}  // namespace
}  // namespace cairn::model
