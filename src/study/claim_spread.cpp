#include "study/claim_spread.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/json.h"

namespace cairn::study {
namespace {

std::string range_of(const ClaimSpread& c) {
  return c.low() == c.high() ? fmt::format("{:.4g}", c.low()) : fmt::format("{:.4g} to {:.4g}", c.low(), c.high());
}

std::string verdict_of(const ClaimSpread& c, const std::string& failed) {
  if (c.hold()) return "holds";
  if (c.passes == 0) return failed;
  return fmt::format("{}: holds at {} of {} seeds", failed, c.passes, c.measured.size());
}

// Text inside a cell of a Markdown table.
std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
  return text;
}

}  // namespace

double ClaimSpread::low() const { return *std::min_element(measured.begin(), measured.end()); }
double ClaimSpread::high() const { return *std::max_element(measured.begin(), measured.end()); }

bool SpreadFindings::hold() const {
  return errors.empty() && !claims.empty() && std::all_of(claims.begin(), claims.end(), [](const auto& c) { return c.hold(); });
}

void SpreadCollector::add(uint64_t seed, const Findings& findings) {
  seeds_.push_back(seed);
  runs_.emplace_back(seed, findings);
}

void SpreadCollector::add_error(uint64_t seed, const std::string& what) {
  seeds_.push_back(seed);
  errors_.push_back(fmt::format("seed {}: {}", seed, what));
}

SpreadFindings SpreadCollector::collect() const {
  SpreadFindings all{.seeds = seeds_, .claims = {}, .skipped = {}, .errors = errors_};
  const bool by_place = std::all_of(runs_.begin(), runs_.end(),
                                    [&](const auto& run) { return run.second.claims().size() == runs_.front().second.claims().size(); });
  for (const auto& [seed, findings] : runs_) {
    for (size_t i = 0; i < findings.claims().size(); ++i) {
      const Claim& claim = findings.claims()[i];
      const auto same_claim = [&](const ClaimSpread& c) { return c.claim == claim.claim; };
      auto found = by_place ? all.claims.begin() + static_cast<ptrdiff_t>(std::min(i, all.claims.size()))
                            : std::find_if(all.claims.begin(), all.claims.end(), same_claim);
      if (found == all.claims.end()) found = all.claims.insert(all.claims.end(), {claim.claim, claim.threshold, {}, 0});
      found->measured.push_back(claim.measured);
      found->passes += claim.pass ? 1 : 0;
    }
    for (const Skipped& skipped : findings.skipped())
      if (std::none_of(all.skipped.begin(), all.skipped.end(), [&](const auto& s) { return s.claim == skipped.claim; }))
        all.skipped.push_back(skipped);
  }
  return all;
}

std::string to_json(const std::string& slug, const SpreadFindings& findings, double seconds) {
  base::OrderedJson json = {{"slug", slug},
                            {"seeds", findings.seeds},
                            {"claims", base::OrderedJson::array()},
                            {"skipped", base::OrderedJson::array()},
                            {"errors", findings.errors},
                            {"seconds", seconds}};
  for (const ClaimSpread& c : findings.claims)
    json["claims"].push_back(
        {{"claim", c.claim}, {"threshold", c.threshold}, {"measured", c.measured}, {"passes", c.passes}, {"pass", c.hold()}});
  for (const Skipped& s : findings.skipped) json["skipped"].push_back({{"claim", s.claim}, {"reason", s.reason}});
  return base::pretty(json);
}

std::string to_table(const SpreadFindings& findings) {
  size_t width = 5, range = 8;
  for (const ClaimSpread& c : findings.claims) {
    width = std::max(width, c.claim.size());
    range = std::max(range, range_of(c).size());
  }
  for (const Skipped& s : findings.skipped) width = std::max(width, s.claim.size());
  std::string table = fmt::format("{:<{}}  {:>{}}  {:<18}  {}\n", "claim", width, "measured", range, "threshold", "verdict");
  for (const ClaimSpread& c : findings.claims)
    table += fmt::format("{:<{}}  {:>{}}  {:<18}  {}\n", c.claim, width, range_of(c), range, c.threshold, verdict_of(c, "FAILS"));
  for (const Skipped& s : findings.skipped)
    table += fmt::format("{:<{}}  {:>{}}  {:<18}  skipped: {}\n", s.claim, width, "-", range, "-", s.reason);
  for (const std::string& error : findings.errors) table += error + "\n";
  return table;
}

std::string to_markdown(const std::string& slug, const std::string& about, const std::string& command, const SpreadFindings& findings) {
  std::string text =
      fmt::format("## {}\n\n{}\n\n`{}`\n\n| claim | bound | measured | verdict |\n|---|---|---|---|\n", slug, about, command);
  for (const ClaimSpread& c : findings.claims)
    text += fmt::format("| {} | {} | {} | {} |\n", cell(c.claim), c.threshold, range_of(c), verdict_of(c, "**does not hold**"));
  for (const Skipped& s : findings.skipped) text += fmt::format("| {} | | not run | skipped: {} |\n", cell(s.claim), cell(s.reason));
  for (const std::string& error : findings.errors) text += fmt::format("| the proof itself | | | **error** at {} |\n", cell(error));
  return text;
}

}  // namespace cairn::study
