// Replicas along several axes, each with a rule of its own: one Sync that forwards every hook.
#include <algorithm>

#include "base/check.h"
#include "mesh/write_barrier.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

class Chain final : public Sync {
 public:
  Chain(std::vector<std::unique_ptr<Sync>> rules, mesh::WriteBarrier* barrier) : rules_(std::move(rules)), barrier_(barrier) {}

  void gradient_ready(int64_t index) override {
    for (const auto& rule : rules_) rule->gradient_ready(index);
  }
  bool progress(std::chrono::nanoseconds at_most) override {
    mesh::before_writing_all(barrier_);
    bool moves = false;
    for (const auto& rule : rules_) moves = rule->progress(at_most) || moves;
    return moves;
  }
  comm::Work after_backward(const StepFacts& facts) override {
    mesh::before_writing_all(barrier_);
    std::vector<comm::Work> works;
    for (const auto& rule : rules_) works.push_back(rule->after_backward(facts));
    return comm::Work::all(std::move(works));
  }
  comm::Work after_step(const StepFacts& facts) override {
    mesh::before_writing_all(barrier_);
    std::vector<comm::Work> works;
    for (const auto& rule : rules_) works.push_back(rule->after_step(facts));
    return comm::Work::all(std::move(works));
  }
  void set_frozen(const std::vector<bool>& frozen) override {
    for (const auto& rule : rules_) rule->set_frozen(frozen);
  }
  void on_membership(const Membership& now) override {
    for (const auto& rule : rules_) rule->on_membership(now);
  }
  void finish() override {
    mesh::before_writing_all(barrier_);
    for (const auto& rule : rules_) rule->finish();
  }
  void leave() override {
    for (const auto& rule : rules_) rule->leave();
  }
  int64_t begin(int64_t steps_done) override {
    for (const auto& rule : rules_) steps_done = rule->begin(steps_done);
    return steps_done;
  }
  bool should_step(int64_t step) override {
    bool all = true;
    for (const auto& rule : rules_) all = rule->should_step(step) && all;
    return all;
  }
  std::vector<at::Tensor> global_parameters() override {
    std::vector<at::Tensor> found;
    for (const auto& rule : rules_) {
      std::vector<at::Tensor> own = rule->global_parameters();
      if (own.empty()) continue;
      CAIRN_CHECK(found.empty(), "two rules have global parameters");
      found = std::move(own);
    }
    return found;
  }
  std::vector<ElementState> elements(int64_t step) override {
    return gathered([&](Sync& rule) { return rule.elements(step); });
  }
  mesh::NamedTensors state() override {
    return gathered([](Sync& rule) { return rule.state(); });
  }
  StepMetrics metrics() override {
    return gathered([](Sync& rule) { return rule.metrics(); });
  }
  bool tracks_merge(int64_t step) const override {
    return std::any_of(rules_.begin(), rules_.end(), [&](const auto& rule) { return rule->tracks_merge(step); });
  }
  StepMetrics track_merge(int64_t step, const LossOf& loss_of) override {
    mesh::before_writing_all(barrier_);
    return gathered([&](Sync& rule) { return rule.tracks_merge(step) ? rule.track_merge(step, loss_of) : StepMetrics{}; });
  }
  MessageRounds* message_rounds() override {
    for (const auto& rule : rules_)
      if (MessageRounds* rounds = rule->message_rounds()) return rounds;
    return nullptr;
  }
  std::optional<int64_t> take_new_position() override {
    mesh::before_writing_all(barrier_);
    std::optional<int64_t> position;
    for (const auto& rule : rules_)
      if (const auto own = rule->take_new_position()) position = own;
    return position;
  }
  std::string interruption() const override { return first_text(&Sync::interruption); }
  std::string apart() const override { return first_text(&Sync::apart); }
  bool round_unfinished() const override {
    return std::any_of(rules_.begin(), rules_.end(), [](const auto& rule) { return rule->round_unfinished(); });
  }
  void request_stop() override {
    for (const auto& rule : rules_) rule->request_stop();
  }
  bool should_stop() const override {
    for (const auto& rule : rules_)
      if (rule->should_stop()) return true;
    return false;
  }

 private:
  std::string first_text(std::string (Sync::*ask)() const) const {
    for (const auto& rule : rules_)
      if (std::string text = ((*rule).*ask)(); !text.empty()) return text;
    return "";
  }
  template <typename Ask>
  auto gathered(Ask ask) -> decltype(ask(std::declval<Sync&>())) {
    decltype(ask(std::declval<Sync&>())) all;
    for (const auto& rule : rules_)
      for (auto& one : ask(*rule)) all.push_back(std::move(one));
    return all;
  }

  std::vector<std::unique_ptr<Sync>> rules_;
  mesh::WriteBarrier* barrier_;  // of rules that do not announce their writes; null: all do
};

}  // namespace

std::unique_ptr<Sync> make_chain(std::vector<std::unique_ptr<Sync>> rules, mesh::WriteBarrier* barrier) {
  if (rules.size() == 1 && !barrier) return std::move(rules.front());
  return std::make_unique<Chain>(std::move(rules), barrier);
}

}  // namespace cairn::sync
