// Remote islands. Each island is a world of its own: it is started by its own command, has its own layout, and may join or leave while
// others train. Here is the trainer's side; sync/islands/ has the protocol of rounds.
//
//   connections   Rank 0 of each island owns a comm::Bridge. It listens, finds the other islands at island.meet, and authenticates them
//                 with the shared key. Islands compare a fingerprint of the settings that must be the same (shared_settings). The
//                 number of each start comes from a file in the run directory.
//   parameters    Layouts differ, so islands exchange full tensors. `gather` collects the slices of an island on its rank 0; `take_shard`
//                 cuts this rank's slice out of a received tensor.
//   a late island Sync::begin returns the step of the run in progress, and the island continues there (build.cpp).
#include "train/islands/remote_islands.h"

#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "comm/bridge/bridge.h"
#include "comm/consensus/raft_file.h"
#include "comm/group.h"
#include "comm/net/listen.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/islands/link.h"
#include "sync/needs.h"
#include "train/build.h"

namespace cairn::train {
namespace {

// Converts between full parameters and the slices of this island's ranks, for any layout.
class JobParameterGather final : public sync::FullParameterGather {
 public:
  explicit JobParameterGather(Job& job) : job_(job) {
    std::map<std::string, size_t> places;
    for (size_t i = 0; i < job.engine.model->parameters().size(); ++i) places[job.engine.model->parameters()[i].name] = i;
    for (const sync::FullParameter& one : job.engine.trained.full) parameters_.push_back(places.at(one.name));
    for (const parallel::ParameterSlice& piece : job.engine.store->pieces()) elements_[piece.parameter] = piece.elements;
  }

  at::Tensor gather(size_t place, const at::Tensor& mine) override {
    const size_t parameter = parameters_[place];
    if (job_.assembly->trivial()) return job_.engine.step_group->rank() == 0 ? mine.cpu() : at::Tensor();
    const at::Tensor whole = job_.assembly->gather(parameter, mine, job_.engine.model->parameters()[parameter].name);
    return whole.defined() ? whole.cpu() : whole;
  }

  void take_shard(size_t place, const at::Tensor& whole, const at::Tensor& mine) override {
    const size_t parameter = parameters_[place];
    if (mine.numel() == whole.numel()) {
      mine.copy_(whole.view(mine.sizes()));
      return;
    }
    const model::Parameter& of = job_.engine.model->parameters()[parameter];
    const at::Tensor local =
        parallel::cut_out(whole.view(of.shape), job_.engine.store->shard().parameters[parameter].local_shard).reshape({-1});
    const mesh::Interval own = elements_.at(parameter);
    mine.view({-1}).copy_(local.narrow(0, own.begin, own.length()));
  }

