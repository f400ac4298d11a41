#include "elastic/diagnosis/view_file.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace cairn::elastic {
namespace {

using base::Json;
using comm::FlightLog;
using Nanoseconds = std::chrono::nanoseconds;

constexpr size_t kOperationsKept = 64, kStepsKept = 100, kMessagesKept = 260;  // messages: of a pair
constexpr int64_t kFileBytesMax = 256 << 20;
constexpr int64_t kNever = -1;

Json operation_json(const FlightLog::Operation& o) {
  return Json::array({o.number, o.group, o.sequence, static_cast<int>(o.kind), static_cast<int>(o.dtype), static_cast<int>(o.purpose),
                      static_cast<int>(o.activity), o.sends, o.peer, o.bytes, o.label, o.entered.count(),
                      o.started ? o.started->count() : kNever, o.ended ? o.ended->count() : kNever, o.waited.count(), o.failed});
}

Json messages_json(const FlightLog& log) {
  std::map<int, size_t> kept;
  Json list = Json::array();
  for (auto at = log.messages.rbegin(); at != log.messages.rend(); ++at)
    if (kept[at->peer]++ < kMessagesKept) list.push_back(Json::array({at->peer, at->bytes, at->ended.count(), at->service.count()}));
  std::reverse(list.begin(), list.end());
  return list;
}

Json log_json(const FlightLog& log) {
  Json json{{"size", log.size},
            {"process", log.process},
            {"run", log.run},
            {"role", log.role},
            {"step", log.step},
            {"activity", static_cast<int>(log.activity)},
            {"activity_since", log.activity_since.count()},
            {"waiting", log.waiting ? static_cast<int64_t>(*log.waiting) : kNever},
            {"waiting_since", log.waiting_since.count()},
            {"wait_seen", log.wait_seen.count()},
            {"groups_missed", log.groups_missed},
            {"operations_begun", log.operations_begun},
            {"operations", Json::array()},
            {"messages", messages_json(log)},
            {"steps", Json::array()},
            {"groups", Json::array()},
            {"peers", Json::array()}};
  for (size_t i = 0; i < log.operations.size(); ++i)
    if (log.operations[i].open() || i + kOperationsKept >= log.operations.size())
      json["operations"].push_back(operation_json(log.operations[i]));
  for (size_t i = log.steps.size() > kStepsKept ? log.steps.size() - kStepsKept : 0; i < log.steps.size(); ++i) {
    const FlightLog::Step& s = log.steps[i];
    json["steps"].push_back(Json::array({s.step, s.begun.count(), s.ended.count(), s.waited.count(), s.loading.count()}));
  }
  for (const FlightLog::Group& g : log.groups)
    json["groups"].push_back({{"id", g.id}, {"name", g.name}, {"ranks", g.ranks}, {"next_sequence", g.next_sequence}});
  for (const FlightLog::Peer& p : log.peers)
    json["peers"].push_back({{"rank", p.rank},
                             {"posted_bytes", p.posted_bytes},
                             {"completed_bytes", p.completed_bytes},
                             {"messages", p.messages},
                             {"received_bytes", p.received_bytes},
                             {"sending", p.sending},
                             {"awaited", p.awaited},
                             {"receive_wait", p.receive_wait.count()},
                             {"last_progress", p.last_progress ? p.last_progress->count() : kNever}});
  return json;
}

Nanoseconds time_at(const Json& json) { return Nanoseconds(json.get<int64_t>()); }
std::optional<Nanoseconds> maybe_time(const Json& json) {
  const auto time = json.get<int64_t>();
  return time == kNever ? std::nullopt : std::optional(Nanoseconds(time));
}

template <typename E>
E word(const Json& json, E last) {
  return static_cast<E>(std::clamp(json.get<int>(), 0, static_cast<int>(last)));
}

FlightLog::Operation operation_from(const Json& j) {
  FlightLog::Operation o;
  o.number = j.at(0);
  o.group = j.at(1);
  o.sequence = j.at(2);
  o.kind = word(j.at(3), comm::kLastOperation);
  o.dtype = word(j.at(4), comm::Dtype::u8);
  o.purpose = word(j.at(5), comm::Purpose::relay);
  o.activity = word(j.at(6), comm::Activity::ended);
  o.sends = j.at(7);
  o.peer = j.at(8);
  o.bytes = j.at(9);
  o.label = j.at(10);
  o.entered = time_at(j.at(11));
  o.started = maybe_time(j.at(12));
  o.ended = maybe_time(j.at(13));
  o.waited = time_at(j.at(14));
  o.failed = j.at(15);
  if (o.failed && !o.ended) o.ended = o.entered;
  return o;
}

FlightLog log_from(const Json& j, int rank, const std::string& host) {
  FlightLog log;
  log.rank = rank;
  log.host = host;
  log.size = j.at("size");
  log.process = j.at("process");
  log.run = j.at("run");
  log.role = j.at("role");
  log.step = j.at("step");
  log.activity = word(j.at("activity"), comm::Activity::ended);
  log.activity_since = time_at(j.at("activity_since"));
  if (const int64_t waiting = j.at("waiting"); waiting >= 0) log.waiting = static_cast<uint64_t>(waiting);
  log.waiting_since = time_at(j.at("waiting_since"));
  log.wait_seen = time_at(j.at("wait_seen"));
  log.groups_missed = j.at("groups_missed");
  log.operations_begun = j.at("operations_begun");
  for (const Json& o : j.at("operations")) log.operations.push_back(operation_from(o));
  for (const Json& m : j.at("messages"))
    log.messages.push_back({m.at(0).get<int>(), m.at(1).get<int64_t>(), time_at(m.at(2)), time_at(m.at(3))});
  for (const Json& s : j.at("steps"))
    log.steps.push_back({s.at(0).get<int64_t>(), time_at(s.at(1)), time_at(s.at(2)), time_at(s.at(3)), time_at(s.at(4))});
  for (const Json& g : j.at("groups"))
    log.groups.push_back({g.at("id"), g.at("name"), g.at("ranks").get<std::vector<int>>(), g.at("next_sequence")});
  for (const Json& p : j.at("peers"))
    log.peers.push_back({p.at("rank"), p.at("posted_bytes"), p.at("completed_bytes"), p.at("messages"), p.at("received_bytes"),
                         p.at("sending"), p.at("awaited"), time_at(p.at("receive_wait")), maybe_time(p.at("last_progress"))});
  return log;
}

}  // namespace

