#include "planner/graph/sequences.h"

#include <set>

namespace cairn::planner {

std::vector<std::string> names_read(const model::Card& card, const model::BlockOp& operation) {
  if (!operation.reads.empty()) return operation.reads;
  if (&operation != &card.operations.front()) return {(&operation - 1)->name};
  return card.reads.empty() ? std::vector<std::string>{} : std::vector{card.reads.front()};
}

bool is_of_pairs(const model::BlockOp& operation) { return operation.kind == model::BlockOp::Kind::lookup && operation.flops_per_pair > 0; }

Sequences::Sequences(const std::vector<model::Card>& cards) {
  std::set<std::string> of_pairs;
  for (const model::Card& card : cards) {
    std::set<std::string> made;
    // Results of operations, by the name of the operation within its card.
    const auto value = [&](const std::string& name) {
      const std::string whole = name.substr(0, name.rfind('.'));
      return made.count(name) ? card.name + "/" + name : made.count(whole) ? card.name + "/" + whole : name;
    };
    for (const model::BlockOp& operation : card.operations) {
      const std::string result = card.name + "/" + operation.name;
      std::vector<std::string> read;
      for (const std::string& name : names_read(card, operation)) read.push_back(value(name));
      // Keys and values may be of another sequence; queries come first, and a bias is along theirs.
      const bool attention = operation.kind == model::BlockOp::Kind::attention;
      for (size_t i = 0; i < read.size(); ++i)
        if (!attention || i == 0 || of_pairs.count(read[i])) join(read[i], result);
      if (is_of_pairs(operation)) {
        of_pairs.insert(result);
        if (&operation == &card.operations.back()) of_pairs.insert(card.writes.begin(), card.writes.end());
      }
      made.insert(operation.name);
      main_ = result;
    }
    for (const std::string& written : card.writes)
      if (!card.operations.empty()) join(made.count(written) ? card.name + "/" + written : main_, written);
  }
}

std::string Sequences::first_of(std::string value) const {
  for (auto found = before_.find(value); found != before_.end() && found->second != value; found = before_.find(value))
    value = found->second;
  return value;
}

void Sequences::join(const std::string& a, const std::string& b) {
  const std::string first = first_of(a), second = first_of(b);
  if (first != second) before_[second] = first;
}

bool Sequences::is_main(const std::string& value) const { return first_of(value) == first_of(main_); }

}  // namespace cairn::planner
