#include "cli/text/selection_report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/files.h"
#include "base/text.h"
#include "train/report/html_text.h"
#include "train/report/style.h"

namespace cairn::cli {
namespace {

constexpr int kBins = 40;
constexpr double kWidth = 640, kHeight = 220, kLeft = 56, kBottom = 34;
constexpr size_t kTextShown = 600;
constexpr const char *kKept = "#2f7d5b", *kDropped = "#c9c4b8";

std::string svg_of(double height, const std::string& inside) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"11\">"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
      kWidth, height, kWidth, inside);
}

std::string bar(double x, double y, double width, double height, const char* color) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y, width, height, color);
}

std::string words(double x, double y, const std::string& text, const char* anchor = "start") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, train::html_escaped(text));
}

std::string legend() {
  return bar(kLeft, 4, 10, 10, kKept) + words(kLeft + 14, 13, "kept") + bar(kLeft + 60, 4, 10, 10, kDropped) +
         words(kLeft + 74, 13, "dropped");
}

double number_in(const base::OrderedJson& row, size_t column) {
  return row.is_array() && column < row.size() && row[column].is_number() ? row[column].get<double>() : 0;
}

const base::OrderedJson* cluster_rows(const SelectionReport& report, size_t columns) {
  const auto table = report.figures.find("cluster_table");
  if (table == report.figures.end() || (*table)["columns"].size() != columns) return nullptr;
  return &(*table)["rows"];
}

std::string number_text(const base::OrderedJson& value) {
  return value.is_number_float() ? fmt::format("{:.4g}", value.get<double>()) : base::compact(value);
}

bool holds_numbers(const base::OrderedJson& value) {
  return !value.empty() && std::ranges::all_of(value, [](const base::OrderedJson& one) { return one.is_number(); });
}

// "min 0.1, median 0.2, max 0.3"; "16 to 17 each, 30 of them"
std::string value_text(const base::OrderedJson& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && holds_numbers(value)) {
    std::string text;
    for (const auto& [name, one] : value.items()) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, number_text(one));
    return text;
  }
  if (value.is_array() && holds_numbers(value)) {
    const auto [least, most] = std::ranges::minmax_element(value, {}, [](const base::OrderedJson& one) { return one.get<double>(); });
    return fmt::format("{} to {} each, {} of them", number_text(*least), number_text(*most), value.size());
  }
  if (value.is_number()) return number_text(value);
  const std::string text = base::compact(value);
  return text.size() > kTextShown ? text.substr(0, kTextShown) + " …" : text;
}

void add_lines(const std::string& label, const base::OrderedJson& value, std::vector<std::pair<std::string, std::string>>& lines) {
  const bool is_quantiles = value.is_object() && value.contains("median");
  if (!value.is_object() || is_quantiles) return lines.emplace_back(label, value_text(value)), void();
  for (const auto& [name, one] : value.items()) {
    std::string word = name;
    if (!one.is_object() || one.contains("median")) std::ranges::replace(word, '_', ' ');  // (others are names that the user gave)
    add_lines(label.empty() ? word : label + ", " + word, one, lines);
  }
}

std::string shown_text(const SelectionReport::Example& example) {
  std::string text = base::valid_utf8(example.text.substr(0, kTextShown));
  return example.text.size() > kTextShown ? text + " …" : text;
}

std::string html_rows(const std::vector<std::pair<std::string, std::string>>& lines) {
  std::string html = "<table>\n";
  for (const auto& [name, value] : lines)
    html += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", train::html_escaped(name), train::html_escaped(value));
  return html + "</table>\n";
}

