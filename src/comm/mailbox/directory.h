#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace cairn::comm {

// Where each node lives, as it was announced in this epoch, and what became of those that are gone.
class NodeDirectory {
 public:
  enum class Status : uint8_t { present, left, lost, disputed };
  struct Member {
    int rank = -1;
    Status status = Status::present;
    std::string why = {};  // of a lost one
    int culprit = -1;      // who caused its loss
    bool operator==(const Member&) const = default;
  };

  void join(const std::string& node, int rank);  // a name that a second rank claims is disputed, and of no use to anybody
  void leave(const std::string& node, int rank);
  std::vector<std::string> lose(int rank, const std::string& why, int culprit);  // the nodes that went with it
  void begin_epoch();                                                            // all have to announce themselves again

  const Member* find(std::string_view node) const;                   // null: not announced (yet)
  std::map<std::string, int> present() const;                        // node -> rank
  std::optional<Error> trouble(std::string_view node) const;         // why it cannot be reached, if it is known to be gone
  std::string unknown(std::string_view node, uint64_t epoch) const;  // a sentence on a node that nobody announced

 private:
  std::map<std::string, Member, std::less<>> members_;
  std::map<std::string, Member, std::less<>> before_;  // as the last epoch ended
};

}  // namespace cairn::comm
