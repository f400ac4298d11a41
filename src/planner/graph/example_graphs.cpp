#include "planner/graph/example_graphs.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kernels/aten.h"
#include "planner/graph/model_graph.h"

namespace cairn::planner {

namespace {

class GraphMaker {
 public:
  OpGraph graph;

  int input(const std::string& name, std::vector<int64_t> shape) {
    return graph.add({.name = name, .shape = std::move(shape), .kind = GraphTensor::Kind::input, .differentiable = false, .item_bytes = 8});
  }
  int parameter(const std::string& name, std::vector<int64_t> shape, std::vector<Grain> grains = {}) {
    return graph.add(
        {.name = name, .shape = std::move(shape), .kind = GraphTensor::Kind::parameter, .item_bytes = 8, .grains = std::move(grains)});
  }
  // y [.., n] = x [.., k] w^T, the weight [n, k].
  int product(const std::string& name, int x, int w, std::vector<Grain> grains = {}) {
    const std::vector<int64_t>&in = shape(x), &weight = shape(w);
    std::vector<int64_t> out = in;
    out.back() = weight[0];
    const std::string many = std::string("bs").substr(0, in.size() - 1);
    double flops = 2;
    for (const int64_t size : out) flops *= static_cast<double>(size);
    return add({.name = name,
                .kind = GraphOp::Kind::product,
                .inputs = {x, w},
                .indices = fmt::format("{0}k,nk->{0}n", many),
                .linear = GraphOp::Linear::each,
                .flops = flops * static_cast<double>(in.back())},
               out, std::move(grains));
  }
  int bias(const std::string& name, int x, int b) {
    const std::string many = std::string("bsn").substr(3 - shape(x).size());
    return add({.name = name, .kind = GraphOp::Kind::bias, .inputs = {x, b}, .indices = fmt::format("{0},n->{0}", many)}, shape(x),
               grains(x));
  }
  int function(const std::string& name, int x, const std::string& what) {
    const std::string many = std::string("bsn").substr(3 - shape(x).size());
    return add({.name = name, .kind = GraphOp::Kind::elementwise, .inputs = {x}, .indices = many + "->" + many, .detail = what}, shape(x),
               grains(x));
  }
  int sum(const std::string& name, int a, int b) {
    return add({.name = name, .kind = GraphOp::Kind::add, .inputs = {a, b}, .indices = "bsn,bsn->bsn", .linear = GraphOp::Linear::jointly},
               shape(a));
  }
  int norm(const std::string& name, int x, int gain) {
    return add({.name = name, .kind = GraphOp::Kind::norm, .inputs = {x, gain}, .indices = "bsn,n->bsn", .whole = "n", .detail = "rms"},
               shape(x));
  }
  int mean(const std::string& name, int x) {
    const std::string many = std::string("bsn").substr(3 - shape(x).size());
    return add({.name = name, .kind = GraphOp::Kind::mean, .inputs = {x}, .indices = many + "->", .linear = GraphOp::Linear::each}, {});
  }
  int add(GraphOp op, std::vector<int64_t> out, std::vector<Grain> grains = {}) {
    const std::string name = op.name;
    return graph.add(std::move(op), {.name = name, .shape = std::move(out), .item_bytes = 8, .grains = std::move(grains)});
  }
  const std::vector<int64_t>& shape(int tensor) const { return graph.tensors[static_cast<size_t>(tensor)].shape; }
  const std::vector<Grain>& grains(int tensor) const { return graph.tensors[static_cast<size_t>(tensor)].grains; }
};

}  // namespace

OpGraph mlp_graph(int64_t rows, int64_t in, int64_t hidden, int64_t out, bool biases) {
  GraphMaker m;
  const int x = m.input("x", {rows, in});
  const int w1 = m.parameter("w1", {hidden, in}), b1 = biases ? m.parameter("b1", {hidden}) : -1;
  const int w2 = m.parameter("w2", {out, hidden}), b2 = biases ? m.parameter("b2", {out}) : -1;
  int h = m.product("up", x, w1);
  if (biases) h = m.bias("up_bias", h, b1);
  int y = m.product("down", m.function("active", h, "gelu"), w2);
  if (biases) y = m.bias("down_bias", y, b2);
  m.mean("loss", m.function("squashed", y, "tanh"));
  return std::move(m.graph);
}

OpGraph decoder_graph(const BlockShape& s) {
  GraphMaker m;
  const int64_t embed = s.heads * s.width, kv = s.keys * s.width;
  const Grain query{.unit = s.width, .group = s.heads / s.keys}, key{.unit = s.width, .shared = true};
  const int ids = m.input("ids", {s.batch, s.length}), targets = m.input("targets", {s.batch, s.length});
  const int table = m.parameter("table", {s.vocab, embed});
  int x =
      m.add({.name = "hidden", .kind = GraphOp::Kind::lookup, .inputs = {table, ids}, .indices = "ve,bs->bse"}, {s.batch, s.length, embed});
  for (int64_t l = 0; l < s.layers; ++l) {
    const auto name = [&](const char* what) { return fmt::format("{}.{}", l, what); };
    const int n1 = m.norm(name("norm1"), x, m.parameter(name("g1"), {embed}));
    const int q = m.product(name("q"), n1, m.parameter(name("wq"), {embed, embed}, {query, {}}), {{}, {}, query});
    const int k = m.product(name("k"), n1, m.parameter(name("wk"), {kv, embed}, {key, {}}), {{}, {}, key});
    const int v = m.product(name("v"), n1, m.parameter(name("wv"), {kv, embed}, {key, {}}), {{}, {}, key});
    const int mixed = m.add({.name = name("attention"),
                             .kind = GraphOp::Kind::attention,
                             .inputs = {q, k, v},
                             .indices = "bsh,bth,bth->bsh",
                             .whole = "st",
                             .flops = 4.0 * static_cast<double>(s.batch * s.length * s.length * embed),
                             .heads = s.heads,
                             .key_heads = s.keys},
                            {s.batch, s.length, embed}, {{}, {}, query});
    x = m.sum(name("x1"), x, m.product(name("out"), mixed, m.parameter(name("wo"), {embed, embed}, {{}, query})));
    const int n2 = m.norm(name("norm2"), x, m.parameter(name("g2"), {embed}));
    const int gate = m.product(name("gate"), n2, m.parameter(name("wg"), {s.mlp, embed}));
    const int up = m.product(name("up"), n2, m.parameter(name("wu"), {s.mlp, embed}));
    const int active = m.add(
        {.name = name("swiglu"), .kind = GraphOp::Kind::multiply, .inputs = {gate, up}, .indices = "bsn,bsn->bsn", .detail = "swiglu"},
        {s.batch, s.length, s.mlp});
    x = m.sum(name("x2"), x, m.product(name("down"), active, m.parameter(name("wd"), {embed, s.mlp})));
  }
  const int logits = m.product("logits", m.norm("last", x, m.parameter("g", {embed})), m.parameter("head", {s.vocab, embed}));
  const int losses =
      m.add({.name = "losses", .kind = GraphOp::Kind::cross_entropy, .inputs = {logits, targets}, .indices = "bsv,bs->bs", .whole = "v"},
            {s.batch, s.length});
  m.add({.name = "loss", .kind = GraphOp::Kind::mean, .inputs = {losses}, .indices = "bs->", .linear = GraphOp::Linear::each}, {});
  return std::move(m.graph);
}

OpGraph in_double(OpGraph graph) {
  for (GraphTensor& tensor : graph.tensors) tensor.item_bytes = 8;
  for (GraphOp& op : graph.ops) op.inner_item_bytes = 8;
  return graph;
}

LocalTensors example_values(const OpGraph& graph, uint64_t offset) {
  LocalTensors all;
  uint64_t seed = 1 + offset;
  for (const GraphTensor& tensor : graph.tensors) {
    if (tensor.kind == GraphTensor::Kind::value) continue;
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    all[tensor.name] = at::arange(count, at::kDouble).mul(0.7 + 0.1 * static_cast<double>(seed++)).sin().mul(0.5).view(tensor.shape);
  }
  for (const GraphOp& op : graph.ops) {
    if (op.kind != GraphOp::Kind::lookup && op.kind != GraphOp::Kind::cross_entropy) continue;
    const GraphTensor& of = graph.tensors[static_cast<size_t>(op.inputs[0])];
    at::Tensor& ids = all.at(graph.tensors[static_cast<size_t>(op.inputs[1])].name);
    if (op.detail == kByPosition)
      ids = at::arange(ids.size(1), at::kLong).expand(ids.sizes()).contiguous();
    else if (ids.scalar_type() == at::kDouble)
      ids = (ids * 1000).floor().to(at::kLong).remainder(op.kind == GraphOp::Kind::lookup ? of.shape.front() : of.shape.back());
  }
  return all;
}

}  // namespace cairn::planner
