#include "sync/islands/exchange.h"

#include <chrono>

#include "base/check.h"
#include "comm/group.h"
#include "sync/islands/merge.h"
#include "sync/islands/messenger.h"
#include "sync/islands/quorum.h"
#include "sync/islands/replica_signature.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

class InWorldPendingExchange final : public PendingExchange {
 public:
  InWorldPendingExchange(const IslandMerge::Parts& parts, comm::Group& model_group, const at::Tensor& mine)
      : merge_(parts, mine), model_group_(model_group) {}
  bool progress() override { return merge_.progress(); }
  at::Tensor wait() override {
    at::Tensor merged = merge_.wait();
    // The ranks of an island decide with different ranks of others; all apply the round, or none does.
    auto ending = static_cast<int64_t>(merge_.ending());
    if (model_group_.size() > 1)
      model_group_.all_reduce({&ending, 1, comm::Dtype::i64}, comm::Reduce::max, {comm::Purpose::control, "end of a round"}).wait_host();
    outcome_ = {merge_.bytes_sent(), merge_.included(), merge_.stop(), static_cast<RoundEnding>(ending), merge_.least_note()};
    const bool applies = outcome_.ending == RoundEnding::decided || outcome_.ending == RoundEnding::alone;
    return applies ? merged : at::Tensor();
  }
  at::Tensor as_sent() override { return merge_.as_sent(); }
  int64_t step() const override { return merge_.step(); }

 private:
  IslandMerge merge_;
  comm::Group& model_group_;
};

// Each rank exchanges with the ranks that hold the same shard on other islands.
class InWorldExchange final : public IslandExchange {
 public:
  explicit InWorldExchange(const ExchangeParts& parts)
      : rule_(parts.rule),
        model_group_(parts.replica.model_group),
        messenger_({in_world_link(parts.replica.replica_group), signature_of(parts.options, parts.replica),
                    max_message_bytes(parts.replica), is_on_gpu(parts.replica)}),
        quorum_(messenger_, quorum_options(parts.options, parts.replica)) {}

  std::unique_ptr<PendingExchange> send(const FragmentMessage& message, const at::Tensor& mine) override {
    return std::make_unique<InWorldPendingExchange>(IslandMerge::Parts{.quorum = quorum_,
                                                                       .compressor = *message.compressor,
                                                                       .rule = rule_,
                                                                       .step = message.step,
                                                                       .part = message.part,
                                                                       .weight = message.weight,
                                                                       .note = message.seconds,
                                                                       .wants_to_stop = message.wants_to_stop,
                                                                       .in_background = mine.is_cuda()},
                                                    model_group_, mine);
  }
  bool wait(const std::function<bool()>& done, std::chrono::nanoseconds at_most) override {
    return messenger_.wait(done, messenger_.now() + at_most);
  }
  void close(int64_t step) override { quorum_.close(step); }
  void poll() override { messenger_.pump(); }
  std::string waiting_for() const override { return quorum_.waiting_for(); }

 private:
  const MergeRule& rule_;
  comm::Group& model_group_;
  IslandMessenger messenger_;
  Quorum quorum_;
};

}  // namespace

std::unique_ptr<PendingExchange> IslandExchange::expect(int, int64_t, int32_t) {
  CAIRN_CHECK(false, "islands of one world are all members from the start");
}

IslandExchange::StartPoint IslandExchange::begin_again(int64_t, const Lineage&) {
  CAIRN_CHECK(false, "islands of one world do not return to it");
}

std::unique_ptr<IslandExchange> make_exchange(ExchangeParts parts) {
  if (parts.replica.remote_islands) return make_remote_exchange(std::move(parts));
  return std::make_unique<InWorldExchange>(parts);
}

}  // namespace cairn::sync
