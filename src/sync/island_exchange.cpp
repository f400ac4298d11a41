#include "sync/island_exchange.h"

#include <chrono>

#include "base/check.h"
#include "comm/group.h"
#include "sync/council.h"
#include "sync/island_abroad.h"
#include "sync/island_merge.h"
#include "sync/island_post.h"
#include "sync/options.h"
#include "sync/replica_signature.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

class VoyageInWorld final : public Voyage {
 public:
  VoyageInWorld(const IslandMerge::Parts& parts, const at::Tensor& mine) : merge_(parts, mine) {}
  bool progress() override { return merge_.progress(); }
  at::Tensor wait() override {
    at::Tensor merged = merge_.wait();
    outcome_ = {merge_.bytes_sent(), merge_.counted(), merge_.stop(), merge_.least_note()};
    return merged;
  }
  at::Tensor as_sent() override { return merge_.as_sent(); }
  int64_t step() const override { return merge_.step(); }

 private:
  IslandMerge merge_;
};

// Each rank talks with those that hold the same part on other islands.
class ExchangeInWorld final : public IslandExchange {
 public:
  explicit ExchangeInWorld(const ExchangeParts& parts)
      : rule_(parts.rule),
        post_({link_in_world(parts.replica.peers), signature_of(parts.options, parts.replica), message_bytes_most(parts.replica),
               is_on_gpu(parts.replica)}),
        council_(post_, std::chrono::nanoseconds(static_cast<int64_t>(parts.options.talk.timeout_s * 1e9))) {}

  std::unique_ptr<Voyage> send(const Cargo& cargo, const at::Tensor& mine) override {
    return std::make_unique<VoyageInWorld>(IslandMerge::Parts{.council = council_,
                                                              .wire = *cargo.wire,
                                                              .rule = rule_,
                                                              .step = cargo.step,
                                                              .part = cargo.part,
                                                              .weight = cargo.weight,
                                                              .note = cargo.seconds,
                                                              .wants_to_stop = cargo.wants_to_stop,
                                                              .in_background = mine.is_cuda()},
                                           mine);
  }
  bool wait(const std::function<bool()>& done, std::chrono::nanoseconds at_most) override {
    return post_.wait(done, post_.now() + at_most);
  }
  void close(int64_t step) override { council_.close(step); }

 private:
  const MergeRule& rule_;
  IslandPost post_;
  Council council_;
};

}  // namespace

std::unique_ptr<Voyage> IslandExchange::expect(int, int64_t, int32_t) {
  CAIRN_CHECK(false, "islands of one world are all there from the start");
}

std::unique_ptr<IslandExchange> make_exchange(ExchangeParts parts) {
  if (parts.replica.abroad) return make_exchange_abroad(std::move(parts));
  return std::make_unique<ExchangeInWorld>(parts);
}

}  // namespace cairn::sync
