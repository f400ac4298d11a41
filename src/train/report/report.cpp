#include "train/report/report.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/text.h"
#include "train/report/html_text.h"
#include "train/report/plot.h"
#include "train/report/run_json.h"
#include "train/report/style.h"

namespace cairn::train {
namespace {

using Row = ReportData::Row;

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kSmoothFrom = 40;  // rows; below it the raw curve is clear enough

std::vector<double> column(const std::vector<Row>& rows, double Row::*field) {
  std::vector<double> values;
  for (const Row& row : rows) values.push_back(row.*field);
  return values;
}

std::vector<double> finite(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  return values;
}

double median(std::vector<double> values) {
  if (values.empty()) return kNothing;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// "12.3 s" as number and unit, the unit in small type.
std::string with_small_unit(const std::string& text) {
  const size_t space = text.rfind(' ');
  if (space == std::string::npos || text.find('h') != std::string::npos || text.find("m ") != std::string::npos) return html_escaped(text);
  return html_escaped(text.substr(0, space)) + "<small>" + html_escaped(text.substr(space + 1)) + "</small>";
}

std::string duration(double seconds) {
  const double capped = std::clamp(seconds, 0.0, 9e9);
  return base::human_duration(std::chrono::nanoseconds(static_cast<int64_t>(capped * 1e9)));
}

std::string bytes(double value) { return base::human_bytes(static_cast<int64_t>(std::clamp(value, 0.0, 9e18))); }

// 12,345,678.
std::string grouped(double count) {
  const std::string digits = fmt::format("{:.0f}", std::clamp(count, 0.0, 1e18));
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string loss_text(double loss) {
  if (!std::isfinite(loss)) return "–";
  return std::abs(loss) < 1e4 ? fmt::format("{:.3f}", loss) : fmt::format("{:.3g}", loss);
}

// A headline number: its name, the figure, and a note for comparison.
std::string card(const char* name, const std::string& value_html, const std::string& more) {
  return fmt::format("<div><dt>{}</dt><dd class=\"value\">{}</dd><dd class=\"more\">{}</dd></div>", name, value_html,
                     more.empty() ? "&nbsp;" : html_escaped(more));
}

std::string cards(const ReportData& data) {
  const std::vector<double> losses = finite(column(data.rows, &Row::loss)), speeds = finite(column(data.rows, &Row::tokens_per_s)),
                            memory = finite(column(data.rows, &Row::memory_bytes)), seconds = finite(column(data.rows, &Row::seconds));
  std::vector<double> held;
  for (const auto& [step, loss] : data.held_out) {
    if (std::isfinite(loss)) held.push_back(loss);
  }
  const auto steps = static_cast<double>(data.rows.size());
  const double span = seconds.empty() ? kNothing : seconds.back();
  const double perplexity = held.empty() ? kNothing : std::exp(held.back());
  std::string html = "<dl class=\"cards\">";
  html += card("Final loss", losses.empty() ? "–" : loss_text(losses.back()), losses.size() < 2 ? "" : "from " + loss_text(losses.front()));
  html += card("Held-out loss", held.empty() ? "–" : loss_text(held.back()),
               perplexity < 1e6 ? fmt::format("perplexity {:.3g}", perplexity) : "");
  html += card("Tokens", data.rows.empty() ? "–" : base::human_count(static_cast<double>(data.rows.back().tokens)),
               data.rows.empty() ? "" : fmt::format("in {} step{}", grouped(steps), steps == 1 ? "" : "s"));
  html += card("Tokens a second", speeds.empty() ? "–" : base::human_count(median(speeds)),
               speeds.size() < 2 ? "" : fmt::format("median, best {}", base::human_count(*std::max_element(speeds.begin(), speeds.end()))));
  html += card("Peak memory", memory.empty() ? "–" : with_small_unit(bytes(*std::max_element(memory.begin(), memory.end()))), "");
  html += card("Time", std::isfinite(span) ? with_small_unit(duration(span)) : "–",
               std::isfinite(span) && steps > 0 ? duration(span / steps) + " a step" : "");
  return html + "</dl>\n";
}

// A noisy curve: the values in a faint style, their running mean on top.
std::vector<Plot::Line> noisy(const char* name, const std::string& faint, const std::string& strong, const std::vector<double>& values) {
  const auto rows = static_cast<int64_t>(values.size());
  if (rows < kSmoothFrom) return {{name, strong, values}};
  return {{"each step", faint, values}, {"smoothed", strong, smoothed(values, std::clamp<int64_t>(rows / 60, 2, 500))}};
}

std::string plots(const ReportData& data) {
  if (data.rows.empty()) return "<p class=\"plain\">This run took no step: there is nothing to plot.</p>\n";
  std::vector<int64_t> steps;
  for (const Row& row : data.rows) steps.push_back(row.step);
  const auto plot = [&](const char* title, const char* note, std::vector<Plot::Line> lines) {
    return Plot{.title = title, .note = note, .steps = steps, .lines = std::move(lines), .dots = {}, .from_zero = true};
  };
  const auto values = [&](double Row::*field) { return column(data.rows, field); };
  Plot loss = plot("Loss", "nats per token", noisy("training", "raw", "loss", values(&Row::loss)));
  loss.from_zero = false;
  loss.tall = true;
  if (!data.held_out.empty()) loss.dots.push_back({"held out", "held", data.held_out});
  if (!data.local.empty()) loss.dots.push_back({"islands, held out", "speed", data.local});
  if (!data.merged.empty()) loss.dots.push_back({"their mean, held out", "memory", data.merged});
  Plot memory = plot("Memory", "", {{"memory", "memory", values(&Row::memory_bytes)}});
  memory.unit = Plot::Unit::bytes;
  std::string html = "<section class=\"plots\">\n" + plot_html(loss);
  html +=
      plot_html(plot("Throughput", "tokens per second", noisy("tokens per second", "speed faint", "speed", values(&Row::tokens_per_s)))) +
      plot_html(memory);
  html += plot_html(plot("Learning rate", "", {{"learning rate", "rate", values(&Row::lr)}}));
  html += plot_html(plot("Gradient norm", "before clipping", noisy("gradient norm", "norm faint", "norm", values(&Row::grad_norm))));
  return html + "</section>\n";
}

std::string samples(const ReportData& data) {
  if (data.samples.empty()) return {};
  std::string html = "<section><h2>What it writes</h2>\n";
  for (const ReportData::Sample& sample : data.samples) {
    html += fmt::format("<blockquote class=\"sample\"><b>{}</b>{}</blockquote>\n", html_escaped(sample.prompt), html_escaped(sample.text));
  }
  return html + "</section>\n";
}

std::string traffic_table(const ReportData& data) {
  const std::vector<Traffic> traffic = traffic_of(data.ledger_json);
  if (traffic.empty()) return {};
  Traffic sum{.purpose = "all"};
  for (const Traffic& row : traffic) sum.bytes += row.bytes, sum.messages += row.messages;
  std::string html =
      "<section><h2>What was sent</h2>\n<table><thead><tr><th>Purpose</th><th class=\"number\">Bytes</th><th class=\"number\">Messages</th>"
      "<th class=\"share\">Share</th></tr></thead><tbody>\n";
  for (const Traffic& row : traffic) {
    html += fmt::format(
        "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"share\"><div class=\"track\"><i "
        "style=\"width:{:.2f}%\"></i></div></td></tr>\n",
        html_escaped(row.purpose), bytes(row.bytes), grouped(row.messages), sum.bytes > 0 ? row.bytes / sum.bytes * 100 : 0);
  }
  return html + fmt::format(
                    "<tr class=\"sum\"><td>All</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td "
                    "class=\"share\"></td></tr>\n</tbody></table></section>\n",
                    bytes(sum.bytes), grouped(sum.messages));
}

std::string facts(const ReportData& data) {
  if (data.facts.empty()) return {};
  std::string html = "<section><h2>Where it ran</h2>\n<dl class=\"facts\">";
  for (const auto& [name, value] : data.facts)
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", html_escaped(name), html_escaped(value));
  return html + "</dl></section>\n";
}

// Where the comment of a TOML line begins: at the first # outside quotes.
size_t comment_begin(std::string_view line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quote == '"' && line[i] == '\\') {
      ++i;
    } else if (quote != 0) {
      quote = line[i] == quote ? 0 : quote;
    } else if (line[i] == '"' || line[i] == '\'') {
      quote = line[i];
    } else if (line[i] == '#') {
      return i;
    }
  }
  return line.size();
}

std::string recipe(const ReportData& data) {
  if (data.recipe_toml.empty()) return {};
  std::string html = "<details><summary>The recipe, with every default filled in</summary><pre><code>";
  std::string_view rest = data.recipe_toml;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::string_view code = line.substr(0, comment_begin(line)), comment = line.substr(code.size());
    html += code.starts_with('[') ? "<b>" + html_escaped(code) + "</b>" : html_escaped(code);
    if (!comment.empty()) html += "<i>" + html_escaped(comment) + "</i>";
    html += '\n';
  }
  return html + "</code></pre></details>\n";
}

}  // namespace

std::string report_html(const ReportData& data) {
  const std::string title = html_escaped(data.title.empty() ? "untitled run" : data.title);
  std::string page =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n";
  page +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
      "'unsafe-inline'\">\n";
  page += fmt::format("<title>{} · Cairn</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n", title, kReportStyle);
  page += fmt::format("<header>{}<div><p class=\"kicker\">Training report</p><h1>{}</h1></div></header>\n", kReportMark, title);
  page += cards(data) + plots(data) + samples(data) + traffic_table(data) + facts(data) + recipe(data);
  page += "<footer>Written by Cairn. This page needs no network.</footer>\n</main>\n";
  return page + fmt::format("<script>{}</script>\n</body>\n</html>\n", kReportScript);
}

}  // namespace cairn::train
