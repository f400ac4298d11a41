#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"

namespace cairn::model {

class WeightFormRule;

// The edges of a graph, as pairs of nodes.
using GraphEdges = std::vector<std::pair<int64_t, int64_t>>;
// Reads "u v" lines. Throws corrupt_file with the line for anything else, and for nodes that the graph does not have.
GraphEdges read_edges(const std::string& file, int64_t nodes);

struct LorentzGraphShape {
  int64_t nodes = 0, width = 16, layers = 2, classes = 2;  // the width counts the time coordinate
  GraphEdges edges = {};
};

// A graph network in the Lorentz model. Each node has a trained point ("nodes.weight"); each layer is a Lorentz linear layer and the
// centroid of a node and its neighbours. Reads "features" [batch, 2], the numbers of two nodes, and writes "logits" [batch, classes]: class
// c is likely where their distance in hyperbolic space is near to step * c + offset. `forms`: what the weights of the linear layers are
// made of; null: plain parameters.
std::unique_ptr<Model> make_lorentz_graph(const LorentzGraphShape& shape, const std::shared_ptr<const WeightFormRule>& forms = nullptr);

}  // namespace cairn::model
