#include "kernels/embedding.h"

#include "kernels/closeness.h"

namespace cairn::kernels {
namespace {

TEST(Embedding, LooksUpRows) {
  const at::Tensor table = normal({11, 7}, 1), ids = integers(0, 11, {3, 5}, 2), y = at::empty({3, 5, 7});
  embedding(y, table, ids);
  EXPECT_TRUE(at::equal(y, table.index_select(0, ids.flatten()).view({3, 5, 7})));
}

TEST(Embedding, AddsGradientsOfRepeatedIds) {
  for (int64_t embed : {1, 7, 64, 131}) {
    const at::Tensor ids = integers(0, 5, {201}, 2), dy = normal({201, embed}, 3), dtable = normal({6, embed}, 4);
    const at::Tensor onehot = at::one_hot(ids, 6).to(at::kDouble), expected = wide(dtable) + at::matmul(onehot.t(), wide(dy));
    embedding_backward(dtable, ids, dy);
    expect_close(dtable, expected, 60, "dtable");
  }
}

TEST(Embedding, GradientDoesNotDependOnTheThreadCount) {
  const at::Tensor ids = integers(0, 13, {509}, 2), dy = normal({509, 200}, 3);
  std::vector<at::Tensor> results;
  with_threads([&] {
    results.push_back(at::zeros({13, 200}));
    embedding_backward(results.back(), ids, dy);
  });
  EXPECT_TRUE(at::equal(results[0], results[1]));
}

TEST(Embedding, ReferenceInDoubleIsExact) {
  const at::Tensor table = leaf(normal({5, 3}, 1)), ids = integers(0, 5, {8}, 2), dy = normal({8, 3}, 3, at::kDouble),
                   dtable = at::zeros({5, 3}, at::kDouble);
  embedding_backward(dtable, ids, dy);
  expect_close(dtable, gradients(table.index_select(0, ids), dy, {table})[0], 4, "dtable");
}

TEST(Embedding, RefusesAnIdOutsideTheTable) {
  const std::string error = error_of([] { embedding(at::empty({1, 2}), at::empty({4, 2}), at::tensor({int64_t{4}})); });
  EXPECT_EQ(error, "token id 4 at place 0 is outside the vocabulary of 4");
  EXPECT_NE(error_of([] {
              embedding_backward(at::zeros({4, 2}), at::tensor({int64_t{-1}}), at::empty({1, 2}));
            }).find("token id -1"),
            std::string::npos);
}

}  // namespace
}  // namespace cairn::kernels
