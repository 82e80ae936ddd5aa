// The table of matrix products that belongs to a job's numerics (runtime/device/product_tuner.h),
// as a file: one in the job's folder, made once and never changed, and a copy in each checkpoint,
// so that a job which begins from that checkpoint computes the same bits. The digest of the table
// is in the checkpoint's numerics fingerprint. The snapshot memory of rank 0 has a copy, too
// (snapshot.h).
//
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"

namespace megascale::checkpoint {

inline constexpr absl::string_view kProductTableFile = "products.json";
// The field of the fingerprint, and the area by which a user allows another table.
inline constexpr absl::string_view kProductTableField = "products";

// Limit of a table: a thousand products and more. A job has some tens, of about 600 bytes each.
inline constexpr size_t kProductTableBytesMax = size_t{1} << 20;

// Returns the table in `directory`. Errors: NotFound - there is none (no errno); InvalidArgument -
// the file is damaged: one line with its name and what to do; else as base::ReadFile.
absl::StatusOr<std::string> ReadProductTable(const std::string& directory);

// Keeps `table` in `directory` unless a table is there already, and returns the table that is
// there. If several processes do this at once, even a process of an attempt that was given up, one
// of them wins. The table is synced to storage before this returns. Errors: InvalidArgument -
// `table` is larger than kProductTableBytesMax; else as ReadProductTable and
// base::WriteFileDurably.
absl::StatusOr<std::string> KeepProductTable(const std::string& directory, absl::string_view table);

// Writes the table into a checkpoint's folder, and its digest into the fingerprint. Errors: as
// base::WriteFileDurably.
absl::Status StoreProductTable(absl::string_view table, const std::string& to,
                               megascale::checkpoint::v1::NumericsFingerprint* fingerprint);

// Copies the table from a job's folder to a checkpoint's, and its digest into the fingerprint.
// Requires: the job computes by a table. Errors: FailedPrecondition - the table is missing: one
// line with what to do; else as ReadProductTable and base::WriteFileDurably.
absl::Status CopyProductTable(const std::string& from, const std::string& to,
                              megascale::checkpoint::v1::NumericsFingerprint* fingerprint);

// Copies the digest from one fingerprint to another, because a job that begins from a checkpoint
// takes the checkpoint's table.
void TakeProductTable(const megascale::checkpoint::v1::NumericsFingerprint& from,
                      megascale::checkpoint::v1::NumericsFingerprint* to);

// Returns a message that the job's table is missing: one line with the file's name and what to do.
std::string MissingProductTable(const std::string& job_directory);

// Whether the checkpoint was made with `table`, or without a table.
bool IsProductTableOf(const megascale::checkpoint::v1::Manifest& manifest, absl::string_view table);

// Returns the table of a checkpoint that a job begins from; empty: the checkpoint was made without
// a table. `directory`: the checkpoint's folder, which has the manifest. Errors: InvalidArgument -
// the table is missing or damaged, or is not the manifest's table; else as base::ReadFile.
absl::StatusOr<std::string> ProductTableOfCheckpoint(
    const megascale::checkpoint::v1::Manifest& manifest, const std::string& directory);

}  // namespace megascale::checkpoint
