#include "data/chat/template_date.h"

#include <charconv>

#include "base/check.h"

namespace cairn::data {
namespace {

constexpr size_t kDateBytesMax = 256;

// `digits` as a number from `least` to `most`, else -1.
int number_of(std::string_view digits, int least, int most) {
  int number = -1;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return read.ptr == digits.data() + digits.size() && number >= least && number <= most ? number : -1;
}

}  // namespace

std::string format_time(const std::tm& time, const std::string& format) {
  std::string text(kDateBytesMax, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &time));
  return text;
}

std::tm local_time(double unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  localtime_r(&time, &parts);
  return parts;
}

std::string day_of(double unix_seconds) { return format_time(local_time(unix_seconds), "%Y-%m-%d"); }

std::function<std::string(const std::string&)> date_on(const std::string& day) {
  std::tm time{};
  bool good = day.size() == 10 && day[4] == '-' && day[7] == '-';
  if (good) {
    const std::string_view digits = day;
    time.tm_year = number_of(digits.substr(0, 4), 1, 9999) - 1900;
    time.tm_mon = number_of(digits.substr(5, 2), 1, 12) - 1;
    time.tm_mday = number_of(digits.substr(8, 2), 1, 31);
    const std::tm asked = time;
    good = asked.tm_year > -1900 && asked.tm_mon >= 0 && asked.tm_mday > 0;
    timegm(&time);  // finds the day of the week, and turns 31 April into 1 May
    good = good && time.tm_mon == asked.tm_mon;
  }
  if (!good) base::fail_input("data.template_date = {}: is no date. Write it as 2026-01-31.", day);
  return [time](const std::string& format) { return format_time(time, format); };
}

bool reads_date(std::string_view template_text) { return template_text.find("strftime_now") != std::string_view::npos; }

}  // namespace cairn::data
