#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace cairn::comm {

// The nodes that were announced in this epoch: their rank, and whether they are still there.
class NodeDirectory {
 public:
  enum class Status : uint8_t { present, left, lost, disputed };
  struct Member {
    int rank = -1;
    Status status = Status::present;
    std::string why = {};  // of a lost or disputed node
    int culprit = -1;      // the rank that caused its loss
    bool operator==(const Member&) const = default;
  };

  void join(const std::string& node, int rank);  // a name that two ranks announce is disputed and cannot be used
  void leave(const std::string& node, int rank);
  std::vector<std::string> lose(int rank, const std::string& why, int culprit);  // returns the nodes that are lost with the rank
  void begin_epoch();                                                            // all nodes must announce themselves again

  const Member* find(std::string_view node) const;                   // null: not announced
  std::map<std::string, int> present() const;                        // node -> rank
  std::optional<Error> trouble(std::string_view node) const;         // why the node cannot be reached, if it is known to be gone
  std::string unknown(std::string_view node, uint64_t epoch) const;  // a sentence about a node that nobody announced

 private:
  std::map<std::string, Member, std::less<>> members_;
  std::map<std::string, Member, std::less<>> before_;  // of the previous epoch, at its end
};

}  // namespace cairn::comm
