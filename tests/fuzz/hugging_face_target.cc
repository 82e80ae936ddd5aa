#include <string>

#include "runtime/base/check.h"
#include "runtime/hugging_face/config/config.h"
#include "runtime/hugging_face/end_tokens.h"
#include "runtime/hugging_face/folder.h"
#include "runtime/model/config.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
void RunHuggingFaceConfig(absl::string_view input) {
  const auto end_tokens = hugging_face::ParseEndTokens(input, "config.json");
  if (!end_tokens.ok()) CheckLine(end_tokens.status());
  const auto config = hugging_face::ParseConfig(input, "config.json");
  if (!config.ok()) return CheckLine(config.status());
  for (const std::string& warning : config->warnings) {
    CheckLine(absl::InternalError(warning));
  }
  // What this program can compute it can write.
  if (!model::MakeModelConfig(config->model).ok()) return;
  const auto written = hugging_face::WriteConfig(config->model, "float32");
  MEGASCALE_CHECK_MSG(written.ok(), written.status().message());
  const auto again = hugging_face::ParseConfig(*written, "written");
  MEGASCALE_CHECK_MSG(again.ok(), again.status().message());
  MEGASCALE_CHECK(again->model.SerializeAsString() == config->model.SerializeAsString());
}

void RunHuggingFaceIndex(absl::string_view input) {
  const auto files = hugging_face::ParseIndex(input, "index");
  if (!files.ok()) return CheckLine(files.status());
  for (const auto& [tensor, file] : *files) {
    MEGASCALE_CHECK(file.find('/') == std::string::npos && file[0] != '.');
  }
}

}  // namespace megascale::fuzz
