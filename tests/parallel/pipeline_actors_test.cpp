// Pipelines as actors: that bounded registers cost no time, what they bound, and what is refused.
#include <gtest/gtest.h>

#include "base/actors/simulation.h"
#include "base/error.h"
#include "parallel/pipeline/actors.h"
#include "parallel/schedule/csv.h"
#include "parallel/schedule/timeline.h"

namespace cairn::parallel {
namespace {

std::vector<StageEdge> neighbours(const Schedule& schedule) {
  std::vector<StageEdge> all;
  for (int stage = 0; stage + 1 < schedule.stages(); ++stage) all.push_back({"stream", stage, stage + 1});
  return all;
}

// Every schedule over so many ranks that takes so many micro-batches.
std::vector<Schedule> schedules_of(int ranks, int micro_batches) {
  std::vector<Schedule> all;
  for (const std::string& name : schedule_names()) {
    if (name == "dualpipev" && micro_batches < 2 * ranks) continue;
    if (name == "interleaved" && micro_batches % ranks != 0) continue;
    all.push_back(make_schedule({.name = name, .ranks = ranks, .micro_batches = micro_batches}));
  }
  return all;
}

TEST(PipelineActors, SimulatedTheyTakeAsLongAsTheScheduleWithoutBounds) {
  for (const int ranks : {1, 2, 3, 4, 7})
    for (const int micro_batches : {1, 2, 5, 8, 14, 17})
      for (const Schedule& schedule : schedules_of(ranks, micro_batches)) {
        const StageCosts costs{std::vector<double>(static_cast<size_t>(schedule.stages()), 1),
                               std::vector<double>(static_cast<size_t>(schedule.stages()), 1),
                               std::vector<double>(static_cast<size_t>(schedule.stages()), 1)};
        const PipelineActors actors = all_actors(schedule, neighbours(schedule), edge_registers(schedule, neighbours(schedule)));
        const base::Simulation simulation = base::simulate(actors.graph);
        ASSERT_TRUE(simulation.stuck.empty()) << schedule.name << ": " << simulation.stuck.front();
        EXPECT_NEAR(simulation.end_s, timeline_stats(timeline(schedule, costs)).step_s, 1e-9)
            << schedule.name << ' ' << ranks << ' ' << micro_batches;
      }
}

TEST(PipelineActors, KeepAsManyMicroBatchesAsTheScheduleDoes) {
  for (const Schedule& schedule : schedules_of(4, 8)) {
    if (schedule.stages() > 4) continue;
    const EdgeRegisters registers = edge_registers(schedule, neighbours(schedule));
    const TimelineStats planned = timeline_stats(timeline(schedule, even_costs(schedule, {})));
    for (int stage = 0; stage < 4; ++stage)
      EXPECT_EQ(registers.activations.at(stage), planned.ranks[static_cast<size_t>(stage)].live_activations) << schedule.name << stage;
  }
}

TEST(PipelineActors, ARanksActorsAreItsPartOfAll) {
  const Schedule schedule = make_schedule({.name = "1f1b", .ranks = 3, .micro_batches = 4});
  const PipelineActors middle = rank_actors(schedule, neighbours(schedule), edge_registers(schedule, neighbours(schedule)), 1);
  int computing = 0, sending = 0, receiving = 0;
  for (const PipelineActors::Part& part : middle.parts) {
    computing += part.role == PipelineActors::Role::forward || part.role == PipelineActors::Role::backward;
    sending += part.role == PipelineActors::Role::send;
    receiving += part.role == PipelineActors::Role::receive;
  }
  EXPECT_EQ(computing, 2);
  EXPECT_EQ(sending, 2);
  EXPECT_EQ(receiving, 2);
  EXPECT_EQ(middle.graph.queues[static_cast<size_t>(middle.compute)].order.size(), 8u);
}

TEST(PipelineActors, TooFewRegistersAreRefusedAndTheValueIsNamed) {
  // The second rank wants the second micro-batch first.
  const Schedule schedule = read_schedule_csv("0F0,0F1,0B1,0B0\n1F1,1B1,1F0,1B0\n", "s.csv");
  const std::vector<StageEdge> edges = neighbours(schedule);
  EXPECT_NO_THROW(base::check_no_deadlock(all_actors(schedule, edges, edge_registers(schedule, edges)).graph));
  EXPECT_NO_THROW(base::check_no_deadlock(all_actors(schedule, edges, edge_registers(schedule, edges, 2)).graph));
  try {
    base::check_no_deadlock(all_actors(schedule, edges, edge_registers(schedule, edges, 1)).graph);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_NE(std::string(error.what()).find("stream from stage 0 to stage 1, where it arrives needs 2 registers and has 1"),
              std::string::npos)
        << error.what();
  }
}

TEST(FlowSchedule, IsOneForwardOneBackward) {
  for (const int ranks : {1, 2, 3, 5, 8})
    for (const int micro_batches : {1, 2, 4, 7, 16}) {
      const ScheduleRequest request{.name = "flow", .ranks = ranks, .micro_batches = micro_batches};
      ScheduleRequest listed = request;
      listed.name = "1f1b";
      EXPECT_EQ(to_csv(make_schedule(request)), to_csv(make_schedule(listed))) << ranks << ' ' << micro_batches;
    }
}

TEST(FlowSchedule, TakesSeveralStagesOnARank) {
  const Schedule flow = make_schedule({.name = "flow", .ranks = 4, .stages_per_rank = 2, .micro_batches = 8});
  const Schedule one = make_schedule({.name = "1f1b", .ranks = 4, .micro_batches = 8});
  EXPECT_LT(timeline_stats(timeline(flow, even_costs(flow, {}))).bubble, timeline_stats(timeline(one, even_costs(one, {}))).bubble);
}

}  // namespace
}  // namespace cairn::parallel
