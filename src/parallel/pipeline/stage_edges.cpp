#include "parallel/pipeline/stage_edges.h"

#include <map>
#include <set>

#include "model/model.h"
#include "parallel/layout/model_shard.h"

namespace cairn::parallel {

std::vector<StageEdge> stage_edges(const model::Model& model, const Plan& plan) {
  std::vector<StageEdge> found;
  std::map<std::string, int> writer;
  std::set<std::pair<std::string, int>> known;
  for (int stage = 0; stage < static_cast<int>(plan.stage_blocks.size()); ++stage) {
    const BlockRange range = blocks_of_stage(plan, stage, model.blocks().size());
    for (size_t i = range.first; i < range.last; ++i) {
      const model::Card& card = model.blocks()[i]->card();
      for (const std::string& value : card.reads) {
        const auto from = writer.find(value);  // a field of the batch has no writer, and is on every rank
        if (from != writer.end() && from->second != stage && known.emplace(value, stage).second)
          found.push_back({value, from->second, stage});
      }
      for (const std::string& value : card.writes) writer[value] = stage;
    }
  }
  return found;
}

std::vector<StageMessage> stage_messages(const Schedule& schedule, const std::vector<StageEdge>& edges, int from, int to) {
  std::vector<StageMessage> sent;
  const auto rank = [&](int stage) { return schedule.rank_of_stage[static_cast<size_t>(stage)]; };
  for (const Action& action : schedule.actions[static_cast<size_t>(from)]) {
    for (const StageEdge& edge : edges) {
      if (action.kind == ActionKind::forward && edge.from == action.stage && rank(edge.to) == to)
        sent.push_back({edge, false, action.micro_batch});
      if ((action.kind == ActionKind::backward || action.kind == ActionKind::backward_input) && edge.to == action.stage &&
          rank(edge.from) == to)
        sent.push_back({edge, true, action.micro_batch});
    }
  }
  return sent;
}

}  // namespace cairn::parallel
