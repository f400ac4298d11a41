#include "comm/local/local.h"

#include <thread>
#include <utility>

#include "comm/local/network.h"

namespace cairn::comm {

LocalNetwork::LocalNetwork(int ranks, LocalOptions options) : net_(std::make_unique<Net>(ranks, std::move(options))) {}

LocalNetwork::~LocalNetwork() = default;

std::vector<std::exception_ptr> LocalNetwork::run(const std::function<void(World&)>& body) {
  const int n = net_->size();
  std::vector<std::exception_ptr> ends(static_cast<size_t>(n));
  const auto rank_main = [&](int rank) {
    try {
      WorldOptions options = net_->options().world ? net_->options().world(rank) : WorldOptions{};
      if (!net_->options().faults.empty()) {
        options.before_collective = [this, rank, also = std::move(options.before_collective)](int64_t number) {
          net_->before_collective(rank, number);
          if (also) also(number);
        };
      }
      std::unique_ptr<Transport> transport = net_->make_transport(rank);
      if (net_->options().wrap) transport = net_->options().wrap(std::move(transport));
      World world(std::move(transport), std::move(options));
      try {
        body(world);
      } catch (const Error& error) {
        world.fail(error);
        throw;
      }
    } catch (...) {  // the edge of the thread: the caller of run decides
      ends[rank] = std::current_exception();
    }
    net_->end(rank);
  };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < n; ++rank) threads.emplace_back(rank_main, rank);
  threads.clear();
  return ends;
}

Ledger LocalNetwork::ledger() const { return net_->ledger(); }

std::string LocalNetwork::event_log() const { return net_->event_log(); }

std::vector<bool> LocalNetwork::faults_fired() const { return net_->faults_fired(); }

std::vector<int64_t> LocalNetwork::cancelled() const { return net_->cancelled(); }

}  // namespace cairn::comm