std::string html_page(const SelectionReport& report) {
  std::string html = fmt::format(
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>cairn select</title><style>{}</style>\n<main><h1>{} "
      "Selection</h1>\n<p><code>{}</code></p>\n",
      train::kReportStyle, train::kReportMark, train::html_escaped(report.command));
  html += html_rows(report.facts);
  for (const std::string& warning : report.warnings) html += fmt::format("<p><b>Warning.</b> {}</p>\n", train::html_escaped(warning));
  if (const std::string drawn = draw_score_histogram(report); !drawn.empty())
    html += fmt::format("<h2>{}</h2>\n{}", train::html_escaped(report.score_name), drawn);
  if (const std::string drawn = draw_shares(report); !drawn.empty()) html += "<h2>Shares of the pool and of the selection</h2>\n" + drawn;
  if (const std::string drawn = draw_clusters(report); !drawn.empty()) html += "<h2>Clusters</h2>\n" + drawn;
  if (const auto lines = figure_lines(report.figures); !lines.empty()) html += "<h2>Figures</h2>\n" + html_rows(lines);
  for (const bool kept : {true, false}) {
    html += fmt::format("<h2>Documents {}</h2>\n", kept ? "kept" : "dropped");
    for (const auto& one : report.examples)
      if (one.kept == kept)
        html += fmt::format("<p>document {}{}</p><pre style=\"white-space:pre-wrap\">{}</pre>\n", one.document,
                            report.score_name.empty() ? "" : fmt::format(", {} {:.4f}", train::html_escaped(report.score_name), one.score),
                            train::html_escaped(shown_text(one)));
  }
  return html + "</main></html>\n";
}

std::string markdown_page(const SelectionReport& report) {
  std::string page = fmt::format("# Selection\n\n`{}`\n\n| | |\n|---|---|\n", report.command);
  for (const auto& [name, value] : report.facts) page += fmt::format("| {} | {} |\n", name, value);
  for (const auto& [name, value] : figure_lines(report.figures)) page += fmt::format("| {} | `{}` |\n", name, value);
  page += "\n";
  for (const std::string& warning : report.warnings) page += fmt::format("**Warning.** {}\n\n", warning);
  if (!report.kept_scores.empty()) page += fmt::format("![{}](scores.svg)\n\n", report.score_name);
  if (!report.shares.empty()) page += "![shares of the pool and of the selection](shares.svg)\n\n";
  if (cluster_rows(report, 5)) page += "![clusters](clusters.svg)\n\n";
  for (const auto& one : report.examples)
    page += fmt::format("**Document {}, {}.**\n\n```text\n{}\n```\n\n", one.document, one.kept ? "kept" : "dropped", shown_text(one));
  return page;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> figure_lines(const base::OrderedJson& figures) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const auto& [name, value] : figures.items()) {
    if (name == "cluster_table") continue;
    std::string label = name;
    std::ranges::replace(label, '_', ' ');
    add_lines(name == "tasks" ? "" : label, value, lines);
  }
  return lines;
}

std::string draw_score_histogram(const SelectionReport& report) {
  if (report.kept_scores.empty() && report.dropped_scores.empty()) return {};
  float low = INFINITY, high = -INFINITY;
  for (const auto* scores : {&report.kept_scores, &report.dropped_scores})
    for (const float score : *scores) low = std::min(low, score), high = std::max(high, score);
  const float span = high > low ? high - low : 1;
  std::array<std::array<int64_t, kBins>, 2> counts{};
  const auto bin_of = [&](float score) { return std::clamp(static_cast<int>((score - low) / span * kBins), 0, kBins - 1); };
  for (const float score : report.kept_scores) ++counts[0][static_cast<size_t>(bin_of(score))];
  for (const float score : report.dropped_scores) ++counts[1][static_cast<size_t>(bin_of(score))];
  int64_t most = 1;
  for (size_t i = 0; i < kBins; ++i) most = std::max(most, counts[0][i] + counts[1][i]);
  const double each = (kWidth - kLeft - 10) / kBins, room = kHeight - kBottom - 24;
  std::string drawn = legend();
  for (size_t i = 0; i < kBins; ++i) {
    const double x = kLeft + each * static_cast<double>(i), kept = room * static_cast<double>(counts[0][i]) / static_cast<double>(most),
                 dropped = room * static_cast<double>(counts[1][i]) / static_cast<double>(most);
    drawn += bar(x, kHeight - kBottom - kept, each - 1, kept, kKept);
    drawn += bar(x, kHeight - kBottom - kept - dropped, each - 1, dropped, kDropped);
  }
  drawn += words(kLeft - 6, 30, fmt::format("{}", most), "end") + words(kLeft - 6, kHeight - kBottom, "0", "end");
  drawn += words(kLeft, kHeight - 18, fmt::format("{:.4g}", low)) + words(kWidth - 10, kHeight - 18, fmt::format("{:.4g}", high), "end");
  drawn += words(kWidth / 2, kHeight - 4, report.score_name, "middle");
  return svg_of(kHeight, drawn);
}

