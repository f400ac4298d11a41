#include "parallel/pipeline_actors.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/actors/simulation.h"

namespace cairn::parallel {
namespace {

using Role = PipelineActors::Role;

class Builder {
 public:
  // `only`: the rank whose actors are wanted; -1: all ranks'.
  Builder(const Schedule& schedule, const std::vector<Crossing>& crossings, const BorderRegisters& registers, int only)
      : schedule_(schedule), crossings_(crossings), registers_(registers), only_(only) {}

  PipelineActors build() {
    for (int rank = 0; rank < schedule_.ranks(); ++rank)
      if (wanted(rank)) compute(rank);
    for (const Crossing& crossing : crossings_) {
      border(crossing, false);
      border(crossing, true);
    }
    for (const auto& [number, stage] : stages_) keep(number, stage);
    for (int from = 0; from < schedule_.ranks(); ++from)
      for (int to = 0; to < schedule_.ranks(); ++to) order_link(from, to);
    return std::move(built_);
  }

 private:
  bool wanted(int rank) const { return only_ < 0 || rank == only_; }
  int rank_of(int stage) const { return schedule_.rank_of_stage[static_cast<size_t>(stage)]; }

  int add(base::ActorSpec spec, PipelineActors::Part part) {
    built_.parts.push_back(std::move(part));
    return built_.graph.add_actor(std::move(spec));
  }
  void connect(std::string name, int writer, int reader, int count) {
    built_.graph.add_register({.name = std::move(name), .writer = writer, .readers = {reader}, .count = count});
  }

  struct Stage {
    int forward = -1, backward = -1, weight = -1;  // actors; -1: not there
  };

  // What a rank computes, in its order. Where some weight gradients of a stage come apart, all have a turn of their own: the actor that
  // does both at once leaves nothing for it to do.
  void compute(int rank) {
    const std::vector<Action>& actions = schedule_.actions[static_cast<size_t>(rank)];
    const int queue = built_.graph.add_queue({.name = fmt::format("rank {}", rank), .ordered = true});
    built_.compute = queue;
    std::set<int> splits;
    for (const Action& action : actions)
      if (action.kind == ActionKind::backward_weight) splits.insert(action.stage);
    const auto actor = [&](int& of, const char* letter, Role role, const Action& action, double seconds) {
      if (of < 0)
        of = add({.name = fmt::format("{}{}", action.stage, letter), .queue = queue, .seconds = seconds},
                 {.role = role, .stage = action.stage});
      built_.graph.queues[static_cast<size_t>(queue)].order.push_back({of, action.micro_batch});
    };
    for (const Action& action : actions) {
      Stage& stage = stages_[action.stage];
      const bool split = splits.contains(action.stage);
      if (action.kind == ActionKind::forward) {
        actor(stage.forward, "F", Role::forward, action, 1);
      } else if (action.kind == ActionKind::backward_weight) {
        actor(stage.weight, "W", Role::weight, action, 1);
      } else {
        actor(stage.backward, "B", Role::backward, action, split ? 1 : 2);
        if (action.kind == ActionKind::backward_input) built_.parts[static_cast<size_t>(stage.backward)].apart.insert(action.micro_batch);
        if (action.kind == ActionKind::backward && split) actor(stage.weight, "W", Role::weight, action, 1);
      }
    }
  }

  Stage stage_of(int stage) const {
    const auto found = stages_.find(stage);
    return found == stages_.end() ? Stage{} : found->second;
  }

  int link(int from, int to) {
    const auto [at, fresh] = links_.try_emplace({from, to}, 0);
    if (fresh) at->second = built_.graph.add_queue({.name = fmt::format("link of ranks {} and {}", from, to), .ordered = true});
    return at->second;
  }

