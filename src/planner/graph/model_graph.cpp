#include "planner/graph/model_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "model/block.h"
#include "model/decoder/weight_form.h"
#include "model/model.h"
#include "planner/graph/op_graph.h"
#include "planner/graph/sequences.h"

namespace cairn::planner {
namespace {

using model::BlockOp;

std::string joined(const std::string& one, size_t count) {  // "bsn,bsn", as many as there are inputs
  std::string all = one;
  for (size_t i = 1; i < count; ++i) all += "," + one;
  return all;
}

class CardGraph {
 public:
  CardGraph(const Description& description, const PassShape& shape)
      : description_(description), shape_(shape), sequences_(description.cards), parameters_(description.parameters.size(), -1) {}

  OpGraph make(bool loss) {
    for (const model::Card& card : description_.cards) add_card(card);
    if (const auto logits = values_.find("logits"); loss && logits != values_.end()) add_loss(logits->second.front());
    for (size_t i = 0; i < parameters_.size(); ++i) parameter(static_cast<int32_t>(i));  // also those that no operation uses
    propagate_grains(graph_);
    for (const auto& [normed, unit] : by_head_)  // where no attention has said more
      if (tensor(normed).grains.empty()) set_grain(graph_, normed, 2, {.unit = unit});
    propagate_grains(graph_);
    return std::move(graph_);
  }

 private:
  // The results of one operation, each [batch, length, width].
  using Results = std::vector<int>;

  // An operation of a card: its name, and its results.
  struct Place {
    const model::Card& card;
    const BlockOp& operation;
    bool last = false;
    std::string name = {};
    // The name of result i of n.
    std::string result(size_t i, size_t n) const {
      if (last && i < card.writes.size()) return card.writes[i];
      return n == 1 ? name : fmt::format("{}.{}", name, i);
    }
  };

  const GraphTensor& tensor(int place) const { return graph_.tensors[static_cast<size_t>(place)]; }
  int64_t width(int place) const { return tensor(place).shape.back(); }
  int64_t tokens_of(int place) const { return tensor(place).shape[0] * tensor(place).shape[1]; }
  int64_t length_of(const std::string& value) const {
    return shape_.other_length == 0 || sequences_.is_main(value) ? shape_.length : shape_.other_length;
  }

  int parameter(int32_t id) {
    int& place = parameters_.at(static_cast<size_t>(id));
    const model::Parameter& p = description_.parameters[static_cast<size_t>(id)];
    if (place < 0) place = graph_.add({.name = p.name, .shape = p.shape, .kind = GraphTensor::Kind::parameter});
    return place;
  }
  std::vector<int> parameters(const BlockOp& operation) {
    std::vector<int> all;
    for (const mesh::ParamId& id : operation.parameters)
      for (int32_t i = 0; i < id.count; ++i) all.push_back(parameter(id.first + i));
    return all;
  }

  int make(GraphOp op, const std::string& result, std::vector<int64_t> shape) {
    return graph_.add(std::move(op), {.name = result, .shape = std::move(shape)});
  }
  std::vector<int64_t> with_width(int of, int64_t width) const { return {tensor(of).shape[0], tensor(of).shape[1], width}; }

  // An input of the pass, added when it is first read, because only readers know its width. `pairs`: an id for each query and key.
  int input(const std::string& name, const BlockOp& reader, bool pairs) {
    const int64_t length = length_of(name);
    GraphTensor given{.name = name, .shape = {pairs ? length : shape_.batch, length}, .kind = GraphTensor::Kind::input};
    given.differentiable = false;
    given.of_samples = !pairs;
    if (reader.kind == BlockOp::Kind::lookup) {
      given.item_bytes = 8;
    } else if (reader.kind == BlockOp::Kind::product || reader.kind == BlockOp::Kind::norm) {
      const std::vector<int64_t>& of = description_.parameters[static_cast<size_t>(reader.parameters.front().first)].shape;
      given.shape.push_back(reader.fan_in_fan_out ? of.front() : of.back());
    } else {
      given.shape.push_back(std::max<int64_t>(1, reader.width));
    }
    return graph_.add(std::move(given));
  }