 private:
  Job& job_;
  std::vector<size_t> parameters_;             // for each trained parameter: its index in the model
  std::map<size_t, mesh::Interval> elements_;  // for each parameter: the elements that this rank keeps
};

// Island 0 listens at island.meet, where that is an address of its machine; other islands use any free port of the address from which they
// reach island.meet.
comm::RendezvousEndpoint listening_endpoint(const RemoteIslandOptions& options) {
  if (!options.listen.empty()) return comm::parse_rendezvous_endpoint(options.listen);
  const comm::RendezvousEndpoint meet = comm::parse_rendezvous_endpoint(options.meet);
  return {comm::address_to_listen(meet.host, meet.port), options.number == 0 ? meet.port : uint16_t{0}};
}

int founders_of(const RemoteIslandOptions& options) { return static_cast<int>(options.founders > 0 ? options.founders : options.count); }

// The settings that must be the same on all islands, one line for each key.
std::string shared_settings(const Settings& s) {
  std::vector<std::string> keys = sync::island_keys(s.island);
  const base::Section model = model::model_schema().section();
  const std::vector<base::Setting> shape = model::model_schema().values_of(s.model);
  for (size_t i = 0; i < shape.size(); ++i) keys.push_back(fmt::format("model.{} = {}", model.entries[i].key, base::to_toml(shape[i])));
  const base::Section pattern = model::pattern_schema().section();
  const std::vector<base::Setting> seen = model::pattern_schema().values_of(s.model.attention);
  for (size_t i = 0; i < seen.size(); ++i)
    keys.push_back(fmt::format("{}.{} = {}", pattern.name, pattern.entries[i].key, base::to_toml(seen[i])));
  keys.push_back(fmt::format("island.founders = {}", founders_of(s.remote)));
  keys.push_back(fmt::format("train.steps = {}", s.train.steps));
  if (s.train.epochs > 0) keys.push_back(fmt::format("train.epochs = {}", s.train.epochs));
  keys.push_back(fmt::format("train.global_batch = {}", s.train.global_batch));
  keys.push_back(fmt::format("train.seed = {}", s.train.seed));
  return fmt::format("{}", fmt::join(keys, "\n"));
}

}  // namespace

base::Schema<RemoteIslandOptions> remote_island_schema() {
  using O = RemoteIslandOptions;
  return {"island",
          "Remote islands: each island is started by its own command, has its own layout, and may join or leave while the others train.",
          {{"number", &O::number, "The number of this island, from 0. -1: no remote islands; mesh.island makes islands within one run.",
            base::at_least(-1)},
           {"count", &O::count, "The largest number of islands. Each trains on its share of every batch.", base::at_least(0)},
           {"founders", &O::founders,
            "The number of islands that wait for each other before the first step; others may join later. 0: all.", base::at_least(0)},
           {"meet", &O::meet, "HOST:PORT where islands find each other: the address of island 0, or of any island that is running."},
           {"listen", &O::listen,
            "ADDRESS:PORT where this island listens. Empty: the address from which it reaches `meet`, at the port of `meet` for island 0 "
            "and any free port for others. 0.0.0.0 means all addresses."}}};
}

void check_remote_island(const Settings& settings) {
  const RemoteIslandOptions& o = settings.remote;
  if (!is_remote_island(o)) {
    if (o.count > 0 || o.founders > 0 || !o.meet.empty() || !o.listen.empty())
      base::fail_input("island.*: these keys are for remote islands: set island.number (or --island) too");
    return;
  }
  if (settings.layout.mesh.island > 1)
    base::fail_input("mesh.island = {}: island {} is a remote island (--island): set the number of islands by --islands or island.count",
                     settings.layout.mesh.island, o.number);
  if (o.count < 2 || o.number >= o.count)
    base::fail_input("island.number = {}: there are {} islands, numbered from 0: set their number by --islands (at least 2)", o.number,
                     o.count);
  if (o.founders > o.count) base::fail_input("island.founders = {}: there are {} islands", o.founders, o.count);
  if (!sync::needs_of(settings.island.kind).remote_islands)
    base::fail_input("sync.island.kind = {}: remote islands need {} (--sync)", settings.island.kind,
                     fmt::join(sync::remote_rule_names(), " or "));
  if (o.meet.empty()) base::fail_input("island.meet: it is not set: pass --meet HOST:PORT, an address of island 0's machine");
  comm::parse_rendezvous_endpoint(o.meet);
  if (!o.listen.empty()) comm::parse_rendezvous_endpoint(o.listen);
}

RemoteIslandHost::RemoteIslandHost(Job& job, comm::World& world, const RemoteIslandStart& start) {
  const RemoteIslandOptions& o = job.config.settings.remote;
  if (world.size() > 1) full_parameters_ = std::make_unique<JobParameterGather>(job);
  remote_.full_parameters = full_parameters_.get();
  remote_.count = static_cast<int>(o.count);
  remote_.founders = founders_of(o);
  if (world.rank() != 0) return;
  const comm::RendezvousEndpoint place = listening_endpoint(o);
  comm::NextIncarnation incarnations;
  if (job.config.writes && !job.config.out.empty()) {
    base::make_folder(job.config.out);
    incarnations = comm::IncarnationFile(job.config.out / "incarnation");
  }
  bridge_ =
      std::make_unique<comm::Bridge>(comm::BridgeOptions{.site = static_cast<int>(o.number),
                                                         .sites = static_cast<int>(o.count),
                                                         .key = start.key,
                                                         .address = place.host,
                                                         .port = place.port,
                                                         .endpoints = {comm::parse_rendezvous_endpoint(o.meet)},
                                                         .config_fingerprint = shared_settings(job.config.settings),
                                                         .incarnations = incarnations,
                                                         .links = start.links,
                                                         .tell = [&log = world.log()](const std::string& what) { log.info("{}", what); }});
  remote_.make_link = [this, &world] { return sync::remote_link(*bridge_, world); };
  if (job.config.writes) remote_.log = std::make_shared<comm::RaftFile>(job.config.out / "islands.log");
  world.log().info("island {} of {}, at {}:{}", o.number, o.count, place.host, bridge_->port());
}

RemoteIslandHost::~RemoteIslandHost() = default;

}  // namespace cairn::train
