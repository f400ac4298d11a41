#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/schema.h"
#include "comm/key.h"
#include "comm/link_model.h"
#include "sync/sync.h"

namespace cairn::base {
class Stop;
}
namespace cairn::comm {
class World;
}

namespace cairn::train {

struct Job;
struct Settings;

// The recipe's island.* keys: where each island is started by itself.
struct AbroadOptions {
  int64_t number = -1;
  int64_t count = 0;
  int64_t founders = 0;
  std::string meet = {};
  std::string listen = {};
};
base::Schema<AbroadOptions> abroad_schema();
// Whether this run is one island out of several that are started each by itself.
inline bool is_abroad(const AbroadOptions& options) { return options.number >= 0; }
void check_abroad(const Settings& settings);

// What the command line adds, which is no matter of recipes.
struct AbroadStart {
  comm::Key key{};
  std::optional<comm::LinkModel> links = {};
  const base::Stop* stop = nullptr;
};

// How this island talks with the others, for as long as the job lives.
class AbroadRoom {
 public:
  AbroadRoom(Job& job, comm::World& world, const AbroadStart& start);
  ~AbroadRoom();
  const sync::Abroad* abroad() const { return &abroad_; }

 private:
  std::unique_ptr<sync::Wholes> wholes_;
  std::unique_ptr<comm::Bridge> bridge_;
  sync::Abroad abroad_;
};

}  // namespace cairn::train