  // The inputs of an operation, in order.
  std::vector<int> taken(const Place& at, const std::map<std::string, Results>& made) {
    const BlockOp& operation = at.operation;
    std::vector<int> all;
    for (const std::string& name : names_read(at.card, operation)) {
      if (const auto before = made.find(name); before != made.end()) {
        all.insert(all.end(), before->second.begin(), before->second.end());
        continue;
      }
      if (const auto one = one_of(name, made); one >= 0) {
        all.push_back(one);
        continue;
      }
      const auto [value, fresh] = values_.try_emplace(name);
      if (fresh) value->second = {input(name, operation, is_of_pairs(operation))};
      all.push_back(value->second.front());
    }
    if (all.empty()) base::fail_input("{}: operation {} reads nothing", at.card.name, operation.name);
    return all;
  }
  // "qkv.2": one result of an operation that makes several; -1 where it is not that.
  static int one_of(const std::string& name, const std::map<std::string, Results>& made) {
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos || name.size() != dot + 2 || name.back() < '0' || name.back() > '9') return -1;
    const auto before = made.find(name.substr(0, dot));
    const auto i = static_cast<size_t>(name.back() - '0');
    return before == made.end() || i >= before->second.size() ? -1 : before->second[i];
  }

  void add_card(const model::Card& card) {
    std::map<std::string, Results> made;  // by operation
    for (const BlockOp& operation : card.operations) {
      Place at{card, operation, &operation == &card.operations.back(), card.name + "." + operation.name};
      made[operation.name] = add_operation(at, taken(at, made));
    }
    for (size_t i = 0; i < card.writes.size() && !card.operations.empty(); ++i) {
      const Results& last = made.at(card.operations.back().name);
      if (i < last.size()) {
        values_[card.writes[i]] = {last[i]};
      } else if (const auto found = made.find(card.writes[i]); found != made.end()) {
        values_[card.writes[i]] = {found->second.front()};
      } else {
        base::fail_input("{}: its card lists no operation that makes {}", card.name, card.writes[i]);
      }
    }
  }

  Results add_operation(const Place& at, const std::vector<int>& inputs) {
    switch (at.operation.kind) {
      case BlockOp::Kind::product:
        return add_products(at, inputs.front());
      case BlockOp::Kind::attention:
        return {add_attention(at, inputs)};
      case BlockOp::Kind::norm:
        return add_norms(at, inputs);
      case BlockOp::Kind::elementwise:
        return add_elementwise(at, inputs);
      case BlockOp::Kind::multiply:
      case BlockOp::Kind::add:
        return {add_joint(at, inputs)};
      case BlockOp::Kind::lookup:
        return {add_lookup(at, inputs.front())};
      case BlockOp::Kind::other:
        break;
    }
    return {add_other(at, inputs)};
  }

  Results add_products(const Place& at, int x) {
    const BlockOp& o = at.operation;
    CAIRN_CHECK(!o.parameters.empty(), "{}: a product without a weight", at.name);
    std::set<int32_t> of_forms;  // small, and never sharded
    for (const auto& form : o.forms) {
      if (!form->stores_dense())
        base::fail_input("{}: its weight is {}, for which no placement is searched. Leave mesh.plan and tensor.plan out.", at.name,
                         form->name());
      for (const mesh::ParamId& id : form->parameters())
        for (int32_t k = 0; k < id.count; ++k) of_forms.insert(id.first + k);
    }
    const mesh::ParamId weight = o.parameters.front();
    std::vector<int> biases, adapters;
    for (size_t i = 1; i < o.parameters.size(); ++i)
      for (int32_t k = 0; k < o.parameters[i].count; ++k) {
        if (of_forms.contains(o.parameters[i].first + k)) continue;
        const int place = parameter(o.parameters[i].first + k);
        (tensor(place).shape.size() == 1 ? biases : adapters).push_back(place);
      }
    const auto count = static_cast<size_t>(weight.count);
    CAIRN_CHECK(biases.empty() || biases.size() == count, "{}: {} biases for {} weights", at.name, biases.size(), count);
    CAIRN_CHECK(o.pooled || adapters.size() == 2 * o.adapted.size(), "{}: {} adapters, and {} are placed", at.name, adapters.size(),
                o.adapted.size());
    int64_t all_out = 0;
    for (size_t i = 0; i < count; ++i)
      all_out += tensor(parameter(weight.first + static_cast<int32_t>(i))).shape.at(o.fan_in_fan_out ? 1 : 0);
    Results results;
    for (size_t i = 0; i < count; ++i) {
      const int w = parameter(weight.first + static_cast<int32_t>(i));
      const int64_t out = tensor(w).shape[o.fan_in_fan_out ? 1 : 0];
      const bool adapted = !o.pooled && std::count(o.adapted.begin(), o.adapted.end(), static_cast<int32_t>(i)) > 0;
      const std::string name = count == 1 ? at.name : fmt::format("{}.{}", at.name, i), result = at.result(i, count);
      int y =
          make({.name = name,
                .kind = GraphOp::Kind::product,
                .inputs = {x, w},
                .indices = o.fan_in_fan_out ? "bsk,kn->bsn" : "bsk,nk->bsn",
                .linear = GraphOp::Linear::each,
                .flops = o.flops_per_token * static_cast<double>(tokens_of(x)) * static_cast<double>(out) / static_cast<double>(all_out)},
               biases.empty() && !adapted ? result : name + ".product", with_width(x, out));
      for (size_t k = 0; adapted && k < o.adapted.size(); ++k)
        if (o.adapted[k] == static_cast<int32_t>(i))
          y = add_adapter({adapters[2 * k], adapters[2 * k + 1], o.adapter_scale}, x, y, name, biases.empty() ? result : name + ".adapted");
      if (!biases.empty())
        y = make({.name = name + ".bias", .kind = GraphOp::Kind::bias, .inputs = {y, biases[i]}, .indices = "bsn,n->bsn"}, result,
                 tensor(y).shape);
      results.push_back(y);
    }
    return results;
  }

