// train.method = "masha1" and "masha2" through the trainer: results, messages, state and refusals.
#include <filesystem>
#include <map>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "small_decoder.h"
#include "snapshot/snapshot.h"
#include "train/build.h"
#include "train/build/batches.h"
#include "train/settings.h"
#include "train/take_step.h"
#include "train/train.h"

namespace cairn::train {
namespace {

using Sets = std::vector<std::string>;
using Tensors = std::map<std::string, at::Tensor>;

constexpr double kRate = 0.3, kRefresh = 0.4, kRadius = 0.05, kAdversaryRate = 2;
constexpr int64_t kBatches = 2, kSteps = 7;

base::Recipe differences(const std::string& kind, const Sets& more = {}, const std::string& family = "llama") {
  Sets sets{"train.method=" + kind,
            fmt::format("optim.learning_rate={}", kRate),
            "optim.warmup_steps=0",
            "optim.schedule=constant",
            fmt::format("train.steps={}", kSteps),
            "train.global_batch=7",
            "train.micro_batch=2",
            fmt::format("train.masha.refresh={}", kRefresh),
            fmt::format("train.masha.refresh_batches={}", kBatches),
            "train.masha.halve_above=0",
            "train.masha.adversary=embedding",
            fmt::format("train.masha.radius={}", kRadius),
            fmt::format("train.masha.adversary_rate={}", kAdversaryRate)};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_decoder(family, sets);
}

comm::Ledger masha_on(int ranks, const base::Recipe& recipe, const std::filesystem::path& out, bool resume = false) {
  comm::LocalNetwork network(ranks);
  for (const std::exception_ptr& error : network.run([&](comm::World& world) {
         run(world, recipe, {.out = out, .resume = resume, .cache = {}, .terminal = nullptr}, {}, base::Stop());
       }))
    if (error) std::rethrow_exception(error);
  return network.ledger();
}

Tensors section_of(const std::filesystem::path& out, const std::string& section) {
  Tensors all;
  const snapshot::OpenSnapshot opened = snapshot::open(*snapshot::find_latest(out.string()));
  for (const snapshot::TensorEntry& entry : opened.entries(section)) all[entry.name] = opened.tensor(section, entry.name).clone();
  return all;
}

bool same_tensors(const Tensors& a, const Tensors& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& one) { return at::equal(one.second, b.at(one.first)); });
}

std::string masha_refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input) << error.what();
    return error.what();
  }
  return "";
}

// Weights in the model's order and the perturbation.
struct Point {
  at::Tensor weights, perturbation;
};

// The recurrence in one process, whole batches, gradients by autograd over the blocks' plain forms.
class SaddleByHand {
 public:
  explicit SaddleByHand(const Job& job) : job_(job), layout_(job.engine.model->layout()), buffers_(job.engine.buffers) {
    point.weights = at::zeros({layout_.elements});
    model::initialize_parameters(*job.engine.model, point.weights, base::Random(static_cast<uint64_t>(job.config.settings.train.seed)));
    const auto length = job.data.length, embed = job.engine.model->parameters()[0].shape[1];
    point.perturbation = at::zeros({length, embed});
  }

  void train() {
    Point reference = point, mean = at_reference(0, reference);
    const base::Random coins =
        base::Random(static_cast<uint64_t>(job_.config.settings.train.seed)).for_purpose("masha").for_purpose("refresh");
    for (int64_t step = 1; step <= kSteps; ++step) {
      const Point without{
          point.weights * (1 - kRefresh) + reference.weights * kRefresh - mean.weights * kRate,
          point.perturbation * (1 - kRefresh) + reference.perturbation * kRefresh + mean.perturbation * (kRate * kAdversaryRate)};
      const Point ahead{without.weights, inside(without.perturbation)};
      const Point there = gradients(step, ahead), here = gradients(step, reference);
      point = {without.weights - (there.weights - here.weights) * kRate,
               inside(without.perturbation + (there.perturbation - here.perturbation) * (kRate * kAdversaryRate))};
      if (coins.uniform(static_cast<uint64_t>(step - 1)) >= kRefresh) continue;
      reference = point, mean = at_reference(step - 1, reference);
      ++refreshes;
    }
  }

  Point point;
  int refreshes = 0;

  at::Tensor weight(const std::string& name) const {
    for (size_t i = 0; i < layout_.pieces.size(); ++i)
      if (layout_.pieces[i].name == name) return layout_.view(point.weights, {static_cast<int32_t>(i)});
    return {};
  }

