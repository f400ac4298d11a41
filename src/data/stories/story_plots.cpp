#include <array>

#include "data/stories/story_parts.h"

namespace cairn::data {
namespace {

// Each begins after the hero has been named, and ends the story.
constexpr std::array kPlots = std::to_array<Grammar::Rule>({
    {"kite in the tree",
     "{one_day} {he} ran up the hill with {his} {color} kite. {He} wanted it to fly [as high as the clouds|over the trees]. But the "
     "wind was [too strong|wild], and it blew the kite into a tall tree. {N} jumped and jumped, but {he} could not reach "
     "it.\n\n{A_friend} [came by|came along|was passing by] and saw that {N} was {sad}. \"[Do not worry|Do not be sad|Let me help],\" "
     "said {F}. \"I am good at climbing!\" {F} climbed up [branch by branch|slowly and carefully] and pulled the kite free. Because "
     "{F} had helped, {N} let {fhim} fly it first. {end_friend}"},
    {"lost toy",
     "{one_day} {N} could not find {his} {color} {toy}. {He} looked under the bed, behind the door and in the garden, but it was not "
     "there. {N} was {sad}, because it was a gift from {E}.\n\n\"Where did you play [yesterday|last]?\" asked {E}. {N} thought "
     "[hard|for a moment]. \"By the {water}!\" {he} said. They {walked} to the {water} together, and there it was, [wet but not "
     "broken|lying in the tall grass|next to a big stone]. {N} was {happy}. [From then on|After that|From that day on], {he} always "
     "put the {toy} back in its place."},
    {"found toy",
     "{one_day} {N} found a {color} {toy} [in the grass|on the path|under a bush]. It was [very pretty|almost new], and {N} {wanted} "
     "to keep it. But then {he} heard someone crying. It was {F}, a [little|young] {fkind}. \"I lost my {toy},\" said {F}, \"and I "
     "cannot find it.\"\n\n{N} [looked|stared] at the {toy} in {his} hands. It was hard to give it away, but {he} knew what was "
     "right. \"Is this yours?\" {he} asked. {F} stopped crying and [jumped with joy|smiled a big smile]. \"You are so kind!\" said "
     "{F}. \"Let us play with it together.\" {end_friend}"},
    {"hurt critter",
     "{one_day} {he} heard a [small|soft] sound near the {water}. A little {critter} was stuck [under a branch|between two stones|in "
     "the mud]. \"Please help me,\" said the {critter}. {N} was [a little {afraid}|not very strong], but {he} did not run away. {He} "
     "pulled [and pulled|with all {his} might], and [at last|in the end] the {critter} was free.\n\n\"Thank you,\" it said. \"One day "
     "I will help you too.\" A week later {N} got lost in the forest. {He} did not know the way, and it was getting dark. Then the "
     "{critter} came and showed {him} the path. {N} was glad that {he} had been kind. {end_home}"},
    {"seed that would not grow",
     "{one_day} {E} gave {him} a tiny seed. \"Take good care of it,\" said {E}. {N} {wanted} to grow a {flower}. {He} put the seed in "
     "the ground and gave it water. But the next day there was nothing to see, and the day after that there was still nothing. \"Why "
     "does it not grow?\" asked {N}. \"Good things need time,\" said {E}.\n\nSo {N} waited. {He} gave it water every morning and sang "
     "to it every evening. Then, after {number} weeks, a green leaf came out of the ground, and soon there was a {beautiful} {color} "
     "{flower}. {end_proud}"},
    {"afraid of the dark",
     "There was one thing that {N} did not like, and that was the dark. Every night {he} [hid under the blanket|could not sleep]. "
     "\"What is in the dark?\" {he} asked. {E} [smiled|took {his} hand] and said, \"Come with me and see.\" They {walked} outside "
     "together.\n\nAt first {N} was {afraid}. Then {he} looked up, and {he} saw the stars, more than {he} could count. An owl called, "
     "and the {water} was [full of moonlight|shining]. \"The dark is {beautiful},\" said {N}. Because {he} had looked, {he} was not "
     "{afraid} anymore. {end_night}"},
    {"shared food",
     "{one_day} {E} made some {treat}, and {N} took a big piece to eat by the {water}. {He} {wanted} to eat it all alone. But "
     "{a_friend} was sitting there and looked {sad}. \"I am so hungry,\" said {F}. \"I lost my lunch in the {water}.\"\n\n{N} "
     "[looked|stared] at the {treat}. It was not very big. But {he} broke it in two and gave one half to {F}. They ate "
     "[slowly|together in the sun], and it tasted better than ever. {next_day} {F} came back with a basket full of {fruit}. \"This is "
     "for you,\" said {F}, \"because you [were kind to|shared with] me.\" {end_friend}"},
    {"the long bridge",
     "{one_day} {N} {wanted} to visit {F}, who lived on the other side of the {water}. But the bridge was [old and high|long and "
     "thin], and {N} was {afraid}. {He} put one foot on it and [stepped back|ran away]. \"I cannot do it,\" {he} said.\n\n{F} saw "
     "{him} from the other side. \"Do not look down,\" called {F}. \"Look at me, and take one small step.\" {N} looked at {F} and "
     "took one step, then another, and then another. [Soon|Before long] {he} was on the other side. \"I did it!\" {N} shouted. "
     "{end_friend}"},
    {"rain on the picnic",
     "{one_day} {N} and {F} {wanted} to have a picnic on the hill. They packed {treat} and some {fruit}. But when they came to the "
     "top, dark clouds filled the sky, and it [began|started] to rain. \"Our picnic is over,\" said {F}, who was {sad}.\n\n{N} "
     "[looked around and saw|saw] [a big tree|an old hut|a dry cave]. \"Come with me!\" {he} said. They sat there [warm and dry|close "
     "together], ate the {treat} and listened to the rain. When the sun came back, there was a rainbow over the {water}. \"Without "
     "the rain we would not have seen it,\" said {N}. {end_friend}"},
    {"learning to skate",
     "All the others could skate, but {N} could not. {He} {wanted} to skate on the frozen {water} [more than anything|with the "
     "others]. One cold day, {he} stepped on the ice and fell down with a bump. {F} pulled {him} up. \"I will never learn it,\" said "
     "{N}.\n\n\"You will,\" said {F}. \"I fell too, at first. Bend your knees and do not look at your feet.\" So they went to the ice "
     "every day, and every day {N} fell a little less. After {number} days {he} skated all the way across. {F} cheered, and {N} was "
     "{happy}. Now {he} knew that you learn by trying again."},
    {"the race",
     "{one_day} there was a race around the {water}. {N} {wanted} to win. {He} ran [as fast as {he} could|like the wind], and soon "
     "{he} was ahead of everyone. Then {he} heard a cry. {F} had fallen and hurt {fhis} knee. {N} could run on and win, or {he} could "
     "stop.\n\n{N} turned around. \"Take my hand,\" {he} said, and they walked to the end together. They were the very last. But {E} "
     "gave them both a {color} ribbon. \"You did not win the race,\" said {E}, \"but you did something better.\" {end_friend}"},
    {"the broken bowl",
     "{one_day} {N} was playing [in the kitchen|in the house] with a ball. It flew through the air and hit {E}'s {color} bowl. Crash! "
     "The bowl broke into {number} pieces. {N} was {afraid}. {He} wanted to hide the pieces [under the bed|behind the door] and say "
     "nothing.\n\nBut it did not feel right. So {N} went to {E} and said, \"I broke your bowl. [I am sorry|I am so sorry].\" {E} [was "
     "quiet for a moment|said nothing for a while]. Then {ehe} said, \"Thank you for telling the truth. A bowl can be fixed.\" [They "
     "sat down and|So they] put the pieces back together with glue. {N} felt [light|much better] again. {end_night}"},
    {"the moon wish",
     "Every night {N} [looked|stared] at the moon and wished to touch it. {one_day} {he} had a plan. {He} climbed the highest hill, "
     "but the moon was still too far away. {He} stood on a big stone and stretched, but it was no use. {N} was {sad}.\n\n\"What is "
     "wrong?\" asked {F}. {N} told {fhim} [about the wish|everything]. {F} thought for a while and then led {him} to the {water}. The "
     "moon was shining in it, round and white. {N} put one hand into the water and touched the moon. It danced and laughed in the "
     "waves. \"Now I have touched the moon!\" said {N}. {end_friend}"},
    {"snow house",
     "One winter morning, everything was white with snow. {N} {wanted} to build a house of snow, but {he} was too small to do it "
     "alone. {He} made one wall, and it fell down. {He} made another, and it fell down too. {N} kicked the snow and was "
     "{sad}.\n\n{A_friend} [came by|came along|was passing by]. \"You make the snow bricks,\" said {F}, \"and I will put them up.\" "
     "They worked {worked}. Because they helped each other, the walls did not fall. In the evening they sat inside with [a small "
     "candle|some {treat}] and felt warm. {end_friend}"},
    {"the cold bird",
     "One cold winter day, {N} saw a little bird in the snow. It was [shaking|too cold to fly]. {N} {wanted} to help, so {he} took "
     "off {his} {color} scarf and put it around the bird. Now {N} was cold, but {he} carried the bird home.\n\n\"We must keep it "
     "warm,\" said {E}. They made a nest in a box and gave the bird some bread. All winter long the bird lived with them. In spring "
     "it flew away, and {N} was {sad}. But the next morning {he} heard a song at the window. The bird had come back to sing for "
     "{him}. {end_night}"},
    {"too many berries",
     "{one_day} {N} saw a tree full of {fruit}. \"I want them all!\" {he} said. {E} told {him}, \"Do not eat too many.\" But {N} did "
     "not listen. {He} ate and ate until the basket was empty. [Soon|Before long] {his} belly [began|started] to hurt, and {he} had "
     "to lie down in the grass.\n\n{E} brought {him} warm tea and did not scold. \"I should have listened,\" said {N}. \"And I left "
     "nothing for you.\" When {he} felt better, {he} went back and filled a basket for {E} and for {F}. It was nicer to share, and "
     "{N} ate only [two|three|four]."},
    {"the lost way home",
     "{one_day} {N} followed a {color} butterfly into the forest. It flew from flower to flower, and {N} ran after it. When {he} "
     "stopped, {he} did not know where {he} was. All the trees looked the same. {N} wanted to cry, but {he} sat down and "
     "thought.\n\n\"{E} told me that the {water} goes past our house,\" {he} said. {N} was very quiet and listened. There it was, the "
     "sound of water! {He} followed it [step by step|over stones and roots], and [at last|in the end] {he} saw a light in the window. "
     "{E} ran out and held {him} tight. {end_night}"},
    {"a song for the show",
     "{N} loved to sing, but only when {he} was alone. {one_day} there was a show in the village, and {N} {wanted} to sing for "
     "everyone. But when {he} stood up and saw all the faces, no sound came out. {His} legs were shaking.\n\nThen {F} stood up too. "
     "\"I will sing with you,\" said {F}, and began very softly. {N} [took a deep breath|closed {his} eyes] and sang along. "
     "[Soon|Before long] {his} voice was clear and strong, and {F} stopped and let {him} sing alone. When the song was over, everyone "
     "[clapped|cheered]. \"You only needed to start,\" said {F}. {end_friend}"},
    {"the grumpy neighbor",
     "Next door lived {F}, a {fkind} who never [smiled|said hello]. Everyone was {afraid} of {fhim}. But {N} was curious. {one_day} "
     "{he} took some {treat} and knocked on the door. \"Go away!\" said a voice. {N} wanted to run, but {he} put the {treat} on the "
     "step and said, \"This is for you.\"\n\n{next_day} the plate was back, and on it lay a {flower}. The day after that the door was "
     "open. \"Nobody ever came to see me,\" said {F}. \"I thought nobody liked me.\" \"I like you,\" said {N}. {end_friend}"},
    {"the little boat",
     "{one_day} {N} built a little boat of wood and leaves. {He} {wanted} to sail it down the {water}. But when {he} put it in, water "
     "came through a hole, and the boat went down. {N} was {sad}. {He} had worked on it {worked}.\n\n{A_friend} looked at the boat. "
     "\"It only needs a bit of wax,\" said {F}. [Together|Side by side] they closed the hole and gave the boat a {color} sail. This "
     "time it did not sink. It danced on the waves, and they ran beside it until their feet were tired. {end_friend}"},
    {"the cookie thief",
     "{E} had made {number} cookies, but now one was gone. \"Who took it?\" asked {E}. {N} had not done it, and {he} {wanted} to find "
     "out who had. {He} looked at the floor and saw [tiny crumbs|a line of crumbs]. {He} followed them out of the door, through the "
     "garden and under the fence.\n\nThere sat a thin little {critter} with the cookie. \"[I am sorry|I am so sorry],\" it said. \"I "
     "was so hungry.\" {N} was not angry anymore. \"Next time, just ask,\" {he} said. {E} gave the {critter} a bowl of milk, and "
     "every day after that it came to visit. {end_night}"},
    {"the wind and the hat",
     "{one_day} {N} got a new {color} hat. {He} {wanted} to show it to {F}. But on the way a strong wind came and took the hat away. "
     "It flew over the fence, over the {water} and over the trees. {N} ran after it until {he} could run no more.\n\nWhen {he} came "
     "to {F}'s house, {he} was {sad}. \"My new hat is gone,\" {he} said. {F} laughed. \"Look up,\" said {F}. A bird was sitting in "
     "the tree, and the hat was its nest, with {number} eggs inside. \"The birds need it more than I do,\" said {N}. {end_friend}"},
    {"the small helper",
     "{N} was the smallest of all. \"You are too small to help,\" the others always said. {N} {wanted} to show that small ones can do "
     "big things. {one_day} {E} lost the key to the house. It had fallen into a deep, thin hole, and no one could reach it.\n\n\"Let "
     "me try,\" said {N}. {He} lay down, put {his} arm into the hole, and felt something cold. It was the key! {E} opened the door, "
     "and everyone cheered. \"It is good that you are small,\" said {E}. {end_proud}"},
    {"the quarrel",
     "{N} and {F} were friends, but one [sunny|cold|rainy|warm] day they had a quarrel. They both wanted the same {color} {toy}. {N} "
     "pulled on one side, {F} pulled on the other side, and the {toy} broke. \"It is your fault!\" shouted {N}. \"No, it is yours!\" "
     "shouted {F}. They went home and did not talk.\n\nBut it was no fun to play alone. In the evening {N} took some [glue|string] "
     "and went to find {F}. On the way {he} met {F}, who had the same idea. \"[I am sorry|I am so sorry],\" they both said at the "
     "same time, and then they laughed. [Together|Side by side] they fixed the {toy}. {end_friend}"},
    {"the new one",
     "{one_day} {F}, a {fkind}, came to live in the village. {F} did not know anyone and sat alone by the {water}. {N} wanted to say "
     "hello, but {he} was shy. {He} walked past once, and then {he} walked past again.\n\n{at_last} {N} had an idea. {He} rolled "
     "{his} ball so that it stopped at {F}'s feet. {F} looked up and rolled it back. Back and forth it went, and soon they were both "
     "laughing. \"My name is {N},\" said {N}. \"Do you want to see my [garden|house|secret place]?\" {F} did. {end_friend}"},
    {"the tall tower",
     "{one_day} {N} {wanted} to build a tower as tall as a tree. {He} put one stone on top of another, very fast. When the tower was "
     "as high as {his} head, it [began|started] to shake, and then it fell down. {N} was {sad}. \"I was so close,\" {he} said.\n\n{E} "
     "picked up a stone. \"Start with the big ones,\" said {E}, \"and do not hurry.\" So {N} began again. {He} put the big stones at "
     "the bottom and the small ones at the top. This time the tower stood, even when the wind blew. {end_proud}"},
    {"the star in the grass",
     "One night {N} saw a star fall behind the hill. {He} {wanted} to find it and bring it home. {He} took a lantern and {walked} "
     "through the tall grass. It was dark, and {he} was a little {afraid}, but {he} did not turn back.\n\nBehind the hill {he} saw a "
     "small light. It was not a star. It was a firefly, and its wing was caught in a spider web. {N} set it free with careful "
     "fingers. \"Thank you,\" said the firefly, and it called all its friends. [Soon|Before long] a hundred little lights danced "
     "around {N}. It was better than a star. {end_home}"},
    {"the gift",
     "Tomorrow was {F}'s birthday, and {N} {wanted} to give {fhim} something special. But {he} had no money. {He} looked in {his} "
     "room and found only an old box. \"What can I do?\" {he} asked {E}. \"The best gifts are made by hand,\" said {E}.\n\nSo {N} "
     "painted the box {color} and filled it with [smooth stones|dried flowers|little drawings]. {He} worked {worked}. When {F} opened "
     "it, {fhe} [was quiet for a moment|said nothing for a while]. Then {F} said, \"This is the best gift of all, because you made it "
     "for me.\" {end_friend}"},
    {"the sick friend",
     "{one_day} {N} {wanted} to play with {F}, but {F} was sick and had to stay in bed. {N} was {sad}. Playing alone was no fun. {He} "
     "sat by the {water} and thought about {F}.\n\n[Then|Suddenly|All at once] {he} had an idea. {He} asked {E} to make some {treat}, "
     "and {he} picked a {color} {flower}. {He} {walked} to {F}'s house and sat next to the bed. {N} told a funny story about a "
     "{critter} who wanted to be a king. {F} laughed so much that {fhe} felt better. {next_day} {F} was well again. \"Your story made "
     "me well,\" said {F}. {end_friend}"},
    {"waking the bear",
     "In the forest there was a cave, and in the cave slept a big old bear. \"Never wake the bear,\" everyone said. {one_day} {N}'s "
     "{color} ball rolled into the cave. {N} wanted it back, so {he} went in on soft feet. {He} took one step, and another. Then {he} "
     "stepped on a branch. Crack!\n\nThe bear opened one eye. \"Who is there?\" he said. {N} was very afraid, but {he} said, \"I am "
     "{N}. I only want my ball. [I am sorry|I am so sorry] that I woke you.\" The bear gave {him} the ball. \"Nobody was ever so "
     "polite to me,\" he said. \"Come and play again in spring.\" {end_home}"},
    {"the dry well",
     "That summer there was no rain, and the garden was dry. The {fruit} were small, and the flowers hung their heads. {N} {wanted} "
     "to save the garden. But the {water} was far away, and {his} bucket had a hole. Half of the water was gone before {he} came "
     "back.\n\n{N} did not give up. [All day|All day long] {he} went back and forth. In the evening {he} saw that flowers were "
     "growing along the path, where the water had dripped. \"Look,\" said {E}. \"Even your mistake made something beautiful.\" That "
     "night it rained at last. {end_proud}"},
    {"the dragon that was not there",
     "{one_day} {N} told everyone that {he} had seen a dragon by the {water}. It was not true, but {he} wanted the others to listen "
     "to {him}. They all ran to see it, and they found nothing. {next_day} {N} said it again, and again they found nothing.\n\nThen "
     "{N} saw that a lamb had fallen into the {water}. \"Help!\" {he} called. But nobody came, because nobody believed {him}. Only "
     "{F} came, and together they pulled the lamb out. \"Thank you for coming,\" said {N}. \"I will never tell a lie again.\" And "
     "{he} never did."},
    {"the music in the box",
     "{one_day} {N} found an old box in the attic. {He} {wanted} to know what was in it, but it was locked. {He} tried a stick, and "
     "{he} tried a stone, but it did not open. {N} shook it, and something inside made a soft sound.\n\n\"I know that box,\" said "
     "{E}. {eHe} took a tiny key from around {ehis} neck. When the box opened, it played a slow, sweet song. \"My mother sang it to "
     "me when I was small,\" said {E}. {N} and {E} danced through the room until it was time for bed. {end_night}"},
    {"the duckling across the road",
     "{one_day} {N} saw {number} ducklings and their mother at the {water}. One of them was smaller than the others, and it could not "
     "climb up the bank. It slipped and slipped and [began|started] to cry. The mother did not see it and swam away.\n\n{N} {wanted} "
     "to help, but the duckling was {afraid} of {him}. So {he} put a flat piece of wood into the water and stepped back. The duckling "
     "walked up the wood like a bridge and ran after its mother. She turned around and said \"quack\" {number} times. {N} thought "
     "that it meant thank you. {end_home}"},
    {"the painted fence",
     "{one_day} {E} asked {him} to paint the fence. {N} {wanted} to play with {F}, and the fence was very long. {He} painted one "
     "board and sighed. Then {F} [came by|came along]. \"That looks like fun,\" said {F}. \"May I try?\" {N} gave {fhim} a "
     "brush.\n\nThey painted {worked}. {F} made {color} dots, and {N} made little stars. They sang a song, and the work went by very "
     "fast. When {E} came out, the fence was the prettiest in the village. \"I thought that it was work,\" said {N}, \"but with you "
     "it was play.\" {end_friend}"},
    {"the slow turtle",
     "{N} did everything fast. {He} ate fast, {he} ran fast and {he} talked fast. {one_day} {he} met a turtle on the path. \"Where "
     "are you going so slowly?\" asked {N}. \"To the most beautiful place in the world,\" said the turtle. {N} {wanted} to see it "
     "too, but walking with the turtle was so slow!\n\nStill, {he} stayed. Because they went slowly, {N} saw a [blue|green|golden] "
     "beetle, a {flower} and a nest with {number} eggs. {He} had never seen them before. \"When do we come to the place?\" {he} "
     "asked. The turtle smiled. \"We are in it,\" it said. {end_home}"},
    {"the missing sun",
     "For {number} days it had rained, and {N} missed the sun. {He} {wanted} to play outside, but everything was [wet and gray|cold "
     "and wet]. {He} sat at the window and was {sad}. \"When will the sun come back?\" {he} asked. \"Nobody knows,\" said {E}.\n\nSo "
     "{N} took some paper and paint. {He} painted a big yellow sun and put it in the window. {A_friend} saw it from far away and came "
     "to visit. \"Your sun made me smile,\" said {F}. They played inside {worked}, and when they looked out of the window again, the "
     "real sun was there. {end_friend}"},
    {"the hungry goat",
     "{one_day} {N} put {his} {color} hat on a fence to play. A goat came by and ate it. \"Stop!\" shouted {N}, but the hat was gone. "
     "{N} wanted to be angry. Then {he} saw that the goat was thin and that there was no grass in its field.\n\n{N} {walked} home and "
     "told {E}. [Together|Side by side] they brought the goat a big basket of grass and {fruit}. The goat ate everything and gave {N} "
     "a kiss with its rough tongue. It was [so funny|so wet] that {N} had to laugh. \"A hat is only a hat,\" {he} said. {end_night}"},
    {"the brave letter",
     "{F} had moved to a town far away, and {N} missed {fhim} very much. {He} {wanted} to write a letter, but {he} did not know all "
     "the letters yet. \"I will help you,\" said {E}. Every evening they learned a new one. It was hard, and sometimes {N} wanted to "
     "stop.\n\nAfter {number} weeks {he} could write, \"Dear {F}, please come back. Your friend, {N}.\" {He} put a {flower} into the "
     "letter and sent it away. Many days went by. Then there was a knock on the door. \"I got your letter,\" said {F}, \"and here I "
     "am.\" {end_friend}"},
    {"the night of the storm",
     "One night there was a big storm. The wind shook the house, and the thunder was loud. {N} wanted to hide, but then {he} thought "
     "of {F}, who was alone and afraid of thunder. {N} took a lantern and ran through the rain.\n\n\"Who is there?\" asked {F}. \"It "
     "is me,\" said {N}. \"I did not want you to be alone.\" They sat under one blanket and counted after each flash. \"One, two, "
     "three!\" The thunder came later and later, and then it was gone. Because they were together, they were not {afraid}. "
     "{end_friend}"},
    {"the garden show",
     "Every summer there was a prize for the biggest pumpkin. {N} {wanted} to win it. {He} gave {his} pumpkin water every day, and it "
     "grew and grew. But the night before the show, a [hungry little {critter}|rabbit] made a hole in it. {N} was {sad}. \"Now I "
     "cannot win,\" {he} said.\n\n[Then|Suddenly|Luckily] {F} had an idea. They cut eyes and a mouth around the hole and put a candle "
     "inside. At the show, the pumpkin smiled and shone like gold. It was not the biggest, but everybody wanted to see it. They gave "
     "{N} a prize for the happiest pumpkin. {end_friend}"},
    {"teaching the little one",
     "{N} could [whistle|swim|climb] very well. {one_day} {F}, a small {fkind}, said, \"I want to do that too. Will you show me?\" "
     "{N} showed {fhim} once, but {F} could not do it. {N} showed {fhim} again, and again it did not work. \"This takes too long,\" "
     "thought {N}.\n\nThen {he} remembered how {E} had taught {him}, and how kind {E} had been. So {N} sat down and said, \"Let us "
     "try it more slowly.\" They tried it {worked}. {at_last} {F} could do it, and {fhe} jumped with joy. {N} was even "
     "[happier|prouder] than {F}."},
    {"the wishing stone",
     "{one_day} {N} found a smooth {color} stone by the {water}. \"It is a wishing stone,\" said {a_friend}. \"You have one wish.\" "
     "{N} thought about it all day. {He} could wish for a {toy}, or for a mountain of {treat}. Then {he} saw that {E} looked tired "
     "and sad.\n\n\"I wish that {E} would smile,\" said {N} to the stone. Nothing happened. So {he} [picked a {flower}|swept the "
     "floor|made some tea] and gave {E} a big hug. And {E} smiled. \"The stone works,\" said {N}. But {E} knew that it was not the "
     "stone. {end_night}"},
    {"the echo",
     "{one_day} {N} stood on the hill and shouted, \"Hello!\" Far away a voice answered, \"Hello!\" {N} was curious. \"Who are you?\" "
     "{he} called. \"Who are you?\" called the voice. \"Go away!\" shouted {N}. \"Go away!\" shouted the voice. {N} was {sad} and ran "
     "home.\n\n\"It is an echo,\" said {E}. \"It gives you back what you give. Try something kind.\" So {N} went back and called, "
     "\"Be my friend!\" \"Be my friend!\" came the answer. And then {F} came up the hill. \"I heard you,\" said {F}. \"I would like "
     "to be your friend.\" {end_friend}"},
    {"helping hands at harvest",
     "It was autumn, and the trees were full of {fruit}. {E} had a bad back and could not pick them. {N} {wanted} to do it alone, but "
     "there were too many trees. After one tree {his} arms hurt. \"We will lose the {fruit} when the frost comes,\" said {E}.\n\n{N} "
     "ran to {F} and asked for help. {F} asked a friend, who asked a friend, and soon there were {number} helpers in the garden. They "
     "worked {worked}. In the evening every basket was full, and {E} made {treat} for all of them. \"Many hands make light work,\" "
     "said {E}. {end_friend}"},
    {"the shadow",
     "{one_day} {N} saw something big and dark on the wall. It had long arms and a huge head. {N} jumped, and the dark thing jumped "
     "too. {He} ran, and it ran after {him}! \"Help!\" cried {N}, and hid behind {E}.\n\n{E} looked and [began|started] to laugh. "
     "\"That is your shadow,\" said {E}. \"It only does what you do.\" {N} lifted one hand, and the shadow lifted one hand. {N} "
     "danced, and the shadow danced. Now {he} was not {afraid}. {He} showed it to {F}, and they made a dog, a fish and a {critter} on "
     "the wall with their hands. {end_friend}"},
    {"the last cherry blossom",
     "{E} was sick and could not leave the bed. \"I would love to see the spring,\" said {E}. {N} {wanted} to bring the spring into "
     "the house. {He} {walked} to the forest, but there was still snow on the ground. {He} looked {worked} and found nothing.\n\nWhen "
     "{he} was about to go home, {he} saw one tiny {flower} under a tree. {N} did not pull it out. {He} dug around it with care and "
     "put it in a pot. When {E} saw it, {ehis} eyes [began|started] to shine. \"You found the spring,\" said {E}. Every day the "
     "{flower} grew, and every day {E} felt better. {end_proud}"},
});

}  // namespace

std::span<const Grammar::Rule> story_plots() { return kPlots; }

}  // namespace cairn::data
