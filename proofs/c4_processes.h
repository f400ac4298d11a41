// The diagnosis on real processes: `cairn train` with tp=2, pp=2, dp=2, of which one rank is stopped from outside.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cairn::study {

// One thing done to one rank, and what the agent said of it.
struct C4Injection {
  bool whole_process = false;  // SIGSTOP; else only its main thread stands still, and its heartbeat goes on
  int rank = -1;
  std::string cause = {};   // reported; empty: nothing within 30 s
  int reported = -1;        // the rank
  double seconds = 0;       // from the injection to the event
  bool impossible = false;  // this system lets nobody stop one thread of another process
  std::string line = {};
  // A thread that stood still while it took a batch looks like late data.
  bool right() const { return reported == rank && (whole_process ? cause == "frozen" : cause == "stuck" || cause == "late data"); }
};

struct C4RunOutcome {
  std::vector<C4Injection> injections;
  int false_alarms = 0;  // events before the first injection, or of other ranks
  double clean_seconds = 0;
  std::string output;
  std::string records;  // RUN/diagnosis as `cairn diagnose` prints it
};

// Starts the run, lets it train for `clean_seconds`, then stops the main threads of these ranks one after the other, each until it is
// reported, and last the whole process of `freeze` (-1: none), which ends the run.
C4RunOutcome run_c4_processes(const std::string& program, const std::string& scratch, const std::vector<std::string>& arguments,
                              const std::vector<int>& stick, int freeze, double clean_seconds);

}  // namespace cairn::study
