// Adapters in modules, trained: the same on every layout, modules that are not drawn stand still, and what is refused.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "comm/local/local.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "model/decoder/adapter_matrix.h"
#include "refusal.h"
#include "snapshot/adapter.h"
#include "snapshot/adapter_modules.h"
#include "train/layout_trace.h"
#include "train_on.h"
#include "tuning.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;

const harness::ScratchFolder& mosa_files() {
  static const harness::ScratchFolder folder;
  return folder;
}
const std::string& mosa_base() {
  static const std::string folder = make_base_model(mosa_files() / "base");
  return folder;
}

base::Recipe mosa_recipe(const Sets& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    data = {tokenizer = "bytes", length = 19, stories_bytes = 20000}
    train = {global_batch = 7}
    log = {tensorboard = false, trace = false, samples = 0}
    snapshot = {every = 0}
    eval = {every = 0, samples = 5}
    optim = {learning_rate = 0.02}
    [model.adapter]
    kind = "mosa"
    rank = 3
    modules = 3
    dropout = 0.2
  )",
                                            "mosa.toml");
  recipe.set("model.from=" + mosa_base());
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

struct MosaCase {
  std::string name;
  int ranks;
  Sets sets;
};

LayoutTrace mosa_trace(const MosaCase& c) {
  LayoutTrace trace;
  for (const std::exception_ptr& error : comm::LocalNetwork(c.ranks).run([&](comm::World& world) {
         LayoutTrace own = trace_layout(world, mosa_recipe(c.sets), {.steps = 3, .tensors = true, .plant = {}, .cache = {}});
         if (world.rank() == 0) trace = std::move(own);
       }))
    if (error) std::rethrow_exception(error);
  return trace;
}

class MosaLayouts : public testing::TestWithParam<MosaCase> {};

TEST_P(MosaLayouts, GiveTheGradientsOfOneRank) {
  const MosaCase& c = GetParam();
  Sets same;
  for (const std::string& set : c.sets)
    if (set.starts_with("model.")) same.push_back(set);
  const LayoutTrace one = mosa_trace({"one", 1, same}), many = mosa_trace(c);
  const Difference found = first_difference(many, one, 1e-5);
  EXPECT_EQ(found.step, 0) << found.what << " by " << found.largest << " of " << found.scale;
}

const Sets kOnLayers{"model.adapter.style=lora", R"(model.adapter.targets=["q_proj","o_proj","up_proj","down_proj"])",
                     "model.adapter.share=none"};

INSTANTIATE_TEST_SUITE_P(
    Layouts, MosaLayouts,
    testing::Values(MosaCase{"micro_batch_1", 1, {"train.micro_batch=1"}}, MosaCase{"micro_batch_3", 1, {"train.micro_batch=3"}},
                    MosaCase{"dp2", 2, {}}, MosaCase{"dp3_micro_batch_1", 3, {"train.micro_batch=1"}},
                    MosaCase{"more_ranks_than_samples", 8, {"memory.zero=3"}}, MosaCase{"zero1", 3, {"memory.zero=1"}},
                    MosaCase{"zero2_micro_batch_2", 2, {"memory.zero=2", "train.micro_batch=2"}}, MosaCase{"zero3", 4, {"memory.zero=3"}},
                    MosaCase{"tp2", 2, {"mesh.tp=2"}}, MosaCase{"pp2", 2, {"mesh.pp=2", "train.micro_batch=2"}},
                    MosaCase{"pp2_dp2_zero1", 4, {"mesh.pp=2", "memory.zero=1", "train.micro_batch=1"}}, MosaCase{"cp2", 2, {"mesh.cp=2"}},
                    MosaCase{"recompute", 2, {"recompute.mode=full", "train.micro_batch=2"}},
                    MosaCase{"one_pass_dp2", 2, {"model.adapter.consistency=0"}},
                    MosaCase{"second_loss_pp2", 2, {"model.adapter.second_ce=0.5", "mesh.pp=2", "train.micro_batch=2"}},
                    MosaCase{"houlsby_dp2", 2, {"model.adapter.style=houlsby", "model.adapter.share=none"}},
                    MosaCase{"pfeiffer_pp2", 2, {"model.adapter.style=pfeiffer", "mesh.pp=2", "train.micro_batch=2"}},
                    MosaCase{"lora_tp2", 2, kOnLayers + Sets{"mesh.tp=2"}}, MosaCase{"lora_zero3", 2, kOnLayers + Sets{"memory.zero=3"}}),
    [](const auto& c) { return c.param.name; });

