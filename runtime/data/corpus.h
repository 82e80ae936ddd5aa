// The text that a job trains on: files of bytes, one after the other; every byte is a token. The
// end is held out. A corpus is not loaded: it reads bytes from the files when they are asked for.
// Threads: a Corpus is immutable; const methods from any thread. Blocking: reads of files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "runtime/base/fd.h"

namespace megascale::data {

class Corpus;

// A contiguous part of a corpus. Borrows the corpus.
class CorpusPart {
 public:
  int64_t size_bytes() const { return size_bytes_; }
  // Fills `out` with the bytes from `begin` on. Requires: they lie within the part. Errors:
  // DataLoss - a file became shorter after it was opened; stop using the corpus.
  absl::Status Read(int64_t begin, absl::Span<uint8_t> out) const;

 private:
  friend class Corpus;
  CorpusPart(const Corpus* corpus, int64_t begin, int64_t size_bytes)
      : corpus_(corpus), begin_(begin), size_bytes_(size_bytes) {}

  const Corpus* corpus_;
  int64_t begin_;
  int64_t size_bytes_;
};

class Corpus {
 public:
  // Finds and opens the files. A directory stands for those that ListFiles finds in it
  // (source/file_list.h). Errors, each naming the file: NotFound; PermissionDenied; InvalidArgument
  // - empty, not a regular file, a directory without files, or less training text than one sample
  // of `seq_length` + 1 bytes.
  static absl::StatusOr<std::unique_ptr<Corpus>> Open(const megascale::job::v1::DataSpec& spec,
                                                      int seq_length);

  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  CorpusPart train() const { return CorpusPart(this, 0, total_bytes_ - held_out_bytes_); }
  CorpusPart held_out() const {
    return CorpusPart(this, total_bytes_ - held_out_bytes_, held_out_bytes_);
  }
  // Returns the paths in the order of their bytes in the corpus.
  std::vector<std::string> paths() const;

  // Returns a line for people about each directory: how many files and bytes were found in it, and
  // what was left out.
  const std::vector<std::string>& folders() const { return folders_; }

  // Returns a line for people about each file that is packed, is of another format than text, or
  // has a NUL at its beginning: legal, as bytes are tokens, but probably a mistake. Errors: as
  // Read.
  absl::StatusOr<std::vector<std::string>> WarningsOfBinary() const;

  // Returns the identity of the text and its split. Cost: reads every file once.
  absl::StatusOr<megascale::checkpoint::v1::DataFingerprint> Fingerprint() const;

 private:
  friend class CorpusPart;
  struct File {
    std::string path;
    // invalid except for the first few files: the others are opened for each read
    base::UniqueFd fd;
    int64_t begin = 0;  // of its first byte in the corpus
    int64_t size_bytes = 0;
  };

  Corpus() = default;
  absl::Status Append(const std::string& path);
  absl::Status AppendDirectory(const std::string& path);
  absl::Status Read(int64_t begin, absl::Span<uint8_t> out) const;
  static absl::Status ReadFrom(const File& file, int64_t offset, absl::Span<uint8_t> out);

  std::vector<File> files_;
  std::vector<std::string> folders_;
  int64_t total_bytes_ = 0;
  int64_t held_out_bytes_ = 0;
};

}  // namespace megascale::data
