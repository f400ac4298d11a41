#include <mutex>

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "mesh/redistribute_autograd.h"
#include "mesh/redistribute_runs.h"

namespace cairn::mesh {
namespace {

const std::vector<int64_t> kShape{7, 5};

// The loss is the sum of sin(y) w over the logical y, whatever the placement; in one process its gradient is cos(x) w.
at::Tensor weights() { return numbers(kShape).flip({0}) / 10; }
at::Tensor gradient_in_one_process() { return (numbers(kShape).cos() * weights()).contiguous(); }

std::vector<Layout> layouts(const std::string& mesh, const std::vector<std::string>& axes) {
  std::vector<std::string> texts{""};
  for (const std::string& axis : axes) {
    std::vector<std::string> longer;
    for (const std::string& text : texts)
      for (const char* kind : {"split(0)", "split(1)", "replicate", "partial(sum)"})
        longer.push_back(fmt::format("{}{}{}: {}", text, text.empty() ? "" : ", ", axis, kind));
    texts = longer;
  }
  std::vector<Layout> all;
  for (const std::string& text : texts) all.push_back(layout(mesh, text));
  return all;
}

// For every pair: a gradient that lies as the dual of the result says comes back as the dual of the input says, with its value unchanged.
void expect_gradients(int ranks, const std::vector<Layout>& all) {
  std::vector<RedistributePlan> plans;
  for (const Layout& from : all)
    for (const Layout& to : all) plans.emplace_back(backward_of({from, to, kShape}));
  const at::Tensor expected = gradient_in_one_process();
  const std::vector<Moved> moved = move_all(ranks, plans, std::vector<at::Tensor>(plans.size(), expected));
  for (size_t i = 0; i < plans.size(); ++i)
    EXPECT_TRUE(at::allclose(moved[i].logical, expected, 1e-5, 1e-5)) << to_string(plans[i].change());
}

TEST(RedistributeGradient, IsTheOneOfASingleProcessOn4And6Ranks) {
  expect_gradients(4, layouts("dp=4", {"dp"}));
  expect_gradients(6, layouts("dp=6", {"dp"}));
}

TEST(RedistributeGradient, IsTheOneOfASingleProcessOn2By2Ranks) { expect_gradients(4, layouts("dp=2,tp=2", {"dp", "tp"})); }

TEST(RedistributeGradient, IsTheOneOfASingleProcessOn2By3Ranks) { expect_gradients(6, layouts("dp=2,tp=3", {"dp", "tp"})); }

TEST(RedistributeGradient, FollowsDuality) {
  EXPECT_EQ(to_string(dual(layout("dp=2,tp=2", "dp: split(0)")).placement), "dp: split(0), tp: partial(sum)");
  EXPECT_EQ(to_string(dual(layout("dp=2,tp=2", "tp: partial(sum), dp: replicate")).placement), "tp: replicate, dp: partial(sum)");
  EXPECT_EQ(to_string(dual(layout("ep=2", "ep: ragged(0, 0|0+1)")).placement), "ep: ragged(0, 0|0+1; partial)");
  const Layout both = layout("pp=(tp=2|dp=2)", "tp: split(0)");
  EXPECT_EQ(to_string(dual(both).placement), "tp: split(0), pp: partial(sum), dp: partial(sum)");
}

TEST(RedistributeGradient, RefusesMaxima) {
  try {
    dual(layout("dp=2", "dp: partial(max)"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a partial maximum is no linear function"), std::string::npos) << error.what();
  }
}

// The pairing of values and gradients is the same before and after: sum over ranks of <y, g> = sum over ranks of <x, backward g>.
TEST(RedistributeGradient, IsTheAdjoint) {
  const std::vector<Layout> all = layouts("dp=2,tp=2", {"dp", "tp"});
  std::vector<double> forward(all.size() * all.size(), 0), backward = forward;
  std::mutex lock;
  const at::Tensor x = numbers(kShape), g = weights().contiguous();
  harness::on_ranks(4, [&](comm::World& world) {
    for (size_t i = 0; i < forward.size(); i += 3) {  // every third pair: 86 of them
      const LayoutChange change{all[i / all.size()], all[i % all.size()], kShape}, back = backward_of(change);
      const at::Tensor own = brute::Census(change.from, kShape).part(x, world.rank(), at::kDouble);
      const at::Tensor gradient = brute::Census(back.from, kShape).part(g, world.rank(), at::kDouble);
      const double there = (redistribute(world, own, change, {}) * gradient).sum().item<double>();
      const double here = (own * redistribute(world, gradient, back, {})).sum().item<double>();
      const std::lock_guard guard(lock);
      forward[i] += there;
      backward[i] += here;
    }
  });
  for (size_t i = 0; i < forward.size(); i += 3) EXPECT_NEAR(forward[i], backward[i], 1e-9) << i;
  EXPECT_NEAR(forward[0], (x * g).sum().item<double>(), 1e-9);
}

TEST(RedistributeGradient, FlowsThroughAnAutogradGraph) {
  std::vector<at::Tensor> gradients(4);
  const Layout from = layout("dp=2,tp=2", "dp: split(0), tp: replicate"), to = layout("dp=2,tp=2", "dp: replicate, tp: split(1)");
  harness::on_ranks(4, [&](comm::World& world) {
    const auto plan = std::make_shared<const RedistributePlan>(LayoutChange{from, to, kShape});
    const at::Tensor x = brute::Census(from, kShape).part(numbers(kShape), world.rank(), at::kDouble).requires_grad_();
    const at::Tensor y = redistribute_differentiably(world, x, plan, {comm::Purpose::activation, "x"});
    // Each rank of dp takes half of the loss: a replicated value's gradient is partial.
    const at::Tensor w =
        brute::Census(layout("dp=2,tp=2", "tp: split(1)"), kShape).part(weights().contiguous(), world.rank(), at::kDouble) / 2;
    gradients[static_cast<size_t>(world.rank())] = torch::autograd::grad({(y.sin() * w).sum()}, {x})[0];
  });
  const at::Tensor gradient = brute::Census(dual(from), kShape).put_together(gradients);
  EXPECT_TRUE(at::allclose(gradient, gradient_in_one_process()));
}

}  // namespace
}  // namespace cairn::mesh