mesh::NamedTensors adapter_after(const std::filesystem::path& run, int64_t step) {
  return snapshot::read_snapshot_adapter((std::filesystem::path(snapshot::step_folder(run, step)) / "training").string()).tensors;
}

const at::Tensor& named(const mesh::NamedTensors& all, const std::string& name) {
  for (const mesh::NamedTensor& one : all)
    if (one.name == name) return one.tensor;
  throw std::out_of_range(name);
}

// A step moves the modules that its passes draw, and no other: not by momentum, and not by decay.
TEST(Mosa, ModulesThatAreNotDrawnStandStill) {
  const std::filesystem::path out = mosa_files() / "still";
  train_on(1, mosa_recipe({"train.steps=6", "snapshot.every=1", "snapshot.keep=9", "optim.weight_decay=0.1", "optim.warmup_steps=0"}), out);
  int64_t moved = 0, still = 0;
  for (int64_t step = 2; step <= 6; ++step) {
    const mesh::NamedTensors before = adapter_after(out, step - 1), after = adapter_after(out, step);
    for (const std::string matrix : {"model.layers.0.mlp_adapter.up", "model.layers.1.mlp_adapter.up"})
      for (int64_t n = 0; n < 3; ++n)
        for (const char* part : {"weight", "bias"}) {
          const std::string name = fmt::format("{}.modules.{}.{}", matrix, n, part);
          const bool same = at::equal(named(before, name), named(after, name));
          ++(same ? still : moved);
        }
    EXPECT_FALSE(
        at::equal(named(before, "model.layers.0.mlp_adapter.down.weight"), named(after, "model.layers.0.mlp_adapter.down.weight")));
  }
  // Two draws of three modules: 1/3 of the pairs are one module. 5 steps x 2 matrices x 3 modules x 2 parts.
  EXPECT_EQ(moved + still, 60);
  EXPECT_GE(still, 20);
  EXPECT_GE(moved, 20);
  const std::vector<double> shares = numbers_of(out, "active_share");
  ASSERT_EQ(shares.size(), 6u);
  for (const double share : shares) EXPECT_LT(share, 1);
  EXPECT_EQ(numbers_of(out, "consistency").size(), 6u);
}

TEST(Mosa, OneModuleWithoutConsistencyIsAnOrdinaryAdapterBitwise) {
  const Sets plain{"train.steps=4", "snapshot.every=4"};
  const auto run = [&](const std::string& name, const Sets& sets) {
    const std::vector<double> losses = losses_on(1, mosa_recipe(plain + sets), mosa_files() / name);
    return std::pair(losses, adapter_after(mosa_files() / name, 4));
  };
  for (const std::string style : {"adaptformer", "houlsby"}) {
    const auto [losses, adapter] =
        run("one-" + style, {"model.adapter.modules=1", "model.adapter.consistency=0", "model.adapter.style=" + style});
    const auto [expected, ordinary] = run("ordinary-" + style, {"model.adapter.kind=bottleneck", "model.adapter.style=" + style});
    EXPECT_EQ(losses, expected);
    ASSERT_EQ(adapter.size(), ordinary.size());
    for (const mesh::NamedTensor& one : adapter) EXPECT_TRUE(at::equal(one.tensor, named(ordinary, one.name))) << one.name;
  }
}

