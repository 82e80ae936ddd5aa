// Hugging Face's config.json and our model section: what a folder's model is, in the words of a job
// file, and back. Supports the decoder models of GPT-2, GPT-NeoX (Pythia), Llama 2 and 3, Mistral,
// Ministral, Qwen2 and Qwen3. A setting that this program would compute differently is refused, and
// the error names it. Exceptions, each with a warning: dropout is left out, and fields that are in
// no list of config_fields.h are ignored. Threads: plain functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace megascale::hugging_face {

enum class Architecture { kGpt2, kGptNeoX, kLlama, kMistral, kMinistral, kQwen2, kQwen3 };

// Returns the name in config.json's "architectures", such as "LlamaForCausalLM".
absl::string_view Name(Architecture architecture);

struct Config {
  Architecture architecture = Architecture::kLlama;
  // Every field that a job's defaults would not give is set; `from` is not.
  job::v1::ModelSpec model;
  std::vector<std::string> warnings;  // one line each
};

// Parses the text of a config.json. A field that is missing has the default of `transformers`.
// `file` names it in errors. Errors: InvalidArgument - not JSON, an unknown architecture, a value
// that this program has no option for: names the field, its value and what was expected.
absl::StatusOr<Config> ParseConfig(absl::string_view json, absl::string_view file);

// Returns the architecture that computes what `model` does. Requires: `model` is resolved. Errors:
// InvalidArgument - no architecture has these options together.
absl::StatusOr<Architecture> ArchitectureOf(const job::v1::ModelSpec& model);

// Returns the text of a config.json that ParseConfig reads back as `model`. `dtype` is that of the
// weights: "float32", "bfloat16" or "float16". Errors: as ArchitectureOf.
absl::StatusOr<std::string> WriteConfig(const job::v1::ModelSpec& model, absl::string_view dtype);

// Returns `model` with the defaults of a job filled in.
job::v1::ModelSpec Resolved(const job::v1::ModelSpec& model);

}  // namespace megascale::hugging_face
