#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/stop.h"
#include "comm/world.h"
#include "data/subset.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/open_tokenizer.h"
#include "harness/ranks.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "snapshot/folder.h"
#include "snapshot/pretrained.h"
#include "train/settings.h"
#include "train/train.h"

namespace cairn::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

base::Recipe short_run(const std::vector<std::string>& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    data = {length = 12, stories_bytes = 20000}
    train = {steps = 2, global_batch = 3}
    optim = {warmup_steps = 0, learning_rate = 0.01, schedule = "constant"}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {every = 0}
  )",
                                            "short.toml");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

std::vector<double> losses_of(const fs::path& out, const std::vector<std::string>& sets, int ranks = 1, bool resume = false) {
  const base::Stop never;
  harness::on_ranks(ranks, {.on = harness::On::local}, [&](comm::World& world) {
    Start start;
    start.out = out;
    start.resume = resume;
    run(world, short_run(sets), start, {}, never);
  });
  std::vector<double> losses;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl"))
    if (row.has("loss")) losses.push_back(row.number("loss"));
  return losses;
}

const std::vector<std::string> kNew{"model.kind=qwen3", "model.layers=2",   "model.embed=16", "model.heads=2",
                                    "model.kv_heads=1", "model.head_dim=6", "model.mlp=24",   "data.vocab=260"};