TEST(Mosa, AResumedRunIsBitwiseIdentical) {
  const Sets sets{"snapshot.every=3", "snapshot.keep=9", "memory.zero=1"};
  const std::vector<double> whole = losses_on(2, mosa_recipe(sets + Sets{"train.steps=6"}), mosa_files() / "whole");
  std::filesystem::copy(mosa_files() / "whole", mosa_files() / "killed", std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(snapshot::step_folder(mosa_files() / "killed", 6));
  EXPECT_EQ(losses_on(2, mosa_recipe(sets + Sets{"train.steps=6"}), mosa_files() / "killed", /*resume=*/true), whole);
  const mesh::NamedTensors after = adapter_after(mosa_files() / "killed", 6);
  for (const mesh::NamedTensor& one : adapter_after(mosa_files() / "whole", 6))
    EXPECT_TRUE(at::equal(one.tensor, named(after, one.name))) << one.name;
}

// Merged, the modules are an ordinary adapter: a run that starts from it evaluates alike.
TEST(Mosa, ExportedAdaptersAreOrdinaryOnes) {
  for (const std::string style : {"adaptformer", "lora"}) {
    const std::filesystem::path out = mosa_files() / ("exported-" + style), folder = mosa_files() / ("adapter-" + style);
    const Sets sets{"train.steps=4", "snapshot.every=4", "eval.every=4", "model.adapter.style=" + style};
    train_on(1, mosa_recipe(sets), out);
    base::Log quiet = base::Log::quiet();
    const snapshot::Pretrained opened = snapshot::open_pretrained(out.string(), quiet);
    ASSERT_TRUE(opened.adapter);
    EXPECT_EQ(opened.adapter->shape.kind, model::AdapterKind::mosa);
    snapshot::write_adapter(folder.string(), *opened.adapter, opened.shape, "base", base::real_disk());
    const snapshot::Adapter read = snapshot::read_adapter(folder.string());
    EXPECT_EQ(read.shape.kind, style == "lora" ? model::AdapterKind::lora : model::AdapterKind::bottleneck);
    const std::filesystem::path again = mosa_files() / ("again-" + style);
    base::Recipe recipe = mosa_recipe({"train.steps=1", "optim.learning_rate=0", "eval.every=1"});
    base::Recipe plain = base::Recipe::parse(
        "data = {tokenizer = \"bytes\", length = 19, stories_bytes = 20000}\n"
        "train = {global_batch = 7, steps = 1}\nlog = {tensorboard = false, trace = false, samples = 0}\n"
        "snapshot = {every = 0}\neval = {every = 1, samples = 5}\noptim = {learning_rate = 0.0}",
        "again.toml");
    plain.set("model.from=" + mosa_base());
    plain.set("model.adapter.from=" + folder.string());
    train_on(1, plain, again);
    ASSERT_EQ(numbers_of(again, "eval_loss").size(), 1u);
    EXPECT_NEAR(numbers_of(again, "eval_loss").back(), numbers_of(out, "eval_loss").back(), 1e-6) << style;
  }
}

TEST(Mosa, IsRefusedWhereItsPassesCannotBeCompared) {
  const auto refused = [](const Sets& sets) { return refusal_of(mosa_recipe(sets)); };
  EXPECT_THAT(refused({"model.dropout=0.1"}), HasSubstr("model.dropout = 0.1: the passes of model.adapter.kind = mosa"));
  EXPECT_THAT(refused({"model.adapter.modules=0"}), HasSubstr("model.adapter.modules = 0"));
  EXPECT_THAT(refused({"model.adapter.modules=50"}), HasSubstr("model.adapter.modules = 50: model.layers.0.mlp_adapter.up is 16 x 3"));
  EXPECT_THAT(refused({"optim.kind=muon"}), HasSubstr("optim.kind = muon: works on whole matrices"));
  EXPECT_THAT(refused({"train.loss_chunks=2"}), HasSubstr("train.loss_chunks = 2: does not work with model.adapter.kind = mosa"));
  EXPECT_THAT(refused({"train.cuda_graph=true"}), HasSubstr("train.cuda_graph = true: does not work with model.adapter.kind = mosa"));
  EXPECT_THAT(refused({"train.method=one_byte"}), HasSubstr("model.adapter.kind = mosa: has steps of its own"));
  EXPECT_THAT(refused({"train.method=mosa"}), HasSubstr("train.method"));
  EXPECT_THAT(refused({"model.residual=ladder", "model.convert=true"}),
              HasSubstr("model.adapter.style = adaptformer: not with model.residual"));
  EXPECT_THAT(refused({"model.adapter.kind=bottleneck", "model.adapter.style=lora"}), HasSubstr("Use model.adapter.kind = lora"));
  const base::Stop never;
  const harness::Run ended = harness::on_ranks(2, {.expect_errors = true}, [&](comm::World& world) {
    run(world, mosa_recipe({"model.adapter.style=pfeiffer", "mesh.tp=2"}), {}, {}, never);
  });
  EXPECT_THAT(ended.error_on(0).what(), HasSubstr("model.adapter.style = pfeiffer: does not work with mesh.tp = 2"));
  const std::filesystem::path out = mosa_files() / "unmerged";
  train_on(1, mosa_recipe({"train.steps=1", "snapshot.every=1"}), out);
  base::Log quiet = base::Log::quiet();
  const snapshot::Pretrained opened = snapshot::open_pretrained(out.string(), quiet);
  EXPECT_THROW(
      {
        try {
          const auto decoder = model::make_decoder(opened.shape);
          opened.load_into(decoder->layout().views(at::empty({decoder->elements()})));
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("adapters of style adaptformer are no part of any weight"));
          throw;
        }
      },
      Error);
}

