// The keeper: one process per node that keeps snapshots of its ranks in host memory. It is not a rank's child and shares no process group
// with them, so their memory faults and signals do not reach it. It never touches a GPU.
//
//   agent   makes the door (a Unix socket) before it starts ranks, and keeps it over all generations of ranks
//   ranks   inherit the door as CAIRN_KEEPER_FD and call through it (keeper_client.h)
//   keeper  starts when the first rank calls, and again if it was lost; ends with the run. If its agent is killed it stays for
//           `orphan_limit`, then ends
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace cairn::elastic {

struct KeeperOptions {
  std::vector<std::string> argv = {};  // the program, which calls keeper_main() where the variable kKeeperVariable is set
  std::string address = "127.0.0.1";   // an address of this machine, at which the keepers of other nodes reach it
  std::chrono::nanoseconds orphan_limit = std::chrono::seconds(60);
  std::function<void(const std::string& line)> tell = {};  // reports a keeper that was lost; called by the handle's thread
};

inline constexpr const char* kKeeperVariable = "CAIRN_KEEPER";       // of the keeper's own environment
inline constexpr const char* kKeeperFdVariable = "CAIRN_KEEPER_FD";  // of a rank's environment: the number of the inherited descriptor

// The agent's side. A thread of its own starts the keeper.
class KeeperHandle {
 public:
  KeeperHandle();  // no keeper: fd() is -1
  KeeperHandle(KeeperHandle&& other) noexcept;
  KeeperHandle& operator=(KeeperHandle&& other) noexcept;
  ~KeeperHandle();  // the run is over: the keeper ends

  // What ranks inherit. Close-on-exec: clear that flag in the child, and set CAIRN_KEEPER_FD to the number.
  int fd() const;
  int pid() const;  // -1: none runs

 private:
  friend KeeperHandle start_keeper(KeeperOptions options);
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Makes the door. The keeper process starts with the first call of a rank.
KeeperHandle start_keeper(KeeperOptions options);

// The keeper process itself: `setting` is the value of kKeeperVariable. Returns its exit code.
int keeper_main(const std::string& setting);

}  // namespace cairn::elastic
