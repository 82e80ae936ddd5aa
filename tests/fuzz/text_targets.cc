// Files of text as jobs read them.
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"
#include "runtime/base/text/printable.h"
#include "runtime/data/source/documents.h"
#include "runtime/data/source/json_line.h"
#include "runtime/data/source/plain_text.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

constexpr size_t kTextBytesMax = size_t{1} << 20;  // of what few packed bytes may unpack to

void ReadDocuments(const std::string& path, const data::DocumentOptions& options) {
  const auto documents = data::Documents::Open(path, options);
  if (!documents.ok()) return CheckLine(documents.status());
  std::string document;
  for (;;) {
    const auto more = (*documents)->Next(&document);
    if (!more.ok()) return CheckLine(more.status());
    if (!*more) return;
    MEGASCALE_CHECK(base::IsUtf8(document) && document.size() <= kTextBytesMax);
  }
}

void ReadPlain(const std::string& path, const data::PlainTextOptions& options) {
  const auto text = data::PlainText::Open(path, options);
  if (!text.ok()) return CheckLine(text.status());
  std::string piece;
  size_t num_bytes = 0;
  while (num_bytes <= kTextBytesMax) {
    const auto more = (*text)->Next(&piece);
    if (!more.ok()) return CheckLine(more.status());
    if (!*more) return;
    MEGASCALE_CHECK(base::IsUtf8(piece));
    num_bytes += piece.size();
  }
}

}  // namespace

void RunJsonLine(absl::string_view input) {
  std::string text;
  const absl::Status status = data::ReadJsonLine(input, "text", &text);
  if (!status.ok()) return CheckLine(status);
  MEGASCALE_CHECK(base::IsUtf8(text));
}

void RunTextFile(absl::string_view input) {
  if (input.empty()) return;
  const auto how = static_cast<unsigned char>(input[0]);
  input.remove_prefix(1);
  const base::UniqueFd file(::memfd_create("text", MFD_CLOEXEC));
  MEGASCALE_CHECK(::write(file.get(), input.data(), input.size()) ==
                  static_cast<ssize_t>(input.size()));
  const std::string path = absl::StrCat("/proc/self/fd/", file.get());
  const bool skip_bad = (how & 1) != 0;
  ReadDocuments(path, {.json_field = (how & 2) != 0 ? "text" : "",
                       .skip_bad = skip_bad,
                       .document_bytes_max = kTextBytesMax});
  ReadPlain(path, {.skip_bad = skip_bad, .block_bytes = size_t{1} + how});
}

}  // namespace megascale::fuzz
