#include "mesh/dtensor.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "harness/ranks.h"
#include "kernels/aten.h"
#include "mesh/dtensor/view_rules.h"

namespace cairn::mesh {
namespace {

std::shared_ptr<DTensorAxis> everyone_along_tp(comm::World& world) {
  std::vector<int> ranks;
  for (int i = 0; i < world.size(); ++i) ranks.push_back(i);
  return std::make_shared<DTensorAxis>(world, "tp", ranks);
}

at::Tensor counted(std::vector<int64_t> shape, double start) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return (at::arange(n, at::kDouble) * 0.7 + start).sin().view(shape);
}

at::Tensor distributed(const std::shared_ptr<DTensorAxis>& axis, const at::Tensor& whole, const Placement::How& how) {
  return dtensor_from_local(axis, to_local(axis, whole, how, "test"), how, whole.sizes().vec());
}

// Every placement of a tensor along one axis.
std::vector<Placement::How> placements_of(const at::Tensor& tensor) {
  std::vector<Placement::How> all{Replicate{}, Partial{}};
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) all.push_back(Split{dim, {}});
  return all;
}

using Program = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// The result of a program, its gradients, and the gradients of a function of these.
std::vector<at::Tensor> results_of(const Program& program, const std::vector<at::Tensor>& leaves) {
  const at::Tensor result = program(leaves);
  std::vector<at::Tensor> all{result};
  const at::Tensor scalar = (result * result).sum();
  const auto first = torch::autograd::grad({scalar}, leaves, {}, true, /*create_graph=*/true);
  at::Tensor of_first = first[0].square().sum();
  for (size_t i = 1; i < first.size(); ++i) of_first = of_first + first[i].square().sum();
  const auto second = torch::autograd::grad({of_first}, leaves, {}, false, false, /*allow_unused=*/true);
  all.insert(all.end(), first.begin(), first.end());
  for (const at::Tensor& one : second)
    if (one.defined()) all.push_back(one);
  return all;
}

std::vector<at::Tensor> as_leaves(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& one : tensors) leaves.push_back(one.detach().requires_grad_());
  return leaves;
}

// Runs a program on DTensors in combinations of placements and compares with one process.
void expect_the_same(int ranks, const std::vector<at::Tensor>& inputs, const Program& program) {
  const std::vector<at::Tensor> expected = results_of(program, as_leaves(inputs));
  harness::on_ranks(ranks, [&](comm::World& world) {
    const auto axis = everyone_along_tp(world);
    std::vector<size_t> chosen(inputs.size(), 0);
    while (true) {
      std::vector<at::Tensor> leaves;
      std::string text;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const Placement::How how = placements_of(inputs[i])[chosen[i]];
        text += to_string(Placement{{{"tp", how}}}) + "; ";
        leaves.push_back(distributed(axis, inputs[i], how).requires_grad_());
      }
      const std::vector<at::Tensor> found = results_of(program, leaves);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(at::allclose(full_tensor(found[i].detach()), expected[i].detach(), 1e-9, 1e-9)) << "result " << i << " of " << text;
      // The next combination: of many, every seventh is tried.
      bool more = true;
      for (int skipped = 0; more && skipped < (inputs.size() > 2 ? 7 : 1); ++skipped) {
        more = false;
        for (size_t i = 0; i < chosen.size() && !more; ++i) {
          more = ++chosen[i] < placements_of(inputs[i]).size();
          if (!more) chosen[i] = 0;
        }
      }
      if (!more) break;
    }
  });
}

TEST(DTensor, GivesTheResultsOfOneProcessForAPerceptron) {
  for (const int ranks : {1, 3})
    expect_the_same(ranks, {counted({4, 6}, 0), counted({5, 6}, 1), counted({5}, 2), counted({5, 3}, 3)},
                    [](const auto& x) { return at::matmul(at::tanh(at::linear(x[0], x[1], x[2])), x[3]); });
}

