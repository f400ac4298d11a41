#include "parallel/schedule/csv.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/terminal.h"
#include "parallel/schedule/check.h"

namespace cairn::parallel {
namespace {

constexpr int kIndexMax = 1 << 20;  // of stages and micro-batches
constexpr size_t kCellBytes = 64;
constexpr const char* kCellForm =
    "a cell is a stage, one of F B I W R O, and a micro-batch, such as 0F0; or a stage and UNSHARD or REDUCE_GRAD";

// Where in a file: counted from 1, as editors do.
struct Place {
  std::string_view file;
  int line = 1;
  int cell = 1;
};

[[noreturn]] void refuse_cell(const Place& place, std::string_view cell, std::string_view reason) {
  base::fail_input("{}:{}: cell {}, \"{}\": {}", place.file, place.line, place.cell, base::printable(cell.substr(0, 40)), reason);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// The part of `text` before `mark`, which is removed with it.
std::string_view cut(std::string_view& text, char mark) {
  const std::string_view head = text.substr(0, text.find(mark));
  text.remove_prefix(std::min(head.size() + 1, text.size()));
  return head;
}

int parse_index(std::string_view digits, std::string_view what, const Place& place, std::string_view cell) {
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = !digits.empty() && digits.front() != '-' && end == digits.data() + digits.size();
  if (whole && (error == std::errc::result_out_of_range || value > kIndexMax))
    refuse_cell(place, cell, fmt::format("the {} is too large, at most {} is taken", what, kIndexMax));
  if (!whole || error != std::errc()) refuse_cell(place, cell, kCellForm);
  return value;
}

// The kinds by their words in a cell.
struct KindWord {
  std::string_view word;
  ActionKind kind;
};
constexpr KindWord kWholeStage[] = {{"UNSHARD", ActionKind::gather}, {"REDUCE_GRAD", ActionKind::reduce}};
constexpr KindWord kOfMicroBatch[] = {{"F", ActionKind::forward},         {"B", ActionKind::backward},  {"I", ActionKind::backward_input},
                                      {"W", ActionKind::backward_weight}, {"R", ActionKind::recompute}, {"O", ActionKind::offload}};

Action parse_action(std::string_view cell, const Place& place) {
  const size_t at = cell.find_first_not_of("0123456789");
  if (at == std::string_view::npos || at == 0) refuse_cell(place, cell, kCellForm);
  const std::string_view rest = cell.substr(at);
  for (const std::string_view word : {"SEND_", "RECV_"})
    if (rest.starts_with(word)) refuse_cell(place, cell, "messages follow from the route by themselves; leave out SEND and RECV");
  if (rest.starts_with("RESHARD"))
    refuse_cell(place, cell, "a stage's weights are released after its last action by themselves; leave out RESHARD");
  Action action{.stage = parse_index(cell.substr(0, at), "stage", place, cell)};
  for (const KindWord& one : kWholeStage)
    if (rest == one.word) {
      action.kind = one.kind;
      return action;
    }
  const auto* found =
      std::find_if(std::begin(kOfMicroBatch), std::end(kOfMicroBatch), [&](const KindWord& one) { return rest.starts_with(one.word); });
  if (found == std::end(kOfMicroBatch)) refuse_cell(place, cell, kCellForm);
  action.kind = found->kind;
  action.micro_batch = parse_index(rest.substr(1), "micro-batch", place, cell);
  return action;
}

std::vector<Action> parse_cell(std::string_view cell, const Place& place) {
  if (cell.size() > kCellBytes) refuse_cell(place, cell, fmt::format("{} bytes long, at most {} are taken", cell.size(), kCellBytes));
  if (cell.empty()) return {};
  if (cell.front() != '(') return {parse_action(cell, place)};
  constexpr std::string_view kOverlap = ")OVERLAP_F_B";
  if (!cell.ends_with(kOverlap)) refuse_cell(place, cell, "brackets are for two actions at once, such as (0F4;7B0)OVERLAP_F_B");
  std::string_view inside = cell.substr(1, cell.size() - 1 - kOverlap.size());
  std::vector<Action> actions;
  while (!inside.empty()) actions.push_back(parse_action(trimmed(cut(inside, ';')), place));
  return actions;
}

// Collects the actions, and what follows from them.
class Reader {
 public:
  explicit Reader(std::string_view file) : file_(file) {}

  void line(std::string_view text, int number) {
    Place place{file_, number, 1};
    const int rank = static_cast<int>(schedule_.actions.size());
    if (rank >= kPipelineRanksMax) base::fail_input("{}:{}: a line is a rank, at most {} are taken", file_, number, kPipelineRanksMax);
    schedule_.actions.emplace_back();
    for (; !text.empty(); ++place.cell) {
      const std::string_view cell = trimmed(cut(text, ','));
      for (const Action& action : parse_cell(cell, place)) add(rank, action, place, cell);
    }
    if (schedule_.actions.back().empty())
      base::fail_input("{}:{}: no action; each line is a rank, and each rank runs a stage", file_, number);
  }

  Schedule finish() {
    if (schedule_.actions.empty()) base::fail_input("{}: no action; each line is a rank, with cells such as 0F0", file_);
    schedule_.name = file_;
    schedule_.micro_batches = micro_batch_last_ + 1;
    for (const auto& [stage, rank] : route_) {
      if (stage != schedule_.stages())
        base::fail_input("{}: no rank runs stage {}, but there is a stage {}", file_, schedule_.stages(), stage);
      schedule_.rank_of_stage.push_back(rank);
    }
    return std::move(schedule_);
  }

 private:
  void add(int rank, const Action& action, const Place& place, std::string_view cell) {
    if (++count_ > kActionsMax) refuse_cell(place, cell, fmt::format("more than {} actions", kActionsMax));
    const int owner = route_.try_emplace(action.stage, rank).first->second;
    if (owner != rank)
      refuse_cell(place, cell,
                  fmt::format("stage {} is on rank {} (line {}) already; a stage has one rank", action.stage, owner, lines_[owner]));
    if (lines_.size() <= static_cast<size_t>(rank)) lines_.resize(rank + 1, place.line);
    micro_batch_last_ = std::max(micro_batch_last_, action.micro_batch);
    schedule_.actions.back().push_back(action);
  }

  std::string_view file_;
  Schedule schedule_;
  std::map<int, int> route_;  // rank by stage
  std::vector<int> lines_;    // by rank
  int micro_batch_last_ = 0;
  int count_ = 0;
};

}  // namespace

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& list : schedule.actions) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) text += ',';
      text += to_string(list[i]);
    }
    text += '\n';
  }
  return text;
}

Schedule read_schedule_csv(std::string_view text, std::string_view file) {
  Reader reader(file);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  for (int number = 1; !text.empty(); ++number) reader.line(trimmed(cut(text, '\n')), number);
  Schedule schedule = reader.finish();
  check(schedule);  // its name is the file's, so errors name it
  return schedule;
}

}  // namespace cairn::parallel
