#include "sync/island_abroad.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "comm/bridge.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/council.h"
#include "sync/island_gate.h"
#include "sync/island_merge.h"
#include "sync/island_post.h"
#include "sync/options.h"
#include "sync/replica_signature.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

// What the island's first rank has beside the others.
struct Head {
  Head(const ExchangeParts& parts, comm::Bridge& bridge)
      : post({link_abroad(bridge, parts.replica.mates.world()), signature_of(parts.options, parts.replica),
              message_bytes_most(parts.replica), is_on_gpu(parts.replica)}),
        council(post, std::chrono::nanoseconds(static_cast<int64_t>(parts.options.talk.timeout_s * 1e9))),
        gate({bridge, post, council, parts.replica.mates.world().log(), parts.replica.abroad->founders, parts.outer_step}) {}
  IslandPost post;
  Council council;
  IslandGate gate;
};

// What the first rank tells the others of a round.
struct Told {
  enum Field : size_t { defined, counted, stop, bytes, fastest, give, kFields };
  std::array<double, kFields> fields{};
};

class ExchangeAbroad final : public IslandExchange {
 public:
  explicit ExchangeAbroad(ExchangeParts parts)
      : company_(parts.replica.mates),
        wholes_(parts.replica.abroad->wholes),
        stopping_(parts.replica.abroad->stopping),
        rule_(parts.rule),
        rows_(parts.rows),
        timeout_(static_cast<int64_t>(parts.options.talk.timeout_s * 1e9)) {
    for (const WholeParameter& one : parts.replica.model) elements_.push_back(one.elements);
    if (parts.replica.abroad->bridge) head_.emplace(parts, *parts.replica.abroad->bridge);
    CAIRN_CHECK(head_.has_value() == (company_.rank() == 0), "the first rank of an island has its bridge, and no other");
  }

  std::unique_ptr<Voyage> send(const Cargo& cargo, const at::Tensor& mine) override;
  std::unique_ptr<Voyage> expect(int fragment, int64_t step, int32_t part) override;
  bool wait(const std::function<bool()>& done, std::chrono::nanoseconds at_most) override {
    return !head_ || head_->post.wait(done, head_->post.now() + at_most);
  }
  void close(int64_t step) override {
    if (head_) head_->council.close(step);
  }
  void look() override {
    if (head_) head_->gate.look();
  }
  bool may_leave() const override { return true; }

  Met meet(int64_t steps_done) override {
    IslandGate::State state = gather_state();
    std::array<int64_t, 4> told{};  // the last: that there is something to tell
    const auto tell = [&] {
      if (company_.size() > 1)
        company_.broadcast({told.data(), 4, comm::Dtype::i64}, 0, {comm::Purpose::control, "where islands are"}).wait();
    };
    if (head_) {
      const Met met = head_->gate.enter(steps_done, state, [&] {
        if (stopping_ && stopping_()) base::fail_input("stopped while waiting for the other islands");
        tell();
      });
      told = {met.step, met.theirs, met.joined, 1};
      tell();
    }
    while (told[3] == 0) tell();
    for (size_t f = 0; told[1] != 0 && f < rows_.size(); ++f) {
      take(f, share(f, head_ ? state.anchors[f] : at::Tensor()), rows_[f].anchor);
      take(f, share(f, head_ ? state.momenta[f] : at::Tensor()), rows_[f].momentum);
    }
    return {told[0], told[1] != 0, told[2] != 0};
  }

  void landed(Voyage& voyage, int64_t now) override;

 private:
  friend class VoyageAbroad;

  int64_t elements_of(size_t f) const {
    int64_t all = 0;
    for (const size_t place : rows_[f].whole) all += elements_[place];
    return all;
  }

  // A fragment as a whole, on the first rank, from what each rank keeps of it.
  at::Tensor gather(size_t f, const at::Tensor& mine) const {
    if (!wholes_) return head_ ? mine.cpu().contiguous() : at::Tensor();
    std::vector<at::Tensor> parts;
    int64_t at = 0;
    size_t next = 0;
    for (const size_t place : rows_[f].whole) {
      at::Tensor own;
      if (next < rows_[f].own.size() && rows_[f].own[next] == place) {
        own = mine.narrow(0, at, rows_[f].own_elements[next]);
        at += rows_[f].own_elements[next++];
      }
      const at::Tensor whole = wholes_->gather(place, own);
      if (head_) parts.push_back(whole.reshape({-1}));
    }
    return head_ ? at::cat(parts) : at::Tensor();
  }
  // The first rank's row, on all.
  at::Tensor share(size_t f, at::Tensor whole) const {
    if (!head_) whole = at::empty({elements_of(f)}, at::kFloat);
    if (company_.size() > 1) company_.broadcast(whole, 0, {comm::Purpose::parameter, "from other islands"}).wait();
    return whole;
  }
  // This rank's part of it.
  void take(size_t f, const at::Tensor& whole, const at::Tensor& mine) const {
    if (!wholes_) {
      mine.copy_(whole);
      return;
    }
    int64_t from = 0, at = 0;
    size_t next = 0;
    for (const size_t place : rows_[f].whole) {
      if (next < rows_[f].own.size() && rows_[f].own[next] == place) {
        wholes_->take(place, whole.narrow(0, from, elements_[place]), mine.narrow(0, at, rows_[f].own_elements[next]));
        at += rows_[f].own_elements[next++];
      }
      from += elements_[place];
    }
  }

  IslandGate::State gather_state() const {
    IslandGate::State state;
    for (size_t f = 0; f < rows_.size(); ++f) {
      state.anchors.push_back(gather(f, rows_[f].anchor));
      state.momenta.push_back(gather(f, rows_[f].momentum));
    }
    return state;
  }

