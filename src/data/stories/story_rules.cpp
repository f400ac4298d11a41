#include <array>

#include "data/stories/story_parts.h"

namespace cairn::data {
namespace {

constexpr std::array kRules = std::to_array<Grammar::Rule>({
    {"opening",
     "[[Once upon a time, there was|There once was|Once there was] a {trait} {kind} named {N}. [{likes}|{lived}]|"
     "{N} was a {trait} {kind} who lived {near}.[ {likes}|]|"
     "In a [small|little|cozy] house {near} lived a {trait} {kind} named {N}.[ {likes}|]|"
     "This is the story of {N}, a {trait} {kind}. {lived}]"},
    {"trait",
     "[little|young|[kind|brave|curious|cheerful|clever|gentle|playful|shy|quiet] little|[kind|brave|curious|cheerful|clever] young]"},
    {"near",
     "[near the forest|by the {water}|on a green hill|at the edge of the village|in a quiet valley|beside the old mill|"
     "next to a big farm|near a tall oak tree|behind the garden wall|close to the sea]"},
    {"lived", "{He} lived {near}[ with {E}|]."},
    {"likes",
     "{He} loved to [sing|dance|run in the grass|watch the clouds|listen to stories|count the stars|play outside|pick flowers|"
     "draw pictures|help in the garden|look for small stones|jump over puddles]."},
    {"one_day", "One [sunny|bright|cool|windy|warm|quiet] [morning|day|afternoon],"},
    {"a_friend", "[{his} friend {F}|a {fkind} named {F}]"},
    {"A_friend", "[{His} friend {F}|A {fkind} named {F}]"},
    {"happy", "[happy|glad|very happy|so happy|full of joy]"},
    {"sad", "[sad|very sad|upset|close to tears]"},
    {"wanted", "[wanted|wished|hoped]"},
    {"afraid", "[afraid|scared]"},
    {"beautiful", "[beautiful|lovely]"},
    {"at_last", "[At last|Finally|In the end]"},
    {"next_day", "The next [day|morning]"},
    {"walked", "[walked|went|hurried|ran]"},
    {"worked", "[all day|all morning|all afternoon|for a long time|until the sun went down]"},
    {"end_friend",
     "[From that day on, {N} and {F} were [best|good|dear] friends.|{N} and {F} [laughed|smiled|sang] all the way home.|"
     "After that, {N} and {F} [played together every day|met every morning|did everything together].|"
     "And {N} was [glad|happy|thankful] to have a friend like {F}.|{N} hugged {F}. It had been a [wonderful|lovely|very good] day.|"
     "{F} smiled, and {N} smiled back. {learned_friend}]"},
    {"learned_friend",
     "[They knew that friends make everything better.|Some things are easier with a friend.|It is good not to be alone.]"},
    {"end_home",
     "[{end_night}|{end_night}|{end_night}|That evening {he} told {E} [all about it|the whole story], "
     "and {E} [smiled|laughed|was amazed].]"},
    {"end_night",
     "[That night, {N} fell asleep with a [big|little|warm] smile.|{N} went to bed [happy|tired but happy|with a warm heart].|"
     "{N} slept well that night and dreamed of [the stars|the {water}|tomorrow|a new adventure].|"
     "The moon came up, and everything was quiet. {N} was {happy}.]"},
    {"end_proud",
     "[{N} was [very|so] proud.|{E} hugged {him} and said, \"I am proud of you, {N}.\"|\"Well done, {N}!\" said {E}.|"
     "{E} was proud, and {N} was {happy}.|Everyone clapped, and {N} [smiled|blushed|laughed].]"},
});

}  // namespace

std::span<const Grammar::Rule> story_rules() { return kRules; }

}  // namespace cairn::data
