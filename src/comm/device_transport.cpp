#include "comm/device_transport.h"

#include <algorithm>
#include <utility>

namespace cairn::comm {
namespace {

using std::chrono::nanoseconds;

// Between two looks at the devices: short at first, since most operations are, and never long.
constexpr nanoseconds kLookFirst = std::chrono::microseconds(20);
constexpr nanoseconds kLookLast = std::chrono::milliseconds(1);

class DeviceTransport final : public Transport {
 public:
  DeviceTransport(std::unique_ptr<Transport> host, DeviceGroupMaker make) : host_(std::move(host)), make_(std::move(make)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  Completion send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override {
    return host_->send(to, envelope, purpose, data, bytes);
  }
  Completion recv(int from, const Envelope& envelope, void* into, int64_t bytes) override {
    return host_->recv(from, envelope, into, bytes);
  }
  Completion recv_view(int from, const Envelope& envelope, int64_t bytes) override { return host_->recv_view(from, envelope, bytes); }
  Completion expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override {
    return host_->expose(envelope, purpose, data, bytes);
  }
  Completion pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, Take take, Dtype dtype) override {
    return host_->pull(peer, envelope, offset, into, bytes, take, dtype);
  }
  Pieces pieces(const std::vector<int>& ranks) const override { return host_->pieces(ranks); }
  LinkFacts link_facts(const std::vector<int>& ranks) const override { return host_->link_facts(ranks); }
  Completion timer(nanoseconds at) override { return host_->timer(at); }
  void cancel(Transfer& transfer) override { host_->cancel(transfer); }

  bool drive(const std::function<bool()>& done, nanoseconds until, const std::string& doing) override {
    auto look = kLookFirst;
    while (advance()) {
      if (done()) return true;
      const auto now = host_->clock().now();
      if (now >= until) return false;
      const auto again = std::min(now + look, until);
      const Completion tick = host_->timer(again);  // an event of its own: where time is virtual, it makes time pass
      bool is_done = false;
      const auto done_or_look = [&] { return (is_done = done()) || tick.done(); };
      host_->drive(done_or_look, again, doing);
      if (is_done) return true;
      look = std::min(2 * look, kLookLast);
    }
    return host_->drive(done, until, doing);
  }

  void poll() override {
    host_->poll();
    advance();
  }

  bool spin(const std::function<bool()>& done) override {
    if (!advance()) return host_->spin(done);
    return host_->spin([&] { return advance(), done(); });
  }

  void show(const Envelope& starting) override { host_->show(starting); }
  std::optional<Envelope> doing(int rank) const override { return host_->doing(rank); }
  nanoseconds age_of_sight(int rank) const override { return host_->age_of_sight(rank); }
  const std::vector<Loss>& losses() const override { return host_->losses(); }
  bool left(int rank) const override { return host_->left(rank); }
  void fail(const std::string& reason, int culprit) override { host_->fail(reason, culprit); }
  void on_early(std::function<void(int, const Envelope&)> tell) override { host_->on_early(std::move(tell)); }

  std::shared_ptr<DeviceGroup> device_group(const std::vector<int>& ranks, uint64_t group) override {
    const auto made = make_(*host_, ranks, group);
    if (made) groups_.push_back(made);
    return made;
  }

  std::shared_ptr<void> allocate(int64_t bytes) override { return host_->allocate(bytes); }
  const base::Clock& clock() const override { return host_->clock(); }
  Ledger& ledger() override { return host_->ledger(); }

 private:
  bool advance() {
    bool under_way = false;
    std::erase_if(groups_, [&](const std::weak_ptr<DeviceGroup>& one) {
      const auto group = one.lock();
      if (group && group->advance()) under_way = true;
      return !group;
    });
    return under_way;
  }

  std::unique_ptr<Transport> host_;
  DeviceGroupMaker make_;
  std::vector<std::weak_ptr<DeviceGroup>> groups_;
};

}  // namespace

std::unique_ptr<Transport> make_device_transport(std::unique_ptr<Transport> host, DeviceGroupMaker make) {
  return std::make_unique<DeviceTransport>(std::move(host), std::move(make));
}

}  // namespace cairn::comm
