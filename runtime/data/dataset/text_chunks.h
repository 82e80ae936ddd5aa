// The text of a file in the chunks that are encoded one by one: a document of JSON Lines, or at
// most about 128 MiB of plain text. The chunks do not depend on how the file is read. A long plain
// text is cut after a line that ends with a visible ASCII character, if the next line begins with
// an ASCII letter. No byte-level tokenizer joins the two sides of such a place. Text without such a
// place, such as Chinese or a table, is cut between any two characters, so that the memory has a
// limit. Private to this folder. Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/data/source/documents.h"
#include "runtime/data/source/plain_text.h"

namespace megascale::data {

struct TextChunk {
  std::string text;
  bool begins_document = false;
  bool ends_document = false;
};

struct TextChunkOptions {
  std::string path;
  std::string json_field;  // "": one document
  bool skip_bad = false;
  // Plain text only: the range of bytes that are wanted. Both ends move forward to the beginning of
  // a character.
  int64_t begin = 0;
  int64_t end = INT64_MAX;
  // A chunk of plain text ends at the first good place after this many bytes. If there is none
  // within twice as many bytes, it ends there, between two characters.
  int64_t chunk_bytes = int64_t{64} << 20;
};

class TextChunks {
 public:
  // Errors: as those of Documents and PlainText.
  static absl::StatusOr<std::unique_ptr<TextChunks>> Open(TextChunkOptions options);

  // Replaces `chunk` by the next one; false: there is no further one. A plain text has at least one
  // chunk, perhaps empty.
  absl::StatusOr<bool> Next(TextChunk* chunk);

  int64_t num_skipped() const;
  const ByteStream& stream() const;

 private:
  explicit TextChunks(TextChunkOptions options) : options_(std::move(options)) {}
  absl::Status Fill();
  bool Ready(size_t* end);

  const TextChunkOptions options_;
  std::unique_ptr<Documents> documents_;  // one of the two
  std::unique_ptr<PlainText> plain_;
  std::string held_;      // wanted and not yet given
  size_t scanned_ = 0;    // this many bytes of `held_` were searched: no chunk ends within them
  int64_t position_ = 0;  // bytes of the text that were read
  bool text_ended_ = false;
  bool given_any_ = false;
  bool done_ = false;
};

}  // namespace megascale::data
