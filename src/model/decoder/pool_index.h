// Which pieces of a pool each layer takes (MoS): a function of the shape alone.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/decoder/adapter_shape.h"

namespace cairn::model {

// A pool has equivalent_rank * layers * shards rows: public ones, then the private ones of each layer in order. A layer takes
// (rank - private_rank) * shards public rows, none twice, and its private ones. Piece s of vector j is row index[layer][j * shards + s].
struct PoolIndex {
  std::vector<std::vector<int64_t>> a, b;  // by layer: rank * shards rows

  // Equal for equal indices, on every machine.
  uint64_t checksum() const;
};

int64_t pool_rows(const AdapterShape& shape, int64_t layers);
int64_t public_pool_rows(const AdapterShape& shape, int64_t layers);  // of these, the first ones

// `kind`: the layers that share the pool ("self_attn.q_proj").
PoolIndex make_pool_index(const AdapterShape& shape, const std::string& kind, int64_t layers);

// Refuses a shape that no pool can have, for layers whose projections have these widths. `kind` names them.
void check_pools(const AdapterShape& shape, int64_t layers, const std::string& kind, int64_t in, int64_t out);

// In how many layers the public rows of an index are, at least, on average and at most.
struct PoolUse {
  int64_t least = 0, most = 0;
  double mean = 0;
  std::map<int64_t, int64_t> rows = {};  // how many rows are in so many layers
};
PoolUse public_use(const AdapterShape& shape, const std::vector<std::vector<int64_t>>& index, int64_t layers);

}  // namespace cairn::model