 private:
  static at::Tensor inside(const at::Tensor& perturbation) { return perturbation.clamp(-kRadius, kRadius); }

  // After so many steps.
  Point at_reference(int64_t done, const Point& at) {
    Point sum = gradients(done + 2, at);
    for (int64_t i = 1; i < kBatches; ++i) {
      const Point more = gradients(done + 2 + i, at);
      sum = {sum.weights + more.weights, sum.perturbation + more.perturbation};
    }
    return {sum.weights / kBatches, sum.perturbation / kBatches};
  }

  Point gradients(int64_t step, const Point& at) {
    const at::AutoGradMode record(true);
    const at::Tensor weights = at.weights.detach().clone().requires_grad_(),
                     perturbation = at.perturbation.detach().clone().requires_grad_();
    mesh::Batch batch;
    job_.data.samples->fill(batch_ids(job_, step), batch);
    const model::FlatWeights read(layout_, weights);
    const mesh::Axes alone;
    const at::Tensor tokens = batch.field("tokens");
    const model::Call call{
        .weights = read, .buffers = buffers_, .axes = alone, .slice = {.batch = tokens.size(0), .length = tokens.size(1)}};
    model::Values values;
    for (const auto& [name, field] : batch.fields) values.put(name, field.tensor);
    values.put("perturbation", perturbation);
    for (const auto& block : job_.engine.model->blocks()) block->plain(values, call);
    const at::Tensor logits = values.get("logits"), chosen = at::log_softmax(logits, -1).gather(-1, batch.field("targets").unsqueeze(-1));
    const auto found = torch::autograd::grad({-chosen.mean()}, {weights, perturbation}, {}, false, false);
    return {found[0], found[1]};
  }

  const Job& job_;
  mesh::FlatLayout layout_;
  model::Buffers buffers_;
};

// Without compression, the number of ranks changes rounding only: fp32 sums in another order, over a few steps.
TEST(MashaStep, IsTheRecurrenceWrittenByHandWhereEverythingTravels) {
  for (const auto& [family, kind] : {std::pair("llama", "masha1"), std::pair("gpt2", "masha2")}) {
    const harness::ScratchFolder folder;
    const base::Recipe recipe = differences(kind, {"train.masha.density=1"}, family);
    masha_on(3, recipe, folder / "run");
    Tensors model = section_of(folder / "run", "model"), step = section_of(folder / "run", "step");
    comm::LocalNetwork alone(1);
    const auto errors = alone.run([&](comm::World& world) {
      const auto job = build(world, recipe, {.out = {}, .cache = {}, .terminal = nullptr}, {});
      SaddleByHand reference(*job);
      const SaddleByHand start = reference;
      reference.train();
      EXPECT_GE(reference.refreshes, 2);  // or the test shows less
      for (const auto& [name, tensor] : model) {
        EXPECT_TRUE(at::allclose(tensor, reference.weight(name), 1e-4, 1e-5)) << kind << ' ' << name;
        EXPECT_FALSE(at::allclose(tensor, start.weight(name), 1e-4, 1e-5)) << kind << ' ' << name;
      }
      EXPECT_TRUE(at::allclose(step.at("point.perturbation"), reference.point.perturbation, 1e-4, 1e-6)) << kind;
      EXPECT_GT(reference.point.perturbation.abs().max().item<double>(), 1e-3);
    });
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }
}

