#include "mesh/placement.h"

#include <map>

#include <gtest/gtest.h>

#include "base/error.h"
#include "mesh/brute_force.h"
#include "mesh/local_shard.h"
#include "mesh/mesh.h"
#include "mesh/splits.h"

namespace cairn::mesh {
namespace {

// How often each element of a tensor is held over all ranks.
std::map<std::vector<int64_t>, int> cover(const Placement& placement, const Mesh& mesh, const std::vector<int64_t>& shape) {
  std::map<std::vector<int64_t>, int> held;
  for (int rank = 0; rank < mesh.size(); ++rank)
    for (const Box& box : boxes(placement, mesh, rank, shape))
      for (int64_t i = box.dims[0].begin; i < box.dims[0].end; ++i)
        for (int64_t j = box.dims[1].begin; j < box.dims[1].end; ++j) ++held[{i, j}];
  return held;
}

TEST(Placement, SplitsCoverEveryElementOnceForOddSizesToo) {
  for (const auto& shape : {std::vector<int64_t>{7, 5}, {1, 1}, {2, 13}, {64, 3}}) {
    const Mesh mesh = parse_mesh("dp=3,tp=4");
    const Placement placement{{{"dp", Split{0, {}}}, {"tp", Split{1, {}}}}};
    const auto held = cover(placement, mesh, shape);
    EXPECT_EQ(static_cast<int64_t>(held.size()), shape[0] * shape[1]);
    for (const auto& [at, times] : held) EXPECT_EQ(times, 1);
  }
}

TEST(Placement, TwoAxesMaySplitOneDimInsideEachOther) {
  const Mesh mesh = parse_mesh("dp=2,tp=3");
  const Placement placement{{{"dp", Split{0, {}}}, {"tp", Split{0, {}}}}};
  const auto held = cover(placement, mesh, {11, 1});
  EXPECT_EQ(held.size(), 11u);
  for (const auto& [at, times] : held) EXPECT_EQ(times, 1);
  EXPECT_EQ(boxes(placement, mesh, 3, {12, 1})[0], (Box{{{6, 8}, {0, 1}}}));  // dp 1, tp 0
}

TEST(Placement, HoldsListedPiecesInTheirOrder) {
  // Zigzag over two ranks: the first and the last quarter, then the middle.
  const Placement zigzag{{{"cp", Split{0, {{{0, 2}, {6, 8}}, {{2, 4}, {4, 6}}}}}}};
  const Mesh mesh = parse_mesh("cp=2");
  EXPECT_EQ(boxes(zigzag, mesh, 0, {8, 3}), (std::vector<Box>{{{{0, 2}, {0, 3}}}, {{{6, 8}, {0, 3}}}}));
  const auto held = cover(zigzag, mesh, {8, 3});
  EXPECT_EQ(held.size(), 24u);
}

TEST(Placement, ReplicatedAndPartialHoldTheWhole) {
  const Mesh mesh = parse_mesh("dp=2");
  EXPECT_EQ(boxes({}, mesh, 1, {4, 2}), std::vector<Box>{whole({4, 2})});
  EXPECT_EQ(boxes({{{"dp", Partial{}}}}, mesh, 1, {4, 2}), std::vector<Box>{whole({4, 2})});
  EXPECT_EQ(to_string(Placement{{{"dp", Partial{}}, {"tp", Split{1, {}}}}}), "dp: partial(sum), tp: split(1)");
}

TEST(Placement, GivesTheFirstPartsOneMore) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 4; ++i) lengths.push_back(even_part(7, 4, i).length());
  EXPECT_EQ(lengths, (std::vector<int64_t>{2, 2, 2, 1}));
  for (int64_t size : {0, 1, 5, 6, 13})
    for (int64_t parts : {1, 2, 5, 7}) {
      int64_t end = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Interval part = even_part(size, parts, i);
        EXPECT_EQ(part.begin, end);
        EXPECT_EQ(part.length(), size / parts + (i < size % parts ? 1 : 0));
        end = part.end;
      }
      EXPECT_EQ(end, size);
    }
}

TEST(Placement, HoldsWhatCountingElementsSays) {
  const std::vector<int64_t> shape{7, 5};
  for (const char* mesh : {"dp=2,tp=3", "dp=2,tp=3 on [5,4,3,2,1,0]", "dp=(tp=3|tp=2)", "tp=2"})
    for (const char* text :
         {"dp: split(0), tp: split(1)", "tp: split(0), dp: split(0)", "dp: split(1)", "tp: partial(sum)", "replicated"}) {
      const Layout layout{parse_mesh(mesh), parse_placement(text)};
      for (int rank = 0; rank < 6; ++rank) {
        std::vector<int64_t> held;
        for (const Box& box : boxes(layout.placement, layout.mesh, rank, shape))
          for (int64_t i = box.dims[0].begin; i < box.dims[0].end; ++i)
            for (int64_t j = box.dims[1].begin; j < box.dims[1].end; ++j) held.push_back(i * 5 + j);
        EXPECT_EQ(held, brute::elements(layout, rank, shape)) << mesh << " " << text << " rank " << rank;
      }
    }
}

