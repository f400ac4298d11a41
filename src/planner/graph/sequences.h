#pragma once
#include <map>
#include <string>
#include <vector>

#include "model/card.h"

namespace cairn::planner {

// The names that an operation of a card reads, where the card leaves them out too.
std::vector<std::string> names_read(const model::Card& card, const model::BlockOp& operation);

// Whether a lookup is by an id for each pair of a query and a key: what it costs is said by pairs.
bool is_of_pairs(const model::BlockOp& operation);

// Which values of a model lie along the same sequence: an encoder's and a decoder's have lengths of their own, and only an attention takes
// from one what it makes for the other.
class Sequences {
 public:
  explicit Sequences(const std::vector<model::Card>& cards);
  // Whether a value lies along the sequence of what the last block writes.
  bool is_main(const std::string& value) const;

 private:
  std::string first_of(std::string value) const;
  void join(const std::string& a, const std::string& b);

  std::map<std::string, std::string> before_;  // by value: another of the same sequence
  std::string main_;
};

}  // namespace cairn::planner
