#include "model/some_experts.h"
#include "snapshot/pretrained.h"

#include <filesystem>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/files/faulty_disk.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/families/config.h"
#include "model/families/families.h"
#include "snapshot/scratch_folder.h"
#include "snapshot/snapshot.h"

namespace cairn::snapshot {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

base::Log quiet() { return base::Log({.level = base::Level::error, .terminal = nullptr, .file = {}}); }

model::DecoderShape small(const std::string& family = "llama", bool tied = false) {
  const model::Family& of = model::family(family);
  model::DecoderShape shape{.vocab = 11,
                            .embed = 8,
                            .layers = 2,
                            .heads = 2,
                            .kv_heads = 2,
                            .head_dim = 4,
                            .mlp = 6,
                            .length = 16,
                            .tied = tied,
                            .family = family,
                            .qkv_bias = of.qkv_bias,
                            .out_bias = of.out_bias,
                            .mlp_bias = of.mlp_bias};
  if (of.linear_attention) shape.linear = {.heads = 2, .key_dim = 2, .value_dim = 4};
  shape.tokens = {.bos = 1, .eos = {2}};
  return model::with_experts(shape, /*losses=*/false);
}

// The parameters of that shape with values of their own.
mesh::NamedTensors values_of(const model::DecoderShape& shape) {
  const auto decoder = model::make_decoder(shape);
  const at::Tensor flat = at::empty({decoder->elements()});
  model::initialize_parameters(*decoder, flat, base::Random(3));
  return decoder->layout().views(flat);
}

mesh::NamedTensors empty_of(const model::DecoderShape& shape) {
  const auto decoder = model::make_decoder(shape);
  return decoder->layout().views(at::full({decoder->elements()}, 99.0));
}

void expect_equal(const mesh::NamedTensors& found, const mesh::NamedTensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i].tensor, expected[i].tensor)) << found[i].name;
}

// What a rank copies its shards from.
void expect_visited(const Pretrained& opened, const mesh::NamedTensors& expected) {
  size_t next = 0;
  opened.visit(model::make_decoder(opened.shape)->parameters(), [&](size_t i, const at::Tensor& whole) {
    EXPECT_EQ(i, next++);
    EXPECT_TRUE(at::equal(whole.to(at::kFloat), expected[i].tensor)) << expected[i].name;
  });
  EXPECT_EQ(next, expected.size());
}

template <typename Act>
std::string why_refused(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_TRUE(error.kind() == Error::Kind::bad_input || error.kind() == Error::Kind::corrupt_file) << error.what();
    return error.what();
  }
  return "accepted";
}

std::string why_not_opened(const std::string& folder) {
  return why_refused([&] {
    base::Log log = quiet();
    const Pretrained opened = open_pretrained(folder, log);
    opened.load_into(empty_of(opened.shape));
  });
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

TEST(Pretrained, GivesBackWhatItWroteForEveryFamilyInOneFileOrMany) {
  const ScratchFolder scratch;
  base::Log log = quiet();
  for (const std::string& family : model::family_names())
    for (const int64_t shard_bytes : {int64_t{1} << 40, int64_t{600}}) {
      const model::DecoderShape shape = small(family, /*tied=*/shard_bytes == 600);
      const std::string folder = scratch / fmt::format("{}-{}", family, shard_bytes);
      const mesh::NamedTensors expected = values_of(shape);
      write_pretrained(folder, shape, expected, {{"tokenizer_config.json", "{\"chat_template\": \"x\"}"}}, {.shard_bytes = shard_bytes},
                       base::real_disk());
      EXPECT_EQ(fs::exists(fs::path(folder) / "model.safetensors.index.json"), shard_bytes == 600);
      const Pretrained opened = open_pretrained(folder, log);
      EXPECT_EQ(opened.shape, shape);
      EXPECT_EQ(opened.texts.at("tokenizer_config.json"), "{\"chat_template\": \"x\"}");
      EXPECT_THAT(opened.texts.at("generation_config.json"), HasSubstr("\"eos_token_id\": 2"));
      const mesh::NamedTensors found = empty_of(shape);
      opened.load_into(found);
      expect_equal(found, expected);
      expect_visited(opened, expected);
    }
}

TEST(Pretrained, ConvertsHalfPrecision) {
  const ScratchFolder scratch;
  base::Log log = quiet();
  const mesh::NamedTensors expected = values_of(small());
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const std::string folder = scratch / c10::toString(dtype);
    write_pretrained(folder, small(), expected, {}, {.dtype = dtype}, base::real_disk());
    EXPECT_THAT(base::read_file(folder + "/config.json", 10'000), HasSubstr(dtype == at::kHalf ? "\"float16\"" : "\"bfloat16\""));
    const mesh::NamedTensors found = empty_of(small());
    open_pretrained(folder, log).load_into(found);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i].tensor, expected[i].tensor.to(dtype).to(at::kFloat)));
  }
}

