// `cairn prune` from a recipe to a model, on little text.
#include "study/prune/prune.h"

#include <cmath>
#include <functional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "memory/host_allocator.h"
#include "model/bit_mask.h"
#include "model/decoder/decoder.h"
#include "model/model.h"
#include "snapshot/adapter.h"
#include "snapshot/pretrained.h"
#include "train/train.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kData = R"(
[data]
tokenizer = "bytes"
length = 16
stories_bytes = 20000
[train]
global_batch = 4
[log]
tensorboard = false
trace = false
[eval]
every = 0
samples = 8
)";

void on_quiet_ranks(int ranks, const std::function<void(comm::World&)>& body) {
  comm::LocalOptions options;
  options.world = [](int) {
    comm::WorldOptions world;
    world.log = base::Log::quiet();
    return world;
  };
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks, options).run(body))
    if (error) std::rethrow_exception(error);
}

std::string trained_model(const fs::path& out, const std::string& kind, bool tied = false, const std::string& more = "") {
  const std::string text = fmt::format(
      "[model]\nkind = \"{}\"\nlayers = 2\nembed = 16\nheads = 2\nkv_heads = 2\nmlp = 32\ntied = {}\n{}\n[snapshot]\nevery = 0\n", kind,
      tied, more);
  base::Recipe recipe = base::Recipe::parse(text + kData, "dense.toml");
  recipe.set("train.steps=30");
  recipe.set("optim.learning_rate=0.02");
  const base::Stop never;
  on_quiet_ranks(1, [&](comm::World& world) { train::run(world, recipe, {.out = out, .cache = {}, .terminal = nullptr}, {}, never); });
  return out.string();
}

PruneResult pruned(const std::string& from, const fs::path& out, const std::vector<std::string>& sets, int ranks = 1) {
  const base::Recipe::File file{.text = fmt::format("[model]\nfrom = \"{}\"\n[prune]\ncalibration = 12\ncalibration_batch = 4\n"
                                                    "[prune.recover]\nsteps = 6\nrank = 2\nlearning_rate = 0.01\n",
                                                    from) +
                                        kData,
                                .name = "prune.toml"};
  const PruneRecipe recipe = read_prune(file, sets);
  const base::Stop never;
  PruneResult result;
  on_quiet_ranks(ranks, [&](comm::World& world) {
    PruneResult mine = run_prune(world, recipe, {.out = out}, never);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

struct Weights {
  std::map<std::string, at::Tensor> tensors, masks;
  int64_t filled = 0, gone = 0;
  int64_t all = 0;
};
Weights weights_of(const fs::path& folder) {
  base::Log quiet = base::Log::quiet();
  const snapshot::Pretrained opened = snapshot::open_pretrained(folder.string(), quiet);
  const auto decoder = model::make_decoder(opened.shape);
  const mesh::NamedTensors views = decoder->layout().views(at::empty({decoder->elements()}));
  opened.load_into(views);
  Weights found;
  for (const mesh::NamedTensor& one : views) found.tensors[one.name] = one.tensor;
  for (const mesh::NamedTensor& one : opened.masks) {
    const std::string weight = one.name.substr(0, one.name.rfind('.'));
    const at::Tensor kept = model::unpack_mask(one.tensor, found.tensors.at(weight).size(1));
    found.masks[weight] = kept;
    found.filled += found.tensors.at(weight).masked_select(kept.logical_not()).ne(0).sum().item<int64_t>();
    found.gone += kept.numel() - kept.sum().item<int64_t>();
    found.all += kept.numel();
  }
  return found;
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  return "accepted";
}

TEST(Prune, RetrainsTheSubsetAndLeavesEveryOtherWeightAsItWas) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "gpt2");
  const PruneResult result = pruned(from, folder / "out", {R"(prune.recover.train=["bias","norm"])"});
  ASSERT_EQ(result.rounds.size(), 1u);
  const PruneRound& round = result.rounds[0];
  EXPECT_GT(round.pruned_loss, result.dense_loss);
  EXPECT_LT(round.merged_loss, round.pruned_loss);
  EXPECT_NEAR(round.recovered_loss, round.merged_loss, 1e-4);
  // Two norms a layer and one at the end, with gain and bias; qkv, out, up and down with a bias.
  EXPECT_EQ(round.trained, 2 * (2 * 2 * 16 + 48 + 16 + 32 + 16) + 2 * 16);
  const Weights before = weights_of(folder / "out" / "pruned"), after = weights_of(folder / "out" / "model");
  EXPECT_EQ(after.gone, after.all / 2);
  EXPECT_EQ(after.filled, 0);
  for (const auto& [name, tensor] : after.tensors) {
    const bool trained = name.ends_with(".bias") || name.find("ln_") != std::string::npos;
    EXPECT_NE(at::equal(tensor, before.tensors.at(name)), trained) << name;
  }
  EXPECT_TRUE(base::path_exists(folder / "out" / "results.json"));
  EXPECT_THAT(to_tables(result), HasSubstr("sparsity"));
}

TEST(Prune, EverySubsetIsMergedWithoutFillingWhatIsGone) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "llama");
  for (const char* form : {"mask_lora", "scale_lora", "lora_prune", "full"}) {
    const PruneResult result = pruned(from, folder / form, {fmt::format(R"(prune.recover.train=["norm","head","{}"])", form), "prune.recover.steps=40"});
    const Weights after = weights_of(result.model);
    EXPECT_EQ(after.filled, 0) << form;
    EXPECT_EQ(after.gone, after.all / 2) << form;
    const double jump = std::abs(result.rounds[0].merged_loss - result.rounds[0].recovered_loss);
    if (std::string(form) != "lora_prune") {
      EXPECT_LT(jump, 1e-4) << form;
    }
    EXPECT_LT(result.rounds[0].recovered_loss, result.rounds[0].pruned_loss) << form;
  }
}

