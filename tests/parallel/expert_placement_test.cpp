// Parameters with the logical axis "expert": who holds what, which gradients are summed over whom, and what comes together again.
#include <cmath>
#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/group.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "parallel/layout/make_plan.h"
#include "parallel/layout/plan_file.h"
#include "parallel/state/full_tensor_gather.h"
#include "parallel/state/parameter_store.h"
#include "parallel/state/state_map.h"

namespace cairn::parallel {
namespace {

// Names its parameters and computes nothing.
class NamingBlock final : public model::Block {
 public:
  explicit NamingBlock(std::string name, std::vector<mesh::ParamId> parameters) {
    card_.name = std::move(name);
    card_.operations = {{.name = "all", .kind = model::BlockOp::Kind::product, .parameters = std::move(parameters)}};
  }
  const model::Card& card() const override { return card_; }
  void forward(model::Values&, model::Saved*, const model::Call&) const override {}
  void backward_input(model::Values&, model::Saved&, const model::Call&) const override {}
  void backward_weight(model::Saved&&, mesh::Gradients&, const model::Call&) const override {}
  void plain(model::Values&, const model::Call&) const override {}

 private:
  model::Card card_;
};

// Two layers of heads, experts and a norm.
class ExpertModel final : public model::Model {
 public:
  explicit ExpertModel(int64_t experts) {
    for (int layer = 0; layer < 2; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      const auto heads = Model::add({.name = name + ".q", .shape = {4, 5}, .axes = {"heads", "embed"}, .head_width = 2});
      const auto norm = Model::add({.name = name + ".norm", .shape = {5}, .axes = {"embed"}, .role = model::Parameter::Role::norm});
      const auto stacked = Model::add({.name = name + ".experts.up", .shape = {experts, 3, 5}, .axes = {"expert", "", "embed"}});
      Model::add(std::make_unique<NamingBlock>(name + ".attention", std::vector<mesh::ParamId>{heads}));
      Model::add(std::make_unique<NamingBlock>(name + ".mlp", std::vector<mesh::ParamId>{norm, stacked}));
    }
  }
  model::Buffers make_buffers(const at::TensorOptions&) const override { return {}; }
};

Plan plan_for(const MeshOptions& mesh, int64_t zero, int ranks, const model::Model& model) {
  LayoutOptions options;
  options.mesh = mesh;
  options.memory.zero = zero;
  Plan plan = make_plan(options, ranks);
  fit_to_model(plan, model, {}, 8);
  return plan;
}

at::Tensor pattern(const std::vector<int64_t>& shape, double step) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return at::arange(elements, at::kFloat).mul_(step).add_(1).view(shape);
}

TEST(ExpertPlacement, GivesEachRankItsExpertsAsEvenlyAsPossible) {
  const ExpertModel model(6);
  const Plan plan = plan_for({.dp = 1, .ep = 4}, -1, 4, model);
  EXPECT_EQ(mesh::to_string(placement_of(plan, "layers.0.experts.up")), "ep: ragged(0, 0|0|1|1|2|3)");
  EXPECT_EQ(mesh::to_string(placement_of(plan, "layers.0.q")), "replicated");
  std::vector<int64_t> experts;
  for (int rank = 0; rank < 4; ++rank) {
    const ModelShard shard = model_shard(model, plan, rank);
    experts.push_back(shard.layout.pieces[2].shape[0]);
    EXPECT_EQ(shard.parameters[2].copies, std::vector<int>{rank});
    EXPECT_EQ(shard.parameters[0].copies, (std::vector<int>{0, 1, 2, 3}));  // dense
  }
  EXPECT_EQ(experts, (std::vector<int64_t>{2, 2, 1, 1}));
}

TEST(ExpertPlacement, LeavesExpertsWholeAlongTp) {
  const ExpertModel model(3);
  const Plan plan = plan_for({.dp = 1, .tp = 2, .ep = 2}, -1, 4, model);
  // Ranks 0 and 2 are at ep = 0, with heads of their own.
  const ModelShard shard = model_shard(model, plan, 2);
  EXPECT_EQ(shard.parameters[2].copies, (std::vector<int>{0, 2}));
  EXPECT_EQ(shard.parameters[0].copies, (std::vector<int>{2, 3}));
  EXPECT_EQ(shard.parameters[1].copies, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(shard.layout.pieces[2].shape, (std::vector<int64_t>{2, 3, 5}));
}

TEST(ExpertPlacement, MakesReplicasOfADenseModel) {
  ExpertModel model(2);
  for (model::Parameter& one : model.parameters())
    for (std::string& axis : one.axes)
      if (axis == "expert") axis.clear();
  const Plan plan = plan_for({.dp = 1, .ep = 2}, -1, 2, model);
  EXPECT_FALSE(places_experts(plan));
  EXPECT_EQ(model_shard(model, plan, 1).parameters[2].copies, std::vector<int>{1});
  EXPECT_EQ(replicating_axes(plan), (std::vector<std::string>{"island", "dp", "ep", "shard", "cp"}));
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ExpertPlacement, RefusesMoreRanksThanExperts) {
  const ExpertModel model(3);
  const std::string said = refusal([&] { plan_for({.dp = 1, .ep = 4}, -1, 4, model); });
  EXPECT_NE(said.find("mesh.ep = 4: layers.0.experts.up has 3 experts"), std::string::npos) << said;
  EXPECT_NE(said.find("use at most 3"), std::string::npos) << said;
}

TEST(ExpertPlacement, IsThatOfASavedPlanAndRefusesOthers) {
  const ExpertModel model(5);
  const Plan plan = plan_for({.dp = 2, .ep = 2}, -1, 4, model);
  Plan read = parse_plan(to_json(plan), "plan.json");
  fit_to_model(read, model, {}, 8);
  EXPECT_EQ(read, plan);
  read.placements["layers.1.experts.up"] = mesh::parse_placement("ep: ragged(0, 0|1|0|1|0)");
  const std::string said = refusal([&] { fit_to_model(read, model, {}, 8); });
  EXPECT_NE(said.find("layers.1.experts.up is \"ep: ragged(0, 0|1|0|1|0)\": experts lie along ep by their ids"), std::string::npos) << said;
}

TEST(ExpertPlacement, RefusesOtherPlacesForExpertsInARecipe) {
  const ExpertModel model(5);
  LayoutOptions options;
  options.mesh = {.dp = 1, .tp = 2, .ep = 2};
  Plan plan = make_plan(options, 4);
  const std::string said = refusal([&] { fit_to_model(plan, model, {}, 8, {{"*.experts.*", "S(1)"}}); });
  EXPECT_NE(said.find("layers.0.experts.up holds experts, which lie along ep and are whole along tp"), std::string::npos) << said;
  Plan other = make_plan(options, 4);
  fit_to_model(other, model, {}, 8, {{"*.norm", "B"}});
  EXPECT_EQ(mesh::to_string(placement_of(other, "layers.1.experts.up")), "ep: ragged(0, 0|0|0|1|1)");
}

struct StoreCase {
  std::string name;
  MeshOptions mesh;
  int64_t zero;
  int ranks;
  bool whole_parameters = false;
};

class ExpertStores : public testing::TestWithParam<StoreCase> {};

// Every rank contributes a gradient of its own. What comes together must be the sums over exactly the ranks that see other tokens: of an
// expert, those with its ep coordinate, because rows of others have travelled to them; of everything else, all ranks.
TEST_P(ExpertStores, SumGradientsOverTheRightRanksAndCountThemOnceInTheNorm) {
  const StoreCase& c = GetParam();
  const ExpertModel model(5);
  const Plan plan = plan_for(c.mesh, c.zero, c.ranks, model);
  const size_t n = model.parameters().size();
  harness::on_ranks(c.ranks, [&](comm::World& world) {
    ParameterStore store({.world = world,
                          .model = model,
                          .plan = plan,
                          .trained = std::vector<bool>(n, true),
                          .master = at::kFloat,
                          .compute = at::kFloat,
                          .whole_parameters = c.whole_parameters});
    const FullTensorGather gather({.world = world, .model = model, .plan = plan, .whole_parameters = c.whole_parameters});
    std::vector<at::Tensor> expected(n);
    double squares = 0;
    for (size_t i = 0; i < n; ++i) {
      const model::Parameter& of = model.parameters()[i];
      const auto mine = [&](int rank) { return pattern(of.shape, 0.25 + static_cast<double>(i)).mul_(rank + 1); };
      expected[i] = at::zeros(of.shape);
      for (int rank = 0; rank < c.ranks; ++rank) {
        const at::Tensor part = cut_out(mine(rank), model_shard(model, plan, rank).parameters[i].local_shard);
        at::Tensor place = at::zeros(of.shape);
        put_back(place, model_shard(model, plan, rank).parameters[i].local_shard, part);
        expected[i].add_(place);
      }
      squares += expected[i].to(at::kDouble).square().sum().item<double>();
    }
    GradientReducer& reducer = store.reducer();
    reducer.begin(1, 1, nullptr);
    for (size_t b = model.blocks().size(); b-- > 0;)
      for (const mesh::ParamId& id : model.blocks()[b]->card().operations[0].parameters) {
        const auto i = static_cast<size_t>(id.first);
        const at::Tensor whole = pattern(model.parameters()[i].shape, 0.25 + static_cast<double>(i)).mul_(world.rank() + 1);
        store.sink().add(id, cut_out(whole, store.shard().parameters[i].local_shard).contiguous());
      }
    reducer.finish();
    // What the sync rule of the replicas does.
    comm::Group& replicas = world.group(plan.mesh.peers_along(world.rank(), replicating_axes(plan)), "replicas");
    for (const ParameterSlice& piece : store.pieces()) {
      const at::Tensor sum = piece.gradient.contiguous().clone();
      replicas.all_reduce(sum, comm::Reduce::sum, {comm::Purpose::gradient, piece.name}).wait();
      piece.gradient.copy_(sum);
    }
    const double norm = store.sum_of_squares().item<double>();
    EXPECT_NEAR(norm / squares, 1, 1e-6);
    for (size_t i = 0; i < n; ++i) {
      at::Tensor mine;
      for (const ParameterSlice& piece : store.pieces())
        if (piece.parameter == i) mine = piece.gradient;
      const at::Tensor found = gather.trivial() ? mine : gather.gather(i, mine, "gradient");
      if (world.rank() != 0) continue;
      const double apart = (found.view(expected[i].sizes()) - expected[i]).abs().max().item<double>();
      EXPECT_LE(apart, 1e-5 * expected[i].abs().max().item<double>()) << model.parameters()[i].name;
    }
  });
}

TEST_P(ExpertStores, SaveEveryElementOnceWhateverTheLayout) {
  const StoreCase& c = GetParam();
  const ExpertModel model(5);
  const Plan plan = plan_for(c.mesh, c.zero, c.ranks, model);
  const StateMap map({.model = model, .plan = plan, .ranks = step_group_of(plan, 0), .whole_parameters = c.whole_parameters});
  std::vector<StateMap::Tensor> tensors;
  for (size_t i = 0; i < model.parameters().size(); ++i)
    tensors.push_back({.parameter = i, .by_element = true, .element_bytes = 4, .shape = model.parameters()[i].shape});
  const auto divided = map.divide(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor times = at::zeros(tensors[i].shape);
    for (const StateMap::Holding& holding : divided[i])
      for (const mesh::FragmentBox& one : mesh::boxes_of(holding.fragment)) {
        at::Tensor at = times;
        for (size_t dim = 0; dim < one.box.dims.size(); ++dim)
          at = at.narrow(static_cast<int64_t>(dim), one.box.dims[dim].begin, one.box.dims[dim].length());
        at.add_(1);
      }
    EXPECT_TRUE(times.eq(1).all().item<bool>()) << model.parameters()[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ExpertStores,
                         testing::Values(StoreCase{"ep2", {.ep = 2}, 0, 2}, StoreCase{"ep4_uneven", {.ep = 4}, 0, 4},
                                         StoreCase{"dp2_ep2", {.dp = 2, .ep = 2}, 0, 4}, StoreCase{"tp2_ep2", {.tp = 2, .ep = 2}, 0, 4},
                                         StoreCase{"dp2_ep3_zero1", {.dp = 2, .ep = 3}, 1, 6},
                                         StoreCase{"dp2_ep2_zero2", {.dp = 2, .ep = 2}, 2, 4},
                                         StoreCase{"dp3_ep2_zero3", {.dp = 3, .ep = 2}, 3, 6},
                                         StoreCase{"dp4_shard2_ep2_zero2", {.dp = 4, .shard = 2, .ep = 2}, 2, 8},
                                         StoreCase{"cp2_ep2_zero3", {.cp = 2, .ep = 2}, 3, 4},
                                         StoreCase{"cp2_tp2_ep2", {.cp = 2, .tp = 2, .ep = 2}, 0, 8},
                                         StoreCase{"dp2_tp2_ep2_zero3", {.dp = 2, .tp = 2, .ep = 2}, 3, 8},
                                         StoreCase{"dp2_ep3_zero1_matrices", {.dp = 2, .ep = 3}, 1, 6, true},
                                         StoreCase{"dp2_tp2_ep2_zero2_matrices", {.dp = 2, .tp = 2, .ep = 2}, 2, 8, true}),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace cairn::parallel