std::string draw_shares(const SelectionReport& report) {
  if (report.shares.empty()) return {};
  constexpr double kLine = 34, kNames = 200;
  int64_t pool = 0, kept = 0;
  for (const auto& one : report.shares) pool += one.pool, kept += one.kept;
  std::string drawn = bar(kNames, 4, 10, 10, kDropped) + words(kNames + 14, 13, "of the pool") + bar(kNames + 100, 4, 10, 10, kKept) +
                      words(kNames + 114, 13, "of the selection");
  const double room = kWidth - kNames - 120;
  double y = 24;
  for (const auto& one : report.shares) {
    const double before = pool > 0 ? static_cast<double>(one.pool) / static_cast<double>(pool) : 0,
                 after = kept > 0 ? static_cast<double>(one.kept) / static_cast<double>(kept) : 0;
    const std::string name = one.name.size() > 34 ? "…" + one.name.substr(one.name.size() - 32) : one.name;
    drawn += words(kNames - 6, y + 15, name, "end") + bar(kNames, y, room * before, 11, kDropped) +
             bar(kNames, y + 12, room * after, 11, kKept) +
             words(kNames + room * std::max(before, after) + 6, y + 15, fmt::format("{:.1f} % → {:.1f} %", 100 * before, 100 * after));
    y += kLine;
  }
  return svg_of(y, drawn);
}

std::string draw_clusters(const SelectionReport& report) {
  const base::OrderedJson* rows = cluster_rows(report, 5);
  if (!rows) return {};
  double x_most = 1e-9, y_most = 1e-9, quota_most = 1;
  for (const base::OrderedJson& row : *rows) {
    x_most = std::max(x_most, number_in(row, 1));
    y_most = std::max(y_most, number_in(row, 2));
    quota_most = std::max(quota_most, number_in(row, 4));
  }
  const double width = kWidth - kLeft - 24, height = kHeight - kBottom - 24;
  std::string drawn;
  for (const base::OrderedJson& row : *rows)
    drawn += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\" fill-opacity=\"0.5\"/>\n",
                         kLeft + width * number_in(row, 1) / x_most, kHeight - kBottom - height * number_in(row, 2) / y_most,
                         1 + 9 * std::sqrt(number_in(row, 4) / quota_most), kKept);
  drawn += words(kLeft, 14, fmt::format("mean distance to neighbouring clusters, up to {:.3g}", y_most));
  drawn += words(kWidth - 10, kHeight - 8, fmt::format("mean distance within the cluster, up to {:.3g}", x_most), "end");
  return svg_of(kHeight, drawn);
}

void write_selection_report(const std::filesystem::path& folder, const SelectionReport& report) {
  base::make_folder(folder);
  base::write_atomically(folder / "report.html", html_page(report));
  base::write_atomically(folder / "report.md", markdown_page(report));
  for (const auto& [name, drawn] : {std::pair{"scores.svg", draw_score_histogram(report)},
                                    {"shares.svg", draw_shares(report)},
                                    {"clusters.svg", draw_clusters(report)}})
    if (!drawn.empty()) base::write_atomically(folder / name, drawn);
}

}  // namespace cairn::cli
