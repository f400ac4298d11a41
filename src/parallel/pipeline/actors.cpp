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
    int forward = -1, backward = -1, weight = -1;  // actors; -1: not there
  };

  // The compute queue of a rank. If some weight gradients of a stage are split off, all micro-batches have a turn of the weight actor; it
  // does nothing where backward did both gradients.
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
        if (action.kind == ActionKind::backward_input)
          built_.parts[static_cast<size_t>(stage.backward)].split_backward.insert(action.micro_batch);
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
    if (stage.weight >= 0) kept.readers.push_back(stage.weight);
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
