// The files that data.files names, and where the training part ends and the held-out part
// begins. The cut counts bytes of files; packed files count by their packed size. Private to this
// folder. Threads: pure functions. Blocking: looks at files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace megascale::data {

struct Input {
  enum class Kind {
    kPlain,      // text
    kDocuments,  // packed text, or JSON Lines
    kTokens,     // a token file of ours
    kMegatron,   // a .bin, with its .idx beside it
  };
  std::string path;
  Kind kind = Kind::kPlain;
  int64_t size_bytes = 0;
  int64_t train_bytes = 0;  // from the beginning; the others are held out
  std::string sha256;       // of the file; for kMegatron of both files
};

struct InputList {
  std::vector<Input> inputs;
  std::vector<std::string> folders;  // as Corpus::folders
};

// Lists and reads the files of `spec`. Errors: as Corpus::Open.
absl::StatusOr<InputList> ListInputs(const job::v1::DataSpec& spec);

// True if the file is a token file of either kind, which is no text.
bool IsTokenFile(const std::string& path);

}  // namespace megascale::data
