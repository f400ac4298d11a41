// Restart in place (train.on_loss): the agent of a machine starts a new generation of ranks after one was lost.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "train/agent.h"
#include "train/options.h"

namespace cairn::train {

// What the recipe says about losses.
struct LossPolicy {
  OnLoss on_loss = OnLoss::stop;
  int64_t max_restarts = 3;
  std::chrono::nanoseconds replacement_timeout = std::chrono::seconds(600);
};

// Decides whether ranks are started again. A restart that gets the run beyond the step of every loss before is progress; restarts in a row
// without progress are limited, so that a crash that repeats itself ends the run. Each of them waits twice as long as the one before.
class RestartBudget {
 public:
  static constexpr std::chrono::nanoseconds kPauseFirst = std::chrono::seconds(1), kPauseMost = std::chrono::seconds(30);

  struct State {
    int64_t in_a_row = 0;   // restarts without progress so far
    int64_t furthest = -1;  // the step of the furthest loss
  };

  explicit RestartBudget(int64_t max_restarts) : RestartBudget(max_restarts, State()) {}
  RestartBudget(int64_t max_restarts, State state) : max_(max_restarts), state_(state) {}
  // A rank was lost when the run had got to `step`. Returns how long to wait before the next start; nothing: the run ends.
  std::optional<std::chrono::nanoseconds> loss(int64_t step);
  int64_t in_a_row() const { return state_.in_a_row; }
  const State& state() const { return state_; }

 private:
  int64_t max_;
  State state_;
};

// The last step in the metrics of a run; 0 where there are none. Reads the end of the file only.
int64_t last_recorded_step(const std::filesystem::path& run);

// What the ranks of this machine are started with in one generation.
struct GenerationStart {
  int generation = 1;
  double lost_at = 0;  // Unix time of the loss before; 0: there was none
  std::vector<comm::NetSetup> setups = {};
  std::vector<std::pair<std::string, std::string>> env = {};
};

// Says when the ranks of this machine are started, and when they must end.
class GenerationSource {
 public:
  virtual ~GenerationSource() = default;
  // Waits until a generation can start. `last`: how the ranks of the one before have ended. Nothing: the run is over, with code().
  virtual std::optional<GenerationStart> next(const std::optional<RanksEnded>& last) = 0;
  virtual bool over() { return false; }  // while ranks run: another machine has lost one
  virtual int code() const = 0;
};

// The only machine of a run.
struct LoneMachine {
  LossPolicy policy;
  std::filesystem::path run;                                 // the run directory
  bool resume = false;                                       // whether the first generation resumes what is there
  std::function<std::vector<comm::NetSetup>()> make_setups;  // fresh ones, with a key of their own: ranks of earlier generations do not fit
};
std::unique_ptr<GenerationSource> make_lone_machine(LoneMachine options, base::Log& log, const base::Stop& stop);

// Starts generation after generation, until the source says that the run is over. Returns the exit code of this process.
// Ranks get CAIRN_GENERATION and CAIRN_LOST_AT in their environment beside options.env.
int run_generations(GenerationSource& source, AgentOptions options, base::Log& log, const base::Stop& stop);

// Whether a run directory holds what a later generation needs to go on there.
bool can_resume(const std::filesystem::path& run);
// Tells the first rank of a run where it writes.
std::vector<std::pair<std::string, std::string>> run_directory_env(const std::filesystem::path& run, bool resume);

// The fields of a loss for events.jsonl.
base::OrderedJson loss_event(const LostRank& lost, int generation, const std::string& host, int machine);

}  // namespace cairn::train