// A model that is opened with such an adapter computes what the run does in evaluations: with its modules merged.
TEST(Mosa, OpenedModelsHaveTheMergedAdapter) {
  const std::filesystem::path out = mosa_files() / "opened";
  train_on(1, mosa_recipe({"train.steps=3", "snapshot.every=3", "optim.learning_rate=0.1", "model.adapter.style=houlsby"}), out);
  base::Log quiet = base::Log::quiet();
  const snapshot::Pretrained opened = snapshot::open_pretrained(out.string(), quiet);
  const auto logits_of = [](const model::Model& model, const at::Tensor& flat) {
    const model::FlatWeights weights(model.layout(), flat);
    model::Buffers buffers = model.make_buffers(at::kFloat);
    const mesh::Axes alone;
    const model::Call call{.weights = weights, .buffers = buffers, .axes = alone, .needs = {false, false}};
    model::Values values;
    values.put("tokens", at::arange(9).view({1, 9}) + 97);
    for (const auto& block : model.blocks()) block->forward(values, nullptr, call);
    return values.take("logits");
  };
  EXPECT_EQ(opened.unmerged_adapter().kind, model::AdapterKind::bottleneck);
  const auto merged = model::make_decoder(opened.shape, opened.unmerged_adapter());
  const at::Tensor flat = at::empty({merged->elements()});
  opened.load_into(merged->layout().views(flat));
  model::AdapterShape in_modules = opened.adapter->shape;
  const auto split = model::make_decoder(opened.shape, in_modules), plain = model::make_decoder(opened.shape);
  const at::Tensor own = at::empty({split->elements()}), base_values = at::empty({plain->elements()});
  for (const mesh::NamedTensor& one : split->layout().views(own)) {
    const at::Tensor in_files = opened.view(one.name);
    one.tensor.copy_(in_files.defined() ? in_files : named(opened.adapter->tensors, one.name));
  }
  for (const mesh::NamedTensor& one : plain->layout().views(base_values)) one.tensor.copy_(opened.view(one.name));
  EXPECT_TRUE(at::allclose(logits_of(*merged, flat), logits_of(*split, own), 1e-5, 1e-6));
  EXPECT_FALSE(at::allclose(logits_of(*merged, flat), logits_of(*plain, base_values), 1e-3, 1e-3));
}

TEST(AdapterModules, RefuseFilesThatLackAModule) {
  snapshot::Adapter adapter{.shape = {.rank = 2, .kind = model::AdapterKind::mosa}, .tensors = {}, .path = "somewhere"};
  adapter.shape.style = model::AdapterStyle::adaptformer, adapter.shape.modules = 2;
  adapter.tensors = {{"a.up.modules.0.weight", at::ones({4, 1})}};
  const auto refused = [&] {
    try {
      snapshot::merge_modules(adapter);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused(), HasSubstr("somewhere: a.up has 1 of 2 modules"));
  adapter.tensors.push_back({"a.up.modules.1.weight", at::ones({3, 1})});
  EXPECT_THAT(refused(), HasSubstr("which does not fit 2 modules of rank 2"));
  adapter.tensors.back().tensor = at::ones({4, 1});
  EXPECT_EQ(refused(), "accepted");
  adapter.tensors.back().name = "a.up.modules.x.weight";
  EXPECT_THAT(refused(), HasSubstr("is no module of an adapter"));
}

}  // namespace
}  // namespace cairn::train
