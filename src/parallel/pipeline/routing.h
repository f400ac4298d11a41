// Pipelines side by side whose micro-batches change over (NoLoCo): what leaves a stage of one replica goes on in the next stage of any.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "base/random.h"
#include "mesh/batch.h"

namespace cairn::comm {
class Group;
}

namespace cairn::parallel {

struct Plan;

// Which replica works on a micro-batch at which stage: at every border between two stages the replicas are shuffled. All ranks find the
// same, without a word. Backward goes back along the same way.
class Routes {
 public:
  // Nobody changes over.
  Routes() = default;
  // `step`: the random numbers of this step.
  Routes(const base::Random& step, int replicas, int micro_batches, int stages);

  // Who has, at stage `to`, what `replica` has at stage `from` as its micro-batch of that number.
  int replica_at(int micro_batch, int replica, int from, int to) const;

 private:
  int stages_ = 0;
  // By micro-batch and border, of the replica before it: the one after it, and the other way round.
  std::vector<std::vector<int>> after_, before_;
};

// Where this rank stands among the pipelines.
struct PipelineTopology {
  comm::Group& all;             // the ranks of all replicas' stages
  std::vector<int> places;      // by replica and rank along pp: which of `all`
  int replica = 0, along = 0;   // this rank's
  int replicas = 1, ranks = 1;  // of each of them along pp

  int place(int of_replica, int along_pp) const { return places[static_cast<size_t>(of_replica * ranks + along_pp)]; }
};

// One pipeline by itself.
PipelineTopology single_pipeline(comm::Group& along);
// The islands' pipelines; `all`: this rank's peers along island and pp.
PipelineTopology island_pipelines(const Plan& plan, comm::Group& all, int rank);

// What micro-batches that come over from other replicas are made of: labels, documents, ids. By stage of this rank and micro-batch, those
// that are not this replica's own. Every replica has as many micro-batches, with fields of the same names.
std::map<std::pair<int, int>, mesh::Batch> exchange_routed_batches(const PipelineTopology& at, const Routes& routes,
                                                                   const std::vector<int>& stages, const std::vector<mesh::Batch>& own);

}  // namespace cairn::parallel