TEST(Prune, TheDefaultTrainsWhatTheModelHas) {
  const harness::ScratchFolder folder;
  const PruneResult result = pruned(trained_model(folder / "dense", "llama", /*tied=*/true), folder / "out", {});
  EXPECT_GT(result.rounds[0].trained, 5 * 16);  // more than the norms
  EXPECT_EQ(weights_of(result.model).filled, 0);
}

TEST(Prune, AdaptersStayBesideASparseModel) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "llama");
  const PruneResult result = pruned(from, folder / "out", {R"(prune.recover.train=["lora"])", "prune.export=adapter"});
  const Weights after = weights_of(result.model), before = weights_of(folder / "out" / "pruned");
  EXPECT_EQ(after.filled, 0);
  for (const auto& [name, tensor] : after.tensors) EXPECT_TRUE(at::equal(tensor, before.tensors.at(name))) << name;
  EXPECT_EQ(snapshot::read_adapter((folder / "out" / "adapter").string()).tensors.size(), 2u * 7 * 2);
  EXPECT_TRUE(std::isnan(result.rounds[0].merged_loss));
}

TEST(Prune, ReconstructsEveryLayerWithEveryCriterion) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "gpt2");
  for (const char* method : {"magnitude", "wanda", "sparsegpt", "random"}) {
    const PruneResult result =
        pruned(from, folder / method, {fmt::format("prune.method={}", method), "prune.recover.mode=reconstruct", "prune.recover.steps=40"});
    ASSERT_EQ(result.rounds[0].pruned.layers.size(), 2u);
    for (const LayerPruned& layer : result.rounds[0].pruned.layers) {
      EXPECT_LT(layer.error_after, layer.error_before) << method << ", " << layer.name;
      EXPECT_EQ(layer.removed, layer.weights / 2) << method;
    }
    EXPECT_EQ(weights_of(result.model).filled, 0) << method;
  }
}

