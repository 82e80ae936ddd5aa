// Reads the configurations that `transformers` 4 and 5 write for each family (make_configs.py), and
// fails on a field that this program does not know, or that docs/hugging-face.md does not have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/hugging_face/config/config.h"
#include "runtime/hugging_face/config/config_fields.h"

namespace megascale::hugging_face {
namespace {

using Json = nlohmann::json;

constexpr const char* kVersions[] = {"v4", "v5"};

Json ModelsOf(const std::string& version) {
  return Json::parse(
      base::ReadFile(absl::StrCat("tests/golden/configs/", version, ".json"), 1 << 20).value());
}

Config Parsed(const Json& json) {
  const auto config = ParseConfig(json.dump(), "config.json");
  EXPECT_EQ(config.status(), absl::OkStatus());
  return config.value_or(Config());
}

TEST(GoldenConfigs, EveryFieldThatTransformersWritesIsKnown) {
  for (const char* version : kVersions) {
    const Json models = ModelsOf(version);
    for (const auto& [name, texts] : models.items()) {
      SCOPED_TRACE(absl::StrCat(version, " ", name));
      for (const char* form : {"config", "all"}) {
        for (const std::string& warning : Parsed(texts[form]).warnings) {
          EXPECT_TRUE(absl::StrContains(warning, "trains without dropout")) << warning;
        }
      }
    }
  }
}

TEST(GoldenConfigs, BothVersionsAndDefaultsThatAreWrittenOutMeanTheSameModel) {
  const Json older = ModelsOf("v4");
  const Json newer = ModelsOf("v5");
  ASSERT_EQ(older.size(), newer.size());
  for (const auto& [name, texts] : older.items()) {
    SCOPED_TRACE(name);
    const std::string model = Parsed(texts["config"]).model.DebugString();
    EXPECT_EQ(Parsed(texts["all"]).model.DebugString(), model);
    EXPECT_EQ(Parsed(newer[name]["config"]).model.DebugString(), model);
    EXPECT_EQ(Parsed(newer[name]["all"]).model.DebugString(), model);
  }
}

TEST(GoldenConfigs, TheirTableInTheDocumentationHasEveryField) {
  const std::string page = base::ReadFile("docs/hugging-face.md", 1 << 20).value();
  std::vector<std::string> fields;
  for (const Architecture architecture :
       {Architecture::kGpt2, Architecture::kGptNeoX, Architecture::kLlama, Architecture::kMistral,
        Architecture::kMinistral, Architecture::kQwen2, Architecture::kQwen3}) {
    for (const absl::string_view field : FieldsOf(architecture)) fields.emplace_back(field);
  }
  for (const absl::string_view field : FieldsOfEveryFamily()) fields.emplace_back(field);
  for (const absl::string_view field : HarmlessFields()) fields.emplace_back(field);
  for (const char* version : kVersions) {
    const Json models = ModelsOf(version);
    for (const auto& [name, texts] : models.items()) {
      for (const auto& [field, value] : texts["generation"].items()) fields.push_back(field);
    }
  }
  for (const std::string& field : fields) {
    EXPECT_TRUE(absl::StrContains(page, absl::StrCat("`", field, "`"))) << field;
  }
}

}  // namespace
}  // namespace megascale::hugging_face
