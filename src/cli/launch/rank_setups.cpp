#include "cli/launch/rank_setups.h"

#include <algorithm>
#include <memory>
#include <unistd.h>

#include "base/check.h"
#include "cli/environment.h"
#include "comm/net/setup.h"
#include "comm/net/tls.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/siblings.h"

namespace cairn::cli {
namespace {

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
  if (key.empty())
    base::fail_input(
        "several machines need a key, so that nobody else can join: `cairn key run.key` makes one; copy it to every machine and add --key "
        "run.key (or set CAIRN_KEY to its path)");
  return std::make_unique<comm::Tls>(comm::read_key(key));
}

comm::RendezvousOptions rendezvous_options(const LaunchArguments& a, const std::string& place, const std::string& config_fingerprint,
                                           const base::Stop& stop, base::Terminal& terminal) {
  comm::RendezvousOptions options;
  options.endpoint = comm::parse_rendezvous_endpoint(place);
  options.address = a.address;
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
  if (place.nnodes == 1) return comm::make_net_setups(a.nproc);
  const std::unique_ptr<comm::Tls> tls = make_tls(a);
  const comm::NodeSpec spec{.node = place.node_rank, .nodes = place.nnodes, .count = a.nproc};
  return comm::rendezvous_nodes(spec, *tls, rendezvous_options(a, *place.rendezvous, config_fingerprint, stop, terminal));
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