  struct Adapter {
    int a, b;
    double scale;
  };
  // y + scale (x a^T) b^T.
  int add_adapter(const Adapter& adapter, int x, int y, const std::string& name, const std::string& result) {
    const auto product = [&](int in, int w, const std::string& called) {
      return make({.name = called,
                   .kind = GraphOp::Kind::product,
                   .inputs = {in, w},
                   .indices = "bsk,nk->bsn",
                   .linear = GraphOp::Linear::each,
                   .flops = 2.0 * static_cast<double>(tokens_of(in) * tensor(w).shape[0] * tensor(w).shape[1])},
                  called, with_width(in, tensor(w).shape[0]));
    };
    int added = product(product(x, adapter.a, name + ".adapter_a"), adapter.b, name + ".adapter_b");
    if (adapter.scale != 1)
      added = make({.name = name + ".adapter_scale",
                    .kind = GraphOp::Kind::scale,
                    .inputs = {added},
                    .indices = "bsn->bsn",
                    .linear = GraphOp::Linear::jointly,
                    .detail = fmt::format("{}", adapter.scale)},
                   name + ".adapter_scale", tensor(added).shape);
    return make({.name = name + ".adapter_add",
                 .kind = GraphOp::Kind::add,
                 .inputs = {y, added},
                 .indices = "bsn,bsn->bsn",
                 .linear = GraphOp::Linear::jointly},
                result, tensor(y).shape);
  }

  int add_attention(const Place& at, const std::vector<int>& inputs) {
    const BlockOp& o = at.operation;
    std::vector<int> heads, bias;
    for (const int one : inputs) (of_pairs_.count(one) ? bias : heads).push_back(one);
    if (o.heads <= 0 || o.key_heads <= 0 || o.heads % o.key_heads != 0 || (heads.size() != 1 && heads.size() != 3) || bias.size() > 1)
      base::fail_input(
          "{}: an attention of {} values with {} query and {} key heads: it takes queries, keys and values, or one that is all "
          "three stacked, and at most one bias, and as many query heads for each key head",
          at.name, inputs.size(), o.heads, o.key_heads);
    const bool stacked = heads.size() == 1;
    const int64_t units = stacked ? o.heads + 2 * o.key_heads : o.heads, group = o.heads / o.key_heads;
    if (width(heads[0]) % units != 0) base::fail_input("{}: a width of {} for {} heads", at.name, width(heads[0]), units);
    const int64_t unit = width(heads[0]) / units, q = o.heads * unit, kv = o.key_heads * unit;
    const Grain of_queries{.unit = unit, .group = group}, of_keys{.unit = unit, .shared = group > 1};
    if (stacked) {
      set_grain(graph_, heads[0], 2, {.unit = unit, .sections = {q, kv, kv}});
    } else {
      if (width(heads[1]) != kv || width(heads[2]) != kv)
        base::fail_input("{}: keys of width {} and values of width {} for {} heads of {}", at.name, width(heads[1]), width(heads[2]),
                         o.key_heads, unit);
      set_grain(graph_, heads[0], 2, of_queries);
      set_grain(graph_, heads[1], 2, of_keys);
      set_grain(graph_, heads[2], 2, of_keys);
    }
    if (!bias.empty()) set_grain(graph_, bias[0], 2, {.group = group});
    // Elementwise operations on heads (rotary embedding) may depend on the position in the sequence.
    for (GraphOp& op : graph_.ops)
      if (op.kind == GraphOp::Kind::elementwise && std::count(heads.begin(), heads.end(), op.output) > 0) op.whole = "s";
    const auto batch = static_cast<double>(tensor(heads[0]).shape[0]), queries = static_cast<double>(tensor(heads[0]).shape[1]),
               keys = static_cast<double>(tensor(heads.back()).shape[1]);
    const double pairs = batch * (o.causal ? queries * (queries + 1) / 2 : queries * keys);
    heads.insert(heads.end(), bias.begin(), bias.end());
    const int mixed = make({.name = at.name,
                            .kind = GraphOp::Kind::attention,
                            .inputs = heads,
                            .indices = std::string(stacked ? "bsh" : "bsh,bth,bth") + (bias.empty() ? "" : ",sth") + "->bsh",
                            .whole = "st",
                            .flops = o.flops_per_pair * pairs,
                            .heads = o.heads,
                            .key_heads = o.key_heads,
                            .causal = o.causal},
                           at.result(0, 1), with_width(heads[0], q));
    set_grain(graph_, mixed, 2, of_queries);
    return mixed;
  }