  comm::Group& company_;
  Wholes* wholes_;
  std::function<bool()> stopping_;
  const MergeRule& rule_;
  std::vector<FragmentRows> rows_;
  std::vector<int64_t> elements_;  // of whole parameters
  const std::chrono::nanoseconds timeout_;
  mutable std::optional<Head> head_;  // on the first rank
};

class VoyageAbroad final : public Voyage {
 public:
  VoyageAbroad(ExchangeAbroad& home, const Cargo& cargo) : home_(home), cargo_(cargo) {}

  void set_out(const at::Tensor& whole, bool in_background) {
    merge_ = std::make_unique<IslandMerge>(IslandMerge::Parts{.council = home_.head_->council,
                                                              .wire = *cargo_.wire,
                                                              .rule = home_.rule_,
                                                              .step = cargo_.step,
                                                              .part = cargo_.part,
                                                              .weight = cargo_.weight,
                                                              .note = cargo_.seconds,
                                                              .in_background = in_background},
                                           whole);
  }

  bool progress() override { return !home_.head_ || (merge_ ? merge_->progress() : home_.head_->gate.is_told(cargo_.step, cargo_.part)); }

  at::Tensor wait() override {
    Told told;
    at::Tensor whole;
    if (home_.head_) whole = arrive(told);
    home_.company_.broadcast({told.fields.data(), Told::kFields, comm::Dtype::f64}, 0, {comm::Purpose::control, "what a round came to"})
        .wait();
    outcome_ = {static_cast<int64_t>(told.fields[Told::bytes]), static_cast<int>(told.fields[Told::counted]), false,
                told.fields[Told::fastest]};
    gives_ = told.fields[Told::give] != 0;
    if (told.fields[Told::defined] == 0) return {};
    gradient_ = home_.share(static_cast<size_t>(cargo_.fragment), whole);
    at::Tensor mine = at::empty({home_.rows_[static_cast<size_t>(cargo_.fragment)].anchor.numel()}, at::kFloat);
    home_.take(static_cast<size_t>(cargo_.fragment), gradient_, mine);
    return mine;
  }

  at::Tensor as_sent() override {
    const auto f = static_cast<size_t>(cargo_.fragment);
    at::Tensor mine = at::empty({home_.rows_[f].anchor.numel()}, at::kFloat);
    home_.take(f, home_.share(f, home_.head_ ? merge_->as_sent() : at::Tensor()), mine);
    return mine;
  }

  int64_t step() const override { return cargo_.step; }
  bool gives() const { return gives_; }
  // To newcomers, who had no part in it.
  void pass_on(int64_t now) const {
    if (!home_.head_) return;
    IslandSet members(static_cast<size_t>(home_.head_->post.size()));  // whoever came by this island came after rounds that it was told of
    for (size_t i = 0; merge_ && i < members.size(); ++i) members[i] = merge_->is_member(static_cast<int>(i));
    home_.head_->gate.tell(members, cargo_.step, cargo_.part, now, gradient_);
  }

 private:
  // On the first rank.
  at::Tensor arrive(Told& told) {
    Head& head = *home_.head_;
    at::Tensor whole;
    if (merge_) {
      whole = merge_->wait();
      told.fields[Told::counted] = merge_->counted();
      told.fields[Told::bytes] = static_cast<double>(merge_->bytes_sent());
      told.fields[Told::fastest] = merge_->least_note();
    } else {
      if (!head.post.wait([&] { return head.gate.is_told(cargo_.step, cargo_.part); }, head.post.now() + 5 * home_.timeout_))
        throw Error(Error::Kind::lost_peer,
                    fmt::format("nobody says what came of the round of step {}: start this island again, it will join", cargo_.step));
      whole = head.gate.told(cargo_.step, cargo_.part, home_.elements_of(static_cast<size_t>(cargo_.fragment)));
    }
    if (!head.council.members()[static_cast<size_t>(head.post.me())])
      throw Error(Error::Kind::lost_peer, "the other islands took this one for lost and go on without it: start it again, it will join");
    head.gate.look();
    told.fields[Told::defined] = whole.defined() ? 1 : 0;
    told.fields[Told::give] = head.gate.is_asked() ? 1 : 0;
    return whole;
  }

  ExchangeAbroad& home_;
  Cargo cargo_;
  std::unique_ptr<IslandMerge> merge_;  // on the first rank; null there: the sponsor tells what came of it
  at::Tensor gradient_;
  bool gives_ = false;
};

std::unique_ptr<Voyage> ExchangeAbroad::send(const Cargo& cargo, const at::Tensor& mine) {
  auto voyage = std::make_unique<VoyageAbroad>(*this, cargo);
  const at::Tensor whole = gather(static_cast<size_t>(cargo.fragment), mine);
  if (head_) voyage->set_out(whole, mine.is_cuda());
  return voyage;
}

std::unique_ptr<Voyage> ExchangeAbroad::expect(int fragment, int64_t step, int32_t part) {
  return std::make_unique<VoyageAbroad>(*this, Cargo{.fragment = fragment, .step = step, .part = part});
}

void ExchangeAbroad::landed(Voyage& voyage, int64_t now) {
  const auto& one = static_cast<VoyageAbroad&>(voyage);
  one.pass_on(now);
  if (!one.gives()) return;
  const IslandGate::State state = gather_state();
  if (head_) head_->gate.give(now, state);
}

}  // namespace

std::unique_ptr<IslandExchange> make_exchange_abroad(ExchangeParts parts) { return std::make_unique<ExchangeAbroad>(std::move(parts)); }

}  // namespace cairn::sync
