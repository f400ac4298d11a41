#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "parallel/pass.h"
#include "parallel/pipeline/routing.h"
#include "parallel/pipeline/stage_edges.h"
#include "parallel/schedule.h"
#include "parallel/schedule/timeline.h"

namespace cairn::parallel {

// Executes the passes of a step over the stages of a pipeline, as a schedule says: a rank's stages and its messages are actors
// (pipeline_actors.h) that act when what they need is there and a register is free for what they make. So nothing waits but for its
// inputs or for a neighbour that is behind, and no more is under way than the registers hold.
class Pipeline {
 public:
  // The schedule for so many micro-batches.
  using MakeSchedule = std::function<Schedule(int micro_batches)>;

  // `at`: the ranks along pp, by their place in the schedule; of several replicas where micro-batches of a step with gradients change over
  // between them. Its group is borrowed, like the model of the passes.
  Pipeline(const model::Model& model, const Plan& plan, PipelineTopology at, MakeSchedule make_schedule);
  ~Pipeline();

  // Alike on all ranks of the pipeline. The losses are those of the last stage; elsewhere they are zero.
  std::vector<model::Losses> run(std::span<const Pass> micro_batches);

  // When this rank did what in the last run with gradients, in seconds from its start.
  const std::vector<TimedAction>& measured() const { return measured_; }
  int64_t peak_in_flight() const { return peak_in_flight_; }  // stage runs that were under way at once on this rank, in the last run

 private:
  struct Prepared;  // what a schedule means for this rank
  struct Messages;
  struct StageInFlight;
  struct Run;
  const Prepared& prepared(int micro_batches, bool gradients);

  const model::Model& model_;
  const Plan& plan_;
  PipelineTopology topology_;
  MakeSchedule make_schedule_;
  std::vector<StageEdge> edges_;
  std::map<std::pair<int, bool>, std::unique_ptr<Prepared>> prepared_;
  std::map<std::pair<std::string, std::vector<int64_t>>, std::pair<std::vector<int64_t>, int>> shapes_;   // of values, by the batch's shape
  std::set<std::pair<std::pair<std::string, std::vector<int64_t>>, int>> shapes_sent_, shapes_received_;  // of those, to and by which ranks
  std::vector<TimedAction> measured_;
  int64_t peak_in_flight_ = 0;
};

}  // namespace cairn::parallel
