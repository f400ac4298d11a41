// Random pipeline routing (NoLoCo, arXiv:2506.10911): islands have a pipeline each, and a micro-batch that leaves stage s of one island
// goes on in stage s+1 of an island drawn at random. So the weights of all islands stay close without a collective over them.
//
// At every border between two stages and for every micro-batch, a permutation of the islands is drawn from counter-based random numbers:
// island i's micro-batch goes to island perm[i]. All ranks compute the same permutations without communication. Gradients go back along the
// same route.
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

// Which replica works on a micro-batch at which stage.
class Routes {
 public:
  // No routing: everything stays on its replica.
  Routes() = default;
  // `step`: the random numbers of this step.
  Routes(const base::Random& step, int replicas, int micro_batches, int stages);

  // The replica that has, at stage `to`, the micro-batch that `replica` has at stage `from`.
  int replica_at(int micro_batch, int replica, int from, int to) const;

 private:
  int stages_ = 0;
  // By micro-batch and border: the permutation and its inverse.
  std::vector<std::vector<int>> after_, before_;
};

// The ranks of one or several pipelines, and where this rank is among them.
struct PipelineTopology {
  comm::Group& all;             // the ranks of all pipelines
  std::vector<int> places;      // by replica and rank along pp: its rank in `all`
  int replica = 0, along = 0;   // this rank's replica, and its rank along pp
  int replicas = 1, ranks = 1;  // how many pipelines, and ranks of each

  int place(int of_replica, int along_pp) const { return places[static_cast<size_t>(of_replica * ranks + along_pp)]; }
};

// One pipeline without routing.
PipelineTopology single_pipeline(comm::Group& along);
// The pipelines of all islands. `all`: this rank's peers along island and pp.
PipelineTopology island_pipelines(const Plan& plan, comm::Group& all, int rank);

// Exchanges the batches (labels, document ids, sample ids) of routed micro-batches. Returns, by stage of this rank and micro-batch, those
// that come from other replicas. Every replica must have the same number of micro-batches, with fields of the same names. Collective.
std::map<std::pair<int, int>, mesh::Batch> exchange_routed_batches(const PipelineTopology& at, const Routes& routes,
                                                                   const std::vector<int>& stages, const std::vector<mesh::Batch>& own);

}  // namespace cairn::parallel
