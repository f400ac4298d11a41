#include "harness/broken_transport.h"

#include <cstring>
#include <iterator>
#include <list>
#include <utility>

#include "comm/forwarding_transport.h"

namespace cairn::harness {
namespace {

using comm::Completion;
using comm::Envelope;
using comm::Purpose;
using comm::Transfer;
using std::chrono::nanoseconds;

constexpr int kNowAndThen = 5;  // every so many receives

class BrokenTransport final : public comm::ForwardingTransport {
 public:
  BrokenTransport(std::unique_ptr<comm::Transport> inside, Bug bug) : ForwardingTransport(std::move(inside)), bug_(bug) {}

  Completion send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) override {
    return inside().send(to, numbered(envelope), purpose, data, bytes);
  }
  Completion recv(int from, const Envelope& envelope, void* into, int64_t bytes) override {
    if (!strikes(bytes)) return inside().recv(from, numbered(envelope), into, bytes);
    return take(from, envelope, into, bytes);
  }
  Completion recv_view(int from, const Envelope& envelope, int64_t bytes) override {
    if (!strikes(bytes)) return inside().recv_view(from, numbered(envelope), bytes);
    return take(from, envelope, nullptr, bytes);
  }
  void cancel(Transfer& transfer) override {
    transfer.done = true;
    pending_.remove_if([&](const Pending& one) { return one.outer.get() == &transfer; });
  }
  bool drive(const std::function<bool()>& done, nanoseconds until, const std::string& doing) override {
    const std::function<bool()> look = [&] {
      hand_over();
      return done();
    };
    return inside().drive(look, until, doing);
  }
  bool spin(const std::function<bool()>&) override { return false; }  // what is handed over is handed over in drive

 private:
  struct Pending {
    std::shared_ptr<Transfer> outer;
    Envelope envelope;
    std::shared_ptr<std::byte[]> bytes_here;
    int64_t bytes = 0;
    void* into = nullptr;  // null: a view is wanted
    Completion inner;      // last: it refers to what is above
  };

  Envelope numbered(Envelope envelope) const {
    if (bug_ == Bug::missed_sequence) envelope.sequence &= ~uint64_t{1};
    return envelope;
  }

  bool strikes(int64_t bytes) {
    if (bug_ == Bug::missed_sequence || bytes == 0) return false;
    return bug_ == Bug::swapped_order || ++receives_ % kNowAndThen == 0;
  }

  Completion take(int from, const Envelope& envelope, void* into, int64_t bytes) {
    Pending one;
    one.outer = std::make_shared<Transfer>();
    one.outer->peer = from;
    one.envelope = envelope;
    one.bytes_here = std::make_shared<std::byte[]>(static_cast<size_t>(bytes));
    one.bytes = bytes;
    one.into = into;
    one.inner = inside().recv(from, envelope, one.bytes_here.get(), bytes);
    const std::shared_ptr<Transfer> outer = one.outer;
    if (bug_ == Bug::dropped_wait) {
      outer->done = true;
      outer->view = one.bytes_here.get();
      outer->held = one.bytes_here;
    }
    pending_.push_back(std::move(one));
    return Completion(*this, outer);
  }

  void hand_over() {
    do {
      done_.run();
      for (auto one = pending_.begin(); one != pending_.end();) {
        const bool ripe = bug_ != Bug::lost_wakeup && bug_ != Bug::dropped_wait && one->inner.done();
        if (ripe && !one->outer->done && (bug_ != Bug::swapped_order || swap_with_another(*one))) finish(*one);
        one = ripe && one->outer->done ? pending_.erase(one) : std::next(one);
      }
    } while (!done_.empty());  // who was woken may have asked for more
  }

  // False where the other one is yet to come.
  bool swap_with_another(Pending& one) {
    for (Pending& other : pending_) {
      const bool same_place = other.envelope.key() == one.envelope.key() && other.bytes == one.bytes;
      if (&other == &one || !same_place || other.outer->peer == one.outer->peer) continue;
      if (!other.inner.done()) return false;
      std::swap(one.bytes_here, other.bytes_here);
      finish(other);
      return true;
    }
    return true;
  }

  void finish(Pending& one) {
    if (one.outer->done) return;
    if (one.inner.transfer() && one.inner.transfer()->error) return done_.fail(one.outer, *one.inner.transfer()->error);
    const int64_t bytes = bug_ == Bug::short_read ? one.bytes - 1 : one.bytes;
    if (bug_ == Bug::short_read) one.bytes_here[bytes] = std::byte(0x55);
    if (one.into) std::memcpy(one.into, one.bytes_here.get(), static_cast<size_t>(bytes));
    one.outer->view = one.bytes_here.get();
    one.outer->held = one.bytes_here;
    done_.finish(one.outer);
  }

  Bug bug_;
  int receives_ = 0;
  comm::CompletionQueue done_;
  std::list<Pending> pending_;
};

}  // namespace

std::unique_ptr<comm::Transport> broken(std::unique_ptr<comm::Transport> inside, Bug bug) {
  return std::make_unique<BrokenTransport>(std::move(inside), bug);
}

}  // namespace cairn::harness
