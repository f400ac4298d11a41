// Ring attention, one way or both ways round. With n ranks there are n steps. At step s a rank processes the block that started s ranks
// behind it, sends that block to the next rank and receives the next block meanwhile. A block is passed on only as far as some rank sees
// its keys (ContextRoute), so contiguous splits and windows send less.
//
// Backward adds a second ring, one step behind: the gradient of a block starts at the first rank that sees it, each rank adds its own
// contribution, and the last one sends it to the owner.
//
// Both ways: two such rings side by side, each with half of every block (KeyPart). Where an operation of both goes to the same peer, that
// of the first ring comes first, on all ranks.
#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include <ATen/core/IListRef.h>

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

// One direction of the ring as this rank sees it. "Ahead" is where blocks go.
class Ring {
 public:
  Ring(const ContextCall& call, KeyPart part)
      : call_(call), part_(std::move(part)), routes_(context_routes(call.split, part_, call.queries.options)) {}

  int me() const { return call_.group.rank(); }
  int steps() const { return call_.group.size(); }
  int ahead(int distance) const { return place(part_.direction * distance); }
  int behind(int distance) const { return place(-part_.direction * distance); }
  const ContextRoute& route(int owner) const { return routes_[static_cast<size_t>(owner)]; }
  const ContextCall& call() const { return call_; }
  const ContextSplit& keys() const { return part_.keys; }
  int64_t rows(int owner) const { return held(part_.keys, owner); }
  // What this part has of the rows of this rank, along `dim`.
  at::Tensor own(const at::Tensor& x, int64_t dim) const { return x.narrow(dim, part_.first_rows[static_cast<size_t>(me())], rows(me())); }

 private:
  int place(int distance) const { return ((me() + distance) % steps() + steps()) % steps(); }

  const ContextCall& call_;
  KeyPart part_;
  std::vector<ContextRoute> routes_;
};

// The ring of key blocks.
class KeyRing {
 public:
  explicit KeyRing(const Ring& ring) : ring_(ring), current_(room_for(ring.me())) {
    const ContextCall& call = ring.call();
    pack_keys(current_->keys.both, ring.own(call.k, 1), ring.own(call.v, 1));
    if (call.queries.documents.defined()) current_->keys.documents.copy_(ring.own(call.queries.documents, 1).transpose(0, 1));
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
    const int64_t rows = ring_.rows(owner), batch = call.k.size(0), kv_heads = call.k.size(2), head_dim = call.k.size(3);
    const int64_t key_bytes = rows * batch * 2 * kv_heads * head_dim * call.k.element_size();
    const int64_t document_bytes = call.queries.documents.defined() ? rows * batch * 8 : 0;
    RingBlock block{at::empty({document_bytes + key_bytes}, call.k.options().dtype(at::kByte)), {}};
    block.keys.both =
        block.message.narrow(0, document_bytes, key_bytes).view(call.k.scalar_type()).view({rows, batch, 2, kv_heads, head_dim});
    if (call.queries.documents.defined())
      block.keys.documents = block.message.narrow(0, 0, document_bytes).view(at::kLong).view({rows, batch});
    block.keys.segments = segments(ring_.keys(), owner);
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
    return at::empty({ring_.rows(owner), k.size(0), 2, k.size(2), k.size(3)}, options_);
  }

  const Ring& ring_;
  at::TensorOptions options_;
  at::Tensor arriving_, own_, home_;
  std::vector<comm::Work> moving_;
};

std::deque<Ring> rings_of(const ContextCall& call, bool both_ways) {
  std::deque<Ring> rings;
  for (KeyPart& part : key_parts(call.split, both_ways)) rings.emplace_back(call, std::move(part));
  return rings;
}

}  // namespace

std::vector<KeyPart> key_parts(const ContextSplit& split, bool both_ways) {
  const std::vector<int64_t> none(split.pieces.size());
  if (!both_ways) return {{split, none, 1}};
  const ContextSplit empty{split.length, std::vector<std::vector<mesh::Interval>>(split.pieces.size())};
  KeyPart first{empty, none, 1}, second{empty, none, -1};
  for (size_t c = 0; c < split.pieces.size(); ++c) {
    const int64_t half = (held(split, static_cast<int>(c)) + 1) / 2;
    int64_t left = half;
    for (const mesh::Interval& piece : split.pieces[c]) {
      const int64_t here = std::min(left, piece.length());
      if (here > 0) first.keys.pieces[c].push_back({piece.begin, piece.begin + here});
      if (here < piece.length()) second.keys.pieces[c].push_back({piece.begin + here, piece.end});
      left -= here;
    }
    second.first_rows[c] = half;
  }
  return {first, second};
}

std::vector<ContextRoute> context_routes(const ContextSplit& split, const KeyPart& part, const kernels::AttentionOptions& options) {
  const int n = static_cast<int>(split.pieces.size());
  std::vector<ContextRoute> routes(split.pieces.size());
  for (int owner = 0; owner < n; ++owner)
    for (int distance = 1; distance < n; ++distance) {
      const int reader = ((owner + part.direction * distance) % n + n) % n;
      if (!sees(split, part.keys, options, reader, owner)) continue;
      ContextRoute& route = routes[static_cast<size_t>(owner)];
      if (route.first == 0) route.first = distance;
      route.last = distance;
    }
  return routes;
}

void ring_forward(ContextForward& forward, const ContextCall& call, bool both_ways) {
  const std::deque<Ring> rings = rings_of(call, both_ways);
  std::deque<KeyRing> keys;
  for (const Ring& ring : rings) keys.emplace_back(ring);
  for (int step = 0; step < call.group.size(); ++step) {
    for (KeyRing& one : keys) one.start(step);
    for (const KeyRing& one : keys)
      if (one.current()) forward.add(*one.current(), [&] { call.group.progress(); });
    for (KeyRing& one : keys) one.finish();
  }
}

at::Tensor ring_backward(ContextBackward& backward, const ContextCall& call, bool both_ways) {
  const std::deque<Ring> rings = rings_of(call, both_ways);
  const at::TensorOptions wide = kernels::is_half_precision(call.k) ? call.k.options().dtype(at::kFloat) : call.k.options();
  std::deque<KeyRing> keys;
  std::deque<GradientRing> gradients;
  for (const Ring& ring : rings) keys.emplace_back(ring), gradients.emplace_back(ring, wide);
  const int steps = call.group.size();
  for (int step = 0; step <= steps; ++step) {
    for (GradientRing& one : gradients) one.start(step);  // before the keys, in the order of the neighbour's sends
    for (KeyRing& one : keys)
      if (step < steps) one.start(step);
    std::vector<at::Tensor> parts(rings.size());
    for (size_t i = 0; i < rings.size(); ++i)
      if (keys[i].current()) parts[i] = backward.add(*keys[i].current(), [&] { call.group.progress(); });
    for (KeyRing& one : keys) one.finish();
    for (size_t i = 0; i < rings.size(); ++i) gradients[i].finish(step, parts[i]);
  }
  std::vector<at::Tensor> results;
  for (const GradientRing& one : gradients) results.push_back(one.result());
  return results.size() == 1 ? results[0] : at::cat(results);
}

}  // namespace cairn::model
