#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "mesh/layout_change.h"
#include "planner/signatures.h"

namespace cairn::planner {

// What messages between neighbours along an axis cost.
struct LinkPrice {
  double latency_s = 0;
  double bytes_per_s = 0;
};

// What a choice of signatures is judged by: seconds where links are known, else bytes over all ranks.
struct Prices {
  std::map<std::string, LinkPrice> links = {};  // by axis; empty: count bytes
  double flops_per_s = 0;                       // of a rank; 0: computing costs nothing, but breaks ties
};

// What a change of forms moves.
struct Price {
  int64_t bytes = 0;    // sent by all ranks together
  double cost = 0;      // bytes, or seconds
  std::string by = {};  // "all_gather", "reduce_scatter and all_gather", "slice"
  bool free() const { return bytes == 0; }
};

// Prices of every change of forms on one mesh, each computed once from the index sets that ranks hold (mesh::RedistributePlan): what is
// priced is what runs.
class Boxing {
 public:
  Boxing(mesh::Mesh mesh, Prices prices);

  const mesh::Mesh& mesh() const { return mesh_; }
  const Prices& prices() const { return prices_; }

  // A value that lies as `from` says, wanted as `to` says.
  Price forward(const GraphTensor& tensor, const Forms& from, const Forms& to);
  // Its gradient, on the way back: from what the reader makes to what the maker wants.
  Price backward(const GraphTensor& tensor, const Forms& from, const Forms& to);
  // A parameter's gradient, from the terms that backward leaves to how it is kept.
  Price gradient(const GraphTensor& parameter, const Forms& kept, const Forms& wanted);

  // About what it costs forward and, if there is a way back, backward: for comparing many choices. The same as the exact prices on small
  // meshes; on large ones, whose plans take long to make, from the sizes of what ranks hold.
  double about(const GraphTensor& tensor, const Forms& from, const Forms& to, bool and_back);
  double about_gradient(const GraphTensor& parameter, const Forms& kept, const Forms& wanted);

  mesh::LayoutChange change(const GraphTensor& tensor, const Forms& from, const Forms& to) const;
  mesh::LayoutChange gradient_change(const GraphTensor& parameter, const Forms& kept, const Forms& wanted) const;

 private:
  enum class Way { forward, backward, gradient };
  Price price(const GraphTensor& tensor, const Forms& from, const Forms& to, Way way);

  mesh::Mesh mesh_;
  Prices prices_;
  double estimate(const mesh::LayoutChange& change, int64_t item_bytes) const;

  std::map<std::string, Price> known_;
  std::map<std::string, double> estimated_;
};

// Whether a change makes terms of a sum out of a value, which costs nothing and gains nothing.
bool makes_terms(const Forms& from, const Forms& to);

}  // namespace cairn::planner
