#include <map>
#include <set>
#include <string>
#include <string_view>

#include "base/random.h"
#include "planner/graph/described_models.h"

namespace cairn::planner {
namespace {

// Words of random letters, never the same twice.
class Scrambler {
 public:
  explicit Scrambler(uint64_t seed, std::string_view purpose) : random_(base::Random(seed).for_purpose(purpose)) {}

  // The same word for the same name.
  std::string of(const std::string& name) {
    const auto [found, fresh] = known_.try_emplace(name);
    if (fresh) found->second = word();
    return found->second;
  }
  std::string word() {
    for (;;) {
      std::string name;
      for (int i = 0; i < 10; ++i) name += static_cast<char>('a' + random_.below(next_++, 26));
      if (used_.insert(name).second) return name;
    }
  }

 private:
  base::Random random_;
  uint64_t next_ = 0;
  std::map<std::string, std::string> known_;
  std::set<std::string> used_;
};

// Names of earlier operations of the card, and of their results ("qkv.2"), are renamed within the card; all other names are values.
std::string renamed(const std::string& read, const std::map<std::string, std::string>& made, Scrambler& values) {
  if (const auto found = made.find(read); found != made.end()) return found->second;
  const size_t dot = read.rfind('.');
  if (const auto found = made.find(read.substr(0, dot)); dot != std::string::npos && found != made.end())
    return found->second + read.substr(dot);
  return values.of(read);
}

}  // namespace

Description scrambled(const Description& description, uint64_t seed) {
  Scrambler names(seed, "names"), axes(seed, "axes");
  Description other;
  for (const model::Parameter& one : description.parameters) {
    model::Parameter changed{.name = names.word(), .shape = one.shape};
    for (const std::string& axis : one.axes) changed.axes.push_back(axes.of(axis));
    other.parameters.push_back(std::move(changed));
  }
  for (model::Card card : description.cards) {
    card.name = names.word();
    std::map<std::string, std::string> made;
    for (model::BlockOp& operation : card.operations) {
      for (std::string& read : operation.reads) read = renamed(read, made, names);
      for (std::string& axis : operation.axes) axis = axes.of(axis);
      operation.name = made[operation.name] = names.word();
    }
    for (std::vector<std::string>* list : {&card.reads, &card.optional_reads})
      for (std::string& value : *list) value = names.of(value);
    for (std::string& value : card.writes) {
      const auto found = made.find(value);
      value = found != made.end() && &value != &card.writes.front() ? found->second : names.of(value);
    }
    card.buffers.clear();
    other.cards.push_back(std::move(card));
  }
  return other;
}

}  // namespace cairn::planner
