#include "train/agent_messages.h"

namespace cairn::train {

using base::Json;

namespace {

Json to_json(const LostRank& lost) {
  return {{"rank", lost.rank},     {"pid", lost.pid},
          {"code", lost.code},     {"signal", lost.signal},
          {"frozen", lost.frozen}, {"wrong_input", lost.wrong_input},
          {"at", lost.at},         {"consequence", lost.consequence},
          {"how", lost.how}};
}

LostRank lost_from_json(const Json& json) {
  return {.rank = json.at("rank"),
          .pid = json.at("pid"),
          .code = json.at("code"),
          .signal = json.at("signal"),
          .frozen = json.at("frozen"),
          .wrong_input = json.at("wrong_input"),
          .consequence = json.at("consequence"),
          .how = json.at("how").get<std::string>(),
          .at = json.at("at")};
}

}  // namespace

Json to_json(const AgentState& state) {
  return {{"type", kStateMessage},      {"generation", state.generation},
          {"ready", state.ready},       {"token", state.token},
          {"count", state.count},       {"host", state.host},
          {"ports", state.ports},       {"host_name", state.host_name},
          {"well", state.well},         {"stopped", state.stopped},
          {"code", state.code},         {"lost", state.lost ? to_json(*state.lost) : Json()},
          {"ended_at", state.ended_at}, {"step", state.step}};
}

AgentState state_from_json(const Json& json) {
  AgentState state;
  state.generation = json.at("generation");
  state.ready = json.at("ready");
  state.token = json.at("token").get<std::string>();
  state.count = json.at("count");
  state.host = json.at("host").get<std::string>();
  state.ports = json.at("ports").get<std::vector<uint16_t>>();
  state.host_name = json.at("host_name").get<std::string>();
  state.well = json.at("well");
  state.stopped = json.at("stopped");
  state.code = json.at("code");
  if (!json.at("lost").is_null()) state.lost = lost_from_json(json["lost"]);
  state.ended_at = json.at("ended_at");
  state.step = json.at("step");
  return state;
}

Json to_json(const GenerationPlan& plan) {
  Json members = Json::array(), addresses = Json::array();
  for (const Member& member : plan.members) members.push_back({{"node", member.node}, {"incarnation", member.incarnation}});
  for (const comm::RankAddress& one : plan.addresses)
    addresses.push_back({{"machine", one.machine}, {"host", one.host}, {"port", one.outside_port}});
  return {{"type", kStartMessage},
          {"generation", plan.generation},
          {"token", plan.token},
          {"members", members},
          {"addresses", addresses},
          {"ranks", plan.ranks},
          {"key", plan.key},
          {"run", plan.run.string()},
          {"resume", plan.resume},
          {"lost_at", plan.lost_at},
          {"budget", {{"in_a_row", plan.budget.in_a_row}, {"furthest", plan.budget.furthest}}},
          {"first_error", plan.first_error},
          {"first_code", plan.first_code}};
}

GenerationPlan plan_from_json(const Json& json) {
  GenerationPlan plan;
  plan.generation = json.at("generation");
  plan.token = json.at("token").get<std::string>();
  for (const Json& one : json.at("members")) plan.members.push_back({one.at("node"), one.at("incarnation")});
  for (const Json& one : json.at("addresses"))
    plan.addresses.push_back(
        {.machine = one.at("machine"), .port = 0, .host = one.at("host").get<std::string>(), .outside_port = one.at("port")});
  plan.ranks = json.at("ranks").get<std::vector<int>>();
  plan.key = json.at("key").get<comm::Key>();
  plan.run = json.at("run").get<std::string>();
  plan.resume = json.at("resume");
  plan.lost_at = json.at("lost_at");
  plan.budget = {.in_a_row = json.at("budget").at("in_a_row"), .furthest = json.at("budget").at("furthest")};
  plan.first_error = json.at("first_error").get<std::string>();
  plan.first_code = json.at("first_code");
  return plan;
}

Json finish_message(int generation, int code, const std::string& why) {
  return {{"type", kFinishMessage}, {"generation", generation}, {"code", code}, {"why", why}};
}

std::string of_machines(std::string text) {
  const auto replace = [&](std::string_view from, std::string_view to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  };
  replace("--island", "--node-rank");
  replace("island", "machine");
  return text;
}

}  // namespace cairn::train
