// context.form = "auto": an event model of each form's tasks (context/traffic.h) on the links of the group.
//
//   message      begins when what it waits for has ended and its link (of the pair, or the sender's card) is free; takes bytes / bandwidth;
//                arrives a latency later, and with shared cards not before the receiver's card is done with what came earlier
//   computation  flops / flops_per_s on its rank, one after the other
// The law of messages is that of comm/link_model.h.
#include "model/context/choose.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/text.h"
#include "kernels/attention.h"

namespace cairn::model {
namespace {

double wire_seconds(const ContextTask& task, const ContextLinks& links) {
  const double rate = links.bytes_per_s_matrix.empty()
                          ? links.bytes_per_s
                          : links.bytes_per_s_matrix[static_cast<size_t>(task.from)][static_cast<size_t>(task.to)];
  return static_cast<double>(task.bytes) / rate;
}

// When the last task ends.
double makespan(const std::vector<ContextTask>& tasks, size_t ranks, const ContextLinks& links) {
  std::vector<std::vector<size_t>> next(tasks.size());
  std::vector<size_t> waits(tasks.size());
  std::vector<double> ready(tasks.size());
  std::vector<double> out(ranks), in(ranks), busy(ranks), pair(ranks * ranks);
  std::vector<bool> at_card(tasks.size());  // the message has arrived where the card may still be busy
  using Entry = std::pair<double, size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  for (size_t i = 0; i < tasks.size(); ++i) {
    waits[i] = tasks[i].after.size();
    for (const size_t before : tasks[i].after) next[before].push_back(i);
    if (waits[i] == 0) queue.emplace(0, i);
  }
  double last = 0;
  size_t done = 0;
  while (!queue.empty()) {
    const auto [time, i] = queue.top();
    queue.pop();
    const ContextTask& task = tasks[i];
    const auto from = static_cast<size_t>(task.from);
    double end = time;
    if (at_card[i]) {
      const auto to = static_cast<size_t>(task.to);
      end = in[to] = std::max(in[to] + wire_seconds(task, links), time);
    } else if (task.is_message()) {
      const auto to = static_cast<size_t>(task.to);
      double& free = links.shared_card ? out[from] : pair[from * ranks + to];
      free = std::max(free, time) + wire_seconds(task, links);
      end = free + (links.latency_s_matrix.empty() ? links.latency_s : links.latency_s_matrix[from][to]);
      if (links.shared_card) {  // cards receive in the order of arrival
        at_card[i] = true;
        queue.emplace(end, i);
        continue;
      }
    } else {
      busy[from] = std::max(busy[from], time) + (links.flops_per_s > 0 ? task.flops / links.flops_per_s : 0);
      end = busy[from];
    }
    last = std::max(last, end);
    ++done;
    for (const size_t one : next[i]) {
      ready[one] = std::max(ready[one], end);
      if (--waits[one] == 0) queue.emplace(ready[one], one);
    }
  }
  CAIRN_CHECK(done == tasks.size(), "{} of {} tasks of context attention wait for each other", tasks.size() - done, tasks.size());
  return last;
}

std::vector<ContextMethod> all_methods(int64_t ranks) {
  std::vector<ContextMethod> methods{ContextForm::ring, ContextForm::gather, ContextForm::ring_both_ways, ContextForm::ulysses,
                                     ContextForm::token_ring};
  for (int64_t team = 2; team < ranks; ++team)
    if (ranks % team == 0)
      for (const ContextForm form : {ContextForm::ring, ContextForm::gather, ContextForm::ring_both_ways, ContextForm::token_ring})
        methods.emplace_back(form, team);
  return methods;
}

}  // namespace

ContextSeconds predict_context(const ContextSizes& sizes, const kernels::AttentionOptions& options, const ContextSplit& split,
                               const ContextMethod& method, const ContextLinks& links, const ContextSplit* queries) {
  const auto of = [&](bool backward) {
    return makespan(context_tasks(sizes, options, split, method, backward, queries), split.pieces.size(), links);
  };
  return {of(false), queries ? 0 : of(true)};
}

ContextChoices choose_context(const ContextSizes& sizes, const kernels::AttentionOptions& options, const ContextSplit& split,
                              const ContextLinks& links, const ContextSplit* queries) {
  const auto ranks = static_cast<int64_t>(split.pieces.size());
  ContextChoices choices;
  std::string refused;
  for (const ContextMethod& method : all_methods(ranks)) {
    if (queries && (method.ulysses > 1 || method.form == ContextForm::ulysses)) continue;
    try {
      check(method, ranks, sizes.heads);
    } catch (const Error&) {
      if (method.form == ContextForm::ulysses)
        refused = fmt::format("; not ulysses: {} heads cannot be divided over {} ranks", sizes.heads, ranks);
      continue;
    }
    ContextChoice choice{method, predict_context(sizes, options, split, method, links, queries), 0};
    for (const bool backward : {false, true})
      for (const ContextTask& task : context_tasks(sizes, options, split, method, backward, queries))
        if (!backward || !queries) choice.bytes += task.bytes;
    choices.all.push_back(std::move(choice));
  }
  std::stable_sort(choices.all.begin(), choices.all.end(),
                   [](const ContextChoice& a, const ContextChoice& b) { return a.seconds.total() < b.seconds.total() * (1 - 1e-9); });
  const ContextChoice& best = choices.all.front();
  const double mbit = links.bytes_per_s * 8e-6;
  choices.why = fmt::format("{}: {:.3g} ms a layer, {}; links {}, {}{}{}", to_string(best.method, ranks), best.seconds.total() * 1e3,
                            base::human_bytes(best.bytes), links.shared_card ? "share a card" : "per pair",
                            mbit < 1000 ? fmt::format("{:.3g} Mbit/s", mbit) : fmt::format("{:.3g} Gbit/s", mbit / 1000),
                            links.origin.empty() ? "" : ", ", links.origin);
  std::string others;
  for (const ContextChoice& one : choices.all)
    if (!(one.method == best.method) && one.method.ulysses == 1)
      others += fmt::format("{}{} {:.3g} ms", others.empty() ? ". " : ", ", to_string(one.method, ranks), one.seconds.total() * 1e3);
  choices.why += others + refused;
  return choices;
}

}  // namespace cairn::model
