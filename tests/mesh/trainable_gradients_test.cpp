#include "mesh/trainable_gradients.h"

#include <gtest/gtest.h>

#include "kernels/aten.h"

namespace cairn::mesh {
namespace {

// Parameters 0, 1, 2 are multiplied as one matrix; 3 is a table; 4, 5, 6 are their biases.
FlatLayout layout() {
  FlatLayout all;
  for (const int64_t rows : {2, 3, 4}) all.append("w" + std::to_string(rows), {rows, 5});
  all.append("table", {6, 5});
  for (const int64_t rows : {2, 3, 4}) all.append("b" + std::to_string(rows), {rows});
  return all;
}

TEST(TrainableGradients, GivesTheChosenWhatTheyWouldGetAmongAll) {
  const FlatLayout all = layout();
  const at::Tensor in = at::rand({7, 5}), dout = at::rand({7, 9}), ids = at::tensor({1, 1, 5}, at::kLong), rows = at::rand({3, 5});
  const auto contribute = [&](Gradients& into) {
    into.outer({0, 3}, in, dout);
    into.add_rows({3, 1}, ids, rows);
    into.add({4, 3}, dout.sum(0));
  };
  FlatGradients whole(all, at::empty({all.elements}), std::vector<int32_t>(7, 1));
  whole.begin(1, nullptr);
  contribute(whole);
  for (int mask = 1; mask < 128; ++mask) {
    std::vector<bool> chosen;
    for (int i = 0; i < 7; ++i) chosen.push_back(mask >> i & 1);
    const FlatLayout part = trainable_layout(all, chosen);
    FlatGradients sink(part, at::empty({part.elements}), std::vector<int32_t>(part.pieces.size(), 1));
    std::vector<int64_t> announced;
    sink.begin(1, [&](int64_t index) { announced.push_back(index); });
    contribute(*make_trainable_gradients(all, chosen, sink));
    EXPECT_EQ(announced.size(), part.pieces.size()) << mask;
    for (int32_t i = 0, at = 0; i < 7; ++i) {
      if (!chosen[static_cast<size_t>(i)]) continue;
      EXPECT_TRUE(at::allclose(part.view(sink.flat(), {at++}), all.view(whole.flat(), {i}))) << mask << " " << i;
    }
    sink.finish();
  }
}

}  // namespace
}  // namespace cairn::mesh
