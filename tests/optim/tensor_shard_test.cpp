// Rules over parameters that several ranks hold together, against the same rules over whole parameters.
#include "optim/tensor_shard.h"

#include <gtest/gtest.h>

#include "comm/world.h"
#include "harness/ranks.h"
#include "optim/bf16_optimizer.h"
#include "optim/series.h"

namespace cairn::optim {
namespace {

using Dims = std::vector<std::vector<mesh::Interval>>;

struct SplitParameter {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<Dims> shards;  // by rank
};

// Uneven rows, columns in two intervals, a part that two ranks share, a vector, a matrix that all have, one of a single column.
std::vector<SplitParameter> split_parameters() {
  return {{"rows", {7, 5}, {{{{0, 3}}, {{0, 5}}}, {{{3, 5}}, {{0, 5}}}, {{{5, 7}}, {{0, 5}}}}},
          {"columns", {4, 9}, {{{{0, 4}}, {{0, 2}, {5, 6}}}, {{{0, 4}}, {{2, 4}}}, {{{0, 4}}, {{4, 5}, {6, 9}}}}},
          {"shared", {6, 4}, {{{{0, 3}}, {{0, 4}}}, {{{0, 3}}, {{0, 4}}}, {{{3, 6}}, {{0, 4}}}}},
          {"vector", {5}, {{{{0, 1}}}, {{{1, 3}}}, {{{3, 5}}}}},
          {"whole", {3, 8}, {{{{0, 3}}, {{0, 8}}}, {{{0, 3}}, {{0, 8}}}, {{{0, 3}}, {{0, 8}}}}},
          {"column", {6, 1}, {{{{0, 2}}, {{0, 1}}}, {{{2, 4}}, {{0, 1}}}, {{{4, 6}}, {{0, 1}}}}}};
}

OptimOptions rule_of(const std::string& kind) {
  OptimOptions options;
  options.kind = kind;
  options.weight_decay = 0.1;
  return options;
}

std::vector<Walk> whole_walks(const OptimOptions& options, int64_t steps) {
  std::vector<Walk> walks;
  std::vector<ParameterPiece> pieces;
  for (const SplitParameter& one : split_parameters()) pieces.push_back(walks.emplace_back(one.shape, one.name).piece);
  const auto rule = make_optimizer(options, pieces);
  for (int64_t step = 1; step <= steps; ++step) {
    for (const Walk& walk : walks) walk.gradient_at(step);
    rule->update_several(0, std::ssize(walks), {.step = step, .learning_rate = 0.02});
  }
  return walks;
}

void expect_as_whole(const OptimOptions& options, bool together) {
  constexpr int64_t kSteps = 3;
  const std::vector<Walk> whole = whole_walks(options, kSteps);
  harness::on_ranks(3, [&](comm::World& world) {
    std::vector<Walk> walks;  // of whole parameters, for the gradients
    std::vector<ParameterPiece> pieces;
    std::vector<mesh::LocalShard> mine;
    for (const SplitParameter& one : split_parameters()) {
      walks.emplace_back(one.shape, one.name);
      ParameterPiece piece = walks.back().piece;
      TensorShard shard{world.everyone(), one.shape, {}};
      for (const Dims& dims : one.shards) shard.shards.push_back({dims});
      mine.push_back(shard.mine());
      piece.parameter = mesh::cut_out(piece.parameter, mine.back()).clone();
      piece.gradient = at::empty_like(piece.parameter);
      if (one.name != "whole") piece.split = std::make_shared<const TensorShard>(std::move(shard));
      pieces.push_back(piece);
    }
    const auto rule = make_optimizer(options, pieces);
    for (int64_t step = 1; step <= kSteps; ++step) {
      for (size_t i = 0; i < walks.size(); ++i) {
        walks[i].gradient_at(step);
        pieces[i].gradient.copy_(mesh::cut_out(walks[i].piece.gradient, mine[i]));
      }
      const UpdateFacts facts{.step = step, .learning_rate = 0.02};
      if (together) rule->update_several(0, std::ssize(pieces), facts);
      for (int64_t i = 0; !together && i < std::ssize(pieces); ++i) rule->update(i, facts);
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      const at::Tensor expected = mesh::cut_out(whole[i].piece.parameter, mine[i]);
      EXPECT_LT((pieces[i].parameter - expected).abs().max().item<double>(), 2e-6) << options.kind << ' ' << pieces[i].name;
      EXPECT_GT((expected - mesh::cut_out(Walk(split_parameters()[i].shape).piece.parameter, mine[i])).abs().max().item<double>(), 1e-3);
    }
  });
}

TEST(SplitUpdates, AreThoseOfTheWholeParameter) {
  for (const std::string kind : {"muon", "adafactor"})
    for (const bool together : {true, false}) expect_as_whole(rule_of(kind), together);
  OptimOptions relative = rule_of("adafactor");
  relative.relative_step = true;
  relative.adafactor_beta1 = 0.9;
  expect_as_whole(relative, true);
  OptimOptions spectral = rule_of("muon");
  spectral.muon_scale = MuonScale::spectral;
  spectral.nesterov = false;
  expect_as_whole(spectral, true);
}

// A slice of a parameter in bf16 is rounded as in the whole; another shard's elements have numbers of their own.
TEST(Bf16Pieces, AreRoundedByTheirPlaceInTheParameter) {
  const base::Random random(5);
  for (const std::string kind : {"adamw", "sgd"}) {
    const auto stepped = [&](int64_t begin, int64_t count, int64_t shard) {
      const Walk walk({64});
      walk.gradient_at(1);
      ParameterPiece piece = walk.piece;
      piece.parameter = piece.parameter.to(at::kBFloat16).narrow(0, begin, count).clone();
      piece.gradient = piece.gradient.narrow(0, begin, count).clone();
      piece.first_index = begin;
      piece.shard = shard;
      make_bf16_optimizer(rule_of(kind), {piece}, random)->update(0, {.step = 1, .learning_rate = 1e-3});
      return piece.parameter;
    };
    const at::Tensor whole = stepped(0, 64, 0);
    EXPECT_TRUE(at::equal(stepped(13, 30, 0), whole.narrow(0, 13, 30))) << kind;
    EXPECT_FALSE(at::equal(stepped(0, 64, 7), whole)) << kind;
  }
}

}  // namespace
}  // namespace cairn::optim