TEST(Placement, SaysWhereABoxLiesInTheLocalTensor) {
  const LocalShard held{{{{0, 2}, {6, 8}}, {{1, 4}}}};  // zigzag rows, columns 1 to 3
  EXPECT_EQ(held.local_shape(), (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(held.local({{{7, 8}, {2, 4}}}), (Box{{{3, 4}, {1, 3}}}));
  EXPECT_THROW(held.local({{{1, 7}, {2, 4}}}), Error);
}

TEST(Placement, PrintsWhatItParses) {
  for (const char* text :
       {"replicated", "dp: split(0), tp: replicate", "dp: partial(sum), tp: split(1)", "dp: partial(max)", "cp: split(0, 0:2+6:8|2:6|-)",
        "ep: ragged(0, 0|1|0+2)", "ep: ragged(1, 0|1; lengths 3,4; partial), tp: split(0)"})
    EXPECT_EQ(to_string(parse_placement(text)), text);
  EXPECT_EQ(parse_placement(" dp :split( 0 )"), (Placement{{{"dp", Split{0, {}}}}}));
}

TEST(Placement, RefusesTextThatIsNone) {
  for (const auto& [text, part] : {std::pair{"dp", "expected :"},
                                   {"dp: splat(0)", "expected replicate, split, partial or ragged at \"splat(0)\""},
                                   {"dp: split(x)", "expected a whole number at \"x)\""},
                                   {"dp: split(0", "expected )"},
                                   {"dp: partial(mean)", "expected sum or max"},
                                   {"dp: replicate tp", "expected the end"},
                                   {"", "expected an axis"}}) {
    try {
      parse_placement(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Placement, RefusesWhatDoesNotFit) {
  const auto message = [](const char* mesh, const char* placement) -> std::string {
    try {
      check(parse_placement(placement), parse_mesh(mesh), {8, 4});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::bad_input);
      return error.what();
    }
    return "fits";
  };
  for (const auto& [placement, part] : {std::pair{"xp: split(0)", "axis \"xp\": the axes are island"},
                                        {"dp: split(0), dp: split(1)", "speaks of axis dp twice"},
                                        {"dp: split(2)", "dp: split(2) of a tensor of 2 dims"},
                                        {"dp: split(-1)", "split(-1) of a tensor"},
                                        {"dp: ragged(2, 0|1)", "ragged(2) of a tensor"},
                                        {"dp: split(0, 0:4|3:8)", "index 3 is in two parts"},
                                        {"dp: split(0, 0:3|4:8)", "3:4 is in no part"},
                                        {"dp: split(0, 0:3|3:7)", "end at 7, the dim has 8"},
                                        {"dp: split(0, 0:9|-)", "end at 9, the dim has 8"},
                                        {"dp: split(0, 0:8|5:3)", "5:3 ends before it begins"},
                                        {"dp: split(0, 0:8)", "lists 1 parts for dp = 2"},
                                        {"tp: split(0), dp: split(0, 0:4|4:8)", "end at 8, the dim has 4"},
                                        {"dp: partial(sum), tp: partial(max)", "mixes partial sums and maxima"},
                                        {"dp: ragged(0, 0|3)", "owned by coordinate 3: the axis has 2"},
                                        {"tp: split(0), dp: ragged(0, 0|1; lengths 4,4)", "add up to 8, the dim has 4"}})
    EXPECT_NE(message("dp=2,tp=2", placement).find(part), std::string::npos) << message("dp=2,tp=2", placement);
  EXPECT_NE(message("island=(dp=2|dp=3)", "island: partial(sum)").find("has 1 of 2 peers"), std::string::npos);
  EXPECT_EQ(message("island=(dp=2|dp=3)", "dp: partial(sum)"), "fits");
  EXPECT_EQ(message("dp=2", "tp: split(0)"), "fits");  // an axis that is not there has size 1
}

TEST(Placement, IsRefusedAsPartialWhereTrueValuesAreNeeded) {
  EXPECT_NO_THROW(check_not_partial(parse_placement("dp: split(0)"), "w"));
  for (const char* text : {"dp: split(0), tp: partial(sum)", "tp: ragged(0, 0; partial)"}) {
    try {
      check_not_partial(parse_placement(text), "layers.0.w");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("layers.0.w is partial along tp"), std::string::npos) << error.what();
    }
  }
}

TEST(Splits, ListTheirIntervals) {
  EXPECT_EQ(split_by_counts(1, {3, 0, 2}), (Split{1, {{{0, 3}}, {}, {{3, 5}}}}));
  EXPECT_EQ(split_zigzag(0, 8, 2), (Split{0, {{{0, 2}, {6, 8}}, {{2, 4}, {4, 6}}}}));
  // Three query heads and one key head and one value head, two rows each, on two ranks.
  EXPECT_EQ(split_fused(0, {6, 2, 2}, 2, 2), (Split{0, {{{0, 4}, {6, 8}, {8, 10}}, {{4, 6}}}}));
  EXPECT_THROW(split_fused(0, {5}, 2, 2), Error);
  EXPECT_THROW(split_by_counts(0, {-1}), Error);
}

}  // namespace
}  // namespace cairn::mesh
