#include "base/log.h"

#include <algorithm>
#include <mutex>

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/terminal.h"

namespace cairn::base {
namespace {

using Formatted = spdlog::memory_buf_t;

spdlog::level::level_enum of_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// spdlog's pattern and locking in front of our one terminal.
class TerminalSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit TerminalSink(std::shared_ptr<Terminal> terminal) : terminal_(std::move(terminal)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    Formatted text;
    formatter_->format(message, text);
    std::string_view line(text.data(), text.size());
    if (line.ends_with('\n')) line.remove_suffix(1);
    terminal_->line(line);
  }
  void flush_() override {}

  std::shared_ptr<Terminal> terminal_;
};

class CaptureSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override { lines_.emplace_back(message.payload.data(), message.payload.size()); }
  void flush_() override {}

  std::vector<std::string> lines_;
};

}  // namespace

struct Log::Sinks {
  int rank = 0;
  Level level = Level::info;
  spdlog::logger logger{""};
  std::shared_ptr<CaptureSink> captured;
};

Level level_from(std::string_view name) {
  if (name == "debug") return Level::debug;
  if (name == "info") return Level::info;
  if (name == "warn") return Level::warn;
  if (name == "error") return Level::error;
  fail_unknown("log level", name, {"debug", "info", "warn", "error"});
}

Log::Log(LogOptions options) : sinks_(std::make_unique<Sinks>()) {
  sinks_->rank = options.rank;
  sinks_->level = options.level;
  spdlog::logger& logger = sinks_->logger;
  logger.set_level(of_spdlog(options.level));
  if (options.terminal) {
    auto sink = std::make_shared<TerminalSink>(options.terminal);
    sink->set_pattern("%H:%M:%S %v");
    sink->set_level(options.rank == 0 || options.all_ranks_on_terminal ? spdlog::level::trace : spdlog::level::warn);
    logger.sinks().push_back(std::move(sink));
  }
  if (!options.file.empty()) {
    try {
      auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file.string(), /*truncate=*/false);
      sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
      logger.sinks().push_back(std::move(sink));
    } catch (const spdlog::spdlog_ex& error) {
      throw Error(Error::Kind::disk, fmt::format("cannot open log file {}: {}", options.file.string(), error.what()));
    }
    logger.flush_on(spdlog::level::trace);  // flush every line: the last lines before a crash matter most
  }
  logger.set_error_handler([terminal = options.terminal, file = options.file.string(), reported = false](const std::string& why) mutable {
    if (terminal && !std::exchange(reported, true)) terminal->line(fmt::format("cannot write log file {}: {}", file, why));
  });
}

Log::Log(std::unique_ptr<Sinks> sinks) : sinks_(std::move(sinks)) {}
Log::~Log() = default;
Log::Log(Log&&) noexcept = default;
Log& Log::operator=(Log&&) noexcept = default;

Log Log::quiet() { return Log(std::make_unique<Sinks>()); }

Log Log::capture(int rank, Level level) {
  auto sinks = std::make_unique<Sinks>();
  sinks->rank = rank;
  sinks->level = level;
  sinks->captured = std::make_shared<CaptureSink>();
  sinks->logger.set_level(of_spdlog(level));
  sinks->logger.sinks().push_back(sinks->captured);
  return Log(std::move(sinks));
}

bool Log::is_enabled(Level level) const {
  const auto& sinks = sinks_->logger.sinks();
  if (level < sinks_->level) return false;
  return std::any_of(sinks.begin(), sinks.end(), [&](const auto& sink) { return sink->should_log(of_spdlog(level)); });
}

void Log::write(Level level, const std::string& text) {
  static constexpr const char* kWords[] = {"debug: ", "", "warn: ", "error: "};
  const std::string line = fmt::format("[{}] {}{}", sinks_->rank, kWords[static_cast<size_t>(level)], printable(text));
  sinks_->logger.log(of_spdlog(level), spdlog::string_view_t(line));
}

std::vector<std::string> Log::lines() const { return sinks_->captured ? sinks_->captured->lines() : std::vector<std::string>{}; }

}  // namespace cairn::base
