#include "study/claims.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/json.h"

namespace cairn::study {

void Findings::at_most(std::string claim, double baseline, double measured, double bound) {
  claims_.push_back({std::move(claim), baseline, measured, fmt::format("at most {:g}", bound), measured <= bound});
}

void Findings::at_least(std::string claim, double baseline, double measured, double bound) {
  claims_.push_back({std::move(claim), baseline, measured, fmt::format("at least {:g}", bound), measured >= bound});
}

void Findings::skip(std::string claim, std::string reason) { skipped_.push_back({std::move(claim), std::move(reason)}); }

bool Findings::hold() const {
  return !claims_.empty() && std::all_of(claims_.begin(), claims_.end(), [](const Claim& c) { return c.pass; });
}

std::string to_json(const std::string& slug, const Findings& findings, double seconds) {
  base::OrderedJson json = {
      {"slug", slug}, {"claims", base::OrderedJson::array()}, {"skipped", base::OrderedJson::array()}, {"seconds", seconds}};
  for (const Claim& c : findings.claims())
    json["claims"].push_back(
        {{"claim", c.claim}, {"baseline", c.baseline}, {"measured", c.measured}, {"threshold", c.threshold}, {"pass", c.pass}});
  for (const Skipped& s : findings.skipped()) json["skipped"].push_back({{"claim", s.claim}, {"reason", s.reason}});
  return base::pretty(json);
}

std::string to_table(const Findings& findings) {
  size_t width = 5;
  for (const Claim& c : findings.claims()) width = std::max(width, c.claim.size());
  for (const Skipped& s : findings.skipped()) width = std::max(width, s.claim.size());
  std::string table = fmt::format("{:<{}}  {:>12}  {:>12}  {:<18}  {}\n", "claim", width, "baseline", "measured", "threshold", "verdict");
  for (const Claim& c : findings.claims())
    table += fmt::format("{:<{}}  {:>12.6g}  {:>12.6g}  {:<18}  {}\n", c.claim, width, c.baseline, c.measured, c.threshold,
                         c.pass ? "holds" : "FAILS");
  for (const Skipped& s : findings.skipped())
    table += fmt::format("{:<{}}  {:>12}  {:>12}  {:<18}  skipped: {}\n", s.claim, width, "-", "-", "-", s.reason);
  return table;
}

}  // namespace cairn::study