// As the inner model saves itself, with the buffers that older versions kept, and with a head although it is tied.
TEST(Pretrained, ReadsTheNamesThatOtherWritersUse) {
  const ScratchFolder scratch;
  base::Log log = quiet();
  for (const std::string family : {"llama", "gpt2"}) {
    const model::DecoderShape shape = small(family, /*tied=*/true);
    const mesh::NamedTensors expected = values_of(shape);
    mesh::NamedTensors inner;
    for (const auto& [name, tensor] : expected) inner.push_back({name.substr(name.find('.') + 1), tensor});
    inner.push_back({"lm_head.weight", at::zeros({11, 8})});
    inner.push_back({family == "gpt2" ? "h.0.attn.bias" : "layers.0.self_attn.rotary_emb.inv_freq", at::zeros({2})});
    base::make_folder(scratch / family);
    write_text(scratch / (family + "/config.json"), model::format_config(shape));
    write_safetensors(scratch / (family + "/model.safetensors"), inner, base::real_disk());
    const mesh::NamedTensors found = empty_of(shape);
    open_pretrained(scratch / family, log).load_into(found);
    expect_equal(found, expected);
    expect_visited(open_pretrained(scratch / family, log), expected);
  }
}

TEST(Pretrained, NamesEveryTensorThatDoesNotFitAndWritesNone) {
  const ScratchFolder scratch;
  base::Log log = quiet();
  mesh::NamedTensors tensors = values_of(small());
  for (mesh::NamedTensor& one : tensors) {
    if (one.name == "model.norm.weight") one.name = "model.norm.gain";
    if (one.name == "model.layers.1.mlp.down_proj.weight") one.tensor = at::zeros({8, 7});
    if (one.name == "model.layers.0.mlp.down_proj.weight") one.tensor = at::zeros({8, 6}, at::kLong);
  }
  write_pretrained(scratch / "x", small(), tensors, {}, {.dtype = at::kFloat}, base::real_disk());
  write_safetensors(scratch / "x/model.safetensors", tensors, base::real_disk());
  EXPECT_THAT(why_not_opened(scratch / "x"),
              testing::AllOf(HasSubstr("missing: model.norm.weight"), HasSubstr("unexpected: model.norm.gain"),
                             HasSubstr("model.layers.1.mlp.down_proj.weight is [8, 7] there, [8, 6] here"),
                             HasSubstr("model.layers.0.mlp.down_proj.weight is I64 there, floating-point here")));
  const mesh::NamedTensors into = empty_of(small());
  EXPECT_THROW(open_pretrained(scratch / "x", log).load_into(into), Error);
  for (const mesh::NamedTensor& one : into) EXPECT_EQ(one.tensor.min().item<float>(), 99) << one.name;
  write_safetensors(scratch / "x/model.safetensors", {{"model.norm.weight", at::zeros({8})}}, base::real_disk());
  EXPECT_THAT(why_not_opened(scratch / "x"), HasSubstr("and 10 more"));  // 20 are missing, ten are named
}

TEST(Pretrained, IsRefusedBeforeAModelOfThatManyLayersIsBuilt) {
  const ScratchFolder scratch;
  write_pretrained(scratch / "x", small(), values_of(small()), {}, {}, base::real_disk());
  model::DecoderShape shape = small();
  shape.layers = 16000;
  write_text(scratch / "x/config.json", model::format_config(shape));
  EXPECT_THAT(why_not_opened(scratch / "x"), HasSubstr("it speaks of 16000 layers, and"));
}

TEST(Pretrained, HoldsFiniteNumbersAndTextsThatAreWhatTheirNamesSay) {
  const ScratchFolder scratch;
  mesh::NamedTensors tensors = values_of(small());
  tensors[3].tensor.view({-1})[2] = std::numeric_limits<float>::infinity();
  write_pretrained(scratch / "x", small(), tensors, {}, {}, base::real_disk());
  EXPECT_THAT(why_not_opened(scratch / "x"), HasSubstr(fmt::format("tensor {} holds numbers that are not finite", tensors[3].name)));
  tensors[3].tensor.fill_(3e38);  // their sum is beyond any fp32, and each is good
  write_pretrained(scratch / "y", small(), tensors, {}, {}, base::real_disk());
  EXPECT_EQ(why_not_opened(scratch / "y"), "accepted");
  write_text(scratch / "y/special_tokens_map.json", "{\"bos_token\": ");
  EXPECT_THAT(why_not_opened(scratch / "y"), HasSubstr("special_tokens_map.json: not JSON at byte"));
}