TEST(Prune, ActivationsOnDiskAndRanksChangeNothing) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "llama");
  const std::vector<std::string> sets{"prune.method=wanda", "prune.recover.mode=reconstruct",
                                      R"(prune.recover.train=["norm","mask_lora"])"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = sets;
    all.push_back(more);
    return all;
  };
  const Weights memory = weights_of(pruned(from, folder / "memory", sets).model);
  const Weights disk = weights_of(pruned(from, folder / "disk", with("prune.activations=disk")).model);
  for (const auto& [name, tensor] : memory.tensors) EXPECT_TRUE(at::equal(tensor, disk.tensors.at(name))) << name;
  // Statistics are of the same samples, whoever computes them.
  const PruneResult ranks = pruned(from, folder / "ranks", sets, 2);
  const Weights shared = weights_of(ranks.model);
  EXPECT_TRUE(
      at::equal(memory.masks.at("model.layers.0.self_attn.q_proj.weight"), shared.masks.at("model.layers.0.self_attn.q_proj.weight")));
  for (const LayerPruned& layer : ranks.rounds[0].pruned.layers) EXPECT_LT(layer.error_after, layer.error_before);
}

TEST(Prune, RoundsRaiseTheSparsityAndNeverBringBack) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "llama");
  const PruneResult result =
      pruned(from, folder / "out", {"prune.rounds=3", "prune.sparsity=0.7", R"(prune.recover.train=["norm","mask_lora"])"});
  ASSERT_EQ(result.rounds.size(), 3u);
  const Weights first = weights_of(folder / "out" / "round-1" / "model"), last = weights_of(result.model);
  EXPECT_LT(result.rounds[0].removed, result.rounds[1].removed);
  EXPECT_NEAR(static_cast<double>(last.gone) / static_cast<double>(last.all), 0.7, 0.002);
  for (const auto& [name, kept] : last.masks) EXPECT_FALSE(kept.logical_and(first.masks.at(name).logical_not()).any().item<bool>());
}

TEST(Prune, NothingIsRemovedAtASparsityOfZero) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "llama");
  const PruneResult result = pruned(from, folder / "out", {"prune.sparsity=0", "prune.recover.mode=none"});
  const Weights before = weights_of(from), after = weights_of(result.model);
  for (const auto& [name, tensor] : before.tensors) EXPECT_TRUE(at::equal(tensor, after.tensors.at(name))) << name;
}

TEST(Prune, BiasesCanBeAdded) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "llama");
  const std::vector<std::string> bias{R"(prune.recover.train=["bias"])"};
  EXPECT_THAT(refusal([&] { pruned(from, folder / "without", bias); }), HasSubstr("add_bias = true"));
  const PruneResult result = pruned(from, folder / "with", {R"(prune.recover.train=["bias"])", "prune.recover.add_bias=true"});
  EXPECT_TRUE(weights_of(result.model).tensors.contains("model.layers.1.mlp.up_proj.bias"));
  EXPECT_LT(result.rounds[0].merged_loss, result.rounds[0].pruned_loss);
}

TEST(Prune, RefusesWhatCannotBeBeforeAnythingIsPruned) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "llama", /*tied=*/true);
  const auto refused = [&](const std::vector<std::string>& sets) { return refusal([&] { pruned(from, folder / "out", sets); }); };
  EXPECT_THAT(refused({R"(prune.recover.train=["head"])"}), HasSubstr("embedding table (tied)"));
  EXPECT_THAT(refused({"prune.calibration=100000", "prune.method=wanda", R"(prune.recover.train=["norm"])"}),
              HasSubstr("training samples of 16 tokens"));
  EXPECT_THAT(refused({"prune.pattern=5:12", "prune.sparsity=0.4166666666666667", R"(prune.recover.train=["norm"])"}),
              HasSubstr("16 inputs, which are no groups of 12"));
  EXPECT_THAT(refused({"prune.recover.mode=reconstruct", R"(prune.recover.train=["bias"])"}), HasSubstr("add_bias = true"));
  EXPECT_THAT(refused({"prune.recover.mode=reconstruct", R"(prune.recover.train=["head"])"}), HasSubstr("none of these parameters"));
  EXPECT_FALSE(base::path_exists(folder / "out"));
  EXPECT_THAT(refused({"model.adapter.rank=2"}), HasSubstr("prune.recover.train says which adapters"));
  EXPECT_THAT(refused({"prune.sparcity=0.5"}), HasSubstr("did you mean"));
  EXPECT_THAT(refusal([&] { read_prune({.text = kData, .name = "no-model.toml"}, {}); }), HasSubstr("nothing to prune"));
}

