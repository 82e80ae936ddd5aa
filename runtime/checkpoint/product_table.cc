#include "runtime/checkpoint/product_table.h"

#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/place_file.h"

namespace megascale::checkpoint {
namespace {

constexpr size_t kFileBytesMax = 2 * kProductTableBytesMax;

// The file is JSON, and its text around the table is always the same, so that every byte of it is
// checked.
constexpr absl::string_view kBegin = "{\"sha256\": \"";
constexpr absl::string_view kMiddle = "\", \"table\":\n";
constexpr absl::string_view kEnd = "}\n";

std::string PathIn(const std::string& directory) {
  return absl::StrCat(directory, "/", kProductTableFile);
}

std::string FileOf(absl::string_view table) {
  return absl::StrCat(kBegin, base::Sha256Hex(table), kMiddle, table, kEnd);
}

// Takes the table out of a file's content; returns false if it is damaged.
bool TableOf(absl::string_view file, std::string* table) {
  constexpr size_t kDigits = 64;
  absl::string_view rest = file;
  if (!absl::ConsumePrefix(&rest, kBegin) || rest.size() < kDigits) return false;
  const absl::string_view digest = rest.substr(0, kDigits);
  rest.remove_prefix(kDigits);
  if (!absl::ConsumePrefix(&rest, kMiddle) || !absl::ConsumeSuffix(&rest, kEnd)) return false;
  *table = std::string(rest);
  return base::Sha256Hex(rest) == digest;
}

// Returns the digest of the table; empty: there is none.
std::string DigestIn(const v1::NumericsFingerprint& fingerprint) {
  const auto digest = fingerprint.fields().find(std::string(kProductTableField));
  return digest == fingerprint.fields().end() ? "" : digest->second;
}

}  // namespace

absl::StatusOr<std::string> ReadProductTable(const std::string& directory) {
  const std::string path = PathIn(directory);
  const absl::StatusOr<std::string> file = base::ReadFile(path, kFileBytesMax);
  if (absl::IsNotFound(file.status()))
    return absl::NotFoundError(absl::StrCat(path, " is missing"));
  if (!file.ok()) return file.status();
  std::string table;
  if (TableOf(*file, &table)) return table;
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is damaged: its SHA-256 differs; if the job has checkpoints, copy ",
                   kProductTableFile,
                   " of one of them over it: the job computes other bits without it; "
                   "if it has none, delete the file"));
}

absl::StatusOr<std::string> KeepProductTable(const std::string& directory,
                                             absl::string_view table) {
  if (table.size() > kProductTableBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job's table of matrix products has ", table.size(), " bytes, more than ",
        kProductTableBytesMax, "; let the chunks and micro-batches of the job be alike, ",
        "so that it has fewer different products"));
  }
  // On a file system without links only the processes of one attempt are told apart: by asking.
  RETURN_IF_ERROR(
      MakeFileOnce(directory, kProductTableFile, absl::StrCat(::getpid(), ".new"), FileOf(table)));
  return ReadProductTable(directory);
}

absl::Status StoreProductTable(absl::string_view table, const std::string& to,
                               v1::NumericsFingerprint* fingerprint) {
  (*fingerprint->mutable_fields())[std::string(kProductTableField)] = base::Sha256Hex(table);
  return base::WriteFileDurably(PathIn(to), FileOf(table));
}

absl::Status CopyProductTable(const std::string& from, const std::string& to,
                              v1::NumericsFingerprint* fingerprint) {
  const absl::StatusOr<std::string> table = ReadProductTable(from);
  if (absl::IsNotFound(table.status())) {
    return absl::FailedPreconditionError(MissingProductTable(from));
  }
  if (!table.ok()) return table.status();
  return StoreProductTable(*table, to, fingerprint);
}

void TakeProductTable(const v1::NumericsFingerprint& from, v1::NumericsFingerprint* to) {
  const std::string digest = DigestIn(from);
  if (!digest.empty()) (*to->mutable_fields())[std::string(kProductTableField)] = digest;
}

std::string MissingProductTable(const std::string& job_directory) {
  return absl::StrCat(PathIn(job_directory),
                      " is missing, and the job has trained by it; copy it back from one of its "
                      "checkpoints");
}

bool IsProductTableOf(const v1::Manifest& manifest, absl::string_view table) {
  const std::string digest = DigestIn(manifest.numerics());
  return digest.empty() || base::Sha256Hex(table) == digest;
}

absl::StatusOr<std::string> ProductTableOfCheckpoint(const v1::Manifest& manifest,
                                                     const std::string& directory) {
  const std::string digest = DigestIn(manifest.numerics());
  if (digest.empty()) return "";
  absl::StatusOr<std::string> table = ReadProductTable(directory);
  if (table.ok() && base::Sha256Hex(*table) == digest) return table;
  if (base::ErrnoOf(table.status()) != 0) return table.status();
  const char* const wrong = table.ok()                         ? "is of another job"
                            : absl::IsNotFound(table.status()) ? "is missing"
                                                               : "is damaged";
  return absl::InvalidArgumentError(
      absl::StrCat(PathIn(directory), " ", wrong,
                   "; put back the table that the checkpoint was made with, or "
                   "let the job measure another one, with other bits, by --allow-changed ",
                   kProductTableField));
}

}  // namespace megascale::checkpoint
