// Density-based pruning: few documents of clusters that are dense and near others, many of clusters that are spread out and far.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/enum_names.h"

namespace cairn::data {

// What decides how many documents a cluster keeps: its complexity, nothing (equal), its size (the same fraction of every cluster), or no
// quota at all (one order over all clusters).
enum class ConceptShares { density, uniform, proportional, global };
inline constexpr base::EnumName<ConceptShares> kConceptSharesNames[] = {{ConceptShares::density, "density"},
                                                                        {ConceptShares::uniform, "uniform"},
                                                                        {ConceptShares::proportional, "ssp"},
                                                                        {ConceptShares::global, "ssp_global"}};
// Which documents of a cluster stay: those far from its centroid, any, or those near it.
enum class ConceptPick { hard, random, easy };
inline constexpr base::EnumName<ConceptPick> kConceptPickNames[] = {
    {ConceptPick::hard, "hard"}, {ConceptPick::random, "random"}, {ConceptPick::easy, "easy"}};

struct ConceptOptions {
  int64_t keep = 1;
  int64_t neighbours = 20;   // centroids around each, for its distance to others
  double temperature = 0.1;  // of the softmax over complexities
  double balance = 0.5;      // of an equal quota, that every cluster keeps at least
  ConceptShares shares = ConceptShares::density;
  ConceptPick within = ConceptPick::hard;
  uint64_t seed = 0;
};

struct ConceptCluster {
  int64_t size = 0;
  double intra = 0;       // mean cosine distance of members to the centroid
  double inter = 0;       // mean cosine distance of the centroid to its neighbours
  double complexity = 0;  // their product
  double share = 0;       // of the documents kept, before bounds
  int64_t quota = 0;
};

struct ConceptResult {
  std::vector<int64_t> kept;  // positions, ascending
  std::vector<ConceptCluster> clusters;
  double lambda = 0;       // of the projection (quota.h)
  double share_ratio = 1;  // largest share to smallest: below 1.5 the quota is nearly uniform
  int64_t at_lower = 0, at_upper = 0;
};

// `closeness`: the scalar product of each row with its centroid; rows and centroids have unit length. Refuses more than there is.
ConceptResult prune_concepts(std::span<const int64_t> ids, std::span<const int32_t> labels, std::span<const float> closeness,
                             const at::Tensor& centroids, const ConceptOptions& options);

}  // namespace cairn::data
