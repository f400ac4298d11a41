// `cairn chat`: a conversation with a model in the terminal.
#include <algorithm>
#include <cstdio>
#include <optional>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/text/chat_prompt.h"
#include "cli/text/language_model.h"
#include "cli/text/streaming_text.h"
#include "model/generate/generate.h"

namespace cairn::cli {
namespace {

constexpr int64_t kChatLengthMax = 1 << 17;  // tokens of a conversation, where the model would read more
constexpr size_t kLineBytesMax = 1 << 20;

// The next line of input, or nothing at its end. Refuses lines that are too long to be typed.
std::optional<std::string> read_line() {
  std::string line;
  for (int c = std::getchar(); c != EOF; c = std::getchar()) {
    if (c == '\n') return line;
    line += static_cast<char>(c);
    if (line.size() > kLineBytesMax) base::fail_input("standard input: a line of more than {} bytes", kLineBytesMax);
  }
  return line.empty() ? std::nullopt : std::optional(line);
}

void show(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// The messages so far, and how the model answers them.
class ChatSession {
 public:
  ChatSession(const ChatArguments& a, LanguageModel& model, ChatRenderer render) : a_(a), model_(model), render_(std::move(render)) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!a_.system.empty()) messages_.push_back({"system", a_.system});
  }

  void answer(const std::string& said) {
    messages_.push_back({"user", said});
    const model::GenerateRequest request{fitting_prompt(),
                                         base::Random(static_cast<uint64_t>(a_.seed)).for_purpose("chat").for_index(answers_++)};
    model::GenerateOptions options = a_.options;
    options.length_max = length_max();
    options.vocab = model_.tokenizer->vocab_size();
    options.stops = model_.stops;
    for (const char* end : {kChatmlEnd, "<|eot_id|>"})  // end-of-turn tokens: config.json may name only the end of a document
      if (const auto id = model_.tokenizer->id_of(end)) options.stops.push_back(*id);
    StreamingText text({kChatmlEnd});
    const auto on_token = [&](int64_t, int32_t id) {
      show(base::printable(text.add(model_.tokenizer->piece(id))));
      return !text.stopped();
    };
    const model::GeneratedText written =
        model::generate(*model_.model, *model_.weights, model_.buffers, {&request, 1}, options, on_token)[0];
    show(base::printable(text.rest()) + "\n");
    if (written.finish_reason == model::FinishReason::context) show("(the model's context is full here)\n");
    messages_.push_back({"assistant", base::valid_utf8(text.text())});
  }

  // Renders the simplest conversation, so that a broken template is refused before the user types anything.
  void check_template() { render_(std::vector<ChatMessage>{ChatMessage{"user", "Hello"}}); }

 private:
  int64_t length_max() const { return std::min(model_.shape.length, kChatLengthMax); }

  // The prompt; the oldest exchanges are dropped until it fits the context length.
  std::vector<int32_t> fitting_prompt() {
    const size_t kept = a_.system.empty() ? 0 : 1;
    while (true) {
      const std::vector<int32_t> ids = model_.tokenizer->encode(render_(messages_));
      if (static_cast<int64_t>(ids.size()) < length_max()) return ids;
      if (messages_.size() <= kept + 1) {
        messages_.pop_back();
        base::fail_input("that is {} tokens, and the model reads at most {}, its answer included", ids.size(), length_max());
      }
      messages_.erase(messages_.begin() + static_cast<int64_t>(kept), messages_.begin() + static_cast<int64_t>(kept) + 2);
    }
  }

  const ChatArguments& a_;
  LanguageModel& model_;
  ChatRenderer render_;
  std::vector<ChatMessage> messages_;
  uint64_t answers_ = 0;
};

}  // namespace

int chat_command(const ChatArguments& a) {
  auto terminal = std::make_shared<base::Terminal>();
  base::Log log({.level = base::Level::warn, .terminal = terminal, .file = {}});
  check(a.options.sampling);
  at::set_num_threads(threads_among(1));
  LanguageModel model = open_language_model(a.folder, log, a.on);
  model.require_tokenizer("chat");
  model.prepare_for_length(kChatLengthMax);
  ChatSession conversation(a, model, chat_renderer(model.path));
  conversation.check_template();
  if (terminal->live()) terminal->line("/reset begins anew, /quit (or the end of input) ends");
  while (true) {
    show(terminal->live() ? "> " : "");
    const std::optional<std::string> line = read_line();
    if (!line || *line == "/quit") break;
    const std::string& said = *line;
    if (said == "/reset") {
      conversation.reset();
      terminal->line("(a new conversation)");
    } else if (said.starts_with("/")) {
      terminal->line(fmt::format("no command {}: there are /reset and /quit", base::printable(said)));
    } else if (!said.empty()) {
      try {
        if (has_new_deletions(model)) {  // of a store: what they have taken answers nobody any more
          model = open_language_model(a.folder, log, a.on);
          model.prepare_for_length(kChatLengthMax);
        }
        conversation.answer(said);
      } catch (const Error& error) {
        if (error.kind() != Error::Kind::bad_input) throw;
        terminal->line(fmt::format("({})", error.what()));
      }
    }
  }
  return 0;
}

}  // namespace cairn::cli
