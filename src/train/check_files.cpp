#include "train/check_files.h"

#include "base/files.h"
#include "base/log.h"
#include "base/metrics.h"
#include "data/corpus.h"
#include "snapshot/pretrained.h"
#include "snapshot/snapshot.h"
#include "train/report/run_json.h"
#include "train/settings.h"

namespace cairn::train {
namespace {

constexpr int64_t kStateBytesMax = 1 << 20;
constexpr int64_t kRowsLookedAt = 10'000;

void check_snapshot(const std::string& run_dir) {
  const std::optional<std::string> newest = snapshot::find_latest(run_dir);
  if (!newest) return;
  const std::string state = *newest + "/training/state.json";
  parse_run_state(base::read_file(state, kStateBytesMax), state);
  if (const std::string metrics = run_dir + "/metrics.jsonl"; base::path_exists(metrics)) base::read_metrics(metrics, kRowsLookedAt);
}

}  // namespace

void check_files(base::Recipe recipe, const Start& start) {
  Settings settings = read_settings(recipe);  // also reads the adapter
  set_template_date(settings, recipe, start.day);
  base::Log quiet = base::Log::quiet();
  if (start.resume) check_snapshot(start.out.string());
  if (!settings.model.from.empty()) snapshot::open_pretrained(settings.model.from, quiet);
  data::check_data(settings.data);
}

}  // namespace cairn::train