TEST(Pretrained, OpensASnapshotAndTheNewestOfARun) {
  const ScratchFolder scratch;
  base::Log log = quiet();
  write_text(scratch / "recipe.toml", "");
  EXPECT_THAT(why_not_opened(scratch.path()), HasSubstr("has no snapshot yet"));
  Contents contents{.step = 7, .version = "0"};
  contents.tensors["model"] = values_of(small());
  contents.texts["config.json"] = model::format_config(small());
  contents.texts["tokenizer.json"] = "{}";
  const std::string path = save(scratch.path(), contents, {}, base::real_disk());
  for (const std::string& folder : {scratch.path(), path}) {
    const Pretrained opened = open_pretrained(folder, log);
    EXPECT_EQ(opened.path, path);
    EXPECT_EQ(opened.shape, small());
    const mesh::NamedTensors found = empty_of(small());
    opened.load_into(found);
    expect_equal(found, contents.tensors["model"]);
    EXPECT_EQ(read_outline(folder).tokenizer_file, path + "/tokenizer.json");
    EXPECT_EQ(read_outline(folder).shape, small());
  }
  write_text(path + "/config.json", "{}");  // not what the manifest says
  EXPECT_THAT(why_refused([&] { open_pretrained(path, log); }), HasSubstr("the manifest says"));
}

TEST(Pretrained, SaysWhatIsWrongWithAFolder) {
  const ScratchFolder scratch;
  EXPECT_THAT(why_not_opened(scratch / "absent"), HasSubstr("no such directory"));
  EXPECT_THAT(why_not_opened(scratch.path()), HasSubstr("no config.json there"));
  EXPECT_THAT(why_refused([&] { read_outline(scratch / "absent"); }), HasSubstr("no such directory"));
  EXPECT_THAT(why_refused([&] { read_outline(scratch.path()); }), HasSubstr("no config.json there"));
  write_text(scratch / "config.json", model::format_config(small()));
  EXPECT_THAT(why_not_opened(scratch.path()), HasSubstr("no model.safetensors and no model.safetensors.index.json there"));
  write_text(scratch / "pytorch_model.bin", "");
  EXPECT_THAT(why_not_opened(scratch.path()), HasSubstr("is a pickle, which can run code and is never read"));
}

TEST(Pretrained, IsWrittenWholeOrNotAtAll) {
  const ScratchFolder scratch;
  write_text(scratch / "file", "x");
  EXPECT_THAT(why_refused([&] { write_pretrained(scratch.path(), small(), values_of(small()), {}, {}, base::real_disk()); }),
              HasSubstr("there is something already"));
  EXPECT_THAT(
      why_refused([&] { write_pretrained(scratch / "a", small(), values_of(small()), {}, {.dtype = at::kInt}, base::real_disk()); }),
      HasSubstr("a model is written as float32, bfloat16 or float16"));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1);
}

struct BadIndex {
  const char* name;
  std::string text, says;
};

class ShardIndex : public testing::TestWithParam<BadIndex> {};

TEST_P(ShardIndex, IsRefusedWithTheReason) {
  const ScratchFolder scratch;
  write_safetensors(scratch / "a.safetensors", {{"x", at::zeros({1})}, {"y", at::zeros({1})}}, base::real_disk());
  write_safetensors(scratch / "b.safetensors", {{"y", at::zeros({1})}, {"z", at::zeros({1})}}, base::real_disk());
  write_text(scratch / "model.safetensors.index.json", GetParam().text);
  EXPECT_THAT(why_refused([&] { WeightFiles::open(scratch.path()); }), HasSubstr(GetParam().says));
}

std::string map_of(const std::string& map) { return R"({"metadata": {}, "weight_map": )" + map + "}"; }

INSTANTIATE_TEST_SUITE_P(
    All, ShardIndex,
    testing::Values(BadIndex{"no_json", "{", "not JSON"}, BadIndex{"deep", std::string(1'000'000, '['), "nested more than"},
                    BadIndex{"no_map", "{}", "no weight_map"}, BadIndex{"list", map_of("[1]"), "no weight_map"},
                    BadIndex{"empty", map_of("{}"), "weight_map is empty"}, BadIndex{"number", map_of(R"({"x": 1})"), "not a file name"},
                    BadIndex{"parent", map_of(R"({"x": "../a.safetensors"})"), "only safetensors files beside the index are read"},
                    BadIndex{"absolute", map_of(R"({"x": "/etc/a.safetensors"})"), "only safetensors files beside the index"},
                    BadIndex{"folder", map_of(R"({"x": "training/a.safetensors"})"), "only safetensors files beside the index"},
                    BadIndex{"nul", map_of("{\"x\": \"a.safetensors\\u0000\"}"), "only safetensors files beside the index"},
                    BadIndex{"other_kind", map_of(R"({"x": "a.bin"})"), "only safetensors files beside the index"},
                    BadIndex{"absent", map_of(R"({"x": "c.safetensors"})"), "missing"},
                    BadIndex{"elsewhere", map_of(R"({"x": "a.safetensors", "w": "a.safetensors"})"),
                             "tensor \"w\" is not in a.safetensors"},
                    BadIndex{"twice", map_of(R"({"x": "a.safetensors", "z": "b.safetensors"})"), "tensor \"y\" is also in a.safetensors"}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace cairn::snapshot