TEST(MashaStep, ResumesBitwiseIdentical) {
  const Sets random{"train.masha.density=0.3", "train.masha.precondition=adam", "optim.learning_rate=0.01"},
      largest{"train.masha.density=0.3", "train.masha.down_density=0.5", "optim.schedule=linear", "optim.warmup_steps=3"};
  for (const auto& [kind, sets] : {std::pair("masha1", random), std::pair("masha2", largest)}) {
    const harness::ScratchFolder folder;
    const base::Recipe recipe = differences(kind, sets);
    base::Recipe until_snapshot = recipe;
    until_snapshot.set("snapshot.every=4");
    masha_on(2, until_snapshot, folder / "whole");
    std::filesystem::create_directories(folder / "parts");
    std::filesystem::copy(folder / "whole", folder / "parts", std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(folder / "parts/snapshots/step-00000007");
    const Tensors half = section_of(folder / "parts", "model");
    masha_on(2, recipe, folder / "parts", /*resume=*/true);
    EXPECT_FALSE(same_tensors(half, section_of(folder / "parts", "model")));  // or the test shows nothing
    std::vector<std::string> sections{"model", "step"};
    if (std::string(kind) == "masha2") sections.insert(sections.end(), {"step.rank-0", "step.rank-1"});
    for (const std::string& section : sections)
      EXPECT_TRUE(same_tensors(section_of(folder / "whole", section), section_of(folder / "parts", section))) << kind << ' ' << section;
  }
}

TEST(MashaStep, OnlyMasha2NeedsAsManyRanksAsBefore) {
  const Sets thin{"train.masha.density=0.3", "train.steps=2"}, longer{"train.masha.density=0.3"};
  const harness::ScratchFolder folder;
  masha_on(2, differences("masha1", thin), folder / "random");
  masha_on(3, differences("masha1", longer), folder / "random", /*resume=*/true);
  masha_on(2, differences("masha2", thin), folder / "largest");
  for (const int ranks : {1, 3}) {
    const std::string message = masha_refusal([&] { masha_on(ranks, differences("masha2", longer), folder / "largest", /*resume=*/true); });
    EXPECT_NE(message.find("resume on as many as before"), std::string::npos) << message;
  }
}

TEST(MashaStep, SendsAsMuchOfAGradientAsItsDensitySays) {
  const harness::ScratchFolder folder;
  const auto sent = [&](const base::Recipe& recipe, const std::string& name) {
    return static_cast<double>(masha_on(2, recipe, folder / name).bytes_sent(0, comm::Purpose::gradient));
  };
  const double whole = sent(small_decoder("llama", {fmt::format("train.steps={}", kSteps)}), "whole"),
               thin = sent(differences("masha1", {"train.masha.density=0.1", "train.masha.adversary=none"}), "thin");
  // Half of the messages of an all-reduce go to the ranks that sum. Their answers are counted separately.
  EXPECT_NEAR(thin / whole, 0.1 / 2, 0.002);
}

TEST(MashaStep, MovesWhatIsTrainedAndNothingElse) {
  const harness::ScratchFolder folder;
  masha_on(1, small_decoder("llama", {"train.steps=1", "optim.learning_rate=1e-30"}), folder / "start");
  masha_on(1, differences("masha1", {"model.train=[\"role:norm\"]", "train.masha.density=1"}), folder / "norms");
  const Tensors start = section_of(folder / "start", "model"), after = section_of(folder / "norms", "model");
  for (const auto& [name, tensor] : after) EXPECT_EQ(at::equal(tensor, start.at(name)), name.find("norm") == std::string::npos) << name;
}

TEST(MashaStep, RefusesWhatItCannotDo) {
  const auto message = [](const std::string& kind, const Sets& sets, int ranks) {
    return masha_refusal([&] { check_recipe(differences(kind, sets), ranks); });
  };
  EXPECT_EQ(message("masha1", {}, 2), "");
  EXPECT_EQ(message("masha2", {"train.masha.down_density=0.3"}, 2), "");
  const auto refused = [&](const std::string& kind, const Sets& sets, const std::string& why) {
    const std::string said = message(kind, sets, 2);
    EXPECT_NE(said.find(why), std::string::npos) << said;
  };
  refused("gradient", {}, "train.masha.adversary = embedding: train.method = gradient has no adversary: use masha1 or masha2");
  refused("masha1", {"mesh.tp=2"},
          "mesh.tp = 2: does not work with train.method = masha1: a device of MASHA is one rank with a whole model so far: use mesh.dp");
  refused("masha1", {"mesh.pp=2"}, "mesh.pp = 2");
  refused("masha1", {"mesh.island=2"}, "mesh.island = 2");
  refused("masha1", {"memory.zero=1"}, "memory.zero = 1");
  refused("masha1", {"optim.kind=muon"}, "optim.kind = \"muon\": MASHA is the update rule itself");
  refused("masha1", {"optim.max_grad_norm=0.5"}, "optim.max_grad_norm = 0.5");
  refused("masha1", {"train.on_bad_step=skip"}, "train.on_bad_step = skip");
  refused("masha1", {"train.precision=bf16", "train.parameters=bf16"}, "keep parameters in fp32");
  refused("masha1", {"train.masha.density=0"}, "nothing would be sent");
  refused("masha2", {"train.masha.indices=common"}, "use masha1");
  refused("masha1", {"train.masha.indices=common", "train.masha.down_density=0.5"}, "all ranks have the mean already");
  refused("masha3", {}, "masha3");
}

}  // namespace
}  // namespace cairn::train
