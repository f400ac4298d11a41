#include "harness/link_facts_transport.h"

#include <utility>

namespace cairn::harness {
namespace {

using comm::Completion;
using comm::Envelope;
using comm::Purpose;
using std::chrono::nanoseconds;

class LinkFactsTransport final : public comm::Transport {
 public:
  LinkFactsTransport(std::unique_ptr<comm::Transport> inside, const comm::LinkFacts& facts) : inside_(std::move(inside)), facts_(facts) {}

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
  Completion pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, comm::Take take,
                  comm::Dtype dtype) override {
    return inside_->pull(peer, envelope, offset, into, bytes, take, dtype);
  }
  comm::Pieces pieces(const std::vector<int>& ranks) const override { return inside_->pieces(ranks); }
  comm::LinkFacts link_facts(const std::vector<int>&) const override { return facts_; }
  Completion timer(nanoseconds at) override { return inside_->timer(at); }
  void cancel(comm::Transfer& transfer) override { inside_->cancel(transfer); }
  bool drive(const std::function<bool()>& done, nanoseconds until, const std::string& doing) override {
    return inside_->drive(done, until, doing);
  }
  void poll() override { inside_->poll(); }
  bool spin(const std::function<bool()>& done) override { return inside_->spin(done); }
  void show(const Envelope& starting) override { inside_->show(starting); }
  std::optional<Envelope> doing(int rank) const override { return inside_->doing(rank); }
  const std::vector<comm::Loss>& losses() const override { return inside_->losses(); }
  bool left(int rank) const override { return inside_->left(rank); }
  void fail(const std::string& reason, int culprit) override { inside_->fail(reason, culprit); }
  void on_early(std::function<void(int, const Envelope&)> tell) override { inside_->on_early(std::move(tell)); }
  std::shared_ptr<void> allocate(int64_t bytes) override { return inside_->allocate(bytes); }
  const base::Clock& clock() const override { return inside_->clock(); }
  comm::Ledger& ledger() override { return inside_->ledger(); }

 private:
  std::unique_ptr<comm::Transport> inside_;
  comm::LinkFacts facts_;
};

}  // namespace

std::unique_ptr<comm::Transport> with_link_facts(std::unique_ptr<comm::Transport> inside, const comm::LinkFacts& facts) {
  return std::make_unique<LinkFactsTransport>(std::move(inside), facts);
}

}  // namespace cairn::harness
