#include "train/diagnosis/rank_diagnosis.h"

#include <algorithm>
#include <system_error>

#include "base/process.h"
#include "base/run_events.h"
#include "comm/flight/log.h"
#include "comm/flight/recorder.h"
#include "comm/shm/segment.h"
#include "elastic/diagnosis/view_file.h"

namespace cairn::train {
namespace {

using elastic::RankView;

constexpr auto kLookEvery = std::chrono::seconds(1);
constexpr auto kMachineSilent = std::chrono::seconds(30);  // since another machine's agent wrote its records: a shared folder may lag

}  // namespace

RankDiagnosis::RankDiagnosis(const std::vector<comm::NetSetup>& setups, const elastic::DiagnosisOptions& options, base::Log& log)
    : options_(options), log_(log), monitor_(options) {
  if (!options.enabled || setups.size() < 2 || setups.front().segment_fd < 0) return;
  for (const comm::NetSetup& setup : setups) ranks_.push_back(setup.rank);
  size_ = setups.front().size;
  segment_ = std::make_unique<comm::SharedSegment>(setups.front().segment_fd, static_cast<int>(setups.size()));
}

RankDiagnosis::~RankDiagnosis() = default;

bool RankDiagnosis::due() const { return segment_ && comm::machine_time() - last_look_ >= kLookEvery; }

std::vector<RankView> RankDiagnosis::views(const std::vector<RankProcess>& ranks) const {
  std::vector<RankView> all;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RankView view{.rank = ranks_[i], .host = base::host_name(), .liveness = ranks[i].liveness, .how = ranks[i].how};
    view.log = comm::read_flight_log(segment_->flight(static_cast<int>(i)));
    view.now = comm::machine_time();
    all.push_back(std::move(view));
  }
  return all;
}

void RankDiagnosis::add_other_machines(std::vector<RankView>& all) const {
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(elastic::diagnosis_folder(run_), missing)) {
    if (entry.path().extension() != ".json") continue;
    const bool silent = std::filesystem::file_time_type::clock::now() - entry.last_write_time() > kMachineSilent;
    for (RankView& one : elastic::read_view_file(entry.path())) {
      if (std::find(ranks_.begin(), ranks_.end(), one.rank) != ranks_.end() || one.rank >= size_) continue;
      if (silent && one.liveness == elastic::Liveness::running)
        one.liveness = elastic::Liveness::dead, one.how = "nothing is heard of its machine";
      all.push_back(std::move(one));
    }
  }
}

void RankDiagnosis::report(const elastic::Finding& finding) const {
  log_.write(base::Level::warn, "cairn: " + elastic::to_line(finding));
  base::OrderedJson event{{"cause", elastic::name(finding.cause)}, {"rank", finding.rank}};
  if (finding.peer >= 0) event["peer"] = finding.peer;
  event["host"] = finding.host;
  event["operation"] = finding.operation;
  event["evidence"] = finding.evidence;
  event["victims"] = finding.victims;
  base::RunEvents(run_).write("diagnosis", event);
}

void RankDiagnosis::look(const std::vector<RankProcess>& ranks) noexcept try {
  if (!segment_) return;
  last_look_ = comm::machine_time();
  std::vector<RankView> all = views(ranks);
  for (const RankView& one : all)
    if (run_.empty() && one.log) run_ = one.log->run;
  const bool several = static_cast<int>(ranks_.size()) < size_;
  if (several && !run_.empty()) elastic::write_views(run_, all);
  if (ranks_.front() != 0) return;
  if (several && !run_.empty()) add_other_machines(all);
  const std::vector<elastic::Finding> found = monitor_.look(all);
  for (const elastic::Finding& finding : found) report(finding);
  if (!found.empty() && !several && !run_.empty()) elastic::write_views(run_, all);  // for `cairn diagnose` while the run hangs
} catch (...) {                                                                      // a diagnosis that fails must not end a run
}

void RankDiagnosis::finish(const std::vector<RankProcess>& ranks) noexcept try {
  look(ranks);
  if (segment_ && !run_.empty()) elastic::write_views(run_, views(ranks));
} catch (...) {  // the disk is full, perhaps
}

}  // namespace cairn::train
