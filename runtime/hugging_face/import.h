// Turns a Hugging Face folder into a checkpoint of weights alone, and a checkpoint of any kind into
// a Hugging Face folder. Both stream: they hold a few MiB, however large the model is. Threads:
// plain functions. Blocking: storage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/hugging_face/text_files.h"

namespace megascale::hugging_face {

// What was written.
struct Converted {
  int64_t num_tensors = 0;
  int64_t num_files = 0;   // with weights
  int64_t size_bytes = 0;  // of the weights
  std::vector<std::string> warnings;
};

// Writes the checkpoint `directory` from `folder`. Weights keep their type, so that an export gives
// the same bits. The folder's other small files (configuration, tokenizer) are copied beside the
// weights, for exports. Errors: those of Weights::Open and Weights::ReadStored; InvalidArgument -
// the parts of one projection have several types; AlreadyExists - `directory` is not empty; those
// of the file system. After a failure the directory has no manifest, and is no checkpoint.
absl::StatusOr<Converted> Import(const std::string& folder, const std::string& directory);

struct ExportOptions {
  std::string checkpoint;  // a step directory
  std::string folder;
  std::string dtype = {};  // "F32", "BF16" or "F16"; empty: as stored
  // A file of several tensors has at most this many bytes of weights; a larger tensor gets a file
  // of its own.
  int64_t file_bytes_max = 5'000'000'000;
  // The token that ends every document of the job that wrote the checkpoint, from the tokenizer
  // that the checkpoint keeps. It is exported as an end token of the model.
  std::optional<EndToken> end_token = std::nullopt;
};

// Writes a Hugging Face folder that `transformers` loads. config.json is that of the folder from
// which the weights came, if it still describes the model, else a new one; text_files.h says which
// files of tokenizers are there. Errors: InvalidArgument - no architecture has this model, or a
// tensor, which the error names, has a number that `dtype` cannot hold; AlreadyExists - the folder
// is not empty, or another export writes into it; those of CheckpointReader; those of the file
// system. After a failure the folder has none of the export's files.
absl::StatusOr<Converted> Export(const ExportOptions& options);

}  // namespace megascale::hugging_face