TEST(Prune, AFolderGoesOnOnlyWithWhatItWasBegunWith) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "llama"), other = trained_model(folder / "other", "gpt2");
  const std::vector<std::string> sets{R"(prune.recover.train=["norm"])"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), sets.begin(), sets.end());
    return more;
  };
  const fs::path out = folder / "out";
  const PruneResult first = pruned(from, out, sets);
  fs::rename(out / "model", folder / "before");  // as if it had been stopped before the end
  const auto refused = [&](const std::vector<std::string>& more, const std::string& model) {
    return refusal([&] { pruned(model, out, with(more)); });
  };
  EXPECT_THAT(refused({"prune.sparsity=0.7"}, from),
              HasSubstr("prune.sparsity = 0.7: " + out.string() + " was begun with 0.5. Set it back"));
  EXPECT_THAT(refused({"prune.method=random"}, from), HasSubstr("prune.method = \"random\""));
  EXPECT_THAT(refused({"prune.recover.steps=7"}, from), HasSubstr("prune.recover.steps = 7"));
  EXPECT_THAT(refused({"train.global_batch=2"}, from), HasSubstr("train.global_batch = 2"));
  EXPECT_THAT(refused({"data.stories_seed=5"}, from), HasSubstr("data.stories_seed = 5"));
  EXPECT_THAT(refused({}, other), HasSubstr("model.from = \"" + other));
  const PruneResult again = pruned(from, out, with({"prune.memory_limit_mb=1000", "log.trace=true"}));
  EXPECT_EQ(again.rounds[0].merged_loss, first.rounds[0].merged_loss);
  fs::remove_all(out / "model");
  fs::remove(out / "prune.json");
  EXPECT_THAT(refused({}, from), HasSubstr("no prune.json that says from what"));
}

TEST(Prune, AMemoryLimitHoldsForTheLossToo) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "llama");
  memory::install_host_allocator();
  // Logits of 8 samples, [8, 16, 256] in fp32, are 128 KiB; the weights of the largest part are 16 KiB.
  EXPECT_THAT(refusal([&] {
                pruned(from, folder / "bound", {"prune.recover.mode=none", "prune.calibration_batch=8", "prune.memory_limit_mb=0.15"});
              }),
              HasSubstr("the loss of"));
  const PruneResult small =
      pruned(from, folder / "small", {"prune.recover.mode=none", "prune.calibration_batch=1", "prune.memory_limit_mb=0.15"});
  EXPECT_LE(small.rounds[0].pruned.peak_bytes, static_cast<int64_t>(0.15 * 1048576));
  EXPECT_GT(small.loss_peak_bytes, 16 * 256 * 4);  // the logits of a sample
  EXPECT_LE(small.loss_peak_bytes, static_cast<int64_t>(0.15 * 1048576));
}

TEST(Prune, AMemoryLimitIsRefusedByItsLargestUser) {
  const harness::ScratchFolder folder;
  const std::string from = trained_model(folder / "dense", "llama");
  memory::install_host_allocator();  // it counts
  const PruneResult free = pruned(from, folder / "free", {"prune.recover.mode=reconstruct", R"(prune.recover.train=["mask_lora"])"});
  EXPECT_GT(free.rounds[0].pruned.peak_bytes, free.rounds[0].pruned.activation_bytes);
  EXPECT_THAT(refusal([&] {
                pruned(from, folder / "bound",
                       {"prune.recover.mode=reconstruct", R"(prune.recover.train=["mask_lora"])", "prune.memory_limit_mb=0.001"});
              }),
              HasSubstr("prune.activations = \"disk\""));
}

}  // namespace
}  // namespace cairn::study
