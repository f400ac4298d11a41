#include "mesh/fragment.h"

#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace cairn::mesh {
namespace {

int64_t elements_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t flat_index(const std::vector<int64_t>& index, const std::vector<int64_t>& shape) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

// Every index of a box, in row-major order.
template <typename Act>
void for_each_index(const Box& box, const Act& act) {
  std::vector<int64_t> index;
  for (const Interval& dim : box.dims) index.push_back(dim.begin);
  if (box.elements() == 0) return;
  while (true) {
    act(index);
    size_t d = index.size();
    while (d-- > 0) {
      if (++index[d] < box.dims[d].end) break;
      index[d] = box.dims[d].begin;
      if (d == 0) return;
    }
    if (index.empty()) return;
  }
}

// The logical (flat) index of every element of a fragment, one by one, from the definition of a local shard.
std::vector<int64_t> by_definition(const Fragment& fragment, const std::vector<int64_t>& shape) {
  std::vector<int64_t> found;
  const std::vector<int64_t> local = fragment.local_shard.local_shape();
  int64_t at = 0;
  for_each_index(whole(local), [&](const std::vector<int64_t>& index) {
    if (at >= fragment.elements.begin && at < fragment.elements.end) {
      std::vector<int64_t> logical;
      for (size_t d = 0; d < index.size(); ++d) {
        int64_t left = index[d];
        for (const Interval& part : fragment.local_shard.dims[d]) {
          if (left < part.length()) {
            logical.push_back(part.begin + left);
            break;
          }
          left -= part.length();
        }
      }
      found.push_back(flat_index(logical, shape));
    }
    ++at;
  });
  return found;
}

struct Cut {
  std::vector<int64_t> shape;
  Fragment fragment;
};

// A shard of one to three intervals along each dim, and a range of it.
Cut random_cut(std::mt19937& random) {
  Cut cut;
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  const int64_t dims = draw(0, 4);
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t size = draw(1, 7);
    cut.shape.push_back(size);
    std::vector<Interval> held;
    for (int64_t at = draw(0, size - 1), parts = draw(1, 3); parts > 0 && at < size; --parts) {
      const int64_t end = draw(at + 1, size);
      held.push_back({at, end});
      at = end + draw(0, 1);
    }
    cut.fragment.local_shard.dims.push_back(held);
  }
  const int64_t local = elements_of(cut.fragment.local_shard.local_shape()), begin = draw(0, local);
  cut.fragment.elements = {begin, draw(begin, local)};
  return cut;
}

TEST(Fragment, ItsBoxesHoldWhatALocalShardMeans) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const Cut cut = random_cut(random);
    std::vector<int64_t> found(static_cast<size_t>(cut.fragment.elements.length()), -1);
    for (const FragmentBox& one : boxes_of(cut.fragment))
      for_each_index(one.box, [&](const std::vector<int64_t>& index) {
        Box single;
        for (const int64_t i : index) single.dims.push_back({i, i + 1});
        int64_t& place = found.at(static_cast<size_t>(start_of(single, one)));
        EXPECT_EQ(place, -1) << "an element in two boxes";
        place = flat_index(index, cut.shape);
      });
    ASSERT_EQ(found, by_definition(cut.fragment, cut.shape)) << "round " << round;
  }
}

TEST(Fragment, AFlatRangeOfAWholeTensorIsFewBoxes) {
  const Fragment fragment{{{{{0, 4}}, {{0, 5}}, {{0, 6}}}}, {13, 101}};
  EXPECT_LE(boxes_of(fragment).size(), 5u);  // 2 dims - 1
  const Fragment all{{{{{0, 4}}, {{0, 5}}, {{0, 6}}}}, {0, 120}};
  ASSERT_EQ(boxes_of(all).size(), 1u);
  EXPECT_EQ(boxes_of(all)[0], dense({4, 5, 6}));
}

TEST(Fragment, RunsCopyABoxFromOneLayoutToAnother) {
  std::mt19937 random(11);
  for (int round = 0; round < 1000; ++round) {
    Cut from = random_cut(random), to = random_cut(random);
    to.shape = from.shape;  // another shard of the same tensor
    to.fragment.local_shard.dims.resize(from.shape.size());
    for (size_t d = 0; d < from.shape.size(); ++d) to.fragment.local_shard.dims[d] = {{0, from.shape[d]}};
    to.fragment.elements = {0, elements_of(from.shape)};
    std::vector<int64_t> source = by_definition(from.fragment, from.shape);  // every element is its logical index
    std::vector<int64_t> target(static_cast<size_t>(elements_of(from.shape)), -1);
    for (const FragmentBox& a : boxes_of(from.fragment))
      for (const FragmentBox& b : boxes_of(to.fragment))
        if (const auto common = intersect(a.box, b.box))
          for (const CopyRun& run : runs_between(*common, a, b))
            std::copy_n(source.begin() + run.from, run.elements, target.begin() + run.to);
    for (size_t i = 0; i < target.size(); ++i) {
      const bool held = std::find(source.begin(), source.end(), static_cast<int64_t>(i)) != source.end();
      ASSERT_EQ(target[i], held ? static_cast<int64_t>(i) : -1) << "round " << round << ", element " << i;
    }
  }
}

TEST(Fragment, WholeRowsAreOneRun) {
  const FragmentBox all = dense({8, 6});
  const Box rows{{{2, 5}, {0, 6}}};
  EXPECT_EQ(runs_between(rows, all, all), (std::vector<CopyRun>{{12, 12, 18}}));
  const Box columns{{{2, 4}, {1, 3}}};
  EXPECT_EQ(runs_between(columns, all, all), (std::vector<CopyRun>{{13, 13, 2}, {19, 19, 2}}));
}

}  // namespace
}  // namespace cairn::mesh
