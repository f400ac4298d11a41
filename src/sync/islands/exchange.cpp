#include "sync/islands/exchange.h"

#include <array>
#include <chrono>
#include <cmath>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/islands/compressor.h"
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
    outcome_ = {merge_.bytes_sent(), merge_.included(),  merge_.stop(), static_cast<RoundEnding>(ending),
                merge_.note(),       merge_.least_note()};
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
                                                                       .note = message.note,
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
  double norm(const at::Tensor& mine) override {
    double sum = sum_of_squares(mine);
    if (model_group_.size() > 1)
      model_group_.all_reduce({&sum, 1, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::control, "norm"}).wait_host();
    return std::sqrt(sum);
  }
  at::Tensor mean_of_numbers(const at::Tensor& values, int64_t step, int32_t part) override {
    const MergeRule mean{};
    IslandMerge merge({.quorum = quorum_, .compressor = *exact_, .rule = mean, .step = step, .part = part, .admits = false}, values);
    at::Tensor merged = merge.wait();
    // The ranks of an island average with different ranks of others: all use the numbers of the first.
    std::vector<double> numbers(static_cast<size_t>(values.numel()) + 1);
    for (int64_t i = 0; merged.defined() && i < values.numel(); ++i) numbers[static_cast<size_t>(i)] = merged[i].item<double>();
    numbers.back() = merged.defined() ? 1 : 0;
    if (model_group_.size() > 1)
      model_group_.broadcast({numbers.data(), std::ssize(numbers), comm::Dtype::f64}, 0, {comm::Purpose::control, "numbers"}).wait_host();
    if (numbers.back() == 0) return {};
    merged = at::empty_like(values);
    for (int64_t i = 0; i < values.numel(); ++i) merged.mutable_data_ptr<float>()[i] = static_cast<float>(numbers[static_cast<size_t>(i)]);
    return merged;
  }

 private:
  const MergeRule& rule_;
  comm::Group& model_group_;
  const std::unique_ptr<const Compressor> exact_ = make_compressor({"fp32"});
  IslandMessenger messenger_;
  Quorum quorum_;
};

}  // namespace

double sum_of_squares(const at::Tensor& values) {
  if (!values.is_cpu() || !values.is_contiguous() || values.scalar_type() != at::kFloat)
    return values.to(at::kDouble).square().sum().item<double>();
  // In a fixed order. The square of a float is exact in double, so fused and separate operations agree.
  constexpr int64_t kLanes = 8;
  std::array<double, kLanes> sums{};
  const float* x = values.const_data_ptr<float>();
  const int64_t count = values.numel(), whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      sums[static_cast<size_t>(lane)] += static_cast<double>(x[i + lane]) * static_cast<double>(x[i + lane]);
  double sum = 0;
  for (const double one : sums) sum += one;
  for (int64_t i = whole; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

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
