// The date that a chat template may write (strftime_now).
#pragma once
#include <ctime>
#include <functional>
#include <string>
#include <string_view>

namespace cairn::data {

// strftime; at most 256 bytes.
std::string format_time(const std::tm& time, const std::string& format);

// A Unix time as a date and time here.
std::tm local_time(double unix_seconds);

// The day of a Unix time here, as data.template_date has it: "2026-01-31".
std::string day_of(double unix_seconds);

// strftime_now on that day at 0:00. Refuses what is no day: `day` is the value of data.template_date.
std::function<std::string(const std::string& format)> date_on(const std::string& day);

// Whether a template may ask for the date.
bool reads_date(std::string_view template_text);

}  // namespace cairn::data
