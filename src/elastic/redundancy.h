// The rules of a group of keepers, without sockets, clocks and threads: who sends which parity, when a version is complete, how a lost node
// is rebuilt. The owner (keeper_process.cpp, or a test with a network of its own) carries the messages.
//
//   save      all ranks of a node have written    -> FILLED: send block j of the data to node j, for each j
//             blocks of all others have come      -> READY:  say so to all, with checksums of the data
//             node 0 has heard that all are READY -> COMMIT to all: CLEAN
//   rebuild   of node k, stripe by stripe: a partial XOR travels along a chain of the survivors, each adds what it has, the last adds the
//             parity and sends the sum to the node that rebuilds. That one receives the lost bytes once, and compares checksums
//
// Messages between two keepers arrive in order and at most once, or not at all. What is lost leaves a version unfinished, never wrong.
// Sources of a rebuild are only read, so a rebuild that was interrupted is begun again.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "elastic/vault.h"

namespace cairn::elastic {

using Bytes = std::vector<std::byte>;
using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // begin, end

// What all keepers are told of a rebuild.
struct RebuildOrder {
  uint64_t id = 0;      // of this attempt
  VaultSpec spec;       // its index: the node that is rebuilt
  uint64_t serial = 0;  // of the version
  int64_t step = 0;
  int target = 0;          // the site that gets the bytes
  std::vector<int> sites;  // by node of the layout: the site that has it; -1: nobody
  Ranges data, parity;     // what is rebuilt of that node
  bool in_place = false;   // the target has the version and repairs it; otherwise it gets all of it
};
base::Json to_json(const RebuildOrder& order);
RebuildOrder rebuild_order_from(const base::Json& json);

struct RebuildProgress {
  bool known = false, done = false;
  std::string failure = {};
  int64_t received = 0, expected = 0;
};

// Mistakes that a test can plant, as data, to see that it finds them.
struct RedundancyFaults {
  bool overwrite_uncommitted = false;  // takes the buffer of a version for the next one although it is not CLEAN everywhere
  bool commit_alone = false;           // CLEAN without hearing from the others
};

class Redundancy {
 public:
  using Send = std::function<void(int site, Bytes message)>;
  using Tell = std::function<void(const std::string& line)>;

  explicit Redundancy(RedundancyFaults faults = {}) : faults_(faults) {}

  // A new group of keepers: this one is `site` of `sites`. Unfinished versions are dropped: their ranks are gone.
  void join(uint64_t epoch, int site, int sites, Send send, Tell tell);
  void arrived(int from, std::span<const std::byte> message);

  // Saving. `lay_out` makes the memory of a layout unless it is there; older layouts go once the first version of it is CLEAN.
  Vault& lay_out(const VaultSpec& spec);
  int begin(const std::string& vault, uint64_t serial, int64_t step);  // returns the buffer; every rank may call it
  void filled(const std::string& vault, uint64_t serial, int rank);
  bool in_flight(const std::string& vault) const;
  // Writing into a version has failed on this node, or its ranks are gone.
  void drop_unfinished();

  // Restoring. `adopt` drops everything but this version (serial 0: all), which becomes CLEAN.
  std::vector<const Vault*> vaults() const;
  Vault* find(const std::string& vault);
  // The segment that has a node's data: its own, or one that was rebuilt here for a node that is gone; null: neither.
  const Segment* data_of(const std::string& vault, int node, uint64_t serial) const;
  struct GuestData {
    std::string vault;
    int node = 0;
    uint64_t serial = 0;
  };
  std::vector<GuestData> guests() const;  // data of other nodes that was rebuilt here
  struct Damage {
    Ranges data, parity;
  };
  Damage verify(const std::string& vault, uint64_t serial);  // blocks with another checksum
  void rebuild(const RebuildOrder& order);
  RebuildProgress progress(uint64_t id) const;
  void adopt(const std::string& vault, uint64_t serial);

  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Message;
  struct Rebuild;
  struct Guest {
    std::string vault;
    int node = 0;
    uint64_t serial = 0;
    Segment data;
  };

  void send(int site, const Message& head, std::span<const std::byte> payload = {});
  Version* open_version(Vault& vault, uint64_t serial, int64_t step, int* buffer);
  void encode(Vault& vault, int buffer);
  void check_ready(Vault& vault, int buffer);
  void check_commit(Vault& vault, int buffer);
  void commit(Vault& vault, int buffer);
  void take_block(int from, const Message& head, std::span<const std::byte> payload);
  void take_ready(int from, const Message& head, std::span<const std::byte> payload);

  void prepare_target(Rebuild& one);
  void start_chains(Rebuild& one);
  void pass_on(Rebuild& one, int stripe, size_t position, int64_t offset, Bytes sum);
  void take_chain(const Message& head, std::span<const std::byte> payload);
  void store(Rebuild& one, int stripe, int64_t offset, std::span<const std::byte> bytes);
  void take_sums(const Message& head, std::span<const std::byte> payload);
  void finish(Rebuild& one);

  RedundancyFaults faults_;
  uint64_t epoch_ = 0;
  int site_ = 0, sites_ = 1;
  Send send_;
  Tell tell_;
  std::map<std::string, std::unique_ptr<Vault>> vaults_;
  std::vector<std::unique_ptr<Guest>> guests_;
  std::map<uint64_t, std::shared_ptr<Rebuild>> rebuilds_;
  std::vector<std::pair<int, Bytes>> early_;  // of a rebuild whose order has not come yet
  int64_t sent_bytes_ = 0;
};

}  // namespace cairn::elastic
