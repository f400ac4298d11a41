#include "mesh/dtensor/index_rules.h"

#include <algorithm>
#include <limits>

#include "mesh/dtensor.h"

namespace cairn::mesh {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

double bytes_of(const PlacedOperand& one) {
  double bytes = static_cast<double>(one.item_bytes);
  for (const int64_t size : one.shape) bytes *= static_cast<double>(size);
  return bytes;
}

// Bytes sent, in units of (ranks - 1).
double cost_of_change(const PlacedOperand& one, const Placement::How& to, int ranks) {
  if (one.how == to) return 0;
  if (is_partial(to)) return kNever;
  const bool gathers = std::holds_alternative<Replicate>(to);
  if (is_partial(one.how)) return (gathers ? 2 : 1) * bytes_of(one);
  if (std::holds_alternative<Replicate>(one.how)) return 0;
  return gathers ? bytes_of(one) : bytes_of(one) / ranks;
}

class Choosing {
 public:
  Choosing(const IndexRule& rule, const std::vector<PlacedOperand>& operands, int ranks)
      : rule_(rule), operands_(operands), ranks_(ranks), best_{std::vector<Placement::How>(operands.size(), Replicate{}), Replicate{}} {
    for (size_t i = 0; i < operands.size(); ++i) cost_ += cost_of_change(operands[i], Replicate{}, ranks);
  }

  PlacementChoice choose() {
    std::string subscripts;
    for (const std::string& one : rule_.operands)
      for (const char subscript : one)
        if (subscript != ' ' && subscripts.find(subscript) == std::string::npos && rule_.whole.find(subscript) == std::string::npos)
          subscripts += subscript;
    for (const char subscript : subscripts)
      for (const Split& pattern : patterns(subscript)) try_split(subscript, pattern);
    try_partial();
    return best_;
  }

 private:
  // How operands are split along this index now. A partial operand may be reduced into the even split of the first index of the result.
  std::vector<Split> patterns(char subscript) const {
    std::vector<Split> found;
    bool partial = false;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const size_t at = rule_.operands[i].find(subscript);
      partial = partial || is_partial(operands_[i].how);
      if (at == std::string::npos) continue;
      if (const auto* split = std::get_if<Split>(&operands_[i].how); split && split->dim == static_cast<int64_t>(at))
        add(found, {0, split->pieces});
    }
    const size_t first = rule_.result.find_first_not_of(' ');
    if (partial && first != std::string::npos && rule_.result[first] == subscript)
      for (size_t i = 0; i < operands_.size(); ++i)
        if (const size_t at = rule_.operands[i].find(subscript); at != std::string::npos && operands_[i].shape[at] >= ranks_)
          add(found, even_split(0, operands_[i].shape[at], ranks_));
    return found;
  }

  static void add(std::vector<Split>& found, Split one) {
    if (std::find(found.begin(), found.end(), one) == found.end()) found.push_back(std::move(one));
  }

  void try_split(char subscript, const Split& pattern) {
    PlacementChoice choice;
    for (const std::string& one : rule_.operands) choice.operands.push_back(placed(one, subscript, pattern));
    choice.result =
        rule_.result.find(subscript) == std::string::npos ? Placement::How(Partial{}) : placed(rule_.result, subscript, pattern);
    consider(std::move(choice));
  }

  static Placement::How placed(const std::string& subscripts, char subscript, const Split& pattern) {
    const size_t at = subscripts.find(subscript);
    if (at == std::string::npos) return Replicate{};
    return Split{static_cast<int64_t>(at), pattern.pieces};
  }

  void try_partial() {
    using Linear = IndexRule::Linear;
    if (rule_.linear == Linear::no) return;
    const std::vector<Placement::How> whole(operands_.size(), Replicate{});
    if (rule_.linear == Linear::jointly) return consider({std::vector<Placement::How>(operands_.size(), Partial{}), Partial{}});
    for (size_t i = 0; i < (rule_.linear == Linear::first ? 1 : operands_.size()); ++i) {
      PlacementChoice choice{whole, Partial{}};
      choice.operands[i] = Partial{};
      consider(std::move(choice));
    }
  }

  double result_bytes() const {
    double bytes = static_cast<double>(operands_.front().item_bytes);
    for (const char subscript : rule_.result)
      for (size_t i = 0; i < operands_.size(); ++i)
        if (const size_t at = rule_.operands[i].find(subscript); subscript != ' ' && at != std::string::npos) {
          bytes *= static_cast<double>(operands_[i].shape[at]);
          break;
        }
    return bytes;
  }

  void consider(PlacementChoice choice) {
    double cost = is_partial(choice.result) ? result_bytes() : 0;
    for (size_t i = 0; i < operands_.size(); ++i) cost += cost_of_change(operands_[i], choice.operands[i], ranks_);
    if (cost >= cost_) return;
    cost_ = cost;
    best_ = std::move(choice);
  }

  const IndexRule& rule_;
  const std::vector<PlacedOperand>& operands_;
  int ranks_;
  double cost_ = 0;
  PlacementChoice best_;
};

}  // namespace

PlacementChoice choose_placements(const IndexRule& rule, const std::vector<PlacedOperand>& operands, int ranks) {
  return Choosing(rule, operands, ranks).choose();
}

IndexRule elementwise_rule(const std::vector<PlacedOperand>& operands, IndexRule::Linear linear) {
  size_t dims = 0;
  for (const PlacedOperand& one : operands) dims = std::max(dims, one.shape.size());
  std::string subscripts;
  for (size_t i = 0; i < dims; ++i) subscripts += static_cast<char>('a' + i);
  IndexRule rule{.operands = {}, .result = std::string(dims, ' '), .linear = linear};
  for (const PlacedOperand& one : operands) {
    std::string mine = subscripts.substr(dims - one.shape.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      if (one.shape[i] == 1) mine[i] = ' ';
      if (mine[i] != ' ') rule.result[dims - mine.size() + i] = mine[i];
    }
    rule.operands.push_back(std::move(mine));
  }
  return rule;
}

IndexRule reduction_rule(const PlacedOperand& operand, std::vector<int64_t> dims, bool keep) {
  const auto n = static_cast<int64_t>(operand.shape.size());
  for (int64_t& dim : dims) dim = dim < 0 ? dim + n : dim;
  IndexRule rule{.operands = {""}, .result = "", .linear = IndexRule::Linear::jointly};
  for (int64_t i = 0; i < n; ++i) {
    const char subscript = operand.shape[static_cast<size_t>(i)] == 1 ? ' ' : static_cast<char>('a' + i);
    rule.operands[0] += subscript;
    if (!dims.empty() && std::find(dims.begin(), dims.end(), i) == dims.end())
      rule.result += subscript;
    else if (keep)
      rule.result += ' ';
  }
  return rule;
}

}  // namespace cairn::mesh
