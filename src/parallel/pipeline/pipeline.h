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

// Executes the passes of a step over the stages of a pipeline, as a schedule says. A rank's stages and its messages are actors (actors.h)
// with bounded registers: an actor acts when its inputs are there and its outputs have a free buffer. So a rank waits only for inputs or
// for a neighbour that is behind, and no more micro-batches are in flight than the registers hold. One thread per rank runs all of it.
class Pipeline {
 public:
  // The schedule for so many micro-batches.
  using MakeSchedule = std::function<Schedule(int micro_batches)>;

  // `topology`: the ranks along pp, of several islands where micro-batches are routed between them (routing.h). Its group, the model and
  // the plan are borrowed.
  Pipeline(const model::Model& model, const Plan& plan, PipelineTopology topology, MakeSchedule make_schedule);
  ~Pipeline();

  // Runs one pass for each micro-batch; all with gradients, or none. Collective over the pipeline. Losses are those of the last stage, zero
  // on ranks that do not run it.
  std::vector<model::Losses> run(std::span<const Pass> micro_batches);

  // What this rank did when in the last run with gradients, in seconds from its start.
  const std::vector<TimedAction>& measured() const { return measured_; }
  int64_t peak_in_flight() const { return peak_in_flight_; }  // most stage runs in flight at once on this rank, in the last run

 private:
  struct Prepared;  // a schedule and its actors on this rank
  struct Messages;
  struct StageInFlight;
  struct Run;
  const Prepared& prepared(int micro_batches, bool gradients);
  std::vector<mesh::ParamId> weights_of(int stage) const;

  const model::Model& model_;
  const Plan& plan_;
  PipelineTopology topology_;
  MakeSchedule make_schedule_;
  std::vector<StageEdge> edges_;
  std::map<std::pair<int, bool>, std::unique_ptr<Prepared>> prepared_;
  std::map<std::pair<std::string, std::vector<int64_t>>, std::pair<std::vector<int64_t>, int>>
      shapes_;  // shape and dtype of values, by value and batch shape
  std::set<std::pair<std::pair<std::string, std::vector<int64_t>>, int>> shapes_sent_,
      shapes_received_;  // which of those were announced, to and by which rank
  std::vector<TimedAction> measured_;
  int64_t peak_in_flight_ = 0;
};

}  // namespace cairn::parallel