std::filesystem::path diagnosis_folder(const std::filesystem::path& run) { return run / "diagnosis"; }

std::string to_json(const std::vector<RankView>& ranks) {
  Json list = Json::array();
  for (const RankView& one : ranks) {
    Json json{
        {"rank", one.rank}, {"host", one.host}, {"liveness", static_cast<int>(one.liveness)}, {"how", one.how}, {"now", one.now.count()}};
    if (one.log) json["log"] = log_json(*one.log);
    list.push_back(std::move(json));
  }
  return base::compact(Json{{"version", 1}, {"ranks", std::move(list)}}) + "\n";
}

std::vector<RankView> views_from_json(std::string_view text, const std::string& origin) {
  const base::GuardedJson parsed = base::parse_json_guarded(text, base::JsonLimits{});
  const auto refuse = [&](const std::string& why) { throw Error(Error::Kind::corrupt_file, fmt::format("{}: {}", origin, why)); };
  if (!parsed.trouble.empty()) refuse(parsed.trouble);
  std::vector<RankView> ranks;
  try {
    for (const Json& one : parsed.value.at("ranks")) {
      RankView view{.rank = one.at("rank"),
                    .host = one.at("host"),
                    .liveness = word(one.at("liveness"), Liveness::ended),
                    .how = one.at("how"),
                    .now = time_at(one.at("now"))};
      if (view.rank < 0 || view.rank > 1 << 20) refuse(fmt::format("there is no rank {}", view.rank));
      if (one.contains("log")) view.log = log_from(one.at("log"), view.rank, view.host);
      ranks.push_back(std::move(view));
    }
  } catch (const Json::exception& error) {
    refuse(fmt::format("not the records of ranks: {}", error.what()));
  }
  return ranks;
}

void write_views(const std::filesystem::path& run, const std::vector<RankView>& ranks) {
  if (ranks.empty()) return;
  const std::filesystem::path folder = diagnosis_folder(run), file = folder / fmt::format("machine-{}.json", ranks.front().rank);
  base::make_folder(folder);
  std::filesystem::path written = file;
  written += ".writing";
  {
    std::ofstream out(written, std::ios::binary | std::ios::trunc);  // not flushed to disk: only a crash of the machine loses it
    out << to_json(ranks);
    if (!out.flush()) throw Error(Error::Kind::disk, fmt::format("{}: cannot be written", written.string()));
  }
  std::filesystem::rename(written, file);
}

std::vector<RankView> read_view_file(const std::filesystem::path& file) {
  return views_from_json(base::read_file(file, kFileBytesMax), file.string());
}

std::vector<RankView> read_views(const std::filesystem::path& run) {
  std::vector<RankView> all;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(diagnosis_folder(run), missing)) {
    if (entry.path().extension() != ".json") continue;
    for (RankView& one : read_view_file(entry.path())) all.push_back(std::move(one));
  }
  std::sort(all.begin(), all.end(), [](const RankView& a, const RankView& b) { return a.rank < b.rank; });
  return all;
}

}  // namespace cairn::elastic