  // A value on its way from one stage to another, or its gradient on the way back.
  void border(const Crossing& crossing, bool gradient) {
    const int from = rank_of(gradient ? crossing.to : crossing.from), to = rank_of(gradient ? crossing.from : crossing.to);
    const int writer = gradient ? stage_of(crossing.to).backward : stage_of(crossing.from).forward;
    const int reader = gradient ? stage_of(crossing.from).backward : stage_of(crossing.to).forward;
    const std::string name = fmt::format("{}{}", gradient ? "the gradient of " : "", crossing_name(crossing));
    const Message message{.crossing = crossing, .gradient = gradient};
    if (gradient && writer < 0 && reader < 0) return;  // forwards alone
    if (writer >= 0) built_.parts[static_cast<size_t>(writer)].writes.push_back(message);
    if (reader >= 0) built_.parts[static_cast<size_t>(reader)].reads.push_back(message);
    if (from == to) {
      if (writer >= 0) connect(name, writer, reader, schedule_.micro_batches);
      return;
    }
    const auto needed = registers_.needed.find({crossing_name(crossing), gradient});
    const int arriving = registers_.arriving > 0             ? registers_.arriving
                         : needed == registers_.needed.end() ? schedule_.micro_batches
                                                             : needed->second;
    int giver = -1, taker = -1;
    if (only_ < 0) {
      giver = taker =
          add({.name = "move " + name, .queue = link(from, to)}, {.role = Role::move, .crossing = crossing, .gradient = gradient});
    } else if (wanted(from)) {
      giver = add({.name = "send " + name, .queue = link(from, to)}, {.role = Role::send, .crossing = crossing, .gradient = gradient});
    } else if (wanted(to)) {
      taker =
          add({.name = "receive " + name, .queue = link(from, to)}, {.role = Role::receive, .crossing = crossing, .gradient = gradient});
    }
    if (giver >= 0) connect(name + ", where it leaves", writer, giver, registers_.leaving);
    if (taker >= 0) connect(name + ", where it arrives", taker, reader, arriving);
    movers_[{crossing_name(crossing), gradient}] = giver >= 0 ? giver : taker;
  }

  // Activations stay from a stage's forward until its last gradient.
  void keep(int number, const Stage& stage) {
    if (stage.backward < 0) return;
    const auto count = registers_.kept.find(number);
    base::RegisterSpec kept{.name = fmt::format("activations of stage {}", number),
                            .writer = stage.forward,
                            .readers = {stage.backward},
                            .count = count == registers_.kept.end() ? schedule_.micro_batches : count->second};
    if (stage.weight >= 0) kept.readers.push_back(stage.weight);
    built_.graph.add_register(std::move(kept));
    // Order alone: a weight gradient may wait long.
    if (stage.weight >= 0) connect(fmt::format("stage {}'s input gradient", number), stage.backward, stage.weight, schedule_.micro_batches);
  }

  void order_link(int from, int to) {
    const auto found = links_.find({from, to});
    if (found == links_.end()) return;
    for (const Message& message : messages(schedule_, crossings_, from, to))
      built_.graph.queues[static_cast<size_t>(found->second)].order.push_back(
          {movers_.at({crossing_name(message.crossing), message.gradient}), message.micro_batch});
  }

  const Schedule& schedule_;
  const std::vector<Crossing>& crossings_;
  const BorderRegisters& registers_;
  int only_;
  PipelineActors built_;
  std::map<int, Stage> stages_;
  std::map<std::pair<int, int>, int> links_;
  std::map<std::pair<std::string, bool>, int> movers_;
};

}  // namespace

std::string crossing_name(const Crossing& crossing) {
  return fmt::format("{} from stage {} to stage {}", crossing.value, crossing.from, crossing.to);
}

PipelineActors all_actors(const Schedule& schedule, const std::vector<Crossing>& crossings, const BorderRegisters& registers) {
  return Builder(schedule, crossings, registers, -1).build();
}

PipelineActors rank_actors(const Schedule& schedule, const std::vector<Crossing>& crossings, const BorderRegisters& registers, int rank) {
  return Builder(schedule, crossings, registers, rank).build();
}

BorderRegisters registers_for(const Schedule& schedule, const std::vector<Crossing>& crossings, int arriving) {
  BorderRegisters registers{.arriving = arriving};
  const PipelineActors unbounded = all_actors(schedule, crossings, {.leaving = schedule.micro_batches});
  const base::Simulation simulation = base::simulate(unbounded.graph);
  for (size_t i = 0; i < unbounded.graph.registers.size(); ++i) {
    const base::RegisterSpec& one = unbounded.graph.registers[i];
    const PipelineActors::Part& writer = unbounded.parts[static_cast<size_t>(one.writer)];
    if (writer.role == Role::move)
      registers.needed[{crossing_name(writer.crossing), writer.gradient}] = std::min(simulation.peak_held[i] + 1, schedule.micro_batches);
    if (one.name.starts_with("activations of stage")) registers.kept[writer.stage] = std::max(1, simulation.peak_held[i]);
  }
  return registers;
}

}  // namespace cairn::parallel
