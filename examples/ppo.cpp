// Proximal policy optimization (Schulman et al., arXiv:1707.06347): keeping a pole upright on a cart (Barto, Sutton and Anderson, 1983).
// Two trainers share one deployer: the actor's loss is the clipped gain, the critic's the squared error of its returns.
// To be reached: a mean return of 80 in fresh episodes, of at most 100.
#include <cmath>

#include "examples/examples.h"
#include "examples/pole.h"
#include "kernels/aten.h"
#include "task/mlp.h"
#include "task/trainer.h"

namespace cairn::examples {
namespace {

constexpr int64_t kPoles = 16, kSteps = 128;
constexpr float kDiscount = 0.99F, kLambda = 0.95F;

struct Moment {
  std::array<float, 4> state{};
  int64_t action = 0;
  float log_likelihood = 0, advantage = 0, value = 0;  // value: first as the critic sees it, then as it should
  bool over = false;
};

at::Tensor states_of(std::span<const Moment> moments) {
  std::vector<float> all;
  for (const Moment& one : moments) all.insert(all.end(), one.state.begin(), one.state.end());
  return at::tensor(all).view({-1, 4});
}

// kSteps + 1 moments of every pole, pole after pole; the last one's value is all that counts. Returns of episodes that ended go to
// `returns`.
std::vector<Moment> live(const task::Params& actor, const task::Params& critic, const base::Random& random, std::vector<double>& returns) {
  std::vector<Pole> poles(kPoles);
  for (uint64_t p = 0; p < kPoles; ++p) poles[p].start(random.for_name("start").for_index(p));
  std::vector<Moment> lived(kPoles * (kSteps + 1));
  for (uint64_t t = 0; t <= kSteps; ++t) {
    std::vector<Moment> now(kPoles);
    for (size_t p = 0; p < kPoles; ++p) now[p].state = poles[p].state;
    const at::Tensor logs = at::log_softmax(task::run_mlp(actor, states_of(now)), -1), values = task::run_mlp(critic, states_of(now));
    for (uint64_t p = 0; p < kPoles; ++p) {
      const float* log = logs.const_data_ptr<float>() + 2 * p;
      now[p].action = random.for_index(t).uniform(p) < std::exp(log[1]) ? 1 : 0;
      now[p].log_likelihood = log[now[p].action];
      now[p].value = values.const_data_ptr<float>()[p];
      now[p].over = !poles[p].push(now[p].action);
      lived[p * (kSteps + 1) + t] = now[p];
      if (!now[p].over) continue;
      returns.push_back(static_cast<double>(poles[p].age));
      poles[p].start(random.for_name("again").for_index(t).for_index(p));
    }
  }
  return lived;
}

// Generalized advantages (arXiv:1506.02438), backwards through each pole's time.
std::vector<Moment> judged(std::vector<Moment> lived) {
  std::vector<Moment> moments;
  for (size_t p = 0; p < kPoles; ++p) {
    float advantage = 0;
    for (size_t t = kSteps; t-- > 0;) {
      Moment& one = lived[p * (kSteps + 1) + t];
      const float next = one.over ? 0 : lived[p * (kSteps + 1) + t + 1].value, seen = one.value;
      one.advantage = advantage = 1 + kDiscount * next - seen + (one.over ? 0 : kDiscount * kLambda * advantage);
      one.value = seen + advantage;
      moments.push_back(one);
      lived[p * (kSteps + 1) + t].value = seen;  // what the moment before compares with
    }
  }
  return moments;
}

}  // namespace

Outcome ppo(task::Deployer& deployer, bool quick) {
  task::Task<Moment> act, judge;
  act.collate = [](std::span<const Moment> moments) {
    std::vector<float> logs, advantages, values;
    std::vector<int64_t> actions;
    for (const Moment& one : moments)
      logs.push_back(one.log_likelihood), advantages.push_back(one.advantage), values.push_back(one.value), actions.push_back(one.action);
    return task::batch_of({{"state", states_of(moments)},
                           {"action", at::tensor(actions, at::kLong)},
                           {"log", at::tensor(logs)},
                           {"advantage", at::tensor(advantages)},
                           {"value", at::tensor(values)}});
  };
  judge.collate = act.collate;
  act.loss = [](const base::Random&, const task::Params& params, const task::Batch& batch, bool) {
    const at::Tensor logs = at::log_softmax(task::run_mlp(params, batch.field("state")), -1);
    const at::Tensor ratio = (logs.gather(1, batch.field("action").unsqueeze(1)).squeeze(1) - batch.field("log")).exp();
    const at::Tensor advantage = batch.field("advantage") / (batch.field("advantage").std(false) + 1e-6);
    return -(ratio * advantage).minimum(ratio.clamp(0.8, 1.2) * advantage).mean() + 0.01 * (logs.exp() * logs).sum(-1).mean();
  };
  judge.loss = [](const base::Random&, const task::Params& params, const task::Batch& batch, bool) {
    return (task::run_mlp(params, batch.field("state")).squeeze(1) - batch.field("value")).square().mean();
  };

  const auto options = [](const char* name) {
    return task::TrainerOptions{
        .name = name, .per_device_batch = 128, .epochs = 4, .learning_rate = 3e-3, .max_grad_norm = 0.5, .schedule = "constant"};
  };
  task::Trainer actor(deployer, act, task::mlp({4, 32, 32, 2}, deployer.random("actor"), 0.01), options("actor"));
  task::Trainer critic(deployer, judge, task::mlp({4, 32, 32, 1}, deployer.random("critic")), options("critic"));
  std::vector<double> first, last;
  for (uint64_t i = 0; i < (quick ? 2U : 40U); ++i) {
    const auto moments = judged(live(actor.params(), critic.params(), deployer.random("live").for_index(i), i == 0 ? first : last));
    actor.fit(moments);
    critic.fit(moments);
  }
  last.clear();
  live(actor.params(), critic.params(), deployer.random("fresh"), last);
  const auto mean = [](const std::vector<double>& of) { return at::tensor(of, at::kDouble).mean().item<double>(); };
  return {"mean return of fresh episodes, of at most 100, against that of the first policy", mean(last), mean(first), 80,
          /*at_most=*/false};
}

}  // namespace cairn::examples
