#include "train/report/report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/report/html_text.h"
#include "train/report/plot.h"

namespace cairn::train {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

ReportData run_of(int64_t rows) {
  ReportData data;
  data.title = "tiny";
  for (int64_t i = 1; i <= rows; ++i) {
    const auto f = static_cast<double>(i);
    data.rows.push_back({i, 7 / std::sqrt(f), 1e4 + std::fmod(f, 7), 5e8, 1e-3, 1 + 1 / f, f * 0.1, i * 512});
  }
  return data;
}

// The name of the first tag that is not closed in order; empty where all are.
std::string unbalanced(const std::string& html) {
  static const std::set<std::string> empty_elements{"meta", "path", "!doctype"};
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return "<";
    const std::string tag = html.substr(at + 1, end - at - 1);
    const bool closing = tag.starts_with('/');
    const std::string name = tag.substr(closing, tag.find_first_of(" \n/", closing) - closing);
    if (empty_elements.contains(name)) continue;
    if (!closing) {
      open.push_back(name);
      if (name == "script" || name == "style") at = html.find("</" + name, end) - 1;
    } else {
      if (open.empty() || open.back() != name) return name;
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back();
}

// Every path of the page that is drawn with this class.
std::vector<std::string> paths(const std::string& html, const std::string& style) {
  std::vector<std::string> found;
  const std::regex pattern("<path class=\"" + style + "\" d=\"([^\"]*)\"/>");
  for (std::sregex_iterator it(html.begin(), html.end(), pattern), end; it != end; ++it) found.push_back((*it)[1]);
  return found;
}

std::string only(const std::vector<std::string>& found) { return found.size() == 1 ? found[0] : "not one path"; }

TEST(Report, IsWellFormedForAnyNumberOfRows) {
  for (const int64_t rows : {0, 1, 2, 3, 39, 40, 41, 1001, 5000}) {
    const std::string html = report_html(run_of(rows));
    EXPECT_EQ(unbalanced(html), "") << rows;
    EXPECT_THAT(html, testing::StartsWith("<!doctype html>"));
  }
  EXPECT_EQ(unbalanced("<p><b></p>"), "p");  // the checker does its work
}

TEST(Report, NeedsNothingFromOutside) {
  const std::string html = report_html(run_of(50));
  for (const char* way_out : {"http:", "https:", "src=", "@import", "url(", "<link"}) EXPECT_THAT(html, Not(HasSubstr(way_out)));
}

TEST(Report, EscapesEveryText) {
  const std::string evil = "</code></style><script>alert(\"1\")</script>&'";
  ReportData data = run_of(3);
  data.title = data.recipe_toml = evil;
  data.samples = {{evil, evil}};
  data.facts = {{evil, evil}};
  data.ledger_json = R"x({"by_purpose":{"</td><script>alert(1)":{"bytes":5,"messages":1}}})x";
  const std::string html = report_html(data);
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, HasSubstr("&lt;/code&gt;&lt;/style&gt;&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;&#39;"));
  EXPECT_THAT(html, HasSubstr("<td>&lt;/td&gt;&lt;script&gt;alert(1)</td>"));
  EXPECT_EQ(unbalanced(html), "");
}

TEST(Report, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(html_escaped("a\xff\xc3\xa4\xe2\x82z\xed\xa0\x80\x1b[0m\x7f\n"),
            "a\xef\xbf\xbd\xc3\xa4\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd[0m\n");
  EXPECT_EQ(html_escaped("\xf0\x9f\x98\x80\xe0\x80\x80"), "\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(Report, DrawsTheLossWhereItIs) {
  ReportData data = run_of(0);
  data.rows = {{1, 8, 1, 1, 1, 1, 1, 1}, {2, 4, 1, 1, 1, 1, 2, 2}, {3, 2, 1, 1, 1, 1, 3, 3}};
  data.held_out = {{3, 3}};
  const std::string html = report_html(data);
  // The axis goes from 2 to 8 on 300 units, steps 1 to 3 on 1000.
  EXPECT_EQ(only(paths(html, "line loss")), "M0.0 0.0L500.0 200.0L1000.0 300.0");
  EXPECT_EQ(only(paths(html, "dot held")), "M1000.0 250.0h0");
  EXPECT_THAT(html, HasSubstr("<dd class=\"value\">2.000</dd><dd class=\"more\">from 8.000</dd>"));
  EXPECT_THAT(html, HasSubstr("<dd class=\"value\">3.000</dd><dd class=\"more\">perplexity 20.1</dd>"));
}

TEST(Report, GivesTheHeadlineNumbers) {
  ReportData data = run_of(4);
  data.rows[1].tokens_per_s = 99'000;
  data.rows[2].memory_bytes = 3.5 * 1024 * 1024;
  for (ReportData::Row& row : data.rows) row.memory_bytes = std::min(row.memory_bytes, 3.5 * 1024 * 1024);
  const std::string html = report_html(data);
  EXPECT_THAT(html, HasSubstr("<dt>Tokens</dt><dd class=\"value\">2.05k</dd><dd class=\"more\">in 4 steps</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Tokens a second</dt><dd class=\"value\">10.0k</dd><dd class=\"more\">median, best 99.0k</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Peak memory</dt><dd class=\"value\">3.50<small>MiB</small></dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>Held-out loss</dt><dd class=\"value\">–</dd>"));
}

TEST(Report, OneStepIsADot) {
  const std::string html = report_html(run_of(1));
  EXPECT_EQ(only(paths(html, "line loss lone")), "M500.0 150.0h0");
}

TEST(Report, LeavesAGapWhereAValueIsNotFinite) {
  ReportData data = run_of(0);
  for (int64_t i = 0; i < 5; ++i) data.rows.push_back({i, i == 1 ? kNan : static_cast<double>(i), kInf, kNan, -kInf, 1e300, kNan, i});
  data.held_out = {{0, kNan}, {4, kInf}};
  const std::string html = report_html(data);
  EXPECT_EQ(only(paths(html, "line loss")), "M0.0 300.0h0M500.0 150.0L750.0 75.0L1000.0 0.0");
  EXPECT_EQ(only(paths(html, "line speed")), "");
  for (const char* style : {"grid", "line memory", "line rate", "line norm", "dot held"}) {
    for (const std::string& path : paths(html, style)) EXPECT_THAT(path, testing::MatchesRegex("[MLVHh0-9. ]*")) << style;
  }
  EXPECT_EQ(unbalanced(html), "");
}

TEST(Report, KeepsEverySpikeOfALongRunInASmallPage) {
  ReportData data = run_of(100'000);
  for (ReportData::Row& row : data.rows) row.loss = 2;
  data.rows[54'321].loss = 10;
  data.rows[70'000].loss = 0;
  const std::string html = report_html(data);
  EXPECT_LT(html.size(), 400'000);
  const std::string raw = only(paths(html, "line raw"));
  EXPECT_TRUE(raw.find("V0.0") != std::string::npos);     // up to the top of the axis, 10
  EXPECT_TRUE(raw.find(" 300.0V") != std::string::npos);  // from its bottom, 0
  EXPECT_EQ(std::count(raw.begin(), raw.end(), 'L'), 1000);
}

TEST(Report, TablesWhatTheLedgerSaysMostFirst) {
  ReportData data = run_of(2);
  data.ledger_json = R"({"by_purpose":{"control":{"bytes":1024,"messages":1234567},"gradient":{"bytes":3072,"messages":3},)"
                     R"("idle":{"bytes":0,"messages":0}}})";
  const std::string html = report_html(data);
  EXPECT_THAT(html, testing::ContainsRegex("gradient</td><td class=\"number\">3.00 KiB</td><td class=\"number\">3</td>.*width:75.00%"));
  EXPECT_THAT(html, HasSubstr("control</td><td class=\"number\">1.00 KiB</td><td class=\"number\">1,234,567</td>"));
  EXPECT_THAT(html, HasSubstr("<td>All</td><td class=\"number\">4.00 KiB</td>"));
  EXPECT_LT(html.find("gradient</td>"), html.find("control</td>"));
  EXPECT_THAT(html, Not(HasSubstr("idle</td>")));
  for (const char* unreadable : {"", "{", "[]", R"({"by_purpose":3})", R"({"by_purpose":{"x":{"bytes":"a","messages":1}}})"}) {
    data.ledger_json = unreadable;
    EXPECT_THAT(report_html(data), Not(HasSubstr("What was sent"))) << unreadable;
  }
}

TEST(Report, MarksRecipeCommentsOutsideQuotesOnly) {
  ReportData data = run_of(1);
  data.recipe_toml = "[data]\npath = \"a#b\\\"#c\" # default\n";
  EXPECT_THAT(report_html(data), HasSubstr("<b>[data]</b>\npath = &quot;a#b\\&quot;#c&quot; <i># default</i>\n</code>"));
}

TEST(ReportPlot, PutsTicksAtRoundNumbers) {
  const Ticks loss = ticks_around(1.31, 7.4, 6);
  EXPECT_THAT(loss.at, testing::ElementsAre(0, 2, 4, 6, 8));
  const Ticks negative = ticks_around(-0.35, 0.12, 5);
  EXPECT_DOUBLE_EQ(negative.low, -0.4);
  EXPECT_DOUBLE_EQ(negative.high, 0.2);
  EXPECT_DOUBLE_EQ(negative.step, 0.1);
  const Ticks one_value = ticks_around(5, 5, 4);
  EXPECT_LE(one_value.low, 4.5);
  EXPECT_GE(one_value.high, 5.5);
  const Ticks zero = ticks_around(0, 0, 4);
  EXPECT_LT(zero.low, 0);
  EXPECT_GT(zero.high, 0);
}

TEST(ReportPlot, SmoothsOverAWindowThatNarrowsAtTheStart) {
  const std::vector<double> out = smoothed({9, 3, 0, kNan, 6}, 1);
  EXPECT_DOUBLE_EQ(out[0], 9);
  EXPECT_DOUBLE_EQ(out[1], 4);
  EXPECT_DOUBLE_EQ(out[2], 1.5);
  EXPECT_TRUE(std::isnan(out[3]));
  EXPECT_DOUBLE_EQ(out[4], 6);
}

}  // namespace
}  // namespace cairn::train
