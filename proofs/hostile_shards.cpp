// Bad inputs: token shards of llm.c and of Cairn.
#include "hostile_cases.h"

namespace cairn::study {
namespace {

// A header of llm.c and so many bytes behind it.
std::string llmc(int32_t magic, int32_t version, int32_t count, const std::string& ids) {
  std::string bytes;
  for (const int32_t word : {magic, version, count}) bytes.append(reinterpret_cast<const char*>(&word), sizeof word);
  bytes.resize(1024, '\0');
  return bytes + ids;
}

HostileCase shard(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.emplace_back("a.bin");
  return {"llmc", name, {"data", "inspect", "a.bin"}, [bytes](const HostileFolder& in) { in.file("a.bin", bytes); }, std::move(said)};
}

// A shard that Cairn wrote, with a byte turned over or its end cut off. Layout: 8 bytes of magic, ids, documents, a footer of 88 bytes.
HostileCase own_shard(const std::string& name, const std::function<void(const HostileFolder&)>& spoil, std::vector<std::string> said) {
  said.emplace_back("a.tokens");
  return {"shard",
          name,
          {"data", "inspect", "a.tokens"},
          [spoil](const HostileFolder& in) {
            in.good("shard.tokens", "a.tokens");
            spoil(in);
          },
          std::move(said)};
}

}  // namespace

HostileCases hostile_shards() {
  const std::string four_ids(8, '\0');
  return {
      shard("magic_unknown", llmc(20240521, 1, 4, four_ids), {"neither"}),
      shard("version_unknown", llmc(20240520, 9, 4, four_ids), {"version 9"}),
      shard("header_cut_off", llmc(20240520, 1, 4, "").substr(0, 500), {"cut short"}),
      shard("count_zero", llmc(20240520, 1, 0, ""), {"0 tokens"}),
      shard("count_negative", llmc(20240520, 1, -4, four_ids), {"-4 tokens"}),
      shard("count_beyond_file", llmc(20240520, 1, 400, four_ids), {"400 tokens"}),
      shard("count_of_2_to_31", llmc(20240520, 1, INT32_MAX, four_ids), {"2147483647 tokens"}),
      shard("count_below_file", llmc(20240520, 1, 1, four_ids), {"1 tokens"}),
      shard("ids_cut_off", llmc(20240520, 1, 4, "123"), {"4 tokens"}),
      shard("wide_ids_negative", llmc(20240801, 7, 1, "\xff\xff\xff\xff"), {"id 4294967295"}),
      shard("empty", "", {"neither"}),
      shard("four_bytes", llmc(20240520, 1, 4, "").substr(0, 4), {"cut short"}),
      {"llmc",
       "ids_beyond_the_vocabulary",
       {"train", "--data", "a.bin", "--set", "data.tokenizer=bytes", "--out", "x"},
       [](const HostileFolder& in) { in.file("a.bin", llmc(20240520, 1, 4, "\xff\xff\x01\x02\x03\x04\x05\x06")); },
       {"a.bin", "65535"}},
      {"llmc",
       "no_tokenizer_for_it",
       {"train", "--data", "a.bin", "--out", "x"},
       [four_ids](const HostileFolder& in) { in.file("a.bin", llmc(20240520, 1, 4, four_ids)); },
       {"data.tokenizer_file"}},
      {"llmc", "a_pipe", {"data", "inspect", "a.bin"}, [](const HostileFolder& in) { in.pipe("a.bin"); }, {"a.bin", "not a regular file"}},
      {"llmc",
       "of_a_gigabyte_of_zeros",
       {"data", "inspect", "a.bin"},
       [](const HostileFolder& in) { in.sparse("a.bin", llmc(20240520, 1, 4, ""), int64_t{1} << 30); },
       {"a.bin", "4 tokens"}},
      own_shard("magic_flipped", [](const HostileFolder& in) { in.flip("a.tokens", 0); }, {"neither"}),
      own_shard("an_id_flipped", [](const HostileFolder& in) { in.flip("a.tokens", 20); }, {"checksum"}),
      own_shard("count_flipped", [](const HostileFolder& in) { in.flip("a.tokens", -88); }, {"damaged token file"}),
      own_shard("vocabulary_flipped", [](const HostileFolder& in) { in.flip("a.tokens", -56); }, {"damaged token file"}),
      own_shard("checksum_flipped", [](const HostileFolder& in) { in.flip("a.tokens", -1); }, {"checksum"}),
      own_shard("cut_in_half", [](const HostileFolder& in) { in.cut("a.tokens", 500); }, {"damaged token file"}),
      own_shard("only_its_magic", [](const HostileFolder& in) { in.cut("a.tokens", 8); }, {"cut short"}),
      own_shard("one_byte_short", [](const HostileFolder& in) { in.cut("a.tokens", static_cast<int64_t>(in.text("a.tokens").size()) - 1); },
                {"damaged token file"}),
      {"shard",
       "of_another_tokenizer",
       {"train", "--data", "a.tokens", "--set", "data.tokenizer_file=m/tokenizer.json", "--out", "x"},
       [](const HostileFolder& in) { in.good("model", "m"), in.good("shard.tokens", "a.tokens"); },
       {"a.tokens", "another tokenizer"}},
  };
}

}  // namespace cairn::study