  Results add_norms(const Place& at, const std::vector<int>& inputs) {
    const std::vector<int> all = parameters(at.operation);
    const size_t n = inputs.size(), each = all.size() / n;
    CAIRN_CHECK(each * n == all.size() && (each == 1 || each == 2), "{}: {} parameters for {} norms", at.name, all.size(), n);
    Results results;
    for (size_t i = 0; i < n; ++i) {
      const int gain = all[i * each];
      const bool by_head = width(gain) != width(inputs[i]);  // then heads are independent of each other
      if (by_head && width(inputs[i]) % width(gain) != 0)
        base::fail_input("{}: a norm over {} of a value of width {}", at.name, width(gain), width(inputs[i]));
      GraphOp op{.name = n == 1 ? at.name : fmt::format("{}.{}", at.name, i),
                 .kind = GraphOp::Kind::norm,
                 .inputs = {inputs[i], gain},
                 .indices = by_head ? "bsh,n" : "bsn,n",
                 .whole = "n",
                 .flops = at.operation.flops_per_token * static_cast<double>(tokens_of(inputs[i])) / static_cast<double>(n),
                 .detail = each == 2 ? "layer" : "rms"};
      if (each == 2) op.inputs.push_back(all[i * each + 1]), op.indices += ",n";
      op.indices += by_head ? "->bsh" : "->bsn";
      if (by_head) by_head_.push_back({inputs[i], width(gain)});
      results.push_back(make(std::move(op), at.result(i, n), tensor(inputs[i]).shape));
    }
    return results;
  }

  Results add_elementwise(const Place& at, const std::vector<int>& inputs) {
    const size_t n = inputs.size();
    Results results;
    for (size_t i = 0; i < n; ++i)
      results.push_back(make({.name = n == 1 ? at.name : fmt::format("{}.{}", at.name, i),
                              .kind = GraphOp::Kind::elementwise,
                              .inputs = {inputs[i]},
                              .indices = "bsn->bsn",
                              .flops = at.operation.flops_per_token * static_cast<double>(tokens_of(inputs[i])) / static_cast<double>(n),
                              .detail = at.operation.name},
                             at.result(i, n), tensor(inputs[i]).shape));
    return results;
  }

  int add_joint(const Place& at, const std::vector<int>& inputs) {
    const bool sum = at.operation.kind == BlockOp::Kind::add;
    std::vector<int64_t> shape = tensor(inputs[0]).shape;
    if (const int64_t out = at.operation.width; out > 0 && inputs.size() == 1 && !sum) {
      if (shape[2] % out != 0) base::fail_input("{}: a width of {} is not several times {}", at.name, shape[2], out);
      set_grain(graph_, inputs[0], 2, {.sections = std::vector<int64_t>(static_cast<size_t>(shape[2] / out), out)});
      shape[2] = out;
    }
    return make({.name = at.name,
                 .kind = sum ? GraphOp::Kind::add : GraphOp::Kind::multiply,
                 .inputs = inputs,
                 .indices = joined("bsn", inputs.size()) + "->bsn",
                 .linear = sum ? GraphOp::Linear::jointly : GraphOp::Linear::none,
                 .flops = at.operation.flops_per_token * static_cast<double>(tokens_of(inputs[0])),
                 .detail = sum ? "" : at.operation.name},
                at.result(0, 1), shape);
  }

