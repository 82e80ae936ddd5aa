#include "runtime/checkpoint/format/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/work/counted_work.h"

namespace megascale::checkpoint {
namespace {

SafetensorsHeader Header() {
  SafetensorsHeader header;
  header.metadata["format"] = "test";
  header.entries = {{"z.first", "F32", {2, 3}, 0, 24},
                    {"a.second", "BF16", {4}, 24, 8},
                    {"scalar", "F64", {}, 32, 8},
                    {"nothing", "F32", {0, 5}, 40, 0}};
  return header;
}

std::string FileOf(absl::string_view json, size_t data_bytes) {
  std::string file(8, '\0');
  const uint64_t length = json.size();
  std::memcpy(file.data(), &length, 8);
  return absl::StrCat(file, json, std::string(data_bytes, 'd'));
}

absl::StatusOr<SafetensorsHeader> Parse(const std::string& file) {
  return ParseSafetensorsHeader(file, static_cast<int64_t>(file.size()), "some/file");
}

void ExpectRefused(const std::string& file, absl::string_view what) {
  const auto parsed = Parse(file);
  ASSERT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss) << parsed.status();
  EXPECT_TRUE(absl::StrContains(parsed.status().message(), "some/file")) << parsed.status();
  EXPECT_TRUE(absl::StrContains(parsed.status().message(), what)) << parsed.status();
}

TEST(SafetensorsTest, WhatIsWrittenIsRead) {
  const std::string start = SerializeSafetensorsHeader(Header());
  EXPECT_EQ(start.size() % 64, 0u);
  const auto parsed = Parse(start + std::string(40, 'd'));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->data_begin, static_cast<int64_t>(start.size()));
  EXPECT_EQ(parsed->metadata, Header().metadata);
  ASSERT_EQ(parsed->entries.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(parsed->entries[i].key, Header().entries[i].key);
    EXPECT_EQ(parsed->entries[i].dtype, Header().entries[i].dtype);
    EXPECT_EQ(parsed->entries[i].shape, Header().entries[i].shape);
    EXPECT_EQ(parsed->entries[i].begin, Header().entries[i].begin);
    EXPECT_EQ(parsed->entries[i].size_bytes, Header().entries[i].size_bytes);
  }
}

TEST(SafetensorsTest, AHeaderIsCompactJsonInTheOrderOfItsKeys) {
  SafetensorsHeader header;
  header.metadata = {{"b", "1"}, {"a", "\"\n\xff"}};
  header.entries = {{.key = "z", .dtype = "F32", .shape = {2, 3}, .begin = 8, .size_bytes = 24},
                    {.key = "\"A", .dtype = "I64", .shape = {}, .begin = 0, .size_bytes = 8}};
  const std::string json = R"({"\"A":{"data_offsets":[0,8],"dtype":"I64","shape":[]},)"
                           "\"__metadata__\":{\"a\":\"\\\"\\n\xEF\xBF\xBD\",\"b\":\"1\"},"
                           R"("z":{"data_offsets":[8,32],"dtype":"F32","shape":[2,3]}})";
  const std::string start = SerializeSafetensorsHeader(header);
  EXPECT_EQ(start.substr(8, json.size()), json);
  EXPECT_EQ(start.find_first_not_of(' ', 8 + json.size()), std::string::npos);
  EXPECT_EQ(start.size() % 64, 0u);
}

TEST(SafetensorsTest, AFileOfAnotherProgramIsRead) {
  const auto parsed = Parse(FileOf(
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} )",
      8));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->entries[0].key, "w");
}

