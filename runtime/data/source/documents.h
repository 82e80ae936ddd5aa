// The documents of a file: the whole file is one, or each line of JSON Lines is one, in a named
// field. Packed files are unpacked on the way. Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/data/source/byte_stream.h"

namespace megascale::data {

struct DocumentOptions {
  std::string json_field = "";  // "": the file is one document of plain text
  // Lines and texts that are no document are counted and left out, instead of ending the reading.
  bool skip_bad = false;
  size_t document_bytes_max = size_t{1} << 30;
};

class Documents {
 public:
  // Errors: as ByteStream::Open and CheckTextBegin.
  static absl::StatusOr<std::unique_ptr<Documents>> Open(const std::string& path,
                                                         const DocumentOptions& options);

  // Replaces `document` by the next one; false: there is no further one. Empty lines of JSON Lines
  // are no documents, and a byte order mark is no part of one. Errors: InvalidArgument, with file
  // and line - not JSON, no such field, not a string, not UTF-8; ResourceExhausted - longer than
  // document_bytes_max; those of ByteStream.
  absl::StatusOr<bool> Next(std::string* document);

  int64_t num_skipped() const { return num_skipped_; }
  const ByteStream& stream() const { return *stream_; }

 private:
  Documents(std::string path, DocumentOptions options, std::unique_ptr<ByteStream> stream);
  absl::StatusOr<bool> NextLine(std::string* line);
  absl::StatusOr<bool> NextFile(std::string* document);
  absl::StatusOr<bool> Fill();
  absl::Status CheckSize(size_t size_bytes) const;
  // Returns "path:line", or "path" for plain text.
  std::string Place() const;

  const std::string path_;
  const DocumentOptions options_;
  std::unique_ptr<ByteStream> stream_;
  std::vector<char> block_;
  size_t used_ = 0;
  size_t filled_ = 0;
  int64_t line_ = 0;
  bool file_done_ = false;
  int64_t num_skipped_ = 0;
};

}  // namespace megascale::data
