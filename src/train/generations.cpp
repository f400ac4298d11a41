// Generations of ranks on one machine.
//
//   loss      a rank was killed, crashed, froze, or ended with an error that is not its input's fault. The agent ends the others at once.
//   next      fresh set-ups: sockets, shared memory, and a key that ranks of earlier generations do not know, so that none of them can
//             join. The ranks get the same command line, and resume what is newest (build/resume_from.cpp).
//   budget    restarts in a row that do not get beyond the step of the loss before
#include "train/generations.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <poll.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/process.h"
#include "base/run_events.h"
#include "base/text.h"

namespace cairn::train {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

constexpr auto kPauseGlance = std::chrono::milliseconds(50);  // how often a requested stop is noticed in a pause
constexpr std::streamoff kTailBytes = 256 << 10;

double rounded(double seconds) { return std::round(seconds * 1000) / 1000; }

class Lone final : public GenerationSource {
 public:
  Lone(LoneMachine options, base::Log& log, const base::Stop& stop)
      : options_(std::move(options)), log_(log), stop_(stop), budget_(options_.policy.max_restarts) {}

  std::optional<GenerationStart> next(const std::optional<RanksEnded>& last) override {
    GenerationStart start{.generation = ++generation_};
    base::OrderedJson facts{{"generation", generation_}};
    if (last) {
      if (!may_restart(*last)) return std::nullopt;
      start.lost_at = last->cause->at;
      facts["ended_s"] = rounded(last->at - last->cause->at);  // from the loss until the last rank had ended
      const auto pause = budget_.loss(last_recorded_step(options_.run));
      if (!pause) return give_up(*last);
      if (budget_.in_a_row() == 1) first_ = *last->cause;
      log_.warn("the ranks are started again, as generation {}{}", generation_,
                budget_.in_a_row() > 1
                    ? fmt::format(": restart {} of {} without progress", budget_.in_a_row(), options_.policy.max_restarts)
                    : "");
      if (!rest(*pause)) return std::nullopt;
      facts["pause_s"] = base::seconds(*pause);
    }
    start.setups = options_.make_setups();
    facts["ranks"] = start.setups.size();
    facts["machines"] = 1;
    start.env = run_directory_env(options_.run, last ? can_resume(options_.run) : options_.resume);
    if (last) facts["since_loss_s"] = rounded(base::wall_time() - start.lost_at);
    events_.write("generation_started", facts);
    return start;
  }

  int code() const override { return code_; }

 private:
  // Whether these ranks are started again. If not, code_ is how the run ends.
  bool may_restart(const RanksEnded& last) {
    code_ = last.code;
    if (!last.cause) return false;
    events_.write("rank_lost", loss_event(*last.cause, generation_ - 1, base::host_name(), 0));
    if (!last.stopped && !stop_.requested()) return !last.cause->wrong_input;
    if (!last.stopped) code_ = 0;  // the stop came after the ranks had ended: there is nothing left to save
    return false;
  }

  std::optional<GenerationStart> give_up(const RanksEnded& last) {
    if (budget_.in_a_row() == 0) first_ = *last.cause;
    code_ = first_->code;
    const std::string why = fmt::format("rank {} {}: {} without getting beyond that step", first_->rank, first_->how,
                                        base::plural(budget_.in_a_row(), "restart"));
    log_.write(base::Level::error, "train.max_restarts = " + std::to_string(options_.policy.max_restarts) + ": " + why);
    events_.write("gave_up", {{"generation", generation_ - 1}, {"code", code_}, {"why", why}});
    return std::nullopt;
  }

  // Waits; false: a stop was requested.
  bool rest(Nanoseconds pause) {
    const base::RealClock clock;
    while (clock.now() < pause && !stop_.requested()) ::poll(nullptr, 0, static_cast<int>(kPauseGlance.count()));
    if (!stop_.requested()) return true;
    code_ = 0;
    return false;
  }

  const LoneMachine options_;
  base::Log& log_;
  const base::Stop& stop_;
  RestartBudget budget_;
  const base::RunEvents events_{options_.run};
  std::optional<LostRank> first_;  // of the losses without progress
  int generation_ = 0;
  int code_ = 0;
};

}  // namespace

bool can_resume(const std::filesystem::path& run) {
  std::error_code error;
  return std::filesystem::exists(run / "recipe.toml", error);
}

std::vector<std::pair<std::string, std::string>> run_directory_env(const std::filesystem::path& run, bool resume) {
  return {{"CAIRN_RUN_DIR", run.string()}, {"CAIRN_RUN_RESUME", resume ? "1" : "0"}};
}

std::optional<Nanoseconds> RestartBudget::loss(int64_t step) {
  if (step > state_.furthest) state_.in_a_row = 0;
  state_.furthest = std::max(state_.furthest, step);
  if (state_.in_a_row >= max_) return std::nullopt;
  constexpr int64_t kDoublings = 10;  // far beyond kPauseMost
  const int64_t before = state_.in_a_row++;
  const Nanoseconds pause = before == 0 ? Nanoseconds(0) : kPauseFirst * (int64_t{1} << std::min(before - 1, kDoublings));
  return std::min(pause, kPauseMost);
}

int64_t last_recorded_step(const std::filesystem::path& run) {
  std::ifstream file(run / "metrics.jsonl", std::ios::binary | std::ios::ate);
  if (!file) return 0;
  const std::streamoff size = file.tellg(), from = std::max<std::streamoff>(0, size - kTailBytes);
  file.seekg(from);
  std::string tail(static_cast<size_t>(size - from), '\0');
  file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  int64_t last = 0;
  for (size_t at = 0; at < tail.size();) {
    const size_t end = std::min(tail.find('\n', at), tail.size());
    const base::Json row = base::parse_json(std::string_view(tail).substr(at, end - at));
    if (row.is_object() && row.contains("step") && row["step"].is_number_integer()) last = row["step"].get<int64_t>();
    at = end + 1;
  }
  return last;
}

base::OrderedJson loss_event(const LostRank& lost, int generation, const std::string& host, int machine) {
  base::OrderedJson facts{{"generation", generation}, {"rank", lost.rank}, {"host", host}, {"machine", machine}, {"pid", lost.pid}};
  if (lost.signal > 0)
    facts["signal"] = lost.signal;
  else
    facts["code"] = lost.code;
  facts["cause"] = lost.frozen ? "frozen" : lost.signal > 0 ? "killed" : lost.consequence ? "lost_peer" : "failed";
  facts["how"] = lost.how;
  facts["at"] = rounded(lost.at);
  return facts;
}

std::unique_ptr<GenerationSource> make_lone_machine(LoneMachine options, base::Log& log, const base::Stop& stop) {
  return std::make_unique<Lone>(std::move(options), log, stop);
}

int run_generations(GenerationSource& source, AgentOptions options, base::Log& log, const base::Stop& stop) {
  options.end_at_once = true;
  options.over = [&source] { return source.over(); };
  const std::vector<std::pair<std::string, std::string>> env = options.env;
  std::optional<RanksEnded> last;
  while (std::optional<GenerationStart> start = source.next(last)) {
    options.setups = std::move(start->setups);
    options.env = env;
    options.env.insert(options.env.end(), start->env.begin(), start->env.end());
    options.env.emplace_back("CAIRN_GENERATION", std::to_string(start->generation));
    if (start->lost_at > 0) options.env.emplace_back("CAIRN_LOST_AT", fmt::format("{:.3f}", start->lost_at));
    last = start_and_watch_ranks(options, log, stop);
  }
  return source.code();
}

}  // namespace cairn::train
