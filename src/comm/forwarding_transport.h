#pragma once
#include <memory>
#include <utility>

#include "comm/transport.h"

namespace cairn::comm {

// Forwards every call to another transport. Base class of wrappers that change one or two of them.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inside) : inside_(std::move(inside)) {}

  int rank() const override { return inside_->rank(); }
  int size() const override { return inside_->size(); }
  Completion send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override {
    return inside_->send(to, envelope, purpose, data, bytes);
  }
  Completion recv(int from, const Envelope& envelope, void* into, int64_t bytes) override {
    return inside_->recv(from, envelope, into, bytes);
  }
  Completion recv_view(int from, const Envelope& envelope, int64_t bytes) override { return inside_->recv_view(from, envelope, bytes); }
  Completion expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override {
    return inside_->expose(envelope, purpose, data, bytes);
  }
  Completion pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, PullMode mode, Dtype dtype) override {
    return inside_->pull(peer, envelope, offset, into, bytes, mode, dtype);
  }
  ShmGroup* shm_group(const std::vector<int>& ranks, uint64_t group) override { return inside().shm_group(ranks, group); }
  Chunking chunking(const std::vector<int>& ranks) const override { return inside_->chunking(ranks); }
  LinkFacts link_facts(const std::vector<int>& ranks) const override { return inside_->link_facts(ranks); }
  Completion timer(std::chrono::nanoseconds at) override { return inside_->timer(at); }
  void cancel(Transfer& transfer) override { inside_->cancel(transfer); }
  bool drive(const std::function<bool()>& done, std::chrono::nanoseconds until, const std::string& doing) override {
    return inside_->drive(done, until, doing);
  }
  void poll() override { inside_->poll(); }
  bool spin(const std::function<bool()>& done) override { return inside_->spin(done); }
  void publish_operation(const Envelope& starting) override { inside_->publish_operation(starting); }
  std::optional<Envelope> last_started(int rank) const override { return inside_->last_started(rank); }
  std::chrono::nanoseconds status_age(int rank) const override { return inside_->status_age(rank); }
  FlightRecorder* recorder() override { return inside_->recorder(); }
  const std::vector<LostPeer>& lost_peers() const override { return inside_->lost_peers(); }
  bool left(int rank) const override { return inside_->left(rank); }
  void fail(const std::string& reason, int culprit) override { inside_->fail(reason, culprit); }
  void on_early(std::function<void(int, const Envelope&)> tell) override { inside_->on_early(std::move(tell)); }
  std::shared_ptr<DeviceGroup> device_group(const std::vector<int>& ranks, uint64_t group) override {
    return inside_->device_group(ranks, group);
  }
  std::shared_ptr<void> allocate(int64_t bytes) override { return inside_->allocate(bytes); }
  const base::Clock& clock() const override { return inside_->clock(); }
  Ledger& ledger() override { return inside_->ledger(); }

 protected:
  Transport& inside() const { return *inside_; }

 private:
  std::unique_ptr<Transport> inside_;
};

}  // namespace cairn::comm
