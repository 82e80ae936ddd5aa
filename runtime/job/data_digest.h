// The fingerprint of a job's data without its list of files. Driver and agents exchange one SHA-256
// of the list: with thousands of files the list itself would be too large for each report. Pure.
#pragma once

#include "proto/checkpoint.pb.h"

namespace megascale::job {

// Returns the fingerprint with files_sha256 and num_files in place of file_sha256; unchanged if it
// has no list.
checkpoint::v1::DataFingerprint DigestOf(const checkpoint::v1::DataFingerprint& data);

// Returns the fingerprint as older versions have it: without files_sha256 and num_files.
checkpoint::v1::DataFingerprint ListOf(const checkpoint::v1::DataFingerprint& data);

// Returns whether both are of the same data, whichever of the two forms they have.
bool AreSameData(const checkpoint::v1::DataFingerprint& a,
                 const checkpoint::v1::DataFingerprint& b);

}  // namespace megascale::job
