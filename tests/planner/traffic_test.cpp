#include "planner/traffic.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "model/decoder/decoder.h"
#include "parallel/layout/make_plan.h"
#include "planner/tensor_parallel/placement_reason.h"

namespace cairn::planner {
namespace {

std::unique_ptr<model::Model> small_decoder() {
  return model::make_decoder({.vocab = 10, .embed = 8, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 4, .mlp = 6, .length = 5});
}

parallel::Plan placed(const model::Model& model, const parallel::LayoutOptions& options, int ranks) {
  parallel::Plan plan = parallel::make_plan(options, ranks);
  plan.sync["dp"] = "all_reduce";
  plan.micro_batch = 3;
  parallel::fit_to_model(plan, model, options.pipeline, 5);
  return plan;
}

const TrafficRow& row_of(const std::vector<TrafficRow>& rows, const std::string& what, const std::string& collective) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const TrafficRow& row) { return row.what == what && row.collective == collective; });
  if (found == rows.end()) throw std::runtime_error("no row for " + what);
  return *found;
}

TEST(StepTraffic, OfOneRankIsNothing) {
  const auto model = small_decoder();
  EXPECT_TRUE(step_traffic(*model, placed(*model, {}, 1), {.samples = 3, .length = 5}, {}).empty());
}

TEST(StepTraffic, OfReplicasIsTwiceTheGradientForEachFurtherOne) {
  const auto model = small_decoder();
  const std::vector<TrafficRow> rows = step_traffic(*model, placed(*model, {}, 3), {.samples = 3, .length = 5}, {});
  EXPECT_EQ(bytes_for(rows, comm::Purpose::gradient), 2 * 2 * 4 * model->elements());
  EXPECT_EQ(bytes_along(rows, "dp"), 2 * 2 * 4 * model->elements());
  EXPECT_EQ(bytes_along(rows, "all"), 2 * 2 * 8 * (2 + 3));  // the loss, the wish to stop, and the time of each rank
}

TEST(StepTraffic, AlongTpGathersAndScattersTokensOfEveryBranch) {
  const auto model = small_decoder();
  const parallel::LayoutOptions two{.mesh = {.tp = 2}, .memory = {}, .context = {}, .tensor = {}, .pipeline = {}, .recompute = {}};
  const std::vector<TrafficRow> rows = step_traffic(*model, placed(*model, two, 2), {.samples = 6, .length = 5}, {});
  const int64_t stream = 15 * 8 * 4;  // tokens of a micro-batch, width, bytes
  const TrafficRow& in = row_of(rows, "layers.*.attention, forward", "all_gather");
  EXPECT_EQ(in.times, 2 * 2);  // layers, micro-batches
  EXPECT_EQ(in.bytes, 2 * 2 * stream);
  EXPECT_EQ(in.shape, (std::vector<int64_t>{15, 8}));
  EXPECT_EQ(in.axis, "tp");
  EXPECT_EQ(in.reason, "tokens are sharded along tp; each rank needs all of them for its part of the layer");
  EXPECT_EQ(bytes_for(rows, comm::Purpose::activation), 2 * (4 * 2 * 2 + 4) * stream);  // four for each branch; two at either end
  // A key head that both ranks hold, besides the norms.
  EXPECT_EQ(row_of(rows, "gradient of model.layers.*.self_attn.k_proj.weight", "all_reduce").bytes, 2 * 2 * 4 * 8 * 4);
}

TEST(StepTraffic, SaysWhatItCannotTell) {
  const auto model = small_decoder();
  parallel::Plan plan = placed(*model, {}, 2);
  plan.sync["dp"] = "gossip";
  const std::vector<TrafficRow> rows = step_traffic(*model, plan, {.samples = 3, .length = 5}, {});
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(),
                          [](const TrafficRow& row) { return !row.predicted && row.reason == "not predicted: sync rule gossip"; }),
            1);
}

TEST(StepTraffic, OfBatchesThatVaryIsAnUpperBoundAndSaysSo) {
  const auto model = small_decoder();
  const parallel::LayoutOptions two{.mesh = {.tp = 2}, .memory = {}, .context = {}, .tensor = {}, .pipeline = {}, .recompute = {}};
  const std::vector<TrafficRow> rows = step_traffic(*model, placed(*model, two, 2), {.samples = 6, .length = 5, .length_varies = true}, {});
  for (const TrafficRow& row : rows)
    EXPECT_EQ(row.predicted, row.purpose != comm::Purpose::activation && row.what != "cross entropy") << row.what;
}

TEST(StepTraffic, FoldsLayersByTheirNumbersAlone) {
  EXPECT_EQ(folded_name("model.layers.12.mlp.up_proj.weight"), "model.layers.*.mlp.up_proj.weight");
  EXPECT_EQ(folded_name("transformer.h.0.ln_1.bias"), "transformer.h.*.ln_1.bias");
  EXPECT_EQ(folded_name("head"), "head");
  EXPECT_EQ(folded_name(""), "");
}

TEST(PlacementReasons, SayWhichPartsAreWhole) {
  const auto model = small_decoder();
  const parallel::LayoutOptions two{.mesh = {.tp = 2}, .memory = {}, .context = {}, .tensor = {}, .pipeline = {}, .recompute = {}};
  const parallel::Plan plan = placed(*model, two, 2);
  const auto reason = [&](const std::string& name) {
    for (const model::Parameter& parameter : model->parameters())
      if (parameter.name == name) return placement_reason(parameter, parallel::placement_of(plan, name));
    return std::string("no such parameter");
  };
  EXPECT_EQ(reason("model.layers.0.self_attn.q_proj.weight"), "whole query heads on each rank: attention works on each head alone");
  EXPECT_EQ(reason("model.layers.0.self_attn.k_proj.weight"),
            "fewer key heads than ranks: those whose query heads read one hold it together");
  EXPECT_EQ(reason("model.layers.1.mlp.down_proj.weight"), "the hidden width of the MLP: each of its elements is computed alone");
  EXPECT_EQ(reason("model.norm.weight"), "small, and every token needs all of it");
}

}  // namespace
}  // namespace cairn::planner
