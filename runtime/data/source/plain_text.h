// The text of a plain file in pieces, so that a file may be larger than the memory. Packed files
// are unpacked on the way. Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/data/source/byte_stream.h"

namespace megascale::data {

struct PlainTextOptions {
  // Bytes that are not UTF-8 are counted and left out, instead of ending the reading.
  bool skip_bad = false;
  size_t block_bytes = size_t{1} << 20;
};

class PlainText {
 public:
  // Errors: as ByteStream::Open and CheckTextBegin.
  static absl::StatusOr<std::unique_ptr<PlainText>> Open(const std::string& path,
                                                         const PlainTextOptions& options);

  // Replaces `piece` by the next whole characters, without a byte order mark at the begin; false:
  // the file has ended. A piece may be empty. Errors: InvalidArgument, with the path, the line and
  // the byte - not UTF-8; those of ByteStream.
  absl::StatusOr<bool> Next(std::string* piece);

  int64_t num_skipped() const { return num_skipped_; }  // bytes
  const ByteStream& stream() const { return *stream_; }

 private:
  PlainText(std::string path, PlainTextOptions options, std::unique_ptr<ByteStream> stream);

  const std::string path_;
  const PlainTextOptions options_;
  std::unique_ptr<ByteStream> stream_;
  std::string bytes_;      // read and not yet given: at most a block and the begin of a character
  int64_t num_bytes_ = 0;  // given or skipped, with the byte order mark
  int64_t line_ = 1;       // in which they end
  int64_t num_skipped_ = 0;
  bool has_ended_ = false;
};

}  // namespace megascale::data