TEST(SafetensorsTest, EveryFormThatTheFormatAllowsIsRead) {
  const auto entries_of = [](const std::string& json, size_t data_bytes) {
    const auto header = Parse(FileOf(json, data_bytes));
    EXPECT_TRUE(header.ok()) << header.status() << json;
    return header.ok() ? header->entries.size() : 0;
  };
  const std::string w = R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(entries_of("{\"__metadata__\":null," + w + "}", 8), 1u);
  EXPECT_EQ(entries_of("{" + w + ",\"__metadata__\":{}}", 8), 1u);
  EXPECT_EQ(entries_of("{\"__metadata__\":null}", 0), 0u);
  EXPECT_EQ(entries_of(R"({"w":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4), 1u);
  EXPECT_EQ(entries_of(R"({"w":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}})", 0), 1u);
  for (const auto& [dtype, bits] : std::vector<std::pair<std::string, int>>{
           {"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E4M3", 8}, {"F8_E5M2", 8},
           {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},
           {"F16", 16},    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},
           {"I64", 64},    {"U64", 64},        {"F64", 64},        {"C64", 64},    {"F4", 4},
           {"F6_E2M3", 6}, {"F6_E3M2", 6}}) {
    const int bytes = bits;  // of eight elements
    EXPECT_EQ(entries_of(absl::StrCat("{\"w\":{\"dtype\":\"", dtype,
                                      "\",\"shape\":[8],\"data_offsets\":[0,", bytes, "]}}"),
                         static_cast<size_t>(bytes)),
              1u)
        << dtype;
  }
}

TEST(SafetensorsTest, ALongNameDoesNotHideWhatIsWrong) {
  const std::string name(100'000, 'n');
  ExpectRefused(FileOf("{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}})", 9),
                "has 9 bytes, its shape needs 8");
  const auto status =
      Parse(FileOf("{\"" + name + R"(":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8))
          .status();
  EXPECT_TRUE(absl::StrContains(status.message(), "has the type F33")) << status;
  EXPECT_LT(status.message().size(), 500u);
}

TEST(SafetensorsTest, TheWorkGrowsAsTheHeader) {
  const auto until = [](size_t size, const std::function<std::string(size_t)>& part) {
    std::string all;
    for (size_t i = 0; all.size() < size; ++i) absl::StrAppend(&all, i == 0 ? "" : ",", part(i));
    return absl::StrCat("{", all, "}");
  };
  const std::string empty = R"(:{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  const std::function<std::string(size_t)> parts[] = {
      [&](size_t i) { return absl::StrCat("\"t", i, "\"", empty); },
      [&](size_t i) { return absl::StrCat("\"", std::string(i, 'x'), "\"", empty); },
      [&](size_t) { return absl::StrCat("\"t\"", empty); },
      [&](size_t i) { return absl::StrCat("\"t", i, "\":{\"a\":[[[[]]]]}"); },
      [&](size_t i) {
        return absl::StrCat("\"t\":{\"dtype\":\"F32\",\"shape\":[", std::string(2 * i, '1'), "]}");
      },
  };
  constexpr size_t kSize = 1 << 15;
  for (const auto& part : parts) {
    const auto work = [&](size_t size) {
      const std::string file = FileOf(until(size, part), 0);
      return base::WorkOf([&] { Parse(file).status().IgnoreError(); });
    };
    EXPECT_GE(work(kSize), static_cast<int64_t>(kSize)) << &part - parts;
    EXPECT_LE(work(2 * kSize), work(kSize) * 5 / 2) << &part - parts;
  }
}

TEST(SafetensorsTest, LengthsThatAreNotTrueAreRefused) {
  ExpectRefused("", "only 0 bytes");
  ExpectRefused("1234567", "only 7 bytes");
  ExpectRefused(std::string(8, '\xff'), "its length is 18446744073709551615");
  ExpectRefused(std::string("\x10\0\0\0\0\0\0\0{}", 10), "ends at byte 24");
  const std::string whole = SerializeSafetensorsHeader(Header()) + std::string(40, 'd');
  for (size_t size = 0; size < whole.size(); ++size) ExpectRefused(whole.substr(0, size), "");
  ExpectRefused(whole + "x", "the file has 41 after its header");
}

TEST(SafetensorsTest, HeadersThatMakeNoSenseAreRefused) {
  const auto tensor = [](absl::string_view fields) {
    return FileOf(absl::StrCat(R"({"w":)", fields, "}"), 8);
  };
  ExpectRefused(FileOf("{", 0), "no JSON");
  ExpectRefused(FileOf("[]", 0), "no JSON object");
  ExpectRefused(FileOf(std::string(1000, '['), 0), "no JSON");
  ExpectRefused(FileOf("{\"a\xff\":1}", 0), "no JSON");
  ExpectRefused(tensor("3"), "not an object");
  ExpectRefused(FileOf(R"({"__metadata__":{"a":1}})", 0), "not a string");
  ExpectRefused(tensor(R"({"dtype":"F32","shape":[2]})"), "has not dtype, shape");
  ExpectRefused(tensor(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"),
                "has the type F33, which this version does not know");
  ExpectRefused(tensor(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "absurd shape");
  ExpectRefused(tensor(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "absurd shape");
  ExpectRefused(tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "absurd shape");
  ExpectRefused(tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})"), "absurd shape");
  ExpectRefused(tensor(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
                "its shape needs 12");
  ExpectRefused(
      tensor(R"({"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]})"),
      "absurd shape");
  ExpectRefused(tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})"),
                "a key twice");
  ExpectRefused(tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("v":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
                "begins at 4");
  ExpectRefused(tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), "begins at 4");
  ExpectRefused(tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "tensors have 4");
}

// Every byte of a header, changed to every value: refused, or read as something consistent; never a
// crash.
TEST(SafetensorsTest, NoChangedByteMakesAnInconsistentHeader) {
  const std::string whole = SerializeSafetensorsHeader(Header()) + std::string(40, 'd');
  const size_t header_bytes = whole.size() - 40;
  for (size_t at = 0; at < header_bytes; ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = whole;
      changed[at] = static_cast<char>(value);
      const auto parsed = Parse(changed);
      if (!parsed.ok()) {
        ASSERT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss);
        continue;
      }
      int64_t end = 0;
      for (const SafetensorsEntry& entry : parsed->entries) {
        ASSERT_EQ(entry.begin, end);
        end += entry.size_bytes;
      }
      ASSERT_EQ(parsed->data_begin + end, static_cast<int64_t>(whole.size()));
    }
  }
}

}  // namespace
}  // namespace megascale::checkpoint