TEST(DTensor, GivesTheResultsOfOneProcessForAttention) {
  // [batch, length, heads * width], with grouped keys.
  expect_the_same(2, {counted({2, 3, 8}, 0), counted({16, 8}, 1)}, [](const auto& x) {
    const at::Tensor qkv = at::matmul(x[0], x[1].t());
    const at::Tensor q = qkv.narrow(-1, 0, 8).view({2, 3, 4, 2}).permute({0, 2, 1, 3});
    const at::Tensor k = qkv.narrow(-1, 8, 4).view({2, 3, 2, 2}).repeat_interleave(2, 2).permute({0, 2, 3, 1});
    const at::Tensor v = qkv.narrow(-1, 12, 4).view({2, 3, 2, 2}).repeat_interleave(2, 2).permute({0, 2, 1, 3});
    const at::Tensor hidden = at::ones({3, 3}, at::kBool).triu(1);
    const at::Tensor weights = at::matmul(q, k).masked_fill(hidden, -1e9).softmax(-1);
    return at::matmul(weights, v).permute({0, 2, 1, 3}).contiguous().flatten(2);
  });
}

TEST(DTensor, GivesTheResultsOfOneProcessForReductionsAndTables) {
  expect_the_same(3, {counted({7, 5}, 0)}, [](const auto& x) { return x[0].mean(1) * x[0].sum({0}, true).mean() + x[0].square().mean(); });
  const at::Tensor ids = at::tensor({4, 0, 6, 4}, at::kLong);
  expect_the_same(2, {counted({7, 5}, 0), counted({5}, 1)},
                  [&](const auto& x) { return at::log_softmax(x[0].index_select(0, ids) * x[1], -1).select(1, 2); });
}

// A pair of linear layers, the first split by its outputs and the second by its inputs, sends one sum.
TEST(DTensor, SendsOneReductionForAPairOfLinearLayers) {
  const at::Tensor x = counted({64, 8}, 0), up = counted({8, 16}, 1), down = counted({16, 8}, 2);
  const harness::Run run = harness::on_ranks(2, [&](comm::World& world) {
    const auto axis = everyone_along_tp(world);
    const at::Tensor y = at::matmul(at::tanh(at::matmul(x, distributed(axis, up, Split{1, {}}))), distributed(axis, down, Split{0, {}}));
    EXPECT_TRUE(std::holds_alternative<Partial>(dtensor_placement(y)));
    full_tensor(y);
  });
  EXPECT_EQ(run.ledger.bytes_sent(0, comm::Purpose::activation), 64 * 8 * 8);  // all-reduce of doubles over two ranks: 2 (n-1)/n
}

TEST(DTensor, HasNoDataPointer) {
  harness::on_ranks(2, [](comm::World& world) {
    const at::Tensor x = distributed(everyone_along_tp(world), counted({4, 2}, 0), Split{0, {}});
    EXPECT_THROW(static_cast<void>(x.const_data_ptr<double>()), c10::Error);
    EXPECT_DOUBLE_EQ(x.sum().item<double>(), counted({4, 2}, 0).sum().item<double>());
  });
}

TEST(DTensor, WritesInPlaceOnlyToTheTensorItself) {
  harness::on_ranks(2, [](comm::World& world) {
    const auto axis = everyone_along_tp(world);
    const at::Tensor whole = counted({4, 2}, 0), x = distributed(axis, whole, Split{0, {}}), y = x * 1;
    y.add_(1);
    EXPECT_TRUE(at::allclose(full_tensor(y), whole + 1));
    EXPECT_TRUE(at::equal(full_tensor(x), whole));
    at::Tensor plain = at::zeros({4, 2}, at::kDouble);
    plain.copy_(x);
    EXPECT_TRUE(!is_dtensor(plain) && at::equal(plain, whole));
  });
}

TEST(ViewedSplit, FollowsHeadsThroughMergesAndBack) {
  const Split heads = even_split(1, 4, 2);  // [3, 4, 5]
  const auto merged = viewed(heads, {3, 4, 5}, {12, 5}, 2);
  ASSERT_TRUE(merged);
  EXPECT_EQ(merged->pieces, (std::vector<std::vector<Interval>>{{{0, 2}, {4, 6}, {8, 10}}, {{2, 4}, {6, 8}, {10, 12}}}));
  EXPECT_EQ(*viewed(*merged, {12, 5}, {3, 4, 5}, 2), heads);
  EXPECT_EQ(viewed(even_split(1, 6, 2), {1, 6, 5}, {2, 3, 5}, 2)->dim, 0);
  EXPECT_FALSE(viewed(even_split(1, 6, 2), {1, 6, 5}, {3, 2, 5}, 2));  // three samples over two ranks
}

}  // namespace
}  // namespace cairn::mesh
