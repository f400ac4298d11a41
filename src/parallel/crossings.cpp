#include "parallel/crossings.h"

#include <map>
#include <set>

#include "model/model.h"
#include "parallel/share.h"

namespace cairn::parallel {

std::vector<Crossing> crossings(const model::Model& model, const Plan& plan) {
  std::vector<Crossing> found;
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

std::vector<Message> messages(const Schedule& schedule, const std::vector<Crossing>& crossings, int from, int to) {
  std::vector<Message> sent;
  const auto rank = [&](int stage) { return schedule.rank_of_stage[static_cast<size_t>(stage)]; };
  for (const Action& action : schedule.actions[static_cast<size_t>(from)]) {
    for (const Crossing& crossing : crossings) {
      if (action.kind == ActionKind::forward && crossing.from == action.stage && rank(crossing.to) == to)
        sent.push_back({crossing, false, action.micro_batch});
      if ((action.kind == ActionKind::backward || action.kind == ActionKind::backward_input) && crossing.to == action.stage &&
          rank(crossing.from) == to)
        sent.push_back({crossing, true, action.micro_batch});
    }
  }
  return sent;
}

}  // namespace cairn::parallel