  int add_lookup(const Place& at, int ids) {
    const BlockOp& o = at.operation;
    CAIRN_CHECK(o.parameters.size() == 1, "{}: {} tables", at.name, o.parameters.size());
    const int table = parameter(o.parameters.front().first);
    const bool pairs = is_of_pairs(o);
    const std::string read = names_read(at.card, o).front();
    const bool given = std::find(at.card.reads.begin(), at.card.reads.end(), read) != at.card.reads.end();
    GraphOp op{.name = at.name,
               .kind = GraphOp::Kind::lookup,
               .inputs = {table, ids},
               .indices = pairs ? "vh,st->sth" : "vn,bs->bsn",
               .flops = (pairs ? o.flops_per_pair : o.flops_per_token) * static_cast<double>(tokens_of(ids)),
               .detail = given ? "" : std::string(kByPosition)};
    std::vector<int64_t> shape = tensor(ids).shape;
    shape.push_back(width(table));
    const int rows = make(std::move(op), at.result(0, 1), std::move(shape));
    if (pairs) of_pairs_.insert(rows);
    return rows;
  }

  // Nothing is known about it, except perhaps that samples do not see each other, and heads neither: no other index may be split.
  int add_other(const Place& at, const std::vector<int>& inputs) {
    GraphOp op{.name = at.name,
               .inputs = inputs,
               .indices = "",
               .flops = at.operation.flops_per_token * static_cast<double>(tokens_of(inputs[0])),
               .detail = at.operation.name,
               .heads = at.operation.heads,
               .key_heads = at.operation.heads};
    const std::vector<int> own = parameters(at.operation);
    op.inputs.insert(op.inputs.end(), own.begin(), own.end());
    char next = 'A';
    const auto letters_for = [&](size_t dims) {
      std::string some;
      for (size_t i = 0; i < dims; ++i) some += next == 'Z' + 1 ? next = 'c' : next, ++next;
      return some;
    };
    const int64_t heads = at.operation.heads;
    const auto letters_of = [&](size_t dims, bool samples) {
      std::string some = letters_for(dims);
      if (samples && at.operation.by_sample) some[0] = 'b';
      if (samples && heads > 0) some.back() = 'h';
      return some;
    };
    for (const int one : op.inputs)
      op.indices += letters_of(tensor(one).shape.size(), tensor(one).kind != GraphTensor::Kind::parameter) + ",";
    op.indices.back() = '-';
    op.indices += ">" + letters_of(3, true);
    for (const char c : op.indices)
      if (std::isalpha(static_cast<unsigned char>(c)) && !(c == 'b' && at.operation.by_sample) && !(c == 'h' && heads > 0)) op.whole += c;
    CAIRN_CHECK(op.whole.size() <= 50, "{} has {} dims", at.name, op.whole.size());
    const int64_t out = at.operation.width > 0 ? at.operation.width : width(inputs[0]);
    const int made = make(std::move(op), at.result(0, 1), with_width(inputs[0], out));
    std::vector<int> by_head = inputs;
    by_head.push_back(made);
    for (const int one : by_head)
      if (heads > 0 && width(one) % heads == 0) set_grain(graph_, one, 2, {.unit = width(one) / heads});
    return made;
  }

  void add_loss(int logits) {
    const std::vector<int64_t> rows{tensor(logits).shape[0], tensor(logits).shape[1]};
    GraphTensor targets{.name = "targets", .shape = rows, .kind = GraphTensor::Kind::input, .differentiable = false, .item_bytes = 8};
    const int wanted = graph_.add(std::move(targets));
    const auto tokens = static_cast<double>(tokens_of(logits));
    const int losses = make({.name = "cross_entropy",
                             .kind = GraphOp::Kind::cross_entropy,
                             .inputs = {logits, wanted},
                             .indices = "bsv,bs->bs",
                             .inner = "v",
                             .flops = 5 * tokens * static_cast<double>(width(logits)),
                             .inner_elements = 2 * tokens},  // the sum of exponentials and the target's logit (model/losses/row_losses.h)
                            "losses", rows);
    make({.name = "mean", .kind = GraphOp::Kind::mean, .inputs = {losses}, .indices = "bs->", .linear = GraphOp::Linear::jointly}, "loss",
         {});
  }

  const Description& description_;
  PassShape shape_;
  Sequences sequences_;
  OpGraph graph_;
  std::vector<int> parameters_;                   // by place in the model: the tensor; -1: not there yet
  std::map<std::string, Results> values_;         // by name: the tensor
  std::set<int> of_pairs_;                        // values [queries, keys, heads]
  std::vector<std::pair<int, int64_t>> by_head_;  // values whose heads are normed, and the width of these
};

}  // namespace

Description describe(const model::Model& model) {
  Description description{.cards = {}, .parameters = model.parameters()};
  for (const auto& block : model.blocks()) description.cards.push_back(block->card());
  return description;
}

OpGraph graph_of(const Description& description, const PassShape& shape, bool loss) {
  OpGraph graph = CardGraph(description, shape).make(loss);
  check(graph);
  return graph;
}

}  // namespace cairn::planner
