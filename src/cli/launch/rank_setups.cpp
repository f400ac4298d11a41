#include "cli/launch/rank_setups.h"

#include <algorithm>
#include <memory>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "cli/environment.h"
#include "comm/net/interfaces.h"
#include "comm/net/listen.h"
#include "comm/net/setup.h"
#include "comm/net/tls.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/siblings.h"

namespace cairn::cli {
namespace {

constexpr const char* kNoKey =
    "several machines need a key, so that nobody else can join: `cairn key run.key` makes one; copy it to every machine and add --key "
    "run.key (or set CAIRN_KEY to its path)";
constexpr auto kSiblingsDeadline = std::chrono::seconds(120);

// Machines authenticate each other by a shared key or by certificates.
std::unique_ptr<comm::Tls> make_tls(const LaunchArguments& a) {
  const std::string key = a.key.empty() ? variable("CAIRN_KEY").value_or("") : a.key;
  const bool certified = !a.tls_authority.empty() || !a.tls_certificate.empty() || !a.tls_key.empty();
  if (certified && !a.key.empty()) base::fail_input("--key and --tls-...: machines recognise each other by one or the other, not both");
  if (certified) {
    if (a.tls_authority.empty() || a.tls_certificate.empty() || a.tls_key.empty())
      base::fail_input("--tls-authority, --tls-certificate and --tls-key: certificates need all three");
    return std::make_unique<comm::Tls>(comm::TlsFiles{a.tls_authority, a.tls_certificate, a.tls_key});
  }
  if (key.empty()) base::fail_input("{}", kNoKey);
  return std::make_unique<comm::Tls>(comm::read_key(key));
}

// The address at which this machine listens for the others.
std::string own_address_toward(const LaunchArguments& a, const comm::RendezvousEndpoint& endpoint) {
  if (!a.address.empty() && comm::is_own_address(a.address)) return a.address;
  return comm::address_to_listen(endpoint.host, endpoint.port);
}

void check_paths(const LaunchArguments& a, size_t interfaces) {
  if (interfaces < 2 && a.channels == 1)
    base::fail_input("--interfaces {}: nothing to plan with one interface and one channel. Name two interfaces, or add --channels 2.",
                     a.interfaces);
}

comm::RendezvousOptions rendezvous_options(const LaunchArguments& a, const std::string& place, const std::string& config_fingerprint,
                                           const base::Stop& stop, base::Terminal& terminal) {
  comm::RendezvousOptions options;
  options.endpoint = comm::parse_rendezvous_endpoint(place);
  options.address = a.address;
  if (!a.interfaces.empty()) {
    const std::vector<std::string> interfaces = comm::interface_addresses(a.interfaces);
    check_paths(a, interfaces.size());
    const std::string own = own_address_toward(a, options.endpoint);
    for (const std::string& one : interfaces)  // the one that leads to the others is used anyway
      if (one != own) options.more_interfaces.push_back(one);
    if (options.more_interfaces.size() == interfaces.size())
      base::fail_input("--interfaces {}: {}, which leads to {}, is not among them. Add it.", a.interfaces, own, options.endpoint.host);
  }
  options.config_fingerprint = config_fingerprint;
  options.tell = [&terminal](const std::string& what) { terminal.line(what); };
  options.stop = &stop;
  return options;
}

std::vector<comm::NetSetup> alone_on_this_machine(const std::vector<int>& ranks) {
  std::vector<comm::NetSetup> setups = comm::make_machine_setups(ranks, std::nullopt);
  std::vector<comm::RankAddress> addresses(ranks.size());
  for (const comm::NetSetup& setup : setups) addresses.at(static_cast<size_t>(setup.rank)) = setup.addresses[0];
  comm::set_addresses(setups, addresses, comm::fresh_key());
  return setups;
}

// The first rank of a machine makes the set-ups of all of them.
comm::NetSetup lead(const LaunchArguments& a, const Launch& launch, const std::string& config_fingerprint, const base::Stop& stop,
                    base::Terminal& terminal) {
  comm::SiblingHost siblings(launch.job, launch.local_size, launch.rank, kSiblingsDeadline);
  const std::vector<int> ranks = siblings.ranks();
  std::vector<comm::NetSetup> setups;
  if (launch.size == launch.local_size) {
    setups = alone_on_this_machine(ranks);
  } else {
    const std::string place = a.rendezvous.empty() ? launch.rendezvous.value_or("") : a.rendezvous;
    if (place.empty())
      base::fail_input(
          "this launcher does not say where the machines can meet: add --rendezvous HOST:PORT, an address of the machine of rank 0");
    const std::unique_ptr<comm::Tls> tls = make_tls(a);
    const comm::NodeSpec spec{.count = launch.local_size, .ranks = ranks, .size = launch.size};
    setups = comm::rendezvous_nodes(spec, *tls, rendezvous_options(a, place, config_fingerprint, stop, terminal));
  }
  std::vector<comm::Bundle> bundles;
  for (const comm::NetSetup& setup : setups) bundles.push_back({comm::to_bytes(setup), setup.fds()});
  siblings.hand_out(bundles);
  for (size_t i = 1; i < setups.size(); ++i) {
    for (const int fd : setups[i].fds()) {
      if (fd >= 0) ::close(fd);
    }
  }
  return setups.front();
}

}  // namespace

comm::NetOptions net_options(const LaunchArguments& a, std::optional<comm::LinkModel> links, const base::Stop& stop) {
  comm::NetOptions options{.channels = a.channels, .stop = &stop};
  options.links = std::move(links);
  return options;
}

NodePlace node_place(const LaunchArguments& a) {
  NodePlace place{.node_rank = std::max(a.node_rank, 0), .nnodes = a.nnodes, .rendezvous = std::nullopt};
  if (a.nnodes == 0) {
    if (const auto slurm = a.nproc_given ? detect_node(variable) : std::nullopt) {
      place = *slurm;
    } else {
      place.nnodes = 1;
    }
  }
  if (!a.rendezvous.empty()) place.rendezvous = a.rendezvous;
  if (place.nnodes == 1) {
    if (a.node_rank > 0) base::fail_input("--node-rank {}: there is one machine only; say how many there are with --nnodes", a.node_rank);
    return place;
  }
  if (a.nnodes > 0 && a.node_rank < 0)
    base::fail_input("--nnodes {}: which of them is this one? Say --node-rank 0 to {}", a.nnodes, a.nnodes - 1);
  if (place.node_rank >= place.nnodes)
    base::fail_input("--node-rank {}: of {} machines the last one is {}", place.node_rank, place.nnodes, place.nnodes - 1);
  if (!place.rendezvous)
    base::fail_input("--nnodes {}: where do they meet? Say --rendezvous HOST:PORT, an address of the machine with --node-rank 0",
                     place.nnodes);
  if (a.transport == "local")
    base::fail_input("--transport {}: several machines are joined by net (or by mpirun and --transport mpi)", a.transport);
  return place;
}

std::vector<comm::NetSetup> meet_and_set_up(const LaunchArguments& a, const NodePlace& place, const std::string& config_fingerprint,
                                            const base::Stop& stop, base::Terminal& terminal) {
  if (place.nnodes == 1) {
    const bool by_sockets = !a.links.empty();
    if (!a.interfaces.empty() || (a.channels > 1 && !by_sockets))
      base::fail_input("{}: nothing to plan on one machine, whose ranks share memory. It is for --nnodes 2 and more{}.",
                       a.interfaces.empty() ? fmt::format("--channels {}", a.channels) : "--interfaces " + a.interfaces,
                       a.interfaces.empty() ? "; --links plane=...,plane=... tries it out" : "");
    return comm::make_net_setups(a.nproc);
  }
  const std::unique_ptr<comm::Tls> tls = make_tls(a);
  const comm::NodeSpec spec{.node = place.node_rank, .nodes = place.nnodes, .count = a.nproc};
  return comm::rendezvous_nodes(spec, *tls, rendezvous_options(a, *place.rendezvous, config_fingerprint, stop, terminal));
}

comm::Key shared_key(const LaunchArguments& a) {
  if (!a.tls_authority.empty() || !a.tls_certificate.empty() || !a.tls_key.empty())
    base::fail_input("--tls-...: with train.on_loss = restart or shrink machines recognise each other by a key: use --key");
  const std::string key = a.key.empty() ? variable("CAIRN_KEY").value_or("") : a.key;
  if (key.empty()) base::fail_input("{}", kNoKey);
  return comm::read_key(key);
}

comm::NetSetup join_launched(const LaunchArguments& a, const Launch& launch, const std::string& config_fingerprint, const base::Stop& stop,
                             base::Terminal& terminal) {
  if (launch.local_rank == 0) return lead(a, launch, config_fingerprint, stop, terminal);
  comm::Sibling self(launch.job, launch.local_rank, launch.local_size, launch.rank, kSiblingsDeadline + std::chrono::seconds(300));
  const comm::Bundle bundle = self.collect();
  comm::NetSetup setup = comm::setup_from_bytes(bundle.bytes);
  setup.set_fds(bundle.files);
  return setup;
}

}  // namespace cairn::cli
