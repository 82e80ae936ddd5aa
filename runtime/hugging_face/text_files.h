// What an exported folder says about text: the tokenizer's files, and the tokens that end a text in
// config.json and generation_config.json. Threads: plain data. Blocking: storage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/hugging_face/kept_files.h"

namespace megascale::hugging_face {

// The token that ends every document of a job.
struct EndToken {
  int32_t id = 0;
  // As the tokenizer's file writes it. Empty: it is not among the added tokens, and `transformers`
  // must not cut texts at it.
  std::string text;
};

struct TextFilesOptions {
  std::string checkpoint;      // holds the tokenizer of the job that wrote it, if the job had one
  bool is_of_job = true;       // false: imported weights
  std::string origin = {};     // the folder from which the weights came; empty: unknown
  std::string tokenizer = {};  // what the job named: a file, a folder, or nothing
  std::optional<EndToken> end_token = std::nullopt;  // of the job
  int64_t positions = 0;                             // longest sequence; 0: nothing limits it
};

class TextFiles {
 public:
  // Decides which files are written. Imported weights, and a job with the origin's own tokenizer,
  // keep all files of the origin; a job with another tokenizer keeps only its own tokenizer's
  // files. Errors: InvalidArgument - end tokens of the origin that are not ids; those of the file
  // system.
  static absl::StatusOr<TextFiles> Find(TextFilesOptions options);

  // Returns a config.json with the end tokens. `is_new`: it is not the origin's.
  std::string WithEndTokens(const std::string& config, bool is_new) const;

  // Writes everything but config.json. Errors: InvalidArgument - a generation_config.json of the
  // origin that is not JSON and is to get other end tokens; those of the file system and of
  // `write`.
  absl::Status Write(const WriteFile& write) const;

 private:
  explicit TextFiles(TextFilesOptions options) : options_(std::move(options)) {}
  absl::Status FindTokenizer();
  absl::Status FindEndTokens();
  absl::Status WriteGenerationConfig(const WriteFile& write) const;
  // Returns a tokenizer_config.json for the job's tokenizer.json.
  std::string TokenizerConfig() const;

  TextFilesOptions options_;
  bool keeps_origins_ = false;    // the origin's tokens keep their meaning
  std::string tokenizer_folder_;  // has the tokenizer's files; empty: there are none
  bool needs_config_ = false;     // tokenizer_config.json is to be made
  std::vector<int32_t> end_tokens_;
  bool has_other_end_tokens_ = false;  // than the origin's files
};

}  // namespace megascale::hugging_face
