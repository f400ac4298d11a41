#pragma once
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "comm/net/transport.h"
#include "elastic/diagnosis/monitor.h"

namespace cairn::comm {
class SharedSegment;
}

namespace cairn::train {

// What an agent knows of a rank process without asking it.
struct RankProcess {
  elastic::Liveness liveness = elastic::Liveness::running;
  std::string how = {};  // of one that is dead or stands still
};

// The agent's side of the diagnosis: reads the flight recorders of its ranks in the memory that they share, once a second. What it finds
// becomes a line of the log and an event of the run.
//
// With several machines each agent writes the records of its ranks into RUN/diagnosis/, and the agent of rank 0 reads them all. So all
// machines must see the run directory; a run needs that anyway.
class RankDiagnosis {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  // `setups`: before their files are closed. Nothing is done where the ranks share no memory (a lone rank), or where it is not enabled.
  RankDiagnosis(const std::vector<comm::NetSetup>& setups, const elastic::DiagnosisOptions& options, base::Log& log);
  ~RankDiagnosis();
  RankDiagnosis(const RankDiagnosis&) = delete;
  RankDiagnosis& operator=(const RankDiagnosis&) = delete;

  bool due() const;
  // By position on this machine. Never throws.
  void look(const std::vector<RankProcess>& ranks) noexcept;
  // The last look, when all ranks have ended: leaves the records in RUN/diagnosis/.
  void finish(const std::vector<RankProcess>& ranks) noexcept;

 private:
  std::vector<elastic::RankView> views(const std::vector<RankProcess>& ranks) const;
  void add_other_machines(std::vector<elastic::RankView>& all) const;
  void report(const elastic::Finding& finding) const;

  elastic::DiagnosisOptions options_;
  base::Log& log_;
  elastic::Monitor monitor_;
  std::vector<int> ranks_;  // of this machine
  int size_ = 0;
  std::unique_ptr<comm::SharedSegment> segment_;  // null: nothing to read
  Nanoseconds last_look_ = Nanoseconds::min() / 2;
  std::filesystem::path run_;  // as the ranks say; empty: not known yet
};

}  // namespace cairn::train