std::string refusal_of_settings(const std::vector<std::string>& sets) {
  try {
    base::Recipe recipe = short_run(sets);
    read_settings(recipe);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "accepted";
}

TEST(ModelFrom, StartsWhereAnotherRunEndedWithItsShapeTokenizerAndFiles) {
  const harness::ScratchFolder scratch;
  const std::vector<double> first = losses_of(scratch / "first", kNew);
  const fs::path snapshot = snapshot::step_folder(scratch / "first", 2);
  // The same as a Hugging Face directory of somebody else, with a chat template beside it.
  fs::create_directory(scratch / "theirs");
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) fs::copy(snapshot / name, scratch / "theirs" / name);
  std::ofstream(scratch / "theirs" / "tokenizer_config.json") << "{\"chat_template\": \"x\"}";
  const std::string run = (scratch / "first").string(), folder = (scratch / "theirs").string();
  const std::vector<double> from_run = losses_of(scratch / "a", {"model.from=" + run}),
                            from_folder = losses_of(scratch / "b", {"model.from=" + folder}, 2);
  EXPECT_LT(from_run[0], first[0]);  // it has learned something already
  ASSERT_EQ(from_run.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(from_run[i], from_folder[i], 1e-5 * from_run[i]);
  const fs::path written = snapshot::step_folder(scratch / "b", 2);
  EXPECT_EQ(base::read_file(written / "tokenizer_config.json", 1000), "{\"chat_template\": \"x\"}");
  EXPECT_EQ(base::read_file(written / "tokenizer.json", 1 << 20), base::read_file(snapshot / "tokenizer.json", 1 << 20));
  EXPECT_THAT(base::read_file(written / "config.json", 10'000), HasSubstr("\"model_type\": \"qwen3\""));
  // Resumed, it goes on from its own snapshot and not from there again.
  losses_of(scratch / "b", {"model.from=" + folder, "train.steps=3"}, 1, /*resume=*/true);
  const std::vector<double> whole = losses_of(scratch / "c", {"model.from=" + folder, "train.steps=3"});
  const std::vector<double> resumed = losses_of(scratch / "b", {"model.from=" + folder, "train.steps=3"}, 1, /*resume=*/true);
  EXPECT_NEAR(resumed.back(), whole.back(), 1e-5 * whole.back());
}

TEST(ModelFrom, RefusesKeysThatSayOtherwiseAndFoldersThatAreNone) {
  const harness::ScratchFolder scratch;
  losses_of(scratch / "first", kNew);
  const std::string from = "model.from=" + (scratch / "first").string();
  EXPECT_EQ(refusal_of_settings({from, "model.layers=2"}), "accepted");
  EXPECT_THAT(refusal_of_settings({from, "model.layers=3"}),
              testing::AllOf(HasSubstr("model.layers = 3"), HasSubstr("has 2"), HasSubstr("leave the key out")));
  EXPECT_THAT(refusal_of_settings({from, "model.kind=llama"}), HasSubstr("model.kind = \"llama\""));
  EXPECT_THAT(refusal_of_settings({"model.from=" + (scratch / "absent").string()}), HasSubstr("no such directory"));
  EXPECT_THROW(losses_of(scratch / "x", {from, "data.length=13"}), Error);  // longer than what the model was made for
}

// Somebody else's directory with this tokenizer: a model of `shape` whose values `set` changes.
std::string foreign_model(const fs::path& folder, const model::DecoderShape& shape, const std::map<std::string, std::string>& texts,
                          const std::function<void(const mesh::NamedTensors&)>& set = {}) {
  const auto decoder = model::make_decoder(shape);
  const at::Tensor flat = at::full({decoder->elements()}, 0.02);
  const mesh::NamedTensors views = decoder->layout().views(flat);
  if (set) set(views);
  snapshot::write_pretrained(folder, shape, views, texts, {}, base::real_disk());
  return folder.string();
}

model::DecoderShape small_shape(int64_t vocab, const std::string& family = "llama") {
  return {.vocab = vocab,
          .embed = 16,
          .layers = 1,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 8,
          .mlp = 24,
          .length = 16,
          .tied = false,
          .family = family};
}

// "<|end|>" is no name that Cairn knows.
TEST(ModelFrom, EndsDocumentsWithTheTokenThatTheDirectoryDeclares) {
  const harness::ScratchFolder scratch;
  std::string tokenizer = data::make_byte_tokenizer()->json();
  for (size_t at; (at = tokenizer.find("<|endoftext|>")) != std::string::npos;) tokenizer.replace(at, 13, "<|end|>");
  const std::string from = foreign_model(scratch / "theirs", small_shape(257),
                                         {{"tokenizer.json", tokenizer}, {"tokenizer_config.json", R"({"eos_token": "<|end|>"})"}});
  EXPECT_EQ(losses_of(scratch / "run", {"model.from=" + from, "log.samples=1"}).size(), 2u);
  const auto written = data::open_tokenizer(snapshot::step_folder(scratch / "run", 2).string());
  EXPECT_EQ(written->end_of_text(), 256);
}

// Rows 257 and 258 of the head point in opposite directions, far: one of them is the likeliest token after any text.
TEST(ModelFrom, SamplesOnlyIdsThatTheTokenizerHas) {
  const harness::ScratchFolder scratch;
  const std::string from = foreign_model(scratch / "padded", small_shape(260), {{"tokenizer.json", data::make_byte_tokenizer()->json()}},
                                         [](const mesh::NamedTensors& views) {
                                           for (const auto& [name, tensor] : views) {
                                             if (name != "lm_head.weight") continue;
                                             tensor[257].fill_(1000);
                                             tensor[258].fill_(-1000);
                                           }
                                         });
  EXPECT_EQ(losses_of(scratch / "run", {"model.from=" + from, "log.samples=2", "optim.learning_rate=1e-9"}).size(), 2u);
  EXPECT_THAT(base::read_file(scratch / "run" / "report.html", 1 << 24), HasSubstr("What it writes"));
}

TEST(ModelFrom, SaysThatItTrainsWithoutDropoutAndKeepsWhatTheFileAsksFor) {
  const harness::ScratchFolder scratch;
  model::DecoderShape shape = small_shape(257, "gpt2");
  shape.qkv_bias = shape.out_bias = shape.mlp_bias = true;
  shape.other_fields = {{"attn_pdrop", "0.1"}, {"summary_type", "\"mean\""}};
  const std::string from = foreign_model(scratch / "theirs", shape, {{"tokenizer.json", data::make_byte_tokenizer()->json()}});
  const base::Stop never;
  const harness::Run ran = harness::on_ranks(1, {.on = harness::On::local}, [&](comm::World& world) {
    Start start;
    start.out = scratch / "run";
    run(world, short_run({"model.from=" + from}), start, {}, never);
  });
  EXPECT_THAT(ran.log.at(0),
              testing::Contains(HasSubstr("config.json asks for dropout (attn_pdrop = 0.1): Cairn trains without dropout, and keeps")));
  const std::string config = base::read_file(snapshot::step_folder(scratch / "run", 2) / "config.json", 10'000);
  EXPECT_THAT(config, HasSubstr("\"attn_pdrop\": 0.1"));
  EXPECT_THAT(config, HasSubstr("\"summary_type\": \"mean\""));
}

// Every parameter of a snapshot, merged where it has an adapter.
mesh::NamedTensors merged(const fs::path& folder) {
  base::Log log({.level = base::Level::error, .terminal = nullptr, .file = {}});
  const snapshot::Pretrained opened = snapshot::open_pretrained(folder, log);
  const auto decoder = model::make_decoder(opened.shape);
  const mesh::NamedTensors views = decoder->layout().views(at::empty({decoder->elements()}));
  opened.load_into(views);
  opened.visit(decoder->parameters(),
               [&](size_t i, const at::Tensor& whole) { EXPECT_TRUE(at::equal(whole, views[i].tensor)) << views[i].name; });
  return views;
}

TEST(ModelFrom, TrainsAdaptersAloneAndGoesOnWithThem) {
  const harness::ScratchFolder scratch;
  losses_of(scratch / "first", kNew);
  const std::vector<std::string> lora{"model.from=" + (scratch / "first").string(), "model.lora.rank=3",
                                      R"(model.lora.targets=["q_proj", "down_proj"])"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> sets = lora;
    sets.push_back(more);
    return sets;
  };
  const std::vector<double> whole = losses_of(scratch / "whole", with("train.steps=6"));
  losses_of(scratch / "parts", with("train.steps=3"), 2);
  const std::vector<double> parts = losses_of(scratch / "parts", with("train.steps=6"), 1, /*resume=*/true);
  ASSERT_EQ(parts.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(parts[i], whole[i], 1e-4 * whole[i]) << i;
  // The model's own tensors are as they were; what was learned is in the adapter.
  const fs::path before = snapshot::step_folder(scratch / "first", 2), after = snapshot::step_folder(scratch / "whole", 6);
  EXPECT_EQ(base::read_file(before / "model.safetensors", 1 << 24), base::read_file(after / "model.safetensors", 1 << 24));
  EXPECT_EQ(snapshot::read_snapshot_adapter(after / "training").tensors.size(), 8u);
  int changed = 0;
  const mesh::NamedTensors old = merged(before), now = merged(after);
  for (size_t i = 0; i < old.size(); ++i) changed += at::equal(old[i].tensor, now[i].tensor) ? 0 : 1;
  EXPECT_EQ(changed, 4);  // two layers of two kinds
  EXPECT_THAT(refusal_of_settings({"model.lora.rank=3"}), HasSubstr("set model.from"));
}

TEST(ModelFrom, TrainsOnlyWhatModelTrainNames) {
  const harness::ScratchFolder scratch;
  std::vector<std::string> sets = kNew;
  sets.push_back(R"(model.train=["*.layers.1.self_attn.k_proj.*", "role:norm"])");
  sets.push_back("train.steps=1");
  losses_of(scratch / "a", sets);
  sets.back() = "train.steps=3";
  losses_of(scratch / "b", sets);
  const mesh::NamedTensors one = merged(scratch / "a"), three = merged(scratch / "b");
  for (size_t i = 0; i < one.size(); ++i) {
    const bool named = one[i].name.find("layers.1.self_attn.k_proj") != std::string::npos || one[i].name.find("norm") != std::string::npos;
    EXPECT_EQ(at::equal(one[i].tensor, three[i].tensor), !named) << one[i].name;
  }
}

}  // namespace
}  // namespace cairn::train
