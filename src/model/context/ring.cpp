// Ring attention. With n ranks there are n steps. At step s a rank processes the block that started s ranks behind it, sends that block to
// the next rank and receives the next block meanwhile. A block is passed on only as far as some rank sees its keys (ContextRoute), so
// contiguous splits and windows send less.
//
// Backward adds a second ring, one step behind: the gradient of a block starts at the first rank that sees it, each rank adds its own
// contribution, and the last one sends it to the owner.
#include <algorithm>
#include <optional>
#include <utility>

#include "comm/group.h"
#include "kernels/aten.h"
#include "kernels/low_precision.h"
#include "model/context/forms.h"

namespace cairn::model {
namespace {

constexpr comm::Label kKeysLabel{comm::Purpose::activation, "keys and values"};
constexpr comm::Label kGradientLabel{comm::Purpose::activation, "gradients of keys and values"};

// A block and its message. Documents come first, so that both parts are aligned.
struct RingBlock {
  at::Tensor message;
  KeyBlock keys;
};

// The ring as this rank sees it.
class Ring {
 public:
  explicit Ring(const ContextCall& call) : call_(call), routes_(context_routes(call.split, call.queries.options)) {}

  int me() const { return call_.group.rank(); }
  int steps() const { return call_.group.size(); }
  int ahead(int distance) const { return (me() + distance) % steps(); }
  int behind(int distance) const { return (me() - distance % steps() + steps()) % steps(); }
  const ContextRoute& route(int owner) const { return routes_[static_cast<size_t>(owner)]; }
  const ContextCall& call() const { return call_; }

 private:
  const ContextCall& call_;
  std::vector<ContextRoute> routes_;
};

// The ring of key blocks.
class KeyRing {
 public:
  explicit KeyRing(const Ring& ring) : ring_(ring), current_(room_for(ring.me())) {
    const ContextCall& call = ring.call();
    pack_keys(current_->keys.both, call.k, call.v);
    if (call.queries.documents.defined()) current_->keys.documents.copy_(call.queries.documents.transpose(0, 1));
  }

  // This step's block; null where it was not passed on, because no rank from here on sees it.
  const KeyBlock* current() const { return current_ ? &current_->keys : nullptr; }

  // Starts to pass this step's block on, and to receive the next one.
  void start(int step) {
    comm::Group& group = ring_.call().group;
    if (const int owner = ring_.behind(step + 1); step < ring_.route(owner).last) {
      next_ = room_for(owner);
      moving_.push_back(group.recv(next_->message, ring_.behind(1), kKeysLabel));
    }
    if (current_ && step < ring_.route(ring_.behind(step)).last)
      moving_.push_back(group.send(current_->message, ring_.ahead(1), kKeysLabel));
  }

  void finish() {
    comm::Work::all(std::exchange(moving_, {})).wait();
    current_ = std::exchange(next_, std::nullopt);
  }

 private:
  RingBlock room_for(int owner) const {
    const ContextCall& call = ring_.call();
    const int64_t rows = held(call.split, owner), batch = call.k.size(0), kv_heads = call.k.size(2), head_dim = call.k.size(3);
    const int64_t key_bytes = rows * batch * 2 * kv_heads * head_dim * call.k.element_size();
    const int64_t document_bytes = call.queries.documents.defined() ? rows * batch * 8 : 0;
    RingBlock block{at::empty({document_bytes + key_bytes}, call.k.options().dtype(at::kByte)), {}};
    block.keys.both =
        block.message.narrow(0, document_bytes, key_bytes).view(call.k.scalar_type()).view({rows, batch, 2, kv_heads, head_dim});
    if (call.queries.documents.defined())
      block.keys.documents = block.message.narrow(0, 0, document_bytes).view(at::kLong).view({rows, batch});
    block.keys.segments = segments(call.split, owner);
    return block;
  }

  const Ring& ring_;
  std::optional<RingBlock> current_, next_;
  std::vector<comm::Work> moving_;
};

// The ring of gradients. They follow their blocks one step behind, so each transfer overlaps with a step's computation.
class GradientRing {
 public:
  GradientRing(const Ring& ring, at::TensorOptions options) : ring_(ring), options_(options) {}

  // Starts to receive the sum so far for this step's block, and this rank's own gradient once it is complete.
  void start(int step) {
    comm::Group& group = ring_.call().group;
    const int owner = ring_.behind(step);
    if (const ContextRoute& route = ring_.route(owner); step < ring_.steps() && route.first < step && step <= route.last) {
      arriving_ = room_for(owner);
      moving_.push_back(group.recv(arriving_, ring_.behind(1), kGradientLabel));
    }
    if (const ContextRoute& mine = ring_.route(ring_.me()); mine.last > 0 && step == mine.last + 1) {
      home_ = room_for(ring_.me());
      moving_.push_back(group.recv(home_, ring_.ahead(mine.last), kGradientLabel));
    }
  }

  // Adds this rank's contribution (undefined: it sees no key of the block) and sends the sum on.
  void finish(int step, at::Tensor part) {
    comm::Work::all(std::exchange(moving_, {})).wait();
    const at::Tensor arrived = std::exchange(arriving_, {});
    if (step == 0) {
      own_ = part;
      return;
    }
    if (step == ring_.steps()) return;
    const int owner = ring_.behind(step);
    const ContextRoute& route = ring_.route(owner);
    if (step < route.first || step > route.last) return;
    if (arrived.defined()) part = part.defined() ? part.add_(arrived) : arrived;
    moving_.push_back(ring_.call().group.send(part, step == route.last ? owner : ring_.ahead(1), kGradientLabel));
  }

  at::Tensor result() const { return home_.defined() ? own_.add_(home_) : own_; }

 private:
  at::Tensor room_for(int owner) const {
    const at::Tensor& k = ring_.call().k;
    return at::empty({held(ring_.call().split, owner), k.size(0), 2, k.size(2), k.size(3)}, options_);
  }

  const Ring& ring_;
  at::TensorOptions options_;
  at::Tensor arriving_, own_, home_;
  std::vector<comm::Work> moving_;
};

}  // namespace

void ring_forward(ContextForward& forward, const ContextCall& call) {
  const Ring ring(call);
  KeyRing keys(ring);
  for (int step = 0; step < ring.steps(); ++step) {
    keys.start(step);
    if (keys.current()) forward.add(*keys.current(), [&] { call.group.progress(); });
    keys.finish();
  }
}

at::Tensor ring_backward(ContextBackward& backward, const ContextCall& call) {
  const Ring ring(call);
  KeyRing keys(ring);
  GradientRing gradients(ring, kernels::is_half_precision(call.k) ? call.k.options().dtype(at::kFloat) : call.k.options());
  for (int step = 0; step <= ring.steps(); ++step) {
    gradients.start(step);  // before the keys, in the order of the neighbour's sends
    if (step < ring.steps()) keys.start(step);
    at::Tensor part;
    if (keys.current()) part = backward.add(*keys.current(), [&] { call.group.progress(); });
    keys.finish();
    gradients.finish(step, part);
  }
  return gradients.result();
}

}  // namespace cairn::model
