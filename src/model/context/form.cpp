#include "model/context/form.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/enum_names.h"

namespace cairn::model {
namespace {

constexpr base::EnumName<ContextForm> kForms[] = {{ContextForm::ring, "ring"},
                                                  {ContextForm::ring_both_ways, "ring_both_ways"},
                                                  {ContextForm::gather, "gather"},
                                                  {ContextForm::ulysses, "ulysses"},
                                                  {ContextForm::token_ring, "token_ring"}};

constexpr const char* kHow = "write one form, or ulysses with a form for the teams, as \"ulysses:2,ring:2\"";

struct Factor {
  ContextForm form;
  std::optional<int64_t> size;
};

Factor parse_factor(std::string_view text, std::string_view word) {
  const size_t colon = word.find(':');
  const std::string_view name = word.substr(0, colon);
  const auto* found = std::find_if(std::begin(kForms), std::end(kForms), [&](const auto& one) { return name == one.name; });
  if (found == std::end(kForms)) {
    std::vector<std::string> words = context_form_words();
    words.emplace_back("auto");  // which the trainer resolves before this
    base::fail_unknown("context.form", name, words);
  }
  Factor factor{found->value, std::nullopt};
  if (colon == std::string_view::npos) return factor;
  const std::string_view digits = word.substr(colon + 1);
  int64_t size = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  if (error != std::errc() || rest != digits.data() + digits.size() || size < 1 || size > (1 << 20))
    base::fail_input("context.form = \"{}\": \"{}\" is no number of ranks: {}", text, digits, kHow);
  factor.size = size;
  return factor;
}

}  // namespace

std::vector<std::string> context_form_words() { return base::enum_words(kForms); }

ContextMethod parse_context_method(std::string_view text, int64_t ranks) {
  const size_t comma = text.find(',');
  const Factor first = parse_factor(text, text.substr(0, comma));
  if (comma == std::string_view::npos) {
    if (first.size && ranks > 0 && *first.size != ranks)
      base::fail_input("context.form = \"{}\": there are {} ranks along cp: leave out the number, or set mesh.cp = {}", text, ranks,
                       *first.size);
    return first.form;
  }
  const Factor second = parse_factor(text, text.substr(comma + 1));
  if (first.form != ContextForm::ulysses || second.form == ContextForm::ulysses)
    base::fail_input("context.form = \"{}\": a product is of ulysses, for neighbours, and another form: {}", text, kHow);
  if (!first.size || !second.size) base::fail_input("context.form = \"{}\": a product needs the ranks of both: {}", text, kHow);
  if (ranks > 0 && *first.size * *second.size != ranks)
    base::fail_input("context.form = \"{}\": is for {} ranks, and there are {} along cp: use \"ulysses:{},{}:{}\"", text,
                     *first.size * *second.size, ranks, std::gcd(*first.size, ranks), base::enum_name(kForms, second.form),
                     ranks / std::gcd(*first.size, ranks));
  if (*second.size == 1) return ContextForm::ulysses;
  return {second.form, *first.size};
}

std::string to_string(const ContextMethod& method, int64_t ranks) {
  const std::string form = base::enum_name(kForms, method.form);
  if (method.ulysses == 1 || method.form == ContextForm::ulysses) return form;
  return fmt::format("ulysses:{},{}:{}", method.ulysses, form, ranks / method.ulysses);
}

void check(const ContextMethod& method, int64_t ranks, int64_t heads) {
  if (ranks <= 1) return;
  const int64_t team = method.form == ContextForm::ulysses ? ranks : method.ulysses;
  const std::string text = to_string(method, ranks);
  if (ranks % team != 0)
    base::fail_input("context.form = \"{}\": teams of {} ranks do not divide the {} along cp: use ulysses:{}", text, team, ranks,
                     std::gcd(team, ranks));
  if (heads % team == 0) return;
  const int64_t nearest = std::gcd(heads, ranks);
  if (nearest == 1) base::fail_input("context.form = \"{}\": {} heads cannot be divided over {} ranks: use ring", text, heads, team);
  base::fail_input("context.form = \"{}\": {} heads cannot be divided over {} ranks: use {}", text, heads, team,
                   nearest == ranks ? "ulysses" : fmt::format("\"ulysses:{},ring:{}\"", nearest, ranks / nearest));
}

}  // namespace cairn::model
