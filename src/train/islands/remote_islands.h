#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/schema.h"
#include "comm/link_model.h"
#include "comm/net/key.h"
#include "sync/sync.h"

namespace cairn::comm {
class Bridge;
class World;
}  // namespace cairn::comm

namespace cairn::train {

struct Job;
struct Settings;

// The recipe's island.* keys, for islands that are separate worlds: each is started by its own command.
struct RemoteIslandOptions {
  int64_t number = -1;
  int64_t count = 0;
  int64_t founders = 0;
  std::string meet = {};
  std::string listen = {};
};
base::Schema<RemoteIslandOptions> remote_island_schema();
// Whether this run is one of several remote islands.
inline bool is_remote_island(const RemoteIslandOptions& options) { return options.number >= 0; }
void check_remote_island(const Settings& settings);

// What the command line adds to the recipe's keys.
struct RemoteIslandStart {
  comm::Key key{};
  std::optional<comm::LinkModel> links = {};
};

// Connects this island with the others, as long as the job lives. Rank 0 of the island owns the connections; remote() is what the sync rule
// works with on every rank.
class RemoteIslandHost {
 public:
  RemoteIslandHost(Job& job, comm::World& world, const RemoteIslandStart& start);
  ~RemoteIslandHost();
  const sync::RemoteIslands* remote() const { return &remote_; }

 private:
  std::unique_ptr<sync::FullParameterGather> full_parameters_;
  std::unique_ptr<comm::Bridge> bridge_;
  sync::RemoteIslands remote_;
};

}  // namespace cairn::train
