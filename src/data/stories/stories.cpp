#include "data/stories/stories.h"

#include <array>

#include "base/check.h"
#include "base/random.h"
#include "data/stories/grammar.h"
#include "data/stories/story_parts.h"

namespace cairn::data {
namespace {

struct StoryGrammar {
  Grammar grammar;
  int32_t opening;
  int32_t first_plot;
  uint32_t plots;
};

const StoryGrammar& story_grammar() {
  static const StoryGrammar made = [] {
    std::vector<Grammar::Rule> rules(story_rules().begin(), story_rules().end());
    rules.insert(rules.end(), story_plots().begin(), story_plots().end());
    Grammar grammar(story_slots(), rules);
    const int32_t opening = grammar.rule("opening");
    const int32_t first_plot = grammar.rule(story_plots().front().first);
    return StoryGrammar{std::move(grammar), opening, first_plot, static_cast<uint32_t>(story_plots().size())};
  }();
  return made;
}

// What the slots stand for in one story, in the order of story_slots().
class Cast {
 public:
  explicit Cast(Choices& choices) {
    const bool animal = choices.below(5) < 2;
    const std::span<const Person> people = animal ? animals() : children();
    const uint32_t hero = choices.below(static_cast<uint32_t>(people.size()));
    const uint32_t other = choices.below(static_cast<uint32_t>(people.size()) - 1);
    const Person& friendly = people[other < hero ? other : other + 1];  // never the hero
    const Person& elder = choices.pick(animal ? elders_of_animals() : elders_of_children());
    put_person(people[hero]);
    put(people[hero].kind);
    put_person(friendly);
    put(friendly.kind);
    put(elder.name);
    put(elder.she ? "she" : "he");
    put(elder.she ? "She" : "He");
    put(elder.she ? "her" : "his");
    put(elder.she ? "her" : "him");
    for (const std::span<const std::string_view> words : {colors(), toys(), treats(), fruits(), flowers(), critters(), waters(), numbers()})
      put(choices.pick(words));
    CAIRN_CHECK(filled_ == story_slots().size(), "{} of {} slots", filled_, story_slots().size());
  }

  std::span<const std::string_view> values() const { return std::span(values_).first(filled_); }

 private:
  void put(std::string_view value) { values_[filled_++] = value; }

  void put_person(const Person& person) {
    put(person.name);
    put(person.she ? "she" : "he");
    put(person.she ? "She" : "He");
    put(person.she ? "her" : "his");
    put(person.she ? "Her" : "His");
    put(person.she ? "her" : "him");
  }

  std::array<std::string_view, 32> values_;
  size_t filled_ = 0;
};

}  // namespace

void append_story(uint64_t seed, int64_t index, std::string& text) {
  const StoryGrammar& told = story_grammar();
  Choices choices(base::Random(seed).for_purpose("stories").for_index(static_cast<uint64_t>(index)));
  const Cast cast(choices);
  told.grammar.expand(told.opening, cast.values(), choices, text);
  text += ' ';
  told.grammar.expand(told.first_plot + static_cast<int32_t>(choices.below(told.plots)), cast.values(), choices, text);
}

std::string stories(uint64_t seed, int64_t first, int64_t count) {
  std::string text;
  for (int64_t index = first; index < first + count; ++index) {
    if (index > first) text += "\n\n";
    append_story(seed, index, text);
  }
  return text;
}

}  // namespace cairn::data
