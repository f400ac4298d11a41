// The keepers of all nodes of a world, as its ranks direct them. Ranks that share a keeper are a node; the first of them speaks for it.
// What all of them must decide the same way (which version is restored, what is rebuilt, which node is lost) follows from what all keepers
// have said to all ranks, never from what one of them has noticed.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elastic/keeper_client.h"
#include "elastic/redundancy.h"

namespace cairn::comm {
class Group;
}

namespace cairn::train {

// A snapshot in the memory of keepers.
struct MemoryVersion {
  elastic::VaultSpec spec;
  uint64_t serial = 0;
  int64_t step = 0;
  std::vector<int> sites;  // by node of its layout: the site that has its data; -1: nobody
};

class KeeperGroup {
 public:
  KeeperGroup(comm::Group& group, elastic::KeeperClient& keeper) : group_(group), keeper_(keeper) {}

  // Finds out which ranks share a keeper, and connects the keepers. `rate` in bytes per second; 0: no limit. Returns why there is no such
  // group, the same on all ranks; empty: there is one. Collective.
  // `limit`: for a keeper that has to be started.
  std::string meet(double rate, std::chrono::nanoseconds limit);
  comm::Group& group() const { return group_; }
  int rank() const;
  int sites() const { return static_cast<int>(nodes_.size()); }
  int site() const { return site_; }
  bool leads() const;
  const std::vector<int>& ranks_at(int site) const { return nodes_[static_cast<size_t>(site)].ranks; }
  int site_of(int rank) const;
  bool share_a_machine() const;  // two keepers
  uint64_t last_serial() const { return last_serial_; }

  // The newest version of which parity covers what is missing.
  struct Newest {
    std::optional<MemoryVersion> version;
    std::string beyond = {};  // there are versions, but too much of each is missing: what
    bool any = false;         // a keeper has something
  };
  Newest newest() const;
  // Checks its bytes in all keepers, and has damaged and lost ones rebuilt. Returns why it cannot be used, the same on all ranks.
  // Collective.
  std::string repair(MemoryVersion& version, std::vector<std::string>& said);
  // Everything else is dropped. Null: everything. Collective.
  std::string adopt(const MemoryVersion* version);
  // The first trouble of any rank, on all of them. Collective.
  std::string agree(const std::string& trouble) const;

 private:
  struct Node {
    std::string keeper, machine;
    std::vector<int> ranks;
    base::Json status;
  };
  std::string name_ranks(std::chrono::nanoseconds limit);
  std::string connect(double rate);
  std::string read_statuses();
  std::vector<elastic::RebuildOrder> orders_for(const MemoryVersion& version, const std::vector<std::string>& damage);
  std::string rebuild(const elastic::RebuildOrder& order);
  std::string ask(const base::Json& request, std::optional<base::Json>* answer = nullptr);

  comm::Group& group_;
  elastic::KeeperClient& keeper_;
  std::vector<Node> nodes_;
  int site_ = 0;
  uint64_t last_serial_ = 0, orders_ = 0;
};

}  // namespace cairn::train
