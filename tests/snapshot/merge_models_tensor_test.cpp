#include "snapshot/merge_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/model.h"
#include "snapshot/scratch_folder.h"

namespace cairn::snapshot {
namespace {

using testing::HasSubstr;

model::DecoderShape mergeable_shape() {
  return {.vocab = 11, .embed = 8, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 4, .mlp = 7, .length = 16};
}

// A directory with random values.
Pretrained written(const std::string& folder, uint64_t seed, const model::DecoderShape& shape = mergeable_shape(),
                   const std::string& tokenizer = "{}", c10::ScalarType dtype = at::kFloat) {
  const auto decoder = model::make_decoder(shape);
  const at::Tensor flat = at::empty({decoder->elements()});
  model::initialize_parameters(*decoder, flat, base::Random(seed));
  write_pretrained(folder, shape, decoder->layout().views(flat), {{"tokenizer.json", tokenizer}}, {.dtype = dtype}, base::real_disk());
  base::Log log({.level = base::Level::error, .terminal = nullptr, .file = {}});
  return open_pretrained(folder, log);
}

mesh::NamedTensors values_in(const Pretrained& opened) {
  const auto decoder = model::make_decoder(opened.shape);
  const mesh::NamedTensors views = decoder->layout().views(at::empty({decoder->elements()}));
  opened.load_into(views);
  return views;
}

mesh::NamedTensors merged(const std::vector<Pretrained>& models, const std::vector<double>& weights) {
  const auto decoder = model::make_decoder(models.front().shape);
  const mesh::NamedTensors views = decoder->layout().views(at::full({decoder->elements()}, 99.0f));
  merge_models(models, weights, views);
  return views;
}

std::string why_not_merged(const std::vector<Pretrained>& models, const std::vector<double>& weights = {}) {
  try {
    merged(models, weights);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "merged";
}

TEST(MergeModels, IsTheWeightedMeanOfEachParameter) {
  const ScratchFolder scratch;
  const std::vector<Pretrained> models{written(scratch / "a", 1), written(scratch / "b", 2),
                                       written(scratch / "c", 3, mergeable_shape(), "{}", at::kBFloat16)};
  for (const std::vector<double>& weights : {std::vector<double>{}, {3, 1, 0.5}}) {
    const mesh::NamedTensors found = merged(models, weights);
    for (size_t i = 0; i < found.size(); ++i) {
      at::Tensor expected = at::zeros(found[i].tensor.sizes(), at::kDouble);
      double sum = 0;
      for (size_t k = 0; k < 3; ++k) {
        const double weight = weights.empty() ? 1 : weights[k];
        expected += weight * values_in(models[k])[i].tensor.to(at::kDouble);
        sum += weight;
      }
      EXPECT_LT((found[i].tensor - expected / sum).abs().max().item<double>(), 1e-7) << found[i].name;
    }
  }
}

TEST(MergeModels, RefusesModelsThatHaveNoMean) {
  const ScratchFolder scratch;
  const Pretrained first = written(scratch / "a", 1);
  model::DecoderShape wider = mergeable_shape(), wired = mergeable_shape();
  wider.mlp = 9;
  wired.residual = "ladder", wired.ladder_layers = {0, 1};
  EXPECT_THAT(why_not_merged({first, written(scratch / "wider", 2, wider)}), HasSubstr("intermediate_size is 7 here and 9 there"));
  EXPECT_THAT(why_not_merged({first, written(scratch / "wired", 2, wired)}), HasSubstr("only models of one shape have a mean"));
  EXPECT_THAT(why_not_merged({first, written(scratch / "other", 2, mergeable_shape(), "{\"x\": 1}")}),
              HasSubstr("their tokenizer.json differ"));
  const Pretrained second = written(scratch / "b", 2);
  EXPECT_THAT(why_not_merged({first, second}, {1}), HasSubstr("--weights: 1 numbers for 2 models"));
  EXPECT_THAT(why_not_merged({first, second}, {1, 0}), HasSubstr("--weights 0: must be above 0"));
}

}  // namespace
}  // namespace cairn::snapshot
