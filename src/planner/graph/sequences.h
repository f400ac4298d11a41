#pragma once
#include <map>
#include <string>
#include <vector>

#include "model/card.h"

namespace cairn::planner {

// The names that an operation of a card reads, also where the card leaves them out.
std::vector<std::string> names_read(const model::Card& card, const model::BlockOp& operation);

// Whether a lookup has an id for each pair of query and key (a relative position bias).
bool is_of_pairs(const model::BlockOp& operation);

// Which values of a model lie along the same sequence. Those of an encoder and a decoder have their own lengths; only an attention reads
// from one sequence and writes to the other.
class Sequences {
 public:
  explicit Sequences(const std::vector<model::Card>& cards);
  // Whether a value lies along the sequence of the model's output.
  bool is_main(const std::string& value) const;

 private:
  std::string first_of(std::string value) const;
  void join(const std::string& a, const std::string& b);

  std::map<std::string, std::string> before_;  // by value: another of the same sequence (union-find)
  std::string main_;
};

}  // namespace cairn::planner
