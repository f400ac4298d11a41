#include "parallel/pipeline/actors.h"

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
  Builder(const Schedule& schedule, const std::vector<StageEdge>& edges, const EdgeRegisters& registers, int only)
      : schedule_(schedule), edges_(edges), registers_(registers), only_(only) {}

  PipelineActors build() {
    for (int rank = 0; rank < schedule_.ranks(); ++rank)
      if (wanted(rank)) compute(rank);
    for (const StageEdge& edge : edges_) {
      add_edge(edge, false);
      add_edge(edge, true);
    }
    for (const auto& [number, stage] : stages_) add_activations(number, stage);
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
    int forward = -1, backward = -1, weight = -1, recompute = -1, offload = -1, gather = -1, reduce = -1;  // actors; -1: not there
  };

  // Adds a turn of a stage's actor to the rank's compute queue.
  void take_turn(int& actor, const char* letter, Role role, const Action& action, double seconds) {
    const int64_t turns = of_whole_stage(action.kind) ? 1 : -1;
    if (actor < 0)
      actor = add({.name = fmt::format("{}{}", action.stage, letter), .queue = built_.compute, .seconds = seconds, .turns = turns},
                  {.role = role, .stage = action.stage});
    built_.graph.queues[static_cast<size_t>(built_.compute)].order.push_back({actor, action.micro_batch});
  }

  // The compute queue of a rank. If a stage has some weight gradients, recomputations or offloads, all its micro-batches have a turn of
  // that actor, because each reads all activations; it does nothing for those that the schedule does not list.
  void compute(int rank) {
    const std::vector<Action>& actions = schedule_.actions[static_cast<size_t>(rank)];
    built_.compute = built_.graph.add_queue({.name = fmt::format("rank {}", rank), .ordered = true});
    std::map<ActionKind, std::set<std::pair<int, int>>> listed;
    std::map<ActionKind, std::set<int>> has;
    for (const Action& action : actions) {
      listed[action.kind].insert({action.stage, action.micro_batch});
      has[action.kind].insert(action.stage);
    }
    const auto lacks = [&](ActionKind kind, const Action& at) {
      return has[kind].contains(at.stage) && !listed[kind].contains({at.stage, at.micro_batch});
    };
    for (const Action& action : actions) {
      Stage& stage = stages_[action.stage];
      switch (action.kind) {
        case ActionKind::forward:
          take_turn(stage.forward, "F", Role::forward, action, 1);
          if (lacks(ActionKind::offload, action)) take_turn(stage.offload, "O", Role::offload, action, 0);
          break;
        case ActionKind::backward:
        case ActionKind::backward_input:
          if (lacks(ActionKind::recompute, action)) take_turn(stage.recompute, "R", Role::recompute, action, 1);
          take_turn(stage.backward, "B", Role::backward, action, has[ActionKind::backward_weight].contains(action.stage) ? 1 : 2);
          if (action.kind == ActionKind::backward_input)
            built_.parts[static_cast<size_t>(stage.backward)].split_backward.insert(action.micro_batch);
          if (lacks(ActionKind::backward_weight, action)) take_turn(stage.weight, "W", Role::weight, action, 1);
          break;
        case ActionKind::backward_weight:
          take_turn(stage.weight, "W", Role::weight, action, 1);
          break;
        case ActionKind::recompute:
          take_turn(stage.recompute, "R", Role::recompute, action, 1);
          built_.parts[static_cast<size_t>(stage.recompute)].listed.insert(action.micro_batch);
          break;
        case ActionKind::offload:
          take_turn(stage.offload, "O", Role::offload, action, 0);
          built_.parts[static_cast<size_t>(stage.offload)].listed.insert(action.micro_batch);
          break;
        case ActionKind::gather:
          take_turn(stage.gather, "UNSHARD", Role::gather, action, 0);
          break;
        case ActionKind::reduce:
          take_turn(stage.reduce, "REDUCE_GRAD", Role::reduce, action, 0);
          break;
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

  // A value that goes from one stage to another, or its gradient in the other direction.
  void add_edge(const StageEdge& edge, bool gradient) {
    const int from = rank_of(gradient ? edge.to : edge.from), to = rank_of(gradient ? edge.from : edge.to);
    const int writer = gradient ? stage_of(edge.to).backward : stage_of(edge.from).forward;
    const int reader = gradient ? stage_of(edge.from).backward : stage_of(edge.to).forward;
    const std::string name = fmt::format("{}{}", gradient ? "the gradient of " : "", edge_name(edge));
    const StageMessage message{.edge = edge, .gradient = gradient};
    if (gradient && writer < 0 && reader < 0) return;  // a schedule of forwards only
    if (writer >= 0) built_.parts[static_cast<size_t>(writer)].writes.push_back(message);
    if (reader >= 0) built_.parts[static_cast<size_t>(reader)].reads.push_back(message);
    if (from == to) {
      if (writer >= 0) connect(name, writer, reader, schedule_.micro_batches);
      return;
    }
    const auto needed = registers_.needed.find({edge_name(edge), gradient});
    const int receiving = registers_.receiving > 0            ? registers_.receiving
                          : needed == registers_.needed.end() ? schedule_.micro_batches
                                                              : needed->second;
    int sender = -1, receiver = -1;
    if (only_ < 0) {
      sender = receiver = add({.name = "move " + name, .queue = link(from, to)}, {.role = Role::move, .edge = edge, .gradient = gradient});
    } else if (wanted(from)) {
      sender = add({.name = "send " + name, .queue = link(from, to)}, {.role = Role::send, .edge = edge, .gradient = gradient});
    } else if (wanted(to)) {
      receiver = add({.name = "receive " + name, .queue = link(from, to)}, {.role = Role::receive, .edge = edge, .gradient = gradient});
    }
    if (sender >= 0) connect(name + ", where it leaves", writer, sender, registers_.sending);
    if (receiver >= 0) connect(name + ", where it arrives", receiver, reader, receiving);
    edge_actors_[{edge_name(edge), gradient}] = sender >= 0 ? sender : receiver;
  }

  // Activations are held from a stage's forward until its last gradient.
  void add_activations(int number, const Stage& stage) {
    if (stage.backward < 0) return;
    const auto count = registers_.activations.find(number);
    base::RegisterSpec kept{.name = fmt::format("activations of stage {}", number),
                            .writer = stage.forward,
                            .readers = {stage.backward},
                            .count = count == registers_.activations.end() ? schedule_.micro_batches : count->second};
    for (const int reader : {stage.weight, stage.recompute, stage.offload})
      if (reader >= 0) kept.readers.push_back(reader);
    built_.graph.add_register(std::move(kept));
    // Carries order only: a weight gradient may come much later.
    if (stage.weight >= 0) connect(fmt::format("stage {}'s input gradient", number), stage.backward, stage.weight, schedule_.micro_batches);
  }

  void order_link(int from, int to) {
    const auto found = links_.find({from, to});
    if (found == links_.end()) return;
    for (const StageMessage& message : stage_messages(schedule_, edges_, from, to))
      built_.graph.queues[static_cast<size_t>(found->second)].order.push_back(
          {edge_actors_.at({edge_name(message.edge), message.gradient}), message.micro_batch});
  }

  const Schedule& schedule_;
  const std::vector<StageEdge>& edges_;
  const EdgeRegisters& registers_;
  int only_;
  PipelineActors built_;
  std::map<int, Stage> stages_;
  std::map<std::pair<int, int>, int> links_;
  std::map<std::pair<std::string, bool>, int> edge_actors_;
};

}  // namespace

std::string edge_name(const StageEdge& edge) { return fmt::format("{} from stage {} to stage {}", edge.value, edge.from, edge.to); }

PipelineActors all_actors(const Schedule& schedule, const std::vector<StageEdge>& edges, const EdgeRegisters& registers) {
  return Builder(schedule, edges, registers, -1).build();
}

PipelineActors rank_actors(const Schedule& schedule, const std::vector<StageEdge>& edges, const EdgeRegisters& registers, int rank) {
  return Builder(schedule, edges, registers, rank).build();
}

EdgeRegisters edge_registers(const Schedule& schedule, const std::vector<StageEdge>& edges, int receiving) {
  EdgeRegisters registers{.receiving = receiving};
  const PipelineActors unbounded = all_actors(schedule, edges, {.sending = schedule.micro_batches});
  const base::Simulation simulation = base::simulate(unbounded.graph);
  for (size_t i = 0; i < unbounded.graph.registers.size(); ++i) {
    const base::RegisterSpec& one = unbounded.graph.registers[i];
    const PipelineActors::Part& writer = unbounded.parts[static_cast<size_t>(one.writer)];
    if (writer.role == Role::move)
      registers.needed[{edge_name(writer.edge), writer.gradient}] = std::min(simulation.peak_held[i] + 1, schedule.micro_batches);
    if (one.name.starts_with("activations of stage")) registers.activations[writer.stage] = std::max(1, simulation.peak_held[i]);
  }
  return registers;
}

}  // namespace cairn::parallel
